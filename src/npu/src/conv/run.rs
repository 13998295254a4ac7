//! Convolutions on the device: one-shot, and loaded once and run many times.

use std::sync::Arc;
use std::time::Duration;

use npu_device::{Deadline, Device};

use crate::context::Context;
use crate::conv::numbers::{Element, Gives, Output};
use crate::conv::piece::Piece;
use crate::conv::plan::{ConvPlan, Part};
use crate::conv::{Conv, Image};
use crate::error::{Error, RunError, RunReport, Unsupported};
use crate::run::Resident;

/// A convolution whose weights are on the device, on every worker.
#[derive(Debug)]
pub struct LoadedConv<In, Out> {
    plan: ConvPlan<In, Out>,
    workers: Vec<Loaded>,
}

/// The networks of one worker.
#[derive(Debug)]
struct Loaded {
    device: Arc<dyn Device>,
    /// By their index in the plan.
    residents: Vec<Option<Resident>>,
}

impl Context {
    /// A convolution of one picture. `results`: `[h', w', channels]`, whose type says how sums become results.
    ///
    /// # Errors
    /// [`RunError::Unsupported`] and [`RunError::Size`] for what does not fit, [`RunError::Untrusted`],
    /// [`RunError::Deadline`] and [`RunError::Device`] for what happens on the device; `results` are then all zeros.
    pub fn conv2d<In, Out>(
        &mut self,
        image: Image<'_, In>,
        conv: &Conv<'_, In>,
        results: &mut [Out],
    ) -> Result<RunReport, RunError>
    where
        In: Gives<Out>,
        Out: Output,
    {
        self.load_conv(image.shape, conv)?.run(self, image, results)
    }

    /// Plans a convolution of pictures of a shape, `[h, w, c]`, and puts its weights onto every worker.
    ///
    /// # Errors
    /// As [`Context::conv2d`].
    pub fn load_conv<In, Out>(
        &mut self,
        shape: [usize; 3],
        conv: &Conv<'_, In>,
    ) -> Result<LoadedConv<In, Out>, RunError>
    where
        In: Gives<Out>,
        Out: Output,
    {
        let plan = ConvPlan::new(&self.chip, self.workers.len(), shape, conv)?;
        self.load_plan(plan)
    }

    /// Puts the weights of a plan onto every worker.
    pub(crate) fn load_plan<In, Out>(&self, plan: ConvPlan<In, Out>) -> Result<LoadedConv<In, Out>, RunError> {
        let workers = plan.parts.iter().zip(&self.workers);
        let workers = workers.map(|(part, worker)| load(&plan, part, &worker.device, self.options.batched));
        let workers = workers.collect::<Result<_, Error>>()?;
        Ok(LoadedConv { plan, workers })
    }
}

fn load<In, Out>(
    plan: &ConvPlan<In, Out>,
    part: &Part,
    device: &Arc<dyn Device>,
    batched: bool,
) -> Result<Loaded, Error> {
    let batched = batched && device.info().has_batched_submit();
    let mut residents: Vec<Option<Resident>> = plan.networks.iter().map(|_| None).collect();
    for &(_, network) in &part.pieces {
        if residents[network].is_none() {
            residents[network] = Some(plan.networks[network].load_as(device, batched)?);
        }
    }
    Ok(Loaded { device: Arc::clone(device), residents })
}

impl<In, Out> LoadedConv<In, Out>
where
    In: Gives<Out>,
    Out: Output,
{
    /// What was planned.
    pub fn plan(&self) -> &ConvPlan<In, Out> {
        &self.plan
    }

    /// Bytes of device memory.
    pub fn device_bytes(&self) -> u64 {
        let residents = self.workers.iter().flat_map(|worker| &worker.residents).flatten();
        residents.map(Resident::device_bytes).sum()
    }

    /// Runs it for one picture.
    ///
    /// # Errors
    /// As [`Context::conv2d`]; [`RunError::Unsupported`] also for another context than that of the weights, or one of fewer
    /// workers.
    pub fn run(
        &mut self,
        context: &mut Context,
        image: Image<'_, In>,
        results: &mut [Out],
    ) -> Result<RunReport, RunError> {
        let Self { plan, workers } = self;
        context.check_own(workers.iter().map(|loaded| &loaded.device))?;
        check_shapes::<Out>(image.shape, plan.input, results.len(), plan.output)?;
        let mut shares = shares(plan, workers, &image, results).into_iter();
        let outcome = context.on_workers(|_, _| shares.next(), |_, mut share, options, _| share.run(options.deadline));
        if outcome.is_err() {
            // An unverified result is never handed out.
            results.fill(Out::default());
        }
        context.record("conv2d", outcome)
    }
}

/// Refuses a picture or results of other shapes than `input` and `output`.
pub(crate) fn check_shapes<Out: Output>(
    shape: [usize; 3],
    input: [usize; 3],
    results: usize,
    output: [usize; 3],
) -> Result<(), RunError> {
    if shape != input {
        return Err(Unsupported::new(format!("a picture of {shape:?}, {input:?} was planned")).into());
    }
    let (expected, bytes) = (output.iter().product::<usize>(), Out::TYPE.bytes());
    match results == expected {
        true => Ok(()),
        false => Err(RunError::Size { what: "result", index: 0, found: results * bytes, expected: expected * bytes }),
    }
}

