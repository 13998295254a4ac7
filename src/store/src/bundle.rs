//! The bundle: one file with a model package and its signature.
//!
//! ```text
//! untrusted comment: …        ┐
//! base64 of key and signature │ a minisign signature, of the archive that follows
//! trusted comment: …          │
//! base64 of its signature     ┘
//! tar archive: model.toml, the model file, labels, golden input and outputs; nothing but files, no folders
//! ```
//! `minisign -S -m model.tar && cat model.tar.minisig model.tar` makes one, and `tail --lines=+5` takes it apart.
//! The archive is read only after its signature was found good; its reader bounds everything all the same.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path};

use minisign_verify::Signature;
use ring::digest::{Context, SHA256};
use serde::Deserialize;
use tar::EntryType;

use crate::{Error, Keys, Result};

/// The largest bundle.
pub const MAX_BYTES: u64 = 2 << 30;
/// The longest line of a signature. minisign's comments are shorter.
const MAX_LINE_BYTES: u64 = 8 << 10;
/// The most files of a package. The largest so far has ten.
const MAX_FILES: usize = 256;
/// The largest `model.toml`.
const MAX_MANIFEST_BYTES: u64 = 64 << 10;
/// The longest name of a model.
const MAX_NAME: usize = 64;
/// How much is hashed at once.
const CHUNK: usize = 64 << 10;

/// What a package's `model.toml` says about it. The rest is the engine's affair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Name of the model.
    pub name: String,
    /// Version of the package.
    pub version: String,
}

/// Reads a bundle to its end and checks its signature. Returns the SHA-256 of all its bytes, in hexadecimal digits.
///
/// # Errors
/// [`Error::Format`], [`Error::UnknownKey`], [`Error::Signature`], [`Error::TooLarge`], or [`Error::Io`] of the reader.
pub fn verify(bundle: impl Read, keys: &Keys) -> Result<String> {
    let mut bundle = io::BufReader::with_capacity(CHUNK, bundle.take(MAX_BYTES + 1));
    let (text, signature) = signature(&mut bundle)?;
    let mut verifier = keys.of(&signature)?.verify_stream(&signature).map_err(|_| Error::Signature)?;
    let mut digest = Context::new(&SHA256);
    digest.update(text.as_bytes());
    let mut bytes = text.len() as u64;
    loop {
        let chunk = bundle.fill_buf().map_err(reading)?;
        if chunk.is_empty() {
            break;
        }
        verifier.update(chunk);
        digest.update(chunk);
        let length = chunk.len();
        bytes += length as u64;
        bundle.consume(length);
    }
    if bytes > MAX_BYTES {
        return Err(Error::TooLarge { limit: MAX_BYTES });
    }
    verifier.finalize().map_err(|_| Error::Signature)?;
    Ok(hexadecimal(digest.finish().as_ref()))
}

/// Unpacks the archive of a bundle into `folder`, which must be empty, and makes it durable. The signature is skipped.
///
/// # Errors
/// [`Error::Format`] or [`Error::Package`] with the entry at fault, [`Error::Io`].
pub fn unpack(bundle: impl Read, folder: &Path) -> Result<Description> {
    let mut bundle = io::BufReader::with_capacity(CHUNK, bundle.take(MAX_BYTES));
    signature(&mut bundle)?;
    let mut archive = tar::Archive::new(bundle);
    // Raw: no extension of the format is followed, so a name or a size has one place only.
    let entries = archive.entries().map_err(malformed)?.raw(true);
    let mut files = 0;
    for entry in entries {
        let mut entry = entry.map_err(malformed)?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        match entry.header().entry_type() {
            // "./", as tar writes the folder itself.
            EntryType::Directory if Path::new(&path).components().all(|part| part == Component::CurDir) => continue,
            EntryType::Regular => {}
            other => return Err(Error::Package(format!("{path:?} is of type {other:?}, not a regular file"))),
        }
        files += 1;
        if files > MAX_FILES {
            return Err(Error::Package(format!("has more than {MAX_FILES} files")));
        }
        write(&mut entry, file_name(&path)?, folder)?;
    }
    let description = describe(folder)?;
    sync(folder)?;
    Ok(description)
}

