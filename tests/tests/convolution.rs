//! Convolutions of pictures on the simulator, or on a board: a matrix of operation × datatype × shape × path, against exact
//! arithmetic.
//!
//! Sums of integers are compared bit by bit. Requantised results may differ by one step where the exact result lies near the
//! middle of two. Real results are within a bound that follows from the roundings, on random numbers of both signs, and the
//! cosine of both results says that they are alike as a whole.

#![allow(clippy::unwrap_used, reason = "everything in this file is a test")]

mod pictures;

use half::f16;
use npu::conv::{Conv, ConvPlan, Gives, Image, Output, Quantised};
use npu::{Activation, Bias, Chip, Context, Options, Padding, Quant, RunError, Window};
use npu_sim::{Lever, Options as Sim};
use pictures::place;
use pictures::{BATCHED, Exact, MODES, Mode, Number, RK3576, STOCK, Sum, compare_reals, context, random, reals};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A row of the matrix.
#[derive(Clone, Debug)]
struct Case {
    what: &'static str,
    shape: [usize; 3],
    window: Window,
    channels: usize,
}

fn case(what: &'static str, shape: [usize; 3], window: Window, channels: usize) -> Case {
    Case { what, shape, window, channels }
}

fn same(kernel: usize, stride: usize, [h, w, _]: [usize; 3]) -> Window {
    Window::square(kernel, stride).same([h, w]).unwrap()
}

fn padding(top: usize, bottom: usize, left: usize, right: usize) -> Padding {
    Padding { top, bottom, left, right }
}

/// Shapes that direct and depthwise convolutions have in common.
fn common() -> Vec<Case> {
    let pads = padding;
    vec![
        case("a point", [5, 6, 40], Window::POINT, 40),
        case("one pixel", [1, 1, 96], Window::POINT, 96),
        case("rows below four", [3, 3, 70], same(3, 1, [3, 3, 70]), 70),
        case("an odd stride", [11, 9, 33], same(3, 2, [11, 9, 33]), 33),
        case("valid padding", [9, 8, 20], Window::square(3, 1), 20),
        case("dilated", [12, 11, 20], Window::square(3, 1).dilated([2, 3]).padded(pads(2, 2, 3, 3)), 20),
        case(
            "padding at the end alone",
            [10, 9, 5],
            Window { kernel: [4, 2], stride: [3, 2], ..Window::POINT }.padded(pads(0, 3, 0, 1)),
            5,
        ),
        case("more padding than a window has", [4, 4, 8], Window::square(3, 1).padded(pads(5, 4, 3, 6)), 8),
        case(
            "padding beyond its field",
            [6, 6, 4],
            Window { kernel: [18, 3], ..Window::POINT }.padded(pads(17, 17, 1, 1)),
            4,
        ),
        case("strides at their limit", [20, 20, 3], Window::square(3, 7), 3),
        case("a series", [50, 1, 80], Window::series(3, 2, 1, [1, 1]), 80),
        case("a causal dilated series", [21, 1, 33], Window::series(5, 1, 3, [12, 0]), 33),
        case("bands", [90, 64, 64], same(3, 1, [90, 64, 64]), 64),
        case("wider than the field", [2, 2300, 8], same(3, 1, [2, 2300, 8]), 8),
        case("taller than the field", [3000, 1, 8], Window::series(3, 1, 1, [1, 1]), 8),
    ]
}

/// Shapes of direct convolutions.
fn direct() -> Vec<Case> {
    let mut cases = common();
    for channels in 1..=4 {
        let shape = [13, 10, channels];
        cases.push(case("an image", shape, same(5, 2, shape), 17));
    }
    cases.extend([
        case("other channels out", [7, 5, 40], same(3, 1, [7, 5, 40]), 100),
        case("a kernel too large for the hardware", [4, 5, 1500], same(5, 1, [4, 5, 1500]), 9),
        case("more than 8192 channels in", [3, 2, 9000], Window::POINT, 16),
        case("more than 8192 channels out", [2, 2, 32], Window::POINT, 8200),
        case("rows too wide for the buffer", [3, 500, 640], same(3, 1, [3, 500, 640]), 4),
    ]);
    cases
}

