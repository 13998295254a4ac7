//! A network on a device: buffers, register programs, and runs whose results are verified.
//!
//! ```text
//! PREP ─▶ pack inputs, write sentinels ─▶ FINI ─▶ submit ─▶ wait ─▶ check time and sentinels ─▶ unpack outputs
//! ```
//!
//! The kernel reports a hung or dropped job as success. So before a run a *sentinel*, 16 bytes that differ from place to
//! place and from run to run, is put wherever the hardware must write; one that is still there afterwards says that it
//! did not.

use std::sync::Arc;
use std::time::Duration;

use npu_device::{Bo, Deadline, Device, Job, JobFlags, Range, Task};
use npu_regs::Link;

use crate::emit::{Bases, words};
use crate::error::{Distrust, Error, MissingSentinel, Result, RunError, RunReport, Waits};
use crate::layout::ATOM;
use crate::network::{PROGRAM_STRIDE, Plan};
use crate::sentinel::mix;

/// Bytes that bursts may read beyond the end of what they need. SOURCE: npu-spec 9.3.
pub(crate) const BURST_SLACK: usize = 32 * 1024;
/// Size of a buffer that only serves as a guard or a fence.
pub(crate) const SMALL: u32 = 4096;
/// Ranges nearer than this are kept coherent as one.
const NEAR: u64 = 4096;
/// What the CPU's caches work in.
const CACHE_LINE: u64 = 64;
/// Surviving sentinels that a report names.
pub(crate) const NAMED: usize = 8;

/// Pixels of one plane that a task must write. They follow each other in memory.
#[derive(Clone, Debug)]
pub(crate) struct Sentinel {
    /// Of the first pixel, in the activation buffer.
    pub(crate) offset: usize,
    pub(crate) layer: usize,
    pub(crate) task: usize,
    pub(crate) plane: usize,
    pub(crate) pixels: std::ops::Range<usize>,
}

impl Sentinel {
    fn bytes(&self) -> usize {
        self.pixels.len() * ATOM
    }

    /// What is put at each pixel in run `run`.
    fn patterns(&self, run: u64) -> impl Iterator<Item = [u8; ATOM]> + use<> {
        let run = run.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let offset = self.offset;
        (0..self.pixels.len()).map(move |index| {
            // CAST: widening.
            let word = mix(run ^ (offset + index * ATOM) as u64);
            let mut pattern = [0; ATOM];
            pattern[..8].copy_from_slice(&word.to_le_bytes());
            pattern[8..].copy_from_slice(&(!word).to_le_bytes());
            pattern
        })
    }

    /// The pixels that run `run` did not write.
    fn survivors<'a>(&'a self, arena: &'a [u8], run: u64) -> impl Iterator<Item = MissingSentinel> + 'a {
        let (atoms, _) = arena[self.offset..][..self.bytes()].as_chunks::<ATOM>();
        let pixels = self.pixels.clone().zip(atoms).zip(self.patterns(run));
        pixels.filter(|((_, atom), pattern)| *atom == pattern).map(|((pixel, _), _)| MissingSentinel {
            layer: self.layer,
            task: self.task,
            plane: self.plane,
            pixel,
        })
    }
}

/// A network on a device.
#[derive(Debug)]
pub struct Resident {
    plan: Arc<Plan>,
    device: Arc<dyn Device>,
    /// Address 0, so that no tensor has it. QUIRK(Q31).
    _guard: Bo,
    constants: Bo,
    programs: Bo,
    arena: Bo,
    /// One per job but the last, whose fence is that of the arena.
    fences: Vec<Bo>,
    jobs: Vec<LoadedJob>,
    /// What of the arena the CPU reads and writes.
    ranges: Vec<Range>,
    batched: bool,
    runs: u64,
}

#[derive(Debug)]
struct LoadedJob {
    tasks: Vec<Task>,
    inputs: Vec<u32>,
    outputs: Vec<u32>,
}

