//! `rocket.ko` for a kernel of Debian, without building a kernel.
//!
//! ```text
//! base or patched tree ─┐
//! Debian's headers ─────┴─▶ kbuild, out of tree, W=1 ─▶ rocket.ko, one for each content in the cache
//! base tree, Debian's headers ─▶ kbuild ─▶ drm.ko with accelerators, where Debian's is without them
//! ```

use std::fs;
use std::hash::Hash;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::archive::{self, Pin};
use crate::kernel::{self, Line, ROCKET, UAPI};
use crate::need::{self, CROSS_COMPILER, MAKE, XZ};

/// The line that is built and tested if nobody names another.
pub(crate) const LINE: &str = "7.3";
/// What builds modules; they are built anew when this changes.
const CODE: &str = include_str!("kmod.rs");
/// A kernel of Debian: modules are built for it, and the virtual board boots it.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The line of the patches that it is of.
    line: &'static str,
    /// What `uname --kernel-release` says.
    pub(crate) release: &'static str,
    /// Its headers, what kbuild runs on this machine, and the C library that was linked with.
    headers: &'static str,
    /// The kernel and its modules.
    image: &'static str,
    /// The kernel's place in them.
    pub(crate) place: &'static str,
    /// Whether its DRM core knows accelerators. One that does not is built anew.
    pub(crate) has_accelerators: bool,
}

/// One for each line.
static KERNELS: &[Kernel] = &[
    Kernel {
        line: LINE,
        release: "7.3.4+deb13-arm64",
        headers: "\
469a205bfcac35729e9295462dacc5fdb7b871c139ade15d151b33ccd97f2102  pool/main/l/linux/linux-headers-7.3.4+deb13-arm64_7.3.4-1~bpo13+1_arm64.deb
886647d4a7b05d2aedd22f8e16917c5b75e97e8946966d6bac48962c40b19a06  pool/main/l/linux/linux-headers-7.3.4+deb13-common_7.3.4-1~bpo13+1_all.deb
248cce12d48862f7d38ca51efdb759c031192543d144f18bd36a5df37f156244  pool/main/l/linux/linux-kbuild-7.3.4+deb13_7.3.4-1~bpo13+1_amd64.deb
b59b0625cd1a791375d40dab23a4d5d3d0641e3d0a773501becdc3725b7f99cf  pool/main/g/glibc/libc6_2.41-12+deb13u5_amd64.deb
",
        image: "\
0bbfeddbecdea8ab294daf09eb5cc1f4405af5c044b4b7aa57f5d1eaa205530f  pool/main/l/linux-signed-arm64/linux-binary-7.3.4+deb13-arm64_7.3.4-1~bpo13+1_arm64.deb
df2a118b535e735230717512a9fe4d30b0c24a3c6e68470d5d13e9a08ddfd29a  pool/main/l/linux/linux-modules-7.3.4+deb13-arm64_7.3.4-1~bpo13+1_arm64.deb
",
        place: "usr/lib/modules/7.3.4+deb13-arm64/vmlinuz",
        has_accelerators: true,
    },
    Kernel {
        line: "6.18",
        release: "6.18.15+deb13-arm64",
        headers: "\
df6c1cd6a8c86681a9090143a0f6f7006b91e373e44e3875da16ad6d3f52540f  pool/main/l/linux/linux-headers-6.18.15+deb13-arm64_6.18.15-1~bpo13+1_arm64.deb
a54ed9b3be5247fe2e003423e067cb8e8b06e4a44a09459b85cfec0afbcbd5ef  pool/main/l/linux/linux-headers-6.18.15+deb13-common_6.18.15-1~bpo13+1_all.deb
5e64129020cdb5effd6ed3895ca89608ef17bcf643eedfc8013dad89bab70a02  pool/main/l/linux/linux-kbuild-6.18.15+deb13_6.18.15-1~bpo13+1_amd64.deb
b59b0625cd1a791375d40dab23a4d5d3d0641e3d0a773501becdc3725b7f99cf  pool/main/g/glibc/libc6_2.41-12+deb13u5_amd64.deb
",
        image: "219d3ec8b0ca52ad0da5c0f95e42375ac5bf688800ec327ec8426ed92847ccae  pool/main/l/linux-signed-arm64/linux-image-6.18.15+deb13-arm64_6.18.15-1~bpo13+1_arm64.deb",
        place: "boot/vmlinuz-6.18.15+deb13-arm64",
        has_accelerators: false,
    },
];