/// Shapes of depthwise convolutions.
fn depthwise() -> Vec<Case> {
    let mut cases = common();
    cases.extend([
        case("a multiplier", [6, 7, 5], same(3, 1, [6, 7, 5]), 15),
        case("a multiplier of one channel", [6, 7, 1], same(3, 2, [6, 7, 1]), 8),
        case("more than 8192 channels", [3, 2, 8300], same(3, 1, [3, 2, 8300]), 8300),
    ]);
    cases
}

/// A case with its numbers.
struct Given<In> {
    case: Case,
    depthwise: bool,
    input: Vec<In>,
    filter: Vec<In>,
}

impl<In: Number> Given<In> {
    fn new(case: &Case, depthwise: bool, rng: &mut StdRng) -> Self {
        let [h, w, c] = case.shape;
        let weights = case.window.kernel[0] * case.window.kernel[1] * case.channels * if depthwise { 1 } else { c };
        Self { case: case.clone(), depthwise, input: random(rng, h * w * c), filter: random(rng, weights) }
    }

    fn conv(&self) -> Conv<'_, In> {
        match self.depthwise {
            true => Conv::depthwise(self.case.window, self.case.channels, &self.filter),
            false => Conv::direct(self.case.window, self.case.channels, &self.filter),
        }
    }

    /// Products that a result sums up.
    fn depth(&self) -> usize {
        self.filter.len() / self.case.channels
    }

    /// Channel of a weight.
    fn channel(&self, weight: usize) -> usize {
        if self.depthwise { weight % self.case.channels } else { weight / self.depth() }
    }

    /// Exact sums of inputs and weights less their zero points.
    fn sums(&self, zero_point: i32, zero_points: &[i32]) -> Vec<Sum> {
        let zero = |channel: usize| f64::from(zero_points.get(channel).or(zero_points.first()).copied().unwrap_or(0));
        let input: Vec<f64> = self.input.iter().map(|x| x.real() - f64::from(zero_point)).collect();
        let filter = self.filter.iter().enumerate();
        let filter: Vec<f64> = filter.map(|(at, weight)| weight.real() - zero(self.channel(at))).collect();
        let Case { shape, window, channels, .. } = self.case;
        Exact { shape, window, channels, depthwise: self.depthwise, input: &input, filter: &filter }.sums()
    }

    fn run<Out: Number + Output>(&self, mode: Mode, conv: &Conv<'_, In>, results: usize) -> Vec<Out>
    where
        In: Gives<Out>,
    {
        let (simulator, mut context) = context(mode);
        let mut found = vec![Out::default(); results];
        let image = Image::new(&self.input, self.case.shape).unwrap();
        let outcome = context.conv2d(image, conv, &mut found);
        outcome.unwrap_or_else(|error| panic!("{}: {error}; {:?}", self.what(mode), simulator.faults()));
        found
    }

    fn what(&self, mode: Mode) -> String {
        let Case { what, shape, window, channels } = &self.case;
        let kind = if self.depthwise { "depthwise" } else { "direct" };
        format!("{what}, {kind}, {shape:?} to {channels} channels, {window:?}, {}", mode.name)
    }
}

fn check_reals<Out: Number + Output>(case: &Case, depthwise: bool, activation: Activation, roundings: usize)
where
    f16: Gives<Out>,
{
    let mut rng = StdRng::seed_from_u64(case.channels as u64 + 3);
    let given = Given::<f16>::new(case, depthwise, &mut rng);
    let bias: Vec<f32> = random(&mut rng, case.channels);
    let mut exact = given.sums(0, &[]);
    for sums in exact.chunks_exact_mut(case.channels) {
        for (sum, bias) in sums.iter_mut().zip(&bias) {
            sum.add(f64::from(*bias));
            sum.value = match activation {
                Activation::Relu => sum.value.max(0.0),
                Activation::Relu6 => sum.value.clamp(0.0, 6.0),
                _ => sum.value,
            };
        }
    }
    let conv = given.conv().bias(Bias::F32(&bias)).activation(activation);
    let found = MODES.map(|mode| {
        let found = given.run::<Out>(mode, &conv, exact.len());
        compare_reals(&given.what(mode), &reals(&found), &exact, given.depth(), roundings);
        found
    });
    assert_eq!(found[0], found[1], "{case:?}: workers change a result");
}

