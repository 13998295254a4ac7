//! What survives a restart and a reboot.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::ladder::Ladder;

/// What survives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    /// The boot in which this was written.
    pub(crate) boot_id: String,
    /// The last record of the kernel's log that was read in that boot.
    pub(crate) sequence: Option<u64>,
    /// Seconds in operation before that boot.
    pub(crate) operated_before: u64,
    /// Seconds in operation in that boot, as far as it was written.
    pub(crate) operated: u64,
    /// Whether that boot ended in an orderly shutdown.
    pub(crate) ended_cleanly: bool,
    /// Why that boot began.
    pub(crate) reset_reason: String,
    /// What was done.
    pub(crate) ladder: Ladder,
    /// What was counted.
    pub(crate) counters: BTreeMap<String, u64>,
    /// Saved logs that were read before.
    pub(crate) pstore_seen: BTreeSet<String>,
}

impl State {
    /// Reads the state below `folder`. A first start has none; a damaged one is set aside, and the reason returned.
    pub(crate) fn load(folder: &Path) -> (Self, Option<String>) {
        let file = path(folder);
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return (Self::default(), None),
            Err(error) => return (Self::default(), Some(format!("read {}: {error}", file.display()))),
        };
        match serde_json::from_slice(&text) {
            Ok(state) => (state, None),
            Err(error) => {
                // Kept for whoever wants to know; where that fails it is overwritten.
                let _ = fs::rename(&file, file.with_extension("damaged"));
                (Self::default(), Some(format!("{}: {error}", file.display())))
            }
        }
    }

    /// Writes the state below `folder`: the new one or the old one is there, whenever the power fails.
    ///
    /// # Errors
    /// Where the disk takes nothing.
    pub(crate) fn save(&self, folder: &Path) -> Result<()> {
        let (file, text) = (path(folder), serde_json::to_vec(self)?);
        let beside = file.with_extension("new");
        let write = || {
            fs::create_dir_all(folder)?;
            let mut new = File::create(&beside)?;
            new.write_all(&text)?;
            new.sync_all()?;
            fs::rename(&beside, &file)?;
            File::open(folder)?.sync_all()
        };
        write().with_context(|| format!("write {}", file.display()))
    }

    /// Goes on in boot `boot_id`. Where it is a new one, what counts per boot starts over.
    pub(crate) fn enter(&mut self, boot_id: &str) {
        if self.boot_id == boot_id {
            return;
        }
        self.operated_before += self.operated;
        (self.boot_id, self.sequence, self.operated) = (boot_id.to_owned(), None, 0);
        self.ended_cleanly = false;
    }

    /// Time in operation, `uptime` after this boot began.
    pub(crate) fn operated(&self, uptime: Duration) -> Duration {
        Duration::from_secs(self.operated_before) + uptime
    }

    /// Adds to a counter.
    pub(crate) fn count(&mut self, counter: &str, amount: u64) {
        *self.counters.entry(counter.to_owned()).or_default() += amount;
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("state.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back_and_a_damaged_one_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(State::load(folder.path()), (State::default(), None));
        let mut state = State { sequence: Some(7), operated: 60, ..State::default() };
        state.enter("a");
        state.count("incidents", 2);
        state.save(folder.path()).unwrap();
        assert_eq!(State::load(folder.path()), (state.clone(), None));
        assert_eq!((state.sequence, state.operated(Duration::from_secs(5))), (None, Duration::from_secs(65)));
        fs::write(path(folder.path()), "{").unwrap();
        let (state, why) = State::load(folder.path());
        assert_eq!(state, State::default());
        assert!(why.unwrap().contains("state.json"));
        assert!(folder.path().join("state.damaged").exists());
    }
}
