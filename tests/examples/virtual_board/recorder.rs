//! A device that passes everything on and remembers jobs and buffers, so that they can be submitted again, spoiled.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use npu_device::{BoInfo, Deadline, Device, DriverInfo, Job, JobFlags, Mapping, Range, Result, Task};

/// A job with everything that it points to.
#[derive(Clone, Debug)]
pub(crate) struct OwnedJob {
    pub(crate) tasks: Vec<Task>,
    pub(crate) inputs: Vec<u32>,
    pub(crate) outputs: Vec<u32>,
    pub(crate) flags: JobFlags,
}

impl OwnedJob {
    pub(crate) fn submit(&self, device: &dyn Device) -> Result<()> {
        let Self { tasks, inputs, outputs, flags } = self;
        device.submit(&[Job { tasks, inputs, outputs, flags: *flags }])
    }
}

/// The device.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) inner: Arc<dyn Device>,
    seen: Mutex<(Vec<BoInfo>, Option<OwnedJob>)>,
}

impl Recorder {
    pub(crate) fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { inner, seen: Mutex::default() })
    }

    /// The newest job.
    pub(crate) fn last(&self) -> OwnedJob {
        self.seen.lock().unwrap().1.clone().unwrap()
    }

    /// The memory at an address of the device, and the handle of its buffer.
    pub(crate) fn memory(&self, dma: u32) -> (Mapping, u32) {
        let seen = self.seen.lock().unwrap();
        let bo = seen.0.iter().find(|bo| (bo.dma..bo.dma + bo.bytes).contains(&dma)).unwrap();
        (self.inner.map_bo(bo).unwrap(), bo.handle)
    }
}

impl Device for Recorder {
    fn info(&self) -> &DriverInfo {
        self.inner.info()
    }

    fn create_bo(&self, bytes: u32) -> Result<BoInfo> {
        let bo = self.inner.create_bo(bytes)?;
        self.seen.lock().unwrap().0.push(bo);
        Ok(bo)
    }

    fn close_bo(&self, handle: u32) -> Result<()> {
        self.seen.lock().unwrap().0.retain(|bo| bo.handle != handle);
        self.inner.close_bo(handle)
    }

    fn map_bo(&self, bo: &BoInfo) -> Result<Mapping> {
        self.inner.map_bo(bo)
    }

    fn submit(&self, jobs: &[Job<'_>]) -> Result<()> {
        let newest = jobs.last().map(|job| OwnedJob {
            tasks: job.tasks.to_vec(),
            inputs: job.inputs.to_vec(),
            outputs: job.outputs.to_vec(),
            flags: job.flags,
        });
        self.seen.lock().unwrap().1 = newest;
        self.inner.submit(jobs)
    }

    fn prep_bo(&self, handle: u32, deadline: Deadline) -> Result<()> {
        self.inner.prep_bo(handle, deadline)
    }

    fn fini_bo(&self, handle: u32) -> Result<()> {
        self.inner.fini_bo(handle)
    }

    fn prep_bo_ranges(&self, handle: u32, ranges: &[Range], deadline: Deadline) -> Result<()> {
        self.inner.prep_bo_ranges(handle, ranges, deadline)
    }

    fn fini_bo_ranges(&self, handle: u32, ranges: &[Range]) -> Result<()> {
        self.inner.fini_bo_ranges(handle, ranges)
    }

    fn now(&self) -> Duration {
        self.inner.now()
    }
}
