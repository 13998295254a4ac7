//! Runs a planned pooling on one worker: pack, submit, verify, unpack.
//!
//! The memory of the results holds what every pass writes, one pass after the other.

use std::ops::Range;

use npu_regs::Program;

use super::element::PoolElement;
use super::plan::PoolPlan;
use super::task::PoolTask;
use crate::chip::Chip;
use crate::context::{Worker, fill};
use crate::error::{RunError, RunReport, Unsupported};
use crate::job::{Started, Written};
use crate::layout::ATOM;
use crate::options::Options;

/// A worker's part that runs.
pub(super) struct Part {
    planes: Range<usize>,
    started: Started,
}

impl Worker {
    /// Packs some planes of `input` and submits their job.
    pub(super) fn start_pool<T: PoolElement>(
        &mut self,
        plan: &PoolPlan,
        planes: Range<usize>,
        input: &[T],
        options: &Options,
    ) -> Result<Part, RunError> {
        let pixels = plan.pitch([plan.shape()[0], plan.shape()[1]]);
        let mut started = self.begin(offset(plan, plan.passes(), planes.len()), options)?;
        self.features.at_least(&self.device, "picture", planes.len() * pixels * ATOM)?;
        fill(self.features.get(), "pack the picture", |memory| pack(plan, planes.clone(), input, memory))?;
        let mut programs = self.pool_programs(plan, planes.len())?;
        self.submit(&mut started, &mut programs, true, options)?;
        Ok(Part { planes, started })
    }

    /// All passes over as many planes as a task takes, then over the next.
    fn pool_programs(&mut self, plan: &PoolPlan, planes: usize) -> Result<Vec<Program>, RunError> {
        let (features, results) = (self.features.get().dma(), self.results[0].get().dma());
        // CAST: the buffers were made, so what lies in them has 32 bits.
        let at = |base: u32, bytes: usize| base.wrapping_add(bytes as u32);
        let mut programs = Vec::new();
        for first in (0..planes).step_by(plan.most_planes()) {
            let mut source = at(features, first * plan.pitch(plan.list()[0].input) * ATOM);
            for (index, pass) in plan.list().iter().enumerate() {
                let destination = at(results, offset(plan, index, planes) + first * plan.pitch(pass.output) * ATOM);
                let (element, kind, planes) = (plan.element(), plan.kind(), (planes - first).min(plan.most_planes()));
                let pitches = [pass.input, pass.output].map(|extents| plan.pitch(extents));
                let task = PoolTask { element, kind, pass, planes, pitches, source, destination };
                let register = |error| Unsupported::new(format!("pooling task {}: {error}", programs.len()));
                let program = task.program(plan.layout()).map_err(register)?;
                programs.push(program);
                source = destination;
            }
        }
        Ok(programs)
    }

    /// Waits for a part, verifies what every pass wrote, and unpacks the last one.
    pub(super) fn finish_pool<T: PoolElement>(
        &mut self,
        plan: &PoolPlan,
        part: Part,
        output: &mut [T],
        chip: &Chip,
    ) -> Result<RunReport, RunError> {
        let Part { planes, started } = part;
        let written = plan.list().iter().enumerate().flat_map(|(task, pass)| {
            let (pixels, pitch) = (pass.output_atoms(), plan.pitch(pass.output));
            let first = offset(plan, task, planes.len());
            planes.clone().enumerate().map(move |(index, plane)| {
                let bytes = first + index * pitch * ATOM;
                Written { task, plane, pixels, bytes: bytes..bytes + pixels * ATOM }
            })
        });
        let last = offset(plan, plan.passes() - 1, planes.len());
        self.finish(&started, written, chip, |memory| unpack(plan, planes.clone(), &memory[last..], output))
    }
}

/// Where a pass over this many planes has its results.
fn offset(plan: &PoolPlan, pass: usize, planes: usize) -> usize {
    plan.list()[..pass].iter().map(|pass| planes * plan.pitch(pass.output) * ATOM).sum()
}

/// The channels of a plane.
fn channels(plan: &PoolPlan, plane: usize) -> Range<usize> {
    let first = plane * plan.lanes();
    first..(first + plan.lanes()).min(plan.shape()[2])
}

fn pack<T: PoolElement>(plan: &PoolPlan, planes: Range<usize>, input: &[T], memory: &mut [u8]) {
    let [height, width, depth] = plan.shape();
    let (atoms, _) = memory.as_chunks_mut::<ATOM>();
    for (plane, atoms) in planes.zip(atoms.chunks_exact_mut(plan.pitch([height, width]))) {
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
    for (plane, atoms) in planes.zip(atoms.chunks_exact(plan.pitch([rows, columns]))) {
        let channels = channels(plan, plane);
        for (pixel, atom) in output.chunks_exact_mut(depth).zip(atoms) {
            T::decode(atom, &mut pixel[channels.clone()]);
        }
    }
}