#[test]
fn half_precision_agrees_with_double_precision() {
    direct().iter().for_each(|case| check_reals::<f16>(case, false, Activation::None, 1));
    check_reals::<f16>(&direct()[3], false, Activation::Relu, 1);
    check_reals::<f16>(&direct()[3], false, Activation::Relu6, 1);
}

#[test]
fn half_precision_with_wide_results_agrees_with_double_precision() {
    direct().iter().for_each(|case| check_reals::<f32>(case, false, Activation::None, 0));
    check_reals::<f32>(&direct()[3], false, Activation::Relu6, 0);
}

#[test]
fn depthwise_half_precision_agrees_with_double_precision() {
    depthwise().iter().for_each(|case| check_reals::<f16>(case, true, Activation::None, 1));
    check_reals::<f16>(&depthwise()[3], true, Activation::Relu6, 1);
}

/// Sums are exact whatever the zero points are.
fn check_sums<In: Number + Gives<i32>>(case: &Case, zero_point: i32, zero_points: &[i32]) {
    let mut rng = StdRng::seed_from_u64(case.channels as u64 + 5);
    let given = Given::<In>::new(case, false, &mut rng);
    let bias: Vec<i32> = random(&mut rng, case.channels);
    let sums = given.sums(zero_point, zero_points);
    let exact: Vec<i64> =
        sums.iter().enumerate().map(|(at, sum)| sum.value as i64 + i64::from(bias[at % case.channels])).collect();
    let input = Quant { scale: 1.0, zero_point };
    let quantised = Quantised { input, filter_zero_points: zero_points, ..Quantised::default() };
    let conv = given.conv().bias(Bias::I32(&bias)).quantised(quantised);
    for mode in MODES {
        let found = given.run::<i32>(mode, &conv, exact.len());
        let wrong = found.iter().zip(&exact).position(|(found, exact)| i64::from(*found) != *exact);
        assert!(wrong.is_none(), "{}: element {wrong:?}", given.what(mode));
    }
}

#[test]
fn sums_of_integers_are_exact() {
    direct().iter().for_each(|case| check_sums::<i8>(case, 0, &[]));
}

#[test]
fn sums_of_integers_with_zero_points_are_exact() {
    for case in [&direct()[2], &direct()[5], &direct()[7], &direct()[15], &direct()[20]] {
        check_sums::<i8>(case, -37, &[]);
        check_sums::<i8>(case, 99, &[-5]);
        check_sums::<u8>(case, 3, &[200]);
        let each: Vec<i32> = (0..case.channels as i32).map(|channel| 100 + channel % 50).collect();
        check_sums::<u8>(case, 131, &each);
    }
}

fn check_quantised<In: Number + Output + Gives<In>>(
    case: &Case,
    depthwise: bool,
    per_channel: bool,
    activation: Activation,
) {
    check_quantised_on::<In>(MODES, 20, case, depthwise, per_channel, activation);
}

