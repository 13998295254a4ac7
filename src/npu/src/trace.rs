//! What a program can learn of the calls of a context: an event for each, and counts over all.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Distrust, RunError, RunReport};

/// A call that ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// What was computed: `matmul`, `pool`, `elementwise`.
    pub operation: &'static str,
    /// How it ended.
    pub outcome: Result<&'a RunReport, &'a RunError>,
}

/// What is told of every call, on the thread that called. The library itself logs nothing.
///
/// ```
/// # use npu::{Options, Trace};
/// let trace = Trace::new(|event| eprintln!("{}: {:?}", event.operation, event.outcome));
/// let options = Options { trace: Some(trace), ..Options::default() };
/// # let _ = options;
/// ```
#[derive(Clone)]
pub struct Trace(Arc<dyn Fn(&Event<'_>) + Send + Sync>);

impl Trace {
    /// Calls `hook` after every call.
    pub fn new(hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    pub(crate) fn tell(&self, event: &Event<'_>) {
        (self.0)(event);
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trace")
    }
}

impl PartialEq for Trace {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Trace {}

/// What the calls of a context added up to. Calls that were refused before they reached the device do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Calls whose result was handed out.
    pub trusted: u64,
    /// Calls whose result could not be verified.
    pub untrusted: u64,
    /// Calls that gave up at their deadline.
    pub deadlines: u64,
    /// Calls that the device refused.
    pub refused: u64,
    /// Jobs of the calls that ended.
    pub jobs: u64,
    /// Tasks of the calls that ended.
    pub tasks: u64,
    /// Waits that reached the slow mark.
    pub slow_waits: u64,
    /// The longest wait.
    pub longest_wait: Duration,
    /// Marks that the hardware did not overwrite.
    pub sentinels: u64,
}

impl Counters {
    /// Counts a call.
    pub(crate) fn count(&mut self, outcome: Result<&RunReport, &RunError>) {
        match outcome {
            Ok(report) => {
                self.trusted += 1;
                self.add(report);
            }
            Err(RunError::Untrusted { reason, report }) => {
                self.untrusted += 1;
                if let Distrust::Sentinels { count, .. } = reason {
                    // CAST: widening.
                    self.sentinels += *count as u64;
                }
                self.add(report);
            }
            Err(RunError::Deadline { .. }) => self.deadlines += 1,
            Err(RunError::Device { .. }) => self.refused += 1,
            Err(_) => {}
        }
    }

    fn add(&mut self, report: &RunReport) {
        // CAST: widening.
        self.jobs += report.jobs as u64;
        self.tasks += report.tasks as u64;
        // CAST: widening.
        self.slow_waits += report.waits.slow as u64;
        self.longest_wait = self.longest_wait.max(report.waits.longest);
    }
}
