//! Half precision: exact sums of 32 products, rounded once to single precision and added in order.
//!
//! A product of two half-precision numbers is exact in double precision. So is a sum of 32 of them in any order, where
//! all products are multiples of some 2^q and their magnitudes sum to less than 2^(q+53); [`Spread`] decides that for
//! 32 features and 16 kernels at once. Other groups are summed as 128-bit integers. SOURCE: npu-spec 5.3.

use std::ops::Range;

use half::f16;

use super::Padded;
use crate::cna::{Fetch, INPUT_GROUP, Window, halves};
use crate::rdma::Extents;

/// Output channels that are computed together.
const KERNELS: usize = 16;
/// Bits of a double-precision mantissa.
const MANTISSA: i32 = 53;
/// Bits by which a sum of 32 numbers can exceed the largest.
const SUM_BITS: i32 = 5;
/// Products are multiples of 2^-48: the smallest half-precision number is 2^-24.
const UNIT: f64 = (1u64 << 48) as f64;

/// A half-precision convolution, ready to compute any part of its output.
pub(crate) struct Half {
    features: Padded<f64>,
    /// Of each 32 channels of `features`.
    feature_spreads: Vec<Spread>,
    /// Direct: `[16 kernels, input group, kh, kw, lane, kernel]`. Depthwise: `[kh, kw, c]`.
    weights: Vec<f64>,
    /// Of each 32 lanes × 16 kernels of `weights`.
    weight_spreads: Vec<Spread>,
    window: Window,
    depthwise: bool,
    width: usize,
    group: usize,
}

/// Bounds of some numbers: each is a multiple of 2^low and smaller than 2^high.
#[derive(Clone, Copy, Debug)]
struct Spread {
    low: i32,
    high: i32,
    finite: bool,
}

impl Spread {
    fn of<'a>(values: impl Iterator<Item = &'a f64>) -> Self {
        // Zeros allow everything.
        let mut spread = Self { low: 1000, high: -1000, finite: true };
        for value in values.filter(|value| **value != 0.0) {
            spread.finite &= value.is_finite();
            // A half-precision number times 2^24 is an integer below 2^40.
            // CAST: exact, or not finite and of no interest; bit positions are small.
            let integer = (value.abs() * (1u64 << 24) as f64) as u64;
            spread.low = spread.low.min(integer.trailing_zeros() as i32 - 24);
            spread.high = spread.high.max(integer.checked_ilog2().unwrap_or(0) as i32 - 23);
        }
        spread
    }

    /// Whether 32 products of such numbers add exactly in double precision.
    fn exact(&self, other: &Self) -> bool {
        self.finite && other.finite && self.high + other.high + SUM_BITS - self.low - other.low <= MANTISSA
    }
}

impl Half {
    /// Prepares a task from bytes as [`Fetch`] reads them.
    pub(crate) fn new(fetch: &Fetch, extents: Extents, features: &[u8], weights: &[u8], group: usize) -> Self {
        // CAST: the low half of the constant is the number; known programs write 0.
        let pad = f16::from_bits((fetch.pad_value & 0xffff) as u16).to_f64();
        let doubles = |bytes: &[u8]| halves(bytes).into_iter().map(f16::to_f64).collect::<Vec<_>>();
        let features = Padded::new(&doubles(features), fetch, extents, &vec![pad; fetch.channels]);
        let kernels = doubles(weights);
        let weights = if fetch.depthwise { kernels } else { interleave(&kernels, fetch) };
        Self {
            feature_spreads: features.data.chunks_exact(INPUT_GROUP).map(|lanes| Spread::of(lanes.iter())).collect(),
            weight_spreads: weights.chunks_exact(INPUT_GROUP * KERNELS).map(|all| Spread::of(all.iter())).collect(),
            features,
            weights,
            window: fetch.window,
            depthwise: fetch.depthwise,
            width: extents.width,
            group,
        }
    }

    /// Accumulators of the rows of one group: `[row, column, channel of the group]`.
    pub(crate) fn accumulate(&self, group: usize, rows: Range<usize>) -> Vec<f32> {
        let mut sums = vec![0.0; rows.len() * self.width * self.group];
        let pixels = rows.flat_map(|row| (0..self.width).map(move |column| (row, column)));
        for ((row, column), sums) in pixels.zip(sums.chunks_exact_mut(self.group)) {
            let pixel = self.features.at(&self.window, row, column);
            if self.depthwise {
                self.depthwise(pixel, group, sums);
            } else {
                self.direct(pixel, group, sums);
            }
        }
        sums
    }

    fn taps(&self) -> usize {
        self.window.kernel[0] * self.window.kernel[1]
    }

    fn direct(&self, pixel: usize, group: usize, sums: &mut [f32]) {
        let input_groups = self.features.channels / INPUT_GROUP;
        let first = group * input_groups * self.taps();
        // Kernels that do not exist leave zeros.
        if first >= self.weight_spreads.len() {
            return;
        }
        for step in 0..input_groups * self.taps() {
            let (input_group, tap) = (step / self.taps(), step % self.taps());
            let start = pixel + self.features.tap(&self.window, tap) + input_group * INPUT_GROUP;
            let features = &self.features.data[start..][..INPUT_GROUP];
            let weights = &self.weights[(first + step) * INPUT_GROUP * KERNELS..][..INPUT_GROUP * KERNELS];
            let exact = self.feature_spreads[start / INPUT_GROUP].exact(&self.weight_spreads[first + step]);
            let products = if exact { fast(features, weights) } else { slow(features, weights) };
            for (sum, product) in sums.iter_mut().zip(products) {
                *sum += product;
            }
        }
    }

