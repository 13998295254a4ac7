//! What a context does beside products and pooling: requantised products, element-wise operations, counts, events, CPUs, and
//! many contexts at once.

#![allow(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use half::f16;
use npu::conv::{Conv, Image};
use npu::matmul::{F16ToF32, I4, I8, Matrix, Requantised};
use npu::{
    Activation, Affinity, Chip, Context, ElementNumber, ElementOp, Options, PoolKind, Quant, RunError, Trace, Window,
};
use npu_device::{Bo, Device, Driver};
use npu_sim::{Lever, Options as Sim, Simulator};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

fn context(workers: usize) -> (Simulator, Context) {
    let simulator = Simulator::new(Sim::batched());
    let options = Options { workers, ..Options::default() };
    let context = Context::open(&simulator, &Chip::RK3588, options).unwrap();
    (simulator, context)
}

fn bytes(rng: &mut StdRng, count: usize) -> Vec<i8> {
    (0..count).map(|_| rng.random()).collect()
}

fn check_requantised([rows, depth, columns]: [usize; 3], per_column: bool, activation: Activation) {
    let what = format!("{rows}×{depth}×{columns}, per column: {per_column}, {activation:?}");
    let mut rng = StdRng::seed_from_u64((rows + depth + columns) as u64);
    let (a, b) = (bytes(&mut rng, rows * depth), bytes(&mut rng, columns * depth));
    let list = |rng: &mut StdRng, low: i32, high: i32| -> Vec<i32> {
        if per_column { (0..columns).map(|_| rng.random_range(low..high)).collect() } else { Vec::new() }
    };
    let (zero_points, bias) = (list(&mut rng, -9, 9), list(&mut rng, -40_000, 40_000));
    let scales: Vec<f32> = match per_column {
        // Scales that differ by a factor of thirty, so that columns do not share their converter.
        true => (0..columns).map(|_| 0.001 * rng.random_range(0.0f32..5.0).exp2()).collect(),
        false => vec![0.004],
    };
    let (first, result) =
        (Quant { scale: 0.05, zero_point: -7 }, Quant { scale: 0.09 * (depth as f32).sqrt(), zero_point: 11 });
    let meaning = Requantised { first, scales: &scales, zero_points: &zero_points, bias: &bias, result, activation };
    let (first_factor, second_factor) =
        (Matrix::new(&a, rows, depth).unwrap(), Matrix::new(&b, columns, depth).unwrap());
    let mut results = Vec::new();
    for workers in [1, 3] {
        let (simulator, mut context) = context(workers);
        let mut c = vec![0; rows * columns];
        let outcome = context.matmul_requantised(first_factor, second_factor, &meaning, &mut c);
        outcome.unwrap_or_else(|error| panic!("{what}: {error}; {:?}", simulator.faults()));
        results.push(c.clone());
        // Packed for other numbers of rows than are asked for.
        for packed in [4, rows + 5] {
            let mut weights = context.pack_requantised(second_factor, &meaning, packed).unwrap();
            context.matmul_requantised_resident(first_factor, &mut weights, &mut c).unwrap();
            results.push(c.clone());
        }
    }
    assert!(results.iter().all(|c| *c == results[0]), "{what}: rows at a time and workers make no difference");
    let of = |list: &[i32], column: usize| f64::from(list.get(column).copied().unwrap_or(0));
    let low = if activation == Activation::Relu { f64::from(result.zero_point) } else { -128.0 };
    for (index, found) in results[0].iter().enumerate() {
        let (row, column) = (index / columns, index % columns);
        let pairs = a[row * depth..][..depth].iter().zip(&b[column * depth..][..depth]);
        let sum: f64 = pairs.map(|(a, b)| (f64::from(*a) + 7.0) * (f64::from(*b) - of(&zero_points, column))).sum();
        let scale = f64::from(scales[if per_column { column } else { 0 }]);
        let real = (sum + of(&bias, column)) * f64::from(first.scale) * scale / f64::from(result.scale) + 11.0;
        let expected = real.round().clamp(low, 127.0);
        assert!(
            (f64::from(*found) - expected).abs() <= 1.0,
            "{what} at {row}, {column}: {found}, not {expected} ({real})"
        );
    }
    assert!(results[0].iter().any(|value| *value != results[0][0]), "{what}: a result that says something");
}

