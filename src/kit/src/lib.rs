//! Daemon skeleton: what every daemon of the appliance does the same way.
//!
//! ```text
//! arguments ─▶ configuration ─▶ log ─▶ (the daemon's own work) ─▶ ready ─▶ keep-alive … ─▶ shutdown
//! ```
//! [`bus`] is what daemons share on D-Bus; [`mqtt`] is the link to the broker; [`identity`] the name of this machine towards the outside.

#![forbid(unsafe_code)]

pub mod bus;
pub mod config;
pub mod identity;
pub mod log;
pub mod mqtt;
pub mod systemd;
pub mod thermal;

use std::path::PathBuf;

use serde::de::DeserializeOwned;

/// Arguments that every daemon takes.
#[derive(Clone, Debug, clap::Args)]
// Each daemon has a struct of this name, and a group takes its name from the struct.
#[group(skip)]
pub struct Arguments {
    /// Configuration file, instead of `/etc/cairn/DAEMON.toml`
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What is logged, for example `info` or `npud=debug,serve=trace`
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log: String,
}

impl Arguments {
    /// Sets the log up and reads the configuration: how every daemon begins.
    ///
    /// # Errors
    /// Those of [`log::start`] and [`config::load`].
    pub fn begin<T: DeserializeOwned + Default>(&self, daemon: &str) -> Result<T> {
        log::start(daemon, &self.log)?;
        config::load(daemon, self.config.as_deref())
    }
}

/// Result of a skeleton operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What keeps a daemon from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A configuration is malformed. The cause names line and column.
    #[error("configuration {}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// A value of the configuration makes no sense.
    #[error("setting {key}: {reason}")]
    Setting {
        /// The key.
        key: &'static str,
        /// Why.
        reason: String,
    },
    /// The machine has no usable identity.
    #[error("{} is no machine identity", path.display())]
    Identity {
        /// Where it should be.
        path: PathBuf,
    },
    /// The log cannot be set up.
    #[error("log filter {filter:?}: {reason}")]
    Log {
        /// The filter.
        filter: String,
        /// Why.
        reason: String,
    },
    /// The service manager cannot be reached.
    #[error("notify the service manager")]
    Notify(#[source] std::io::Error),
}
