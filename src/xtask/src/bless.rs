//! `cargo xtask bless`: accepts what golden tests print now; the difference is then reviewed like code.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::step::{self, Counts};

/// TIMEOUT: a whole cold test run, with room.
const TESTS: Duration = Duration::from_secs(60 * 60);

/// Runs the tests of `packages`, or of all, with golden texts rewritten in place.
///
/// # Errors
/// A tool that cannot be started.
pub(crate) fn run(packages: &[String]) -> Result<ExitCode> {
    let mut command = step::cargo();
    command.env("UPDATE_EXPECT", "1").args(["test", "--all-features", "--no-fail-fast"]);
    if packages.is_empty() {
        command.arg("--workspace");
    }
    for package in packages {
        command.args(["--package", package]);
    }
    let mut counts = Counts::default();
    step::tests("golden tests", command, TESTS, &mut counts)?;
    println!("\n{counts}; see `git diff` for what changed");
    Ok(counts.exit_code())
}
