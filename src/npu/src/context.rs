//! Workers on the NPU's cores: as many open files, each with its queue and its memory.

use std::sync::Arc;
use std::time::Duration;

use npu_device::{Bo, Deadline, Device, Driver};

use crate::affinity;
use crate::chip::Chip;
use crate::error::{Result, RunError, RunReport, Unsupported};
use crate::matmul::Planned;
use crate::matmul::work::Loaded;
use crate::options::Options;
use crate::run::{BURST_SLACK, SMALL, failed, refused, waiting};
use crate::trace::{Counters, Event};

/// Open files of one NPU and the memory that operations keep on them.
///
/// The kernel runs the jobs of one file on one core at a time, so as many cores work at once as a context has files. Each
/// holds its part of the second factor and a copy of the first, as files do not share memory. Scratch memory grows to what the
/// largest operation needed and stays.
#[derive(Debug)]
pub struct Context {
    pub(crate) chip: Chip,
    pub(crate) options: Options,
    pub(crate) workers: Vec<Worker>,
    /// Where their threads run, in turn.
    cpus: Vec<usize>,
    counters: Counters,
    /// What was planned last, the latest at the end.
    pub(crate) planned: Vec<Planned>,
}

impl Context {
    /// Opens [`Options::workers`] files, at least one.
    ///
    /// # Errors
    /// [`crate::Error::Device`] where the driver refuses, [`crate::Error::WrongChip`] where the device is another chip.
    pub fn open(driver: &dyn Driver, chip: &Chip, options: Options) -> Result<Self> {
        let open = |_| driver.open().map_err(failed("open a file"));
        let devices = (0..options.workers.max(1)).map(open).collect::<Result<Vec<_>>>()?;
        Self::new(&devices, chip, options)
    }

    /// Takes files that are open already, one worker each.
    ///
    /// # Errors
    /// [`crate::Error::Device`] where a device refuses, [`crate::Error::WrongChip`] where one is another chip,
    /// [`crate::Error::Empty`] without any.
    pub fn new(devices: &[Arc<dyn Device>], chip: &Chip, options: Options) -> Result<Self> {
        if devices.is_empty() {
            return Err(crate::Error::Empty("workers"));
        }
        devices.iter().try_for_each(|device| chip.drives(device.info()))?;
        let workers = devices.iter().map(Worker::new).collect::<Result<Vec<_>>>()?;
        let cpus = options.affinity.cpus();
        Ok(Self { chip: chip.clone(), options, workers, cpus, counters: Counters::default(), planned: Vec::new() })
    }

    /// How operations run.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The chip that is planned for.
    pub fn chip(&self) -> &Chip {
        &self.chip
    }

    /// What calls added up to so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Counts a call that reached the device, and tells of it.
    pub(crate) fn record(
        &mut self,
        operation: &'static str,
        outcome: Result<RunReport, RunError>,
    ) -> Result<RunReport, RunError> {
        self.counters.count(outcome.as_ref());
        if let Some(trace) = &self.options.trace {
            trace.tell(&Event { operation, outcome: outcome.as_ref() });
        }
        outcome
    }

    /// Runs `work` for each part on a worker of its own: the first on this thread, the others on threads on their CPUs. Where
    /// cores must not work at once, one after the other.
    pub(crate) fn on_workers<P: Send, R: Send>(
        &mut self,
        parts: impl IntoIterator<Item = P>,
        work: impl Fn(&mut Worker, P, &Options, Duration) -> R + Sync,
    ) -> Vec<R> {
        let Self { options, workers, chip, cpus, .. } = self;
        let (options, mark, work) = (&*options, chip.slow_mark, &work);
        if !chip.parallel {
            return workers.iter_mut().zip(parts).map(|(worker, part)| work(worker, part, options, mark)).collect();
        }
        let cpu = |worker: usize| cpus.get((options.affinity_base + worker) % cpus.len().max(1)).copied();
        let mut pairs = workers.iter_mut().zip(parts).enumerate();
        std::thread::scope(|scope| {
            let here = pairs.next();
            let spawn = |(number, (worker, part))| {
                let cpu = cpu(number);
                scope.spawn(move || {
                    cpu.into_iter().for_each(affinity::pin);
                    work(worker, part, options, mark)
                })
            };
            let threads: Vec<_> = pairs.map(spawn).collect();
            let here = here.map(|(_, (worker, part))| work(worker, part, options, mark));
            // PANIC: a panic of a worker is one of this call.
            let there = threads.into_iter().map(|thread| thread.join().expect("a worker panicked"));
            here.into_iter().chain(there).collect()
        })
    }

