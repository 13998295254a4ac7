//! The Test Anything Protocol: one line per check.

use std::process::ExitCode;

/// Counts checks.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    count: usize,
    failed: usize,
}

impl Tap {
    /// Prints how a check went.
    pub(crate) fn check(&mut self, name: &str, outcome: Result<(), String>) {
        self.count += 1;
        match outcome {
            Ok(()) => println!("ok {} - {name}", self.count),
            Err(why) => {
                self.failed += 1;
                println!("not ok {} - {name}\n# {}", self.count, why.replace('\n', "\n# "));
            }
        }
    }

    /// Prints that a check is left out, and why.
    pub(crate) fn skip(&mut self, name: &str, why: &str) {
        self.count += 1;
        println!("ok {} - {name} # SKIP {why}", self.count);
    }

    /// Prints the plan.
    pub(crate) fn finish(self) -> ExitCode {
        println!("1..{}", self.count);
        if self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Fails where `found` is something else.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, expected {expected:?}")) }
}
