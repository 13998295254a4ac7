//! Matrix products on the simulator, or on a board: a matrix of datatype × shape × path, against exact arithmetic.
//!
//! Integers are compared bit by bit with 64-bit sums. Real numbers are compared with double-precision sums of what the hardware
//! sees of the factors, on random numbers of both signs: each element within a bound that follows from the roundings, and the
//! whole by the cosine of the two results.

#![allow(clippy::unwrap_used, reason = "everything in this file is a test")]

mod place;

use std::sync::Arc;
use std::time::Duration;

use half::{bf16, f16};
use npu::matmul::{
    Bf16, F16, F16ToF32, GroupNumbers, I4, I8, I16, MatmulPlan, Matrix, Numbers, Product, Scaled, Shape, Tf32, pad_rows,
};
use npu::{Chip, Context, OperandReuse, Options, RunError};
use npu_device::{Device, Driver};
use npu_sim::{Lever, Options as Sim, Simulator};
use place::Place;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What a datatype needs to be tested.
trait Case: Numbers {
    fn factor(rng: &mut StdRng) -> Self::Factor;
    /// What the hardware sees of a factor.
    fn seen(factor: Self::Factor) -> f64;
    fn found(sum: Self::Sum) -> f64;
    /// Allowed error of an element: `magnitude` is the sum of the products' magnitudes, `largest` the largest result.
    fn bound(depth: usize, tiles: usize, magnitude: f64, largest: f64) -> f64;
    /// What an exact sum becomes.
    fn limited(sum: f64) -> f64 {
        sum
    }
}

/// Groups are rounded once each and added in single precision.
fn single_precision(depth: usize, magnitude: f64) -> f64 {
    (depth as f64 / 16.0 + 2.0) * 2f64.powi(-24) * magnitude
}

fn real(rng: &mut StdRng) -> f32 {
    rng.random_range(-1.0f32..1.0)
}

impl Case for F16 {
    fn factor(rng: &mut StdRng) -> f16 {
        f16::from_f32(real(rng))
    }
    fn seen(factor: f16) -> f64 {
        factor.to_f64()
    }
    fn found(sum: f16) -> f64 {
        sum.to_f64()
    }
    /// Every tile of the depth is rounded to 11 bits.
    fn bound(depth: usize, tiles: usize, magnitude: f64, largest: f64) -> f64 {
        single_precision(depth, magnitude) + tiles as f64 * 2f64.powi(-11) * largest
    }
}

impl Case for F16ToF32 {
    fn factor(rng: &mut StdRng) -> f16 {
        f16::from_f32(real(rng))
    }
    fn seen(factor: f16) -> f64 {
        factor.to_f64()
    }
    fn found(sum: f32) -> f64 {
        sum.into()
    }
    fn bound(depth: usize, _: usize, magnitude: f64, _: f64) -> f64 {
        single_precision(depth, magnitude)
    }
}

impl Case for Bf16 {
    fn factor(rng: &mut StdRng) -> f32 {
        // Far beyond half precision; products stay inside single precision.
        real(rng) * 1e15
    }
    fn seen(factor: f32) -> f64 {
        bf16::from_bits((factor.to_bits() >> 16) as u16).to_f64()
    }
    fn found(sum: f32) -> f64 {
        sum.into()
    }
    fn bound(depth: usize, _: usize, magnitude: f64, _: f64) -> f64 {
        single_precision(depth, magnitude)
    }
}

impl Case for Tf32 {
    fn factor(rng: &mut StdRng) -> f32 {
        real(rng)
    }
    fn seen(factor: f32) -> f64 {
        let step = 2f64.powi(factor.abs().log2().floor() as i32 - 10);
        (f64::from(factor) / step).round_ties_even() * step
    }
    fn found(sum: f32) -> f64 {
        sum.into()
    }
    fn bound(depth: usize, _: usize, magnitude: f64, _: f64) -> f64 {
        single_precision(depth, magnitude)
    }
}

impl Case for I8 {
    fn factor(rng: &mut StdRng) -> i8 {
        rng.random()
    }
    fn seen(factor: i8) -> f64 {
        factor.into()
    }
    fn found(sum: i32) -> f64 {
        sum.into()
    }
    fn bound(_: usize, _: usize, _: f64, _: f64) -> f64 {
        0.0
    }
}

impl Case for I4 {
    fn factor(rng: &mut StdRng) -> i8 {
        rng.random_range(-8..=7)
    }
    fn seen(factor: i8) -> f64 {
        factor.into()
    }
    fn found(sum: i32) -> f64 {
        sum.into()
    }
    fn bound(_: usize, _: usize, _: f64, _: f64) -> f64 {
        0.0
    }
}

impl Case for I16 {
    fn factor(rng: &mut StdRng) -> i16 {
        rng.random()
    }
    fn seen(factor: i16) -> f64 {
        factor.into()
    }
    fn found(sum: i32) -> f64 {
        sum.into()
    }
    fn bound(_: usize, _: usize, _: f64, _: f64) -> f64 {
        0.0
    }
    fn limited(sum: f64) -> f64 {
        sum.clamp(i32::MIN.into(), i32::MAX.into())
    }
}

/// How a product is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Path {
    OneShot,
    Batch(usize),
    Resident,
    ResidentBatch(usize),
    Stream(usize),
}

/// How it runs: the kernel, and what differs from the default options.
#[derive(Clone, Copy, Debug)]
struct Mode {
    name: &'static str,
    sim: fn() -> Sim,
    options: fn(Options) -> Options,
}

const STOCK: Mode = Mode { name: "stock", sim: Sim::default, options: |options| options };
const BATCHED: Mode = Mode { name: "batched", sim: Sim::batched, options: |options| options };
const SINGLE: Mode =
    Mode { name: "one worker", sim: Sim::default, options: |options| Options { workers: 1, ..options } };
const ON_HOST: Mode = Mode {
    name: "sums on the host",
    sim: Sim::batched,
    options: |options| Options { accumulate_on_chip: false, ..options },
};
const UNCHAINED: Mode =
    Mode { name: "unchained", sim: Sim::batched, options: |options| Options { chain_accumulation: false, ..options } };
const HOST_ORDER: Mode =
    Mode { name: "host order", sim: Sim::batched, options: |options| Options { host_order: true, ..options } };
