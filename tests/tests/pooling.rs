//! Pooling and sums on the simulator, or on a board: a matrix of kind × element × window × way of running, against exact
//! arithmetic.
//!
//! Maxima and minima are compared bit by bit. Means of integers are compared with the formula of npu-spec 6.2 and with the true
//! mean, means and sums of half precision with double-precision ones, on random numbers of both signs.

#![allow(clippy::unwrap_used, reason = "everything in this file is a test")]

mod place;

use std::fmt::Debug;

use half::f16;
use npu::conv::Image;
use npu::matmul::Matrix;
use npu::pool::{PoolElement, PoolPlan};
use npu::{Chip, Context, CumulativeSum, ElementType, Options, Padding, PoolKind, RunError, RunReport, Window};
use npu_sim::{Fault, Lever, Options as Sim, Simulator};
use place::Place;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What an element needs to be tested.
trait Case: PoolElement + PartialEq + Debug {
    fn draw(rng: &mut StdRng) -> Self;
    fn value(self) -> f64;
    /// Whether `found` is a mean of `values` over a window of `kernel`, of which the others are zeros.
    fn is_mean(found: Self, values: &[f64], kernel: [usize; 2]) -> bool;
}

impl Case for f16 {
    fn draw(rng: &mut StdRng) -> Self {
        Self::from_f32(rng.random_range(-100.0..100.0))
    }
    fn value(self) -> f64 {
        self.to_f64()
    }
    /// Reciprocals of 11 bits and one rounding.
    fn is_mean(found: Self, values: &[f64], kernel: [usize; 2]) -> bool {
        let mean = values.iter().sum::<f64>() / (kernel[0] * kernel[1]) as f64;
        (found.to_f64() - mean).abs() <= mean.abs() * 2f64.powi(-9) + 2f64.powi(-24)
    }
}

/// Sum · ⌊65536/kh⌋ · ⌊65536/kw⌋ / 2^32 to nearest, ties to even.
fn integer_mean(values: &[f64], offset: f64, kernel: [usize; 2]) -> f64 {
    let sum: f64 = values.iter().map(|value| value - offset).sum();
    let [high, wide] = kernel.map(|extent| (65536 / extent) as f64);
    // Sums have 16 bits and reciprocals 16: exact in double precision.
    (sum * high * wide / 2f64.powi(32)).round_ties_even() + offset
}

impl Case for i8 {
    fn draw(rng: &mut StdRng) -> Self {
        rng.random()
    }
    fn value(self) -> f64 {
        self.into()
    }
    fn is_mean(found: Self, values: &[f64], kernel: [usize; 2]) -> bool {
        let mean = values.iter().sum::<f64>() / (kernel[0] * kernel[1]) as f64;
        f64::from(found) == integer_mean(values, 0.0, kernel) && (f64::from(found) - mean).abs() < 0.6
    }
}

impl Case for u8 {
    fn draw(rng: &mut StdRng) -> Self {
        rng.random()
    }
    fn value(self) -> f64 {
        self.into()
    }
    fn is_mean(found: Self, values: &[f64], kernel: [usize; 2]) -> bool {
        f64::from(found) == integer_mean(values, 128.0, kernel)
    }
}