#[test]
fn requantised_products_are_within_one_of_exact_rounding() {
    check_requantised([1, 64, 32], false, Activation::None);
    check_requantised([5, 100, 40], true, Activation::None);
    check_requantised([60, 768, 96], true, Activation::Relu);
    check_requantised([257, 96, 200], true, Activation::None);
    check_requantised([3, 4096, 33], false, Activation::Relu);
}

const UNIT: Quant = Quant { scale: 1.0, zero_point: 0 };
/// A product whose codes are its numbers.
const PLAIN: Requantised<'_> = Requantised {
    first: UNIT,
    scales: &[1.0],
    zero_points: &[],
    bias: &[],
    result: UNIT,
    activation: Activation::None,
};

#[test]
fn requantised_products_refuse_lists_and_weights_that_do_not_fit() {
    let (_simulator, mut context) = context(3);
    let (a, b) = ([1i8; 4 * 32], [1i8; 64 * 32]);
    let (a, b) = (Matrix::new(&a, 4, 32).unwrap(), Matrix::new(&b, 64, 32).unwrap());
    let mut refused = |meaning: Requantised<'_>| {
        context.matmul_requantised(a, b, &meaning, &mut [0; 4 * 64]).unwrap_err().to_string()
    };
    assert_eq!(refused(Requantised { scales: &[1.0; 3], ..PLAIN }), "3 scales for 64 columns");
    assert_eq!(refused(Requantised { bias: &[1], ..PLAIN }), "1 biases for 64 columns");
    assert_eq!(refused(Requantised { scales: &[0.0], ..PLAIN }), "the scale of channel 0 is not a positive number");
    let mut foreign = self::context(1).1.pack_requantised(b, &PLAIN, 4).unwrap();
    let error = context.matmul_requantised_resident(a, &mut foreign, &mut [0; 4 * 64]).unwrap_err();
    assert_eq!(error.to_string(), "the weights belong to another context");
}

/// What is left out would be missing from the results.
#[test]
fn weights_of_more_workers_than_a_context_has_are_refused() {
    let simulator = Simulator::new(Sim::batched());
    let files: Vec<_> = (0..3).map(|_| simulator.open().unwrap()).collect();
    let of = |files: &[Arc<dyn Device>]| Context::new(files, &Chip::RK3588, Options::default()).unwrap();
    let (mut three, mut one) = (of(&files), of(&files[..1]));
    let (a, b) = ([1i8; 12 * 32], [1i8; 64 * 32]);
    let mut weights = three.pack_requantised(Matrix::new(&b, 64, 32).unwrap(), &PLAIN, 4).unwrap();
    let first = Matrix::new(&a, 12, 32).unwrap();
    let error = one.matmul_requantised_resident(first, &mut weights, &mut [0; 12 * 64]).unwrap_err();
    assert_eq!(error.to_string(), "weights of 3 workers, the context has 1");
    let (picture, filter) = ([1i8; 12 * 12 * 2], [1i8; 6]);
    let mut loaded = three.load_conv::<i8, i32>([12, 12, 2], &Conv::direct(Window::POINT, 3, &filter)).unwrap();
    let picture = Image::new(&picture, [12, 12, 2]).unwrap();
    let error = loaded.run(&mut one, picture, &mut [0; 12 * 12 * 3]).unwrap_err();
    assert_eq!(error.to_string(), "weights of 3 workers, the context has 1");
    assert_eq!(simulator.counters().jobs, 0, "nothing was submitted");
}