impl Resident {
    /// `batched`: whether the device starts a job's tasks at once.
    pub(crate) fn load(plan: Arc<Plan>, device: &Arc<dyn Device>, batched: bool) -> Result<Self> {
        plan.chip.drives(device.info())?;
        let guard = Bo::new(device, SMALL).map_err(failed("allocate the guard"))?;
        let mut constants = allocate(device, "weights", plan.constants.len() + BURST_SLACK)?;
        let mut programs = allocate(device, "register programs", plan.tasks.len() * PROGRAM_STRIDE)?;
        let arena = allocate(device, "activations", plan.arena.bytes + BURST_SLACK)?;
        let fences = plan.jobs[1..].iter().map(|_| Bo::new(device, SMALL).map_err(failed("allocate a fence")));
        let fences = fences.collect::<Result<Vec<_>>>()?;
        fill(&mut constants, &plan.constants)?;
        let bases = Bases { constants: constants.dma(), activations: arena.dma(), results: 0 };
        let bytes = programs_bytes(&plan, &bases, programs.dma(), batched)?;
        fill(&mut programs, &bytes)?;
        let jobs = jobs(&plan, &[constants.handle(), programs.handle()], programs.dma(), &arena, &fences);
        let ranges = ranges(&plan);
        Ok(Self {
            plan,
            device: Arc::clone(device),
            _guard: guard,
            constants,
            programs,
            arena,
            fences,
            jobs,
            ranges,
            batched,
            runs: 0,
        })
    }

    /// Bytes of device memory that it holds.
    pub fn device_bytes(&self) -> u64 {
        let fences = self.fences.iter().map(|fence| u64::from(fence.bytes())).sum::<u64>();
        u64::from(SMALL)
            + fences
            + [&self.constants, &self.programs, &self.arena].map(|bo| u64::from(bo.bytes())).iter().sum::<u64>()
    }

    /// Runs the network once.
    ///
    /// `inputs`: one slice per input, `[h, w, c]`, NHWC, in the input's element type, little-endian.
    /// `outputs`: one vector per output, filled in the same form. After an error they are empty: an unverified result
    /// is never handed out.
    ///
    /// # Errors
    /// [`RunError::Untrusted`] where the jobs ended and the result cannot be verified, [`RunError::Deadline`] where the
    /// deadline passed first, [`RunError::Device`] where the device refuses, [`RunError::Size`] and [`RunError::Count`]
    /// for buffers that do not fit.
    pub fn run(
        &mut self,
        inputs: &[&[u8]],
        outputs: &mut [Vec<u8>],
        deadline: Deadline,
    ) -> Result<RunReport, RunError> {
        outputs.iter_mut().for_each(Vec::clear);
        self.check(inputs, outputs.len())?;
        let mut waits = Waits::default();
        let mut reruns = self.plan.chip.reruns;
        loop {
            self.runs += 1;
            self.prepare(inputs, deadline)?;
            let since = self.execute(&mut waits, deadline)?;
            let Self { plan, device, arena, ranges, jobs, runs, .. } = self;
            let arena = arena.access_ranges(ranges, deadline).map_err(waiting(jobs.len()))?;
            waits.push(device.now().saturating_sub(since), plan.chip.slow_mark);
            // QUIRK(R1), QUIRK(R2): a job may end without a trace, and is right the next time.
            if reruns == 0 || !plan.has_idle_job(&arena, *runs) {
                return plan.verdict(&arena, *runs, waits, outputs);
            }
            reruns -= 1;
        }
    }

    fn check(&self, inputs: &[&[u8]], outputs: usize) -> Result<(), RunError> {
        let plan = &self.plan;
        if inputs.len() != plan.inputs.len() {
            return Err(RunError::Count { what: "inputs", found: inputs.len(), expected: plan.inputs.len() });
        }
        if outputs != plan.outputs.len() {
            return Err(RunError::Count { what: "outputs", found: outputs, expected: plan.outputs.len() });
        }
        for (index, (input, &tensor)) in inputs.iter().zip(&plan.inputs).enumerate() {
            let expected = plan.arena.cubes[tensor].host_bytes();
            if input.len() != expected {
                return Err(RunError::Size { what: "input", index, found: input.len(), expected });
            }
        }
        Ok(())
    }

