//! Configuration: one TOML file per daemon, strict.
//!
//! Types derive `Deserialize` with `deny_unknown_fields` and `default`, so that a misspelt key is an error with line and
//! column and an absent file means the defaults.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// Where configurations are.
const FOLDER: &str = "/etc/cairn";

/// Reads the configuration of `daemon`: `path` if given, else `/etc/cairn/<daemon>.toml` if that exists.
///
/// # Errors
/// [`Error::Read`] or [`Error::Config`].
pub fn load<T: DeserializeOwned + Default>(daemon: &str, path: Option<&Path>) -> Result<T> {
    let default = PathBuf::from(FOLDER).join(format!("{daemon}.toml"));
    let file = path.unwrap_or(&default);
    match std::fs::read_to_string(file) {
        Ok(text) => parse(&text, file),
        Err(error) if error.kind() == ErrorKind::NotFound && path.is_none() => Ok(T::default()),
        Err(source) => Err(Error::Read { path: file.into(), source }),
    }
}

/// What a shown configuration says with the lines that are off by default, behind `#: `: they must be right as well.
pub fn with_all_lines(shown: &str) -> String {
    shown.lines().map(|line| format!("{}\n", line.strip_prefix("#: ").unwrap_or(line))).collect()
}

pub(crate) fn parse<T: DeserializeOwned>(text: &str, file: &Path) -> Result<T> {
    toml::from_str(text).map_err(|source| Error::Config { path: file.into(), source: Box::new(source) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Config {
        number: u32,
    }

    #[test]
    fn a_misspelt_key_is_named_with_its_line() {
        let error = parse::<Config>("number = 1\nnumbre = 2\n", Path::new("x.toml")).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("line 2, column 1") && cause.contains("numbre"), "{cause}");
    }

    #[test]
    fn a_file_that_was_asked_for_must_exist() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("d.toml");
        assert!(matches!(load::<Config>("d", Some(&file)), Err(Error::Read { .. })));
        std::fs::write(&file, "number = 7").unwrap();
        assert_eq!(load::<Config>("d", Some(&file)).unwrap(), Config { number: 7 });
    }
}
