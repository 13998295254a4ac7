//! The log: to the journal when the service manager started us, else to standard error.
//!
//! An event with the field `message_id` gets the journal's `MESSAGE_ID`, for which the catalog has an explanation.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::{Error, Result};

/// A daemon serves.
pub const SERVING: &str = "d0a6f7f4a92f4b64a1a7b3f1c52e0b11";
/// A model was loaded.
pub const MODEL_LOADED: &str = "5f0c8d6b3c5f4f4fb0a4c2f6a7f3e9d2";
/// A result could not be trusted, and its context was replaced.
pub const CONTEXT_REPLACED: &str = "9b3f0f6e2f7a4c0f8a51c6d0b2e4f7a3";
/// The broker cannot be reached.
pub const BROKER_LOST: &str = "1e7d2a9c4b8f4d3ea6f05b7c8d9e0fa4";
/// The server of a language model ended by itself.
pub const SERVER_LOST: &str = "6b1d8e4fa2c94d0f8f7a35e0c9d2b416";

/// The update daemon serves.
pub const UPDATES_SERVED: &str = "4f6d1c0e8a5b4b0d9c3e2f7a1b6d5e48";
/// The health gate marked a slot good.
pub const SLOT_GOOD: &str = "b27c5e9d3f1a4c68a0d4e8f6123b7c95";
/// An update failed, and nothing was changed for good.
pub const UPDATE_FAILED: &str = "7a9e3d5c1b2f4e80b6c8d0a2f4e61357";
/// An update was tried and given up.
pub const UPDATE_ROLLED_BACK: &str = "c3d8f0b1a6e54792806b4c2d9e1f7a53";
/// Somebody asked for a factory reset.
pub const FACTORY_RESET: &str = "5d2b9c7e41f84a06b3c8e1a7f0d96b42";

/// A model of the store serves in a new version.
pub const MODEL_UPDATED: &str = "84c1e6d20b7f4a3d9e5f0c6a1b8d7e32";
/// A new version of a model was wrong, and the old one serves on.
pub const MODEL_REFUSED: &str = "e0b95a7c3d184f6ab2c7d1e8f4a6093b";

/// Sets the log up for `daemon`. Call it once, first.
///
/// # Errors
/// [`Error::Log`] for a malformed filter, or where a log was set up before.
pub fn start(daemon: &str, filter: &str) -> Result<()> {
    let error = |reason: String| Error::Log { filter: filter.to_owned(), reason };
    let env_filter = EnvFilter::try_new(filter).map_err(|source| error(source.to_string()))?;
    let registry = tracing_subscriber::registry().with(env_filter);
    match journal(daemon) {
        Some(journal) => registry.with(journal).try_init(),
        None => {
            let ansi = std::io::stderr().is_terminal();
            let stderr = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(ansi);
            registry.with(stderr).try_init()
        }
    }
    .map_err(|source| error(source.to_string()))
}

/// The journal, where standard error would end in it and it can be reached.
fn journal(daemon: &str) -> Option<tracing_journald::Layer> {
    std::env::var_os("JOURNAL_STREAM")?;
    let layer = tracing_journald::layer().ok()?;
    Some(layer.with_field_prefix(None).with_syslog_identifier(daemon.to_owned()))
}
