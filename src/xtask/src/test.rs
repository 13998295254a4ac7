//! `cargo xtask test`: everything that needs no board.
//!
//! ```text
//! format, lints ─▶ documentation ─▶ tests of every crate ─▶ tests across crates ─▶ patches ─▶ fuzzing
//!  ─▶ one line of counts
//! ```

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::need::{
    self, BMAP, BROKER, BUS, BUSCTL, FW_SETENV, MQTT_CLIENTS, Need, OPENSSL, POLKIT, PYTHON, RAUC, ROOT, SLOTS,
    SQUASHFS, STRACE, UNSHARE, ZSTD,
};
use crate::step::{self, Counts};
use crate::{board, bootloader, check, cross, fuzz, gpu, image, llama, patches, teflon, yocto};

/// TIMEOUT: each part of a cold run stays under 15 minutes on two cores; twice that.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// A part that is named twice.
const MESAS_DRIVER: &str = "Mesa's driver on the simulator";

/// Test files that need more than a Rust toolchain.
const NEEDS: &[(&str, &[Need])] = &[
    ("authority", &[BUS, BUSCTL, POLKIT, SLOTS]),
    ("clients", &[BUS, BROKER, MQTT_CLIENTS, BUSCTL, PYTHON]),
    ("cpu_reference", &[PYTHON]),
    ("crashes", &[STRACE, UNSHARE]),
    ("dbus", &[BUS]),
    ("hostile", &[BUS, BROKER, MQTT_CLIENTS]),
    ("models", &[BUS, BROKER, MQTT_CLIENTS]),
    ("delegate", &[PYTHON]),
    ("flash", &[SLOTS, BMAP, ZSTD]),
    ("health", &[BUS, BROKER, MQTT_CLIENTS]),
    ("provisioning", &[BUSCTL]),
    ("programs", &[BUS, BROKER]),
    ("mqtt", &[BUS, BROKER, MQTT_CLIENTS]),
    ("update", &[BUS, BROKER, MQTT_CLIENTS, RAUC, SQUASHFS, OPENSSL, SLOTS]),
    ("spool", &[BUS, BROKER, MQTT_CLIENTS, UNSHARE]),
    ("strangers", &[BUS, BUSCTL, ROOT]),
    ("cairnctl", &[BUS]),
    ("units", &[BUSCTL]),
    ("whole_machine", &[BUS, BROKER, MQTT_CLIENTS, RAUC, SQUASHFS, OPENSSL, SLOTS, FW_SETENV]),
];

/// Runs all of it and prints the counts; a part that cannot even start counts as failed.
pub(crate) fn run(quick: bool) -> ExitCode {
    let missing = need::provide(&all_needs());
    let mut counts = Counts::default();
    part(&mut counts, check::style);
    part(&mut counts, documentation);
    part(&mut counts, crates);
    part(&mut counts, cross::test);
    part(&mut counts, |counts| across_crates(&missing, counts));
    part(&mut counts, |counts| with("gpud with llama.cpp", &llama::NEEDS, llama::test, &missing, counts));
    part(&mut counts, bootloader::test);
    part(&mut counts, patches::test);
    part(&mut counts, gpu::test);
    part(&mut counts, yocto::test);
    part(&mut counts, image::test);
    part(&mut counts, board::run_tests);
    part(&mut counts, image::story::test);
    if quick {
        counts.skip("fuzzing", "left out by --quick");
        counts.skip(MESAS_DRIVER, "left out by --quick");
    } else {
        part(&mut counts, |counts| with(MESAS_DRIVER, &teflon::NEEDS, teflon::test, &missing, counts));
        part(&mut counts, fuzz::run);
    }
    report(&counts);
    counts.exit_code()
}

/// Runs a part, unless something that it needs is missing.
fn with(
    what: &str,
    needs: &[Need],
    test: fn(&mut Counts) -> Result<()>,
    missing: &[Need],
    counts: &mut Counts,
) -> Result<()> {
    match missing.iter().find(|need| needs.contains(need)) {
        None => test(counts),
        Some(need) => {
            counts.skip(what, &format!("needs {}", need.name));
            Ok(())
        }
    }
}

/// Everything that the tests need, each once.
fn all_needs() -> Vec<Need> {
    let mut all: Vec<Need> = Vec::new();
    for need in NEEDS.iter().flat_map(|(_, needs)| *needs).chain(&teflon::NEEDS).chain(&llama::NEEDS) {
        if !all.contains(need) {
            all.push(*need);
        }
    }
    all
}

fn part(counts: &mut Counts, run: impl FnOnce(&mut Counts) -> Result<()>) {
    if let Err(error) = run(counts) {
        println!("== FAILED: {error:#}");
        counts.step(false);
    }
}

fn documentation(counts: &mut Counts) -> Result<()> {
    let mut command = step::cargo();
    command.env("RUSTDOCFLAGS", "--deny warnings").args(["doc", "--workspace", "--no-deps", "--all-features"]);
    step::run("documentation", command, LIMIT, counts)
}

/// The tests beside the code of every crate.
///
/// Every command here selects the whole workspace with all features, so that no dependency is built twice.
fn crates(counts: &mut Counts) -> Result<()> {
    let mut command = step::cargo();
    command.args(["test", "--workspace", "--all-features", "--no-fail-fast", "--lib", "--bins"]);
    step::tests("tests of every crate", command, LIMIT, counts)?;
    let mut command = step::cargo();
    command.args(["test", "--workspace", "--all-features", "--no-fail-fast", "--doc"]);
    step::tests("examples in the documentation", command, LIMIT, counts)
}

/// The test files of all packages, but for those that need what is not here.
fn across_crates(missing: &[Need], counts: &mut Counts) -> Result<()> {
    // The services whose processes the tests start.
    let mut build = step::cargo();
    build.args(["build", "--workspace", "--bins", "--all-features"]);
    step::run("programs", build, LIMIT, counts)?;
    let mut command = step::cargo();
    command.args(["test", "--workspace", "--all-features", "--no-fail-fast"]);
    for name in test_files()? {
        match lacking(&name, missing) {
            None => {
                command.args(["--test", &name]);
            }
            Some(need) => counts.skip(&format!("tests/{name}"), &format!("needs {}", need.name)),
        }
    }
    step::tests("test files", command, LIMIT, counts)
}

/// The names of the test files of all packages.
fn test_files() -> Result<Vec<String>> {
    let mut names = step::sources("tests/tests")?;
    for group in ["src", "services"] {
        for entry in step::workspace().join(group).read_dir()? {
            let folder = entry?.path().join("tests");
            if folder.is_dir() {
                names.extend(step::sources(&folder)?);
            }
        }
    }
    names.sort();
    Ok(names)
}

/// The first thing that the file needs and that is not here.
fn lacking<'a>(file: &str, missing: &'a [Need]) -> Option<&'a Need> {
    let (_, needs) = NEEDS.iter().find(|(name, _)| *name == file)?;
    missing.iter().find(|need| needs.contains(need))
}

fn report(counts: &Counts) {
    if !counts.skipped.is_empty() {
        println!("\nskipped:");
        for skipped in &counts.skipped {
            println!("  {skipped}");
        }
    }
    println!("\n{counts}");
}
