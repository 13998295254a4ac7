//! Who runs when: one queue per core, one scheduler entity and one clock per file.
//!
//! SOURCE: npu-spec 8.3; `drm_sched_entity_select_rq`: an idle entity takes the core with the fewest jobs, an entity with
//! unfinished jobs stays where it is.

use std::collections::HashMap;
use std::time::Duration;

use npu_device::{Deadline, Errno};
use npu_regs::Layout;

use super::{later, log};
use crate::controller::{Outcome, watchdog};
use crate::{Counters, Fault};

/// Number of a file.
pub(super) type FileId = u64;

/// A job that its file has not seen finished.
#[derive(Debug)]
struct Entry {
    file: FileId,
    /// On the file's clock.
    start: Duration,
    end: Duration,
    lines: Vec<log::Line>,
}

#[derive(Debug, Default)]
struct Queue {
    entries: Vec<Entry>,
    /// Jobs that are being computed.
    reserved: usize,
}

/// State that all files share.
#[derive(Debug)]
pub(super) struct Scheduler {
    chip: Layout,
    clocks: HashMap<FileId, Duration>,
    next_file: FileId,
    queues: Vec<Queue>,
    pub(super) log: Vec<String>,
    pub(super) counters: Counters,
}

impl Scheduler {
    pub(super) fn new(chip: Layout, cores: usize) -> Self {
        Self {
            chip,
            clocks: HashMap::new(),
            next_file: 0,
            queues: (0..cores).map(|_| Queue::default()).collect(),
            log: Vec::new(),
            counters: Counters::new(cores),
        }
    }

    /// A new file, whose clock starts.
    pub(super) fn open(&mut self) -> FileId {
        self.next_file += 1;
        self.clocks.insert(self.next_file, Duration::ZERO);
        self.next_file
    }

    /// Closing waits for what runs.
    pub(super) fn close(&mut self, file: FileId) {
        let entries = self.queues.iter().flat_map(|queue| &queue.entries);
        let end = entries.filter(|entry| entry.file == file).map(|entry| entry.end).max();
        if let Some(end) = end {
            self.advance(file, end);
        }
        self.clocks.remove(&file);
    }

    pub(super) fn now(&self, file: FileId) -> Duration {
        self.clocks[&file]
    }

    /// The core of the file's next job, which must be [`Scheduler::push`]ed.
    pub(super) fn pick(&mut self, file: FileId) -> usize {
        let busy = |queue: &Queue| queue.entries.iter().any(|entry| entry.file == file);
        let load = |queue: &Queue| queue.entries.len() + queue.reserved;
        let sticky = self.queues.iter().position(busy);
        let least = || (0..self.queues.len()).min_by_key(|&core| load(&self.queues[core]));
        // PANIC: there is at least one core.
        let core = sticky.or_else(least).expect("a core");
        self.queues[core].reserved += 1;
        core
    }

    /// Whether another core than the picked one is at work.
    pub(super) fn others_work(&self, core: usize) -> bool {
        let busy = |queue: &Queue| queue.reserved > 0 || !queue.entries.is_empty();
        self.queues.iter().enumerate().any(|(other, queue)| other != core && busy(queue))
    }

    /// Forgets a pick whose job was not queued.
    pub(super) fn unpick(&mut self, core: usize) {
        self.queues[core].reserved -= 1;
    }

    /// Queues a job on the picked core and returns when, on the file's clock, it ends.
    pub(super) fn push(&mut self, file: FileId, core: usize, outcome: &Outcome) -> Duration {
        let queue = &mut self.queues[core];
        queue.reserved -= 1;
        let mut start = self.clocks[&file];
        for entry in &queue.entries {
            start = match entry.file == file {
                true => start.max(entry.end),
                false => later(start, left(entry, self.clocks.get(&entry.file))),
            };
        }
        let end = later(start, outcome.time);
        let fault = outcome.fault.as_ref().map(|(_, fault)| fault);
        let lines = fault.map_or_else(Vec::new, |fault| log::lines(self.chip, core, fault));
        let lines = lines.into_iter().map(|(after, text)| (later(start, after), text)).collect();
        queue.entries.push(Entry { file, start, end, lines });
        self.counters.count_job(core, outcome, watchdog(self.chip));
        end
    }

    /// Waits until `until` on the file's clock, or until the deadline.
    pub(super) fn wait(&mut self, file: FileId, until: Duration, deadline: Deadline) -> Result<(), Errno> {
        let now = self.clocks[&file];
        if until <= now {
            return Ok(());
        }
        match deadline {
            Deadline::At(at) if at <= now => Err(Errno::BUSY),
            Deadline::At(at) if at < until => {
                self.advance(file, at);
                Err(Errno::TIMEDOUT)
            }
            Deadline::At(_) | Deadline::Never => {
                self.advance(file, until);
                Ok(())
            }
        }
    }

    /// Lets time pass for every file until its clock shows `until`.
    pub(super) fn pass_until(&mut self, until: Duration) {
        let late = self.clocks.iter().filter(|(_, clock)| **clock < until).map(|(file, _)| *file);
        for file in late.collect::<Vec<_>>() {
            self.advance(file, until);
        }
    }

