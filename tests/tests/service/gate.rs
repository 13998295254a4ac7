//! An NPU that stands still while a gate is closed, so that tests can look at requests that wait.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use npu_device::{BoInfo, Deadline, Device, Driver, DriverInfo, Job, Mapping, Range, Result};

/// A gate; open at first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    closed: bool,
    waiting: usize,
}

impl Gate {
    /// Jobs wait from now on.
    pub(crate) fn close(&self) {
        self.0.0.lock().unwrap().closed = true;
    }

    /// Jobs go on.
    pub(crate) fn open(&self) {
        self.0.0.lock().unwrap().closed = false;
        self.0.1.notify_all();
    }

    /// Jobs that wait now.
    pub(crate) fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().waiting
    }

    fn pass(&self) {
        let mut state = self.0.0.lock().unwrap();
        state.waiting += 1;
        let mut state = self.0.1.wait_while(state, |state| state.closed).unwrap();
        state.waiting -= 1;
    }
}

/// A driver behind a gate.
#[derive(Debug)]
pub(crate) struct Gated<D> {
    pub(crate) driver: D,
    pub(crate) gate: Gate,
}

impl<D: Driver> Driver for Gated<D> {
    fn open(&self) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(GatedDevice { device: self.driver.open()?, gate: self.gate.clone() }))
    }

    fn describe(&self) -> String {
        self.driver.describe()
    }
}

struct GatedDevice {
    device: Arc<dyn Device>,
    gate: Gate,
}

impl fmt::Debug for GatedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.device.fmt(f)
    }
}

impl Device for GatedDevice {
    fn info(&self) -> &DriverInfo {
        self.device.info()
    }

    fn create_bo(&self, bytes: u32) -> Result<BoInfo> {
        self.device.create_bo(bytes)
    }

    fn close_bo(&self, handle: u32) -> Result<()> {
        self.device.close_bo(handle)
    }

    fn map_bo(&self, bo: &BoInfo) -> Result<Mapping> {
        self.device.map_bo(bo)
    }

    fn submit(&self, jobs: &[Job<'_>]) -> Result<()> {
        self.gate.pass();
        self.device.submit(jobs)
    }

    fn prep_bo(&self, handle: u32, deadline: Deadline) -> Result<()> {
        self.device.prep_bo(handle, deadline)
    }

    fn fini_bo(&self, handle: u32) -> Result<()> {
        self.device.fini_bo(handle)
    }

    fn prep_bo_ranges(&self, handle: u32, ranges: &[Range], deadline: Deadline) -> Result<()> {
        self.device.prep_bo_ranges(handle, ranges, deadline)
    }

    fn fini_bo_ranges(&self, handle: u32, ranges: &[Range]) -> Result<()> {
        self.device.fini_bo_ranges(handle, ranges)
    }

    fn now(&self) -> Duration {
        self.device.now()
    }
}
