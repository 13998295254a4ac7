//! Workers on the NPU's cores: as many open files, each with its queue and its memory.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use npu_device::{Bo, Deadline, Device, Driver, Hand};

use crate::affinity;
use crate::chip::Chip;
use crate::error::{Error, Result, RunError, RunReport, Unsupported};
use crate::matmul::Planned;
use crate::matmul::work::Loaded;
use crate::options::Options;
use crate::rows::Rows;
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
    /// Threads of all workers but the first, which has the caller's. None where cores must not work at once.
    hands: Vec<Hand>,
    /// What is left of a call's rows while they are shared.
    pub(crate) rest: Rows,
    counters: Counters,
    /// What was planned last, the latest at the end.
    pub(crate) planned: Vec<Planned>,
}

impl Context {
    /// Opens [`Options::workers`] files, at least one.
    ///
    /// # Errors
    /// [`Error::Device`] where the driver refuses, [`Error::WrongChip`] where the device is another chip,
    /// [`Error::Thread`] where the system has none for each worker.
    pub fn open(driver: &dyn Driver, chip: &Chip, options: Options) -> Result<Self> {
        let open = |_| driver.open().map_err(failed("open a file"));
        let devices = (0..options.workers.max(1)).map(open).collect::<Result<Vec<_>>>()?;
        Self::new(&devices, chip, options)
    }

    /// Takes files that are open already, one worker each.
    ///
    /// # Errors
    /// As [`Context::open`], and [`Error::Empty`] without any.
    pub fn new(devices: &[Arc<dyn Device>], chip: &Chip, options: Options) -> Result<Self> {
        if devices.is_empty() {
            return Err(Error::Empty("workers"));
        }
        devices.iter().try_for_each(|device| chip.drives(device.info()))?;
        let workers = devices.iter().map(Worker::new).collect::<Result<Vec<_>>>()?;
        let hands = if chip.parallel { hands(devices.len(), &options)? } else { Vec::new() };
        let (counters, rest, planned) = (Counters::default(), Rows::default(), Vec::new());
        Ok(Self { chip: chip.clone(), options, workers, hands, rest, counters, planned })
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

    /// Refuses weights that lie in parts on `devices` unless each part has its worker here, so that none is left out.
    pub(crate) fn check_own<'a>(
        &self,
        devices: impl ExactSizeIterator<Item = &'a Arc<dyn Device>>,
    ) -> Result<(), Unsupported> {
        let (parts, workers) = (devices.len(), self.workers.len());
        if devices.zip(&self.workers).any(|(device, worker)| !Arc::ptr_eq(device, &worker.device)) {
            return Err(Unsupported::new("the weights belong to another context"));
        }
        if parts > workers {
            return Err(Unsupported::new(format!("weights of {parts} workers, the context has {workers}")));
        }
        Ok(())
    }

    /// Runs `work` for each part on a worker of its own: the first on this thread, the others on theirs. Where cores must not
    /// work at once, one after the other. `deal`, on this thread, gives each worker its part until there is none.
    pub(crate) fn on_workers<P: Send>(
        &mut self,
        mut deal: impl FnMut(usize, &mut Worker) -> Option<P>,
        work: impl Fn(&mut Worker, P, &Options, Duration) -> Result<RunReport, RunError> + Sync,
    ) -> Result<RunReport, RunError> {
        let Self { options, workers, chip, hands, .. } = self;
        let (options, mark) = (&*options, chip.slow_mark);
        let mut workers = workers.iter_mut().enumerate();
        let mut dealt = std::iter::from_fn(move || {
            let (index, worker) = workers.next()?;
            deal(index, worker).map(|part| (worker, part))
        });
        let work = |(worker, part): (&mut Worker, P)| work(worker, part, options, mark);
        dealt.next().map_or_else(|| Ok(RunReport::default()), |first| spread(hands, first, &mut dealt, &work))
    }

