//! The seam between everything that drives an NPU and what is driven.
//!
//! [`Device`] mirrors the ioctls of `rocket_accel.h` and nothing above them: one value is one open file, with its own
//! address space and its own queue. [`kernel::Rocket`] is the kernel driver; the simulator implements the same trait.
//! [`Bo`] is a buffer object that frees itself.
//!
//! ```text
//! Driver::open ─▶ Device ─▶ Bo (create, map) ─▶ Access (prep … fini) ─▶ submit ─▶ Access (wait)
//! ```
//!
//! SOURCE: npu-spec 8; `include/uapi/drm/rocket_accel.h` of Linux 6.18.

pub mod abi;
mod bo;
mod error;
mod hand;
pub mod kernel;
pub mod kmsg;
mod mapping;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use bo::{Access, Bo};
pub use error::{Errno, Error, Result};
pub use hand::Hand;
pub use mapping::Mapping;

/// Opens files of one NPU.
pub trait Driver: Send + Sync + fmt::Debug {
    /// Opens a file: a fresh address space and queue.
    ///
    /// # Errors
    /// [`Error::Open`] where the node is missing or busy, [`Error::NotRocket`] where another driver owns it.
    fn open(&self) -> Result<Arc<dyn Device>>;

    /// What is driven, for people: a path or a description. Nothing may decide by it.
    fn describe(&self) -> String;
}

/// Tells how many times the kernel complained about the NPU or its IOMMUs.
///
/// The driver reports a hung job as success, so a caller compares the count before a job with the count after it.
pub trait FaultMonitor: Send + Sync + fmt::Debug {
    /// Error lines of the NPU and its IOMMUs in the kernel log since the monitor was made.
    fn faults(&self) -> u64;

    /// The newest such line, for reports.
    fn last(&self) -> Option<String>;
}

/// One open file of the driver.
///
/// Every method may be called from any thread. Jobs of one file run in submission order, on one core at a time.
pub trait Device: Send + Sync + fmt::Debug {
    /// What the driver said of itself when the file was opened.
    fn info(&self) -> &DriverInfo;

    /// Creates a buffer object of at least `bytes`, zero-filled and mapped for the device.
    ///
    /// # Errors
    /// [`Error::CreateBo`], with `ENOMEM` or `ENOSPC` where memory or address space is used up.
    fn create_bo(&self, bytes: u32) -> Result<BoInfo>;

    /// Closes a buffer object. Jobs that use it keep it alive.
    ///
    /// # Errors
    /// [`Error::CloseBo`] for a handle that is not open.
    fn close_bo(&self, handle: u32) -> Result<()>;

    /// Maps a buffer object for the CPU.
    ///
    /// # Errors
    /// [`Error::MapBo`].
    fn map_bo(&self, bo: &BoInfo) -> Result<Mapping>;