const SHARED_FEATURES: Mode = Mode {
    name: "shared features",
    sim: Sim::batched,
    options: |options| Options { reuse: OperandReuse::Features, ..options },
};
const SHARED_WEIGHTS: Mode = Mode {
    name: "shared weights",
    sim: Sim::default,
    options: |options| Options { reuse: OperandReuse::Weights, ..options },
};
const SYMMETRIC: Mode = Mode {
    name: "symmetric tiles",
    sim: Sim::batched,
    options: |options| Options { asymmetric_tiles: false, ..options },
};
const RULE: Mode = Mode {
    name: "the published rule",
    sim: Sim::batched,
    options: |options| Options { cheapest_plan: false, ..options },
};
const SMALL_TILES: Mode = Mode {
    name: "small tiles",
    sim: Sim::batched,
    options: |options| Options { tile_rows: 12, tile_columns: 64, tile_depth: 64, tasks_per_job: 7, ..options },
};

fn options(mode: Mode) -> Options {
    (mode.options)(Options::default())
}

fn context(mode: Mode) -> (Place, Context) {
    place::open((mode.sim)(), options(mode))
}

fn simulated(mode: Mode) -> (Simulator, Context) {
    place::simulated((mode.sim)(), options(mode))
}

fn random<T: Case>(rng: &mut StdRng, count: usize) -> Vec<T::Factor> {
    (0..count).map(|_| T::factor(rng)).collect()
}

/// The exact sums, and the sums of magnitudes, of a product. Sums of integers below 2^53 are exact in double precision.
fn exact<T: Case>(a: &[T::Factor], b: &[T::Factor], depth: usize) -> Vec<(f64, f64)> {
    let seen = |values: &[T::Factor]| values.iter().map(|value| T::seen(*value)).collect::<Vec<_>>();
    let (a, b) = (seen(a), seen(b));
    let dot = |a: &[f64], b: &[f64]| {
        a.iter().zip(b).fold((0.0, 0.0), |(sum, all), (a, b)| (sum + a * b, all + (a * b).abs()))
    };
    a.chunks(depth).flat_map(|a| b.chunks(depth).map(move |b| dot(a, b))).collect()
}

fn compare<T: Case>(what: &str, found: &[T::Sum], exact: &[(f64, f64)], depth: usize, tiles: usize) {
    assert_eq!(found.len(), exact.len(), "{what}");
    let largest = exact.iter().map(|(sum, _)| T::limited(*sum).abs()).fold(0.0, f64::max);
    let (mut dot, mut left, mut right) = (0.0, 0.0, 0.0);
    for (index, (found, (sum, magnitude))) in found.iter().zip(exact).enumerate() {
        let (found, expected) = (T::found(*found), T::limited(*sum));
        let bound = T::bound(depth, tiles, *magnitude, largest);
        let error = (found - expected).abs();
        assert!(error <= bound, "{what}: element {index} is {found}, expected {expected} within {bound}");
        dot += found * expected / largest / largest;
        left += (found / largest).powi(2);
        right += (expected / largest).powi(2);
    }
    let cosine = dot / (left * right).sqrt();
    assert!(cosine > 0.999_99, "{what}: cosine {cosine}");
}

/// One row of the matrix.
fn check<T: Case>(shape: [usize; 3], path: Path, mode: Mode) {
    check_modes::<T>(shape, path, &[mode]);
}

/// The same numbers in every mode: what is exact is found once.
fn check_modes<T: Case>([rows, depth, columns]: [usize; 3], path: Path, modes: &[Mode]) {
    let mut rng = StdRng::seed_from_u64((rows * 7 + depth * 3 + columns) as u64);
    let count = match path {
        Path::Batch(count) | Path::ResidentBatch(count) | Path::Stream(count) => count,
        Path::OneShot | Path::Resident => 1,
    };
    let a: Vec<_> = (0..count).map(|_| random::<T>(&mut rng, rows * depth)).collect();
    let b: Vec<_> = (0..count).map(|_| random::<T>(&mut rng, columns * depth)).collect();
    let first: Vec<_> = a.iter().map(|a| Matrix::new(a, rows, depth).unwrap()).collect();
    let second: Vec<_> = b.iter().map(|b| Matrix::new(b, columns, depth).unwrap()).collect();
    let shared = matches!(path, Path::Stream(_));
    let sums: Vec<_> = (0..count).map(|i| exact::<T>(&a[if shared { 0 } else { i }], &b[i], depth)).collect();
    for &mode in modes.iter().filter(|mode| place::has((mode.sim)())) {
        let what = format!("{} {rows}×{depth}×{columns} {path:?}, {}", T::PRODUCT, mode.name);
        let (simulator, mut context) = context(mode);
        let mut c = vec![vec![T::Sum::default(); rows * columns]; count];
        let mut results: Vec<&mut [T::Sum]> = c.iter_mut().map(Vec::as_mut_slice).collect();
        let outcome = match path {
            Path::OneShot => context.matmul::<T>(first[0], second[0], results[0]),
            Path::Batch(_) => context.matmul_batch::<T>(&first, &second, &mut results),
            Path::Stream(_) => context.matmul_stream::<T>(first[0], &second, &mut results),
            Path::Resident => {
                let weights = context.pack_weights::<T>(second[0]).unwrap();
                context.matmul_resident::<T>(first[0], &weights, results[0])
            }
            Path::ResidentBatch(_) => {
                let weights = context.pack_batch::<T>(&second).unwrap();
                context.matmul_batch_resident::<T>(&first, &weights, &mut results)
            }
        };
        outcome.unwrap_or_else(|error| panic!("{what}: {error}; {:?}", simulator.faults()));
        let shape = Shape { rows: pad_rows(rows), depth, columns };
        let resident = matches!(path, Path::Resident | Path::ResidentBatch(_));
        let plan = if resident { MatmulPlan::resident } else { MatmulPlan::new };
        let tiles = plan(context.chip(), T::PRODUCT, shape, &options(mode)).unwrap().tiles().depth;
        c.iter().zip(&sums).for_each(|(c, sums)| compare::<T>(&what, c, sums, depth, tiles));
    }
}

/// Rows of every kind: odd, one, whole tiles and one more.
const ROWS: [usize; 10] = [1, 2, 3, 4, 5, 60, 255, 256, 257, 1000];

fn check_rows<T: Case>() {
    ROWS.into_iter().for_each(|rows| check::<T>([rows, 96, 64], Path::OneShot, STOCK));
}

