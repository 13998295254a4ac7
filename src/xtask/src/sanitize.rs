//! `cargo xtask sanitize`: many threads of the NPU library under ThreadSanitizer.
//!
//! Everything is instrumented, the standard library too: otherwise its locks would look like races.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::cross;
use crate::need::{self, COMPILER};
use crate::step;

/// The test: eight threads drive three contexts each.
const TEST: &str = "eight_threads_of_three_contexts_do_not_disturb_each_other";

/// Builds the test with the sanitizer and runs it for so many seconds.
///
/// # Errors
/// A compiler or a source of the standard library that is missing.
pub(crate) fn run(seconds: u32) -> Result<ExitCode> {
    need::require(&[COMPILER])?;
    let host = cross::rustc(&["--print", "host-tuple"])?;
    let mut command = step::cargo();
    // With a target given, programs that only the build runs are built without the sanitizer.
    command.args(["test", "--package", "tests", "--test", "context", "--target", host.trim()]);
    command.arg("--target-dir").arg(step::target().join("sanitize"));
    cross::build_standard_library(&mut command)?;
    command.env("RUSTFLAGS", "-Zsanitizer=thread").env("CAIRN_SECONDS", seconds.to_string());
    command.args(["--", "--exact", TEST, "--nocapture"]);
    let status = command.status().context("cargo cannot be started")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
