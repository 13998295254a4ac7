//! The RK3576 on its simulator: what is refused by name, which programs never meet the other chip, and its errata with and
//! without what the library does about them. That its results are right is in the matrices of `matmul.rs`, `convolution.rs`
//! and `pooling.rs`, which run on both chips.

#![allow(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::sync::Arc;
use std::time::Duration;

use half::f16;
use npu::conv::{Conv, Gives, Image, Output, Quantised};
use npu::matmul::{Bf16, F16ToF32, I4, I8, I16, Matrix, Numbers, Tf32};
use npu::pool::PoolElement;
use npu::{
    Activation, Add, Bias, Chip, Context, Conv2d, Distrust, ElementOp, ElementType, Error, Filter, NetworkBuilder,
    OperandReuse, Options, Padding, PoolKind, Quant, RunError, RunReport, Window,
};
use npu_device::{BoInfo, Deadline, Device, Driver, DriverInfo, Job, Mapping, Range};
use npu_sim::{Fault, FaultRecord, Options as Sim, Quirk, Simulator};

/// A device that says it is the other chip.
#[derive(Debug)]
struct Posing {
    inner: Arc<dyn Device>,
    info: DriverInfo,
}

impl Posing {
    fn open(simulator: &Simulator, chip: &Chip) -> Arc<dyn Device> {
        let inner = simulator.open().unwrap();
        let info = DriverInfo { compatible: Some(chip.layout.compatible().into()), ..inner.info().clone() };
        Arc::new(Self { inner, info })
    }
}

impl Device for Posing {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn create_bo(&self, bytes: u32) -> npu_device::Result<BoInfo> {
        self.inner.create_bo(bytes)
    }

    fn close_bo(&self, handle: u32) -> npu_device::Result<()> {
        self.inner.close_bo(handle)
    }

    fn map_bo(&self, bo: &BoInfo) -> npu_device::Result<Mapping> {
        self.inner.map_bo(bo)
    }