trait Number: ElementNumber + Into<i64> + TryFrom<i64> {
    const LIMITS: [i64; 2];
    fn draw(rng: &mut StdRng) -> Self;
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Number for $type {
            const LIMITS: [i64; 2] = [<$type>::MIN as i64, <$type>::MAX as i64];
            fn draw(rng: &mut StdRng) -> Self {
                // Small numbers too, whose sums and products do not saturate.
                let bits = rng.random_range(0..Self::BITS);
                rng.random::<Self>() >> bits
            }
        }
    )*};
}

number!(i8, i16, i32);

fn check_elements<T: Number>(op: ElementOp, count: usize) {
    let mut rng = StdRng::seed_from_u64(count as u64);
    let short = |value: T| if op == ElementOp::Multiply { value.into() as i16 as i64 } else { value.into() };
    let a: Vec<T> = (0..count).map(|_| T::draw(&mut rng)).collect();
    let b: Vec<T> = (0..count).map(|_| T::try_from(short(T::draw(&mut rng))).ok().unwrap()).collect();
    for workers in [1, 3] {
        let (simulator, mut context) = context(workers);
        let mut out = vec![T::default(); count];
        let outcome = context.elementwise(op, &a, &b, &mut out);
        outcome.unwrap_or_else(|error| panic!("{op:?} of {count}: {error}; {:?}", simulator.faults()));
        for (index, found) in out.iter().enumerate() {
            let (a, b): (i64, i64) = (a[index].into(), b[index].into());
            let exact = match op {
                ElementOp::Add => a + b,
                ElementOp::Subtract => a - b,
                ElementOp::Multiply => a * b,
                ElementOp::Max => a.max(b),
                ElementOp::Min => a.min(b),
            };
            let found: i64 = (*found).into();
            assert_eq!(found, exact.clamp(T::LIMITS[0], T::LIMITS[1]), "{a} {op:?} {b}, element {index} of {count}");
        }
    }
}

#[test]
fn integers_are_combined_exactly_and_saturate() {
    for op in [ElementOp::Add, ElementOp::Subtract, ElementOp::Multiply, ElementOp::Max, ElementOp::Min] {
        for count in [1, 15, 16, 1000, 32 * 1024 + 1, 100_003] {
            check_elements::<i8>(op, count);
            check_elements::<i16>(op, count);
            check_elements::<i32>(op, count);
        }
    }
}

#[test]
fn operands_that_the_post_processor_does_not_see_are_refused() {
    let (simulator, mut context) = context(1);
    let mut elements =
        |op, b: &[i32], out: &mut [i32]| context.elementwise(op, &[3, 3], b, out).unwrap_err().to_string();
    let error = elements(ElementOp::Multiply, &[7, 70_000], &mut [0; 2]);
    assert_eq!(error, "element 1 of the second operand is outside its datatype", "Q21");
    assert_eq!(elements(ElementOp::Add, &[7], &mut [0; 2]), "second operand 0 has 4 bytes, 8 are needed");
    assert_eq!(elements(ElementOp::Add, &[7, 7], &mut [0; 3]), "result 0 has 12 bytes, 8 are needed");
    assert_eq!(context.elementwise::<i8>(ElementOp::Add, &[], &[], &mut []).unwrap_err().to_string(), "no elements");
    assert_eq!(simulator.counters().jobs, 0, "nothing was submitted");
}

