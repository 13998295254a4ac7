//! Transposed convolutions and resizing on the simulator, or on a board, by every route, against a reference that adds each
//! input's kernel to the output.

#![allow(clippy::unwrap_used, reason = "everything in this file is a test")]

mod pictures;

use half::f16;
use npu::conv::{Gives, Image, Output, Quantised, Route, Transposed};
use npu::{Activation, Bias, Chip, Context, Options, Padding, Quant, RunError};
use npu_sim::Options as Sim;
use pictures::place::{self, Place};
use pictures::{BATCHED, MODES, Mode, Number, STOCK, Sum, compare_reals, context, random, reals};
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

/// A row of the matrix.
#[derive(Clone, Copy, Debug)]
struct Case {
    what: &'static str,
    shape: [usize; 3],
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    padding: Padding,
    output_padding: [usize; 2],
    channels: usize,
    route: Route,
}

const CASE: Case = Case {
    what: "plain",
    shape: [4, 5, 32],
    kernel: [4, 4],
    stride: [2, 2],
    dilation: [1, 1],
    padding: all(1),
    output_padding: [0, 0],
    channels: 16,
    route: Route::OnChip,
};

const fn all(padding: usize) -> Padding {
    Padding { top: padding, bottom: padding, left: padding, right: padding }
}

/// Direct ones in half precision, and the route that each takes.
const DIRECT: [Case; 17] = [
    CASE,
    Case { what: "a kernel of one step", kernel: [2, 2], padding: all(0), channels: 7, ..CASE },
    Case { what: "few channels", shape: [6, 3, 5], channels: 40, ..CASE },
    Case { what: "steps of 4", kernel: [4, 4], stride: [4, 4], padding: all(0), ..CASE },
    Case { what: "steps of 8", shape: [3, 4, 40], kernel: [9, 9], stride: [8, 8], padding: all(2), ..CASE },
    Case { what: "steps of rows alone", kernel: [3, 3], stride: [2, 1], ..CASE },
    Case { what: "output padding", kernel: [3, 3], output_padding: [1, 1], ..CASE },
    Case { what: "one pixel", shape: [1, 1, 64], ..CASE },
    Case { what: "uneven padding", kernel: [5, 4], padding: Padding { top: 3, bottom: 0, left: 1, right: 2 }, ..CASE },
    Case { what: "many rows", shape: [37, 11, 33], ..CASE },
    Case { what: "padding at the erratum's edge", shape: [3, 3, 32], kernel: [12, 12], padding: all(0), ..CASE },
    Case {
        what: "padding of the erratum",
        shape: [3, 3, 32],
        kernel: [14, 13],
        padding: all(0),
        route: Route::Lowered,
        ..CASE
    },
    Case { what: "steps of 3", stride: [3, 3], route: Route::Lowered, ..CASE },
    Case { what: "different steps", stride: [2, 4], route: Route::Lowered, ..CASE },
    Case { what: "single steps", stride: [1, 1], route: Route::Lowered, ..CASE },
    Case { what: "dilated", kernel: [3, 3], dilation: [2, 3], route: Route::Lowered, ..CASE },
    Case {
        what: "larger than the buffer",
        shape: [70, 90, 32],
        kernel: [2, 2],
        padding: all(0),
        route: Route::Lowered,
        ..CASE
    },
];

/// Padding beyond the kernel's reach, which only scattering can.
const CROPPED: Case = Case { what: "cropped", shape: [6, 7, 20], padding: all(4), ..CASE };

