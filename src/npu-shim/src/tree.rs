//! What a client sees of the machine beside the node: sysfs, the device tree, the folder of nodes.
//!
//! These are ordinary files in a folder of this process, made when a client first looks; hooks only change paths. So
//! opening, listing, links and status are the kernel's own.
//!
//! SOURCE: `drm_sysfs_minor_alloc` and `platform_uevent`; the names of the cores are those of rk3588-base.dtsi.

use std::ffi::{CString, c_char};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::settings::{self, Kernel};
use crate::{client, lock};

/// The node.
pub(crate) const NODE: &str = "/dev/accel/accel0";
/// Major number of accel nodes. SOURCE: include/drm/drm_accel.h.
pub(crate) const MAJOR: u32 = 261;
/// What a client finds in the folder instead of the machine's own.
const SERVED: &[&str] = &[
    "/dev/accel",
    "/proc/device-tree",
    "/sys/bus/platform/drivers/rocket",
    "/sys/class/accel",
    "/sys/dev/char/261:0",
    "/sys/devices/platform/rknn",
    "/sys/devices/platform/fdab0000.npu",
    "/sys/devices/platform/fdac0000.npu",
    "/sys/devices/platform/fdad0000.npu",
    "/sys/firmware/devicetree/base",
    "/sys/module/rocket",
];
const CORES: [&str; 3] = ["fdab0000", "fdac0000", "fdad0000"];

/// Where a path leads.
pub(crate) enum Route {
    /// To the node.
    Node,
    /// To a file of the folder.
    File(CString),
}

/// The folder, and the process that made it.
static FOLDER: Mutex<Option<(u32, PathBuf)>> = Mutex::new(None);

/// Where the client's path leads; nothing where it is none of ours.
pub(crate) fn route(path: *const c_char) -> Option<Route> {
    let path = client::path(path)?;
    let path = std::str::from_utf8(&path).ok()?;
    if !is_served(path) {
        return None;
    }
    if path == NODE {
        return Some(Route::Node);
    }
    let folder = folder().map_err(|error| eprintln!("npu-shim: files of the device: {error}")).ok()?;
    let path = folder.join(path.trim_start_matches('/'));
    CString::new(path.as_os_str().as_bytes()).ok().map(Route::File)
}

fn is_served(path: &str) -> bool {
    let below = |served: &&str| path.strip_prefix(*served).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    SERVED.iter().any(below) && !path.split('/').any(|part| part == "..")
}

/// The client's name of a path below the folder.
pub(crate) fn name_of(path: &Path) -> Option<PathBuf> {
    let folder = lock(&FOLDER);
    let (_, folder) = folder.as_ref()?;
    Some(Path::new("/").join(path.strip_prefix(folder).ok()?))
}

/// Removes the folder, where this process made one.
pub(crate) fn remove() {
    if let Some((_, folder)) = lock(&FOLDER).take_if(|(owner, _)| *owner == std::process::id()) {
        // What stays behind is a few small files, and nobody is left to be told.
        let _ = fs::remove_dir_all(folder);
    }
}

fn folder() -> io::Result<PathBuf> {
    let mut known = lock(&FOLDER);
    match &*known {
        Some((owner, folder)) if *owner == std::process::id() => Ok(folder.clone()),
        _ => {
            let folder = fresh()?;
            fill(&folder)?;
            *known = Some((std::process::id(), folder.clone()));
            Ok(folder)
        }
    }
}

/// An empty folder that only this user can enter.
fn fresh() -> io::Result<PathBuf> {
    for attempt in 0_u32.. {
        let folder = std::env::temp_dir().join(format!("npu-shim-{}-{attempt}", std::process::id()));
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| folder),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn fill(folder: &Path) -> io::Result<()> {
    let settings = settings::read();
    let file = |path: &str, content: &str| put(&folder.join(path), |path| fs::write(path, content));
    let link = |path: &str, target: &str| put(&folder.join(path), |path| symlink(target, path));
    file("dev/accel/accel0", "")?;
    file("sys/devices/platform/rknn/uevent", "MODALIAS=platform:rknn\n")?;
    file("sys/devices/platform/rknn/modalias", "platform:rknn\n")?;
    let minor = "sys/devices/platform/rknn/accel/accel0";
    file(&format!("{minor}/dev"), "261:0\n")?;
    file(&format!("{minor}/uevent"), "MAJOR=261\nMINOR=0\nDEVNAME=accel/accel0\nDEVTYPE=accel_minor\n")?;
    link(&format!("{minor}/device"), "../../../rknn")?;
    link(&format!("{minor}/subsystem"), "../../../../../class/accel")?;
    link("sys/class/accel/accel0", "../../devices/platform/rknn/accel/accel0")?;
    link("sys/dev/char/261:0", "../../devices/platform/rknn/accel/accel0")?;
    for core in CORES {
        let device = format!("sys/devices/platform/{core}.npu");
        let compatible = "rockchip,rk3588-rknn-core";
        file(
            &format!("{device}/uevent"),
            &format!(
                "DRIVER=rocket\nOF_NAME=npu\nOF_FULLNAME=/npu@{core}\nOF_COMPATIBLE_0={compatible}\nOF_COMPATIBLE_N=1\n\
                 MODALIAS=of:NnpuT(null)C{compatible}\n"
            ),
        )?;
        link(&format!("{device}/driver"), "../../../bus/platform/drivers/rocket")?;
        link(&format!("{device}/of_node"), &format!("../../../firmware/devicetree/base/npu@{core}"))?;
        link(
            &format!("sys/bus/platform/drivers/rocket/{core}.npu"),
            &format!("../../../../devices/platform/{core}.npu"),
        )?;
        file(&format!("sys/firmware/devicetree/base/npu@{core}/compatible"), &format!("{compatible}\0"))?;
    }
    file("sys/firmware/devicetree/base/compatible", "radxa,rock-5-itx\0rockchip,rk3588\0")?;
    file("sys/firmware/devicetree/base/model", "Radxa ROCK 5 ITX, simulated\0")?;
    link("proc/device-tree", "../sys/firmware/devicetree/base")?;
    file("sys/module/rocket/initstate", "live\n")?;
    if settings.kernel == Kernel::Cairn {
        let batch = if settings.batch { "Y\n" } else { "N\n" };
        file("sys/module/rocket/parameters/rocket_batch_submit", batch)?;
        file("sys/module/rocket/parameters/rocket_timeout_ms", "500\n")?;
    }
    Ok(())
}

fn put(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    make(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_device_brings_is_served() {
        for path in ["/dev/accel", NODE, "/sys/class/accel/", "/proc/device-tree/compatible"] {
            assert!(is_served(path), "{path}");
        }
        for path in ["/dev/accelerator", "/dev", "/sys/class", "/dev/accel/../sda", "dev/accel", ""] {
            assert!(!is_served(path), "{path}");
        }
    }
}
