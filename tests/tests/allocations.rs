//! What a resident product, alone or in a batch, allocates in the steady state: nothing, on one worker or on several.
//!
//! The simulator allocates as it likes; what happens inside the device does not count, nor what its own threads do.

#![allow(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use half::f16;
use npu::matmul::{F16, I8, Matrix, Numbers};
use npu::{Chip, Context, Options, RunError, RunReport};
use npu_device::Driver;
use npu_sim::Simulator;
use tests::timed::{Timed, outside};

/// Allocations of all threads that drive a device.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Counts allocations.
struct Counting;

// SAFETY: everything is the system allocator's; the counter is a number, and the threads' marks have no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(outside().into(), Ordering::Relaxed);
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of each of some calls, after the first.
fn allocations<T: Numbers>(workers: usize, rows: usize, factor: T::Factor) -> [u64; 5] {
    let (depth, columns) = (1056, 320);
    let driver = Timed(Simulator::new(npu_sim::Options::batched()));
    let mut context = open(&driver, workers);
    let b = vec![factor; columns * depth];
    let weights = context.pack_weights::<T>(Matrix::new(&b, columns, depth).unwrap()).unwrap();
    let (a, mut c) = (vec![factor; rows * depth], vec![T::Sum::default(); rows * columns]);
    let a = Matrix::new(&a, rows, depth).unwrap();
    calls(|| context.matmul_resident::<T>(a, &weights, &mut c))
}

/// The same for a batch of four products, with two lists of first factors in turn.
fn batch_allocations<T: Numbers>(workers: usize, rows: usize, factors: [T::Factor; 2]) -> [u64; 5] {
    let (items, depth, columns) = (4, 416, 128);
    let driver = Timed(Simulator::new(npu_sim::Options::batched()));
    let mut context = open(&driver, workers);
    let b = vec![factors[0]; columns * depth];
    let weights = context.pack_batch::<T>(&vec![Matrix::new(&b, columns, depth).unwrap(); items]).unwrap();
    let a = factors.map(|factor| vec![factor; rows * depth]);
    let a = a.each_ref().map(|a| vec![Matrix::new(a, rows, depth).unwrap(); items]);
    let mut c = vec![vec![T::Sum::default(); rows * columns]; items];
    let mut c: Vec<&mut [T::Sum]> = c.iter_mut().map(Vec::as_mut_slice).collect();
    let mut lists = a.iter().cycle();
    calls(|| context.matmul_batch_resident::<T>(lists.next().unwrap(), &weights, &mut c))
}

fn open(driver: &dyn Driver, workers: usize) -> Context {
    Context::open(driver, &Chip::RK3588, Options { workers, ..Options::default() }).unwrap()
}

fn calls(mut call: impl FnMut() -> Result<RunReport, RunError>) -> [u64; 5] {
    let mut counted = || {
        let before = COUNT.load(Ordering::Relaxed);
        call().unwrap();
        COUNT.load(Ordering::Relaxed) - before
    };
    assert!(counted() > 0, "what the first call makes is counted");
    [(); 5].map(|()| counted())
}

/// One test, as the counter is that of all threads.
#[test]
fn a_resident_product_allocates_nothing() {
    for (workers, rows) in [1, 3].into_iter().flat_map(|workers| [4, 60, 512].map(|rows| (workers, rows))) {
        assert_eq!(allocations::<I8>(workers, rows, 1), [0; 5], "int8, {workers} workers, {rows} rows");
        assert_eq!(allocations::<F16>(workers, rows, f16::ONE), [0; 5], "fp16, {workers} workers, {rows} rows");
        let batch = batch_allocations::<I8>(workers, rows, [1, 2]);
        assert_eq!(batch, [0; 5], "a batch of int8, {workers} workers, {rows} rows");
        let batch = batch_allocations::<F16>(workers, rows, [f16::ONE, f16::NEG_ONE]);
        assert_eq!(batch, [0; 5], "a batch of fp16, {workers} workers, {rows} rows");
    }
}