impl Case {
    fn transposed<'a, T>(&self, depthwise: bool, filter: &'a [T]) -> Transposed<'a, T> {
        let new = if depthwise { Transposed::depthwise } else { Transposed::direct };
        new(self.kernel, self.channels, filter)
            .stride(self.stride)
            .dilation(self.dilation)
            .padding(self.padding)
            .output_padding(self.output_padding)
    }

    fn weights(&self, depthwise: bool) -> usize {
        self.kernel[0] * self.kernel[1] * self.channels * if depthwise { 1 } else { self.shape[2] }
    }

    fn output(&self) -> [usize; 2] {
        let Padding { top, bottom, left, right } = self.padding;
        [0, 1].map(|axis| {
            (self.shape[axis] - 1) * self.stride[axis]
                + self.dilation[axis] * (self.kernel[axis] - 1)
                + 1
                + self.output_padding[axis]
                - [top + bottom, left + right][axis]
        })
    }

    /// What each input adds to the output.
    fn exact(&self, depthwise: bool, input: &[f64], filter: &[f64]) -> Vec<Sum> {
        let ([_, w, c], [oh, ow]) = (self.shape, self.output());
        let [kh, kw] = self.kernel;
        let mut sums = vec![Sum::default(); oh * ow * self.channels];
        for (at, pixel) in input.chunks_exact(c).enumerate() {
            for (ky, kx) in (0..kh).flat_map(|ky| (0..kw).map(move |kx| (ky, kx))) {
                let y = (at / w * self.stride[0] + ky * self.dilation[0]).wrapping_sub(self.padding.top);
                let x = (at % w * self.stride[1] + kx * self.dilation[1]).wrapping_sub(self.padding.left);
                if y >= oh || x >= ow {
                    continue;
                }
                let tap = ky * kw + kx;
                for (o, sum) in sums[(y * ow + x) * self.channels..][..self.channels].iter_mut().enumerate() {
                    if depthwise {
                        sum.add(pixel[o * c / self.channels] * filter[tap * self.channels + o]);
                        continue;
                    }
                    let weights = &filter[(o * kh * kw + tap) * c..][..c];
                    pixel.iter().zip(weights).for_each(|(x, w)| sum.add(x * w));
                }
            }
        }
        sums
    }
}

/// A case in half precision with its numbers.
struct Given {
    case: Case,
    depthwise: bool,
    input: Vec<f16>,
    filter: Vec<f16>,
    bias: Vec<f32>,
    exact: Vec<Sum>,
}

impl Given {
    fn new(case: &Case, depthwise: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(case.channels as u64);
        let input = random(&mut rng, case.shape.iter().product());
        let filter = random(&mut rng, case.weights(depthwise));
        let bias: Vec<f32> = random(&mut rng, case.channels);
        let mut exact = case.exact(depthwise, &reals(&input), &reals(&filter));
        exact.iter_mut().enumerate().for_each(|(at, sum)| sum.add(bias[at % case.channels].into()));
        Self { case: *case, depthwise, input, filter, bias, exact }
    }

    fn transposed(&self) -> Transposed<'_, f16> {
        self.case.transposed(self.depthwise, &self.filter).bias(Bias::F32(&self.bias))
    }

    fn depth(&self) -> usize {
        self.filter.len() / self.case.channels
    }

    fn run<Out: Number + Output>(&self, (simulator, mut context): (Place, Context)) -> Vec<Out>
    where
        f16: Gives<Out>,
    {
        let mut found = vec![Out::default(); self.exact.len()];
        let image = Image::new(&self.input, self.case.shape).unwrap();
        let outcome = context.conv_transpose2d(image, &self.transposed(), &mut found);
        outcome.unwrap_or_else(|error| panic!("{:?}: {error}; {:?}", self.case, simulator.faults()));
        found
    }
}

fn on_host(mode: Mode) -> (Place, Context) {
    place::open((mode.sim)(), Options { workers: mode.workers, transposed_on_chip: false, ..Options::default() })
}

#[test]
fn each_shape_takes_its_route() {
    for case in DIRECT {
        let filter = vec![f16::ONE; case.weights(false)];
        let route = case.transposed(false, &filter).route::<f16>(&Chip::RK3588, case.shape).unwrap();
        assert_eq!(route, case.route, "{}", case.what);
    }
    let filter = vec![f16::ONE; CASE.weights(false)];
    let wide = CASE.transposed(false, &filter).route::<f32>(&Chip::RK3588, CASE.shape).unwrap();
    assert_eq!(wide, Route::Lowered, "sums in single precision");
    let filter = vec![1i8; CASE.weights(false)];
    let integers = CASE.transposed(false, &filter).route::<i8>(&Chip::RK3588, CASE.shape).unwrap();
    assert_eq!(integers, Route::Lowered, "integers");
}