/// Requantised results are within a step of exact ones, and do not depend on workers. `spread`: how far weights' zero points
/// are from the middle.
fn check_quantised_on<In: Number + Output + Gives<In>>(
    modes: [Mode; 2],
    spread: i32,
    case: &Case,
    depthwise: bool,
    per_channel: bool,
    activation: Activation,
) {
    if !place::has((modes[0].sim)()) {
        return;
    }
    let mut rng = StdRng::seed_from_u64(case.channels as u64 + 7);
    let given = Given::<In>::new(case, depthwise, &mut rng);
    let low = In::LOWEST;
    let zero_point = low + rng.random_range(0..256);
    let count = if per_channel { case.channels } else { 1 };
    let zero_points: Vec<i32> = (0..count).map(|_| low + 128 + rng.random_range(-spread..=spread)).collect();
    let unit = 60.0 / (5500.0 * (given.depth() as f32).sqrt());
    let scales: Vec<f32> = (0..count).map(|_| unit * rng.random_range(0.02..1.0f32)).collect();
    let bias: Vec<i32> = (0..case.channels).map(|_| rng.random_range(-20_000..20_000)).collect();
    let output_zero = if activation == Activation::None { low + rng.random_range(0..256) } else { low };
    let (input, output) = (Quant { scale: 0.5, zero_point }, Quant { scale: 0.5, zero_point: output_zero });
    let quantised = Quantised { input, filter_scales: &scales, filter_zero_points: &zero_points, output };
    let conv = given.conv().bias(Bias::I32(&bias)).quantised(quantised).activation(activation);
    let most = if activation == Activation::Relu6 { f64::from(output_zero) + 12.0 } else { f64::from(low) + 255.0 };
    let exact: Vec<f64> = given
        .sums(zero_point, &zero_points)
        .iter()
        .enumerate()
        .map(|(at, sum)| {
            let channel = at % case.channels;
            let scale = f64::from(scales[if per_channel { channel } else { 0 }]);
            ((sum.value + f64::from(bias[channel])) * scale + f64::from(output_zero)).clamp(low.into(), most)
        })
        .collect();
    // Of the result a half, of the intermediate half a step, which is at most twice the largest multiplier, and of the
    // multiplier's missing bits a sixteenth. SOURCE: npu-spec 5.5, 5.8.
    let bound = 0.5 + 1.02 * f64::from(scales.iter().copied().fold(0.0, f32::max)) + 1.0 / 16.0;
    let found = modes.map(|mode| {
        let found = given.run::<In>(mode, &conv, exact.len());
        for (index, (found, exact)) in reals(&found).into_iter().zip(&exact).enumerate() {
            assert!((found - exact).abs() <= bound, "{}: element {index}: {found} for {exact}", given.what(mode));
        }
        found
    });
    assert_eq!(found[0], found[1], "{case:?}: workers change a result");
}

#[test]
fn requantised_results_are_within_a_step() {
    for case in &direct() {
        check_quantised::<i8>(case, false, false, Activation::None);
    }
    for case in [&direct()[2], &direct()[5], &direct()[7], &direct()[15]] {
        check_quantised::<i8>(case, false, true, Activation::None);
        check_quantised::<u8>(case, false, true, Activation::None);
        check_quantised::<u8>(case, false, false, Activation::Relu);
        check_quantised::<i8>(case, false, false, Activation::Relu6);
    }
}

#[test]
fn requantised_depthwise_results_are_within_a_step() {
    for case in &depthwise() {
        check_quantised::<i8>(case, true, false, Activation::None);
    }
    for case in [&depthwise()[2], &depthwise()[5], &depthwise()[7], &depthwise()[15]] {
        check_quantised::<i8>(case, true, true, Activation::None);
        check_quantised::<u8>(case, true, true, Activation::None);
        check_quantised::<u8>(case, true, false, Activation::Relu6);
    }
}

/// Cases of the list by their names.
fn named<'a>(cases: &'a [Case], names: &'a [&str]) -> impl Iterator<Item = &'a Case> {
    names.iter().map(|name| cases.iter().find(|case| case.what == *name).unwrap())
}

const ON_BOTH_CHIPS: [&str; 11] = [
    "a point",
    "one pixel",
    "rows below four",
    "an odd stride",
    "valid padding",
    "padding at the end alone",
    "more padding than a window has",
    "padding beyond its field",
    "strides at their limit",
    "a series",
    "wider than the field",
];

#[test]
fn the_rk3576_convolves_within_a_step() {
    let cases = direct();
    for case in named(&cases, &ON_BOTH_CHIPS).chain(named(&cases, &["an image", "other channels out", "bands"])) {
        check_quantised_on::<i8>(RK3576, 0, case, false, false, Activation::None);
    }
    for case in named(&cases, &["a point", "an odd stride", "other channels out"]) {
        check_quantised_on::<i8>(RK3576, 20, case, false, true, Activation::None);
        check_quantised_on::<u8>(RK3576, 20, case, false, true, Activation::None);
        check_quantised_on::<u8>(RK3576, 20, case, false, false, Activation::Relu);
    }
}

#[test]
fn the_rk3576_convolves_depthwise_within_a_step() {
    let cases = depthwise();
    for case in named(&cases, &ON_BOTH_CHIPS).chain(named(&cases, &["a multiplier", "bands"])) {
        check_quantised_on::<i8>(RK3576, 0, case, true, false, Activation::None);
    }
    for case in named(&cases, &["rows below four", "an odd stride", "bands"]) {
        check_quantised_on::<i8>(RK3576, 0, case, true, true, Activation::None);
        check_quantised_on::<u8>(RK3576, 0, case, true, true, Activation::Relu);
    }
}

