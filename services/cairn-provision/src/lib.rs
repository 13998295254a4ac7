//! Makes a device what its `cairn.toml` says, early at each start.
//!
//! ```text
//! card (FAT): cairn.toml ── new and right ──▶ secrets ─▶ vault (data)
//!                  ▲                    └───▶ the rest ─▶ state (data): cairn.toml
//!                  └── scrubbed of secrets ◀──────────────────┤
//! card: cairn-status.txt ◀── what was done, or every fault     ▼
//!                                              files under /run, at each start
//! ```
//! A file with faults changes nothing: the device goes on with what it was told before. Each step can be interrupted and
//! is repeated at the next start, because the card's file is scrubbed last.

#![forbid(unsafe_code)]

mod apply;
mod disk;
mod reset;
mod status;
mod vault;

use std::path::PathBuf;

pub use apply::apply;
pub use reset::{Reset, reset};

/// Where everything is.
#[derive(Clone, Debug, clap::Args)]
pub struct Places {
    /// Folder that people can write at their desk: the FAT partition
    #[arg(long, value_name = "FOLDER", default_value = "/config")]
    pub card: PathBuf,
    /// Folder on the data partition, for this program alone
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/cairn-provision")]
    pub state: PathBuf,
    /// Root of the file system that files are written to
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    pub root: PathBuf,
    /// systemd's program that encrypts secrets
    #[arg(long, value_name = "PROGRAM", default_value = "systemd-creds")]
    pub systemd_creds: PathBuf,
}

impl Places {
    /// What a person wrote.
    fn wish(&self) -> PathBuf {
        self.card.join("cairn.toml")
    }

    /// The last of it that was right.
    fn taken(&self) -> PathBuf {
        self.state.join("cairn.toml")
    }

    /// Where secrets are kept.
    fn secrets(&self) -> PathBuf {
        self.state.join("secrets")
    }
}
