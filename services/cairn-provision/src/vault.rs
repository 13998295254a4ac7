//! The device's secrets, on the data partition: encrypted by systemd-creds where that works, else readable by root alone.

use std::fs::{self, DirBuilder};
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::{Places, disk};

/// The largest secret on the disk: a key, encrypted and in text form.
const MAX_BYTES: usize = 1 << 20;
/// What an encrypted secret's file ends in.
const ENCRYPTED: &str = ".cred";

/// Where secrets are kept.
#[derive(Debug)]
pub(crate) struct Vault {
    folder: PathBuf,
    systemd_creds: PathBuf,
}

impl Vault {
    pub(crate) fn open(places: &Places) -> Result<Self> {
        let folder = places.secrets();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.with_context(|| format!("make {}", folder.display()))?;
        Ok(Self { folder, systemd_creds: places.systemd_creds.clone() })
    }

    /// Keeps a secret, replacing one of its name. Returns whether it is encrypted.
    pub(crate) fn put(&self, name: &str, secret: &str) -> Result<bool> {
        let (encrypted, plain) = (self.encrypted(name), self.folder.join(name));
        // Only what can be had back was kept.
        match self.encrypt(name, secret).and_then(|sealed| Ok((self.decrypt(name, &sealed)?, sealed))) {
            Ok((opened, sealed)) if opened == secret => {
                disk::write(&encrypted, 0o600, &sealed)?;
                disk::remove(&plain)?;
                Ok(true)
            }
            _ => {
                disk::write(&plain, 0o600, secret.as_bytes())?;
                disk::remove(&encrypted)?;
                Ok(false)
            }
        }
    }

    /// A secret, if there is one of this name.
    pub(crate) fn get(&self, name: &str) -> Result<Option<String>> {
        if let Some(sealed) = disk::read(&self.encrypted(name), MAX_BYTES)? {
            return self.decrypt(name, &sealed).map(Some);
        }
        let plain = disk::read(&self.folder.join(name), MAX_BYTES)?;
        plain.map(|bytes| String::from_utf8(bytes).with_context(|| format!("the secret {name} is damaged"))).transpose()
    }

    /// Whether there is a secret of this name, readable or not.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.encrypted(name).is_file() || self.folder.join(name).is_file()
    }

    /// Removes every secret but these.
    pub(crate) fn keep_only(&self, names: &[&str]) -> Result<()> {
        let error = || format!("read {}", self.folder.display());
        for entry in fs::read_dir(&self.folder).with_context(error)? {
            let path = entry.with_context(error)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !names.contains(&name.trim_end_matches(ENCRYPTED)) {
                disk::remove(&path)?;
            }
        }
        Ok(())
    }

    fn encrypted(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}{ENCRYPTED}"))
    }

    fn encrypt(&self, name: &str, secret: &str) -> Result<Vec<u8>> {
        filter(&self.systemd_creds, &["encrypt", &format!("--name={name}"), "-", "-"], secret.as_bytes())
    }

    fn decrypt(&self, name: &str, sealed: &[u8]) -> Result<String> {
        let opened = filter(&self.systemd_creds, &["decrypt", &format!("--name={name}"), "-", "-"], sealed)?;
        String::from_utf8(opened).with_context(|| format!("the secret {name} is damaged"))
    }
}

/// What a program makes of its input.
fn filter(program: &Path, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>> {
    let error = || format!("start {}", program.display());
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(error)?;
    let mut stdin = child.stdin.take().with_context(error)?;
    // The program reads to the end before it writes. One that ends early says why in its status.
    let _ = stdin.write_all(input);
    drop(stdin);
    let output = child.wait_with_output().with_context(error)?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("{} {}: {}: {}", program.display(), arguments[0], output.status, reason.trim());
    }
    Ok(output.stdout)
}
