//! Factory reset: everything that is not of the image goes, when someone has asked for it.
//!
//! ```text
//! factory-reset (card) ─┐
//! --marker (data) ──────┴─▶ card: factory-reset.running ─▶ wipe ─▶ done: the card's file is removed
//!                                       ▲                   │
//!                                       └──── power loss ───┘
//! ```

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use provision::MAX_BYTES;
use tracing::{info, warn};

use crate::{Places, disk};

/// Files of the card that ask for it. Some systems hide a file's ending, or insist on one.
const ASKED: [&str; 2] = ["factory-reset", "factory-reset.txt"];
/// The card's file while it goes on.
const RUNNING: &str = "factory-reset.running";

/// What a factory reset does.
#[derive(Clone, Debug, clap::Args)]
pub struct Reset {
    /// A file that asks for it, beside those on the card
    #[arg(long, value_name = "FILE")]
    pub marker: Vec<PathBuf>,
    /// A folder that is emptied
    #[arg(long, value_name = "FOLDER", required = true)]
    pub wipe: Vec<PathBuf>,
    /// What stays if cairn.toml says `[factory-reset] keep-keys = true`, beside the secrets
    #[arg(long, value_name = "PATH")]
    pub keep: Vec<PathBuf>,
}

/// Resets the device, if someone has asked for it.
///
/// # Errors
/// A card or a folder that cannot be written. What was asked for stays asked for.
pub fn reset(places: &Places, reset: &Reset) -> Result<()> {
    let running = places.card.join(RUNNING);
    let mut asked: Vec<PathBuf> = ASKED.iter().map(|name| places.card.join(name)).collect();
    asked.extend(reset.marker.iter().cloned());
    asked.retain(|path| path.exists());
    if asked.is_empty() && !running.exists() {
        return Ok(());
    }
    // First, and on the card: a card that cannot be written would ask again at each start, for ever.
    disk::write(&running, 0o644, b"")?;
    for path in asked {
        disk::remove(&path)?;
    }
    let keep = kept(places, reset)?;
    warn!(?keep, folders = ?reset.wipe, "factory reset");
    for folder in &reset.wipe {
        empty(folder, &keep)?;
    }
    disk::remove(&running)?;
    disk::sync(&places.card)?;
    info!("the factory reset is done");
    Ok(())
}

/// What stays.
fn kept(places: &Places, reset: &Reset) -> Result<Vec<PathBuf>> {
    let taken = disk::read(&places.taken(), MAX_BYTES)?.and_then(|bytes| String::from_utf8(bytes).ok());
    let keeps = taken.and_then(|text| provision::read(&text).ok()).is_some_and(|taken| taken.reset_keeps_keys);
    if !keeps {
        return Ok(Vec::new());
    }
    Ok([places.secrets(), places.taken()].into_iter().chain(reset.keep.iter().cloned()).collect())
}

/// Removes everything below a folder but what is kept, and does not leave its file system.
fn empty(folder: &Path, keep: &[PathBuf]) -> Result<()> {
    let error = || format!("empty {}", folder.display());
    if !folder.exists() {
        return Ok(());
    }
    let device = folder.symlink_metadata().with_context(error)?.dev();
    for entry in fs::read_dir(folder).with_context(error)? {
        let path = entry.with_context(error)?.path();
        let metadata = path.symlink_metadata().with_context(|| format!("look at {}", path.display()))?;
        if keep.contains(&path) || metadata.dev() != device {
            continue;
        }
        if !metadata.is_dir() {
            disk::remove(&path)?;
            continue;
        }
        empty(&path, keep)?;
        match fs::remove_dir(&path) {
            // What stays, or another file system, is below.
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
            removed => removed.with_context(|| format!("remove {}", path.display()))?,
        }
    }
    disk::sync(folder)
}
