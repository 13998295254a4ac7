//! The kernel's rocket driver behind the seam.

use std::fs::{self, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::time::ClockId;

use crate::{BoInfo, Deadline, Device, Driver, DriverInfo, Errno, Error, Job, Mapping, Range, Result, abi};

/// Where the module parameter of the batched extension stands; absent on mainline. SOURCE: npu-spec 8.5.
const BATCH_PARAMETER: &str = "/sys/module/rocket/parameters/rocket_batch_submit";

/// The cores that the driver has, one link each, beside its own files.
const CORES: &str = "/sys/bus/platform/drivers/rocket";

/// Where the nodes of all accelerators are. SOURCE: accel_devnode, drivers/accel/drm_accel.c.
const NODES: &str = "/dev/accel";

/// The kernel driver.
#[derive(Clone, Debug)]
pub struct Rocket {
    place: Place,
}

/// Where its node is.
#[derive(Clone, Debug)]
enum Place {
    Node(PathBuf),
    /// One of the nodes in this folder.
    Folder(PathBuf),
}

impl Rocket {
    /// The driver at `node`, `/dev/accel/accel0` on a board with one accelerator.
    pub fn at(node: impl Into<PathBuf>) -> Self {
        Self { place: Place::Node(node.into()) }
    }

    /// The driver at whichever node is its own, looked for at each opening: the kernel numbers the nodes of all
    /// accelerators in the order in which they come, and come again.
    pub fn anywhere() -> Self {
        Self::within(NODES)
    }

    fn within(folder: impl Into<PathBuf>) -> Self {
        Self { place: Place::Folder(folder.into()) }
    }
}

impl Driver for Rocket {
    fn open(&self) -> Result<Arc<dyn Device>> {
        let file = match &self.place {
            Place::Node(node) => File::open(node),
            Place::Folder(folder) => find(folder),
        };
        Ok(Arc::new(file?))
    }

    fn describe(&self) -> String {
        let (Place::Node(path) | Place::Folder(path)) = &self.place;
        path.display().to_string()
    }
}

/// The first node that is rocket's. Where none can be opened, the error is that of a node that might have been.
fn find(folder: &Path) -> Result<File> {
    let open = |error: std::io::Error| Error::Open {
        path: folder.into(),
        source: Errno::from_io_error(&error).unwrap_or(Errno::IO),
    };
    let mut nodes: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(open)? {
        nodes.push(entry.map_err(open)?.path());
    }
    nodes.sort();
    let mut why = Error::Open { path: folder.into(), source: Errno::NODEV };
    for node in nodes {
        match File::open(&node) {
            Ok(file) => return Ok(file),
            Err(Error::NotRocket { .. }) => {}
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// One open file.
#[derive(Debug)]
struct File {
    fd: OwnedFd,
    info: DriverInfo,
}

impl File {
    fn open(node: &Path) -> Result<Self> {
        // Through the C library, as every call here, so that a preload library can stand in for the kernel.
        let opened = OpenOptions::new().read(true).write(true).open(node);
        let fd = OwnedFd::from(opened.map_err(|error| {
            let source = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Error::Open { path: node.into(), source }
        })?);
        let (name, version) = version(&fd).map_err(|source| Error::Open { path: node.into(), source })?;
        if name != "rocket" {
            return Err(Error::NotRocket { path: node.into(), name });
        }
        let parameter = fs::read_to_string(BATCH_PARAMETER).unwrap_or_default();
        let batch_switched_off = matches!(parameter.trim(), "0" | "N");
        let compatible = compatible(Path::new(CORES));
        Ok(Self { fd, info: DriverInfo { name, version, batch_switched_off, compatible } })
    }

    fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

/// What the device tree calls the first core of the driver in `folder`.
fn compatible(folder: &Path) -> Option<String> {
    let mut cores: Vec<PathBuf> = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    cores.sort();
    // A list of names, each with a NUL behind it, the most exact one first.
    let names = cores.iter().find_map(|core| fs::read_to_string(core.join("of_node/compatible")).ok())?;
    names.split('\0').next().map(str::to_owned)
}

fn version(fd: &OwnedFd) -> Result<(String, (i32, i32, i32)), Errno> {
    let mut name = [0_u8; 32];
    let mut version = abi::Version {
        major: 0,
        minor: 0,
        patchlevel: 0,
        name_len: name.len(),
        name: name.as_mut_ptr().cast(),
        date_len: 0,
        date: std::ptr::null_mut(),
        desc_len: 0,
        desc: std::ptr::null_mut(),
    };
    // SAFETY: the struct is the kernel's, and the name's room is as long as it says.
    unsafe { abi::version(fd.as_raw_fd(), &raw mut version) }.map_err(errno)?;
    let len = version.name_len.min(name.len());
    let name = String::from_utf8_lossy(&name[..len]).into_owned();
    Ok((name, (version.major, version.minor, version.patchlevel)))
}

/// nix's error number as rustix's.
fn errno(error: nix::errno::Errno) -> Errno {
    Errno::from_raw_os_error(error as i32)
}

/// Calls until no signal interrupts. Deadlines are absolute, so a repeated call waits no longer than the first.
///
/// Any result that is not negative is success: 6.18 returned the remaining time from PREP_BO.
fn retry(mut call: impl FnMut() -> nix::Result<i32>) -> Result<(), Errno> {
    loop {
        match call() {
            Ok(_) => return Ok(()),
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(errno(error)),
        }
    }
}

/// Length of a list for the kernel.
fn count<T>(list: &[T]) -> Result<u32, Errno> {
    u32::try_from(list.len()).map_err(|_| Errno::INVAL)
}

/// Address of a list for the kernel.
fn pointer<T>(list: &[T]) -> u64 {
    // CAST: user pointers have at most 64 bits.
    list.as_ptr().expose_provenance() as u64
}

fn flags(job: &Job<'_>) -> u32 {
    let bit = |set, bit| if set { bit } else { 0 };
    bit(job.flags.batched, abi::BATCHED)
        | bit(job.flags.no_dpu_done, abi::NO_DPU_DONE)
        | bit(job.flags.ppu_done, abi::PPU_DONE)
}

fn ranges(list: &[Range]) -> Vec<abi::BoRange> {
    list.iter().map(|range| abi::BoRange { offset: range.offset, size: range.bytes }).collect()
}

impl Device for File {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn create_bo(&self, bytes: u32) -> Result<BoInfo> {
        let mut bo = abi::CreateBo { size: bytes, ..Default::default() };
        // SAFETY: the struct is the kernel's and lives through the call.
        let created = retry(|| unsafe { abi::create_bo(self.fd(), &raw mut bo) });
        created.map_err(|source| Error::CreateBo { bytes, source })?;
        let Ok(dma) = u32::try_from(bo.dma_address) else {
            // The address is the error; the handle goes either way.
            let _ = self.close_bo(bo.handle);
            return Err(Error::OutOfReach { bytes, dma: bo.dma_address });
        };
        Ok(BoInfo { handle: bo.handle, bytes, dma, map_offset: bo.offset })
    }

    fn close_bo(&self, handle: u32) -> Result<()> {
        let close = abi::GemClose { handle, pad: 0 };
        // SAFETY: the struct is the kernel's and lives through the call.
        retry(|| unsafe { abi::gem_close(self.fd(), &raw const close) })
            .map_err(|source| Error::CloseBo { handle, source })
    }

    fn map_bo(&self, bo: &BoInfo) -> Result<Mapping> {
        // CAST: widening on every target with an NPU.
        Mapping::of_file(&self.fd, bo.map_offset, bo.bytes as usize)
            .map_err(|source| Error::MapBo { handle: bo.handle, source })
    }

    fn submit(&self, jobs: &[Job<'_>]) -> Result<()> {
        let error = |source| Error::Submit { jobs: jobs.len(), source };
        // The kernel's task struct has the layout of ours, but ours promises none.
        let tasks: Vec<Vec<abi::Task>> = jobs
            .iter()
            .map(|job| job.tasks.iter().map(|task| abi::Task { regcmd: task.dma, regcmd_count: task.words }).collect())
            .collect();
        let mut list = Vec::with_capacity(jobs.len());
        for (job, tasks) in jobs.iter().zip(&tasks) {
            list.push(abi::Job {
                tasks: pointer(tasks),
                in_bo_handles: pointer(job.inputs),
                out_bo_handles: pointer(job.outputs),
                task_count: count(tasks).map_err(error)?,
                task_struct_size: size_of::<abi::Task>() as u32, // CAST: eight.
                in_bo_handle_count: count(job.inputs).map_err(error)?,
                out_bo_handle_count: count(job.outputs).map_err(error)?,
                flags: flags(job),
                reserved: 0,
            });
        }
        let submit = abi::Submit {
            jobs: pointer(&list),
            job_count: count(&list).map_err(error)?,
            job_struct_size: size_of::<abi::Job>() as u32, // CAST: forty-eight.
            reserved: 0,
        };
        // SAFETY: every list that the struct points to lives through the call.
        retry(|| unsafe { abi::submit(self.fd(), &raw const submit) }).map_err(error)
    }

    fn prep_bo(&self, handle: u32, deadline: Deadline) -> Result<()> {
        let prep = abi::PrepBo { handle, reserved: 0, timeout_ns: deadline.nanos() };
        // SAFETY: the struct is the kernel's and lives through the call.
        retry(|| unsafe { abi::prep_bo(self.fd(), &raw const prep) }).map_err(|source| Error::PrepBo { handle, source })
    }

    fn fini_bo(&self, handle: u32) -> Result<()> {
        let fini = abi::FiniBo { handle, reserved: 0 };
        // SAFETY: the struct is the kernel's and lives through the call.
        retry(|| unsafe { abi::fini_bo(self.fd(), &raw const fini) }).map_err(|source| Error::FiniBo { handle, source })
    }

    fn prep_bo_ranges(&self, handle: u32, list: &[Range], deadline: Deadline) -> Result<()> {
        let error = |source| Error::PrepBo { handle, source };
        let list = ranges(list);
        let prep = abi::PrepBoRanges {
            handle,
            range_count: count(&list).map_err(error)?,
            ranges: pointer(&list),
            timeout_ns: deadline.nanos(),
            reserved: 0,
        };
        // SAFETY: the list that the struct points to lives through the call.
        retry(|| unsafe { abi::prep_bo_ranges(self.fd(), &raw const prep) }).map_err(error)
    }

    fn fini_bo_ranges(&self, handle: u32, list: &[Range]) -> Result<()> {
        let error = |source| Error::FiniBo { handle, source };
        let list = ranges(list);
        let fini = abi::FiniBoRanges {
            handle,
            range_count: count(&list).map_err(error)?,
            ranges: pointer(&list),
            reserved: 0,
        };
        // SAFETY: the list that the struct points to lives through the call.
        retry(|| unsafe { abi::fini_bo_ranges(self.fd(), &raw const fini) }).map_err(error)
    }

    fn now(&self) -> Duration {
        // PANIC: every Linux has this clock.
        ClockId::CLOCK_MONOTONIC.now().expect("the machine has a monotonic clock").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_node_is_named() {
        let error = Rocket::at("/nonexistent/accel0").open().unwrap_err();
        assert_eq!(error.to_string(), "open /nonexistent/accel0");
        assert_eq!(error.errno(), Some(Errno::NOENT));
    }

    #[test]
    fn a_node_of_another_driver_is_refused() {
        let error = Rocket::at("/dev/null").open().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::NOTTY));
    }

    #[test]
    fn a_folder_without_a_node_of_rocket_is_named_or_the_node_that_might_have_been() {
        let folder = std::env::temp_dir().join(format!("npu-device-nodes-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let driver = Rocket::within(&folder);
        let error = driver.open().unwrap_err();
        assert_eq!((error.to_string(), error.errno()), (driver_error(&folder), Some(Errno::NOENT)));
        fs::create_dir(&folder).unwrap();
        let error = driver.open().unwrap_err();
        assert_eq!((error.to_string(), error.errno()), (driver_error(&folder), Some(Errno::NODEV)));
        std::os::unix::fs::symlink("/dev/null", folder.join("accel0")).unwrap();
        let error = driver.open().unwrap_err();
        assert_eq!((error.to_string(), error.errno()), (driver_error(&folder.join("accel0")), Some(Errno::NOTTY)));
        fs::remove_dir_all(&folder).unwrap();
    }

    fn driver_error(path: &Path) -> String {
        format!("open {}", path.display())
    }

    #[test]
    fn the_device_tree_says_which_chip_it_is() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(compatible(folder.path()), None);
        fs::write(folder.path().join("bind"), "").unwrap();
        for (core, names) in
            [("27708000.npu", "other\0"), ("27700000.npu", "rockchip,rk3576-rknn-core\0rockchip,npu\0")]
        {
            let node = folder.path().join(core).join("of_node");
            fs::create_dir_all(&node).unwrap();
            fs::write(node.join("compatible"), names).unwrap();
        }
        assert_eq!(compatible(folder.path()).as_deref(), Some("rockchip,rk3576-rknn-core"));
        assert_eq!(compatible(&folder.path().join("nothing")), None);
    }

    #[test]
    fn an_interrupted_call_is_repeated_and_a_positive_result_is_success() {
        let mut results = [Err(nix::errno::Errno::EINTR), Ok(417)].into_iter();
        assert_eq!(retry(|| results.next().unwrap()), Ok(()));
        assert_eq!(retry(|| Err(nix::errno::Errno::ETIMEDOUT)), Err(Errno::TIMEDOUT));
    }

    #[test]
    fn never_is_the_largest_time() {
        assert_eq!(Deadline::from(u64::MAX).nanos(), i64::MAX);
        assert_eq!(Deadline::from(u64::MAX - 1).nanos(), i64::MAX);
        assert_eq!(Deadline::POLL.nanos(), 0);
    }
}
