//! Integers: exact 32-bit sums of 4-bit and 8-bit products, saturated sums of 16-bit ones.

use std::ops::Range;

use wide::{i16x8, i32x4};

use super::Padded;
use crate::cna::{Fetch, Window, int4, int8, int16};
use crate::dpu::{Stages, half_to_even, saturate};
use crate::rdma::Extents;
use npu_regs::Precision;

/// Lanes of a vector.
const LANES: usize = 8;
/// Kernels that are computed at once.
const KERNELS: usize = 4;
/// Pixels that are computed at once.
const PIXELS: usize = 2;

/// An integer convolution, ready to compute any part of its output.
pub(crate) struct Integer {
    features: Padded<i16>,
    /// Direct: `[kernel, kh, kw, c]`, padded with empty kernels to whole groups. Depthwise: `[kh, kw, c]`.
    weights: Vec<i16>,
    window: Window,
    depthwise: bool,
    width: usize,
    truncate: u32,
    /// Elements have 16 bits.
    wide: bool,
    /// Channels per group of the output.
    group: usize,
}

impl Integer {
    /// Prepares a task from bytes as [`Fetch`] reads them.
    pub(crate) fn new(
        fetch: &Fetch,
        extents: Extents,
        features: &[u8],
        weights: &[u8],
        group: usize,
        truncate: u32,
    ) -> Self {
        let pad = fetch.pad_value.to_le_bytes().map(|byte| i16::from(byte.cast_signed()));
        let outside: Vec<i16> = (0..fetch.channels).map(|channel| pad[pad_byte(fetch.depthwise, channel)]).collect();
        let numbers = match fetch.precision {
            Precision::Int4 => int4,
            Precision::Int16 => int16,
            _ => int8,
        };
        let mut weights = numbers(weights);
        if !fetch.depthwise {
            let kernel = fetch.taps() * fetch.channels;
            weights.resize(fetch.kernels.next_multiple_of(group) * kernel, 0);
        }
        Self {
            features: Padded::new(&numbers(features), fetch, extents, &outside),
            weights,
            window: fetch.window,
            depthwise: fetch.depthwise,
            width: extents.width,
            truncate,
            wide: fetch.precision == Precision::Int16,
            group,
        }
    }

    /// Accumulators of the rows of one group: `[row, column, channel of the group]`.
    pub(crate) fn accumulate(&self, group: usize, rows: Range<usize>, stages: &Stages) -> Vec<i32> {
        let mut sums = vec![0; rows.len() * self.width * self.group];
        let pixels: Vec<usize> = rows
            .flat_map(|row| (0..self.width).map(move |column| (row, column)))
            .map(|(row, column)| self.features.at(&self.window, row, column))
            .collect();
        if self.depthwise {
            self.depthwise(&pixels, group, stages, &mut sums);
        } else if group * self.group * self.kernel() < self.weights.len() {
            if self.wide {
                self.saturating(&pixels, group, &mut sums);
            } else {
                self.direct(&pixels, group, &mut sums);
            }
            self.compensate(&pixels, group, stages, &mut sums);
        }
        if self.truncate > 0 {
            sums.iter_mut().for_each(|sum| *sum = truncated(*sum, self.truncate));
        }
        sums
    }

    /// Elements of a direct kernel.
    fn kernel(&self) -> usize {
        self.taps() * self.features.channels
    }

    fn taps(&self) -> usize {
        self.window.kernel[0] * self.window.kernel[1]
    }

    /// Stretches of a window that lie together in features and in weights: start in either, length.
    fn stretches(&self) -> Vec<(usize, usize, usize)> {
        let together = if self.window.dilation[1] == 1 { self.window.kernel[1] } else { 1 };
        let len = together * self.features.channels;
        (0..self.taps())
            .step_by(together)
            .map(|tap| (self.features.tap(&self.window, tap), tap * self.features.channels, len))
            .collect()
    }

    fn direct(&self, pixels: &[usize], group: usize, sums: &mut [i32]) {
        let kernel = self.kernel();
        let weights = &self.weights[group * self.group * kernel..][..self.group * kernel];
        let stretches = self.stretches();
        for (pixels, sums) in pixels.chunks(PIXELS).zip(sums.chunks_mut(PIXELS * self.group)) {
            let (first, second) = (pixels[0], pixels[pixels.len() - 1]);
            for (tile, weights) in weights.chunks_exact(KERNELS * kernel).enumerate() {
                let mut tiles = [[i32x4::ZERO; KERNELS]; PIXELS];
                for &(offset, start, len) in &stretches {
                    let features = [first, second].map(|pixel| &self.features.data[pixel + offset..][..len]);
                    let kernels = std::array::from_fn(|i| &weights[i * kernel + start..][..len]);
                    multiply(&mut tiles, features, kernels);
                }
                for (sums, tile_sums) in sums.chunks_exact_mut(self.group).zip(tiles) {
                    for (sum, lanes) in sums[tile * KERNELS..].iter_mut().zip(tile_sums) {
                        *sum = lanes.reduce_add();
                    }
                }
            }
        }
    }

