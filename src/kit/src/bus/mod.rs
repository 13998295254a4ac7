//! What every daemon does the same way on D-Bus: which bus, who may, clients that leave, jobs.

mod authority;
mod clients;
mod job;

use std::collections::HashMap;
use std::path::PathBuf;

use api::{Failure, Result};
use serde::Deserialize;
use zbus::fdo::RequestNameFlags;
use zbus::wire::OwnedVariant;
use zbus::{Connection, connection};

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

/// Takes a name of the bus for as long as the connection lasts. By default, a second daemon would take it away from the
/// first.
///
/// # Errors
/// Where somebody else has it, or may alone.
pub async fn own(connection: &Connection, name: &'static str) -> zbus::Result<()> {
    connection.request_name_with_flags(name, RequestNameFlags::DO_NOT_QUEUE).await.map(drop)
}

/// Options as a method receives them.
pub type WireOptions = HashMap<String, OwnedVariant>;

/// A path that a client names, which must not depend on where the daemon runs.
///
/// # Errors
/// `InvalidArgs` for a relative one.
pub fn absolute(path: String) -> Result<PathBuf> {
    let path = PathBuf::from(path);
    match path.is_absolute() {
        true => Ok(path),
        false => Err(Failure::invalid_args(format!("{} is not an absolute path", path.display()))),
    }
}

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
