//! Programs that a command needs beside the Rust toolchain, and how they come onto a Debian or Ubuntu machine.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::step;

/// A program and the package that brings it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// What is needed, for people.
    pub(crate) name: &'static str,
    /// A command line that succeeds where it is there.
    probe: &'static [&'static str],
    /// The package.
    package: &'static str,
}

/// The message bus.
pub(crate) const BUS: Need = Need { name: "dbus-daemon", probe: &["dbus-daemon", "--version"], package: "dbus" };
/// The MQTT broker.
pub(crate) const BROKER: Need = Need { name: "mosquitto", probe: &["which", "mosquitto"], package: "mosquitto" };
/// The broker's command line clients.
pub(crate) const MQTT_CLIENTS: Need =
    Need { name: "mosquitto_pub", probe: &["which", "mosquitto_pub"], package: "mosquitto-clients" };
/// Another clock for a program.
pub(crate) const FAKETIME: Need = Need { name: "faketime", probe: &["which", "faketime"], package: "faketime" };
/// systemd's D-Bus client.
pub(crate) const BUSCTL: Need = Need { name: "busctl", probe: &["busctl", "--version"], package: "systemd" };
/// Python with virtual environments.
pub(crate) const PYTHON: Need =
    Need { name: "python3 with venv", probe: &["python3", "-c", "import venv, ensurepip"], package: "python3-venv" };
/// The tracer that ends a program at a system call of choice.
pub(crate) const STRACE: Need = Need { name: "strace", probe: &["strace", "true"], package: "strace" };
/// A file system of a test's own.
pub(crate) const UNSHARE: Need =
    Need { name: "unshare", probe: &["unshare", "--map-root-user", "--mount", "true"], package: "util-linux" };
/// Whoever may become another user.
pub(crate) const ROOT: Need = Need { name: "root", probe: &["sh", "-c", "test $(id -u) = 0"], package: "util-linux" };
/// What writes and verifies bundles of updates.
pub(crate) const RAUC: Need = Need { name: "rauc", probe: &["rauc", "--version"], package: "rauc" };
/// What decides who may do what.
pub(crate) const POLKIT: Need =
    Need { name: "polkitd", probe: &["test", "-x", "/usr/lib/polkit-1/polkitd"], package: "polkitd" };
/// What packs bundles.
pub(crate) const SQUASHFS: Need =
    Need { name: "mksquashfs", probe: &["mksquashfs", "-version"], package: "squashfs-tools" };
/// What maps the blocks of an image.
pub(crate) const BMAP: Need = Need { name: "bmaptool", probe: &["bmaptool", "--version"], package: "bmap-tools" };
/// What makes root file systems.
pub(crate) const EROFS: Need = Need { name: "mkfs.erofs", probe: &["which", "mkfs.erofs"], package: "erofs-utils" };
/// What makes their hash trees.
pub(crate) const VERITYSETUP: Need =
    Need { name: "veritysetup", probe: &["which", "veritysetup"], package: "cryptsetup-bin" };
/// What makes a boot state.
pub(crate) const MKENVIMAGE: Need =
    Need { name: "mkenvimage", probe: &["which", "mkenvimage"], package: "u-boot-tools" };
/// What makes file systems for data.
pub(crate) const MKFS: Need = Need { name: "mkfs.ext4", probe: &["which", "mkfs.ext4"], package: "e2fsprogs" };
/// What packs images.
pub(crate) const ZSTD: Need = Need { name: "zstd", probe: &["zstd", "--version"], package: "zstd" };
/// What makes the keys of bundles.
pub(crate) const OPENSSL: Need = Need { name: "openssl", probe: &["openssl", "version"], package: "openssl" };
/// Slots of an update: loop devices, mounted out of everybody's sight.
pub(crate) const SLOTS: Need = Need {
    name: "root with loop devices and mount namespaces",
    probe: &["sh", "-c", "test $(id -u) = 0 && unshare --mount --propagation private losetup --find"],
    package: "util-linux",
};
/// The C++ compiler that builds the fuzzing engine.
pub(crate) const CXX: Need = Need { name: "c++", probe: &["c++", "--version"], package: "g++" };
/// The compiler for the boards' processor.
pub(crate) const CROSS_COMPILER: Need = Need {
    name: "aarch64-linux-gnu-gcc",
    probe: &["aarch64-linux-gnu-gcc", "--version"],
    package: "gcc-aarch64-linux-gnu",
};
/// What the kernel's configuration is read with.
pub(crate) const FLEX: Need = Need { name: "flex", probe: &["flex", "--version"], package: "flex" };
/// As [`FLEX`].
pub(crate) const BISON: Need = Need { name: "bison", probe: &["bison", "--version"], package: "bison" };
/// Programs of the boards' processor on this one.
pub(crate) const QEMU_USER: Need =
    Need { name: "qemu-aarch64-static", probe: &["qemu-aarch64-static", "--version"], package: "qemu-user-static" };