#[test]
fn every_number_of_rows_is_right() {
    check_rows::<F16>();
    check_rows::<F16ToF32>();
    check_rows::<I8>();
    check_rows::<I4>();
    check_rows::<I16>();
    check_rows::<Bf16>();
    check_rows::<Tf32>();
}

/// Shapes that have edges of tiles in every direction, and depth beyond 8192.
const SHAPES: [[usize; 3]; 3] = [[260, 800, 320], [20, 9248, 64], [12, 32, 64]];

fn check_paths<T: Case>() {
    let modes = [STOCK, BATCHED, SINGLE, SHARED_FEATURES, SHARED_WEIGHTS, SYMMETRIC, RULE];
    check_modes::<T>(SHAPES[0], Path::OneShot, &modes);
    SHAPES[1..].iter().for_each(|shape| check_modes::<T>(*shape, Path::OneShot, &[STOCK, BATCHED]));
    // Small tiles have as many edges in a small shape.
    check::<T>([28, 160, 192], Path::OneShot, SMALL_TILES);
    for path in [Path::Batch(4), Path::Resident, Path::ResidentBatch(4), Path::Stream(2)] {
        check_modes::<T>([60, 800, 320], path, &[STOCK, BATCHED]);
    }
    // Of one product, of fewer than workers, on one worker, and with edges of tiles in every direction.
    check_modes::<T>([8, 96, 64], Path::ResidentBatch(1), &[BATCHED, SINGLE]);
    check_modes::<T>([28, 160, 192], Path::ResidentBatch(2), &[SINGLE, SMALL_TILES, SHARED_FEATURES, SHARED_WEIGHTS]);
    check::<T>([1000, 96, 64], Path::Resident, BATCHED);
}

const RK3576: Mode = Mode { name: "RK3576", sim: Sim::rk3576, options: |options| options };
const RK3576_SINGLE: Mode = Mode { sim: Sim::rk3576, ..SINGLE };
const RK3576_SMALL_TILES: Mode = Mode {
    name: "RK3576, small tiles",
    sim: Sim::rk3576,
    options: |options| Options { tile_rows: 12, tile_columns: 48, tile_depth: 64, tasks_per_job: 7, ..options },
};

/// `deep`: a depth of many tasks.
fn check_rk3576<T: Case>(deep: usize) {
    for rows in [1, 3, 5, 60, 257] {
        check::<T>([rows, 96, 64], Path::OneShot, RK3576);
    }
    for shape in [[260, 800, 320], [20, deep, 64], [12, 32, 96]] {
        check::<T>(shape, Path::OneShot, RK3576);
    }
    check::<T>([100, 160, 224], Path::OneShot, RK3576_SINGLE);
    check::<T>([100, 160, 224], Path::OneShot, RK3576_SMALL_TILES);
    for path in [Path::Batch(4), Path::Resident, Path::ResidentBatch(4), Path::Stream(2)] {
        check::<T>([60, 320, 160], path, RK3576);
        check::<T>([60, 320, 160], path, RK3576_SINGLE);
    }
    check::<T>([500, 96, 64], Path::Resident, RK3576);
}

#[test]
fn the_rk3576_multiplies_integers_exactly() {
    check_rk3576::<I8>(9248);
}

#[test]
fn the_rk3576_multiplies_half_precision() {
    check_rk3576::<F16>(1248);
}

#[test]
fn half_precision_is_right_on_every_path() {
    check_paths::<F16>();
    for shape in [SHAPES[0], SHAPES[1], [4, 2048, 512]] {
        check_modes::<F16>(shape, Path::OneShot, &[ON_HOST, UNCHAINED, HOST_ORDER]);
    }
}

#[test]
fn half_precision_with_wide_results_is_right_on_every_path() {
    check_paths::<F16ToF32>();
    check::<F16ToF32>(SHAPES[0], Path::OneShot, HOST_ORDER);
}

#[test]
fn eight_bit_integers_are_exact_on_every_path() {
    check_paths::<I8>();
    check::<I8>(SHAPES[0], Path::OneShot, HOST_ORDER);
}

#[test]
fn four_bit_integers_are_exact_on_every_path() {
    check_paths::<I4>();
}

#[test]
fn brain_floats_are_right_on_every_path() {
    check_paths::<Bf16>();
}

#[test]
fn tf32_is_right_on_every_path() {
    check_paths::<Tf32>();
    check::<Tf32>([8, 48, 32], Path::OneShot, STOCK);
}

#[test]
fn sixteen_bit_integers_saturate_on_every_path() {
    for shape in [[260, 800, 320], [4, 4096, 64]] {
        check_modes::<I16>(shape, Path::OneShot, &[STOCK, BATCHED, SINGLE, SHARED_FEATURES]);
    }
    check::<I16>([60, 800, 320], Path::Batch(3), BATCHED);
    check::<I16>([60, 800, 320], Path::Resident, BATCHED);
    check::<I16>([60, 800, 320], Path::ResidentBatch(4), BATCHED);
}

/// Options drawn at random: none of them may change an exact result, or a real one beyond its bound.
fn drawn(seed: u64) -> Options {
    let mut rng = StdRng::seed_from_u64(seed);
    let reuse = [OperandReuse::Off, OperandReuse::Features, OperandReuse::Weights, OperandReuse::Auto];
    Options {
        workers: rng.random_range(1..=3),
        batched: rng.random(),
        accumulate_on_chip: rng.random(),
        chain_accumulation: rng.random(),
        reuse: reuse[rng.random_range(0..4)],
        asymmetric_tiles: rng.random(),
        cheapest_plan: rng.random(),
        host_order: rng.random(),
        tile_rows: rng.random_range(1..300),
        tile_columns: rng.random_range(1..300),
        tasks_per_job: rng.random_range(1..20),
        ..Options::default()
    }
}

fn check_random<T: Case>() {
    for seed in 0..8 {
        let mut rng = StdRng::seed_from_u64(seed);
        let rows = rng.random_range(1..300);
        let depth = rng.random_range(1..24) * T::PRODUCT.depth_group();
        let columns = rng.random_range(1..6) * T::PRODUCT.column_group();
        let (a, b) = (random::<T>(&mut rng, rows * depth), random::<T>(&mut rng, columns * depth));
        let options = drawn(seed);
        let what = format!("{} {rows}×{depth}×{columns}, {options:?}", T::PRODUCT);
        let sim = if seed % 2 == 0 { Sim::default() } else { Sim::batched() };
        let (simulator, mut context) = place::open(sim, options);
        let mut c = vec![T::Sum::default(); rows * columns];
        let (first, second) = (Matrix::new(&a, rows, depth).unwrap(), Matrix::new(&b, columns, depth).unwrap());
        let outcome = context.matmul::<T>(first, second, &mut c);
        outcome.unwrap_or_else(|error| panic!("{what}: {error}; {:?}", simulator.faults()));
        compare::<T>(&what, &c, &exact::<T>(&a, &b, depth), depth, depth / T::PRODUCT.depth_group());
    }
}

