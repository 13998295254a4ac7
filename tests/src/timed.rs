//! A driver whose files measure how long they are inside the device, so that what a library adds can be told from it.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use npu_device::{BoInfo, Deadline, Device, Driver, DriverInfo, Job, Mapping, Range, Result};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static ENTERED: Cell<bool> = const { Cell::new(false) };
    static SPENT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Whether this thread was inside the device before, and is not now: a thread of what drives it.
pub fn outside() -> bool {
    ENTERED.get() && !INSIDE.get()
}

/// How long this thread was inside so far.
pub fn spent() -> Duration {
    SPENT.get()
}

/// Opens files of another driver.
#[derive(Debug)]
pub struct Timed<D>(pub D);

#[derive(Debug)]
struct File(Arc<dyn Device>);

impl<D: Driver> Driver for Timed<D> {
    fn open(&self) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(File(self.0.open()?)))
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

fn timed<R>(call: impl FnOnce() -> R) -> R {
    let begin = Instant::now();
    INSIDE.set(true);
    ENTERED.set(true);
    let result = call();
    INSIDE.set(false);
    SPENT.set(SPENT.get() + begin.elapsed());
    result
}

impl Device for File {
    fn info(&self) -> &DriverInfo {
        self.0.info()
    }

    fn create_bo(&self, bytes: u32) -> Result<BoInfo> {
        timed(|| self.0.create_bo(bytes))
    }

    fn close_bo(&self, handle: u32) -> Result<()> {
        timed(|| self.0.close_bo(handle))
    }

    fn map_bo(&self, bo: &BoInfo) -> Result<Mapping> {
        timed(|| self.0.map_bo(bo))
    }

    fn submit(&self, jobs: &[Job<'_>]) -> Result<()> {
        timed(|| self.0.submit(jobs))
    }

    fn prep_bo(&self, handle: u32, deadline: Deadline) -> Result<()> {
        timed(|| self.0.prep_bo(handle, deadline))
    }

    fn fini_bo(&self, handle: u32) -> Result<()> {
        timed(|| self.0.fini_bo(handle))
    }

    fn prep_bo_ranges(&self, handle: u32, ranges: &[Range], deadline: Deadline) -> Result<()> {
        timed(|| self.0.prep_bo_ranges(handle, ranges, deadline))
    }

    fn fini_bo_ranges(&self, handle: u32, ranges: &[Range]) -> Result<()> {
        timed(|| self.0.fini_bo_ranges(handle, ranges))
    }

    fn now(&self) -> Duration {
        timed(|| self.0.now())
    }
}
