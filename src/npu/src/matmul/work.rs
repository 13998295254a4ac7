//! Runs a planned product on one worker: pack, submit round by round, verify, gather.
//!
//! ```text
//! marks ─▶ pack ─▶ submit round 0 ─▶ submit round 1 ─▶ wait 0, verify, gather ─▶ submit round 2 ─▶ wait 1 …
//! ```
//!
//! Rounds alternate between two result buffers, whose fences say which round has ended.

use std::ops::Range;
use std::time::Duration;

use npu_device::{Bo, Deadline, Job, JobFlags, Task};
use npu_regs::Link;

use crate::context::{Worker, fill};
use crate::emit::{Bases, words};
use crate::error::{MissingSentinel, RunError, RunReport, Unsupported};
use crate::layout::ATOM;
use crate::matmul::numbers::{Numbers, sealed};
use crate::matmul::plan::{MatmulPlan, Round, Tile};
use crate::matmul::{Matrix, pack};
use crate::network::PROGRAM_STRIDE;
use crate::options::{MOST_TILE, Options};
use crate::run::{NAMED, distrust, program_dma, refused, waiting};
use crate::sentinel::nan_mark;

/// What becomes of partial sums.
pub(crate) trait Gather<T: Numbers>: Sync {
    /// What a result is added up in.
    type Total: Copy + Default;
    /// A result.
    type Out: Copy + Default + Send;

    /// Adds the partial sums of neighbouring columns of a row.
    fn add(&self, at: &At, totals: &mut [Self::Total], partials: &[<T as sealed::Numbers>::Partial]);

    /// Turns totals into results.
    fn finish(&self, totals: &[Self::Total], results: &mut [Self::Out]);
}

/// Where partial sums belong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) row: usize,
    /// Of the whole product.
    pub(crate) first_column: usize,
    /// The first factor that was multiplied.
    pub(crate) depth: usize,
}

/// Adds partial sums as they are.
#[derive(Debug)]
pub(crate) struct Plain;

impl<T: Numbers> Gather<T> for Plain {
    type Total = <T as sealed::Numbers>::Total;
    type Out = T::Sum;

    fn add(&self, _: &At, totals: &mut [Self::Total], partials: &[<T as sealed::Numbers>::Partial]) {
        totals.iter_mut().zip(partials).for_each(|(total, partial)| T::add(total, *partial));
    }

    fn finish(&self, totals: &[Self::Total], results: &mut [Self::Out]) {
        results.iter_mut().zip(totals).for_each(|(result, total)| *result = T::finish(*total));
    }
}

/// The second factor.
pub(crate) enum Second<'a, F> {
    /// One per item, `[columns, depth]` of the whole product, of which some columns are to be packed.
    Given { factors: &'a [Matrix<'a, F>], columns: Range<usize> },
    /// Packed already.
    Resident(&'a Bo),
}

/// A worker's part of a product.
pub(crate) struct Part<'a, T: Numbers, G: Gather<T>> {
    pub(crate) plan: MatmulPlan,
    /// The first column of the part in the whole product.
    pub(crate) first_column: usize,
    /// One per item, or one for all: `[rows, depth]`.
    pub(crate) first: &'a [Matrix<'a, T::Factor>],
    pub(crate) second: Second<'a, T::Factor>,
    pub(crate) results: Results<'a, G::Out>,
}

/// Where results go.
pub(crate) enum Results<'a, R> {
    /// All of one item: rows of so many columns.
    Whole { values: &'a mut [R], columns: usize },
    /// Each row's columns, of so many rows of each item in turn.
    Rows { list: Vec<&'a mut [R]>, rows: usize },
}

impl<R> Results<'_, R> {
    /// A row of an item; none beyond the caller's rows, which are padding.
    fn row(&mut self, item: usize, row: usize) -> Option<&mut [R]> {
        match self {
            Self::Whole { values, columns } => values.get_mut(row * *columns..(row + 1) * *columns),
            Self::Rows { list, rows } => {
                let index = (row < *rows).then_some(item * *rows + row)?;
                list.get_mut(index).map(|row| &mut **row)
            }
        }
    }
}

/// Register programs that lie in a worker's memory.
#[derive(Debug)]
pub(crate) struct Loaded {
    plan: MatmulPlan,
    rounds: Vec<Round>,
    /// What they were written for, once they are.
    place: Option<LoadedPlace>,
    /// Tasks of each round's jobs.
    jobs: Vec<Vec<Vec<Task>>>,
}

