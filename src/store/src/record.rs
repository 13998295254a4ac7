//! What the store knows about one model: a TOML file, replaced as a whole.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Error, Result, bundle};

/// One version of a model, in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Version of the package.
    pub version: String,
    /// SHA-256 of its bundle, in hexadecimal digits: the name of its folder.
    pub sha256: String,
}

/// A version that did not come to serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Version of the package.
    pub version: String,
    /// SHA-256 of its bundle.
    pub sha256: String,
    /// What was wrong with it.
    pub reason: String,
}

/// The versions of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// The one that serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<Release>,
    /// The one that served before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) previous: Option<Release>,
    /// The one that is to be proved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) candidate: Option<Release>,
    /// The last one that was not right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<Refusal>,
}

impl Record {
    /// Reads a record; one that was never written is empty.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(Error::Io { operation: "read", path: path.into(), source }),
        };
        let damaged = |reason: String| Error::Record { path: path.into(), reason };
        let record: Self = toml::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        let releases = [&record.current, &record.previous, &record.candidate];
        if let Some(release) = releases.into_iter().flatten().find(|release| !is_digest(&release.sha256)) {
            return Err(damaged(format!("{:?} is no SHA-256", release.sha256)));
        }
        Ok(record)
    }

    /// Replaces the record at `path`, by way of a file in `scratch`, a folder of the same file system.
    pub(crate) fn write(&self, path: &Path, scratch: &Path) -> Result<()> {
        let error = |source| Error::Io { operation: "write", path: path.into(), source };
        let text = toml::to_string(self).map_err(|reason| error(std::io::Error::other(reason)))?;
        let mut file = tempfile::NamedTempFile::new_in(scratch).map_err(error)?;
        file.write_all(text.as_bytes()).map_err(error)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644)).map_err(error)?;
        file.as_file().sync_all().map_err(error)?;
        let _: File = file.persist(path).map_err(|failed| error(failed.error))?;
        bundle::sync(path.parent().unwrap_or(path))
    }
}

/// Whether this is a SHA-256 in lower-case hexadecimal digits, and so a safe name of a folder.
pub(crate) fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}
