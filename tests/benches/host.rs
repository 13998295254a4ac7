//! What the NPU library costs the host: packing and unpacking against a plain copy in the same run, and what a resident product
//! takes beside the device.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;
use half::f16;
use npu::layout::{ATOM, Cube};
use npu::matmul::{Bf16, F16, I4, I8, MatmulPlan, Matrix, Numbers, Shape, Tf32};
use npu::slots::Slots;
use npu::{Chip, Context, ElementType, Options};
use npu_sim::Simulator;
use tests::numbers::Summary;
use tests::timed::{Timed, spent};

/// Runs of each measurement.
const RUNS: usize = 100;
/// A product of some megabytes of each factor.
const SHAPE: Shape = Shape { rows: 1024, depth: 2048, columns: 1024 };

fn main() -> Result<()> {
    println!(
        "GB/s of what is read, best of {RUNS} runs; its time against that of plain copies of what is read and of what is"
    );
    println!("written. A layout that writes 16 bytes for 3 cannot be as fast as the first.");
    first_and_second::<F16>(f16::ONE)?;
    first_and_second::<I8>(3)?;
    first_and_second::<I4>(3)?;
    first_and_second::<Bf16>(1.5)?;
    first_and_second::<Tf32>(1.5)?;
    for (element, name) in [(ElementType::I8, "int8"), (ElementType::U8, "uint8"), (ElementType::F16, "fp16")] {
        for channels in [3, 64, 200] {
            cube(element, name, channels);
        }
    }
    for (workers, rows) in [1, 3].into_iter().flat_map(|workers| [4, 64, 256].map(|rows| (workers, rows))) {
        resident(workers, rows)?;
    }
    Ok(())
}

/// The shortest of many runs.
fn best(mut run: impl FnMut()) -> Duration {
    let time = |_| {
        let begin = Instant::now();
        run();
        begin.elapsed()
    };
    (0..RUNS).map(time).min().unwrap_or_default()
}

/// `bytes`: what is read and what is written.
fn line(what: &str, bytes: [usize; 2], time: Duration) {
    let rate = |time: Duration| bytes[0] as f64 / 1e9 / time.as_secs_f64();
    let [read, written] = bytes.map(copy);
    let ratio = |copy: Duration| copy.as_secs_f64() / time.as_secs_f64();
    println!(
        "{what:44} {:6.2}   copy {:6.2}   ratio {:.2}, of what is written {:.2}",
        rate(time),
        rate(read),
        ratio(read),
        ratio(written)
    );
}

/// How long a plain copy takes.
fn copy(bytes: usize) -> Duration {
    let (from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
    best(|| black_box(&mut to[..]).copy_from_slice(black_box(&from)))
}

fn first_and_second<T: Numbers>(value: T::Factor) -> Result<()> {
    let plan = MatmulPlan::new(&Chip::RK3588, T::PRODUCT, SHAPE, &Options::default())?;
    let factor = vec![value; SHAPE.rows * SHAPE.depth];
    let mut memory = vec![0; plan.first_bytes()];
    let time = best(|| plan.pack_first::<T>(black_box(&factor), black_box(&mut memory)));
    let bytes = [size_of_val(&factor[..]), memory.len()];
    line(&format!("{}: pack the first factor", T::PRODUCT), bytes, time);
    let factor = vec![value; SHAPE.columns * SHAPE.depth];
    let mut memory = vec![0; plan.second_bytes()];
    let time = best(|| plan.pack_second::<T>(black_box(&factor), black_box(&mut memory)));
    let bytes = [size_of_val(&factor[..]), memory.len()];
    line(&format!("{}: pack the second factor", T::PRODUCT), bytes, time);
    Ok(())
}

fn cube(element: ElementType, name: &str, channels: usize) {
    // Some megabytes of the larger side, so that all stay in the same caches.
    let planes = (channels * element.bytes()).div_ceil(ATOM);
    let extents = [256, 4 * 1024 * 1024 / 256 / planes / ATOM];
    let cube = Cube::new(extents, Slots::identity(channels, 32), element);
    let (mut host, mut memory) = (vec![1; cube.host_bytes()], vec![0; cube.bytes()]);
    // Planes of empty slots are not touched.
    let bytes = [host.len(), planes * cube.pixels() * ATOM];
    let time = best(|| cube.pack(black_box(&host), black_box(&mut memory)));
    line(&format!("{name} cube of {channels} channels: pack"), bytes, time);
    let time = best(|| cube.unpack(black_box(&memory), black_box(&mut host)));
    line(&format!("{name} cube of {channels} channels: unpack"), [bytes[1], bytes[0]], time);
}

/// What a call takes without the time that its thread is inside the device.
fn resident(workers: usize, rows: usize) -> Result<()> {
    let Shape { depth, columns, .. } = SHAPE;
    let options = Options { workers, ..Options::default() };
    let driver = Timed(Simulator::new(npu_sim::Options::batched()));
    let mut context = Context::open(&driver, &Chip::RK3588, options)?;
    let (a, b) = (vec![1i8; rows * depth], vec![1i8; columns * depth]);
    let weights = context.pack_weights::<I8>(Matrix::new(&b, columns, depth)?)?;
    let mut c = vec![0; rows * columns];
    let a = Matrix::new(&a, rows, depth)?;
    let mut times = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let (begin, before) = (Instant::now(), spent());
        context.matmul_resident::<I8>(a, &weights, &mut c)?;
        times.push(begin.elapsed().saturating_sub(spent() - before));
    }
    println!("int8 → int32, resident, {workers} workers, {rows} × {depth} × {columns}: {}", Summary::new(times));
    Ok(())
}
