//! `cargo xtask check`: what is quick to know: format, lints, import rules.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::step::{self, Counts};

/// TIMEOUT: lints of a cold tree take about five minutes on two cores; three times that.
const LINTS: Duration = Duration::from_secs(15 * 60);

/// Runs the checks and prints their counts.
///
/// # Errors
/// A tool that cannot be started.
pub(crate) fn run() -> Result<ExitCode> {
    let mut counts = Counts::default();
    style(&mut counts)?;
    let mut rules = step::cargo();
    rules.args(["test", "--workspace", "--all-features", "--test", "imports", "--test", "hygiene"]);
    step::tests("import rules", rules, LINTS, &mut counts)?;
    println!("\n{counts}");
    Ok(counts.exit_code())
}

/// Format and lints.
///
/// # Errors
/// A tool that cannot be started.
pub(crate) fn style(counts: &mut Counts) -> Result<()> {
    let mut format = step::cargo();
    format.args(["fmt", "--all", "--check"]);
    step::run("format", format, LINTS, counts)?;
    let mut lints = step::cargo();
    lints.args(["clippy", "--workspace", "--all-targets", "--all-features", "--", "--deny", "warnings"]);
    step::run("lints", lints, LINTS, counts)
}