    /// Writes inputs and sentinels.
    fn prepare(&mut self, inputs: &[&[u8]], deadline: Deadline) -> Result<(), RunError> {
        let Self { plan, arena, ranges, runs, .. } = self;
        let mut arena = arena.overwrite(Some(ranges), deadline).map_err(waiting(0))?;
        for (input, &tensor) in inputs.iter().zip(&plan.inputs) {
            plan.arena.cubes[tensor].pack(input, &mut arena[plan.arena.offsets[tensor]..]);
        }
        for sentinel in &plan.sentinels {
            let (atoms, _) = arena[sentinel.offset..][..sentinel.bytes()].as_chunks_mut::<ATOM>();
            atoms.iter_mut().zip(sentinel.patterns(*runs)).for_each(|(atom, pattern)| *atom = pattern);
        }
        arena.finish().map_err(refused("hand the inputs to the device"))
    }

    /// Submits all jobs and waits for all but the last. Returns since when the last job is waited for.
    fn execute(&mut self, waits: &mut Waits, deadline: Deadline) -> Result<Duration, RunError> {
        let flags = JobFlags { batched: self.batched, ..JobFlags::default() };
        let mut since = self.device.now();
        for job in &self.jobs {
            let job = Job { tasks: &job.tasks, inputs: &job.inputs, outputs: &job.outputs, flags };
            self.device.submit(&[job]).map_err(refused("submit the jobs"))?;
        }
        for fence in &mut self.fences {
            fence.access(deadline).map(drop).map_err(waiting(self.jobs.len()))?;
            let now = self.device.now();
            waits.push(now.saturating_sub(since), self.plan.chip.slow_mark);
            since = now;
        }
        Ok(since)
    }
}

impl Plan {
    /// Whether run `run` has a job that wrote nothing at all.
    fn has_idle_job(&self, arena: &[u8], run: u64) -> bool {
        let idle = |sentinel: &Sentinel| sentinel.survivors(arena, run).count() == sentinel.pixels.len();
        self.jobs.iter().any(|job| {
            let mut own = self.sentinels.iter().filter(|sentinel| job.contains(&sentinel.task));
            own.all(idle)
        })
    }

    /// Verifies run `run`, and unpacks its outputs.
    fn verdict(&self, arena: &[u8], run: u64, waits: Waits, outputs: &mut [Vec<u8>]) -> Result<RunReport, RunError> {
        let mark = self.chip.slow_mark;
        let jobs = waits.count;
        let mut report = RunReport { jobs, tasks: self.tasks.len(), waits, missing_sentinels: Vec::new() };
        let mut missing = self.sentinels.iter().flat_map(|sentinel| sentinel.survivors(arena, run));
        report.missing_sentinels.extend(missing.by_ref().take(NAMED));
        let count = report.missing_sentinels.len() + missing.count();
        if let Some(reason) = distrust(&report, mark, count) {
            return Err(RunError::Untrusted { reason, report: Box::new(report) });
        }
        for (&tensor, host) in self.outputs.iter().zip(outputs) {
            let cube = &self.arena.cubes[tensor];
            host.resize(cube.host_bytes(), 0);
            cube.unpack(&arena[self.arena.offsets[tensor]..], host);
        }
        Ok(report)
    }
}

pub(crate) fn distrust(report: &RunReport, mark: Duration, count: usize) -> Option<Distrust> {
    if report.waits.slow > 0 {
        return Some(Distrust::Slow { wait: report.waits.longest, mark });
    }
    report.missing_sentinels.first().map(|&first| Distrust::Sentinels { count, first })
}

pub(crate) fn failed(what: &'static str) -> impl Fn(npu_device::Error) -> Error {
    move |source| Error::Device { what, source }
}