    /// 16-bit products of a matrix: exact sums, clamped on the way out. QUIRK(Q27). SOURCE: npu-spec 5.3.
    fn saturating(&self, pixels: &[usize], group: usize, sums: &mut [i32]) {
        let kernel = self.kernel();
        let weights = &self.weights[group * self.group * kernel..][..self.group * kernel];
        for (pixel, sums) in pixels.iter().zip(sums.chunks_exact_mut(self.group)) {
            let features = &self.features.data[*pixel..][..kernel];
            for (sum, weights) in sums.iter_mut().zip(weights.chunks_exact(kernel)) {
                let products = features.iter().zip(weights).map(|(x, w)| i64::from(i32::from(*x) * i32::from(*w)));
                *sum = saturate(products.sum());
            }
        }
    }

    /// Adds operand × window sum. SOURCE: npu-spec 5.4.
    fn compensate(&self, pixels: &[usize], group: usize, stages: &Stages, sums: &mut [i32]) {
        let Some(operand) = &stages.compensation else { return };
        let operands = &operand[group * self.group..][..self.group];
        if operands.iter().all(|operand| *operand == 0) {
            return;
        }
        let stretches = self.stretches();
        for (pixel, sums) in pixels.iter().zip(sums.chunks_exact_mut(self.group)) {
            let stretch = |&(offset, _, len): &(usize, usize, usize)| -> i64 {
                self.features.data[pixel + offset..][..len].iter().map(|x| i32::from(*x)).sum::<i32>().into()
            };
            let window: i64 = stretches.iter().map(stretch).sum();
            for (sum, operand) in sums.iter_mut().zip(operands) {
                *sum = saturate(i64::from(*sum) + i64::from(*operand) * window);
            }
        }
    }

    fn depthwise(&self, pixels: &[usize], group: usize, stages: &Stages, sums: &mut [i32]) {
        let channels = self.features.channels;
        let first = (group * self.group).min(channels);
        let lanes = self.group.min(channels - first);
        let taps: Vec<usize> = (0..self.taps()).map(|tap| self.features.tap(&self.window, tap)).collect();
        let mut window = vec![0; lanes];
        for (pixel, sums) in pixels.iter().zip(sums.chunks_exact_mut(self.group)) {
            window.fill(0);
            for (tap, offset) in taps.iter().enumerate() {
                let features = &self.features.data[pixel + offset + first..][..lanes];
                let weights = &self.weights[tap * channels + first..][..lanes];
                add_products(sums, &mut window, features, weights);
            }
            let Some(operand) = &stages.compensation else { continue };
            for ((sum, seen), operand) in sums.iter_mut().zip(&window).zip(&operand[first..]) {
                *sum = saturate(i64::from(*sum) + i64::from(*operand) * i64::from(*seen));
            }
        }
    }
}

/// Adds products and, apart from them, features, lane by lane. At most 961 of them are added up: 32 bits cannot overflow.
fn add_products(sums: &mut [i32], seen: &mut [i32], features: &[i16], weights: &[i16]) {
    for (((sum, seen), x), w) in sums.iter_mut().zip(seen).zip(features).zip(weights) {
        *sum = sum.wrapping_add(i32::from(*x).wrapping_mul(i32::from(*w)));
        *seen = seen.wrapping_add(i32::from(*x));
    }
}

/// Adds products of two pixels and four kernels. A kernel has at most 32 KiB, so that 32 bits cannot overflow.
fn multiply(sums: &mut [[i32x4; KERNELS]; PIXELS], features: [&[i16]; PIXELS], kernels: [&[i16]; KERNELS]) {
    let len = features[0].len() / LANES;
    let [a, b] = features.map(|slice| &slice.as_chunks::<LANES>().0[..len]);
    let [w0, w1, w2, w3] = kernels.map(|slice| &slice.as_chunks::<LANES>().0[..len]);
    for i in 0..len {
        let (a, b) = (i16x8::new(a[i]), i16x8::new(b[i]));
        for (k, w) in [w0[i], w1[i], w2[i], w3[i]].into_iter().enumerate() {
            let w = i16x8::new(w);
            sums[0][k] += a.dot(w);
            sums[1][k] += b.dot(w);
        }
    }
}

/// Which byte of the padding constant a channel reads. QUIRK(Q24)
fn pad_byte(depthwise: bool, channel: usize) -> usize {
    usize::from(depthwise && channel % 64 < 32 && channel % 2 == 1)
}

/// Right shift of the accumulator. Its rounding is unknown; half to even is a guess.
fn truncated(value: i32, shift: u32) -> i32 {
    // A right shift makes numbers smaller.
    saturate(half_to_even(value.into(), shift))
}