/// Where register programs find their operands, and where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoadedPlace {
    bases: [Bases; 2],
    programs: u32,
    batched: bool,
}

/// One call on one worker.
struct Run<'a> {
    worker: &'a mut Worker,
    inputs: [u32; 3],
    deadline: Deadline,
    slow_mark: Duration,
    mark: [u8; ATOM],
    report: RunReport,
    missing: usize,
}

impl Worker {
    /// Runs a part of a product.
    pub(crate) fn multiply<T: Numbers, G: Gather<T>>(
        &mut self,
        part: Part<'_, T, G>,
        gather: &G,
        options: &Options,
        slow_mark: Duration,
    ) -> Result<RunReport, RunError> {
        let Part { plan, first_column, first, second, mut results } = part;
        self.runs += 1;
        let mark = nan_mark(self.runs);
        let deadline = Deadline::after(&*self.device, options.deadline);
        self.settle(deadline)?;
        let loaded = self.loaded.take().filter(|loaded| loaded.plan == plan);
        let mut loaded = loaded.unwrap_or_else(|| Loaded::new(&plan));
        let weights = self.allocate(&loaded, &second)?;
        self.load(&mut loaded, weights.1, options.batched)?;
        self.unsettled = true;
        let inputs = [weights.0, self.features.get().handle(), self.programs.get().handle()];
        let report = RunReport { tasks: plan.tasks(), ..RunReport::default() };
        let mut run = Run { worker: self, inputs, deadline, slow_mark, mark, report, missing: 0 };
        let outcome = run.prepare::<T>(&plan, &loaded, first, &second).and_then(|()| {
            run.rounds(&loaded, |run, round, memory| {
                let mut check = Check { run, plan: &plan, round, memory };
                round.tiles.iter().enumerate().for_each(|(position, tile)| {
                    check.tile::<T, G>(position, tile, first_column, gather, &mut results);
                });
            })
        });
        let Run { report, missing, .. } = run;
        self.loaded = Some(loaded);
        if let Results::Rows { list, .. } = results {
            self.rows.keep(list);
        }
        outcome?;
        self.unsettled = false;
        match distrust(&report, slow_mark, missing) {
            Some(reason) => Err(RunError::Untrusted { reason, report: Box::new(report) }),
            None => Ok(report),
        }
    }

    /// Makes all buffers; returns handle and address of the second factor.
    fn allocate<F>(&mut self, loaded: &Loaded, second: &Second<'_, F>) -> Result<(u32, u32), RunError> {
        let Loaded { plan, rounds, .. } = loaded;
        let bytes = rounds.iter().map(|round| plan.round_bytes(round)).max().unwrap_or(0);
        for results in &mut self.results[..rounds.len().min(2)] {
            results.at_least(&self.device, "results", bytes)?;
        }
        self.features.at_least(&self.device, "first factors", plan.feature_bytes())?;
        self.programs.at_least(&self.device, "register programs", plan.tasks() * PROGRAM_STRIDE)?;
        match second {
            Second::Resident(bo) => Ok((bo.handle(), bo.dma())),
            Second::Given { .. } => {
                let bo = self.weights.at_least(&self.device, "second factors", plan.constant_bytes())?;
                Ok((bo.handle(), bo.dma()))
            }
        }
    }

    /// Writes the register programs, where other ones lie in memory.
    fn load(&mut self, loaded: &mut Loaded, weights: u32, wanted: bool) -> Result<(), RunError> {
        let batched = wanted && self.device.info().has_batched_submit();
        let features = self.features.get().dma();
        let [first, second] = &mut self.results;
        let results = [Some(first), (loaded.rounds.len() > 1).then_some(second)];
        let bases = results.map(|results| Bases {
            constants: weights,
            activations: features,
            results: results.map_or(0, |results| results.get().dma()),
        });
        let place = LoadedPlace { bases, programs: self.programs.get().dma(), batched };
        if loaded.place == Some(place) {
            return Ok(());
        }
        let bytes = loaded.emit(&place).map_err(RunError::Unsupported)?;
        fill(self.programs.get(), "write the register programs", |memory| {
            memory[..bytes.len()].copy_from_slice(&bytes)
        })?;
        loaded.place = Some(place);
        Ok(())
    }
}

impl Loaded {
    fn new(plan: &MatmulPlan) -> Self {
        Self { plan: plan.clone(), rounds: plan.rounds(), place: None, jobs: Vec::new() }
    }