impl Kernel {
    /// The one of a line.
    ///
    /// # Errors
    /// A line without one.
    pub(crate) fn of(line: &Line) -> Result<&'static Self> {
        let found = KERNELS.iter().find(|kernel| kernel.line == line.name);
        found.with_context(|| format!("there is no kernel of line {}", line.name))
    }

    /// Where it is unpacked, in the cache.
    ///
    /// # Errors
    /// What cannot be fetched.
    pub(crate) fn unpacked(&self) -> Result<PathBuf> {
        archive::unpacked("linux-arm64", &Pin::list(self.image)?)
    }

    /// `7.3.4+deb13`, as Debian names what is the same on every machine.
    fn version(&self) -> &'static str {
        self.release.trim_end_matches("-arm64")
    }
}

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

/// Functions cannot be traced: the kernel stops at one that this compiler, unlike Debian's, has not aligned to 8 bytes.
const UNTRACED: &str = "ccflags-remove-y += $(CC_FLAGS_FTRACE)\n";

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

/// What goes into the DRM core's settings, for its C code; the picture of a panic would be Rust.
const ACCELERATORS: &str = "#define CONFIG_DRM_ACCEL 1\n#undef CONFIG_DRM_PANIC_SCREEN_QR_CODE\n";

/// `rocket.ko` for the line's kernel, from the cache where it was built before.
///
/// # Errors
/// What cannot be fetched, a patch that does not apply, a build that fails or warns.
pub(crate) fn rocket(line: &Line, driver: Driver) -> Result<PathBuf> {
    need::require(&[CROSS_COMPILER, MAKE, XZ])?;
    let kernel = Kernel::of(line)?;
    let line = match driver {
        Driver::Without(number) => line.without(number)?,
        Driver::Stock | Driver::Patched => line.clone(),
    };
    let key = format!("{}-{}", line.key()?, archive::key(&(CODE, SETTINGS, compiler()?, driver)));
    let folder = archive::once(&need::cache()?.join("kmod").join(key), |folder| {
        let tree = match driver {
            Driver::Stock => line.base_tree()?,
            Driver::Patched | Driver::Without(_) => line.patched_tree()?,
        };
        lay_out(kernel, &tree, folder)?;
        let mut make = make(kernel, folder)?;
        make.args(["W=1", "CONFIG_DRM_ACCEL_ROCKET=m"]);
        if !kernel.has_accelerators {
            let symbols = drm(&line)?.with_file_name("Module.symvers");
            make.arg(format!("KBUILD_EXTRA_SYMBOLS={}", symbols.display()));
        }
        without_warning(&kernel::printed(&mut make)?)
    })?;
    Ok(folder.join("rocket.ko"))
}

