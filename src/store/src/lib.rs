//! Signed model bundles, and the store on the data partition that keeps them.
//!
//! ```text
//! bundle file ─▶ incoming/ ── signature, digest ──▶ packages/<sha256>/ ─▶ candidate
//!                                                                            │ npud holds it against its golden output
//!                            previous ◀── current ◀──────── right ───────────┤
//!                                                           wrong ──▶ refused, and the reason is kept
//! ```
//! [`bundle`] is the format and its signature, [`Store`] the only writer of the folder, [`models`] what a reader sees.
//! A package's folder is complete from the moment it has its name, and a model's versions change by renaming one file, so
//! that neither a killed process nor a full disk leaves anything half done.

#![forbid(unsafe_code)]

pub mod bundle;
mod keys;
mod record;
mod store;

use std::io;
use std::path::PathBuf;

pub use keys::Keys;
pub use record::{Refusal, Release};
pub use store::{Candidate, Incoming, Model, Offer, Store, models};

/// Result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a bundle was not taken, or the store cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is no bundle.
    #[error("no model bundle: {0}")]
    Format(String),
    /// The bundle is larger than any may be.
    #[error("the bundle is larger than {limit} bytes")]
    TooLarge {
        /// The most bytes that are taken.
        limit: u64,
    },
    /// No key of this machine made the signature.
    #[error("the signature is by none of this machine's {keys} keys")]
    UnknownKey {
        /// How many keys there are.
        keys: usize,
    },
    /// A key of this machine is named, but the content was changed.
    #[error("the signature does not fit the content")]
    Signature,
    /// The content is not what was offered.
    #[error("the {what} is {found:?}, and {wanted:?} was offered")]
    Offer {
        /// Name, version or SHA-256.
        what: &'static str,
        /// What was offered.
        wanted: String,
        /// What came.
        found: String,
    },
    /// The bundle's package cannot be used.
    #[error("package: {0}")]
    Package(String),
    /// A key cannot be used.
    #[error("{} is no minisign public key", path.display())]
    Key {
        /// Its file.
        path: PathBuf,
    },
    /// A record of the store is damaged.
    #[error("{} is damaged: {reason}", path.display())]
    Record {
        /// Its file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// The store has no such package.
    #[error("the store has no package {0:?}")]
    Absent(String),
    /// Another process writes to the store.
    #[error("{} is in use by another process", path.display())]
    Busy {
        /// The store.
        path: PathBuf,
    },
    /// The file system refuses.
    #[error("{operation} {}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Whether the bundle is at fault, so that trying again with the same one is in vain.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Io { .. } | Self::Busy { .. } | Self::Record { .. })
    }
}
