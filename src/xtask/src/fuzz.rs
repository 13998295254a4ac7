//! Fuzzing: twenty seconds of each target under `fuzz/`.
//!
//! Code under test has no `unsafe`, so no sanitizer is needed and the stable compiler will do.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::need::{self, CXX};
use crate::step::{self, Counts};

/// How long each target runs.
const SECONDS: u64 = 20;
/// TIMEOUT: a cold build of the largest target takes about five minutes on two cores; twice that.
const LIMIT: Duration = Duration::from_secs(SECONDS + 10 * 60);
/// The version of cargo-fuzz that is installed where there is none.
const CARGO_FUZZ: &str = "0.13.1";

/// Runs every target for that long.
///
/// # Errors
/// A folder that cannot be read, a program that cannot be started.
pub(crate) fn run(counts: &mut Counts) -> Result<()> {
    let targets = step::sources("fuzz/fuzz_targets")?;
    let tool = match cargo_fuzz() {
        Ok(tool) => tool,
        Err(why) => {
            for target in &targets {
                counts.skip(&format!("fuzz {target}"), &format!("{why:#}"));
            }
            return Ok(());
        }
    };
    for target in &targets {
        let mut command = Command::new(&tool);
        // A folder of its own: a shared one might hold another clone's build.
        command.current_dir(step::workspace().join("fuzz")).env_remove("CARGO_TARGET_DIR");
        command.args(["fuzz", "run", "--sanitizer", "none", target, "--"]);
        command.arg(format!("-max_total_time={SECONDS}")).args(["-timeout=20", "-print_final_stats=1", "-verbosity=0"]);
        step::run(&format!("fuzz {target}"), command, LIMIT, counts)?;
    }
    Ok(())
}

/// The tool: the user's, or one of our own in the cache, built at the first run.
fn cargo_fuzz() -> Result<PathBuf> {
    need::require(&[CXX])?;
    if need::succeeds(Command::new("cargo-fuzz").args(["fuzz", "--version"])) {
        return Ok("cargo-fuzz".into());
    }
    let root = need::cache()?.join("tools");
    let tool = root.join("bin/cargo-fuzz");
    if need::succeeds(Command::new(&tool).args(["fuzz", "--version"])) {
        return Ok(tool);
    }
    println!("installing cargo-fuzz {CARGO_FUZZ} into {}", root.display());
    let mut install = step::cargo();
    install.args(["install", "--locked", "--quiet", "--version", CARGO_FUZZ, "cargo-fuzz", "--root"]).arg(&root);
    if !install.status().context("cargo cannot be started")?.success() {
        bail!("cargo-fuzz {CARGO_FUZZ} cannot be installed");
    }
    Ok(tool)
}