    /// Queues jobs in order.
    ///
    /// Success does not mean that a job was queued: mainline drops a malformed job and returns 0.
    ///
    /// # Errors
    /// [`Error::Submit`].
    fn submit(&self, jobs: &[Job<'_>]) -> Result<()>;

    /// Waits for the jobs that write a buffer object, then makes it readable for the CPU.
    ///
    /// Success does not mean that a job succeeded: mainline reports a hung job as finished after 500 ms.
    ///
    /// # Errors
    /// [`Error::PrepBo`], with `ETIMEDOUT` or `EBUSY` where the deadline passed and `ENOENT` for a foreign handle.
    fn prep_bo(&self, handle: u32, deadline: Deadline) -> Result<()>;

    /// Makes what the CPU wrote visible to the device.
    ///
    /// # Errors
    /// [`Error::FiniBo`].
    fn fini_bo(&self, handle: u32) -> Result<()>;

    /// As [`Device::prep_bo`], but only `ranges` become readable. Needs [`DriverInfo::has_ranged_sync`].
    ///
    /// # Errors
    /// As [`Device::prep_bo`].
    fn prep_bo_ranges(&self, handle: u32, ranges: &[Range], deadline: Deadline) -> Result<()>;

    /// As [`Device::fini_bo`], but only for `ranges`. Needs [`DriverInfo::has_ranged_sync`].
    ///
    /// # Errors
    /// As [`Device::fini_bo`].
    fn fini_bo_ranges(&self, handle: u32, ranges: &[Range]) -> Result<()>;

    /// The time on the clock that deadlines refer to: `CLOCK_MONOTONIC` for the kernel.
    ///
    /// A simulator has a clock of its own, so that a slow host does not look like a slow job. How long a job took is
    /// therefore always measured with this method.
    fn now(&self) -> Duration;
}

/// What a driver says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverInfo {
    /// DRM driver name, `rocket`.
    pub name: String,
    /// DRM driver version: major, minor, patch level. Mainline says 0.0.0.
    pub version: (i32, i32, i32),
    /// Whether the module parameter `rocket_batch_submit` is off.
    pub batch_switched_off: bool,
    /// What the device tree calls a core, `rockchip,rk3588-rknn-core`; nothing where that cannot be read.
    pub compatible: Option<String>,
}

impl DriverInfo {
    /// Whether a job may be one kick of many tasks. SOURCE: npu-spec 8.5.
    pub fn has_batched_submit(&self) -> bool {
        !self.batch_switched_off && self.at_least(1, 1)
    }

    /// Whether a job may complete by the pooling unit's interrupt.
    pub fn has_ppu_done(&self) -> bool {
        self.at_least(1, 3)
    }

    /// Whether PREP and FINI exist for ranges.
    pub fn has_ranged_sync(&self) -> bool {
        self.at_least(1, 5)
    }

    fn at_least(&self, major: i32, minor: i32) -> bool {
        (self.version.0, self.version.1) >= (major, minor)
    }
}

/// A buffer object as the driver describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoInfo {
    /// The file's handle.
    pub handle: u32,
    /// Size in bytes, as asked for.
    pub bytes: u32,
    /// Address in the NPU's address space of this file.
    pub dma: u32,
    /// Offset for `mmap`.
    pub map_offset: u64,
}

/// One register program in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// DMA address of the first command word, a multiple of 16.
    pub dma: u32,
    /// Command words.
    pub words: u32,
}

/// Tasks that run back to back on one core and complete together.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The tasks, in order.
    pub tasks: &'a [Task],
    /// Handles of buffer objects whose writers are waited for.
    pub inputs: &'a [u32],
    /// Handles of buffer objects that the job writes. A handle listed twice drops the job silently (Q29).
    pub outputs: &'a [u32],
    /// How the job runs. Only with a driver that has the extension.
    pub flags: JobFlags,
}

/// Flags of a job. SOURCE: npu-spec 8.5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobFlags {
    /// One kick for all tasks; the register programs chain themselves.
    pub batched: bool,
    /// Do not wait for the DPU's interrupt.
    pub no_dpu_done: bool,
    /// Completion is the pooling unit's interrupt.
    pub ppu_done: bool,
}

/// A part of a buffer object, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

/// When a wait ends, on the clock of [`Device::now`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deadline {
    /// At this time. A time that has passed polls.
    At(Duration),
    /// Never.
    Never,
}

impl Deadline {
    /// Does not wait.
    pub const POLL: Self = Self::At(Duration::ZERO);

    /// `after` from now on `device`'s clock.
    pub fn after(device: &dyn Device, after: Duration) -> Self {
        Self::At(device.now().saturating_add(after))
    }

    /// Nanoseconds for the ioctl; what does not fit waits for ever.
    pub(crate) fn nanos(self) -> i64 {
        match self {
            Self::At(at) => i64::try_from(at.as_nanos()).unwrap_or(i64::MAX),
            Self::Never => i64::MAX,
        }
    }
}

impl From<u64> for Deadline {
    /// Nanoseconds on the device's clock; `u64::MAX` means never.
    fn from(nanos: u64) -> Self {
        match nanos {
            u64::MAX => Self::Never,
            _ => Self::At(Duration::from_nanos(nanos)),
        }
    }
}