    /// Lets time pass for the file.
    pub(super) fn pass(&mut self, file: FileId, time: Duration) {
        self.advance(file, later(self.clocks[&file], time));
    }

    fn advance(&mut self, file: FileId, to: Duration) {
        self.clocks.insert(file, to);
        for queue in &mut self.queues {
            // A core works in order: what stands before a finished job is finished.
            let done = queue.entries.iter().rposition(|entry| entry.file == file && entry.end <= to);
            let finished = queue.entries.drain(..done.map_or(0, |i| i + 1));
            self.log.extend(finished.flat_map(|entry| entry.lines).map(|(_, text)| text));
            for entry in queue.entries.iter_mut().filter(|entry| entry.file == file) {
                let seen = entry.lines.iter().take_while(|(at, _)| *at <= to).count();
                self.log.extend(entry.lines.drain(..seen).map(|(_, text)| text));
            }
        }
    }
}

/// How long a job of another file keeps its core busy.
fn left(entry: &Entry, clock: Option<&Duration>) -> Duration {
    entry.end.saturating_sub(clock.map_or(entry.start, |clock| entry.start.max(*clock)))
}

impl Counters {
    fn count_job(&mut self, core: usize, outcome: &Outcome, most: Duration) {
        self.jobs += 1;
        self.hung_jobs += u64::from(outcome.fault.is_some());
        self.kicks += outcome.kicks;
        self.tasks += outcome.tasks;
        self.interrupts += outcome.kicks - u64::from(outcome.fault.is_some() && outcome.kicks > 0);
        self.macs += outcome.work.macs;
        self.bytes_read += outcome.work.bytes_read;
        self.bytes_written += outcome.work.bytes_written;
        self.busy[core] = later(self.busy[core], outcome.time.min(most));
    }
}

/// What a driver that reports failed jobs says of one. SOURCE: our kernel patch, which turns any fence error into EIO.
pub(super) fn error_of(fault: Option<&Fault>) -> Option<Errno> {
    fault.map(|_| Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn job(time: Duration) -> Outcome {
        Outcome { time, ..Outcome::default() }
    }

    fn submit(scheduler: &mut Scheduler, file: FileId, time: Duration) -> (usize, Duration) {
        let core = scheduler.pick(file);
        (core, scheduler.push(file, core, &job(time)))
    }

    #[test]
    fn a_file_stays_on_its_core_while_jobs_are_queued() {
        let mut scheduler = Scheduler::new(Layout::Rk3588, 3);
        let (a, b) = (scheduler.open(), scheduler.open());
        assert_eq!(submit(&mut scheduler, a, MS), (0, MS));
        assert_eq!(submit(&mut scheduler, a, MS), (0, 2 * MS));
        assert_eq!(submit(&mut scheduler, b, MS), (1, MS));
        scheduler.wait(a, 2 * MS, Deadline::Never).unwrap();
        assert_eq!(submit(&mut scheduler, b, MS), (1, 2 * MS));
        assert_eq!(submit(&mut scheduler, a, MS), (0, 3 * MS));
    }

    #[test]
    fn one_core_makes_files_wait_for_each_other() {
        let mut scheduler = Scheduler::new(Layout::Rk3588, 1);
        let (a, b) = (scheduler.open(), scheduler.open());
        submit(&mut scheduler, a, 5 * MS);
        assert_eq!(submit(&mut scheduler, b, MS), (0, 6 * MS));
        scheduler.wait(b, 6 * MS, Deadline::Never).unwrap();
        assert_eq!(submit(&mut scheduler, b, MS), (0, 7 * MS), "what stood before b's job is finished");
    }

    #[test]
    fn a_deadline_ends_a_wait_and_the_job_stays_pending() {
        let mut scheduler = Scheduler::new(Layout::Rk3588, 1);
        let a = scheduler.open();
        let (_, end) = submit(&mut scheduler, a, 5 * MS);
        assert_eq!(scheduler.wait(a, end, Deadline::POLL), Err(Errno::BUSY));
        assert_eq!(scheduler.wait(a, end, Deadline::At(2 * MS)), Err(Errno::TIMEDOUT));
        assert_eq!(scheduler.now(a), 2 * MS);
        assert_eq!(scheduler.wait(a, end, Deadline::At(6 * MS)), Ok(()));
        assert_eq!(scheduler.now(a), 5 * MS);
    }

    #[test]
    fn the_log_speaks_when_the_clock_reaches_the_line() {
        let mut scheduler = Scheduler::new(Layout::Rk3588, 1);
        let a = scheduler.open();
        let core = scheduler.pick(a);
        let hung = Outcome { time: watchdog(Layout::Rk3588), fault: Some((0, Fault::Injected)), ..Outcome::default() };
        let end = scheduler.push(a, core, &hung);
        let _ = scheduler.wait(a, end, Deadline::At(450 * MS));
        assert!(scheduler.log.is_empty());
        scheduler.close(a);
        assert_eq!(scheduler.log, ["rocket fdab0000.npu: NPU job timed out"]);
    }
}
