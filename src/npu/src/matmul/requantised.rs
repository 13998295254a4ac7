//! Products of 8-bit integers whose sums become 8-bit results on the chip, with a scale for each column.
//!
//! C\[m, n\] = sat8(round(scale · scale_n · (Σ (A\[m, k\] − zero) · (B\[n, k\] − zero_n) + bias_n) / result scale) + zero of the
//! result), within one of exact rounding. It is a convolution of one pixel, so its planner, which shares the output
//! converter among columns of like scales, does all the work: see [`crate::quantize`]. All of the depth is one task.

use std::sync::Arc;

use npu_device::{Deadline, Device};

use super::Matrix;
use crate::context::{Context, Worker};
use crate::error::{RunError, RunReport, Unsupported};
use crate::network::{Network, NetworkBuilder};
use crate::ops::{Activation, Bias, Conv2d, ElementType, Filter, Quant, Window};
use crate::run::Resident;

/// What the numbers of a requantised product mean.
#[derive(Clone, Copy, Debug)]
pub struct Requantised<'a> {
    /// Of the first factor.
    pub first: Quant,
    /// Scales of the second factor: one, or one per column.
    pub scales: &'a [f32],
    /// Zero points of the second factor: one per column, or none where all are 0.
    pub zero_points: &'a [i32],
    /// Added to the sums: one per column, in units of both scales; or none.
    pub bias: &'a [i32],
    /// Of the results.
    pub result: Quant,
    /// Limits of the results.
    pub activation: Activation,
}

/// A second factor in device memory, with what its results need: every worker has all of it, and computes rows of its own, so
/// that how many there are changes no result.
#[derive(Debug)]
pub struct RequantisedWeights {
    rows: usize,
    depth: usize,
    columns: usize,
    parts: Vec<Part>,
}

/// What a worker has.
#[derive(Debug)]
struct Part {
    device: Arc<dyn Device>,
    resident: Resident,
    /// Some rows of the first factor, as bytes; and their results.
    input: Vec<u8>,
    output: [Vec<u8>; 1],
}

impl RequantisedWeights {
    /// Bytes of device memory.
    pub fn device_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.resident.device_bytes()).sum()
    }
}

impl Context {
    /// One product. `c`: `[a.rows, b.rows]`. Any number of rows.
    ///
    /// # Errors
    /// As [`Context::matmul`]; [`RunError::Unsupported`] also for lists of other lengths, scales that are not positive, and
    /// a depth that does not fit one task.
    pub fn matmul_requantised(
        &mut self,
        a: Matrix<'_, i8>,
        b: Matrix<'_, i8>,
        meaning: &Requantised<'_>,
        c: &mut [i8],
    ) -> Result<RunReport, RunError> {
        let rows = a.rows().div_ceil(self.workers.len());
        let mut weights = self.pack_requantised(b, meaning, rows)?;
        self.matmul_requantised_resident(a, &mut weights, c)
    }

    /// Packs a second factor once, for any number of rows, of which each worker computes `rows` at a time. Fewer are padded.
    ///
    /// # Errors
    /// As [`Context::matmul_requantised`].
    pub fn pack_requantised(
        &mut self,
        b: Matrix<'_, i8>,
        meaning: &Requantised<'_>,
        rows: usize,
    ) -> Result<RequantisedWeights, RunError> {
        let (depth, columns) = (b.columns(), b.rows());
        let network = self.requantised_network(b, meaning, rows)?;
        let load = |worker: &Worker| {
            let resident = network.load(&worker.device)?;
            let (input, output) = (vec![0; rows * depth], [Vec::new()]);
            Ok(Part { device: Arc::clone(&worker.device), resident, input, output })
        };
        let parts = self.workers.iter().map(load).collect::<Result<_, RunError>>()?;
        Ok(RequantisedWeights { rows, depth, columns, parts })
    }

