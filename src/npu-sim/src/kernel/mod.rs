//! The kernel's side: files, buffer objects, the queue of each core, the watchdog and the log.
//!
//! Time is virtual. Every file has its own clock, which only waiting and cache maintenance advance, by the cost model. A
//! job computes while SUBMIT runs, but neither is it *finished* nor is its output in memory before its file's clock has
//! passed its end. What a core owes to other files counts as waiting time, as long as nobody has waited for it.

mod address;
mod file;
mod log;
mod schedule;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use npu_device::{Device, Driver, DriverInfo, FaultMonitor};
use npu_regs::Layout;

use crate::controller::Core;
use crate::cost::CostModel;
use crate::levers::{Lever, Levers};
use crate::{Counters, Fault};
pub use file::{File, Receipt};
use schedule::Scheduler;

/// Newest faults that are kept.
const KEPT_FAULTS: usize = 1000;
/// The offset for mmap of the first buffer object. SOURCE: `DRM_FILE_PAGE_OFFSET_START`.
pub(crate) const FIRST_OFFSET: u64 = 1 << 32;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Options {
    /// The chip.
    pub chip: Layout,
    /// DRM driver version: (0, 0, 0) is stock mainline; extensions come with 1.1, 1.3 and 1.5, see [`DriverInfo`].
    pub version: (i32, i32, i32),
    /// Whether the module parameter switches batched submit off.
    pub batch_switched_off: bool,
    /// Cores. An RK3588 has three, an RK3576 two.
    pub cores: usize,
    /// Whether PREP answers `EIO` for a job that the watchdog killed, as with our kernel patch. Mainline answers success.
    pub reports_failed_jobs: bool,
    /// Whether SUBMIT says why it drops a job, as with our kernel patch. Mainline answers success.
    pub reports_dropped_jobs: bool,
    /// How long things take.
    pub cost: CostModel,
    /// Multiplications, or elements where there are none, that one job may need. A larger job never completes.
    pub work_limit: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            chip: Layout::Rk3588,
            version: (0, 0, 0),
            batch_switched_off: false,
            cores: 3,
            reports_failed_jobs: false,
            reports_dropped_jobs: false,
            cost: CostModel::default(),
            work_limit: 1 << 36,
        }
    }
}

impl Options {
    /// The driver with our kernel patches: it has batched submit, and says which jobs it drops and which failed.
    pub fn batched() -> Self {
        let patched = true;
        Self { version: (1, 3, 0), reports_failed_jobs: patched, reports_dropped_jobs: patched, ..Self::default() }
    }

    /// An RK3576 with the driver of the series that knows it. SOURCE: npu-spec-rk3576 1: interface 1.5, and how long a job
    /// takes at least, as its end is polled for.
    pub fn rk3576() -> Self {
        let cost = CostModel { job: Duration::from_micros(400), ..CostModel::default() };
        Self { chip: Layout::Rk3576, version: (1, 5, 0), cores: 2, cost, ..Self::default() }
    }
}

/// Why a job did not complete, for developers; the driver's user sees a success.
#[derive(Clone, Debug)]
pub struct FaultRecord {
    /// The core.
    pub core: usize,
    /// Which task of the job.
    pub task: usize,
    /// What happened.
    pub fault: Fault,
}

/// A software NPU. Clones are the same NPU.
#[derive(Clone)]
pub struct Simulator {
    shared: Arc<Shared>,
}

struct Shared {
    options: Options,
    info: DriverInfo,
    cores: Vec<Mutex<Core>>,
    scheduler: Mutex<Scheduler>,
    injected: Mutex<Injected>,
    faults: Mutex<VecDeque<FaultRecord>>,
    /// Offsets for mmap, which never repeat.
    next_offset: AtomicU64,
    /// Where jobs compute; nothing for rayon's global threads.
    threads: Option<rayon::ThreadPool>,
}

/// Levers that wait for their job.
#[derive(Default)]
struct Injected {
    /// For the next job of a core, or of any.
    next: Vec<(Option<usize>, Lever)>,
    random: Option<Levers>,
}

impl Injected {
    fn take(&mut self, core: usize, tasks: usize) -> Option<Lever> {
        match self.next.iter().position(|(on, _)| on.is_none_or(|on| on == core)) {
            Some(i) => Some(self.next.remove(i).1),
            None => self.random.as_mut()?.draw(tasks),
        }
    }
}

