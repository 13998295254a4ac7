//! Configures a patched tree as the image does, and compiles what the patches touch.
//!
//! ```text
//! arm64's defconfig, kernel-patches/*.cfg ─▶ alldefconfig ─▶ every setting taken?
//! base tree, patched files over it ─▶ modules_prepare ─▶ the driver and its IOMMU's, W=1
//!                                  └▶ dtc ─▶ has every board its NPU?
//! ```

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::archive;
use crate::kernel::{self, FOLDER, Line};
use crate::kmod;
use crate::need;
use crate::overlays;
use crate::step;

/// The configuration fragments of the image.
const FRAGMENTS: &[&str] = &["npu.cfg", "gpu.cfg", "image.cfg"];
/// What checks and builds; everything is done anew when this changes.
const CODE: &str = concat!(include_str!("kbuild.rs"), include_str!("overlays.rs"));
/// What the patches touch, but for device trees.
const TARGETS: &[&str] = &["drivers/accel/rocket/", "drivers/iommu/rockchip-iommu.o"];

/// Does both; once for each content of the line, the fragments and the compiler.
///
/// # Errors
/// A setting that did not take, a build that fails or warns.
pub(crate) fn compile(line: &Line) -> Result<()> {
    let mut settings = String::new();
    for fragment in FRAGMENTS {
        let file = step::workspace().join(FOLDER).join(fragment);
        settings += &fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?;
    }
    let mut hasher = DefaultHasher::new();
    (CODE, &settings, TARGETS, kmod::compiler()?).hash(&mut hasher);
    let key = format!("{}-{:016x}", line.key()?, hasher.finish());
    archive::once(&need::cache()?.join("linux-compiled").join(key), |folder| {
        let (tree, out) = (folder.join("tree"), folder.join("out"));
        lay_out(line, &tree)?;
        configure(&tree, &out, &settings)?;
        kernel::succeed(make(&tree, &out).arg("modules_prepare"))?;
        kmod::without_warning(&kernel::printed(make(&tree, &out).arg("W=1").args(TARGETS))?)?;
        overlays::has_npu(&tree)?;
        fs::copy(out.join(".config"), folder.join("config"))?;
        fs::remove_dir_all(&out)?;
        Ok(fs::remove_dir_all(&tree)?)
    })
    .map(drop)
}

/// The base tree, as links, with the patched files in their place.
fn lay_out(line: &Line, tree: &Path) -> Result<()> {
    kernel::succeed(Command::new("cp").args(["--archive", "--link"]).arg(line.base_tree()?).arg(tree))?;
    let mut copy = Command::new("cp");
    copy.args(["--recursive", "--remove-destination", "--no-target-directory"]);
    kernel::succeed(copy.arg(line.patched_tree()?).arg(tree))
}

/// What `make olddefconfig` makes of the image's settings must still be them.
fn configure(tree: &Path, out: &Path, settings: &str) -> Result<()> {
    fs::create_dir_all(out)?;
    let all = out.join("settings");
    let defaults = fs::read_to_string(tree.join("arch/arm64/configs/defconfig"))?;
    fs::write(&all, defaults + settings)?;
    let mut command = make(tree, out);
    kernel::succeed(command.arg(format!("KCONFIG_ALLCONFIG={}", all.display())).arg("alldefconfig"))?;
    let taken = lost(settings, &fs::read_to_string(out.join(".config"))?);
    if !taken.is_empty() {
        bail!("the tree does not know or not allow {}", taken.join(", "));
    }
    Ok(())
}

/// The settings that a configuration lacks.
fn lost<'a>(settings: &'a str, config: &str) -> Vec<&'a str> {
    let wanted = settings.lines().filter(|line| line.starts_with("CONFIG_"));
    wanted.filter(|line| !config.lines().any(|taken| taken == *line)).collect()
}

fn make(tree: &Path, out: &Path) -> Command {
    let mut make = Command::new("make");
    make.arg("--directory").arg(tree).args(["ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-", "--jobs=2"]);
    make.arg(format!("O={}", out.display()));
    make
}

#[cfg(test)]
mod tests {
    use super::lost;

    #[test]
    fn a_setting_that_did_not_take_is_named() {
        let settings = "# why\nCONFIG_A=y\nCONFIG_B=m\nCONFIG_C=y\n";
        assert_eq!(lost(settings, "CONFIG_A=y\nCONFIG_B=y\n# CONFIG_C is not set\n"), ["CONFIG_B=m", "CONFIG_C=y"]);
    }
}