#[test]
fn a_loaded_convolution_serves_many_pictures() {
    let case = &direct()[16];
    let mut rng = StdRng::seed_from_u64(2);
    let given = Given::<i8>::new(case, false, &mut rng);
    let (_, mut context) = context(STOCK);
    let mut loaded = context.load_conv::<i8, i32>(case.shape, &given.conv()).unwrap();
    let bytes = loaded.device_bytes();
    for _ in 0..3 {
        let given =
            Given { input: random(&mut rng, given.input.len()), filter: given.filter.clone(), ..given_of(case) };
        let exact = given.sums(0, &[]);
        let mut found = vec![0; exact.len()];
        let image = Image::new(&given.input, case.shape).unwrap();
        let report = loaded.run(&mut context, image, &mut found).unwrap();
        assert_eq!((report.tasks, report.jobs), (loaded.plan().tasks(), loaded.plan().jobs()));
        assert!(found.iter().zip(&exact).all(|(found, exact)| f64::from(*found) == exact.value));
    }
    assert_eq!(loaded.device_bytes(), bytes);
    let (_, mut other) = self::context(STOCK);
    let (image, mut found) = (Image::new(&given.input, case.shape).unwrap(), vec![0; given.sums(0, &[]).len()]);
    let error = loaded.run(&mut other, image, &mut found).unwrap_err();
    assert_eq!(error.to_string(), "the weights belong to another context");
}

fn given_of(case: &Case) -> Given<i8> {
    Given { case: case.clone(), depthwise: false, input: Vec::new(), filter: Vec::new() }
}

/// Windows that no register says.
fn unfolded() -> Vec<Case> {
    let cases = [
        case("steps beyond their field", [40, 38, 5], Window::square(3, 9), 20),
        case("a kernel beyond its field", [40, 5, 3], Window { kernel: [33, 2], ..Window::POINT }, 8),
        case("dilation beyond its field", [90, 6, 4], Window::square(3, 1).dilated([40, 2]), 8),
    ];
    let named = ["more than 8192 channels out", "bands", "wider than the field", "rows too wide for the buffer"];
    direct().into_iter().filter(|case| !named.contains(&case.what)).chain(cases).collect()
}

#[test]
fn a_product_of_unfolded_pictures_is_the_convolution() {
    for case in unfolded() {
        let mut rng = StdRng::seed_from_u64(case.channels as u64 + 11);
        let given = Given::<f16>::new(&case, false, &mut rng);
        let bias: Vec<f32> = random(&mut rng, case.channels);
        let mut exact = given.sums(0, &[]);
        exact.iter_mut().enumerate().for_each(|(at, sum)| sum.add(bias[at % case.channels].into()));
        let conv = given.conv().bias(Bias::F32(&bias));
        for mode in MODES {
            let (simulator, mut context) = context(mode);
            let unfolded = context.load_unfolded::<f16, f16>(case.shape, &conv).unwrap();
            let mut found = vec![f16::ZERO; exact.len()];
            let outcome = unfolded.run(&mut context, Image::new(&given.input, case.shape).unwrap(), &mut found);
            outcome.unwrap_or_else(|error| panic!("{}: {error}; {:?}", given.what(mode), simulator.faults()));
            compare_reals(&given.what(mode), &reals(&found), &exact, given.depth(), 1);
        }
    }
}

