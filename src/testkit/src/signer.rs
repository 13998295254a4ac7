//! A vendor who signs model bundles with a key of one test.

use std::path::Path;

use anyhow::{Context as _, Result};
use minisign::KeyPair;

/// A vendor with a key.
#[derive(Debug)]
pub struct Signer(KeyPair);

impl Signer {
    /// A vendor with a new key.
    ///
    /// # Errors
    /// Where there is no randomness.
    pub fn new() -> Result<Self> {
        Ok(Self(KeyPair::generate_unencrypted_keypair().context("make a key")?))
    }

    /// Writes the public key as `name.pub` into a folder of trusted keys.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn trust(&self, folder: &Path, name: &str) -> Result<()> {
        let key = self.0.pk.to_box().context("the public key has no text")?;
        Ok(std::fs::write(folder.join(format!("{name}.pub")), key.into_string())?)
    }

    /// A bundle with the files of `package`. In its `model.toml`, the first version line says `version`.
    ///
    /// # Errors
    /// Where a file cannot be read.
    pub fn bundle(&self, package: &Path, version: &str) -> Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        let mut files = package.read_dir()?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        files.sort();
        for file in files {
            let name = file.file_name().context("a file has a name")?.to_string_lossy().into_owned();
            let mut bytes = std::fs::read(&file)?;
            if name == "model.toml" {
                bytes = with_version(&String::from_utf8(bytes)?, version).into_bytes();
            }
            append(&mut archive, &name, &bytes)?;
        }
        self.sign(&archive.into_inner()?)
    }

    /// A bundle with this archive, whatever it is.
    ///
    /// # Errors
    /// Where it cannot be signed.
    pub fn sign(&self, archive: &[u8]) -> Result<Vec<u8>> {
        let signature = minisign::sign(Some(&self.0.pk), &self.0.sk, archive, Some("a test"), None)?;
        let mut text = signature.into_string();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok([text.as_bytes(), archive].concat())
    }
}

fn append(archive: &mut tar::Builder<Vec<u8>>, name: &str, bytes: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    Ok(archive.append_data(&mut header, name, bytes)?)
}

fn with_version(manifest: &str, version: &str) -> String {
    let line = |line: &str| match line.starts_with("version = ") {
        true => format!("version = {version:?}\n"),
        false => format!("{line}\n"),
    };
    manifest.lines().map(line).collect()
}
