//! What every daemon does the same way on D-Bus: which bus, who may, clients that leave, jobs.

mod authority;
mod clients;
mod job;

use std::collections::HashMap;

use api::{Failure, Result};
use serde::Deserialize;
use zbus::connection;
use zbus::wire::OwnedVariant;

pub use authority::Authority;
pub use clients::Clients;
pub use job::{Found, JobHandle, Jobs};

/// Which bus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bus {
    /// The system's.
    #[default]
    System,
    /// The session's, for developers.
    Session,
    /// One at a D-Bus address.
    Address(String),
}

impl Bus {
    /// A connection to it, not yet made.
    pub fn connect(&self) -> connection::Builder<'_> {
        match self {
            Self::System => connection::Builder::system(),
            Self::Session => connection::Builder::session(),
            Self::Address(address) => connection::Builder::address(address.as_str()),
        }
    }
}

/// Options as a method receives them.
pub type WireOptions = HashMap<String, OwnedVariant>;

/// Refuses every option: for methods that know none.
///
/// # Errors
/// `InvalidArgs` for the first key.
pub fn no_options(options: &WireOptions) -> Result<()> {
    match options.keys().next() {
        Some(key) => Err(Failure::invalid_args(format!("unknown option {key:?}"))),
        None => Ok(()),
    }
}
