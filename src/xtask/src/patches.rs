//! `cargo xtask patches`: what `kernel-patches` and `overlays` must be, for every line of the kernel.
//!
//! ```text
//! headers and series ─▶ base tree fetched ─▶ applied with no fuzz
//!   ─▶ checkpatch.pl of that tree ─▶ compiled, W=1
//! ```

use std::collections::BTreeSet;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::kbuild;
use crate::kernel::{self, Line};
use crate::kmod::{self, Driver};
use crate::need::{self, BISON, CROSS_COMPILER, CXX, DTC, FLEX, MAKE, Need, PERL, PYTHON, XZ};
use crate::overlays;
use crate::series::Series;
use crate::step::Counts;

/// What `Upstream-Status` may say first, as OpenEmbedded's builds check it.
const STATUS: &[&str] = &["Pending", "Submitted", "Backport", "Denied", "Inappropriate", "Inactive-Upstream"];

/// What the base trees are unpacked, checked and built with.
const NEEDS: &[Need] = &[BISON, CROSS_COMPILER, CXX, DTC, FLEX, MAKE, PERL, PYTHON, XZ];

/// Checks everything and prints the counts.
///
/// # Errors
/// A folder that cannot be read, a compiler that cannot be had.
pub(crate) fn run() -> Result<ExitCode> {
    need::require(NEEDS)?;
    let mut counts = Counts::default();
    texts(&mut counts)?;
    for line in Line::all()? {
        line.base_tree()?;
        builds(&line, &mut counts);
    }
    println!("\n{counts}");
    Ok(counts.exit_code())
}

/// The part of `cargo xtask test`: without the archive, or the compiler, what needs them is skipped.
///
/// # Errors
/// A folder that cannot be read.
pub(crate) fn test(counts: &mut Counts) -> Result<()> {
    println!("\n== kernel patches");
    let missing = need::provide(NEEDS);
    if let Some(need) = missing.first() {
        counts.skip("kernel patches", &format!("{} cannot be had", need.name));
        return Ok(());
    }
    texts(counts)?;
    for line in Line::all()? {
        match line.base_tree() {
            Ok(_) => builds(&line, counts),
            Err(error) => counts.skip(&format!("kernel {}", line.name), &format!("{error:#}")),
        }
    }
    Ok(())
}

/// What can be seen without the base trees.
fn texts(counts: &mut Counts) -> Result<()> {
    for line in Line::all()? {
        check(counts, &format!("kernel {}: headers", line.name), || headers(&Series { folder: line.folder() }));
    }
    check(counts, "overlays: compile", overlays::syntax);
    Ok(())
}

/// What needs the base tree.
fn builds(line: &Line, counts: &mut Counts) {
    check(counts, &format!("kernel {}: applies", line.name), || line.patched_tree().map(drop));
    check(counts, &format!("kernel {}: checkpatch", line.name), || checkpatch(line));
    check(counts, &format!("kernel {}: compiles", line.name), || kbuild::compile(line));
    check(counts, &format!("kernel {}: overlays apply", line.name), || overlays::apply(line));
    if line.name == kmod::LINE {
        for driver in [Driver::Stock, Driver::Patched] {
            check(counts, &format!("rocket.ko for {}: {driver:?}", line.name), || kmod::rocket(line, driver).map(drop));
        }
    }
}

/// Runs one check, says how it went and counts it.
pub(crate) fn check(counts: &mut Counts, title: &str, run: impl FnOnce() -> Result<()>) {
    let outcome = run();
    match &outcome {
        Ok(()) => println!("{title}: passed"),
        Err(error) => println!("{title}: FAILED: {error:#}"),
    }
    counts.step(outcome.is_ok());
}

/// Every patch is listed once and says what it must.
///
/// # Errors
/// What is wrong.
pub(crate) fn headers(patches: &Series) -> Result<()> {
    let series = patches.patches()?;
    let mut there = BTreeSet::new();
    for entry in patches.folder.read_dir()? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".patch") {
            there.insert(name);
        }
    }
    let listed: BTreeSet<String> = series.iter().cloned().collect();
    if listed != there || listed.len() != series.len() || !series.is_sorted() {
        bail!("series and folder differ: {:?}", listed.symmetric_difference(&there).collect::<Vec<_>>());
    }
    for name in &series {
        header(name, &patches.text(name)?).with_context(|| patches.folder.join(name).display().to_string())?;
    }
    Ok(())
}

/// One patch: form of `git format-patch`, a message, and a fate that its number tells as well.
fn header(name: &str, text: &str) -> Result<()> {
    let (head, _) = text.split_once("\n---\n").context("no `---` after the message")?;
    let lines: Vec<&str> = head.lines().collect();
    let field = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name));
    if !text.starts_with("From ") || field("From: ").is_none() || field("Date: ").is_none() {
        bail!("not of the form of git format-patch");
    }
    if !field("Subject: [PATCH] ").is_some_and(|subject| subject.contains(": ")) {
        bail!("the subject is not `[PATCH] subsystem: what`");
    }
    let status = field("Upstream-Status: ").context("no Upstream-Status")?;
    let status = status.split(' ').next().unwrap_or_default();
    if !STATUS.contains(&status) {
        bail!("Upstream-Status: {status} is none of {STATUS:?}");
    }
    let number = kernel::number(name).context("no number in the name")?;
    let expected = match status {
        "Backport" => 1..1000,
        "Inappropriate" => 9001..10000,
        _ => 1001..9000,
    };
    if !expected.contains(&number) {
        bail!("{status} with the number {number}, not one of {expected:?}");
    }
    if head.split("\n\n").count() < 3 {
        bail!("the message says nothing beyond the subject");
    }
    Ok(())
}

/// The kernel's own style check. Who sends a patch signs it, so signatures are not asked for here.
fn checkpatch(line: &Line) -> Result<()> {
    let series = line.series()?;
    let mut perl = Command::new("perl");
    perl.current_dir(line.base_tree()?).args(["scripts/checkpatch.pl", "--no-signoff", "--show-types"]);
    // Older ones do not know Assisted-by. It fails for warnings, too.
    perl.args(["--ignore", "BAD_SIGN_OFF"]);
    let text = kernel::printed(perl.args(series.iter().map(|name| line.folder().join(name))));
    let text = text.unwrap_or_else(|error| format!("{error:#}"));
    if text.matches("total: 0 errors").count() != series.len() {
        bail!("{text}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::header;

    const PATCH: &str = "From 0\nFrom: A <a@invalid>\nDate: now\nSubject: [PATCH] accel/rocket: do\n\nIt breaks.\n\n\
                         Upstream-Status: Pending\n---\n a | 1 +\n";

    #[test]
    fn a_patch_says_where_it_goes_and_its_number_agrees() {
        header("1001-a.patch", PATCH).unwrap();
        for (name, patch) in [
            ("0001-a.patch", PATCH.to_owned()),
            ("9001-a.patch", PATCH.to_owned()),
            ("a.patch", PATCH.to_owned()),
            ("1001-a.patch", PATCH.replace("Upstream-Status: Pending\n", "")),
            ("1001-a.patch", PATCH.replace("Pending", "Soon")),
            ("1001-a.patch", PATCH.replace("accel/rocket: do", "do")),
            ("1001-a.patch", PATCH.replace("It breaks.\n\n", "")),
            ("1001-a.patch", PATCH.replace("From: A <a@invalid>\n", "")),
            ("1001-a.patch", PATCH.replace("---\n", "")),
        ] {
            assert!(header(name, &patch).is_err(), "{name}\n{patch}");
        }
    }
}
