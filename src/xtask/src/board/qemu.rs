//! QEMU, exactly one version of it, with our device.
//!
//! Debian's own binary is used as it is. It loads modules, so it exports what a device needs, and a preloaded library brings
//! one. That library is bound to the version whose headers it was built with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::archive::{self, Pin};
use crate::need::{self, COMPILER, DTC, GLIB, Need, PKG_CONFIG, PYTHON, XZ};
use crate::{kernel, step};

/// What the program must say it is.
const VERSION: &str = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)";
/// The program, of Debian 12.
const PACKAGE: &str = "78c4adf16152bb8ae1994784e966365128cae04d8ae37bc161bb0b6617c17d9c  pool/main/q/qemu/qemu-system-arm_7.2+dfsg-7+deb12u18+b3_amd64.deb";
/// Its source, for the headers. Debian's patches leave those alone that the device includes.
const SOURCE: &str =
    "91aca71520040edc40b8d437aa3004dae614f58e286cf653ee8996c07af2962f  pool/main/q/qemu/qemu_7.2+dfsg.orig.tar.xz";
/// Names another program to use.
const OVERRIDE: &str = "CAIRN_QEMU";
/// The device.
const DEVICE: &str = "src/npu-sim/qemu/peer-mmio.c";
/// What QEMU's configure script would have found out, as far as the headers ask.
const CONFIGURATION: &str = "\
#define CONFIG_POSIX 1
#define CONFIG_LINUX 1
#define CONFIG_MADVISE 1
#define CONFIG_IOVEC 1
#define CONFIG_EVENTFD 1
#define CONFIG_INT128 1
#define CONFIG_ATOMIC64 1
#define CONFIG_TCG 1
#define CONFIG_MODULES 1
#define HOST_X86_64 1
";
/// The machine. The same words describe it to the device tree's dump and to the run.
pub(crate) const MACHINE: &[&str] = &["-nodefaults", "-display", "none", "-cpu", "cortex-a76", "-smp", "1"];
/// MiB of its memory, if nobody says more.
pub(crate) const MEMORY: u32 = 1024;
/// MiB that it may have: from 1 GiB up to the NPU's registers. SOURCE: `VIRT_MEM`, hw/arm/virt.c; tests/board/npu.dtso.
pub(crate) const MEMORY_MAX: u32 = (0xfdab_0000 - 0x4000_0000) >> 20;

/// What is needed to build and run it.
pub(crate) const NEEDS: &[Need] = &[COMPILER, PKG_CONFIG, GLIB, PYTHON, XZ, DTC];

/// The program, checked.
///
/// # Errors
/// What cannot be fetched, a library that is missing, another version.
pub(crate) fn program() -> Result<PathBuf> {
    let program = found()?;
    let says = kernel::printed(Command::new(&program).arg("--version"))?;
    check_version(&says).with_context(|| program.display().to_string())?;
    Ok(program)
}

/// The program that would be used, of whatever version it is.
///
/// # Errors
/// What cannot be fetched.
pub(crate) fn found() -> Result<PathBuf> {
    match std::env::var_os(OVERRIDE) {
        Some(program) => Ok(PathBuf::from(program)),
        None => Ok(archive::unpacked("qemu", &Pin::list(PACKAGE)?)?.join("usr/bin/qemu-system-aarch64")),
    }
}

/// # Errors
/// Another version than the device was built for.
fn check_version(says: &str) -> Result<()> {
    let found = says.lines().next().unwrap_or_default();
    if found != VERSION {
        bail!("this is `{found}`, and the device is built for `{VERSION}`");
    }
    Ok(())
}

/// The device as a library to preload, from the cache where it was built before.
///
/// # Errors
/// What cannot be fetched, a build that fails or warns.
pub(crate) fn device() -> Result<PathBuf> {
    let source = step::workspace().join(DEVICE);
    let text = fs::read_to_string(&source).with_context(|| format!("{DEVICE} cannot be read"))?;
    let key = archive::key(&(text, VERSION, SOURCE, CONFIGURATION));
    let folder = need::cache()?.join("qemu-device").join(key);
    let folder = archive::once(&folder, |folder| {
        let headers = headers()?;
        let flags = kernel::printed(Command::new("pkg-config").args(["--cflags", "glib-2.0"]))?;
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-fno-strict-aliasing", "-D_GNU_SOURCE"]);
        for include in ["generated", "include"] {
            cc.arg("-isystem").arg(headers.join(include));
        }
        cc.args(flags.split_whitespace()).arg("-o").arg(folder.join("peer-mmio.so")).arg(&source);
        kernel::succeed(&mut cc)
    })?;
    Ok(folder.join("peer-mmio.so"))
}

/// QEMU's headers, with those that its build makes.
fn headers() -> Result<PathBuf> {
    let pin = Pin::parse(SOURCE)?;
    archive::once(&need::cache()?.join("qemu-headers").join(archive::key(&(SOURCE, CONFIGURATION))), |folder| {
        let mut tar = Command::new("tar");
        tar.arg("--extract").arg("--file").arg(archive::fetch(&pin)?).arg("--directory").arg(folder);
        tar.args(["--strip-components=1", "--wildcards", "*/include", "*/scripts/qapi*", "*/qapi", "*/VERSION"]);
        kernel::succeed(&mut tar)?;
        let generated = folder.join("generated");
        fs::create_dir_all(generated.join("qapi"))?;
        let mut generator = Command::new("python3");
        generator.current_dir(folder).args(["scripts/qapi-gen.py", "-b", "-o", "generated/qapi"]);
        kernel::succeed(generator.arg("qapi/qapi-schema.json"))?;
        fs::write(generated.join("config-poison.h"), "")?;
        Ok(fs::write(generated.join("config-host.h"), CONFIGURATION)?)
    })
}

/// QEMU's command line up to what only a run has: the machine, with `ram` as its `memory` MiB of memory.
pub(crate) fn command(program: &Path, ram: &Path, memory: u32) -> Command {
    let mut qemu = Command::new(program);
    qemu.args(["-M", "virt,acpi=off,gic-version=3,memory-backend=ram"]).args(MACHINE);
    qemu.args(["-m", &memory.to_string(), "-object"]);
    qemu.arg(format!("memory-backend-file,id=ram,size={memory}M,mem-path={},share=on", ram.display()));
    qemu
}

/// The machine's own device tree with our nodes in it.
///
/// # Errors
/// A tool that fails.
pub(crate) fn device_tree(program: &Path, folder: &Path, memory: u32) -> Result<PathBuf> {
    let [bare, overlay, whole] = ["virt.dtb", "npu.dtbo", "board.dtb"].map(|name| folder.join(name));
    let dump = format!("dumpdtb={}", bare.display());
    kernel::succeed(command(program, &folder.join("ram"), memory).args(["-machine", &dump]))?;
    let mut compiler = Command::new("dtc");
    compiler.args(["-q", "-@", "-I", "dts", "-O", "dtb", "-o"]).arg(&overlay);
    kernel::succeed(compiler.arg(step::workspace().join("tests/board/npu.dtso")))?;
    let mut apply = Command::new("fdtoverlay");
    kernel::succeed(apply.arg("-i").arg(&bare).arg("-o").arg(&whole).arg(&overlay))?;
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_refused_by_name() {
        assert!(check_version(&format!("{VERSION}\nCopyright")).is_ok());
        let error = check_version("QEMU emulator version 10.0.2 (Debian)\n").unwrap_err().to_string();
        assert!(error.contains("10.0.2") && error.contains("7.2.22"), "{error}");
    }
}
