//! Runs a planned pooling on one worker: pack, submit, verify, unpack.
//!
//! The memory of the results holds what every pass writes, one pass after the other, and marks that it must overwrite.

use std::ops::Range;
use std::time::Duration;

use npu_device::{Deadline, Job, JobFlags, Task};
use npu_regs::Link;

use super::element::PoolElement;
use super::plan::PoolPlan;
use super::task::{PoolTask, WORDS};
use crate::context::{Worker, fill};
use crate::error::{MissingSentinel, RunError, RunReport, Unsupported};
use crate::layout::ATOM;
use crate::options::Options;
use crate::run::{NAMED, distrust, refused, waiting};
use crate::sentinel::nan_mark;

/// Bytes from one register program to the next: 30 words, and two that do nothing.
const STRIDE: usize = 256;

/// A worker's part that runs.
pub(super) struct Started {
    planes: Range<usize>,
    deadline: Deadline,
    since: Duration,
    mark: [u8; ATOM],
    tasks: usize,
}

impl Worker {
    /// Packs some planes of `input` and submits their job.
    pub(super) fn start_pool<T: PoolElement>(
        &mut self,
        plan: &PoolPlan,
        planes: Range<usize>,
        input: &[T],
        options: &Options,
    ) -> Result<Started, RunError> {
        self.runs += 1;
        let mark = nan_mark(self.runs);
        let deadline = Deadline::after(&*self.device, options.deadline);
        self.settle(deadline)?;
        let pixels = plan.shape()[0] * plan.shape()[1];
        let tasks = plan.passes() * planes.len().div_ceil(plan.most_planes());
        let written = offset(plan, plan.passes(), planes.len());
        self.features.at_least(&self.device, "picture", planes.len() * pixels * ATOM)?;
        self.results[0].at_least(&self.device, "results", written)?;
        self.pooling.at_least(&self.device, "register programs", tasks * STRIDE)?;
        let mut memory = self.results[0].get().access(deadline).map_err(waiting(0))?;
        memory[..written].as_chunks_mut().0.fill(mark);
        memory.finish().map_err(refused("hand the results to the device"))?;
        fill(self.features.get(), "pack the picture", |memory| pack(plan, planes.clone(), input, memory))?;
        let batched = options.batched && self.device.info().has_batched_submit();
        let list = self.write_pool_programs(plan, planes.len(), batched)?;
        self.unsettled = true;
        let since = self.device.now();
        let inputs = [self.features.get().handle(), self.pooling.get().handle()];
        let outputs = [self.results[0].get().handle()];
        let flags = JobFlags { batched, ppu_done: true, ..JobFlags::default() };
        // QUIRK(Q29): every handle once, and no handle in both lists.
        let job = Job { tasks: &list, inputs: &inputs, outputs: &outputs, flags };
        self.device.submit(&[job]).map_err(refused("submit a job"))?;
        Ok(Started { planes, deadline, since, mark, tasks })
    }

    /// Writes the register programs and returns the tasks: all passes over as many planes as a task takes, then the next.
    fn write_pool_programs(&mut self, plan: &PoolPlan, planes: usize, batched: bool) -> Result<Vec<Task>, RunError> {
        let (features, results) = (self.features.get().dma(), self.results[0].get().dma());
        let base = self.pooling.get().dma();
        // CAST: the buffers were made, so what lies in them has 32 bits.
        let at = |base: u32, bytes: usize| base.wrapping_add(bytes as u32);
        let (mut bytes, mut tasks) = (Vec::new(), Vec::new());
        let count = plan.passes() * planes.div_ceil(plan.most_planes());
        for first in (0..planes).step_by(plan.most_planes()) {
            let mut source = at(features, first * plan.shape()[0] * plan.shape()[1] * ATOM);
            for (index, pass) in plan.list().iter().enumerate() {
                let (element, kind, planes_of_task) =
                    (plan.element(), plan.kind(), (planes - first).min(plan.most_planes()));
                let destination = at(results, offset(plan, index, planes) + first * pass.output_atoms() * ATOM);
                let task = PoolTask { element, kind, pass, planes: planes_of_task, source, destination };
                let register = |error| Unsupported::new(format!("pooling task {}: {error}", tasks.len()));
                let mut program = task.program().map_err(register)?;
                let dma = at(base, tasks.len() * STRIDE);
                // A driver that starts every task itself must not be given links.
                if batched && tasks.len() + 1 < count {
                    let next = Link { dma: at(dma, STRIDE), words: WORDS as usize };
                    program.link(next).map_err(register)?;
                }
                bytes.extend(program.bytes());
                tasks.push(Task { dma, words: WORDS });
                bytes.resize(tasks.len() * STRIDE, 0);
                source = destination;
            }
        }
        fill(self.pooling.get(), "write the register programs", |memory| {
            memory[..bytes.len()].copy_from_slice(&bytes);
        })?;
        Ok(tasks)
    }