    /// Every kernel position is a group of its own, as its 32 lanes are different channels: an inference.
    fn depthwise(&self, pixel: usize, group: usize, sums: &mut [f32]) {
        let first = group * self.group;
        let lanes = self.group.min(self.features.channels.saturating_sub(first));
        for tap in 0..self.taps() {
            let start = pixel + self.features.tap(&self.window, tap) + first;
            for (lane, sum) in sums.iter_mut().enumerate().take(lanes) {
                // CAST: a product of two half-precision numbers is exact in single precision too.
                let weight = self.weights[tap * self.features.channels + first + lane];
                *sum += (self.features.data[start + lane] * weight) as f32;
            }
        }
    }
}

/// Kernels `[kernel, kh, kw, c]` as [`Half::weights`] wants them, with empty kernels up to whole groups.
fn interleave(kernels: &[f64], fetch: &Fetch) -> Vec<f64> {
    let (taps, channels) = (fetch.taps(), fetch.channels);
    let kernel = taps * channels;
    let mut weights = vec![0.0; fetch.kernels.next_multiple_of(KERNELS) * kernel];
    for (k, values) in kernels.chunks_exact(kernel).enumerate() {
        for (i, value) in values.iter().enumerate() {
            let (tap, channel) = (i / channels, i % channels);
            let step = channel / INPUT_GROUP * taps + tap;
            let block = k / KERNELS * (kernel / INPUT_GROUP) + step;
            weights[(block * INPUT_GROUP + channel % INPUT_GROUP) * KERNELS + k % KERNELS] = *value;
        }
    }
    weights
}

/// Sums of products, where double precision holds them exactly.
fn fast(features: &[f64], weights: &[f64]) -> [f32; KERNELS] {
    let mut sums = [0.0; KERNELS];
    for (x, weights) in features.iter().zip(weights.as_chunks::<KERNELS>().0) {
        for (sum, w) in sums.iter_mut().zip(weights) {
            *sum += x * w;
        }
    }
    // CAST: the one rounding.
    sums.map(|sum: f64| sum as f32)
}

/// Sums of any products.
fn slow(features: &[f64], weights: &[f64]) -> [f32; KERNELS] {
    std::array::from_fn(|kernel| {
        let products = features.iter().zip(weights.as_chunks::<KERNELS>().0).map(|(x, w)| x * w[kernel]);
        if products.clone().any(|product| !product.is_finite()) {
            // CAST: infinities and NaN do not care for rounding.
            return products.sum::<f64>() as f32;
        }
        // CAST: an integer below 2^80; then the one rounding.
        let sum: i128 = products.map(|product| (product * UNIT) as i128).sum();
        sum as f32 / UNIT as f32
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values(lane: impl Strategy<Value = u16>, len: usize) -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(lane.prop_map(|bits| f16::from_bits(bits).to_f64()), len)
    }

    /// Half-precision bits of numbers about 1.
    fn ordinary() -> impl Strategy<Value = u16> {
        (0x2c00u16..0x4400, any::<bool>()).prop_map(|(bits, negative)| bits | u16::from(negative) << 15)
    }

    proptest! {
        #[test]
        fn the_fast_path_equals_the_slow_one(x in values(ordinary(), 32), w in values(ordinary(), 512)) {
            prop_assume!(Spread::of(x.iter()).exact(&Spread::of(w.iter())));
            prop_assert_eq!(fast(&x, &w), slow(&x, &w));
        }

        #[test]
        fn an_exact_sum_does_not_depend_on_order(x in values(0u16..0x7c00, 32), w in values(0u16..0x7c00, 512)) {
            let reversed = |v: &[f64], n: usize| v.chunks(n).rev().flatten().copied().collect::<Vec<_>>();
            prop_assert_eq!(slow(&x, &w), slow(&reversed(&x, 1), &reversed(&w, KERNELS)));
        }
    }

    #[test]
    fn a_small_product_survives_beside_large_ones() {
        let (mut x, mut w) = (vec![0.0; 32], vec![0.0; 512]);
        (x[0], x[1], x[2]) = (65504.0, -65504.0, 2f64.powi(-24));
        (w[0], w[KERNELS], w[2 * KERNELS]) = (65504.0, 65504.0, 2f64.powi(-24));
        assert!(!Spread::of(x.iter()).exact(&Spread::of(w.iter())));
        assert_eq!(slow(&x, &w)[0], 2f32.powi(-48));
    }

    #[test]
    fn infinities_and_nan_propagate() {
        let (mut x, mut w) = (vec![1.0; 32], vec![1.0; 512]);
        x[3] = f64::INFINITY;
        assert_eq!(slow(&x, &w)[0], f32::INFINITY);
        w[3 * KERNELS] = 0.0;
        assert!(slow(&x, &w)[0].is_nan());
    }
}