#[test]
fn a_product_of_unfolded_integers_is_exact_whatever_the_zero_points_are() {
    for case in unfolded() {
        let mut rng = StdRng::seed_from_u64(case.channels as u64 + 13);
        let given = Given::<u8>::new(&case, false, &mut rng);
        let zero_points: Vec<i32> = (0..case.channels as i32).map(|channel| 100 + channel % 50).collect();
        let exact = given.sums(131, &zero_points);
        let scales = vec![0.001; case.channels];
        let quantised = Quantised {
            input: Quant { scale: 1.0, zero_point: 131 },
            filter_scales: &scales,
            filter_zero_points: &zero_points,
            output: Quant { scale: 1.0, zero_point: 120 },
        };
        let (_, mut context) = context(STOCK);
        let conv = given.conv().quantised(quantised);
        let image = Image::new(&given.input, case.shape).unwrap();
        let mut sums = vec![0i32; exact.len()];
        context.load_unfolded(case.shape, &conv).unwrap().run(&mut context, image, &mut sums).unwrap();
        let wrong = sums.iter().zip(&exact).position(|(found, exact)| f64::from(*found) != exact.value);
        assert!(wrong.is_none(), "{}: element {wrong:?}", given.what(STOCK));
        let mut results = vec![0u8; exact.len()];
        context.load_unfolded(case.shape, &conv).unwrap().run(&mut context, image, &mut results).unwrap();
        for (result, sum) in results.iter().zip(&sums) {
            let exact = (f64::from(*sum) * f64::from(0.001f32)).round() + 120.0;
            assert_eq!(f64::from(*result), exact.clamp(0.0, 255.0), "{}", given.what(STOCK));
        }
    }
}

#[test]
fn what_cannot_be_a_product_is_refused_by_name() {
    let (_, mut context) = context(STOCK);
    let filter = vec![f16::ONE; 9 * 64 * 64];
    let mut load =
        |shape, conv: &Conv<'_, f16>| context.load_unfolded::<f16, f16>(shape, conv).map(drop).unwrap_err().to_string();
    let depthwise = Conv::depthwise(Window::POINT, 64, &filter[..64]);
    assert_eq!(load([4, 4, 64], &depthwise), "a depthwise convolution as a product");
    let large = Conv::direct(Window::square(3, 1), 64, &filter);
    assert_eq!(
        load([260, 260, 64], &large),
        "the inputs side by side of a product of 66564 × 576 × 64 exceed 67108864 bytes"
    );
}

#[test]
fn an_estimate_grows_with_the_work() {
    let (_, mut context) = context(STOCK);
    let filter = vec![f16::ONE; 9 * 64 * 64];
    let conv = Conv::direct(Window::square(3, 1), 64, &filter);
    let estimates = [8, 16, 32, 64].map(|extent| {
        let unfolded = context.load_unfolded::<f16, f16>([extent, extent, 64], &conv).unwrap();
        unfolded.estimate(&context)
    });
    assert!(estimates.is_sorted_by(|a, b| a < b), "{estimates:?}");
}