    fn submit(&self, jobs: &[Job<'_>]) -> npu_device::Result<()> {
        self.inner.submit(jobs)
    }

    fn prep_bo(&self, handle: u32, deadline: Deadline) -> npu_device::Result<()> {
        self.inner.prep_bo(handle, deadline)
    }

    fn fini_bo(&self, handle: u32) -> npu_device::Result<()> {
        self.inner.fini_bo(handle)
    }

    fn prep_bo_ranges(&self, handle: u32, ranges: &[Range], deadline: Deadline) -> npu_device::Result<()> {
        self.inner.prep_bo_ranges(handle, ranges, deadline)
    }

    fn fini_bo_ranges(&self, handle: u32, ranges: &[Range]) -> npu_device::Result<()> {
        self.inner.fini_bo_ranges(handle, ranges)
    }

    fn now(&self) -> Duration {
        self.inner.now()
    }
}

fn product(context: &mut Context) -> Result<RunReport, RunError> {
    let (a, b) = ([1_i8; 4 * 64], [1_i8; 32 * 64]);
    let mut sums = [0; 4 * 32];
    context.matmul::<I8>(Matrix::new(&a, 4, 64).unwrap(), Matrix::new(&b, 32, 64).unwrap(), &mut sums)
}

fn maximum(context: &mut Context) -> Result<RunReport, RunError> {
    context.pool_global(PoolKind::Max, Image::new(&[1_i8; 4 * 4 * 16], [4, 4, 16]).unwrap(), &mut [0; 16])
}

fn convolution(context: &mut Context) -> Result<RunReport, RunError> {
    let (picture, filter) = ([1_i8; 4 * 4 * 8], [1_i8; 8 * 8]);
    let conv = Conv::direct(Window::POINT, 8, &filter);
    context.conv2d(Image::new(&picture, [4, 4, 8]).unwrap(), &conv, &mut [0_i8; 4 * 4 * 8])
}

#[test]
fn a_device_that_is_another_chip_is_refused_by_name() {
    let (first, second) = (Simulator::default(), Simulator::new(Sim::rk3576()));
    let error = Context::open(&second, &Chip::RK3588, Options::default()).unwrap_err();
    assert!(matches!(error, Error::WrongChip { .. }));
    assert_eq!(error.to_string(), "the device is rockchip,rk3576-rknn-core, which does not run programs of the RK3588");
    let error = Context::open(&first, &Chip::RK3576, Options::default()).unwrap_err();
    assert_eq!(error.to_string(), "the device is rockchip,rk3588-rknn-core, which does not run programs of the RK3576");
    Context::open(&second, &Chip::RK3576, Options::default()).unwrap();
}

/// Runs `work` for one chip on a simulator of the other, and tells the fault.
fn on_the_other(chip: &Chip, sim: Sim, work: impl Fn(&mut Context) -> Result<RunReport, RunError>) -> String {
    let simulator = Simulator::new(sim);
    let device = Posing::open(&simulator, chip);
    let mut context = Context::new(&[device], chip, Options::default()).unwrap();
    assert!(matches!(work(&mut context), Err(RunError::Untrusted { .. })));
    simulator.faults()[0].fault.to_string()
}

#[test]
fn a_program_for_another_chip_never_completes() {
    let patched = || Sim { version: (1, 5, 0), ..Sim::default() };
    let fault = on_the_other(&Chip::RK3588, Sim::rk3576(), product);
    assert_eq!(fault, "a program of another chip than the RK3576: CNA_DCOMP_AMOUNT2");
    let fault = on_the_other(&Chip::RK3576, patched(), product);
    assert_eq!(fault, "a program of another chip than the RK3588: CNA_CBUF_MODE");
    let fault = on_the_other(&Chip::RK3588, Sim::rk3576(), maximum);
    assert_eq!(fault, "a program of another chip than the RK3576: PPU_PAD_3");
    let fault = on_the_other(&Chip::RK3576, patched(), maximum);
    assert_eq!(fault, "a program of another chip than the RK3588: PPU_PAD_3");
}

fn opened(chip: &Chip, workers: usize) -> (Simulator, Context) {
    let simulator = Simulator::new(Sim::rk3576());
    let context = Context::open(&simulator, chip, Options { workers, ..Options::default() }).unwrap();
    (simulator, context)
}

fn unwritten(outcome: Result<RunReport, RunError>) -> bool {
    matches!(outcome, Err(RunError::Untrusted { reason: Distrust::Sentinels { .. }, .. }))
}

#[test]
fn the_first_job_after_power_came_is_run_again() {
    let (simulator, mut context) = opened(&Chip::RK3576, 1);
    assert_eq!(product(&mut context).unwrap().jobs, 2);
    simulator.power_cycle();
    assert_eq!(maximum(&mut context).unwrap().jobs, 2);
    assert_eq!(maximum(&mut context).unwrap().jobs, 1);
    simulator.power_cycle();
    assert_eq!(convolution(&mut context).unwrap().jobs, 2);
    let without = Chip { reruns: 0, ..Chip::RK3576 };
    for work in [product, maximum, convolution] {
        let (simulator, mut context) = opened(&without, 1);
        assert!(unwritten(work(&mut context)));
        work(&mut context).unwrap();
        assert!(simulator.faults().is_empty(), "the job completes");
    }
}

#[test]
fn the_job_after_sums_as_results_is_run_again() {
    let (_, mut context) = opened(&Chip::RK3576, 1);
    product(&mut context).unwrap();
    assert_eq!(maximum(&mut context).unwrap().jobs, 2);
    let (_, mut context) = opened(&Chip { reruns: 0, ..Chip::RK3576 }, 1);
    assert!(unwritten(product(&mut context)));
    product(&mut context).unwrap();
    assert!(unwritten(maximum(&mut context)));
    maximum(&mut context).unwrap();
}

/// Maxima of sixty-four channels by two workers, and whether cores worked at once.
fn shared_maxima(chip: &Chip) -> (Vec<i8>, bool) {
    let (simulator, mut context) = opened(chip, 2);
    let input: Vec<i8> = (0..4 * 4 * 64).map(|i| (i % 101) as i8).collect();
    let mut output = vec![0; 64];
    context.pool_global(PoolKind::Max, Image::new(&input, [4, 4, 64]).unwrap(), &mut output).unwrap();
    let overlap = |record: &FaultRecord| record.fault == Fault::Quirk { quirk: Quirk::R3 };
    (output, simulator.faults().iter().any(overlap))
}

#[test]
fn workers_take_turns_where_two_jobs_corrupt_each_other() {
    let expected: Vec<i8> =
        (0..64).map(|channel| (0..16).map(|pixel| ((pixel * 64 + channel) % 101) as i8).max().unwrap()).collect();
    assert_eq!(shared_maxima(&Chip::RK3576), (expected.clone(), false));
    let (found, overlap) = shared_maxima(&Chip { parallel: true, ..Chip::RK3576 });
    assert!(overlap && found != expected);
}

fn refused(outcome: Result<RunReport, RunError>) -> String {
    match outcome {
        Err(RunError::Unsupported(unsupported)) => unsupported.what,
        other => panic!("{other:?}"),
    }
}

fn multiply<T: Numbers>(options: Options) -> String {
    let simulator = Simulator::new(Sim::rk3576());
    let mut context = Context::open(&simulator, &Chip::RK3576, options).unwrap();
    let (a, b) = (vec![T::Factor::default(); 4 * 64], vec![T::Factor::default(); 64 * 64]);
    let mut sums = vec![T::Sum::default(); 4 * 64];
    let refusal =
        refused(context.matmul::<T>(Matrix::new(&a, 4, 64).unwrap(), Matrix::new(&b, 64, 64).unwrap(), &mut sums));
    assert_eq!(simulator.counters().jobs, 0, "nothing was submitted");
    refusal
}

#[test]
fn products_that_nobody_describes_are_refused_by_name() {
    let plain = Options::default;
    assert_eq!(multiply::<F16ToF32>(plain()), "a product fp16 → fp32 on an RK3576");
    assert_eq!(multiply::<I4>(plain()), "a product int4 → int32 on an RK3576");
    assert_eq!(multiply::<I16>(plain()), "a product int16 → int32 on an RK3576");
    assert_eq!(multiply::<Bf16>(plain()), "a product bf16 → fp32 on an RK3576");
    assert_eq!(multiply::<Tf32>(plain()), "a product tf32 → fp32 on an RK3576");
    let host = Options { host_order: true, ..plain() };
    assert_eq!(multiply::<I8>(host), "a product of factors in host order on an RK3576");
    let reuse = Options { reuse: OperandReuse::Weights, ..plain() };
    assert_eq!(multiply::<I8>(reuse), "a product that reuses operands on an RK3576");
    let (_, mut context) = opened(&Chip::RK3576, 1);
    let rows = [f16::ONE; 64];
    let refusal = refused(context.sum_rows(Matrix::new(&rows, 1, 64).unwrap(), &mut [0.0]));
    assert_eq!(refusal, "a product fp16 → fp32 on an RK3576");
}

fn convolve<In: Gives<Out> + Default, Out: Output>(
    depthwise: bool,
    alter: impl for<'a> Fn(Conv<'a, In>) -> Conv<'a, In>,
) -> String {
    let (simulator, mut context) = opened(&Chip::RK3576, 1);
    let picture = vec![In::default(); 6 * 6 * 4];
    let (filter, channels) = (vec![In::default(); if depthwise { 9 * 4 } else { 9 * 4 * 4 }], 4);
    let window = Window::square(3, 1).same([6, 6]).unwrap();
    let conv = match depthwise {
        true => Conv::depthwise(window, channels, &filter),
        false => Conv::direct(window, channels, &filter),
    };
    let mut results = vec![Out::default(); 6 * 6 * channels];
    let image = Image::new(&picture, [6, 6, 4]).unwrap();
    let refusal = refused(context.conv2d(image, &alter(conv), &mut results));
    assert_eq!(simulator.counters().jobs, 0, "nothing was submitted");
    refusal
}

