//! The initramfs of the stand-in: it does what the image's kernel does itself, from the same command line.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::modules::Modules;
use crate::board::guest;
use crate::step;

/// What sets up device mapper, of the root, with its libraries.
const FILES: &[&str] = &[
    "usr/sbin/dmsetup",
    "usr/lib/ld-linux-aarch64.so.1",
    "usr/lib/aarch64-linux-gnu/libc.so.6",
    "usr/lib/aarch64-linux-gnu/libm.so.6",
    "usr/lib/aarch64-linux-gnu/libcap.so.2",
    "usr/lib/aarch64-linux-gnu/libdevmapper.so.1.02.1",
    "usr/lib/aarch64-linux-gnu/libpcre2-8.so.0",
    "usr/lib/aarch64-linux-gnu/libselinux.so.1",
    "usr/lib/aarch64-linux-gnu/libudev.so.1",
];
/// Its first program.
const INIT: &str = "tests/image/init.sh";

/// Makes it in `folder`. `base`: the root that its programs come from.
///
/// # Errors
/// What cannot be had, or written.
pub(super) fn make(base: &Path, modules: &Modules, folder: &Path) -> Result<PathBuf> {
    let (root, archive) = (folder.join("initramfs"), folder.join("initramfs.cpio"));
    for name in ["bin", "dev", "proc", "sys", "system"] {
        fs::create_dir_all(root.join(name))?;
    }
    fs::copy(guest::shell()?, root.join("bin/busybox"))?;
    for file in FILES {
        let to = root.join(file);
        fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
        fs::copy(base.join(file), to).with_context(|| format!("the root has no {file}"))?;
    }
    std::os::unix::fs::symlink("usr/lib", root.join("lib"))?;
    modules.install_early(&root.join("modules"))?;
    fs::copy(step::workspace().join(INIT), root.join("init"))?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    guest::pack(&root, &archive)?;
    Ok(archive)
}