#[test]
fn calls_are_counted_and_told_of() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&events);
    let trace = Trace::new(move |event| {
        let outcome = event.outcome.map(|report| report.tasks).map_err(|error| error.to_string());
        told.lock().unwrap().push((event.operation, outcome));
    });
    // A driver that reports nothing, so that what is counted was found here.
    let simulator = Simulator::new(Sim { reports_failed_jobs: false, ..Sim::batched() });
    let options = Options { workers: 1, trace: Some(trace), ..Options::default() };
    let mut context = Context::open(&simulator, &Chip::RK3588, options).unwrap();
    let (a, b, mut c) = ([1i8; 4 * 32], [1i8; 32 * 32], [0; 4 * 32]);
    let (a, b) = (Matrix::new(&a, 4, 32).unwrap(), Matrix::new(&b, 32, 32).unwrap());
    context.matmul::<I8>(a, b, &mut c).unwrap();
    context.elementwise(ElementOp::Add, &[1i8; 5], &[1; 5], &mut [0; 5]).unwrap();
    simulator.inject(Lever::LostWrite { task: 0, burst: 0 });
    context.matmul::<I8>(a, b, &mut c).unwrap_err();
    simulator.inject(Lever::Hang { task: 0 });
    context.pool_global(PoolKind::Max, Image::new(&[1i8; 4], [2, 2, 1]).unwrap(), &mut [0]).unwrap_err();
    context.matmul::<I4>(a, a, &mut c).unwrap_err();
    let counters = context.counters();
    assert_eq!((counters.trusted, counters.untrusted, counters.deadlines), (2, 2, 0));
    assert_eq!((counters.jobs, counters.tasks, counters.slow_waits, counters.sentinels), (4, 4, 1, 4));
    assert!(counters.longest_wait >= Duration::from_millis(450));
    let events = events.lock().unwrap();
    let names: Vec<_> = events.iter().map(|(operation, outcome)| (*operation, outcome.is_ok())).collect();
    assert_eq!(names, [("matmul", true), ("elementwise", true), ("matmul", false), ("pool", false)], "no refusals");
    assert!(events[2].1.as_ref().unwrap_err().contains("4 sentinels survived"));
}

#[test]
fn pinned_workers_compute_the_same() {
    let mut rng = StdRng::seed_from_u64(5);
    let (a, b) = (bytes(&mut rng, 60 * 64), bytes(&mut rng, 320 * 64));
    let (a, b) = (Matrix::new(&a, 60, 64).unwrap(), Matrix::new(&b, 320, 64).unwrap());
    let product = |affinity: Affinity, affinity_base| {
        let options = Options { affinity, affinity_base, ..Options::default() };
        let mut context = Context::open(&Simulator::default(), &Chip::RK3588, options).unwrap();
        let mut c = vec![0; 60 * 320];
        context.matmul::<I8>(a, b, &mut c).unwrap();
        c
    };
    let plain = product(Affinity::Off, 0);
    assert_eq!(product(Affinity::Fastest, 1), plain);
    assert_eq!(product(Affinity::Cpus(vec![0]), 7), plain);
    assert_eq!(product(Affinity::Cpus(vec![900, 4000]), 0), plain, "CPUs that are not there");
}

/// Whether a thread that began then goes on after so many operations: eight are enough for every day. `CAIRN_SECONDS` lets
/// it go on for so long, as `cargo xtask sanitize` does.
fn goes_on(operations: usize, begin: Instant) -> bool {
    match std::env::var("CAIRN_SECONDS") {
        Ok(text) => begin.elapsed() < Duration::from_secs(text.parse().unwrap()),
        Err(_) => operations < 8,
    }
}

