//! `cargo xtask board`: a virtual RK3588 that boots Debian's kernel with the real driver; its NPU is our simulator.
//!
//! ```text
//! archive ─▶ QEMU, kernel, busybox, bus ─┐
//! workspace ─▶ device library, programs ─┼─▶ initramfs, device tree ─▶ QEMU + npu-board ─▶ console, TAP ─▶ counts
//! kernel-patches ─▶ rocket.ko, twice ────┘
//! ```
//!
//! The guest's clock counts instructions, so how slow this machine is decides nothing.

mod guest;
mod machine;
pub(crate) mod qemu;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::need;
use crate::step::Counts;
use machine::{Input, Machine};

/// What to do with the board.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Action {
    /// A shell on its console, with the patched driver loaded. `poweroff -f` ends it.
    Up,
    /// Runs a command line of the board's shell, with the patched driver loaded.
    Run {
        /// The words of the command.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// The stock driver against ours, the conformance program, and npud with the detector.
    Test {
        /// How many rounds each client of a crowd works; a few hundred are a soak.
        #[arg(long, default_value_t = guest::ROUNDS)]
        rounds: u32,
    },
}

/// Does it.
///
/// # Errors
/// What is missing, cannot be fetched or built, or a machine that does not start.
pub(crate) fn run(action: &Action) -> Result<ExitCode> {
    match action {
        Action::Up => {
            Machine::start(&guest::interactive()?)?.pass_through(Input::Terminal)?;
            Ok(ExitCode::SUCCESS)
        }
        Action::Run { command } => {
            let status = Machine::start(&guest::command(&command.join(" "))?)?.pass_through(Input::Nothing)?;
            Ok(if status == Some(0) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Action::Test { rounds } => {
            let mut counts = Counts::default();
            test(*rounds, &mut counts)?;
            println!("\n{counts}");
            Ok(if counts.succeeded() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

/// As a part of all tests: the shortest crowd, and skipped where the board cannot be had.
///
/// # Errors
/// As [`test()`].
pub(crate) fn run_tests(counts: &mut Counts) -> Result<()> {
    println!("\n== virtual board");
    match need::provide(&guest::needs()).first() {
        Some(need) => counts.skip("virtual board", &format!("needs {}", need.name)),
        None => test(guest::ROUNDS, counts)?,
    }
    Ok(())
}

/// Boots once and counts every check that the guest prints.
///
/// # Errors
/// As [`run`]; a guest that ends before it has finished.
pub(crate) fn test(rounds: u32, counts: &mut Counts) -> Result<()> {
    let initramfs = guest::tests(rounds)?;
    let status = Machine::start(&initramfs)?.follow(|line| tally(line, counts))?;
    match status {
        Some(0) => Ok(()),
        Some(status) => bail!("the guest's tests ended with {status}"),
        None => bail!("the guest ended before its tests"),
    }
}

/// Counts a line of TAP.
fn tally(line: &str, counts: &mut Counts) {
    let is = |word: &str| line.strip_prefix(word).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    match line.split_once(" # SKIP ") {
        Some((what, why)) if is("ok ") => counts.skipped.push(format!("board: {what}: {why}")),
        _ if is("ok ") => counts.passed += 1,
        _ if is("not ok ") => counts.failed += 1,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_counted_and_other_lines_are_not() {
        let mut counts = Counts::default();
        for line in ["TAP version 13", "ok 1 - a", "not ok 2 - b", "# ok", "ok 3 - c # SKIP too early", "okay", "1..3"]
        {
            tally(line, &mut counts);
        }
        assert_eq!(counts.to_string(), "1 passed, 1 failed, 1 skipped");
        assert_eq!(counts.skipped, ["board: ok 3 - c: too early"]);
    }
}