#[test]
fn random_shapes_with_random_options_are_right() {
    check_random::<F16>();
    check_random::<F16ToF32>();
    check_random::<I8>();
    check_random::<I4>();
    check_random::<I16>();
    check_random::<Bf16>();
    check_random::<Tf32>();
}

/// Random codes with a scale per group, and the exact result.
fn check_scaled<T: Case + GroupNumbers>([rows, depth, columns]: [usize; 3], group: usize, mode: Mode, resident: bool) {
    let what = format!("{} {rows}×{depth}×{columns} in groups of {group}, {}", T::PRODUCT, mode.name);
    let mut rng = StdRng::seed_from_u64((rows + depth + columns + group) as u64);
    let (simulator, mut context) = context(mode);
    let (a, b) = (random::<T>(&mut rng, rows * depth), random::<T>(&mut rng, columns * depth));
    let groups = depth / group;
    let mut scales = |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(0.001..0.1)).collect() };
    let (a_scales, b_scales) = (scales(rows * groups), scales(columns * groups));
    let first = Scaled::new(Matrix::new(&a, rows, depth).unwrap(), &a_scales, group).unwrap();
    let second = Scaled::new(Matrix::new(&b, columns, depth).unwrap(), &b_scales, group).unwrap();
    let mut c = vec![0.0; rows * columns];
    let outcome = match resident {
        false => context.matmul_scaled::<T>(first, second, &mut c),
        true => {
            let weights = context.pack_scaled_weights::<T>(second).unwrap();
            context.matmul_scaled_resident::<T>(first, &weights, &mut c)
        }
    };
    outcome.unwrap_or_else(|error| panic!("{what}: {error}; {:?}", simulator.faults()));
    let real = |values: &[T::Factor], scales: &[f32], row: usize| -> Vec<f64> {
        let scale = |k: usize| f64::from(scales[row * groups + k / group]);
        (0..depth).map(|k| T::seen(values[row * depth + k]) * scale(k)).collect()
    };
    let columns_real: Vec<Vec<f64>> = (0..columns).map(|n| real(&b, &b_scales, n)).collect();
    for (m, row) in c.chunks(columns).enumerate() {
        let first = real(&a, &a_scales, m);
        for (n, (found, second)) in row.iter().zip(&columns_real).enumerate() {
            let products = first.iter().zip(second).map(|(a, b)| a * b);
            let (sum, magnitude) = (products.clone().sum::<f64>(), products.map(f64::abs).sum::<f64>());
            // Each partial sum is rounded where it is scaled and where it is added.
            let bound = (depth as f64 / 32.0 + 4.0) * 2f64.powi(-24) * magnitude;
            assert!((f64::from(*found) - sum).abs() <= bound, "{what}: [{m}, {n}] is {found}, expected {sum}");
        }
    }
}

#[test]
fn scales_per_group_are_applied_to_partial_sums() {
    for (group, resident, mode) in
        [(32, false, STOCK), (480, true, BATCHED), (160, true, SINGLE), (96, false, SMALL_TILES)]
    {
        check_scaled::<I8>([60, 480, 96], group, mode, resident);
        check_scaled::<I4>([60, 480, 128], group, mode, resident);
    }
    // A group that exceeds the on-chip buffer, and one that saturated sums would not bear.
    check_scaled::<I8>([256, 4096, 64], 4096, BATCHED, true);
    check_scaled::<I4>([8, 1024, 64], 512, BATCHED, true);
}

#[test]
fn exact_products_of_16_bit_integers_cover_all_numbers() {
    for [rows, depth, columns] in [[1, 32, 32], [33, 96, 64], [60, 1056, 96]] {
        let mut rng = StdRng::seed_from_u64(rows as u64);
        let extremes = [i16::MIN, i16::MAX, -1, 0, 128, -128, 32640];
        let mut factors = |count: usize| -> Vec<i16> {
            (0..count).map(|i| if i % 3 == 0 { extremes[i / 3 % 7] } else { rng.random() }).collect()
        };
        let (a, b) = (factors(rows * depth), factors(columns * depth));
        let (_simulator, mut context) = context(STOCK);
        let mut c = vec![0; rows * columns];
        let first = Matrix::new(&a, rows, depth).unwrap();
        context.matmul_i16_exact(first, Matrix::new(&b, columns, depth).unwrap(), &mut c).unwrap();
        let dot = |a: &[i16], b: &[i16]| a.iter().zip(b).map(|(a, b)| i64::from(*a) * i64::from(*b)).sum::<i64>();
        let exact: Vec<i64> = a.chunks(depth).flat_map(|a| b.chunks(depth).map(move |b| dot(a, b))).collect();
        assert_eq!(c, exact);
    }
}

#[test]
fn weights_packed_once_serve_every_number_of_rows() {
    let (depth, columns) = (1056, 96);
    let mut rng = StdRng::seed_from_u64(3);
    let (_simulator, mut context) = context(BATCHED);
    let b = random::<F16>(&mut rng, columns * depth);
    let weights = context.pack_weights::<F16>(Matrix::new(&b, columns, depth).unwrap()).unwrap();
    let held = weights.device_bytes();
    for rows in [60, 4, 256, 512, 8] {
        let a = random::<F16>(&mut rng, rows * depth);
        let mut c = vec![f16::ZERO; rows * columns];
        context.matmul_resident::<F16>(Matrix::new(&a, rows, depth).unwrap(), &weights, &mut c).unwrap();
        compare::<F16>("resident", &c, &exact::<F16>(&a, &b, depth), depth, 4);
        assert_eq!(weights.device_bytes(), held, "nothing is packed again");
    }
}

