//! `cargo xtask shim`: any command with the preload device.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::step;

/// Builds the library and runs the command with it; ends as the command does.
///
/// # Errors
/// No command, a build that fails, a command that cannot be started.
pub(crate) fn run(command: &[String]) -> Result<ExitCode> {
    let Some((program, arguments)) = command.split_first() else {
        bail!("no command; try `cargo xtask shim -- ls -l /dev/accel`");
    };
    let built = step::cargo().args(["build", "--quiet", "--package", "npu-shim"]).status();
    if !built.context("cargo cannot be started")?.success() {
        bail!("the library cannot be built");
    }
    let library = step::target().join("debug/libnpu_shim.so");
    let mut client = Command::new(program);
    let status = client.args(arguments).env("LD_PRELOAD", library).status();
    let status = status.with_context(|| format!("{program} cannot be started"))?;
    // CAST: exit statuses have eight bits; a command that a signal ended has none.
    Ok(ExitCode::from(status.code().unwrap_or(1) as u8))
}