/// `drm.ko` with accelerators, for a kernel whose own is without them; from the cache where it was built before.
///
/// # Errors
/// What cannot be fetched, a build that fails.
pub(crate) fn drm(line: &Line) -> Result<PathBuf> {
    let kernel = Kernel::of(line)?;
    let name = format!("drm-{}-{}", line.name, archive::key(&(CODE, SETTINGS, compiler()?, line.text("base")?)));
    // The sources keep their places: they include each other by them.
    let place = "drivers/gpu/drm";
    let folder = archive::once(&need::cache()?.join("kmod").join(name), |folder| {
        let mut copy = Command::new("cp");
        copy.current_dir(line.base_tree()?).args(["--recursive", "--parents", "--target-directory"]);
        kernel::succeed(copy.arg(folder).args([place, "drivers/accel/drm_accel.c"]))?;
        let folder = folder.join(place);
        fs::write(folder.join("accelerators.h"), ACCELERATORS)?;
        let makefile = fs::read_to_string(folder.join("Makefile"))?;
        let core = "obj-$(CONFIG_DRM)\t+= drm.o\n";
        let (parts, _) = makefile.split_once(core).context("DRM's Makefile has another form")?;
        let flags = "ccflags-y += -include $(src)/accelerators.h -I$(src)/..\n";
        fs::write(folder.join("Makefile"), format!("{UNTRACED}{flags}{parts}{core}"))?;
        let mut make = make(kernel, &folder)?;
        kernel::succeed(make.args(["CONFIG_DRM_ACCEL=y", "CONFIG_DRM_PANIC_SCREEN_QR_CODE=", "--jobs=2"]))
    })?;
    Ok(folder.join(place).join("drm.ko"))
}

/// Which compiler it is; part of what a build is made from.
///
/// # Errors
/// A compiler that is not there.
pub(crate) fn compiler() -> Result<String> {
    kernel::printed(Command::new("aarch64-linux-gnu-gcc").arg("--version"))
}

/// kbuild for modules in `folder`.
fn make(kernel: &Kernel, folder: &Path) -> Result<Command> {
    let headers = headers(kernel)?;
    let mut make = Command::new("make");
    make.arg("--directory").arg(common(kernel)?).args(["ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-", "modules"]);
    // The headers name Debian's own compiler.
    make.arg("CC=aarch64-linux-gnu-gcc").args(SETTINGS);
    make.arg(format!("KERNELRELEASE={}", kernel.release));
    make.arg(format!("O={}", headers.join(format!("linux-headers-{}", kernel.release)).display()));
    make.arg(format!("M={}", folder.display()));
    Ok(make)
}

/// The headers that are the same on every machine.
fn common(kernel: &Kernel) -> Result<PathBuf> {
    Ok(headers(kernel)?.join(format!("linux-headers-{}-common", kernel.version())))
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
fn lay_out(kernel: &Kernel, tree: &Path, folder: &Path) -> Result<()> {
    let drm = common(kernel)?.join("include/uapi/drm");
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
    let accelerators = if kernel.has_accelerators { "" } else { "ccflags-y += -DCONFIG_DRM_ACCEL=1\n" };
    Ok(fs::write(&makefile, format!("{UNTRACED}{flags}{accelerators}{text}"))?)
}

/// Debian's headers in the cache, with kbuild's programs made to run on this machine.
fn headers(kernel: &Kernel) -> Result<PathBuf> {
    let name = format!("{}-{}", kernel.release, archive::key(&(kernel.headers, MODPOST)));
    let folder = need::cache()?.join("linux-headers").join(name);
    let folder = archive::once(&folder, |folder| {
        for package in Pin::list(kernel.headers)? {
            let file = archive::fetch(&package)?;
            kernel::succeed(Command::new("dpkg-deb").arg("--extract").arg(file).arg(folder))?;
        }
        let modpost = folder.join(format!("usr/lib/linux-kbuild-{}/scripts/mod/modpost", kernel.version()));
        fs::write(&modpost, MODPOST)?;
        Ok(fs::set_permissions(&modpost, fs::Permissions::from_mode(0o755))?)
    })?;
    Ok(folder.join("usr/src"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_a_kernel_whose_files_are_pinned() {
        for line in Line::all().unwrap() {
            let kernel = Kernel::of(&line).unwrap();
            for pins in [kernel.headers, kernel.image] {
                assert!(!Pin::list(pins).unwrap().is_empty(), "{}", line.name);
            }
            assert!(kernel.release.starts_with(&line.name) && kernel.place.contains("vmlinuz"), "{kernel:?}");
        }
        assert!(Kernel::of(&Line::named("5.10")).is_err());
    }
}