/// The name of an entry that lies in the package's folder itself.
fn file_name(path: &str) -> Result<&str> {
    let name = path.strip_prefix("./").unwrap_or(path);
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == name => Ok(name),
        _ => Err(Error::Package(format!("{path:?} is not the name of a file in the package's folder"))),
    }
}

fn write(entry: &mut tar::Entry<'_, impl Read>, name: &str, folder: &Path) -> Result<()> {
    let path = folder.join(name);
    let error = |source| Error::Io { operation: "write", path: path.clone(), source };
    // New: a name that comes twice is refused.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&path).map_err(|source| {
        match source.kind() {
            io::ErrorKind::AlreadyExists => Error::Package(format!("{name:?} comes twice")),
            _ => error(source),
        }
    })?;
    let mut chunk = vec![0; CHUNK];
    let mut left = entry.size();
    while left > 0 {
        let read = entry.read(&mut chunk).map_err(malformed)?;
        if read == 0 {
            return Err(Error::Format(format!("ends {left} bytes before the end of {name:?}")));
        }
        file.write_all(&chunk[..read]).map_err(error)?;
        left -= read as u64;
    }
    file.sync_all().map_err(error)
}

/// What `model.toml` says that the store must know.
///
/// # Errors
/// [`Error::Package`] with line and column, [`Error::Io`].
pub(crate) fn describe(folder: &Path) -> Result<Description> {
    /// Other keys are the engine's affair.
    #[derive(Deserialize)]
    struct Manifest {
        name: String,
        version: String,
        golden: Option<toml::Table>,
    }
    let path = folder.join("model.toml");
    let fault = |reason: &dyn std::fmt::Display| Error::Package(format!("model.toml: {reason}"));
    let mut text = String::new();
    let file = File::open(&path).map_err(|error| fault(&error))?;
    file.take(MAX_MANIFEST_BYTES + 1).read_to_string(&mut text).map_err(|error| fault(&error))?;
    if text.len() as u64 > MAX_MANIFEST_BYTES {
        return Err(fault(&format!("is larger than {MAX_MANIFEST_BYTES} bytes")));
    }
    let manifest: Manifest = toml::from_str(&text).map_err(|error| fault(&error))?;
    if !is_name(&manifest.name) {
        return Err(fault(&format!(
            "{:?} is no name, which is 1 to {MAX_NAME} lower-case letters, digits and inner hyphens",
            manifest.name
        )));
    }
    if manifest.golden.is_none() {
        return Err(fault(
            &"has no [golden] table, and without one nobody can tell whether the model computes rightly",
        ));
    }
    if manifest.version.is_empty() || !manifest.version.chars().all(|c| c.is_ascii_graphic()) {
        return Err(fault(&"a version is visible ASCII characters"));
    }
    Ok(Description { name: manifest.name, version: manifest.version })
}

/// Whether this names a model, and so a file of the store.
fn is_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

/// Reads the four lines of a signature.
fn signature(bundle: &mut impl BufRead) -> Result<(String, Signature)> {
    let mut text = String::new();
    for line in 1..=4 {
        let before = text.len();
        bundle.by_ref().take(MAX_LINE_BYTES).read_line(&mut text).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => Error::Format(format!("line {line} of the signature is not text")),
            _ => reading(error),
        })?;
        if !text[before..].ends_with('\n') {
            return Err(Error::Format(format!("line {line} of the signature has no end")));
        }
    }
    let signature = Signature::decode(&text).map_err(|error| Error::Format(format!("signature: {error}")))?;
    Ok((text, signature))
}

fn malformed(error: io::Error) -> Error {
    Error::Format(format!("archive: {error}"))
}

fn reading(source: io::Error) -> Error {
    Error::Io { operation: "read", path: "the bundle".into(), source }
}

/// Makes a folder's entries durable.
pub(crate) fn sync(folder: &Path) -> Result<()> {
    let error = |source| Error::Io { operation: "sync", path: folder.into(), source };
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(error)
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}
