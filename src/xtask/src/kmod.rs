//! `rocket.ko` for a kernel of Debian, without building a kernel.
//!
//! ```text
//! base or patched tree ─┐
//! Debian's headers ─────┴─▶ kbuild, out of tree, W=1 ─▶ rocket.ko, one for each content in the cache
//! ```

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::archive::{self, Pin};
use crate::kernel::{self, Line, ROCKET, UAPI};
use crate::need::{self, CROSS_COMPILER, MAKE, XZ};

/// The line of the kernel that the module is made for.
pub(crate) const LINE: &str = "7.3";
/// What builds modules; they are built anew when this changes.
const CODE: &str = include_str!("kmod.rs");
/// What `uname --kernel-release` says where the module can be loaded.
pub(crate) const RELEASE: &str = "7.3.4+deb13-arm64";
/// Debian's headers for that kernel, what kbuild runs on this machine, and the C library that was linked with.
const HEADERS: &str = "\
469a205bfcac35729e9295462dacc5fdb7b871c139ade15d151b33ccd97f2102  pool/main/l/linux/linux-headers-7.3.4+deb13-arm64_7.3.4-1~bpo13+1_arm64.deb
886647d4a7b05d2aedd22f8e16917c5b75e97e8946966d6bac48962c40b19a06  pool/main/l/linux/linux-headers-7.3.4+deb13-common_7.3.4-1~bpo13+1_all.deb
248cce12d48862f7d38ca51efdb759c031192543d144f18bd36a5df37f156244  pool/main/l/linux/linux-kbuild-7.3.4+deb13_7.3.4-1~bpo13+1_amd64.deb
b59b0625cd1a791375d40dab23a4d5d3d0641e3d0a773501becdc3725b7f99cf  pool/main/g/glibc/libc6_2.41-12+deb13u5_amd64.deb
";
/// Starts the program for our modules with the C library of its own release; this machine's may be older.
const MODPOST: &str = r#"#!/bin/sh
here=${0%/*}
libc=$here/../../../x86_64-linux-gnu
exec "$libc/ld-linux-x86-64.so.2" --library-path "$libc" "$here/modpost.real-lsb-64" "$@"
"#;
/// Settings that differ from Debian's: this compiler may lack the option, and nobody reads the debugging information.
const SETTINGS: &[&str] = &[
    "CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=",
    "CONFIG_DEBUG_INFO=",
    "CONFIG_DEBUG_INFO_BTF=",
    "CONFIG_DEBUG_INFO_BTF_MODULES=",
    "CONFIG_PAHOLE_VERSION=0",
];

/// Which driver of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Driver {
    /// As it is in the base tree.
    Stock,
    /// With our series.
    Patched,
    /// With our series but for the patch of this number.
    Without(u32),
}

/// `rocket.ko` for [`RELEASE`], from the cache where it was built before. A driver of another line is made for this kernel
/// as well: what it needs of a kernel has not changed.
///
/// # Errors
/// What cannot be fetched, a patch that does not apply, a build that fails or warns.
pub(crate) fn rocket(line: &Line, driver: Driver) -> Result<PathBuf> {
    need::require(&[CROSS_COMPILER, MAKE, XZ])?;
    let line = match driver {
        Driver::Without(number) => line.without(number)?,
        Driver::Stock | Driver::Patched => line.clone(),
    };
    let mut hasher = DefaultHasher::new();
    (CODE, HEADERS, SETTINGS, compiler()?, driver).hash(&mut hasher);
    let key = format!("{}-{:016x}", line.key()?, hasher.finish());
    let folder = archive::once(&need::cache()?.join("kmod").join(key), |folder| {
        let tree = match driver {
            Driver::Stock => line.base_tree()?,
            Driver::Patched | Driver::Without(_) => line.patched_tree()?,
        };
        build(&tree, folder)
    })?;
    Ok(folder.join("rocket.ko"))
}

/// Which compiler it is; part of what a build is made from.
///
/// # Errors
/// A compiler that is not there.
pub(crate) fn compiler() -> Result<String> {
    kernel::printed(Command::new("aarch64-linux-gnu-gcc").arg("--version"))
}

/// Builds the driver of `tree` in `folder`.
fn build(tree: &Path, folder: &Path) -> Result<()> {
    let headers = headers()?;
    let common = headers.join("linux-headers-7.3.4+deb13-common");
    lay_out(tree, &common.join("include/uapi/drm"), folder)?;
    let mut make = Command::new("make");
    make.arg("--directory").arg(&common).args(["ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-", "W=1", "modules"]);
    // The headers name Debian's own compiler.
    make.args(["CC=aarch64-linux-gnu-gcc", "CONFIG_DRM_ACCEL_ROCKET=m"]).args(SETTINGS);
    make.arg(format!("KERNELRELEASE={RELEASE}"));
    make.arg(format!("O={}", headers.join(format!("linux-headers-{RELEASE}")).display()));
    make.arg(format!("M={}", folder.display()));
    without_warning(&kernel::printed(&mut make)?)
}

/// Fails where the compiler or kbuild printed a warning.
///
/// # Errors
/// The text.
pub(crate) fn without_warning(text: &str) -> Result<()> {
    if text.contains("warning:") || text.contains("WARNING:") {
        bail!("the build warns: {}", text.trim());
    }
    Ok(())
}

/// The driver's sources with their own user space header, which comes before the one of the headers package.
fn lay_out(tree: &Path, drm: &Path, folder: &Path) -> Result<()> {
    let include = folder.join("include/drm");
    fs::create_dir_all(&include)?;
    for entry in tree.join(ROCKET).read_dir()? {
        let entry = entry?;
        fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    fs::copy(tree.join(UAPI), include.join("rocket_accel.h"))?;
    for header in ["drm.h", "drm_mode.h"] {
        fs::copy(drm.join(header), include.join(header))?;
    }
    let makefile = folder.join("Makefile");
    let text = fs::read_to_string(&makefile).context("the driver has no Makefile")?;
    // The driver of 6.18 relies on a header that others include there.
    let flags = "NOSTDINC_FLAGS += -I$(src)/include\nccflags-y += -include drm/drm_print.h\n";
    Ok(fs::write(&makefile, format!("{flags}{text}"))?)
}

/// Debian's headers in the cache, with kbuild's programs made to run on this machine.
fn headers() -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (HEADERS, MODPOST).hash(&mut hasher);
    let folder = need::cache()?.join("linux-headers").join(format!("{RELEASE}-{:016x}", hasher.finish()));
    let folder = archive::once(&folder, |folder| {
        for package in Pin::list(HEADERS)? {
            let file = archive::fetch(&package)?;
            kernel::succeed(Command::new("dpkg-deb").arg("--extract").arg(file).arg(folder))?;
        }
        let modpost = folder.join("usr/lib/linux-kbuild-7.3.4+deb13/scripts/mod/modpost");
        fs::write(&modpost, MODPOST)?;
        Ok(fs::set_permissions(&modpost, fs::Permissions::from_mode(0o755))?)
    })?;
    Ok(folder.join("usr/src"))
}
