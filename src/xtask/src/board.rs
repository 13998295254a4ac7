//! `cargo xtask board`: a virtual RK3588 that boots Debian's kernel with the real driver; its NPU is our simulator.
//!
//! ```text
//! archive ─▶ QEMU, kernel, busybox, bus ─┐
//! workspace ─▶ device library, programs ─┼─▶ initramfs, device tree ─▶ QEMU + npu-board ─▶ console, TAP ─▶ counts
//! kernel-patches ─▶ rocket.ko, twice ────┘
//! ```
//!
//! The guest's clock counts instructions, so how slow this machine is decides nothing.

pub(crate) mod guest;
pub(crate) mod machine;
mod needed;
pub(crate) mod qemu;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::kernel::Line;
use crate::kmod::{self, Driver};
use crate::need;
use crate::step::Counts;
use guest::Plan;
use machine::{Input, LIMIT, Machine};

/// TIMEOUT: the matrices took 47 minutes of a busy machine; what is slower by this much hangs.
const MATRICES_LIMIT: Duration = Duration::from_secs(3 * 60 * 60);

/// What to do with the board.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Action {
    /// A shell on its console, with the patched driver loaded. `poweroff -f` ends it.
    Up,
    /// Runs a command line of the board's shell, with the patched driver loaded.
    Run {
        /// Files that the board has in `/board`.
        #[arg(long, value_name = "FILE")]
        with: Vec<PathBuf>,
        /// The words of the command.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// The stock driver against ours, the conformance program, and npud with the detector.
    Test {
        /// For how many seconds of the board's clock each of two crowds of clients works, instead of a few rounds.
        #[arg(long)]
        seconds: Option<u32>,
        /// The line of the patches, and of the kernel; of 6.18 only the driver with patches is tested.
        #[arg(long, default_value = kmod::LINE)]
        line: String,
        /// Leaves a patch out, and what does not apply without it; only the driver with the others is tested.
        #[arg(long)]
        without: Option<u32>,
        /// MiB of the board's memory.
        #[arg(long, default_value_t = qemu::MEMORY, value_parser = memory())]
        memory: u32,
    },
    /// The NPU library's products, convolutions and pooling on the stock driver and on ours: fourteen minutes of the board's clock.
    Matrix,
    /// For each patch: on its line's kernel, a driver without it does not pass the check that `kernel-patches/README.md`
    /// names. What takes the kernel down ends the run, and is named alone.
    Needed {
        /// The line of the patches.
        #[arg(long, default_value = kmod::LINE)]
        line: String,
        /// MiB of the board's memory.
        #[arg(long, default_value_t = qemu::MEMORY, value_parser = memory())]
        memory: u32,
        /// Numbers of patches.
        #[arg(required = true)]
        patches: Vec<u32>,
    },
}

/// More memory would lie over the NPU's registers.
fn memory() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(..=i64::from(qemu::MEMORY_MAX))
}

/// Does it.
///
/// # Errors
/// What is missing, cannot be fetched or built, or a machine that does not start.
pub(crate) fn run(action: &Action) -> Result<ExitCode> {
    match action {
        Action::Up => {
            Machine::start(&guest::interactive()?, qemu::MEMORY)?.pass_through(Input::Terminal)?;
            Ok(ExitCode::SUCCESS)
        }
        Action::Run { with, command } => {
            let boot = guest::command(&command.join(" "), with)?;
            let status = Machine::start(&boot, qemu::MEMORY)?.pass_through(Input::Nothing)?;
            Ok(if status == Some(0) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Action::Test { seconds, line, without, memory } => {
            let crowd = seconds.map_or(guest::ROUNDS.to_string(), |seconds| format!("{seconds}s"));
            let driver = without.map_or(Driver::Patched, Driver::Without);
            let plan = match (line.as_str(), driver) {
                (kmod::LINE, Driver::Patched) => Plan::whole(crowd),
                (line, driver) => Plan::alone(&Line::named(line), driver, crowd),
            };
            // TIMEOUT: a second of the board's clock is less than a minute of a slow machine's; two crowds work.
            let limit = LIMIT + 2 * Duration::from_secs(60) * seconds.unwrap_or_default();
            count(&plan, *memory, limit)
        }
        Action::Matrix => count(&Plan::matrices(), qemu::MEMORY, MATRICES_LIMIT),
        Action::Needed { line, memory, patches } => {
            let checks =
                patches.iter().map(|patch| Ok((*patch, needed::check(*patch)?))).collect::<Result<Vec<_>>>()?;
            count(&Plan::lacking(&Line::named(line), &checks), *memory, LIMIT)
        }
    }
}

/// Runs tests and prints the counts.
fn count(plan: &Plan, memory: u32, limit: Duration) -> Result<ExitCode> {
    let mut counts = Counts::default();
    test(plan, memory, limit, &mut counts)?;
    println!("\n{counts}");
    Ok(counts.exit_code())
}

/// As a part of all tests: the shortest crowd, and skipped where the board cannot be had.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_tests(counts: &mut Counts) -> Result<()> {
    println!("\n== virtual board");
    match need::provide(&guest::needs()).first() {
        Some(need) => counts.skip("virtual board", &format!("needs {}", need.name)),
        None => test(&Plan::whole(guest::ROUNDS.to_string()), qemu::MEMORY, LIMIT, counts)?,
    }
    Ok(())
}

/// Boots once and counts every check that the guest prints.
///
/// # Errors
/// As [`run`], a guest that ends before it has finished.
fn test(plan: &Plan, memory: u32, limit: Duration, counts: &mut Counts) -> Result<()> {
    let boot = guest::tests(plan)?;
    let status = Machine::start(&boot, memory)?.follow(limit, |line| tally(line, counts))?;
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
