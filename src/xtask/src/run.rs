//! `cargo xtask run`: the whole path on this machine, without a board.
//!
//! Installs what is missing, builds `npud` with its simulator, then starts `tests/examples/demonstration.rs`, which
//! owns the private bus, the broker and the daemon, and cleans up after itself.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::need::{self, BROKER, BUS};
use crate::step;

/// Prepares and runs the demonstration.
///
/// # Errors
/// A program that is missing and cannot be installed, or a build that fails.
pub(crate) fn run() -> Result<ExitCode> {
    need::require(&[BUS, BROKER])?;
    println!("building npud with the simulator, and what demonstrates it");
    // The whole workspace is selected, so that the demonstration's own builds find everything built.
    let mut build = step::cargo();
    build.args(["build", "--workspace", "--all-features", "--bin", "npud", "--bin", "cairnctl"]);
    build.args(["--example", "demonstration"]);
    let status = build.status().context("cargo cannot be started")?;
    if !status.success() {
        bail!("the build ended with {status}");
    }
    let mut demonstration = Command::new(step::target().join("debug/examples/demonstration"));
    demonstration.current_dir(step::workspace()).env("PATH", step::search_path());
    let status = demonstration.status().context("the demonstration cannot be started")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
