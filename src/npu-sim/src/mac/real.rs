//! Real numbers: exact sums of the products of an input group, rounded once to single precision and added in order.
//!
//! An input group has 32 channels, 16 in tf32. A product of two half-precision, bf16 or tf32 numbers is exact in double
//! precision. So is a sum of 32 of them in any order, where all products are multiples of some 2^q and their magnitudes
//! sum to less than 2^(q+53); [`Spread`] decides that for the features and 16 kernels at once. Other groups are summed
//! without rounding. SOURCE: npu-spec 5.3; that bf16 and tf32 group their sums as half precision does is an inference.

use std::ops::Range;

use half::f16;

use super::Padded;
use crate::cna::{Fetch, Window, input_group, reals};
use crate::rdma::Extents;

/// Output channels that are computed together.
const KERNELS: usize = 16;
/// Bits of a double-precision mantissa.
const MANTISSA: i32 = 53;
/// Bits by which a sum of 32 numbers can exceed the largest.
const SUM_BITS: i32 = 5;
/// Channels of the largest input group.
const INPUT_GROUP_MOST: usize = 32;

/// A convolution of real numbers, ready to compute any part of its output.
pub(crate) struct Real {
    features: Padded<f64>,
    /// Of each input group of `features`.
    feature_spreads: Vec<Spread>,
    /// Direct: `[16 kernels, input group, kh, kw, lane, kernel]`. Depthwise: `[kh, kw, c]`.
    weights: Vec<f64>,
    /// Of each input group × 16 kernels of `weights`.
    weight_spreads: Vec<Spread>,
    window: Window,
    depthwise: bool,
    width: usize,
    /// Channels of an input group.
    lanes: usize,
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
            // Every element is a normal number in double precision.
            // CAST: bit positions are small.
            let exponent = (value.to_bits() >> 52 & 0x7ff) as i32 - 1023;
            let zeros = (value.to_bits() | 1 << 52).trailing_zeros() as i32;
            spread.low = spread.low.min(exponent - 52 + zeros);
            spread.high = spread.high.max(exponent + 1);
        }
        spread
    }

    /// Whether 32 products of such numbers add exactly in double precision.
    fn exact(&self, other: &Self) -> bool {
        self.finite && other.finite && self.high + other.high + SUM_BITS - self.low - other.low <= MANTISSA
    }
}

impl Real {
    /// Prepares a task from bytes as [`Fetch`] reads them.
    pub(crate) fn new(fetch: &Fetch, extents: Extents, features: &[u8], weights: &[u8], group: usize) -> Self {
        // CAST: the low half of the constant is the number; known programs write 0.
        let pad = f16::from_bits((fetch.pad_value & 0xffff) as u16).to_f64();
        let lanes = input_group(fetch.precision);
        let doubles = |bytes: &[u8]| reals(fetch.precision, bytes);
        let features = Padded::new(&doubles(features), fetch, extents, &vec![pad; fetch.channels]);
        let kernels = doubles(weights);
        let weights = if fetch.depthwise { kernels } else { interleave(&kernels, fetch) };
        Self {
            feature_spreads: features.data.chunks_exact(lanes).map(|group| Spread::of(group.iter())).collect(),
            weight_spreads: weights.chunks_exact(lanes * KERNELS).map(|all| Spread::of(all.iter())).collect(),
            features,
            weights,
            window: fetch.window,
            depthwise: fetch.depthwise,
            width: extents.width,
            lanes,
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
        let lanes = self.lanes;
        let input_groups = self.features.channels / lanes;
        let first = group * input_groups * self.taps();
        // Kernels that do not exist leave zeros.
        if first >= self.weight_spreads.len() {
            return;
        }
        for step in 0..input_groups * self.taps() {
            let (input_group, tap) = (step / self.taps(), step % self.taps());
            let start = pixel + self.features.tap(&self.window, tap) + input_group * lanes;
            let features = &self.features.data[start..][..lanes];
            let weights = &self.weights[(first + step) * lanes * KERNELS..][..lanes * KERNELS];
            let exact = self.feature_spreads[start / lanes].exact(&self.weight_spreads[first + step]);
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

/// Kernels `[kernel, kh, kw, c]` as [`Real::weights`] wants them, with empty kernels up to whole groups.
fn interleave(kernels: &[f64], fetch: &Fetch) -> Vec<f64> {
    let (taps, channels, lanes) = (fetch.taps(), fetch.channels, input_group(fetch.precision));
    let kernel = taps * channels;
    let mut weights = vec![0.0; fetch.kernels.next_multiple_of(KERNELS) * kernel];
    for (k, values) in kernels.chunks_exact(kernel).enumerate() {
        for (i, value) in values.iter().enumerate() {
            let (tap, channel) = (i / channels, i % channels);
            let step = channel / lanes * taps + tap;
            let block = k / KERNELS * (kernel / lanes) + step;
            weights[(block * lanes + channel % lanes) * KERNELS + k % KERNELS] = *value;
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
        exact_sum(products)
    })
}

/// The exact sum of at most 32 numbers, rounded once.
///
/// The sum is kept as numbers that do not overlap (Shewchuk's expansion). Their leading one, with its last bit set where
/// anything follows, rounds to single precision as the whole sum does.
fn exact_sum(values: impl Iterator<Item = f64>) -> f32 {
    let mut parts = [0.0; INPUT_GROUP_MOST];
    let mut used = 0;
    for mut high in values {
        let mut kept = 0;
        for i in 0..used {
            let (sum, rest) = two_sum(high, parts[i]);
            if rest != 0.0 {
                parts[kept] = rest;
                kept += 1;
            }
            high = sum;
        }
        parts[kept] = high;
        used = kept + 1;
    }
    let (mut sum, mut rest) = (0.0, 0.0);
    for part in parts[..used].iter().rev() {
        (sum, rest) = two_sum(sum, *part);
        if rest != 0.0 {
            break;
        }
    }
    // CAST: the one rounding.
    to_odd(sum, rest) as f32
}

/// A sum and what its rounding lost.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// `sum`, moved towards `rest` by less than its last bit: where `rest` is not 0, the last bit is set.
fn to_odd(sum: f64, rest: f64) -> f64 {
    if rest == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let away = (sum > 0.0) == (rest > 0.0);
    f64::from_bits(if away { sum.to_bits() + 1 } else { sum.to_bits() - 1 })
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

    /// The sum as one integer: a half-precision number is a multiple of 2^-24.
    fn fixed(features: &[f64], weights: &[f64], kernel: usize) -> f32 {
        let unit = (1u64 << 48) as f64;
        let products = features.iter().zip(weights.as_chunks::<KERNELS>().0).map(|(x, w)| x * w[kernel] * unit);
        products.map(|product| product as i128).sum::<i128>() as f32 / unit as f32
    }

    proptest! {
        #[test]
        fn the_slow_path_is_exact(x in values(0u16..0x7c00, 32), w in values(0u16..0x7c00, 512)) {
            let x: Vec<f64> = x.iter().enumerate().map(|(i, x)| if i % 3 == 0 { -x } else { *x }).collect();
            let exact = std::array::from_fn(|kernel| fixed(&x, &w, kernel));
            prop_assert_eq!(slow(&x, &w), exact);
        }

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
