//! What the machine has to give: memory, cores, GPUs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::process::Command;
use tracing::warn;

/// How long the server may take to list devices.
// TIMEOUT: the first look at a GPU compiles shaders; a driver that hangs must not keep the daemon from starting.
const LISTING: Duration = Duration::from_secs(60);
/// Bytes of a mebibyte.
const MIB: u64 = 1 << 20;

/// A GPU, as llama.cpp sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gpu {
    /// Name for the server's arguments, for example `Vulkan0`.
    pub(crate) name: String,
    /// What it is.
    pub(crate) description: String,
    /// Bytes that are free in its heap.
    pub(crate) free_bytes: u64,
}

/// Bytes that programs can still have. SOURCE: proc(5), MemAvailable.
pub(crate) fn available_bytes(root: &Path) -> Result<u64> {
    let file = root.join("proc/meminfo");
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib =
        line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|number| number.trim().parse::<u64>().ok());
    kib.and_then(|kib| kib.checked_mul(1024)).with_context(|| format!("{} has no MemAvailable", file.display()))
}

/// The cores of the largest capacity, where the kernel says that they differ; else none, and any will do.
/// SOURCE: Documentation/ABI/testing/sysfs-devices-system-cpu, cpu_capacity; RK3588: 1024 for its A76, 530 for its A55.
pub(crate) fn fast_cores(root: &Path) -> Vec<usize> {
    let mut capacities = Vec::new();
    let entries = fs::read_dir(root.join("sys/devices/system/cpu")).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix("cpu").and_then(|number| number.parse::<usize>().ok());
        let capacity = fs::read_to_string(entry.path().join("cpu_capacity")).ok();
        let capacity = capacity.and_then(|text| text.trim().parse::<u64>().ok());
        capacities.extend(number.zip(capacity));
    }
    let largest = capacities.iter().map(|&(_, capacity)| capacity).max();
    let all_alike = capacities.iter().all(|&(_, capacity)| Some(capacity) == largest);
    let fast = capacities.into_iter().filter(|&(_, capacity)| Some(capacity) == largest && !all_alike);
    let mut cores: Vec<usize> = fast.map(|(core, _)| core).collect();
    cores.sort_unstable();
    cores
}

/// Asks the server which GPUs it can use. It runs in a process of its own: a driver that crashes or hangs there costs us
/// the GPU and nothing else.
///
/// # Errors
/// A server that cannot be started.
pub(crate) async fn gpus(server: &Path) -> Result<Vec<Gpu>> {
    let mut command = Command::new(server);
    command.arg("--list-devices").kill_on_drop(true);
    let Ok(output) = tokio::time::timeout(LISTING, command.output()).await else {
        warn!("the GPU is left out: devices were not listed within {LISTING:?}");
        return Ok(Vec::new());
    };
    let output = output.with_context(|| format!("start {}", server.display()))?;
    if !output.status.success() {
        warn!(status = %output.status, "the GPU is left out: devices cannot be listed");
        return Ok(Vec::new());
    }
    Ok(parse_gpus(&String::from_utf8_lossy(&output.stdout)))
}

/// Lines such as `  Vulkan0: Mali-G610 (15991 MiB, 15000 MiB free)`. SOURCE: common_print_available_devices, arg.cpp.
fn parse_gpus(text: &str) -> Vec<Gpu> {
    let gpu = |line: &str| {
        let (name, rest) = line.strip_prefix("  ")?.split_once(": ")?;
        let (description, sizes) = rest.rsplit_once(" (")?;
        let free = sizes.strip_suffix(" MiB free)")?.rsplit_once(", ")?.1.parse::<u64>().ok()?;
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_name.then(|| Gpu { name: name.to_owned(), description: description.to_owned(), free_bytes: free * MIB })
    };
    text.lines().filter_map(gpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_available_is_read_in_bytes() {
        let root = tempfile::tempdir().unwrap();
        available_bytes(root.path()).unwrap_err();
        fs::create_dir(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/meminfo"), "MemTotal:  8 kB\nMemAvailable:       4 kB\n").unwrap();
        assert_eq!(available_bytes(root.path()).unwrap(), 4096);
        fs::write(root.path().join("proc/meminfo"), "MemTotal:  8 kB\n").unwrap();
        available_bytes(root.path()).unwrap_err();
    }

    fn cores(capacities: &[&str]) -> Vec<usize> {
        let root = tempfile::tempdir().unwrap();
        for (core, capacity) in capacities.iter().enumerate() {
            let folder = root.path().join(format!("sys/devices/system/cpu/cpu{core}"));
            fs::create_dir_all(&folder).unwrap();
            if !capacity.is_empty() {
                fs::write(folder.join("cpu_capacity"), capacity).unwrap();
            }
        }
        fast_cores(root.path())
    }

    #[test]
    fn the_fast_cores_are_those_of_the_largest_capacity() {
        assert_eq!(cores(&["530\n", "530", "530", "530", "1024", "1024", "1024", "1024"]), [4, 5, 6, 7]);
        // Where they do not differ, or nobody says.
        assert_eq!(cores(&["1024", "1024"]), [0; 0]);
        assert_eq!(cores(&["", ""]), [0; 0]);
        assert_eq!(fast_cores(Path::new("/nowhere")), [0; 0]);
    }

    #[tokio::test]
    async fn a_driver_that_crashes_costs_the_gpu_alone() {
        gpus(Path::new("/nowhere/llama-server")).await.unwrap_err();
        // Whatever it is given, it ends with a failure.
        assert_eq!(gpus(Path::new("/bin/false")).await.unwrap(), []);
    }

    #[test]
    fn devices_are_read_as_the_server_lists_them() {
        let text = "load_backend: loaded\nAvailable devices:\n  Vulkan0: llvmpipe (LLVM 15.0.6, 256 bits) (23999 MiB, 12 MiB free)\n  x\n";
        let description = "llvmpipe (LLVM 15.0.6, 256 bits)".to_owned();
        assert_eq!(parse_gpus(text), [Gpu { name: "Vulkan0".into(), description, free_bytes: 12 * MIB }]);
        assert_eq!(parse_gpus("Available devices:\n"), []);
    }
}
