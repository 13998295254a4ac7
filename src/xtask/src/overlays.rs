//! The device-tree overlays, applied to the boards' device trees.
//!
//! ```text
//! base tree ─▶ preprocessor, dtc -@ ─▶ a board ─┐
//! overlays/*.dtso ─▶ dtc -@ ────────────────────┴─▶ fdtoverlay ─▶ fdtget: is it there?
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::kernel::{self, Line};
use crate::need;
use crate::step;

/// Where the overlays are.
const FOLDER: &str = "overlays";
/// The boards of the image, by the names of their device trees.
const BOARDS: &[&str] = &["rk3588-rock-5-itx", "rk3588-rock-5b", "rk3588-turing-rk1"];
/// Where a tree has them.
const SOURCES: &str = "arch/arm64/boot/dts/rockchip";
/// What each overlay brings: node, property and value, as fdtget prints it.
const BRINGS: &[(&str, &str, &str, &str)] = &[
    ("gpu", "/gpu@fb000000", "status", "okay"),
    ("npu", "/npu@fdab0000", "status", "okay"),
    ("npu", "/npu@fdac0000", "status", "okay"),
    ("npu", "/npu@fdad0000", "status", "okay"),
    ("npu", "/iommu@fdab9000", "status", "okay"),
    ("npu", "/iommu@fdaca000", "status", "okay"),
    ("npu", "/iommu@fdada000", "status", "okay"),
    ("npu-clock", "/npu@fdab0000", "cairn,compute-clock-hz", "600000000"),
    ("npu-clock", "/npu@fdac0000", "cairn,compute-clock-hz", "600000000"),
    ("npu-clock", "/npu@fdad0000", "cairn,compute-clock-hz", "600000000"),
    ("ramoops", "/reserved-memory/ramoops@110000", "reg", "0 1114112 0 917504"),
    ("ramoops", "/reserved-memory/ramoops@110000", "compatible", "ramoops"),
    ("watchdog", "/watchdog@feaf0000", "timeout-sec", "40"),
    ("watchdog", "/watchdog@feaf0000", "status", "okay"),
];

/// Compiles every overlay; needs no base tree.
///
/// # Errors
/// An overlay that does not compile or makes dtc warn, or that nothing is known to be brought by.
pub(crate) fn syntax() -> Result<()> {
    let folder = scratch()?;
    for name in names()? {
        if !BRINGS.iter().any(|(overlay, ..)| *overlay == name) {
            bail!("{name}: what it brings is not in the table");
        }
        compile(&source(&name), &folder.join(format!("{name}.dtbo")))?;
    }
    remove(&folder)
}

/// Applies all overlays to every board of the line's base.
///
/// # Errors
/// A tree that does not compile, an overlay that does not apply or does not bring what it should.
pub(crate) fn apply(line: &Line) -> Result<()> {
    let folder = scratch()?;
    let mut overlays = Vec::new();
    for name in names()? {
        let file = folder.join(format!("{name}.dtbo"));
        compile(&source(&name), &file)?;
        overlays.push(file);
    }
    for board in BOARDS {
        let base = folder.join(format!("{board}.dtb"));
        board_tree(&line.base_tree()?, board, &base)?;
        let whole = folder.join("whole.dtb");
        let mut command = Command::new("fdtoverlay");
        kernel::succeed(command.arg("-i").arg(&base).arg("-o").arg(&whole).args(&overlays))?;
        for (overlay, node, property, value) in BRINGS {
            holds(&whole, node, property, value).with_context(|| format!("{board} with {overlay}"))?;
        }
    }
    remove(&folder)
}

/// Fails where a board of `tree` leaves a core of the NPU disabled.
///
/// # Errors
/// The board and the node.
pub(crate) fn has_npu(tree: &Path) -> Result<()> {
    let folder = scratch()?;
    let file = folder.join("board.dtb");
    for board in BOARDS {
        board_tree(tree, board, &file)?;
        for (_, node, property, value) in BRINGS.iter().filter(|(overlay, ..)| *overlay == "npu") {
            holds(&file, node, property, value).with_context(|| format!("{board} without overlays"))?;
        }
    }
    remove(&folder)
}

/// Names of the overlays, without their ending.
fn names() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in step::workspace().join(FOLDER).read_dir().context("there are no overlays")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".dtso").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

fn source(name: &str) -> PathBuf {
    step::workspace().join(FOLDER).join(format!("{name}.dtso"))
}

/// Makes the device tree of a board, with the labels that overlays refer to.
fn board_tree(tree: &Path, board: &str, to: &Path) -> Result<()> {
    let source = tree.join(SOURCES).join(format!("{board}.dts"));
    let plain = to.with_extension("dts");
    let mut preprocess = Command::new("aarch64-linux-gnu-gcc");
    preprocess.args(["-E", "-nostdinc", "-undef", "-D__DTS__", "-x", "assembler-with-cpp", "-I"]);
    preprocess.arg(tree.join("include")).arg("-I").arg(tree.join("scripts/dtc/include-prefixes"));
    kernel::succeed(preprocess.arg(&source).arg("-o").arg(&plain))?;
    // The kernel's own sources are not free of warnings.
    kernel::succeed(dtc(&plain, to).arg("-q"))
}

/// Compiles one of ours, which must make dtc say nothing.
fn compile(source: &Path, to: &Path) -> Result<()> {
    let said = kernel::printed(&mut dtc(source, to))?;
    if !said.is_empty() {
        bail!("{}: {}", source.display(), said.trim());
    }
    Ok(())
}

fn dtc(source: &Path, to: &Path) -> Command {
    let mut dtc = Command::new("dtc");
    dtc.args(["-@", "-I", "dts", "-O", "dtb", "-o"]).arg(to).arg(source);
    dtc
}

fn holds(tree: &Path, node: &str, property: &str, value: &str) -> Result<()> {
    let found = kernel::printed(Command::new("fdtget").arg(tree).args([node, property]))?;
    if found.trim() != value {
        bail!("{node} {property} is {}, not {value}", found.trim());
    }
    Ok(())
}

/// A folder of this process for what is compiled.
fn scratch() -> Result<PathBuf> {
    let folder = need::cache()?.join("overlays").join(std::process::id().to_string());
    std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    Ok(folder)
}

fn remove(folder: &Path) -> Result<()> {
    Ok(std::fs::remove_dir_all(folder)?)
}
