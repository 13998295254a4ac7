//! The keys whose signatures this machine believes.

use std::fs;
use std::io::Read;
use std::path::Path;

use minisign_verify::{PublicKey, Signature};

use crate::{Error, Result};

/// Largest file of a key: a comment and a line.
const MAX_KEY_BYTES: u64 = 16 << 10;

/// Public keys of minisign.
#[derive(Clone, Debug)]
pub struct Keys(Vec<PublicKey>);

impl Keys {
    /// Reads every `*.pub` file of a folder. A folder without any gives keys that believe nothing.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Key`] with the file.
    pub fn read(folder: &Path) -> Result<Self> {
        let io = |source| Error::Io { operation: "read", path: folder.into(), source };
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).map_err(io)? {
            files.push(entry.map_err(io)?.path());
        }
        files.retain(|file| file.extension().is_some_and(|extension| extension == "pub"));
        files.sort();
        files.iter().map(|file| key(file)).collect::<Result<_>>().map(Self)
    }

    /// The key that the signature names, if it is one of these.
    pub(crate) fn of(&self, signature: &Signature) -> Result<&PublicKey> {
        let named = self.0.iter().find(|key| key.verify_stream(signature).is_ok());
        named.ok_or(Error::UnknownKey { keys: self.0.len() })
    }
}

fn key(file: &Path) -> Result<PublicKey> {
    let io = |source| Error::Io { operation: "read", path: file.into(), source };
    let mut text = String::new();
    fs::File::open(file).map_err(io)?.take(MAX_KEY_BYTES).read_to_string(&mut text).map_err(io)?;
    PublicKey::decode(&text).map_err(|_| Error::Key { path: file.into() })
}