/// The parts of all workers, each with its rows of the results.
fn shares<'a, In: Gives<Out>, Out: Output>(
    plan: &'a ConvPlan<In, Out>,
    workers: &'a mut [Loaded],
    image: &'a Image<'a, In>,
    mut results: &'a mut [Out],
) -> Vec<Share<'a, In, Out>> {
    let mut shares = Vec::with_capacity(workers.len());
    for (part, worker) in plan.parts.iter().zip(workers) {
        let (own, others) = results.split_at_mut(part.rows.len() * plan.output[1] * plan.output[2]);
        shares.push(Share { plan, part, worker, image, results: own });
        results = others;
    }
    shares
}

/// What one worker has to do.
struct Share<'a, In, Out> {
    plan: &'a ConvPlan<In, Out>,
    part: &'a Part,
    worker: &'a mut Loaded,
    image: &'a Image<'a, In>,
    /// The rows of the part.
    results: &'a mut [Out],
}

impl<In: Gives<Out>, Out: Output> Share<'_, In, Out> {
    fn run(&mut self, deadline: Duration) -> Result<RunReport, RunError> {
        let Self { plan, part, .. } = *self;
        let deadline = Deadline::after(&*self.worker.device, deadline);
        let mut totals = plan.finish.as_ref().map(|_| Totals::new(part.rows.len() * plan.output[1], plan.output[2]));
        let mut report = RunReport::default();
        for (piece, network) in &part.pieces {
            let bytes = piece.gather(self.image, plan.repeat, plan.outside);
            // PANIC: a worker loads the networks of its pieces.
            let resident = self.worker.residents[*network].as_mut().expect("the piece's network is loaded");
            let mut found = [Vec::new()];
            report.add(resident.run(&[&bytes], &mut found, deadline)?);
            match &mut totals {
                Some(totals) => self.add(piece, &found[0], totals),
                None => self.place(piece, &found[0]),
            }
        }
        if let (Some(finish), Some(totals)) = (&plan.finish, totals) {
            for (pixel, results) in self.results.chunks_exact_mut(plan.output[2]).enumerate() {
                let sums = &totals.sums[pixel * results.len()..][..results.len()];
                for (channel, (result, sum)) in results.iter_mut().zip(sums).enumerate() {
                    *result = finish.result(channel, *sum, totals.windows[pixel]);
                }
            }
        }
        Ok(report)
    }

    /// The pixels of a piece, in order, as indices of the part's.
    fn pixels(&self, piece: &Piece) -> impl Iterator<Item = usize> + use<In, Out> {
        let (width, columns) = (self.plan.output[1], piece.columns.clone());
        let rows = piece.rows.start - self.part.rows.start..piece.rows.end - self.part.rows.start;
        rows.flat_map(move |row| columns.clone().map(move |column| row * width + column))
    }

    /// Puts finished results where they belong.
    fn place(&mut self, piece: &Piece, found: &[u8]) {
        let channels = self.plan.output[2];
        let pixel_bytes = piece.outputs.len() * Out::TYPE.bytes();
        for (pixel, found) in self.pixels(piece).zip(found.chunks_exact(pixel_bytes)) {
            let results = &mut self.results[pixel * channels..][piece.outputs.clone()];
            Out::get(found, results);
        }
    }

    /// Adds sums to those of other pieces. A channel beyond the piece's is the sum of the window.
    fn add(&self, piece: &Piece, found: &[u8], totals: &mut Totals) {
        let channels = self.plan.output[2];
        let pixels = piece.rows.len() * piece.columns.len();
        let (sums, _) = found.as_chunks::<4>();
        for (pixel, sums) in self.pixels(piece).zip(sums.chunks_exact(sums.len() / pixels)) {
            let (own, window) = sums.split_at(piece.outputs.len());
            let all = &mut totals.sums[pixel * channels..][piece.outputs.clone()];
            all.iter_mut().zip(own).for_each(|(total, sum)| *total += real::<In>(*sum));
            window.iter().for_each(|sum| totals.windows[pixel] += real::<In>(*sum));
        }
    }
}

/// Sums that are added on the host. A double holds integers of 53 bits.
struct Totals {
    sums: Vec<f64>,
    /// Of the inputs of each pixel's window.
    windows: Vec<f64>,
}

impl Totals {
    fn new(pixels: usize, channels: usize) -> Self {
        Self { sums: vec![0.0; pixels * channels], windows: vec![0.0; pixels] }
    }
}

/// A sum as the NPU writes it.
fn real<In: Element>(bytes: [u8; 4]) -> f64 {
    if In::TYPE.is_integer() { i32::from_le_bytes(bytes).into() } else { f32::from_le_bytes(bytes).into() }
}