    /// The programs of all rounds, and [`Loaded::jobs`].
    fn emit(&mut self, place: &LoadedPlace) -> Result<Vec<u8>, Unsupported> {
        self.jobs.clear();
        let mut bytes = vec![0; self.plan.tasks() * PROGRAM_STRIDE];
        let layout = self.plan.layout();
        let mut next = 0;
        for (number, round) in self.rounds.iter().enumerate() {
            let mut jobs = Vec::with_capacity(round.jobs.len());
            for job in &round.jobs {
                let mut tasks = Vec::with_capacity(job.len());
                for index in job.clone() {
                    let task = self.plan.task(round, index)?;
                    let register = |error| Unsupported::new(format!("task {index} of round {number}: {error}"));
                    let mut program = task.program(layout, &place.bases[number % 2]).map_err(register)?;
                    // A driver that starts every task itself must not be given links.
                    if place.batched && index + 1 < job.end {
                        let dma = program_dma(place.programs, next + 1);
                        program.link(Link { dma, words: words(layout) as usize }).map_err(register)?;
                    }
                    let slot = &mut bytes[next * PROGRAM_STRIDE..];
                    slot.iter_mut().zip(program.bytes()).for_each(|(slot, byte)| *slot = byte);
                    tasks.push(Task { dma: program_dma(place.programs, next), words: words(layout) });
                    next += 1;
                }
                jobs.push(tasks);
            }
            self.jobs.push(jobs);
        }
        Ok(bytes)
    }
}

impl Run<'_> {
    /// Marks the results and packs the factors.
    fn prepare<T: Numbers>(
        &mut self,
        plan: &MatmulPlan,
        loaded: &Loaded,
        first: &[Matrix<'_, T::Factor>],
        second: &Second<'_, T::Factor>,
    ) -> Result<(), RunError> {
        for (round, results) in loaded.rounds.iter().zip(&mut self.worker.results) {
            let mut memory = results.get().overwrite(None, self.deadline).map_err(waiting(0))?;
            mark(&mut memory[..plan.round_bytes(round)], self.mark);
            memory.finish().map_err(refused("hand the results to the device"))?;
        }
        let bytes = plan.feature_bytes() / first.len();
        fill(self.worker.features.get(), "pack the first factor", |memory| {
            for (factor, memory) in first.iter().zip(memory.chunks_exact_mut(bytes)) {
                pack::features::<T>(plan, factor.values(), memory);
            }
        })?;
        let Second::Given { factors, columns } = second else { return Ok(()) };
        let bytes = plan.weight_bytes() / factors.len();
        let depth = plan.shape().depth;
        fill(self.worker.weights.get(), "pack the second factor", |memory| {
            for (factor, memory) in factors.iter().zip(memory.chunks_exact_mut(bytes)) {
                pack::weights::<T>(plan, &factor.values()[columns.start * depth..columns.end * depth], memory);
            }
            pack::operands(plan, memory);
        })
    }

    /// Runs all rounds; `gather` sees the memory of each.
    fn rounds(&mut self, loaded: &Loaded, mut gather: impl FnMut(&mut Self, &Round, &[u8])) -> Result<(), RunError> {
        let mut since = self.worker.device.now();
        self.submit_round(loaded, 0)?;
        for (number, round) in loaded.rounds.iter().enumerate() {
            if number + 1 < loaded.rounds.len() {
                self.submit_round(loaded, number + 1)?;
            }
            let mut results = std::mem::take(&mut self.worker.results[number % 2]);
            let outcome = self.round(loaded, number, round, &mut results, &mut since, &mut gather);
            self.worker.results[number % 2] = results;
            outcome?;
        }
        Ok(())
    }

    fn round(
        &mut self,
        loaded: &Loaded,
        number: usize,
        round: &Round,
        results: &mut crate::context::Scratch,
        since: &mut Duration,
        gather: &mut impl FnMut(&mut Self, &Round, &[u8]),
    ) -> Result<(), RunError> {
        let bytes = loaded.plan.round_bytes(round);
        let mut reruns = loaded.plan.reruns();
        let mut memory = loop {
            let memory = results.get().access(self.deadline).map_err(waiting(round.jobs.len()))?;
            let now = self.worker.device.now();
            self.report.waits.push(now.saturating_sub(*since), self.slow_mark);
            *since = now;
            // QUIRK(R1), QUIRK(R2): a job may end without a trace, and is right the next time.
            let (atoms, _) = memory[..bytes].as_chunks::<ATOM>();
            if reruns == 0 || atoms.iter().any(|atom| *atom != self.mark) {
                break memory;
            }
            memory.finish().map_err(refused("hand the results to the device"))?;
            self.submit(loaded, number, results.get().handle())?;
            reruns -= 1;
        };
        gather(self, round, &memory);
        if let Some(next) = loaded.rounds.get(number + 2) {
            mark(&mut memory[..loaded.plan.round_bytes(next)], self.mark);
        }
        memory.finish().map_err(refused("hand the results to the device"))
    }

    fn submit_round(&mut self, loaded: &Loaded, number: usize) -> Result<(), RunError> {
        let results = self.worker.results[number % 2].get().handle();
        self.submit(loaded, number, results)
    }

    fn submit(&mut self, loaded: &Loaded, number: usize, results: u32) -> Result<(), RunError> {
        let batched = loaded.place.is_some_and(|place| place.batched);
        let flags = JobFlags { batched, ..JobFlags::default() };
        let outputs = [results];
        for tasks in &loaded.jobs[number] {
            // QUIRK(Q29): every handle once, and no handle in both lists.
            let job = Job { tasks, inputs: &self.inputs, outputs: &outputs, flags };
            self.worker.device.submit(&[job]).map_err(refused("submit a job"))?;
            self.report.jobs += 1;
        }
        Ok(())
    }
}