/// What builds kernel modules.
pub(crate) const MAKE: Need = Need { name: "make", probe: &["make", "--version"], package: "make" };
/// What configures and drives builds of C++.
pub(crate) const CMAKE: Need = Need { name: "cmake", probe: &["cmake", "--version"], package: "cmake" };
/// Applies patches.
pub(crate) const PATCH: Need = Need { name: "patch", probe: &["patch", "--version"], package: "patch" };
/// Compiles shaders.
pub(crate) const GLSLC: Need = Need { name: "glslc", probe: &["glslc", "--version"], package: "glslc" };
/// Headers of Vulkan.
pub(crate) const VULKAN: Need =
    Need { name: "Vulkan's headers", probe: &["pkg-config", "vulkan"], package: "libvulkan-dev" };
/// What the kernel's style check is written in.
pub(crate) const PERL: Need =
    Need { name: "perl", probe: &["perl", "-MEncode", "-MTerm::ANSIColor", "-e", "1"], package: "perl" };
/// What source archives are packed with.
pub(crate) const XZ: Need = Need { name: "xz", probe: &["xz", "--version"], package: "xz-utils" };
/// What compiles, joins and reads device trees.
pub(crate) const DTC: Need = Need { name: "dtc", probe: &["fdtoverlay", "--version"], package: "device-tree-compiler" };
/// Makes images for U-Boot.
pub(crate) const MKIMAGE: Need = Need { name: "mkimage", probe: &["which", "mkimage"], package: "u-boot-tools" };
/// Changes U-Boot's variables from Linux.
pub(crate) const FW_SETENV: Need =
    Need { name: "fw_setenv", probe: &["which", "fw_setenv"], package: "libubootenv-tool" };
/// Partitions disks.
pub(crate) const SFDISK: Need = Need { name: "sfdisk", probe: &["sfdisk", "--version"], package: "fdisk" };
/// Makes FAT file systems.
pub(crate) const DOSFSTOOLS: Need = Need { name: "mkfs.vfat", probe: &["which", "mkfs.vfat"], package: "dosfstools" };
/// Writes into FAT file systems without mounting them.
pub(crate) const MTOOLS: Need = Need { name: "mcopy", probe: &["which", "mcopy"], package: "mtools" };
/// The C compiler of this machine.
pub(crate) const COMPILER: Need = Need { name: "cc", probe: &["cc", "--version"], package: "gcc" };
/// Says where libraries are.
pub(crate) const PKG_CONFIG: Need =
    Need { name: "pkg-config", probe: &["pkg-config", "--version"], package: "pkg-config" };
/// Headers of the library that QEMU is written with.
pub(crate) const GLIB: Need =
    Need { name: "glib's headers", probe: &["pkg-config", "glib-2.0"], package: "libglib2.0-dev" };
/// What packs an initramfs.
pub(crate) const CPIO: Need = Need { name: "cpio", probe: &["cpio", "--version"], package: "cpio" };
/// What reads kernel modules.
pub(crate) const KMOD: Need = Need { name: "modinfo", probe: &["which", "modinfo", "depmod"], package: "kmod" };
/// What makes the users of a root file system.
pub(crate) const SYSUSERS: Need =
    Need { name: "systemd-sysusers", probe: &["systemd-sysusers", "--version"], package: "systemd" };
/// The C library for the boards' processor.
pub(crate) const CROSS_LIBC: Need = Need {
    name: "libc for aarch64",
    probe: &["test", "-e", "/usr/aarch64-linux-gnu/lib/libc.a"],
    package: "libc6-dev-arm64-cross",
};

/// What installs another release of Debian into a folder.
pub(crate) const MMDEBSTRAP: Need =
    Need { name: "mmdebstrap", probe: &["mmdebstrap", "--version"], package: "mmdebstrap" };
/// What a folder with another release is entered with.
pub(crate) const MOUNTS: Need = Need {
    name: "root with mount namespaces",
    probe: &["sh", "-c", "test $(id -u) = 0 && unshare --mount --propagation private true"],
    package: "util-linux",
};

/// A library that a program of another release was linked with, and the package that brings it.
macro_rules! libraries {
    ($($library:literal $package:literal)*) => {
        &[$(Need {
            name: $library,
            probe: &["sh", "-c", concat!("ldconfig -p | grep --quiet --fixed-strings ", $library)],
            package: $package,
        }),*]
    };
}

