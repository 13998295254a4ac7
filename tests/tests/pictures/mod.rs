//! Convolutions of pictures in exact arithmetic, written without a look at the planner, and how results compare with them.

#![allow(dead_code, reason = "each test file uses a part")]

#[path = "../place/mod.rs"]
pub(crate) mod place;

use half::f16;
use npu::{Context, Options, Window};
use npu_sim::Options as Sim;
use place::Place;
use rand::Rng;
use rand::rngs::StdRng;

/// A number of a test.
pub(crate) trait Number: Copy + Default + std::fmt::Debug + PartialEq {
    /// The lowest quantised number.
    const LOWEST: i32 = 0;
    fn random(rng: &mut StdRng) -> Self;
    fn real(self) -> f64;
}

impl Number for i8 {
    const LOWEST: i32 = -128;
    fn random(rng: &mut StdRng) -> Self {
        rng.random()
    }
    fn real(self) -> f64 {
        self.into()
    }
}

impl Number for u8 {
    fn random(rng: &mut StdRng) -> Self {
        rng.random()
    }
    fn real(self) -> f64 {
        self.into()
    }
}

impl Number for f16 {
    fn random(rng: &mut StdRng) -> Self {
        Self::from_f32(rng.random_range(-1.0f32..1.0))
    }
    fn real(self) -> f64 {
        self.to_f64()
    }
}

impl Number for i32 {
    fn random(rng: &mut StdRng) -> Self {
        rng.random_range(-100_000..100_000)
    }
    fn real(self) -> f64 {
        self.into()
    }
}

impl Number for f32 {
    fn random(rng: &mut StdRng) -> Self {
        rng.random_range(-1.0..1.0)
    }
    fn real(self) -> f64 {
        self.into()
    }
}

pub(crate) fn random<T: Number>(rng: &mut StdRng, count: usize) -> Vec<T> {
    (0..count).map(|_| T::random(rng)).collect()
}

pub(crate) fn reals<T: Number>(values: &[T]) -> Vec<f64> {
    values.iter().map(|value| value.real()).collect()
}

/// A sum of products, and the sum of their magnitudes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sum {
    pub(crate) value: f64,
    pub(crate) magnitude: f64,
}

impl Sum {
    pub(crate) fn add(&mut self, product: f64) {
        self.value += product;
        self.magnitude += product.abs();
    }
}

/// A convolution in numbers whose sums a double holds: integers below 2^53, or real numbers nearly.
pub(crate) struct Exact<'a> {
    pub(crate) shape: [usize; 3],
    pub(crate) window: Window,
    pub(crate) channels: usize,
    pub(crate) depthwise: bool,
    /// Input less its zero point; 0 is outside.
    pub(crate) input: &'a [f64],
    /// Weights less their zero points, in the library's order.
    pub(crate) filter: &'a [f64],
}

impl Exact<'_> {
    /// `[h', w', channels]`.
    pub(crate) fn sums(&self) -> Vec<Sum> {
        let [h, w, c] = self.shape;
        let Window { kernel: [kh, kw], stride, dilation, padding } = self.window;
        let outputs = |extent: usize, before: usize, after: usize, axis: usize| {
            let span = [kh, kw][axis] * dilation[axis] - dilation[axis] + 1;
            (extent + before + after - span) / stride[axis] + 1
        };
        let (oh, ow) = (outputs(h, padding.top, padding.bottom, 0), outputs(w, padding.left, padding.right, 1));
        let mut sums = vec![Sum::default(); oh * ow * self.channels];
        for (at, sums) in sums.chunks_exact_mut(self.channels).enumerate() {
            for (ky, kx) in (0..kh).flat_map(|ky| (0..kw).map(move |kx| (ky, kx))) {
                let y = (at / ow * stride[0] + ky * dilation[0]).wrapping_sub(padding.top);
                let x = (at % ow * stride[1] + kx * dilation[1]).wrapping_sub(padding.left);
                if y >= h || x >= w {
                    continue;
                }
                let pixel = &self.input[(y * w + x) * c..][..c];
                let tap = ky * kw + kx;
                for (o, sum) in sums.iter_mut().enumerate() {
                    if self.depthwise {
                        let from = o / (self.channels / c);
                        sum.add(pixel[from] * self.filter[tap * self.channels + o]);
                        continue;
                    }
                    let weights = &self.filter[(o * kh * kw + tap) * c..][..c];
                    pixel.iter().zip(weights).for_each(|(x, w)| sum.add(x * w));
                }
            }
        }
        sums
    }
}

/// Real results within their bounds, and alike as a whole. `roundings`: to half precision, of numbers up to the largest.
pub(crate) fn compare_reals(what: &str, found: &[f64], exact: &[Sum], depth: usize, roundings: usize) {
    assert_eq!(found.len(), exact.len(), "{what}");
    let largest = exact.iter().map(|sum| sum.value.abs()).fold(0.0, f64::max);
    let (mut dot, mut own, mut other) = (0.0, 0.0, 0.0);
    for (index, (found, exact)) in found.iter().zip(exact).enumerate() {
        let single = (depth as f64 / 16.0 + 4.0) * 2f64.powi(-24) * exact.magnitude;
        let bound = single + roundings as f64 * 2f64.powi(-11) * largest;
        assert!((found - exact.value).abs() <= bound, "{what}: element {index}: {found} for {exact:?}, bound {bound}");
        dot += found * exact.value;
        own += found * found;
        other += exact.value * exact.value;
    }
    assert!(dot / (own.sqrt() * other.sqrt()).max(f64::MIN_POSITIVE) > 0.99999, "{what}: cosine of the results");
}

/// How a convolution runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mode {
    pub(crate) name: &'static str,
    pub(crate) sim: fn() -> Sim,
    pub(crate) workers: usize,
}

pub(crate) const STOCK: Mode = Mode { name: "stock, three workers", sim: Sim::default, workers: 3 };
pub(crate) const BATCHED: Mode = Mode { name: "batched, one worker", sim: Sim::batched, workers: 1 };
pub(crate) const MODES: [Mode; 2] = [STOCK, BATCHED];

/// The other chip.
pub(crate) const RK3576: [Mode; 2] = [
    Mode { name: "RK3576, two workers", sim: Sim::rk3576, workers: 2 },
    Mode { name: "RK3576, one worker", sim: Sim::rk3576, workers: 1 },
];

pub(crate) fn context(mode: Mode) -> (Place, Context) {
    place::open((mode.sim)(), Options { workers: mode.workers, ..Options::default() })
}
