//! The kernel's modules of the stand-in: those that are named, and what they need.
//!
//! Debian's kernel has as modules what the image's kernel has inside (`linux-yocto_6.18.bbappend`), so some of them are
//! loaded by an initramfs, before the root is there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::board::guest;
use crate::kernel::{Line, printed, succeed};
use crate::kmod::{self, Driver, Kernel};

/// What the root is mounted with.
pub(super) const EARLY: &[&str] = &["virtio_mmio", "virtio_blk", "dm_verity", "erofs"];
/// What is loaded when it is asked for: the driver of the NPU, the network, the data partition, the owner's partition, and
/// what RAUC streams bundles through.
const LATE: &[&str] = &[
    "rocket",
    "virtio_net",
    "ext4",
    "vfat",
    "nls_cp437",
    "nls_ascii",
    "nbd",
    "loop",
    "squashfs",
    "autofs4",
    "virtio_rng",
];

/// All modules of the kernel, by name.
#[derive(Debug)]
pub(super) struct Modules(BTreeMap<String, PathBuf>);

impl Modules {
    /// Debian's, and our driver.
    ///
    /// # Errors
    /// What cannot be fetched or built.
    pub(super) fn find() -> Result<Self> {
        let mut all = BTreeMap::new();
        walk(&guest::kernel()?.1.join("kernel"), &mut all)?;
        all.insert("rocket".into(), kmod::rocket(&Line::named(kmod::LINE), Driver::Patched)?);
        Ok(Self(all))
    }

    /// The modules and what they need, in an order in which they can be loaded.
    ///
    /// # Errors
    /// A name that no module has.
    fn with_needed(&self, names: &[&str]) -> Result<Vec<(String, &Path)>> {
        let mut order = Vec::new();
        for name in names {
            self.add(name, &mut order)?;
        }
        Ok(order)
    }

    fn add<'a>(&'a self, name: &str, order: &mut Vec<(String, &'a Path)>) -> Result<()> {
        let name = name.replace('-', "_");
        if order.iter().any(|(there, _)| *there == name) {
            return Ok(());
        }
        let file = self.0.get(&name).with_context(|| format!("the kernel has no module {name}"))?;
        let needed = printed(Command::new("modinfo").args(["--field", "depends"]).arg(file))?;
        for other in needed.trim().split(',').filter(|other| !other.is_empty()) {
            self.add(other, order)?;
        }
        order.push((name, file));
        Ok(())
    }

    /// Puts what mounts the root into `folder`, and a list of it in order.
    ///
    /// # Errors
    /// As [`Modules::find`], a file that cannot be written.
    pub(super) fn install_early(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        let mut list = String::new();
        for (name, file) in self.with_needed(EARLY)? {
            guest::unpack_module(file, &folder.join(format!("{name}.ko")))?;
            list += &format!("{name}\n");
        }
        Ok(fs::write(folder.join("order"), list)?)
    }

    /// Puts all of them where the root's programs look for modules.
    ///
    /// # Errors
    /// As [`Modules::install_early`].
    pub(super) fn install(&self, root: &Path) -> Result<()> {
        let release = Kernel::of(&Line::named(kmod::LINE))?.release;
        let folder = root.join("usr/lib/modules").join(release);
        fs::create_dir_all(&folder)?;
        for (name, file) in self.with_needed(&[EARLY, LATE].concat())? {
            guest::unpack_module(file, &folder.join(format!("{name}.ko")))?;
        }
        let mut depmod = Command::new("depmod");
        succeed(depmod.env("PATH", crate::step::search_path()).arg("--basedir").arg(root).arg(release))
    }
}

fn walk(folder: &Path, all: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in folder.read_dir().with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, all)?;
        } else if let Some((name, _)) = path.file_name().and_then(|name| name.to_str()?.split_once(".ko")) {
            all.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Modules;

    #[test]
    fn a_module_that_does_not_exist_is_named() {
        let error = Modules([].into()).with_needed(&["no-such"]).unwrap_err();
        assert_eq!(error.to_string(), "the kernel has no module no_such");
    }
}