/// Products of a batch, and of each alone, bit by bit.
fn check_batch_packed_once<T: Case>(mode: Mode) {
    let (items, depth, columns) = (5, 16 * T::PRODUCT.depth_group(), 192);
    let mut rng = StdRng::seed_from_u64(17);
    let (simulator, mut context) = context(mode);
    let b: Vec<_> = (0..items).map(|_| random::<T>(&mut rng, columns * depth)).collect();
    let b: Vec<_> = b.iter().map(|b| Matrix::new(b, columns, depth).unwrap()).collect();
    let weights = context.pack_batch::<T>(&b).unwrap();
    let alone: Vec<_> = b.iter().map(|b| context.pack_weights::<T>(*b).unwrap()).collect();
    let (held, mut before) = (weights.device_bytes(), Vec::new());
    for rows in [60, 4, 256, 60] {
        let a: Vec<_> = (0..items).map(|_| random::<T>(&mut rng, rows * depth)).collect();
        let a: Vec<_> = a.iter().map(|a| Matrix::new(a, rows, depth).unwrap()).collect();
        let mut c = vec![vec![T::Sum::default(); rows * columns]; items];
        let mut results: Vec<&mut [T::Sum]> = c.iter_mut().map(Vec::as_mut_slice).collect();
        let outcome = context.matmul_batch_resident::<T>(&a, &weights, &mut results);
        outcome.unwrap_or_else(|error| panic!("{} {rows} rows: {error}; {:?}", T::PRODUCT, simulator.faults()));
        for ((a, weights), found) in a.iter().zip(&alone).zip(&c) {
            let mut each = vec![T::Sum::default(); rows * columns];
            context.matmul_resident::<T>(*a, weights, &mut each).unwrap();
            assert!(found.iter().map(|sum| T::found(*sum)).eq(each.into_iter().map(T::found)), "{rows} rows");
        }
        assert_eq!(weights.device_bytes(), held, "nothing is packed again");
        let found: Vec<_> = c.iter().flatten().map(|sum| T::found(*sum)).collect();
        assert_ne!(found, before, "other first factors, other results");
        before = found;
    }
}

#[test]
fn a_batch_packed_once_is_each_product_alone_for_every_number_of_rows() {
    check_batch_packed_once::<F16>(BATCHED);
    check_batch_packed_once::<I8>(STOCK);
    check_batch_packed_once::<Tf32>(SINGLE);
    if place::has(Sim::rk3576()) {
        check_batch_packed_once::<I8>(RK3576);
    }
}

#[test]
fn results_depend_neither_on_workers_nor_on_batching() {
    let [rows, depth, columns] = [60, 1056, 320];
    let mut rng = StdRng::seed_from_u64(9);
    let (a, b) = (random::<F16>(&mut rng, rows * depth), random::<F16>(&mut rng, columns * depth));
    let (a, b) = (Matrix::new(&a, rows, depth).unwrap(), Matrix::new(&b, columns, depth).unwrap());
    let product = |mode: Mode, cheapest_plan: bool| {
        let options = Options { cheapest_plan, ..options(mode) };
        let mut c = vec![f16::ZERO; rows * columns];
        place::open((mode.sim)(), options).1.matmul::<F16>(a, b, &mut c).unwrap();
        c
    };
    let one = product(SINGLE, true);
    for mode in [STOCK, BATCHED] {
        assert_eq!(product(mode, true), one, "{}", mode.name);
    }
    let rule = product(SINGLE, false);
    for mode in [STOCK, BATCHED, UNCHAINED, SHARED_FEATURES, HOST_ORDER] {
        assert_eq!(product(mode, false), rule, "{}", mode.name);
    }
    let mut items = [vec![f16::ZERO; rows * columns], vec![f16::ZERO; rows * columns]];
    let mut results: Vec<&mut [f16]> = items.iter_mut().map(Vec::as_mut_slice).collect();
    context(STOCK).1.matmul_batch::<F16>(&[a, a], &[b, b], &mut results).unwrap();
    assert_eq!(items, [one.clone(), one]);
}

/// Kicks and jobs of one product of several tasks.
fn kicks(sim: Sim, options: Options) -> (u64, u64, u64) {
    let simulator = Simulator::new(sim);
    let mut context = Context::open(&simulator, &Chip::RK3588, options).unwrap();
    let (a, b, mut c) = (vec![1; 260 * 64], vec![1; 64 * 64], vec![0; 260 * 64]);
    let (a, b) = (Matrix::new(&a, 260, 64).unwrap(), Matrix::new(&b, 64, 64).unwrap());
    context.matmul::<I8>(a, b, &mut c).unwrap();
    let counters = simulator.counters();
    (counters.jobs, counters.kicks, counters.tasks)
}

#[test]
fn a_job_is_one_kick_only_where_the_driver_and_the_options_say_so() {
    let options = || Options { workers: 1, cheapest_plan: false, ..Options::default() };
    assert_eq!(kicks(Sim::batched(), options()), (1, 1, 2));
    assert_eq!(kicks(Sim::default(), options()), (1, 2, 2), "stock");
    assert_eq!(kicks(Sim { version: (1, 0, 9), ..Sim::batched() }, options()), (1, 2, 2), "too old");
    assert_eq!(kicks(Sim { batch_switched_off: true, ..Sim::batched() }, options()), (1, 2, 2), "switched off");
    assert_eq!(kicks(Sim::batched(), Options { batched: false, ..options() }), (1, 2, 2), "not wanted");
}

#[test]
fn a_batch_is_one_job_of_each_worker() {
    let (simulator, mut context) = simulated(BATCHED);
    let (a, b) = (vec![1_i8; 4 * 32], vec![1_i8; 32 * 32]);
    let (a, b) = ([Matrix::new(&a, 4, 32).unwrap(); 6], [Matrix::new(&b, 32, 32).unwrap(); 6]);
    let mut c = vec![vec![0; 4 * 32]; 6];
    let mut results: Vec<&mut [i32]> = c.iter_mut().map(Vec::as_mut_slice).collect();
    context.matmul_batch::<I8>(&a, &b, &mut results).unwrap();
    let counted = || {
        let counters = simulator.counters();
        (counters.jobs, counters.kicks, counters.tasks)
    };
    assert_eq!(counted(), (3, 3, 6));
    let weights = context.pack_batch::<I8>(&b).unwrap();
    assert_eq!(weights.items(), 6);
    for calls in [2, 3] {
        results.iter_mut().for_each(|result| result.fill(0));
        context.matmul_batch_resident::<I8>(&a, &weights, &mut results).unwrap();
        assert_eq!(counted(), (3 * calls, 3 * calls, 6 * calls));
        assert!(results.iter().all(|result| result.iter().all(|sum| *sum == 32)));
    }
    // Two, two and one.
    let weights = context.pack_batch::<I8>(&b[..5]).unwrap();
    context.matmul_batch_resident::<I8>(&a[..5], &weights, &mut results[..5]).unwrap();
    assert_eq!(counted(), (12, 12, 23));
}

