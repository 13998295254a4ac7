//! One job of a worker that is no product: marks, register programs, submit, wait, verify.

use std::ops::Range;
use std::time::Duration;

use npu_device::{Deadline, Job, JobFlags, Task};
use npu_regs::{Link, Program};

use crate::chip::Chip;
use crate::context::{Worker, fill};
use crate::error::{MissingSentinel, RunError, RunReport, Unsupported, Waits};
use crate::layout::ATOM;
use crate::options::Options;
use crate::run::{NAMED, distrust, refused, waiting};
use crate::sentinel::nan_mark;

/// What register programs are aligned to.
const ALIGNMENT: usize = 64;
/// Bytes of a command word.
const WORD: usize = 8;

/// A job under way.
#[derive(Debug)]
pub(crate) struct Started {
    deadline: Deadline,
    since: Duration,
    mark: [u8; ATOM],
    tasks: Vec<Task>,
    flags: JobFlags,
}

/// What a task must write: a name for reports, and where in the results.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) task: usize,
    /// The first plane.
    pub(crate) plane: usize,
    /// Atoms of a plane.
    pub(crate) pixels: usize,
    pub(crate) bytes: Range<usize>,
}

impl Worker {
    /// Begins a job: waits for what a call that gave up left behind, and marks `bytes` of the results.
    pub(crate) fn begin(&mut self, bytes: usize, options: &Options) -> Result<Started, RunError> {
        self.runs += 1;
        let mark = nan_mark(self.runs);
        let deadline = Deadline::after(&*self.device, options.deadline);
        self.settle(deadline)?;
        self.results[0].at_least(&self.device, "results", bytes)?;
        let mut memory = self.results[0].get().overwrite(None, deadline).map_err(waiting(0))?;
        memory[..bytes].as_chunks_mut().0.fill(mark);
        memory.finish().map_err(refused("hand the results to the device"))?;
        let (since, tasks, flags) = (Duration::ZERO, Vec::new(), JobFlags::default());
        Ok(Started { deadline, since, mark, tasks, flags })
    }

    /// Makes the programs one job and submits it. `ppu_done`: the last task ends in the pooling unit.
    pub(crate) fn submit(
        &mut self,
        started: &mut Started,
        programs: &mut [Program],
        ppu_done: bool,
        options: &Options,
    ) -> Result<(), RunError> {
        let words = programs.iter().map(|program| program.words().len()).max().unwrap_or(0);
        let stride = (words * WORD).next_multiple_of(ALIGNMENT);
        let base = self.short_programs.at_least(&self.device, "register programs", programs.len() * stride)?.dma();
        // CAST: the buffer was made, so what lies in it has 32 bits.
        let dma = |index: usize| base.wrapping_add((index * stride) as u32);
        let batched = options.batched && self.device.info().has_batched_submit();
        let mut tasks = Vec::with_capacity(programs.len());
        for index in 0..programs.len() {
            // A driver that starts every task itself must not be given links.
            if let Some(next) = programs.get(index + 1).filter(|_| batched) {
                let next = Link { dma: dma(index + 1), words: next.words().len() };
                let register = |error| Unsupported::new(format!("task {index}: {error}"));
                programs[index].link(next).map_err(register)?;
            }
            // CAST: tens of words.
            tasks.push(Task { dma: dma(index), words: programs[index].words().len() as u32 });
        }
        fill(self.short_programs.get(), "write the register programs", |memory| {
            for (program, memory) in programs.iter().zip(memory.chunks_exact_mut(stride)) {
                memory.fill(0);
                memory.iter_mut().zip(program.bytes()).for_each(|(to, byte)| *to = byte);
            }
        })?;
        self.unsettled = true;
        (started.since, started.tasks) = (self.device.now(), tasks);
        started.flags = JobFlags { batched, ppu_done, ..JobFlags::default() };
        self.kick(started)
    }

    fn kick(&mut self, started: &Started) -> Result<(), RunError> {
        let inputs = [self.features.get().handle(), self.short_programs.get().handle()];
        let outputs = [self.results[0].get().handle()];
        let (tasks, flags) = (&started.tasks[..], started.flags);
        // QUIRK(Q29): every handle once, and no handle in both lists.
        let job = Job { tasks, inputs: &inputs, outputs: &outputs, flags };
        self.device.submit(&[job]).map_err(refused("submit a job"))
    }

    /// Waits for a job, verifies what its tasks must have written, and shows it to `unpack`.
    pub(crate) fn finish(
        &mut self,
        started: &Started,
        written: impl Iterator<Item = Written>,
        chip: &Chip,
        unpack: impl FnOnce(&[u8]),
    ) -> Result<RunReport, RunError> {
        let (mut since, mut waits) = (started.since, Waits::default());
        let written: Vec<_> = written.collect();
        let marked = |atom: &[u8; ATOM]| *atom == started.mark;
        let memory = loop {
            let memory = self.results[0].get().access(started.deadline).map_err(waiting(1))?;
            waits.push(self.device.now().saturating_sub(since), chip.slow_mark);
            // QUIRK(R1), QUIRK(R2): a job may end without a trace, and is right the next time.
            let mut all = written.iter().flat_map(|part| memory[part.bytes.clone()].as_chunks().0);
            if waits.count > chip.reruns || !all.all(marked) {
                break memory;
            }
            memory.finish().map_err(refused("hand the results to the device"))?;
            since = self.device.now();
            self.kick(started)?;
        };
        self.unsettled = false;
        let (mark, jobs, tasks) = (chip.slow_mark, waits.count, started.tasks.len());
        let mut report = RunReport { jobs, tasks, waits, ..RunReport::default() };
        let mut count = 0;
        for Written { task, plane, pixels, bytes } in written {
            let (atoms, _) = memory[bytes].as_chunks::<ATOM>();
            for (atom, _) in atoms.iter().enumerate().filter(|(_, atom)| **atom == started.mark) {
                count += 1;
                let missing = MissingSentinel { layer: 0, task, plane: plane + atom / pixels, pixel: atom % pixels };
                report.missing_sentinels.extend((count <= NAMED).then_some(missing));
            }
        }
        if let Some(reason) = distrust(&report, mark, count) {
            return Err(RunError::Untrusted { reason, report: Box::new(report) });
        }
        unpack(&memory);
        Ok(report)
    }
}