/// Puts the mark wherever the hardware must write.
fn mark(memory: &mut [u8], mark: [u8; ATOM]) {
    memory.as_chunks_mut().0.fill(mark);
}

/// A round whose jobs have ended.
struct Check<'a, 'b> {
    run: &'a mut Run<'b>,
    plan: &'a MatmulPlan,
    round: &'a Round,
    memory: &'a [u8],
}

impl Check<'_, '_> {
    /// Verifies a tile and gathers its rows.
    fn tile<T: Numbers, G: Gather<T>>(
        &mut self,
        position: usize,
        tile: &Tile,
        first_column: usize,
        gather: &G,
        results: &mut Results<'_, G::Out>,
    ) {
        let mut totals = [G::Total::default(); MOST_TILE];
        let mut partials = [Default::default(); MOST_TILE];
        let (totals, partials) = (&mut totals[..tile.columns], &mut partials[..tile.columns]);
        let mut spoiled = false;
        for row in 0..tile.rows {
            let Some(result) = results.row(tile.item, tile.first_row + row) else { break };
            totals.fill(G::Total::default());
            for step in self.plan.read_steps() {
                self.row::<T>(position, tile, step, row, partials);
                spoiled |= partials.iter().any(|partial| T::is_nan(*partial));
                let depth = self.plan.step(step).start;
                let at = At { row: tile.first_row + row, first_column: first_column + tile.first_column, depth };
                gather.add(&at, totals, partials);
            }
            gather.finish(totals, &mut result[tile.first_column..][..tile.columns]);
        }
        // Partial sums that the chip added are read only where a mark may have been added too.
        for step in (0..self.plan.read_steps().start).filter(|_| spoiled) {
            for row in 0..tile.rows {
                self.row::<T>(position, tile, step, row, partials);
            }
        }
    }

    /// Reads a row of a step's results, and counts the atoms that were not written.
    fn row<T: Numbers>(
        &mut self,
        position: usize,
        tile: &Tile,
        step: usize,
        row: usize,
        partials: &mut [<T as sealed::Numbers>::Partial],
    ) {
        let stored = self.plan.stored();
        let planes = tile.columns / stored.lanes();
        let pitch = self.plan.pitch(tile.rows);
        let (slot, _) = self.memory[self.plan.slot(position, step)..].as_chunks::<ATOM>();
        for (plane, partials) in partials.chunks_exact_mut(stored.lanes()).enumerate() {
            let at = match self.plan.host_ordered(step) {
                true => row * planes + plane,
                false => self.plan.form().atom(plane, row, tile.rows, pitch),
            };
            if slot[at] == self.run.mark {
                self.missing(position, step, plane, row);
            }
            T::decode(stored, &slot[at], partials);
        }
    }

    fn missing(&mut self, position: usize, step: usize, plane: usize, pixel: usize) {
        self.run.missing += 1;
        let named = &mut self.run.report.missing_sentinels;
        if named.len() < NAMED {
            let task = self.round.tasks.iter().position(|task| *task == (position, step)).unwrap_or_default();
            named.push(MissingSentinel { layer: 0, task, plane, pixel });
        }
    }
}