/// How it runs: the name, the device, workers, and batched jobs or not.
type Mode = (&'static str, fn() -> Sim, usize, bool);

const MODES: [Mode; 4] = [
    ("three", Sim::batched, 3, true),
    ("one", Sim::batched, 1, true),
    ("task by task", Sim::batched, 1, false),
    ("three task by task", Sim::batched, 3, false),
];
const RK3576: [Mode; 2] = [("RK3576, two", Sim::rk3576, 2, true), ("RK3576, task by task", Sim::rk3576, 1, false)];

fn context((_, sim, workers, batched): Mode) -> (Place, Context) {
    place::open(sim(), Options { workers, batched, ..Options::default() })
}

fn simulated((_, sim, workers, batched): Mode) -> (Simulator, Context) {
    place::simulated(sim(), Options { workers, batched, ..Options::default() })
}

fn window(kernel: [usize; 2], stride: [usize; 2], [top, left, bottom, right]: [usize; 4]) -> Window {
    Window { kernel, stride, dilation: [1, 1], padding: Padding { top, bottom, left, right } }
}

/// Values of a window that lie inside, of one channel.
fn inside<T: Case>(input: &[T], [height, width, channels]: [usize; 3], window: &Window, at: [usize; 3]) -> Vec<f64> {
    let before = [window.padding.top, window.padding.left];
    let axis = |axis: usize, extent: usize| {
        let first = at[axis] * window.stride[axis];
        (first..first + window.kernel[axis])
            .filter_map(move |cell| cell.checked_sub(before[axis]))
            .filter(move |cell| *cell < extent)
    };
    let cells = axis(0, height).flat_map(|row| axis(1, width).map(move |column| (row, column)));
    cells.map(|(row, column)| input[(row * width + column) * channels + at[2]].value()).collect()
}

fn check_output<T: Case>(what: &str, kind: PoolKind, window: &Window, input: &[T], shape: [usize; 3], output: &[T]) {
    let [rows, columns] = window.output([shape[0], shape[1]]).unwrap();
    for (index, found) in output.iter().enumerate() {
        let (pixel, channel) = (index / shape[2], index % shape[2]);
        assert!(pixel < rows * columns);
        let values = inside(input, shape, window, [pixel / columns, pixel % columns, channel]);
        let right = match kind {
            PoolKind::Max => found.value() == values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            PoolKind::Min => found.value() == values.iter().copied().fold(f64::INFINITY, f64::min),
            PoolKind::Mean => T::is_mean(*found, &values, window.kernel),
            PoolKind::MeanInside => T::is_mean(*found, &values, [1, values.len()]),
        };
        assert!(right, "{what}: {found:?} at pixel {pixel}, channel {channel} of {values:?}");
    }
}

/// One row of the matrix, run in every way: all must agree bit by bit.
fn check<T: Case>(kind: PoolKind, window: &Window, shape: [usize; 3]) {
    check_on::<T>(&MODES, kind, window, shape);
}

fn check_on<T: Case>(modes: &[Mode], kind: PoolKind, window: &Window, shape: [usize; 3]) {
    let what = format!("{kind:?} of {:?} {shape:?}, {window:?}", T::ELEMENT);
    let mut rng = StdRng::seed_from_u64(shape.iter().sum::<usize>() as u64);
    let input: Vec<T> = (0..shape.iter().product()).map(|_| T::draw(&mut rng)).collect();
    let [rows, columns] = window.output([shape[0], shape[1]]).unwrap();
    let mut first = None;
    for &mode in modes.iter().filter(|mode| place::has((mode.1)())) {
        let (simulator, mut context) = context(mode);
        let mut output = vec![T::default(); rows * columns * shape[2]];
        let outcome = context.pool(kind, window, Image::new(&input, shape).unwrap(), &mut output);
        outcome.unwrap_or_else(|error| panic!("{what}, {}: {error}; {:?}", mode.0, simulator.faults()));
        let first = first.get_or_insert_with(|| output.clone());
        assert_eq!(*first, output, "{what}, {}", mode.0);
    }
    check_output(&what, kind, window, &input, shape, &first.unwrap());
}

/// Every channel count that has an edge, kernels and padding up to their limits, odd and even.
fn rows() -> Vec<(Window, [usize; 3])> {
    vec![
        (window([2, 2], [2, 2], [0; 4]), [14, 14, 64]),
        (window([3, 3], [2, 2], [0, 0, 1, 1]), [15, 10, 5]),
        (window([3, 3], [1, 1], [1; 4]), [9, 7, 40]),
        (window([2, 5], [1, 3], [1, 2, 0, 2]), [3, 17, 17]),
        (window([16, 16], [16, 16], [7; 4]), [40, 21, 9]),
        (window([11, 13], [5, 4], [3, 7, 6, 2]), [23, 31, 33]),
    ]
}

#[test]
fn maxima_and_minima_are_exact() {
    for kind in [PoolKind::Max, PoolKind::Min] {
        for (window, shape) in rows() {
            check::<i8>(kind, &window, shape);
            check::<u8>(kind, &window, shape);
            check::<f16>(kind, &window, shape);
        }
        check::<i8>(kind, &window([1, 3], [1, 1], [0, 1, 0, 1]), [1, 8192, 3]);
        check::<f16>(kind, &window([1, 1], [3, 2], [0; 4]), [7, 7, 8]);
    }
}

#[test]
fn means_count_what_is_outside_as_zeros() {
    for (window, shape) in rows() {
        check::<i8>(PoolKind::Mean, &window, shape);
        check::<f16>(PoolKind::Mean, &window, shape);
        if window.padding == Padding::default() {
            check::<u8>(PoolKind::Mean, &window, shape);
        }
    }
    // More channels than a task takes.
    check::<i8>(PoolKind::Mean, &window([2, 2], [2, 2], [0; 4]), [4, 4, 3 * 8192 + 20]);
}

#[test]
fn means_of_what_is_inside_leave_padding_out() {
    for (window, shape) in rows() {
        check::<f16>(PoolKind::MeanInside, &window, shape);
    }
    check::<i8>(PoolKind::MeanInside, &rows()[0].0, rows()[0].1);
}

fn check_global<T: Case>(kind: PoolKind, shape: [usize; 3], passes: usize) {
    check_global_on::<T>(&MODES, kind, shape, passes);
}

fn check_global_on<T: Case>(modes: &[Mode], kind: PoolKind, shape: [usize; 3], passes: usize) {
    let what = format!("the whole {kind:?} of {:?} {shape:?}", T::ELEMENT);
    let mut rng = StdRng::seed_from_u64(7);
    let input: Vec<T> = (0..shape.iter().product()).map(|_| T::draw(&mut rng)).collect();
    let plan = PoolPlan::global(&Chip::RK3588, T::ELEMENT, kind, shape).unwrap();
    assert_eq!(plan.passes(), passes, "{what}");
    for &mode in modes.iter().filter(|mode| place::has((mode.1)())) {
        let (simulator, mut context) = context(mode);
        let mut output = vec![T::default(); shape[2]];
        let outcome = context.pool_global(kind, Image::new(&input, shape).unwrap(), &mut output);
        outcome.unwrap_or_else(|error| panic!("{what}: {error}; {:?}", simulator.faults()));
        for (channel, found) in output.iter().enumerate() {
            let values: Vec<f64> = input.iter().skip(channel).step_by(shape[2]).map(|value| value.value()).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let largest = values.iter().fold(0f64, |largest, value| largest.max(value.abs()));
            // Every pass rounds: integers to whole ones, half precision to 11 bits of what the pass sees.
            let step = if T::ELEMENT == ElementType::F16 { largest * 2f64.powi(-9) } else { 0.6 };
            let (expected, bound) = match kind {
                PoolKind::Max => (values.iter().copied().fold(f64::NEG_INFINITY, f64::max), 0.0),
                PoolKind::Min => (values.iter().copied().fold(f64::INFINITY, f64::min), 0.0),
                PoolKind::Mean | PoolKind::MeanInside => (mean, passes as f64 * step),
            };
            let found = found.value();
            assert!((found - expected).abs() <= bound, "{what}: {found} in channel {channel}, not {expected}");
        }
    }
}

#[test]
fn whole_pictures_are_pooled_in_passes() {
    for kind in [PoolKind::Max, PoolKind::Min] {
        check_global::<i8>(kind, [7, 7, 40], 1);
        check_global::<f16>(kind, [17, 1, 9], 2);
        check_global::<u8>(kind, [113, 31, 3], 2);
        check_global::<f16>(kind, [1, 1, 20], 1);
        check_global::<i8>(kind, [3, 5000, 2], 4);
    }
    check_global::<f16>(PoolKind::Mean, [7, 7, 1280], 1);
    check_global::<f16>(PoolKind::Mean, [56, 112, 24], 2);
    check_global::<i8>(PoolKind::Mean, [7, 7, 33], 1);
    check_global::<i8>(PoolKind::Mean, [32, 20, 17], 2);
    check_global::<u8>(PoolKind::MeanInside, [14, 14, 16], 1);
}

#[test]
fn the_rk3576_pools_bytes() {
    for (window, shape) in rows() {
        check_on::<i8>(&RK3576, PoolKind::Max, &window, shape);
        check_on::<u8>(&RK3576, PoolKind::Max, &window, shape);
        let plain = Window { padding: Padding::default(), ..window };
        check_on::<i8>(&RK3576, PoolKind::Mean, &plain, shape.map(|extent| extent + 3));
        check_on::<u8>(&RK3576, PoolKind::Mean, &plain, shape.map(|extent| extent + 3));
    }
    check_on::<i8>(&RK3576, PoolKind::MeanInside, &rows()[0].0, rows()[0].1);
    check_global_on::<i8>(&RK3576, PoolKind::Max, [113, 31, 3], 2);
    check_global_on::<u8>(&RK3576, PoolKind::Mean, [32, 20, 17], 2);
}

#[test]
fn random_windows_are_right() {
    let mut rng = StdRng::seed_from_u64(11);
    for _ in 0..24 {
        let extent = |rng: &mut StdRng| [rng.random_range(2..=16usize), rng.random_range(2..=16usize)];
        let (kernel, stride) = (extent(&mut rng), extent(&mut rng));
        let pads: [usize; 4] = std::array::from_fn(|side| rng.random_range(0..=7.min(kernel[side % 2] - 1)));
        let shape = std::array::from_fn(|axis| match axis {
            2 => rng.random_range(1..70),
            _ => kernel[axis] + rng.random_range(0..20),
        });
        let window = window(kernel, stride, pads);
        let kind = [PoolKind::Max, PoolKind::Min, PoolKind::Mean, PoolKind::MeanInside][rng.random_range(0..4)];
        check::<f16>(kind, &window, shape);
        if kind != PoolKind::MeanInside {
            check::<i8>(kind, &window, shape);
        }
    }
}

fn refusal<T: PoolElement>(kind: PoolKind, window: &Window, shape: [usize; 3]) -> String {
    let (simulator, mut context) = simulated(MODES[0]);
    let [rows, columns] = window.output([shape[0], shape[1]]).unwrap_or([1, 1]);
    let input = vec![T::default(); shape.iter().product()];
    let image = Image::new(&input, shape).unwrap();
    let error = context.pool(kind, window, image, &mut vec![T::default(); rows * columns * shape[2]]).unwrap_err();
    assert_eq!(simulator.counters().jobs, 0, "nothing was submitted");
    error.to_string()
}

#[test]
fn what_the_pooling_unit_cannot_do_is_refused_by_name() {
    let shape = [40, 40, 8];
    let plain = |kernel, stride| window(kernel, stride, [0; 4]);
    let max = |window: &Window| refusal::<i8>(PoolKind::Max, window, shape);
    assert_eq!(max(&plain([17, 2], [2, 2])), "a pooling kernel of 17 exceeds 16");
    assert_eq!(max(&plain([2, 2], [2, 17])), "a pooling stride of 17 exceeds 16");
    assert_eq!(max(&window([9, 9], [1, 1], [8, 0, 0, 0])), "pooling with padding of 8, more than 7");
    assert_eq!(max(&Window { dilation: [2, 1], ..plain([2, 2], [1, 1]) }), "pooling with dilation");
    assert_eq!(max(&window([2, 2], [1, 1], [2, 0, 0, 0])), "a window that lies wholly in the padding");
    assert_eq!(refusal::<i8>(PoolKind::Max, &plain([2, 2], [2, 2]), [2, 8193, 1]), "an extent of 8193 exceeds 8192");
    let one = refusal::<f16>(PoolKind::Mean, &plain([1, 2], [1, 1]), shape);
    assert_eq!(one, "a mean over a kernel extent of 1");
    let padded = window([2, 2], [1, 1], [1; 4]);
    let unsigned = refusal::<u8>(PoolKind::Mean, &padded, shape);
    assert_eq!(unsigned, "a mean of unsigned bytes with padding, whose zero the hardware takes for 128");
    let left_out = refusal::<i8>(PoolKind::MeanInside, &padded, shape);
    assert_eq!(left_out, "a mean of integers that leaves padding out, which would be rounded twice");
}

#[test]
fn operands_that_do_not_fit_and_numbers_that_nobody_knows_are_refused() {
    let (_simulator, mut context) = context(MODES[0]);
    let window = window([2, 2], [2, 2], [0; 4]);
    let mut pool = |kind, input: &[f16], output: &mut [f16]| -> Result<RunReport, RunError> {
        context.pool(kind, &window, Image::new(input, [2, 2, 3])?, output)
    };
    let mut input = [f16::ONE; 12];
    let mut output = [f16::ONE; 3];
    let error = pool(PoolKind::Max, &input[1..], &mut output).unwrap_err();
    assert_eq!(error.to_string(), "11 values are no picture of [2, 2, 3]");
    let error = pool(PoolKind::Max, &input, &mut output[1..]).unwrap_err();
    assert_eq!(error.to_string(), "output 0 has 4 bytes, 6 are needed");
    input[5] = f16::INFINITY;
    pool(PoolKind::Max, &input, &mut output).unwrap();
    assert_eq!(output, [f16::ONE, f16::ONE, f16::INFINITY]);
    let error = pool(PoolKind::Mean, &input, &mut output).unwrap_err();
    assert_eq!(error.to_string(), "element 5 of the input is outside its datatype");
    input[7] = f16::NAN;
    assert!(matches!(pool(PoolKind::Min, &input, &mut output), Err(RunError::Value { index: 7, .. })));
}

#[test]
fn a_driver_that_would_not_hear_of_the_result_is_not_asked() {
    for (version, name) in [((0, 0, 0), "0.0.0"), ((1, 2, 0), "1.2.0")] {
        let simulator = Simulator::new(Sim { version, ..Sim::default() });
        let mut context = Context::open(&simulator, &Chip::RK3588, Options::default()).unwrap();
        let error =
            context.pool_global(PoolKind::Max, Image::new(&[1i8; 4], [2, 2, 1]).unwrap(), &mut [0]).unwrap_err();
        let expected = format!("driver {name} does not wait for the pooling unit, version 1.3 does");
        assert_eq!(error.to_string(), expected);
        assert_eq!(simulator.counters().jobs, 0);
    }
}

/// The error of a maximum whose device misbehaves once, and then a right result.
fn spoiled(mode: Mode, lever: Lever) -> String {
    let (simulator, mut context) = simulated(mode);
    let input: Vec<i8> = (0..64 * 64 * 16).map(|i| i as i8).collect();
    let mut output = [5; 16];
    simulator.inject(lever);
    let image = Image::new(&input, [64, 64, 16]).unwrap();
    let error = context.pool_global(PoolKind::Max, image, &mut output).unwrap_err();
    assert_eq!(output, [0; 16], "an unverified result was handed out");
    context.pool_global(PoolKind::Max, image, &mut output).unwrap();
    assert!(output.iter().any(|value| *value != 0));
    assert!(simulator.faults().iter().all(|record| record.fault == Fault::Injected));
    error.to_string()
}

#[test]
fn what_a_pass_did_not_write_is_never_a_result() {
    let [_, batched, task_by_task, _] = MODES;
    for lever in [
        Lever::LostWrite { task: 0, burst: 0 },
        Lever::LostWrite { task: 1, burst: 0 },
        Lever::PartialWrite { task: 0, percent: 50 },
    ] {
        let error = spoiled(batched, lever.clone());
        assert!(error.contains("sentinels survived"), "{lever:?}: {error}");
    }
    // The driver that waits for this unit says what failed, whichever way it was asked.
    for mode in [batched, task_by_task] {
        assert_eq!(spoiled(mode, Lever::SwallowedSubmit), "submit a job");
        assert_eq!(spoiled(mode, Lever::Hang { task: 1 }), "wait for the jobs");
    }
}

#[test]
fn products_and_pooling_share_a_context() {
    let (simulator, mut context) = context(MODES[0]);
    let (a, b, mut c) = (vec![1_i8; 260 * 64], vec![2_i8; 64 * 64], vec![0; 260 * 64]);
    let (a, b) = (Matrix::new(&a, 260, 64).unwrap(), Matrix::new(&b, 64, 64).unwrap());
    let picture: Vec<i8> = (0..8 * 8 * 64).map(|i| (i % 101) as i8).collect();
    for _ in 0..3 {
        context.matmul::<npu::matmul::I8>(a, b, &mut c).unwrap();
        assert!(c.iter().all(|sum| *sum == 128));
        let mut output = [0; 64];
        context.pool_global(PoolKind::Max, Image::new(&picture, [8, 8, 64]).unwrap(), &mut output).unwrap();
        assert!(output.iter().all(|value| *value > 90));
    }
    assert!(simulator.faults().is_empty());
}

/// Rows that are sums of numbers below 100, so that bounds are in units of single precision.
fn numbers(rng: &mut StdRng, count: usize) -> Vec<f16> {
    (0..count).map(|_| f16::draw(rng)).collect()
}

fn bound(values: &[f64]) -> f64 {
    values.iter().map(|value| value.abs()).sum::<f64>() * (values.len() as f64 / 16.0 + 2.0) * 2f64.powi(-24)
}

#[test]
fn rows_are_summed_in_single_precision() {
    for (rows, columns) in [(1, 1), (5, 31), (4, 64), (257, 100), (3, 1500), (2, 9000)] {
        let mut rng = StdRng::seed_from_u64((rows + columns) as u64);
        let values = numbers(&mut rng, rows * columns);
        let matrix = Matrix::new(&values, rows, columns).unwrap();
        let (_simulator, mut context) = context(MODES[0]);
        let (mut sums, mut means) = (vec![0.0; rows], vec![0.0; rows]);
        context.sum_rows(matrix, &mut sums).unwrap();
        context.mean_rows(matrix, &mut means).unwrap();
        for (row, values) in values.chunks(columns).enumerate() {
            let values: Vec<f64> = values.iter().map(|value| value.to_f64()).collect();
            let (sum, bound) = (values.iter().sum::<f64>(), bound(&values));
            assert!((f64::from(sums[row]) - sum).abs() <= bound, "{rows}×{columns}: {} not {sum}", sums[row]);
            let (mean, found) = (sum / columns as f64, f64::from(means[row]));
            assert!((found - mean).abs() <= bound / columns as f64 + mean.abs() * 2f64.powi(-23));
        }
    }
    let (_simulator, mut context) = context(MODES[0]);
    let error = context.sum_rows(Matrix::new(&[f16::ONE; 4], 2, 2).unwrap(), &mut [0.0]).unwrap_err();
    assert_eq!(error.to_string(), "result 0 has 4 bytes, 8 are needed");
}

#[test]
fn cumulative_sums_run_both_ways_with_and_without_themselves() {
    for (rows, columns) in [(1, 7), (5, 32), (60, 100), (258, 48), (2, 1500)] {
        for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut rng = StdRng::seed_from_u64((rows + columns) as u64);
            let values = numbers(&mut rng, rows * columns);
            let (_simulator, mut context) = context(MODES[0]);
            let mut found = vec![0.0; rows * columns];
            let kind = CumulativeSum { exclusive, reverse };
            context.cumulative_sum(Matrix::new(&values, rows, columns).unwrap(), kind, &mut found).unwrap();
            for (row, found) in values.chunks(columns).zip(found.chunks(columns)) {
                let row: Vec<f64> = row.iter().map(|value| value.to_f64()).collect();
                for (column, found) in found.iter().enumerate() {
                    let end = column + usize::from(!exclusive);
                    let start = column + usize::from(exclusive);
                    let values = if reverse { &row[start..] } else { &row[..end] };
                    let (sum, bound) = (values.iter().sum::<f64>(), bound(&row));
                    assert!(
                        (f64::from(*found) - sum).abs() <= bound,
                        "{kind:?} {columns} at {column}: {found} not {sum}"
                    );
                }
            }
        }
    }
}
