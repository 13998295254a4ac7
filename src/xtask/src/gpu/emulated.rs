//! Mesa 26.1.6 as Debian builds it for the boards, in an emulator: for versions whose source the archive does not have.
//!
//! ```text
//! packages for arm64 ─▶ a folder with the driver and its libraries ┐
//! Mesa's drm-shim and our device, compiled for arm64 ──────────────┴─▶ qemu-aarch64 ─▶ the program's text, the device's log
//! ```

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::chroot;
use super::log;
use super::mesa;
use super::run::{self, Run};
use crate::archive::{self, Pin};
use crate::kernel::succeed;
use crate::need::{self, CROSS_COMPILER, CROSS_LIBC, Need, QEMU_USER};
use crate::step;

/// The version, as tables call it.
pub(crate) const VERSION: &str = "26.1.6";
/// What is needed besides the Debian.
pub(crate) const NEEDS: &[Need] = &[CROSS_COMPILER, CROSS_LIBC, QEMU_USER];
/// Packages.
const LIST: &str = include_str!("../../../../tests/gpu/arm64.list");
/// The compiler of this machine for the boards' processor.
const CC: &str = "aarch64-linux-gnu-gcc";
/// What of Mesa's source the device is made of.
const PARTS: &[&str] = &["include", "src/c11", "src/drm-shim", "src/panfrost/drm-shim", "src/util"];
/// Files of Mesa's drm-shim for this GPU, and what they call.
const FILES: &[&str] = &[
    "src/drm-shim/device.c",
    "src/drm-shim/drm_shim.c",
    "src/panfrost/drm-shim/panfrost_noop.c",
    "src/c11/impl/threads_posix.c",
    "src/c11/impl/time.c",
    "src/util/anon_file.c",
    "src/util/hash_table.c",
    "src/util/log.c",
    "src/util/memstream.c",
    "src/util/os_file.c",
    "src/util/os_misc.c",
    "src/util/os_time.c",
    "src/util/ralloc.c",
    "src/util/rb_tree.c",
    "src/util/set.c",
    "src/util/simple_mtx.c",
    "src/util/strtod.c",
    "src/util/u_call_once.c",
    "src/util/u_cpu_detect.c",
    "src/util/u_debug.c",
    "src/util/u_printf.c",
    "src/util/u_process.c",
    "src/util/u_thread.c",
    "src/util/vma.c",
];
/// What Mesa's build would have found out.
const HAS: &[&str] = &[
    "DLADDR",
    "DL_ITERATE_PHDR",
    "ENDIAN_H",
    "FUNC_ATTRIBUTE_FORMAT",
    "FUNC_ATTRIBUTE_PACKED",
    "MEMFD_CREATE",
    "OPEN_MEMSTREAM",
    "PROGRAM_INVOCATION_NAME",
    "PTHREAD",
    "SECURE_GETENV",
    "STRUCT_TIMESPEC",
    "TIMESPEC_GET",
    "__BUILTIN_BSWAP32",
    "__BUILTIN_BSWAP64",
    "__BUILTIN_CLZ",
    "__BUILTIN_CLZLL",
    "__BUILTIN_CTZ",
    "__BUILTIN_EXPECT",
    "__BUILTIN_FFS",
    "__BUILTIN_FFSLL",
    "__BUILTIN_POPCOUNT",
    "__BUILTIN_UNREACHABLE",
];