    /// Bytes of device memory that the context holds, without resident weights.
    pub fn device_bytes(&self) -> u64 {
        self.workers.iter().map(Worker::device_bytes).sum()
    }
}

/// One open file and its scratch memory.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) device: Arc<dyn Device>,
    /// Address 0, so that no operand has it. QUIRK(Q31).
    _guard: Bo,
    pub(crate) features: Scratch,
    pub(crate) weights: Scratch,
    /// Of rounds in turn, so that one is read while the other runs.
    pub(crate) results: [Scratch; 2],
    pub(crate) programs: Scratch,
    /// Register programs of one call; those of products stay.
    pub(crate) short_programs: Scratch,
    /// Whose register programs lie in memory.
    pub(crate) loaded: Option<Loaded>,
    pub(crate) runs: u64,
    /// A call gave up: its jobs may still run.
    pub(crate) unsettled: bool,
}

impl Worker {
    fn new(device: &Arc<dyn Device>) -> Result<Self> {
        Ok(Self {
            device: Arc::clone(device),
            _guard: Bo::new(device, SMALL).map_err(failed("allocate the guard"))?,
            features: Scratch::default(),
            weights: Scratch::default(),
            results: Default::default(),
            programs: Scratch::default(),
            short_programs: Scratch::default(),
            loaded: None,
            runs: 0,
            unsettled: false,
        })
    }

    /// Waits for what a call that gave up left behind, before its memory is used again.
    pub(crate) fn settle(&mut self, deadline: Deadline) -> Result<(), RunError> {
        if !self.unsettled {
            return Ok(());
        }
        for bo in self.results.iter_mut().filter_map(|scratch| scratch.0.as_mut()) {
            bo.overwrite(None, deadline).map(drop).map_err(waiting(0))?;
        }
        self.unsettled = false;
        Ok(())
    }

    fn device_bytes(&self) -> u64 {
        let [first, second] = &self.results;
        let scratch = [&self.features, &self.weights, first, second, &self.programs, &self.short_programs];
        let bytes = scratch.iter().filter_map(|scratch| scratch.0.as_ref()).map(|bo| u64::from(bo.bytes()));
        u64::from(SMALL) + bytes.sum::<u64>()
    }
}

/// A buffer that grows when it is too small.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Option<Bo>);

impl Scratch {
    /// At least `bytes`, and what bursts may read beyond. What it held is lost where it grows.
    pub(crate) fn at_least(
        &mut self,
        device: &Arc<dyn Device>,
        what: &'static str,
        bytes: usize,
    ) -> Result<&mut Bo, RunError> {
        let needed = u32::try_from(bytes + BURST_SLACK)
            .map_err(|_| Unsupported::new(format!("the {what} need {bytes} bytes, more than the NPU can address")))?;
        if self.0.as_ref().is_none_or(|bo| bo.bytes() < needed) {
            // What is there goes first, so that both need not fit.
            self.0 = None;
            self.0 = Some(Bo::new(device, needed).map_err(refused(what))?);
        }
        // PANIC: just made, where it was missing.
        Ok(self.0.as_mut().expect("the buffer was made"))
    }

    /// The buffer that [`Scratch::at_least`] made.
    pub(crate) fn get(&mut self) -> &mut Bo {
        // PANIC: a call makes all buffers before it uses one.
        self.0.as_mut().expect("the buffer was made")
    }
}

/// Fills a buffer that no job writes.
pub(crate) fn fill(bo: &mut Bo, what: &'static str, put: impl FnOnce(&mut [u8])) -> Result<(), RunError> {
    let mut access = bo.access(Deadline::POLL).map_err(refused(what))?;
    put(&mut access);
    access.finish().map_err(refused(what))
}