#[test]
fn half_precision_agrees_with_the_reference_by_both_routes() {
    for case in DIRECT {
        let given = Given::new(&case, false);
        let contexts = [context(STOCK), context(BATCHED), on_host(STOCK)];
        let [chip, alone, host] = contexts.map(|context| given.run::<f16>(context));
        compare_reals(case.what, &reals(&chip), &given.exact, given.depth(), 1);
        assert!(chip == alone, "{}: workers change a result", case.what);
        // Zeros add nothing, so both routes round alike.
        assert!(chip == host, "{}: the routes differ", case.what);
    }
}

/// Cases of any shape whose padding is within the kernel's reach.
fn cases() -> impl Strategy<Value = Case> {
    let pair = |range: std::ops::Range<usize>| [range.clone(), range];
    let shape = [1..7usize, 1..7, 1..40];
    (shape, pair(1..6), pair(1..5), pair(1..3), pair(0..2), 1..30usize, any::<[u8; 4]>()).prop_map(
        |(shape, kernel, stride, dilation, output_padding, channels, crop)| {
            let cropped =
                |side: usize, axis: usize| usize::from(crop[side]) % (dilation[axis] * (kernel[axis] - 1) + 1);
            let padding =
                Padding { top: cropped(0, 0), bottom: cropped(1, 0), left: cropped(2, 1), right: cropped(3, 1) };
            Case { what: "drawn", shape, kernel, stride, dilation, padding, output_padding, channels, ..CASE }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_transposed_convolution_agrees_with_the_reference_by_every_route(case in cases()) {
        prop_assume!(case.transposed::<f16>(false, &[]).output([case.shape[0], case.shape[1]]).is_ok());
        let given = Given::new(&case, false);
        let contexts = [context(STOCK), on_host(BATCHED)];
        let [chip, host] = contexts.map(|context| given.run::<f16>(context));
        compare_reals("drawn", &reals(&chip), &given.exact, given.depth(), 1);
        prop_assert_eq!(chip, host);
        let (_, mut context) = context(STOCK);
        let scattered = context.load_scattered(case.shape, &given.transposed()).unwrap();
        let mut found = vec![0f32; given.exact.len()];
        scattered.run(&mut context, Image::new(&given.input, case.shape).unwrap(), &mut found).unwrap();
        compare_reals("drawn", &reals(&found), &given.exact, 16 * given.depth(), 0);
    }
}

#[test]
fn depthwise_half_precision_agrees_with_the_reference() {
    for (channels, stride) in [(32, [2, 2]), (5, [3, 1]), (70, [4, 4])] {
        let case = Case { what: "depthwise", shape: [5, 4, channels], channels, stride, ..CASE };
        let given = Given::new(&case, true);
        for mode in MODES {
            compare_reals(mode.name, &reals(&given.run::<f16>(context(mode))), &given.exact, given.depth(), 1);
        }
    }
    let case = Case { what: "a multiplier", shape: [5, 4, 6], channels: 18, ..CASE };
    let given = Given::new(&case, true);
    compare_reals(case.what, &reals(&given.run::<f16>(context(STOCK))), &given.exact, given.depth(), 1);
}

#[test]
fn integers_are_exact_whatever_the_zero_points_are() {
    for case in [CASE, DIRECT[5], DIRECT[12], DIRECT[15], Case { kernel: [2, 2], padding: all(0), ..DIRECT[7] }] {
        let mut rng = StdRng::seed_from_u64(9);
        let input: Vec<i8> = random(&mut rng, case.shape.iter().product());
        let filter: Vec<i8> = random(&mut rng, case.weights(false));
        let less = |values: &[i8], zero_point: f64| -> Vec<f64> {
            values.iter().map(|value| value.real() - zero_point).collect()
        };
        let exact = case.exact(false, &less(&input, -17.0), &less(&filter, 5.0));
        let quantised = Quantised {
            input: Quant { scale: 1.0, zero_point: -17 },
            filter_zero_points: &[5],
            ..Quantised::default()
        };
        for mode in MODES {
            let (_, mut context) = context(mode);
            let mut found = vec![0i32; exact.len()];
            let transposed = case.transposed(false, &filter).quantised(quantised);
            context.conv_transpose2d(Image::new(&input, case.shape).unwrap(), &transposed, &mut found).unwrap();
            assert!(found.iter().zip(&exact).all(|(found, exact)| f64::from(*found) == exact.value), "{}", case.what);
        }
    }
}

#[test]
fn requantised_results_are_within_a_step() {
    for depthwise in [false, true] {
        let case = Case { shape: [5, 6, 16], ..CASE };
        let mut rng = StdRng::seed_from_u64(11);
        let input: Vec<u8> = random(&mut rng, case.shape.iter().product());
        let filter: Vec<u8> = random(&mut rng, case.weights(depthwise));
        let less = |values: &[u8], zero: f64| -> Vec<f64> { values.iter().map(|value| value.real() - zero).collect() };
        let exact = case.exact(depthwise, &less(&input, 100.0), &less(&filter, 131.0));
        let scale = 60.0 / (5500.0 * ((case.weights(depthwise) / 16) as f32).sqrt());
        let quantised = Quantised {
            input: Quant { scale: 1.0, zero_point: 100 },
            filter_scales: &[scale],
            filter_zero_points: &[131],
            output: Quant { scale: 1.0, zero_point: 120 },
        };
        let (_, mut context) = context(STOCK);
        let mut found = vec![0u8; exact.len()];
        let transposed = case.transposed(depthwise, &filter).quantised(quantised);
        context.conv_transpose2d(Image::new(&input, case.shape).unwrap(), &transposed, &mut found).unwrap();
        for (found, exact) in found.iter().zip(&exact) {
            let exact = (exact.value * f64::from(scale) + 120.0).clamp(0.0, 255.0);
            assert!((f64::from(*found) - exact).abs() <= 1.1, "{found} for {exact}");
        }
    }
}

#[test]
fn scattering_agrees_with_the_reference_for_any_padding() {
    for case in DIRECT.into_iter().chain([CROPPED]) {
        let given = Given::new(&case, false);
        for mode in MODES {
            let (simulator, mut context) = context(mode);
            let scattered = context.load_scattered(case.shape, &given.transposed()).unwrap();
            let image = Image::new(&given.input, case.shape).unwrap();
            let mut wide = vec![0f32; given.exact.len()];
            let outcome = scattered.run(&mut context, image, &mut wide);
            outcome.unwrap_or_else(|error| panic!("{case:?}: {error}; {:?}", simulator.faults()));
            compare_reals(case.what, &reals(&wide), &given.exact, 16 * given.depth(), 0);
            let mut half = vec![f16::ZERO; given.exact.len()];
            scattered.run(&mut context, image, &mut half).unwrap();
            compare_reals(case.what, &reals(&half), &given.exact, 16 * given.depth(), 1);
            assert!(scattered.estimate(&context) > std::time::Duration::ZERO && scattered.device_bytes() > 0);
        }
    }
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    let filter = vec![f16::ONE; CROPPED.weights(false)];
    let refused =
        |transposed: &Transposed<'_, f16>, shape| transposed.route::<f16>(&Chip::RK3588, shape).unwrap_err().what;
    let cropped = CROPPED.transposed(false, &filter);
    assert_eq!(refused(&cropped, CROPPED.shape), "padding 4 beyond a kernel's reach of 3, which only scattering can");
    assert_eq!(
        refused(&cropped.padding(all(20)), CROPPED.shape),
        "padding [20, 20] leaves nothing of 14 rows or columns"
    );
    assert_eq!(
        refused(&cropped.padding(all(1)), [6, 7, 21]),
        "the filter has 5120 weights, 16 kernels of 336 are needed"
    );
    let (_, mut context) = context(STOCK);
    let mut load = |shape, transposed: &Transposed<'_, f16>| {
        context.load_scattered(shape, transposed).map(drop).unwrap_err().to_string()
    };
    let depthwise = Transposed::depthwise([4, 4], 20, &filter[..320]);
    assert_eq!(load([6, 7, 20], &depthwise), "a depthwise transposed convolution as a product");
    assert_eq!(
        load([6, 7, 20], &cropped.activation(Activation::Relu)),
        "an activation of a scattered transposed convolution"
    );
    let large = load([600, 700, 20], &cropped);
    assert_eq!(large, "the sums of a product of 420000 × 32 × 256 exceed 67108864 bytes");
}

#[test]
fn weights_belong_to_their_context_and_stay_what_they_were() {
    let mut given = Given::new(&CASE, false);
    let (_, mut first) = context(STOCK);
    let scattered = first.load_scattered(CASE.shape, &given.transposed()).unwrap();
    given.filter.fill(f16::ZERO);
    let image = Image::new(&given.input, CASE.shape).unwrap();
    let mut found = vec![0f32; given.exact.len()];
    scattered.run(&mut first, image, &mut found).unwrap();
    compare_reals("after the filter changed", &reals(&found), &given.exact, 16 * given.depth(), 0);
    let (_, mut other) = context(STOCK);
    let error = scattered.run(&mut other, image, &mut found).unwrap_err();
    assert!(matches!(error, RunError::Unsupported(_)), "{error}");
    assert!(found.iter().all(|result| *result == 0.0), "results of a refused call");
}

#[test]
fn nearest_neighbours_are_whole_blocks() {
    for (shape, factors) in [([4, 5, 32], [2, 2]), ([3, 7, 5], [3, 1]), ([1, 2, 70], [4, 8])] {
        let [_, w, c] = shape;
        let input: Vec<f16> = random(&mut StdRng::seed_from_u64(1), shape.iter().product());
        for mode in MODES {
            let (_, mut context) = context(mode);
            let mut found = vec![f16::ZERO; input.len() * factors[0] * factors[1]];
            context.resize_nearest(Image::new(&input, shape).unwrap(), factors, &mut found).unwrap();
            for (at, pixel) in found.chunks_exact(c).enumerate() {
                let (y, x) = (at / (w * factors[1]) / factors[0], at % (w * factors[1]) / factors[1]);
                assert_eq!(pixel, &input[(y * w + x) * c..][..c], "pixel {at} of {shape:?} by {factors:?}");
            }
        }
    }
}

/// The two nearest inputs of an output along one axis, with their weights, centres half a pixel inside.
fn neighbours(at: usize, factor: usize, extent: usize) -> Vec<(usize, f64)> {
    let centre = (at as f64 + 0.5) / factor as f64 - 0.5;
    let low = centre.floor();
    let both = [(low, 1.0 - (centre - low)), (low + 1.0, centre - low)];
    both.into_iter().filter(|(at, _)| *at >= 0.0 && *at < extent as f64).map(|(at, w)| (at as usize, w)).collect()
}

#[test]
fn bilinear_blends_by_distance_and_fades_to_zero_outside() {
    for (shape, factors) in [([4, 5, 32], [2, 2]), ([3, 4, 6], [3, 4]), ([5, 2, 40], [1, 5])] {
        let [h, w, c] = shape;
        let input: Vec<f16> = random(&mut StdRng::seed_from_u64(2), shape.iter().product());
        let width = w * factors[1];
        let mut exact = vec![Sum::default(); input.len() * factors[0] * factors[1]];
        for (at, sums) in exact.chunks_exact_mut(c).enumerate() {
            for (y, rows) in neighbours(at / width, factors[0], h) {
                for (x, columns) in neighbours(at % width, factors[1], w) {
                    let pixel = &input[(y * w + x) * c..][..c];
                    sums.iter_mut().zip(pixel).for_each(|(sum, value)| sum.add(rows * columns * value.real()));
                }
            }
        }
        let (_, mut context) = context(STOCK);
        let mut found = vec![f16::ZERO; exact.len()];
        context.resize_bilinear(Image::new(&input, shape).unwrap(), factors, &mut found).unwrap();
        // Weights are rounded to half precision as well.
        compare_reals(&format!("{shape:?} by {factors:?}"), &reals(&found), &exact, 4, 2);
    }
}

#[test]
fn a_factor_of_zero_or_beyond_the_kernel_is_refused() {
    let (_, mut context) = context(Mode { name: "one", sim: Sim::default, workers: 1 });
    let input = [f16::ONE; 4];
    let image = Image::new(&input, [2, 2, 1]).unwrap();
    let error = context.resize_nearest(image, [0, 2], &mut []).unwrap_err();
    assert_eq!(error.to_string(), "a picture made larger by a factor of 0");
    let error = context.resize_bilinear(image, [16, 2], &mut []).unwrap_err();
    assert_eq!(error.to_string(), "vertical kernel extent 32 exceeds 31");
}
