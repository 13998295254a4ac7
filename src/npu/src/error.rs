//! What can go wrong between a description of a network and its result.

use std::time::Duration;

use npu_regs::FieldError;

/// Result of a planning operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the NPU cannot do an operation. The text goes into the model's report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Unsupported {
    /// What exceeds which limit, for people.
    pub what: String,
}

impl Unsupported {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into() }
    }
}

/// A network that cannot be planned or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A layer does not fit the hardware.
    #[error("layer {layer}")]
    Layer {
        /// Index of the layer in the order of the builder's calls.
        layer: usize,
        /// Why.
        #[source]
        source: Unsupported,
    },
    /// The device does not understand the programs of the chip that was planned for.
    #[error("the device is {found}, which does not run programs of the {chip}")]
    WrongChip {
        /// What was planned for.
        chip: &'static str,
        /// What the device's core is called.
        found: String,
    },
    /// There is nothing to run.
    #[error("the network has no {0}")]
    Empty(&'static str),
    /// A register cannot hold a planned value: a fault of the planner.
    #[error("task {task}")]
    Register {
        /// Index of the task.
        task: usize,
        /// Which register.
        #[source]
        source: FieldError,
    },
    /// A buffer would be larger than the NPU's address space allows.
    #[error("the {what} need {bytes} bytes")]
    TooLarge {
        /// Which buffer.
        what: &'static str,
        /// Its size.
        bytes: u64,
    },
    /// The device refuses a buffer.
    #[error("{what}")]
    Device {
        /// What was attempted.
        what: &'static str,
        /// Why.
        #[source]
        source: npu_device::Error,
    },
    /// The system has no thread for a worker.
    #[error("start a thread")]
    Thread(#[source] std::io::Error),
}

/// A run without a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The caller's buffers do not fit the network or the product.
    #[error("{what} {index} has {found} bytes, {expected} are needed")]
    Size {
        /// Which operand: `input` of a network.
        what: &'static str,
        /// Which one.
        index: usize,
        /// Bytes found.
        found: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// The caller's lists do not fit the network or the product.
    #[error("{found} {what} given, {expected} are needed")]
    Count {
        /// `inputs` or `outputs`.
        what: &'static str,
        /// How many were given.
        found: usize,
        /// How many are needed.
        expected: usize,
    },
    /// The operation cannot be planned, or its operands do not fit it.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A number that the datatype does not hold.
    #[error("element {index} of the {what} is outside its datatype")]
    Value {
        /// Which operand.
        what: &'static str,
        /// Which element.
        index: usize,
    },
    /// The deadline passed before the jobs ended. They may still run.
    #[error("the deadline passed while {jobs} jobs ran")]
    Deadline {
        /// Jobs that were waited for.
        jobs: usize,
    },
    /// The jobs ended, and the result cannot be verified.
    #[error("the result cannot be trusted: {reason}")]
    Untrusted {
        /// Why.
        reason: Distrust,
        /// What was measured.
        report: Box<RunReport>,
    },
    /// The device refuses.
    #[error("{what}")]
    Device {
        /// What was attempted.
        what: &'static str,
        /// Why.
        #[source]
        source: npu_device::Error,
    },
    /// The thread of a worker panicked: a fault of the library, or of what implements the device.
    #[error("a worker panicked: {0}")]
    Panicked(String),
}

/// Why a result cannot be verified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Distrust {
    /// A job took so long that the watchdog may have ended it.
    #[error("a job took {wait:?}, at least the slow mark of {mark:?}")]
    Slow {
        /// The longest wait.
        wait: Duration,
        /// The mark.
        mark: Duration,
    },
    /// Memory that the hardware must write still holds what was there before.
    #[error("{count} sentinels survived, the first in {first}")]
    Sentinels {
        /// How many.
        count: usize,
        /// The first one.
        first: MissingSentinel,
    },
}

/// Where the hardware did not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("layer {layer}, task {task}, plane {plane}, pixel {pixel}")]
pub struct MissingSentinel {
    /// Layer; 0 in a product.
    pub layer: usize,
    /// Task of the network or of the product's worker.
    pub task: usize,
    /// Plane of the output.
    pub plane: usize,
    /// Pixel of the plane.
    pub pixel: usize,
}

/// What a run measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunReport {
    /// Jobs.
    pub jobs: usize,
    /// Tasks.
    pub tasks: usize,
    /// How long the jobs were waited for.
    pub waits: Waits,
    /// Where the hardware did not write; the first few.
    pub missing_sentinels: Vec<MissingSentinel>,
}

/// What waits for jobs add up to, on the device's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waits {
    /// How many; jobs that share a fence are one.
    pub count: usize,
    /// All of them.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
    /// How many reached the slow mark.
    pub slow: usize,
}

impl Waits {
    /// Adds a wait.
    pub(crate) fn push(&mut self, wait: Duration, slow_mark: Duration) {
        self.add(Self { count: 1, total: wait, longest: wait, slow: usize::from(wait >= slow_mark) });
    }

    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.total += other.total;
        self.longest = self.longest.max(other.longest);
        self.slow += other.slow;
    }
}

impl RunReport {
    /// Adds what another worker, or another part of the work, measured.
    pub(crate) fn add(&mut self, other: Self) {
        self.jobs += other.jobs;
        self.tasks += other.tasks;
        self.waits.add(other.waits);
        self.missing_sentinels.extend(other.missing_sentinels);
    }
}

impl From<Error> for RunError {
    fn from(error: Error) -> Self {
        match error {
            Error::Layer { source, .. } => source.into(),
            Error::Device { what, source } => Self::Device { what, source },
            Error::WrongChip { .. }
            | Error::Empty(_)
            | Error::Register { .. }
            | Error::TooLarge { .. }
            | Error::Thread(_) => Unsupported::new(error.to_string()).into(),
        }
    }
}