/// Runs `shader` with these arguments on the device.
///
/// # Errors
/// A package or compiler that cannot be had, a log that cannot be read.
pub(crate) fn shader(arguments: &[String]) -> Result<Run> {
    let (root, programs) = (root()?, programs()?);
    let libraries = root.join("usr/lib/aarch64-linux-gnu");
    let log = run::new_log()?;
    let mut command = Command::new("qemu-aarch64-static");
    // The boards' fast cores. The emulator's own choice signs return addresses, which is four fifths of the time.
    command.args(["-cpu", "cortex-a76"]).args(["-L".as_ref(), root.as_os_str()]);
    for (name, value) in [
        ("PAN_GPU_ID", run::GPU),
        ("PANTHOR_LOG", &log.to_string_lossy()),
        ("VK_DRIVER_FILES", &programs.join("icd.json").to_string_lossy()),
        ("VK_LOADER_LAYERS_DISABLE", "*"),
        ("MESA_SHADER_CACHE_DISABLE", "true"),
    ] {
        command.arg("-E").arg(format!("{name}={value}"));
    }
    let devices = format!("{0}/panthor.so {0}/shim.so", programs.display());
    command.arg(libraries.join("ld-linux-aarch64.so.1"));
    command.args(["--library-path".as_ref(), libraries.as_os_str()]).args(["--preload", &devices]);
    let output = command.arg(programs.join("shader")).args(arguments).output().context("qemu cannot be started")?;
    let events = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(!events.is_empty(), "the device was not reached: {text}");
    Ok(Run { text, status: output.status.code(), report: log::read(&events)? })
}

fn root() -> Result<PathBuf> {
    archive::unpacked("mesa-arm64", &Pin::list(LIST)?)
}

/// The device's two libraries and the program, in the cache.
fn programs() -> Result<PathBuf> {
    need::require(NEEDS)?;
    let sources = step::workspace().join(run::FOLDER);
    let texts: Result<Vec<String>, _> = ["panthor.c", "panthor.h", "stream.c", "shader.c"]
        .iter()
        .map(|name| fs::read_to_string(sources.join(name)))
        .collect();
    let key = archive::key(&(texts?, LIST, FILES, HAS, chroot::key()));
    archive::once(&need::cache()?.join("mesa").join(format!("arm64-{key}")), |folder| {
        let mesa = mesa::parts(PARTS)?;
        let include = folder.join("include");
        fs::create_dir_all(&include)?;
        symlink(mesa.join("include/drm-uapi"), include.join("drm"))?;
        // The Debian's, of which this machine may have none, or older ones.
        let headers = chroot::root()?.join("usr/include");
        for name in ["libdrm", "vk_video", "vulkan", "xf86drm.h"] {
            symlink(headers.join(name), include.join(name))?;
        }
        succeed(shim(&mesa, &include).arg("-o").arg(folder.join("shim.so")))?;
        let mut panthor = Command::new(CC);
        panthor.args(["-O1", "-w", "-shared", "-fPIC", "-I"]).arg(&include).arg("-I").arg(include.join("libdrm"));
        panthor.args(["panthor.c", "stream.c"].map(|name| sources.join(name)));
        succeed(panthor.arg("-o").arg(folder.join("panthor.so")))?;
        let libraries = root()?.join("usr/lib/aarch64-linux-gnu");
        let mut shader = Command::new(CC);
        shader.args(["-O1", "-Wall", "-I"]).arg(&include).arg(sources.join("shader.c"));
        shader.arg(libraries.join("libvulkan.so.1")).arg("-Wl,--allow-shlib-undefined");
        succeed(shader.arg("-o").arg(folder.join("shader")))?;
        let driver = libraries.join("libvulkan_panfrost.so");
        let icd = format!(
            r#"{{"file_format_version": "1.0.1", "ICD": {{"library_path": "{}", "api_version": "1.4.0"}}}}"#,
            driver.display()
        );
        Ok(fs::write(folder.join("icd.json"), icd)?)
    })
}

/// The compiler's command for Mesa's drm-shim.
fn shim(mesa: &Path, include: &Path) -> Command {
    let mut command = Command::new(CC);
    command.args(["-O1", "-w", "-shared", "-fPIC", "-D_GNU_SOURCE", "-DUSE_GCC_ATOMIC_BUILTINS"]);
    command.arg("-DPACKAGE_VERSION=\"25.0.7\"").args(HAS.iter().map(|name| format!("-DHAVE_{name}")));
    for folder in ["include", "src", "src/util", "src/drm-shim"] {
        command.arg("-I").arg(mesa.join(folder));
    }
    command.arg("-I").arg(include).arg("-I").arg(include.join("libdrm"));
    command.args(FILES.iter().map(|file| mesa.join(file)));
    command
}
