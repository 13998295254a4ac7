//! For tests: everything that a daemon meets outside, private to one test.
//!
//! [`Bus`] is a D-Bus daemon with our policy, [`Broker`] a mosquitto on a port of its own, [`Daemon`] a program of this
//! workspace that says when it serves. All of them end with their value. [`Signer`] signs what a vendor would.

#![forbid(unsafe_code)]

mod broker;
mod bus;
mod contract;
mod daemon;
mod process;
mod signer;

use std::path::{Path, PathBuf};

pub use broker::{Broker, BrokerOptions};
pub use bus::Bus;
pub use contract::interfaces;
pub use daemon::{Daemon, build, build_library};
pub use process::Process;
pub use signer::Signer;

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_root.ancestors().nth(2).expect("this crate is two folders below the root").to_path_buf()
}

/// The folder of a model package that the workspace holds.
pub fn model(name: &str) -> PathBuf {
    workspace().join("tests/models").join(name)
}

/// A picture that the workspace holds.
pub fn picture(name: &str) -> PathBuf {
    workspace().join("tests/pictures").join(name)
}