#[test]
fn convolutions_that_nobody_describes_are_refused_by_name() {
    assert_eq!(convolve::<f16, f16>(false, |conv| conv), "a convolution of F16 on an RK3576");
    assert_eq!(convolve::<f16, f16>(true, |conv| conv), "a depthwise convolution of F16 on an RK3576");
    assert_eq!(convolve::<f16, f32>(false, |conv| conv), "a convolution of F16 with its sums as results on an RK3576");
    assert_eq!(convolve::<u8, i32>(false, |conv| conv), "a convolution of U8 with its sums as results on an RK3576");
    let limited = convolve::<u8, u8>(false, |conv| conv.activation(Activation::Relu6));
    assert_eq!(limited, "an activation whose limits are not those of the results' type on an RK3576");
    let quantised = Quantised { filter_zero_points: &[130], ..Quantised::default() };
    let zero_points = convolve::<u8, u8>(true, |conv| conv.quantised(quantised));
    assert_eq!(zero_points, "a depthwise convolution whose weights have zero points on an RK3576");
    let mut builder = NetworkBuilder::new(&Chip::RK3576);
    let input = builder.input([4, 4, 32], ElementType::I8, Quant::NONE).unwrap();
    let add = Add { output: Quant::NONE, activation: Activation::None };
    assert_eq!(builder.add(input, input, &add).unwrap_err().what, "the sum of two tensors on an RK3576");
    let copy = builder.requantize(input, ElementType::I8, Quant::NONE, Activation::None);
    assert_eq!(copy.unwrap_err().what, "a copy into another quantisation on an RK3576");
    let dilated = Conv2d {
        window: Window::square(3, 1).dilated([2, 1]),
        channels: 1,
        filter: Filter { data: &[0; 9 * 32], scales: &[1.0], zero_points: &[] },
        bias: Bias::None,
        output: Quant::NONE,
        activation: Activation::None,
    };
    assert_eq!(builder.conv2d(input, &dilated).unwrap_err().what, "a window of 5 does not fit 4 padded pixels");
    let wide =
        Conv2d { window: Window { padding: Padding { top: 1, ..Padding::default() }, ..dilated.window }, ..dilated };
    assert_eq!(builder.conv2d(input, &wide).unwrap_err().what, "vertical dilation 2 exceeds 1");
}