pub(crate) fn refused(what: &'static str) -> impl Fn(npu_device::Error) -> RunError {
    move |source| RunError::Device { what, source }
}

pub(crate) fn waiting(jobs: usize) -> impl Fn(npu_device::Error) -> RunError {
    move |source| match source.is_timeout() {
        true => RunError::Deadline { jobs },
        false => RunError::Device { what: "wait for the jobs", source },
    }
}

fn allocate(device: &Arc<dyn Device>, what: &'static str, bytes: usize) -> Result<Bo> {
    // CAST: widening.
    let bytes = u32::try_from(bytes).map_err(|_| Error::TooLarge { what, bytes: bytes as u64 })?;
    Bo::new(device, bytes).map_err(failed(what))
}

fn fill(bo: &mut Bo, bytes: &[u8]) -> Result<()> {
    let mut access = bo.access(Deadline::POLL).map_err(failed("open a new buffer"))?;
    access[..bytes.len()].copy_from_slice(bytes);
    access.finish().map_err(failed("hand a new buffer to the device"))
}

/// The register programs as they lie in memory. With a batched kernel each one of a job links to the next; another kernel
/// starts every task itself and must not be given links.
fn programs_bytes(plan: &Plan, bases: &Bases, dma: u32, batched: bool) -> Result<Vec<u8>> {
    let mut bytes = vec![0; plan.tasks.len() * PROGRAM_STRIDE];
    for job in &plan.jobs {
        for index in job.clone() {
            let register = |source| Error::Register { task: index, source };
            let mut program = plan.tasks[index].task.program(plan.chip.layout, bases).map_err(register)?;
            if batched && index + 1 < job.end {
                program
                    .link(Link { dma: program_dma(dma, index + 1), words: words(plan.chip.layout) as usize })
                    .map_err(register)?;
            }
            let slot = &mut bytes[index * PROGRAM_STRIDE..];
            slot.iter_mut().zip(program.bytes()).for_each(|(slot, byte)| *slot = byte);
        }
    }
    Ok(bytes)
}

/// Address of a program. The buffer lies inside the address space, so nothing wraps.
pub(crate) fn program_dma(dma: u32, index: usize) -> u32 {
    // CAST: the buffer's size fits 32 bits.
    dma.wrapping_add((index * PROGRAM_STRIDE) as u32)
}

fn jobs(plan: &Plan, inputs: &[u32], programs: u32, arena: &Bo, fences: &[Bo]) -> Vec<LoadedJob> {
    let tasks = |index| Task { dma: program_dma(programs, index), words: words(plan.chip.layout) };
    let jobs = plan.jobs.iter().enumerate().map(|(number, job)| LoadedJob {
        tasks: job.clone().map(tasks).collect(),
        // Listed so that a job keeps them alive.
        inputs: inputs.to_vec(),
        // QUIRK(Q29): every handle once, and no handle in both lists.
        outputs: std::iter::once(arena).chain(fences.get(number)).map(Bo::handle).collect(),
    });
    jobs.collect()
}

/// What of the arena the CPU touches, in whole cache lines.
fn ranges(plan: &Plan) -> Vec<Range> {
    let arena = &plan.arena;
    let inputs = plan.inputs.iter().map(|&tensor| (arena.offsets[tensor], arena.cubes[tensor].bytes()));
    let sentinels = plan.sentinels.iter().map(|sentinel| (sentinel.offset, sentinel.bytes()));
    // CAST: widening.
    let mut spans: Vec<(u64, u64)> = inputs
        .chain(sentinels)
        .map(|(offset, bytes)| {
            (offset as u64 / CACHE_LINE * CACHE_LINE, ((offset + bytes) as u64).next_multiple_of(CACHE_LINE))
        })
        .collect();
    spans.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (start, end) in spans {
        match ranges.last_mut() {
            Some(last) if start <= last.1 + NEAR => last.1 = last.1.max(end),
            _ => ranges.push((start, end)),
        }
    }
    ranges.into_iter().map(|(start, end)| Range { offset: start, bytes: end - start }).collect()
}
