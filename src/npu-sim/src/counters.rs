//! What a simulator did so far.

use std::fmt;
use std::time::Duration;

/// Counts of work. Times are those of the cost model, never the host's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Jobs that were queued.
    pub jobs: u64,
    /// Jobs that SUBMIT accepted and dropped.
    pub dropped_jobs: u64,
    /// Jobs that the watchdog retired.
    pub hung_jobs: u64,
    /// Times that the kernel started a core.
    pub kicks: u64,
    /// Tasks that completed.
    pub tasks: u64,
    /// Completion interrupts.
    pub interrupts: u64,
    /// Multiplications of the MAC array, those with padding included.
    pub macs: u64,
    /// Bytes that cores read.
    pub bytes_read: u64,
    /// Bytes that cores wrote.
    pub bytes_written: u64,
    /// Bytes of cache maintenance towards the CPU.
    pub prep_bytes: u64,
    /// Bytes of cache maintenance towards the device.
    pub fini_bytes: u64,
    /// Time that each core was busy, by the cost model.
    pub busy: Vec<Duration>,
}

impl Counters {
    pub(crate) fn new(cores: usize) -> Self {
        Self { busy: vec![Duration::ZERO; cores], ..Self::default() }
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "jobs {} (dropped {}, hung {})", self.jobs, self.dropped_jobs, self.hung_jobs)?;
        writeln!(f, "kicks {}, tasks {}, interrupts {}", self.kicks, self.tasks, self.interrupts)?;
        writeln!(f, "MACs {}, bytes read {}, written {}", self.macs, self.bytes_read, self.bytes_written)?;
        writeln!(f, "bytes prepared {}, finished {}", self.prep_bytes, self.fini_bytes)?;
        write!(f, "busy by the cost model, which is no measurement: {:?}", self.busy)
    }
}