fn refusal(product: impl FnOnce(&mut Context) -> Result<npu::RunReport, RunError>) -> String {
    let (simulator, mut context) = simulated(STOCK);
    let error = product(&mut context).unwrap_err();
    assert_eq!(simulator.counters().jobs, 0, "nothing was submitted");
    error.to_string()
}

fn refused_shape<T: Case>([rows, depth, columns]: [usize; 3]) -> String {
    let (a, b) = (vec![T::Factor::default(); rows * depth], vec![T::Factor::default(); columns * depth]);
    let mut c = vec![T::Sum::default(); rows * columns];
    refusal(|context| context.matmul::<T>(Matrix::new(&a, rows, depth)?, Matrix::new(&b, columns, depth)?, &mut c))
}

#[test]
fn extents_that_no_datatype_group_divides_are_refused_by_name() {
    assert_eq!(refused_shape::<F16>([4, 48, 16]), "fp16 → fp16: depth 48 is no multiple of 32");
    assert_eq!(refused_shape::<F16ToF32>([4, 32, 24]), "fp16 → fp32: columns 24 is no multiple of 16");
    assert_eq!(refused_shape::<I8>([4, 32, 48]), "int8 → int32: columns 48 is no multiple of 32");
    assert_eq!(refused_shape::<I4>([4, 32, 32]), "int4 → int32: columns 32 is no multiple of 64");
    assert_eq!(refused_shape::<I16>([4, 16, 16]), "int16 → int32: depth 16 is no multiple of 32");
    assert_eq!(refused_shape::<Bf16>([4, 16, 16]), "bf16 → fp32: depth 16 is no multiple of 32");
    assert_eq!(refused_shape::<Tf32>([4, 24, 16]), "tf32 → fp32: depth 24 is no multiple of 16");
    let deep = refused_shape::<I16>([4, 16384, 16]);
    assert_eq!(deep, "int16 → int32: depth 16384 does not fit one task, and its sums saturate");
    let deep = refused_shape::<I8>([4, 1 << 17, 32]);
    assert_eq!(deep, "int8 → int32: depth 131072 exceeds 131071, sums could overflow");
}

fn refused_rows<T: Case>() {
    let (a, b) = (vec![T::Factor::default(); 32], vec![T::Factor::default(); 64 * 32]);
    let (a, b) = (Matrix::new(&a, 1, 32).unwrap(), Matrix::new(&b, 64, 32).unwrap());
    let expected = format!("{}: rows 1 is no multiple of 4", T::PRODUCT);
    let mut c = vec![T::Sum::default(); 64];
    assert_eq!(refusal(|context| context.matmul_stream::<T>(a, &[b], &mut [&mut c])), expected, "streaming");
    let resident = refusal(|context| {
        let weights = context.pack_weights::<T>(b)?;
        context.matmul_resident::<T>(a, &weights, &mut c)
    });
    assert_eq!(resident, expected, "resident");
    let batch = refusal(|context| {
        let weights = context.pack_batch::<T>(&[b])?;
        context.matmul_batch_resident::<T>(&[a], &weights, &mut [&mut c])
    });
    assert_eq!(batch, expected, "a resident batch");
    let shape = Shape { rows: 1, depth: 32, columns: 64 };
    let planned = MatmulPlan::new(&Chip::RK3588, T::PRODUCT, shape, &Options::default()).unwrap_err();
    assert_eq!(planned.what, expected, "planner");
}

#[test]
fn a_single_row_is_refused_where_it_is_not_padded() {
    refused_rows::<F16>();
    refused_rows::<F16ToF32>();
    refused_rows::<I8>();
    refused_rows::<I4>();
    refused_rows::<I16>();
    refused_rows::<Bf16>();
    refused_rows::<Tf32>();
}

#[test]
fn operands_that_do_not_fit_are_refused_by_name() {
    let (a, b, mut c) = (vec![0_i8; 4 * 64], vec![0_i8; 64 * 64], vec![0; 4 * 64]);
    let (first, second) = (Matrix::new(&a, 4, 64).unwrap(), Matrix::new(&b, 64, 64).unwrap());
    let short = refusal(|context| context.matmul::<I8>(first, second, &mut c[1..]));
    assert_eq!(short, "result 0 has 1020 bytes, 1024 are needed");
    let narrow = Matrix::new(&b, 128, 32).unwrap();
    let depths = refusal(|context| context.matmul::<I8>(first, narrow, &mut c));
    assert_eq!(depths, "factors of depth 64 and 32");
    assert_eq!(Matrix::new(&a, 5, 64).unwrap_err().what, "256 values are no matrix of 5 × 64");
    let large = [vec![0; 9], vec![8], vec![0; 4 * 64 - 10]].concat();
    let large = Matrix::new(&large, 4, 64).unwrap();
    let code = refusal(|context| context.matmul::<I4>(large, second, &mut c));
    assert_eq!(code, "element 9 of the first factor is outside its datatype");
    let group = Scaled::new(first, &[0.0; 16], 16).unwrap();
    let group = refusal(|context| {
        let second = Scaled::new(second, &[0.0; 256], 16)?;
        context.matmul_scaled::<I8>(group, second, &mut [0.0; 4 * 64])
    });
    assert_eq!(group, "a group of 16 is no multiple of 32 that divides 64");
    let foreign = refusal(|context| {
        let weights = simulated(STOCK).1.pack_weights::<I8>(second)?;
        context.matmul_resident::<I8>(first, &weights, &mut c)
    });
    assert_eq!(foreign, "the weights belong to another context");
}