/// A lock whose holder panicked is still consistent: no step leaves one half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Simulator {
    /// An NPU after power-on.
    pub fn new(options: Options) -> Self {
        Self::with_threads(options, None)
    }

    /// An NPU after power-on that computes on threads of its own: for processes whose global ones may be gone, as they
    /// are after fork.
    ///
    /// # Errors
    /// Threads that cannot be started.
    pub fn isolated(options: Options) -> io::Result<Self> {
        let threads = rayon::ThreadPoolBuilder::new().build().map_err(io::Error::other)?;
        Ok(Self::with_threads(options, Some(threads)))
    }

    fn with_threads(options: Options, threads: Option<rayon::ThreadPool>) -> Self {
        let cores = options.cores.max(1);
        let batch_switched_off = options.batch_switched_off;
        let compatible = Some(options.chip.compatible().into());
        let info = DriverInfo { name: "rocket".into(), version: options.version, batch_switched_off, compatible };
        Self {
            shared: Arc::new(Shared {
                info,
                cores: (0..cores).map(|_| Mutex::default()).collect(),
                scheduler: Mutex::new(Scheduler::new(options.chip, cores)),
                injected: Mutex::default(),
                faults: Mutex::default(),
                next_offset: AtomicU64::new(FIRST_OFFSET),
                threads,
                options,
            }),
        }
    }

    /// Opens a file, as [`Driver::open`] does, with what a host needs beside the trait.
    pub fn open_file(&self) -> File {
        File::open(Arc::clone(&self.shared))
    }

    /// Lets time pass for every open file whose clock shows less than `until`.
    pub fn pass_until(&self, until: Duration) {
        lock(&self.shared.scheduler).pass_until(until);
    }

    /// Spoils the next job.
    pub fn inject(&self, lever: Lever) {
        lock(&self.shared.injected).next.push((None, lever));
    }

    /// Spoils the next job of one core.
    pub fn inject_on(&self, core: usize, lever: Lever) {
        lock(&self.shared.injected).next.push((Some(core), lever));
    }

    /// Spoils jobs by chance from now on, or no longer.
    pub fn inject_random(&self, levers: Option<Levers>) {
        lock(&self.shared.injected).random = levers;
    }

    /// Cycles the power domain: registers are lost, and so is what poisoned a core.
    pub fn power_cycle(&self) {
        for core in &self.shared.cores {
            *lock(core) = Core::default();
        }
    }

    /// Why jobs did not complete, oldest first; the newest thousand.
    pub fn faults(&self) -> Vec<FaultRecord> {
        lock(&self.shared.faults).iter().cloned().collect()
    }

    /// What the kernel logged about the NPU and its IOMMUs.
    pub fn kernel_log(&self) -> Vec<String> {
        lock(&self.shared.scheduler).log.clone()
    }

    /// A monitor of the kernel log from now on.
    pub fn fault_monitor(&self) -> Arc<dyn FaultMonitor> {
        let from = lock(&self.shared.scheduler).log.len();
        Arc::new(Monitor { shared: Arc::clone(&self.shared), from })
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        lock(&self.shared.scheduler).counters.clone()
    }
}

impl Default for Simulator {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Driver for Simulator {
    fn open(&self) -> npu_device::Result<Arc<dyn Device>> {
        Ok(Arc::new(self.open_file()))
    }

    fn describe(&self) -> String {
        let (major, minor, patch) = self.shared.options.version;
        let (chip, cores) = (self.shared.options.chip.name(), self.shared.cores.len());
        format!("simulated {chip} NPU, {cores} cores, driver {major}.{minor}.{patch}")
    }
}

impl fmt::Debug for Simulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Shared {
    fn keep_fault(&self, record: FaultRecord) {
        let mut faults = lock(&self.faults);
        if faults.len() == KEPT_FAULTS {
            faults.pop_front();
        }
        faults.push_back(record);
    }
}

struct Monitor {
    shared: Arc<Shared>,
    from: usize,
}

impl FaultMonitor for Monitor {
    fn faults(&self) -> u64 {
        // CAST: widening.
        (lock(&self.shared.scheduler).log.len() - self.from) as u64
    }

    fn last(&self) -> Option<String> {
        lock(&self.shared.scheduler).log[self.from..].last().cloned()
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").field("from", &self.from).finish_non_exhaustive()
    }
}

/// Time as a clock shows it; a clock that would overflow stands still.
fn later(clock: Duration, by: Duration) -> Duration {
    clock.saturating_add(by)
}
