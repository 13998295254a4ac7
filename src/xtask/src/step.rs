//! One step of a longer command: starts a program, passes on what it prints, and says how it went.

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// What has been counted so far. Prints as the line that a test run ends with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Tests and steps that did what they should.
    pub(crate) passed: usize,
    /// Tests and steps that did not.
    pub(crate) failed: usize,
    /// What could not be run here, with the reasons.
    pub(crate) skipped: Vec<String>,
}

impl Counts {
    /// Counts one step.
    pub(crate) fn step(&mut self, passed: bool) {
        self.passed += usize::from(passed);
        self.failed += usize::from(!passed);
    }

    /// Counts one thing that cannot be run here.
    pub(crate) fn skip(&mut self, what: &str, why: &str) {
        println!("{what} ... ignored, {why}");
        self.skipped.push(format!("{what}: {why}"));
    }

    /// Whether nothing failed.
    pub(crate) fn succeeded(&self) -> bool {
        self.failed == 0
    }

    /// How a command ends that has counted.
    pub(crate) fn exit_code(&self) -> ExitCode {
        if self.succeeded() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped.len())
    }
}

/// `cargo` in the workspace, the one that started this program.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace()).env("PATH", search_path());
    // What cargo told us of this package: build scripts that watch it would run again, and with them half of the
    // dependencies, whenever cargo was started by hand in between.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_")) {
        command.env_remove(name);
    }
    command
}

/// Where programs are looked for: the user's `PATH`, and where Debian keeps daemons.
pub(crate) fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

/// The folder of the workspace.
pub(crate) fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    // A relative folder in the variable is relative to where cargo runs: the workspace.
    workspace().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// The names of the Rust files in a folder of the workspace, without their ending, sorted.
///
/// # Errors
/// A folder that cannot be read.
pub(crate) fn sources(folder: impl AsRef<Path>) -> Result<Vec<String>> {
    let folder = workspace().join(folder);
    let mut names = Vec::new();
    for entry in folder.read_dir().with_context(|| format!("{} cannot be read", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && let Some(name) = path.file_stem()
        {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Runs a step to its end and counts it.
///
/// # Errors
/// A program that cannot be started.
pub(crate) fn run(title: &str, command: Command, limit: Duration, counts: &mut Counts) -> Result<()> {
    let begin = Instant::now();
    println!("\n== {title}");
    let status = limited(&command, limit).status().with_context(|| format!("{title}: cannot be started"))?;
    println!("== {title}: {} in {} s", verdict(status.success()), begin.elapsed().as_secs());
    counts.step(status.success());
    Ok(())
}

/// Runs `cargo test` to its end and counts its tests.
///
/// # Errors
/// A program that cannot be started or listened to.
pub(crate) fn tests(title: &str, command: Command, limit: Duration, counts: &mut Counts) -> Result<()> {
    let begin = Instant::now();
    println!("\n== {title}");
    let mut child = limited(&command, limit)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{title}: cannot be started"))?;
    // PANIC: the line above asked for the pipe.
    let stdout = child.stdout.take().expect("standard output is piped");
    let mut tally = Tally::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.with_context(|| format!("{title}: its output cannot be read"))?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        tally.read(&line);
    }
    let succeeded = child.wait()?.success();
    // A test program that did not compile or died has no line of counts.
    let failed = if succeeded { tally.failed } else { tally.failed.max(1) };
    println!("== {title}: {} in {} s", verdict(failed == 0), begin.elapsed().as_secs());
    counts.passed += tally.passed;
    counts.failed += failed;
    counts.skipped.extend(tally.ignored);
    Ok(())
}

fn verdict(succeeded: bool) -> &'static str {
    if succeeded { "passed" } else { "FAILED" }
}

/// The same command, killed with all its children after `limit`.
///
/// At a terminal it stays in the terminal's process group, so that an interrupt from the keyboard reaches it.
pub(crate) fn limited(command: &Command, limit: Duration) -> Command {
    let mut limited = Command::new("timeout");
    if std::io::stdin().is_terminal() {
        limited.arg("--foreground");
    }
    limited.arg("--kill-after=10").arg(limit.as_secs().to_string()).arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(key, value),
            None => limited.env_remove(key),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    limited
}

/// What the test harness printed so far.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: usize,
    ignored: Vec<String>,
}

impl Tally {
    /// Reads one line: `test name ... ignored, why` or `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn read(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += number_before(counts, " passed");
            self.failed += number_before(counts, " failed");
            return;
        }
        if let Some((name, rest)) = line.strip_prefix("test ").and_then(|line| line.split_once(" ... ignored")) {
            self.ignored.push(format!("{name}: {}", rest.trim_start_matches([',', ' '])));
        }
    }
}

fn number_before(text: &str, word: &str) -> usize {
    let Some((before, _)) = text.split_once(word) else { return 0 };
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::{Counts, Tally, run, tests};

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn counts_of_several_test_programs_add_up() {
        let mut tally = Tally::default();
        for line in [
            "test a ... ok",
            "test b ... ignored, needs a board",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 12 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ] {
            tally.read(line);
        }
        assert_eq!((tally.passed, tally.failed), (15, 2));
        assert_eq!(tally.ignored, ["b: needs a board"]);
    }

    #[test]
    fn a_test_program_that_dies_without_counts_has_failed() {
        let mut counts = Counts::default();
        tests("dies", shell("exit 101"), LIMIT, &mut counts).unwrap();
        assert_eq!(counts.to_string(), "0 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn failed_tests_are_not_counted_twice() {
        let mut counts = Counts::default();
        let script = "echo 'test result: FAILED. 1 passed; 2 failed; 0 ignored'; exit 101";
        tests("fails", shell(script), LIMIT, &mut counts).unwrap();
        assert_eq!(counts.to_string(), "1 passed, 2 failed, 0 skipped");
    }

    #[test]
    fn a_step_past_its_limit_has_failed() {
        let mut counts = Counts::default();
        run("endless", shell("while :; do :; done"), Duration::from_secs(1), &mut counts).unwrap();
        assert!(!counts.succeeded());
        assert_eq!(counts.to_string(), "0 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn what_cannot_be_run_is_counted_as_skipped() {
        let mut counts = Counts::default();
        counts.step(true);
        counts.skip("fuzzing", "no compiler");
        assert_eq!(counts.to_string(), "1 passed, 0 failed, 1 skipped");
        assert_eq!(counts.skipped, ["fuzzing: no compiler"]);
    }
}