    /// Waits for a part, verifies what every pass wrote, and unpacks the last one.
    pub(super) fn finish_pool<T: PoolElement>(
        &mut self,
        plan: &PoolPlan,
        part: Started,
        output: &mut [T],
        slow_mark: Duration,
    ) -> Result<RunReport, RunError> {
        let memory = self.results[0].get().access(part.deadline).map_err(waiting(1))?;
        let wait = self.device.now().saturating_sub(part.since);
        self.unsettled = false;
        let slow = wait >= slow_mark;
        let mut report = RunReport { jobs: 1, tasks: part.tasks, waits: vec![wait], slow, ..RunReport::default() };
        let mut count = 0;
        for (index, pass) in plan.list().iter().enumerate() {
            let bytes = part.planes.len() * pass.output_atoms() * ATOM;
            let (atoms, _) = memory[offset(plan, index, part.planes.len())..][..bytes].as_chunks::<ATOM>();
            for (atom, _) in atoms.iter().enumerate().filter(|(_, atom)| **atom == part.mark) {
                count += 1;
                let (plane, pixel) = (part.planes.start + atom / pass.output_atoms(), atom % pass.output_atoms());
                let first = MissingSentinel { layer: 0, task: index, plane, pixel };
                report.missing_sentinels.extend((count <= NAMED).then_some(first));
            }
        }
        if let Some(reason) = distrust(&report, slow_mark, count) {
            return Err(RunError::Untrusted { reason, report: Box::new(report) });
        }
        let last = offset(plan, plan.passes() - 1, part.planes.len());
        unpack(plan, part.planes, &memory[last..], output);
        Ok(report)
    }
}

/// Where a pass over this many planes has its results.
fn offset(plan: &PoolPlan, pass: usize, planes: usize) -> usize {
    plan.list()[..pass].iter().map(|pass| planes * pass.output_atoms() * ATOM).sum()
}

/// The channels of a plane.
fn channels(plan: &PoolPlan, plane: usize) -> Range<usize> {
    let first = plane * plan.lanes();
    first..(first + plan.lanes()).min(plan.shape()[2])
}

fn pack<T: PoolElement>(plan: &PoolPlan, planes: Range<usize>, input: &[T], memory: &mut [u8]) {
    let [height, width, depth] = plan.shape();
    let (atoms, _) = memory.as_chunks_mut::<ATOM>();
    for (plane, atoms) in planes.zip(atoms.chunks_exact_mut(height * width)) {
        let channels = channels(plan, plane);
        for (pixel, atom) in input.chunks_exact(depth).zip(atoms) {
            *atom = [0; ATOM];
            T::encode(&pixel[channels.clone()], atom);
        }
    }
}

fn unpack<T: PoolElement>(plan: &PoolPlan, planes: Range<usize>, memory: &[u8], output: &mut [T]) {
    let [rows, columns, depth] = plan.output();
    let (atoms, _) = memory.as_chunks::<ATOM>();
    for (plane, atoms) in planes.zip(atoms.chunks_exact(rows * columns)) {
        let channels = channels(plan, plane);
        for (pixel, atom) in output.chunks_exact_mut(depth).zip(atoms) {
            T::decode(atom, &mut pixel[channels.clone()]);
        }
    }
}
