//! What can go wrong between a program and the driver.

use std::path::PathBuf;

pub use rustix::io::Errno;

/// Result of a device operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A device operation that did not succeed. The cause is the driver's error number.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device node cannot be opened.
    #[error("open {}", path.display())]
    Open {
        /// The node.
        path: PathBuf,
        /// Why.
        #[source]
        source: Errno,
    },
    /// The node belongs to another driver.
    #[error("{} belongs to driver {name:?}, not to rocket", path.display())]
    NotRocket {
        /// The node.
        path: PathBuf,
        /// The driver's name.
        name: String,
    },
    /// A buffer object cannot be created.
    #[error("create a buffer object of {bytes} bytes")]
    CreateBo {
        /// Its size.
        bytes: u32,
        /// Why.
        #[source]
        source: Errno,
    },
    /// The driver put a buffer object where a 32-bit register cannot reach.
    #[error("buffer object of {bytes} bytes at {dma:#x} is outside the NPU's 4 GiB")]
    OutOfReach {
        /// Its size.
        bytes: u32,
        /// Its address.
        dma: u64,
    },
    /// A buffer object cannot be closed.
    #[error("close buffer object {handle}")]
    CloseBo {
        /// Its handle.
        handle: u32,
        /// Why.
        #[source]
        source: Errno,
    },
    /// A buffer object cannot be mapped.
    #[error("map buffer object {handle}")]
    MapBo {
        /// Its handle.
        handle: u32,
        /// Why.
        #[source]
        source: Errno,
    },
    /// Jobs are refused.
    #[error("submit {jobs} jobs")]
    Submit {
        /// How many.
        jobs: usize,
        /// Why.
        #[source]
        source: Errno,
    },
    /// A buffer object does not become readable.
    #[error("wait for buffer object {handle}")]
    PrepBo {
        /// Its handle.
        handle: u32,
        /// Why.
        #[source]
        source: Errno,
    },
    /// What the CPU wrote cannot be passed to the device.
    #[error("hand buffer object {handle} to the device")]
    FiniBo {
        /// Its handle.
        handle: u32,
        /// Why.
        #[source]
        source: Errno,
    },
    /// The kernel log cannot be read.
    #[error("read the kernel log")]
    KernelLog {
        /// Why.
        #[source]
        source: Errno,
    },
}

impl Error {
    /// The driver's error number.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::NotRocket { .. } | Self::OutOfReach { .. } => None,
            Self::Open { source, .. }
            | Self::CreateBo { source, .. }
            | Self::CloseBo { source, .. }
            | Self::MapBo { source, .. }
            | Self::Submit { source, .. }
            | Self::PrepBo { source, .. }
            | Self::FiniBo { source, .. }
            | Self::KernelLog { source } => Some(*source),
        }
    }

    /// Whether a wait ended because its deadline passed.
    pub fn is_timeout(&self) -> bool {
        matches!(self.errno(), Some(Errno::TIMEDOUT | Errno::BUSY))
    }
}