fn windows() -> impl Strategy<Value = Window> {
    let pair = |range: std::ops::Range<usize>| [range.clone(), range];
    (pair(1..6), pair(1..4), pair(1..4), [0..7usize, 0..7usize, 0..7usize, 0..7usize]).prop_map(
        |(kernel, stride, dilation, [top, bottom, left, right])| Window {
            kernel,
            stride,
            dilation,
            padding: padding(top, bottom, left, right),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_convolution_is_exact(
        window in windows(), h in 1..20usize, w in 1..20usize, c in 1..50usize, channels in 1..50usize,
        zero_point in -128..128, filter_zero_point in -128..128,
    ) {
        prop_assume!(window.output([h, w]).is_ok());
        let case = case("drawn", [h, w, c], window, channels);
        check_sums::<i8>(&case, zero_point, &[filter_zero_point]);
        check_quantised::<i8>(&Case { channels: c, ..case.clone() }, true, false, Activation::None);
        check_reals::<f16>(&case, false, Activation::None, 1);
        check_reals::<f16>(&Case { channels: c, ..case }, true, Activation::None, 1);
    }
}

/// Asks for a convolution, and says why it is refused.
fn refusal<In: Number + Gives<Out>, Out: Number + Output>(shape: [usize; 3], conv: &Conv<'_, In>) -> String {
    ConvPlan::<In, Out>::new(&Chip::RK3588, 3, shape, conv).unwrap_err().what
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    let filter = vec![1i8; 33 * 33 * 8];
    let direct = |window: Window, channels: usize, weights: usize| Conv::direct(window, channels, &filter[..weights]);
    let refused = |shape, conv: &Conv<'_, i8>| refusal::<i8, i32>(shape, conv);
    assert_eq!(refused([40, 40, 1], &direct(Window::square(32, 1), 1, 1024)), "vertical kernel extent 32 exceeds 31");
    assert_eq!(refused([40, 40, 1], &direct(Window::square(1, 8), 1, 1)), "vertical stride 8 exceeds 7");
    let dilated = Window::square(2, 1).dilated([1, 33]);
    assert_eq!(refused([40, 40, 1], &direct(dilated, 1, 4)), "horizontal dilation 33 exceeds 32");
    assert_eq!(refused([2, 2, 1], &direct(Window::square(3, 1), 1, 9)), "a window of 3 does not fit 2 padded pixels");
    assert_eq!(refused([4, 4, 2], &direct(Window::POINT, 3, 5)), "the filter has 5 weights, 3 kernels of 2 are needed");
    assert_eq!(refused([4, 4, 2], &direct(Window::POINT, 0, 0)), "a convolution without channels");
    let bias = [1; 2];
    let biased = direct(Window::POINT, 3, 6).bias(Bias::I32(&bias));
    assert_eq!(refused([4, 4, 2], &biased), "2 biases for 3 channels");
    let biased = direct(Window::POINT, 3, 6).bias(Bias::F32(&[]));
    assert_eq!(refused([4, 4, 2], &biased), "a real bias for quantised numbers");
    let active = direct(Window::POINT, 3, 6).activation(Activation::Relu);
    assert_eq!(refused([4, 4, 2], &active), "an activation of sums, which have no scale");
    let bias = [i32::MAX; 3];
    let large = direct(Window::POINT, 3, 6).bias(Bias::I32(&bias));
    assert_eq!(refused([4, 4, 2], &large), "the sums of channel 0 exceed 32 bits");
    let depthwise = Conv::depthwise(Window::POINT, 2, &filter[..2]);
    assert_eq!(refused([4, 4, 2], &depthwise), "depthwise sums: the 32-bit writer repeats lanes there");
    let depthwise = Conv::depthwise(Window::POINT, 3, &filter[..3]);
    assert_eq!(refusal::<i8, i8>([4, 4, 2], &depthwise), "3 depthwise channels of 2 input channels");
    let outside =
        direct(Window::POINT, 3, 6).quantised(Quantised { filter_zero_points: &[1, 2], ..Quantised::default() });
    assert_eq!(refused([4, 4, 2], &outside), "2 filter scales for 3 channels");
    let half = [f16::ONE; 6];
    let limited = Conv::direct(Window::POINT, 3, &half).activation(Activation::ReluN1To1);
    assert_eq!(refusal::<f16, f16>([4, 4, 2], &limited), "the hardware's lower limit is 0, not -1");
}

fn failure(mode: Mode, attempt: impl FnOnce(&mut Context) -> Result<npu::RunReport, RunError>) -> RunError {
    let (_, mut context) = context(mode);
    attempt(&mut context).unwrap_err()
}

#[test]
fn buffers_that_do_not_fit_are_refused_before_the_device_is_asked() {
    let (input, filter) = ([1i8; 32], [1i8; 6]);
    assert!(Image::new(&input, [4, 4, 3]).is_err() && Image::new(&input, [0, 4, 2]).is_err());
    let conv = Conv::direct(Window::POINT, 3, &filter);
    let error = failure(BATCHED, |context| context.conv2d(Image::new(&input, [4, 4, 2])?, &conv, &mut [0i32; 47]));
    assert!(matches!(error, RunError::Size { what: "result", found: 188, expected: 192, .. }), "{error}");
    let error = failure(BATCHED, |context| {
        let mut loaded = context.load_conv::<i8, i32>([4, 4, 2], &conv)?;
        loaded.run(context, Image::new(&input, [2, 8, 2])?, &mut [0; 48])
    });
    assert_eq!(error.to_string(), "a picture of [2, 8, 2], [4, 4, 2] was planned");
}

#[test]
fn a_result_that_cannot_be_trusted_is_zeros() {
    let (input, filter) = ([1i8; 32], [1i8; 6]);
    let conv = Conv::direct(Window::POINT, 3, &filter);
    let (simulator, mut context) = place::simulated(Sim::default(), Options::default());
    simulator.inject(Lever::Hang { task: 0 });
    let mut results = [7i32; 48];
    let error = context.conv2d(Image::new(&input, [4, 4, 2]).unwrap(), &conv, &mut results).unwrap_err();
    assert!(matches!(error, RunError::Untrusted { .. }), "{error}");
    assert_eq!(results, [0; 48]);
}
