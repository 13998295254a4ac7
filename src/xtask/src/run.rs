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
    println!("building npud with the simulator");
    build(&["--package", "npud", "--features", "simulator"])?;
    let mut demonstration = step::cargo();
    demonstration.args(["run", "--quiet", "--package", "tests", "--example", "demonstration"]);
    let status = demonstration.status().context("cargo cannot be started")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn build(arguments: &[&str]) -> Result<()> {
    let mut command: Command = step::cargo();
    let status = command.arg("build").args(arguments).status().context("cargo cannot be started")?;
    if !status.success() {
        bail!("cargo build {} ended with {status}", arguments.join(" "));
    }
    Ok(())
}