    /// Fills lines of `length` values, each by its number, on the threads of all workers.
    pub(crate) fn fill_lines<V: Send>(
        &mut self,
        values: &mut [V],
        length: usize,
        fill: impl Fn(usize, &mut [V]) + Sync,
    ) -> Result<(), RunError> {
        let each = (values.len() / length).div_ceil(self.workers.len()).max(1);
        let mut shares = values.chunks_mut(each * length).enumerate();
        let work = |_: &mut Worker, (share, values): (usize, &mut [V]), _: &Options, _| {
            let lines = values.chunks_exact_mut(length).enumerate();
            lines.for_each(|(line, values)| fill(share * each + line, values));
            Ok(RunReport::default())
        };
        self.on_workers(|_, _| shares.next(), work).map(drop)
    }

    /// Bytes of device memory that the context holds, without resident weights.
    pub fn device_bytes(&self) -> u64 {
        self.workers.iter().map(Worker::device_bytes).sum()
    }
}

/// The threads of all workers but the first, on their CPUs.
fn hands(workers: usize, options: &Options) -> Result<Vec<Hand>> {
    let cpus = options.affinity.cpus();
    let hand = |worker: usize| {
        let mut hand = Hand::new(&format!("npu-worker-{worker}")).map_err(Error::Thread)?;
        if let Some(cpu) = cpus.get((options.affinity_base + worker) % cpus.len().max(1)) {
            // A hint, so nothing depends on how it ends.
            let _ = hand.join(|| affinity::pin(*cpu), || ()).0;
        }
        Ok(hand)
    };
    (1..workers).map(hand).collect()
}

/// Runs `work` for `here` on this thread, and for what else was dealt on the hands; or here, where there are none.
fn spread<T: Send>(
    hands: &mut [Hand],
    here: T,
    dealt: &mut dyn Iterator<Item = T>,
    work: &(dyn Fn(T) -> Result<RunReport, RunError> + Sync),
) -> Result<RunReport, RunError> {
    let (mut report, other) = match (dealt.next(), hands.split_first_mut()) {
        (None, _) => return work(here),
        (Some(next), None) => (work(here)?, spread(hands, next, dealt, work)?),
        (Some(next), Some((hand, hands))) => {
            let (there, here) = hand.join(|| work(next), || spread(hands, here, dealt, work));
            (here?, there.map_err(panicked)??)
        }
    };
    report.add(other);
    Ok(report)
}

/// What a thread said when it panicked.
fn panicked(payload: Box<dyn Any + Send>) -> RunError {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    RunError::Panicked(text.unwrap_or_else(|| "without a text".to_owned()))
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
    /// Where a call's results go.
    pub(crate) rows: Rows,
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
            rows: Rows::default(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn report(tasks: usize) -> RunReport {
        RunReport { tasks, ..RunReport::default() }
    }

    #[test]
    fn every_part_is_done_once_and_the_first_by_the_caller() {
        let mut three = hands(4, &Options::default()).unwrap();
        let caller = std::thread::current().id();
        for hands in [&mut three[..], &mut []] {
            for parts in 1..=hands.len() + 1 {
                let work = |part: usize| {
                    let here = std::thread::current().id() == caller;
                    assert!(here || part > 0);
                    Ok(report(1 << part))
                };
                let total = spread(hands, 0, &mut (1..parts), &work).unwrap();
                assert_eq!(total, report((1 << parts) - 1));
            }
        }
    }

    #[test]
    fn an_error_or_a_panic_of_a_worker_is_an_error_of_the_call() {
        let mut hands = hands(3, &Options::default()).unwrap();
        let fails = |part| match part {
            1 => Err(Unsupported::new("part 1").into()),
            _ => Ok(report(part)),
        };
        assert_eq!(spread(&mut hands, 0, &mut (1..3), &fails).unwrap_err().to_string(), "part 1");
        let panics = |part| if part == 2 { panic!("part {part}") } else { Ok(report(part)) };
        let error = spread(&mut hands, 0, &mut (1..3), &panics).unwrap_err();
        assert_eq!(error.to_string(), "a worker panicked: part 2");
        assert_eq!(spread(&mut hands, 1, &mut (2..4), &|part| Ok(report(part))).unwrap(), report(6));
    }
}