    /// The product as a network of one convolution.
    fn requantised_network(
        &self,
        b: Matrix<'_, i8>,
        meaning: &Requantised<'_>,
        rows: usize,
    ) -> Result<Network, RunError> {
        let (depth, columns) = (b.columns(), b.rows());
        check_lists(meaning, columns)?;
        let data: Vec<u8> = b.values().iter().map(|value| value.cast_unsigned()).collect();
        // As many zero points as scales.
        let scales = match meaning.scales {
            [scale] => &vec![*scale; columns],
            scales => scales,
        };
        let mut builder = NetworkBuilder::new(&self.chip);
        let input = builder.input([rows, 1, depth], ElementType::I8, meaning.first)?;
        let conv = Conv2d {
            window: Window::POINT,
            channels: columns,
            filter: Filter { data: &data, scales, zero_points: meaning.zero_points },
            bias: if meaning.bias.is_empty() { Bias::None } else { Bias::I32(meaning.bias) },
            output: meaning.result,
            activation: meaning.activation,
        };
        let output = builder.conv2d(input, &conv)?;
        builder.output(output);
        Ok(builder.build()?)
    }

    /// A product with a resident second factor. `c`: `[a.rows, columns]`. Any number of rows.
    ///
    /// # Errors
    /// As [`Context::matmul_requantised`], and for weights of another context or of more workers.
    pub fn matmul_requantised_resident(
        &mut self,
        a: Matrix<'_, i8>,
        b: &mut RequantisedWeights,
        c: &mut [i8],
    ) -> Result<RunReport, RunError> {
        self.check_own(b.parts.iter().map(|part| &part.device))?;
        if a.columns() != b.depth {
            return Err(Unsupported::new(format!("a depth of {} and weights of depth {}", a.columns(), b.depth)).into());
        }
        let (found, expected) = (c.len(), a.rows() * b.columns);
        if found != expected {
            return Err(RunError::Size { what: "result", index: 0, found, expected });
        }
        let outcome = self.requantised_rows(a.values(), b, c);
        if outcome.is_err() {
            // An unverified result is never handed out.
            c.fill(0);
        }
        self.record("matmul", outcome)
    }

    /// Gives every worker rows until none are left.
    fn requantised_rows(&mut self, a: &[i8], b: &mut RequantisedWeights, c: &mut [i8]) -> Result<RunReport, RunError> {
        let RequantisedWeights { rows, depth, columns, parts } = b;
        let (given, wanted) = (*rows * *depth, *rows * *columns);
        let mut total = RunReport::default();
        for (a, c) in a.chunks(given * parts.len()).zip(c.chunks_mut(wanted * parts.len())) {
            let mut shares = parts.iter_mut().zip(a.chunks(given)).zip(c.chunks_mut(wanted));
            let report = self.on_workers(
                |_, _| shares.next(),
                |worker, ((part, a), c), options, _| {
                    let deadline = Deadline::after(&*worker.device, options.deadline);
                    part.run(a, c, deadline)
                },
            )?;
            total.add(report);
        }
        Ok(total)
    }
}

impl Part {
    /// Computes as many rows as there is room for, or fewer.
    fn run(&mut self, a: &[i8], c: &mut [i8], deadline: Deadline) -> Result<RunReport, RunError> {
        let (given, padding) = self.input.split_at_mut(a.len());
        given.iter_mut().zip(a).for_each(|(byte, value)| *byte = value.cast_unsigned());
        padding.fill(0);
        let report = self.resident.run(&[&*self.input], &mut self.output, deadline)?;
        c.iter_mut().zip(&self.output[0]).for_each(|(value, byte)| *value = byte.cast_signed());
        Ok(report)
    }
}

fn check_lists(meaning: &Requantised<'_>, columns: usize) -> Result<(), Unsupported> {
    let lists = [
        ("scales", meaning.scales.len(), 1),
        ("zero points", meaning.zero_points.len(), 0),
        ("biases", meaning.bias.len(), 0),
    ];
    match lists.into_iter().find(|(_, len, other)| len != other && *len != columns) {
        Some((what, len, _)) => Err(Unsupported::new(format!("{len} {what} for {columns} columns"))),
        None => Ok(()),
    }
}