fn pool<T: PoolElement>(kind: PoolKind, padding: usize) -> String {
    let (simulator, mut context) = opened(&Chip::RK3576, 1);
    let padding = Padding { top: padding, ..Padding::default() };
    let window = Window { kernel: [2, 2], stride: [2, 2], dilation: [1, 1], padding };
    let [rows, columns] = window.output([4, 4]).unwrap();
    let mut output = vec![T::default(); rows * columns];
    let refusal =
        refused(context.pool(kind, &window, Image::new(&[T::default(); 16], [4, 4, 1]).unwrap(), &mut output));
    assert_eq!(simulator.counters().jobs, 0, "nothing was submitted");
    refusal
}

#[test]
fn other_operations_that_nobody_describes_are_refused_by_name() {
    assert_eq!(pool::<i8>(PoolKind::Min, 0), "pooling Min of I8 on an RK3576");
    assert_eq!(pool::<f16>(PoolKind::Max, 0), "pooling Max of F16 on an RK3576");
    assert_eq!(pool::<i8>(PoolKind::Mean, 1), "a mean with padding on an RK3576");
    let (_, mut context) = opened(&Chip::RK3576, 1);
    let refusal = refused(context.elementwise(ElementOp::Add, &[1_i8], &[1], &mut [0]));
    assert_eq!(refusal, "an element-wise operation on an RK3576");
}