/// What Debian 12's QEMU is linked with.
pub(crate) const QEMU_LIBRARIES: &[Need] = libraries! {
    "libaio.so.1" "libaio1"
    "libbpf.so.1" "libbpf1"
    "libcapstone.so.4" "libcapstone4"
    "libfdt.so.1" "libfdt1"
    "libfuse3.so.3" "libfuse3-3"
    "libglib-2.0.so.0" "libglib2.0-0"
    "libgmp.so.10" "libgmp10"
    "libgnutls.so.30" "libgnutls30"
    "libhogweed.so.6" "libhogweed6"
    "libibverbs.so.1" "libibverbs1"
    "libjpeg.so.62" "libjpeg62-turbo"
    "libnettle.so.8" "libnettle8"
    "libnuma.so.1" "libnuma1"
    "libpixman-1.so.0" "libpixman-1-0"
    "libpmem.so.1" "libpmem1"
    "libpng16.so.16" "libpng16-16"
    "librdmacm.so.1" "librdmacm1"
    "libsasl2.so.2" "libsasl2-2"
    "libseccomp.so.2" "libseccomp2"
    "libslirp.so.0" "libslirp0"
    "libudev.so.1" "libudev1"
    "liburing.so.2" "liburing2"
    "libvdeplug.so.2" "libvdeplug2"
    "libzstd.so.1" "libzstd1"
    "libz.so.1" "zlib1g"
};

impl Need {
    fn is_here(&self) -> bool {
        succeeds(Command::new(self.probe[0]).args(&self.probe[1..]).env("PATH", step::search_path()))
    }
}

/// Installs what is missing of `needs`, saying so first. Returns what is still missing then.
pub(crate) fn provide(needs: &[Need]) -> Vec<Need> {
    let missing: Vec<Need> = needs.iter().copied().filter(|need| !need.is_here()).collect();
    if missing.is_empty() {
        return missing;
    }
    if let Err(error) = install(&missing) {
        println!("not installed: {error:#}");
    }
    missing.into_iter().filter(|need| !need.is_here()).collect()
}

/// As [`provide`], for a command that cannot do without.
///
/// # Errors
/// What is still missing, and how to get it.
pub(crate) fn require(needs: &[Need]) -> Result<()> {
    let missing = provide(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|need| need.name).collect();
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    bail!("{} missing; install the package {}", names.join(", "), packages.join(", "))
}

fn install(missing: &[Need]) -> Result<()> {
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    println!("installing with apt-get: {}", packages.join(" "));
    let options = ["--yes", "--no-install-recommends"];
    // The lists of a fresh machine are empty or old; an update that fails still leaves what is in them.
    let _ = apt_get()?.arg("update").stdout(Stdio::null()).status();
    let status = apt_get()?
        .arg("install")
        .args(options)
        .args(&packages)
        .stdout(Stdio::null())
        .status()
        .context("apt-get cannot be started")?;
    if !status.success() {
        bail!("apt-get install {} ended with {status}", packages.join(" "));
    }
    Ok(())
}

/// `apt-get` as root; without a password prompt, which nobody may be there to answer.
fn apt_get() -> Result<Command> {
    if !succeeds(Command::new("which").arg("apt-get")) {
        bail!("there is no apt-get on this machine");
    }
    let mut command = if succeeds(Command::new("sh").args(["-c", "test $(id -u) = 0"])) {
        Command::new("apt-get")
    } else if succeeds(Command::new("sudo").args(["--non-interactive", "true"])) {
        let mut sudo = Command::new("sudo");
        sudo.args(["--non-interactive", "apt-get"]);
        sudo
    } else {
        bail!("neither root nor sudo without a password");
    };
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    Ok(command)
}

/// The project's folder in the user's cache.
///
/// # Errors
/// A user without a home.
pub(crate) fn cache() -> Result<PathBuf> {
    let user = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        (Some(cache), _) if !cache.is_empty() => PathBuf::from(cache),
        (_, Some(home)) => PathBuf::from(home).join(".cache"),
        _ => bail!("neither XDG_CACHE_HOME nor HOME is set"),
    };
    Ok(user.join("cairn"))
}

/// Whether the command can be started and ends well; what it prints is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::Need;

    #[test]
    fn a_program_that_does_not_exist_is_not_here() {
        assert!(!Need { name: "none", probe: &["no-such-program-anywhere"], package: "none" }.is_here());
        assert!(Need { name: "true", probe: &["true"], package: "coreutils" }.is_here());
        assert!(!Need { name: "false", probe: &["false"], package: "coreutils" }.is_here());
    }
}