/// The refusal of a batch of two products of 4 × 64 × 64, with these first factors and results.
fn refused_batch(first: &[Matrix<'_, i8>], results: &mut [&mut [i32]]) -> String {
    let b = [3_i8; 64 * 64];
    refusal(|context| {
        let weights = context.pack_batch::<I8>(&[Matrix::new(&b, 64, 64)?; 2])?;
        context.matmul_batch_resident::<I8>(first, &weights, results)
    })
}

fn refused_packing<T: Case>(second: &[Matrix<'_, T::Factor>]) -> String {
    refusal(|context| context.pack_batch::<T>(second).map(|_| npu::RunReport::default()))
}

#[test]
fn a_resident_batch_that_does_not_fit_is_refused_by_name() {
    let (a, mut c, mut d) = (vec![0_i8; 128 * 64], vec![0; 4 * 64], vec![0; 4 * 64]);
    let matrix = |rows: usize, columns: usize| Matrix::new(&a[..rows * columns], rows, columns).unwrap();
    let first = [matrix(4, 64); 2];
    assert_eq!(refused_packing::<I8>(&[]), "a batch of no products");
    assert_eq!(refused_packing::<I8>(&[matrix(64, 64), matrix(64, 32)]), "the second factors have different shapes");
    assert_eq!(refused_packing::<I8>(&[matrix(64, 48)]), "int8 → int32: depth 48 is no multiple of 32");
    let code = [0, 8].repeat(32 * 64);
    let code = [matrix(64, 64), Matrix::new(&code, 64, 64).unwrap()];
    assert_eq!(refused_packing::<I4>(&code), "element 1 of the second factor is outside its datatype");
    assert_eq!(refused_batch(&[], &mut [&mut c, &mut d]), "0 first factors given, 2 are needed");
    assert_eq!(refused_batch(&first[1..], &mut [&mut c, &mut d]), "1 first factors given, 2 are needed");
    assert_eq!(refused_batch(&[first[0]; 3], &mut [&mut c, &mut d]), "3 first factors given, 2 are needed");
    assert_eq!(refused_batch(&first, &mut [&mut c]), "1 results given, 2 are needed");
    assert_eq!(refused_batch(&first, &mut [&mut c, &mut d[1..]]), "result 1 has 1020 bytes, 1024 are needed");
    let others = [matrix(4, 64), matrix(8, 64)];
    assert_eq!(refused_batch(&others, &mut [&mut c, &mut d]), "the first factors have different shapes");
    let narrow = [matrix(4, 32); 2];
    assert_eq!(refused_batch(&narrow, &mut [&mut c, &mut d]), "a depth of 32 and weights of depth 64");
}

/// Of 4096, 4096 and 4094 tasks the last would fit a job; it is not begun either.
#[test]
fn a_batch_of_more_than_a_job_of_a_worker_is_refused() {
    let items = 3 * 4096 - 2;
    let (a, b) = (vec![0_i8; 4 * 32], vec![0_i8; 32 * 32]);
    let a = vec![Matrix::new(&a, 4, 32).unwrap(); items];
    let b = vec![Matrix::new(&b, 32, 32).unwrap(); items];
    let mut c = vec![0; items * 4 * 32];
    let mut c: Vec<_> = c.chunks_mut(4 * 32).collect();
    let expected = "4096 tasks of the batch exceed 4095 of a job";
    assert_eq!(refusal(|context| context.matmul_batch::<I8>(&a, &b, &mut c)), expected);
    let resident = refusal(|context| {
        let weights = context.pack_batch::<I8>(&b)?;
        context.matmul_batch_resident::<I8>(&a, &weights, &mut c)
    });
    assert_eq!(resident, expected);
}

/// Every call with weights of `packs` in `runs`, two contexts of the same or of other files.
fn refused_weights(packs: &mut Context, runs: &mut Context, depth: usize) -> Vec<String> {
    let (a, b) = (vec![1_i8; 4 * depth], vec![1_i8; 192 * depth]);
    let (first, second) = (Matrix::new(&a, 4, depth).unwrap(), Matrix::new(&b, 192, depth).unwrap());
    let (mut c, mut d) = (vec![0; 4 * 192], vec![0; 4 * 192]);
    let weights = packs.pack_weights::<I8>(second).unwrap();
    let batch = packs.pack_batch::<I8>(&[second; 2]).unwrap();
    let scales = [vec![1.0; 4], vec![1.0; 192]];
    let scaled = packs.pack_scaled_weights::<I8>(Scaled::new(second, &scales[1], depth).unwrap()).unwrap();
    let first_scaled = Scaled::new(first, &scales[0], depth).unwrap();
    let outcomes = [
        runs.matmul_resident::<I8>(first, &weights, &mut c),
        runs.matmul_batch_resident::<I8>(&[first; 2], &batch, &mut [&mut c, &mut d]),
        runs.matmul_scaled_resident::<I8>(first_scaled, &scaled, &mut [0.0; 4 * 192]),
    ];
    outcomes.into_iter().map(|outcome| outcome.unwrap_err().to_string()).collect()
}

#[test]
fn weights_that_a_context_did_not_pack_are_refused_by_name() {
    let simulator = Simulator::new(Sim::batched());
    let files: Vec<_> = (0..3).map(|_| simulator.open().unwrap()).collect();
    let of = |files: &[Arc<dyn Device>], options: Options| Context::new(files, &Chip::RK3588, options).unwrap();
    let mut three = of(&files, Options::default());
    let two = refused_weights(&mut of(&files[..2], Options::default()), &mut of(&files[..1], Options::default()), 64);
    assert_eq!(two, ["weights of 2 workers, the context has 1"; 3]);
    let other = refused_weights(&mut of(&files[1..], Options::default()), &mut three, 64);
    assert_eq!(other, ["the weights belong to another context"; 3]);
    let tiles = refused_weights(&mut three, &mut of(&files, Options { tile_depth: 64, ..Options::default() }), 96);
    assert_eq!(tiles[..2], ["weights in tiles of depth 96, 64 are planned"; 2]);
    assert_eq!(tiles[2], "weights in tiles of depth 96, 32 are planned");
    assert_eq!(simulator.counters().jobs, 0, "nothing was submitted");
}

#[test]
fn weights_of_one_worker_serve_a_context_of_more() {
    let simulator = Simulator::new(Sim::batched());
    let files: Vec<_> = (0..3).map(|_| simulator.open().unwrap()).collect();
    let of = |files: &[Arc<dyn Device>]| Context::new(files, &Chip::RK3588, Options::default()).unwrap();
    let (a, b) = ([1_i8; 4 * 64], [2_i8; 192 * 64]);
    let (a, b) = (Matrix::new(&a, 4, 64).unwrap(), Matrix::new(&b, 192, 64).unwrap());
    let (mut one, mut three) = (of(&files[..1]), of(&files));
    let (weights, batch) = (one.pack_weights::<I8>(b).unwrap(), one.pack_batch::<I8>(&[b; 4]).unwrap());
    let mut c = [[0; 4 * 192]; 4];
    three.matmul_resident::<I8>(a, &weights, &mut c[0]).unwrap();
    assert_eq!(c[0], [128; 4 * 192]);
    c[0].fill(0);
    three.matmul_batch_resident::<I8>(&[a; 4], &batch, &mut c.each_mut().map(|c| &mut c[..])).unwrap();
    assert_eq!(c, [[128; 4 * 192]; 4]);
}

#[test]
fn minus_eight_is_refused_where_codes_were_promised_to_be_symmetric() {
    let simulator = Simulator::default();
    let options = Options { symmetric_int4: true, ..Options::default() };
    let mut context = Context::open(&simulator, &Chip::RK3588, options).unwrap();
    let (mut a, b, mut c) = (vec![7_i8; 4 * 1280], vec![-7_i8; 64 * 1280], vec![0; 4 * 64]);
    let second = Matrix::new(&b, 64, 1280).unwrap();
    context.matmul::<I4>(Matrix::new(&a, 4, 1280).unwrap(), second, &mut c).unwrap();
    assert!(c.iter().all(|sum| *sum == -49 * 1280), "tiles of 640 do not saturate");
    a[3] = -8;
    let error = context.matmul::<I4>(Matrix::new(&a, 4, 1280).unwrap(), second, &mut c).unwrap_err();
    assert_eq!(error.to_string(), "element 3 of the first factor is outside its datatype");
}

/// A product with a lever pulled, and the same product afterwards.
fn spoiled<T: Case>(mode: Mode, lever: Lever) -> String {
    let (simulator, mut context) = simulated(Mode { options: |options| Options { workers: 1, ..options }, ..mode });
    let mut rng = StdRng::seed_from_u64(1);
    let [rows, depth, columns] = [12, 2112, 256];
    let (a, b) = (random::<T>(&mut rng, rows * depth), random::<T>(&mut rng, columns * depth));
    let (a, b) = (Matrix::new(&a, rows, depth).unwrap(), Matrix::new(&b, columns, depth).unwrap());
    let mut c = vec![T::Sum::default(); rows * columns];
    simulator.inject(lever);
    let error = context.matmul::<T>(a, b, &mut c).unwrap_err();
    assert!(c.iter().all(|sum| T::found(*sum) == 0.0), "an unverified result was handed out");
    context.matmul::<T>(a, b, &mut c).unwrap();
    assert!(c.iter().any(|sum| T::found(*sum) != 0.0));
    error.to_string()
}

#[test]
fn what_the_hardware_did_not_write_is_never_a_result() {
    let untrusted = "the result cannot be trusted";
    for task in [0, 1] {
        // Of half precision, task 0 writes partial sums that only the chip reads.
        let error = spoiled::<F16>(BATCHED, Lever::LostWrite { task, burst: 2 });
        assert!(error.contains(untrusted) && error.contains("sentinels"), "{error}");
    }
    let error = spoiled::<I8>(BATCHED, Lever::LostWrite { task: 0, burst: 3 });
    assert!(error.contains("sentinels survived"), "{error}");
    let error = spoiled::<I8>(BATCHED, Lever::PartialWrite { task: 0, percent: 30 });
    assert!(error.contains("sentinels survived"), "{error}");
    let error = spoiled::<Tf32>(STOCK, Lever::SwallowedSubmit);
    assert!(error.contains("sentinels survived"), "{error}");
    let error = spoiled::<Bf16>(STOCK, Lever::Hang { task: 0 });
    assert!(error.contains("at least the slow mark"), "{error}");
}

#[test]
fn a_driver_that_tells_is_believed_and_used_again() {
    assert_eq!(spoiled::<Tf32>(BATCHED, Lever::SwallowedSubmit), "submit a job");
    assert_eq!(spoiled::<Bf16>(BATCHED, Lever::Hang { task: 0 }), "wait for the jobs");
}

#[test]
fn a_call_that_gave_up_does_not_disturb_the_next_one() {
    let simulator = Simulator::default();
    // TIMEOUT: shorter than any job.
    let short = Options { deadline: Duration::from_micros(20), workers: 1, ..Options::default() };
    let mut context = Context::open(&simulator, &Chip::RK3588, short).unwrap();
    let (a, b, mut c) = (vec![1_i8; 60 * 64], vec![1_i8; 64 * 64], vec![7; 60 * 64]);
    let (a, b) = (Matrix::new(&a, 60, 64).unwrap(), Matrix::new(&b, 64, 64).unwrap());
    for _ in 0..20 {
        let error = context.matmul::<I8>(a, b, &mut c).unwrap_err();
        assert!(matches!(error, RunError::Deadline { .. }), "{error}");
        assert!(c.iter().all(|sum| *sum == 0));
    }
    // A job takes longer than two deadlines, so most calls end while they wait for the job before.
    let jobs = simulator.counters().jobs;
    assert!((2..=10).contains(&jobs), "{jobs} jobs");
    assert_eq!(simulator.faults().len(), 0);
}

#[test]
fn half_precision_saturates_as_the_hardware_narrows() {
    for mode in [BATCHED, ON_HOST] {
        let large = vec![f16::from_f32(200.0); 4 * 2048];
        let b = vec![f16::from_f32(100.0); 256 * 2048];
        let mut c = vec![f16::ZERO; 4 * 256];
        let (a, b) = (Matrix::new(&large, 4, 2048).unwrap(), Matrix::new(&b, 256, 2048).unwrap());
        context(mode).1.matmul::<F16>(a, b, &mut c).unwrap();
        assert!(c.iter().all(|sum| *sum == f16::MAX), "{}", mode.name);
    }
}

#[test]
fn every_product_has_its_groups_in_its_plan() {
    for product in Product::ALL {
        let shape = Shape { rows: 256, depth: 960, columns: 192 };
        let plan = MatmulPlan::new(&Chip::RK3588, product, shape, &Options::default()).unwrap();
        assert_eq!(plan.tile().depth % product.depth_group(), 0);
        assert_eq!(plan.tile().columns % product.column_group(), 0);
        assert!(plan.time(true) < plan.time(false) || plan.kicks(false) == plan.jobs(), "{plan:?}");
    }
}
