//! What a resident product allocates in the steady state: nothing on one worker.
//!
//! The simulator allocates as it likes; what happens inside the device does not count.

#![allow(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use half::f16;
use npu::matmul::{F16, I8, Matrix, Numbers};
use npu::{Chip, Context, Options};
use npu_sim::Simulator;
use tests::timed::{Timed, inside};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: everything is the system allocator's; the counter is a number of this thread, without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + u64::from(!inside()));
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

/// Allocations of each of some calls on the thread that calls, after the first.
fn allocations<T: Numbers>(workers: usize, rows: usize, factor: T::Factor) -> Vec<u64> {
    let (depth, columns) = (1056, 320);
    let driver = Timed(Simulator::new(npu_sim::Options::batched()));
    let options = Options { workers, ..Options::default() };
    let mut context = Context::open(&driver, &Chip::RK3588, options).unwrap();
    let b = vec![factor; columns * depth];
    let weights = context.pack_weights::<T>(Matrix::new(&b, columns, depth).unwrap()).unwrap();
    let (a, mut c) = (vec![factor; rows * depth], vec![T::Sum::default(); rows * columns]);
    let a = Matrix::new(&a, rows, depth).unwrap();
    context.matmul_resident::<T>(a, &weights, &mut c).unwrap();
    let mut call = || {
        let before = COUNT.get();
        context.matmul_resident::<T>(a, &weights, &mut c).unwrap();
        COUNT.get() - before
    };
    (0..5).map(|_| call()).collect()
}

#[test]
fn a_resident_product_on_one_worker_allocates_nothing() {
    for rows in [4, 60, 512] {
        assert_eq!(allocations::<I8>(1, rows, 1), [0; 5], "int8, {rows} rows");
        assert_eq!(allocations::<F16>(1, rows, f16::ONE), [0; 5], "fp16, {rows} rows");
    }
}

/// Threads and the lists of rows that they fill: as many for a large product as for a small one.
#[test]
fn a_resident_product_on_three_workers_allocates_the_same_for_any_number_of_rows() {
    let few = allocations::<I8>(3, 4, 1);
    assert!(few.iter().all(|count| *count == few[0] && *count > 0), "{few:?}");
    assert_eq!(allocations::<I8>(3, 512, 1), few);
}

#[test]
fn allocations_are_counted() {
    let before = COUNT.get();
    let list = std::hint::black_box(vec![1u8; 100]);
    assert_eq!(COUNT.get() - before, 1);
    drop(list);
}