/// One random operation on a context, checked.
fn operate(context: &mut Context, rng: &mut StdRng) -> Result<(), RunError> {
    let (rows, groups, columns) = (rng.random_range(1..20), rng.random_range(1..5), rng.random_range(1..4) * 64);
    let depth = 32 * groups;
    match rng.random_range(0..5) {
        0 | 1 => {
            let (a, b, mut c) = (bytes(rng, rows * depth), bytes(rng, columns * depth), vec![0; rows * columns]);
            context.matmul::<I8>(Matrix::new(&a, rows, depth)?, Matrix::new(&b, columns, depth)?, &mut c)?;
            let dot = |a: &[i8], b: &[i8]| a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum::<i32>();
            let exact: Vec<i32> = a.chunks(depth).flat_map(|a| b.chunks(depth).map(move |b| dot(a, b))).collect();
            assert_eq!(c, exact);
        }
        2 => {
            // Small integers in half precision: every sum is exact.
            let mut halves = |count: usize| -> Vec<f16> {
                (0..count).map(|_| f16::from_f32(rng.random_range(-8i8..8).into())).collect()
            };
            let (a, b) = (halves(4 * depth), halves(columns * depth));
            let weights = context.pack_weights::<F16ToF32>(Matrix::new(&b, columns, depth)?)?;
            let mut c = vec![0.0; 4 * columns];
            context.matmul_resident::<F16ToF32>(Matrix::new(&a, 4, depth)?, &weights, &mut c)?;
            let dot = |a: &[f16], b: &[f16]| a.iter().zip(b).map(|(a, b)| a.to_f32() * b.to_f32()).sum::<f32>();
            let exact: Vec<f32> = a.chunks(depth).flat_map(|a| b.chunks(depth).map(move |b| dot(a, b))).collect();
            assert_eq!(c, exact);
        }
        3 => {
            let picture = bytes(rng, 16 * depth);
            let window = Window { kernel: [2, 2], stride: [2, 2], ..Window::POINT };
            let mut out = vec![0; 4 * depth];
            context.pool(PoolKind::Max, &window, Image::new(&picture, [4, 4, depth])?, &mut out)?;
            let at = |row: usize, column: usize, channel: usize| picture[(row * 4 + column) * depth + channel];
            for (index, found) in out.iter().enumerate() {
                let (row, column, channel) = (index / depth / 2 * 2, index / depth % 2 * 2, index % depth);
                let cells = [at(row, column, channel), at(row, column + 1, channel), at(row + 1, column, channel)];
                assert_eq!(*found, cells.into_iter().fold(at(row + 1, column + 1, channel), i8::max));
            }
        }
        _ => {
            let (a, b, mut out) = (bytes(rng, 999), bytes(rng, 999), vec![0; 999]);
            context.elementwise(ElementOp::Add, &a, &b, &mut out)?;
            assert!(out.iter().zip(a.iter().zip(&b)).all(|(found, (a, b))| *found == a.saturating_add(*b)));
        }
    }
    Ok(())
}

/// Every thread drives three contexts, each with files of its own; afterwards no buffer of any file is left.
#[test]
fn eight_threads_of_three_contexts_do_not_disturb_each_other() {
    let simulator = Simulator::new(Sim::batched());
    let files = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|number: usize| {
                let simulator = &simulator;
                scope.spawn(move || -> Result<Vec<Arc<dyn Device>>, RunError> {
                    let mut rng = StdRng::seed_from_u64(number as u64);
                    let files: Vec<Arc<dyn Device>> = (0..6).map(|_| simulator.open().unwrap()).collect();
                    let open = |files: &[Arc<dyn Device>]| {
                        let options = Options { affinity_base: number, ..Options::default() };
                        Context::new(files, &Chip::RK3588, options).unwrap()
                    };
                    let mut contexts = [open(&files[..1]), open(&files[1..3]), open(&files[3..])];
                    let (begin, mut operations) = (Instant::now(), 0);
                    while goes_on(operations, begin) {
                        operate(&mut contexts[rng.random_range(0..3)], &mut rng)?;
                        operations += 1;
                    }
                    println!("thread {number}: {operations} operations");
                    Ok(files)
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap().unwrap()).collect::<Vec<_>>()
    });
    assert!(simulator.faults().is_empty(), "{:?}", simulator.faults());
    for file in &files {
        assert_eq!(Arc::strong_count(file), 1, "something still holds the file");
        // A file hands out its lowest free handle.
        assert_eq!(Bo::new(file, 1).unwrap().handle(), 1, "a buffer was not returned");
    }
}
