//! Each workaround of the NPU library taken away again: the simulator then fails as the board does.
//!
//! A device between library and simulator rewrites the register programs of every job. A program that it leaves alone
//! gives the right result, so what fails fails for want of the workaround.

#![allow(clippy::unwrap_used, reason = "everything in this file is a test")]

mod quantised;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use half::f16;
use npu::conv::{Image, Route, Transposed};
use npu::matmul::{F16, F16ToF32, I8, I16, Matrix, Numbers};
use npu::{Activation, Add, Chip, Context, ElementType, NetworkBuilder, Quant, RunError};
use npu_device::{BoInfo, Deadline, Device, Driver, DriverInfo, Job, Mapping, Range, Result, Task};
use npu_regs::{BlockMask, Register, Word, cna, core, dpu, dpu_rdma};
use npu_sim::{Fault, Options, Quirk, Simulator};
use quantised::{Agreement, Conv, Scales, Tensor, from_bytes, quant, rng, same_padding, sum, window};

/// Memory of the device, by its addresses.
#[derive(Default)]
struct Memory(Mutex<Vec<(BoInfo, Mapping)>>);

impl Memory {
    fn with<T>(&self, dma: u32, use_it: impl Fn(&Mapping, usize) -> T) -> T {
        let list = self.0.lock().unwrap();
        let inside = |bo: &BoInfo| dma.checked_sub(bo.dma).filter(|offset| *offset < bo.bytes);
        let (offset, mapping) = list.iter().find_map(|(bo, mapping)| Some((inside(bo)?, mapping))).unwrap();
        use_it(mapping, offset as usize)
    }

    fn read(&self, dma: u32, bytes: usize) -> Vec<u8> {
        self.with(dma, |mapping, offset| {
            let mut data = vec![0; bytes];
            mapping.read(offset, &mut data);
            data
        })
    }

    fn write(&self, dma: u32, data: &[u8]) {
        self.with(dma, |mapping, offset| mapping.write(offset, data));
    }
}

/// Rewrites a program.
type Tamper = fn(&mut [Word], &Memory);

struct Tampered {
    inner: Arc<dyn Device>,
    memory: Memory,
    tamper: Tamper,
    /// Whether the output buffers of a job are listed as inputs too.
    lists_twice: bool,
}

impl fmt::Debug for Tampered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tampered").finish_non_exhaustive()
    }
}

impl Tampered {
    fn rewrite(&self, task: &Task) {
        let bytes = self.memory.read(task.dma, task.words as usize * 8);
        let mut words: Vec<Word> =
            bytes.chunks_exact(8).map(|word| Word(u64::from_le_bytes(word.try_into().unwrap()))).collect();
        (self.tamper)(&mut words, &self.memory);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.0.to_le_bytes()).collect();
        self.memory.write(task.dma, &bytes);
    }
}

impl Device for Tampered {
    fn info(&self) -> &DriverInfo {
        self.inner.info()
    }

    fn create_bo(&self, bytes: u32) -> Result<BoInfo> {
        self.inner.create_bo(bytes)
    }

    fn close_bo(&self, handle: u32) -> Result<()> {
        self.inner.close_bo(handle)
    }

    fn map_bo(&self, bo: &BoInfo) -> Result<Mapping> {
        let mapping = self.inner.map_bo(bo)?;
        self.memory.0.lock().unwrap().push((*bo, mapping.clone()));
        Ok(mapping)
    }

    fn submit(&self, jobs: &[Job<'_>]) -> Result<()> {
        for job in jobs {
            job.tasks.iter().for_each(|task| self.rewrite(task));
            let inputs = if self.lists_twice { job.outputs } else { job.inputs };
            self.inner.submit(&[Job { inputs, ..*job }])?;
        }
        Ok(())
    }

    fn prep_bo(&self, handle: u32, deadline: Deadline) -> Result<()> {
        self.inner.prep_bo(handle, deadline)
    }

    fn fini_bo(&self, handle: u32) -> Result<()> {
        self.inner.fini_bo(handle)
    }

    fn prep_bo_ranges(&self, handle: u32, ranges: &[Range], deadline: Deadline) -> Result<()> {
        self.inner.prep_bo_ranges(handle, ranges, deadline)
    }

    fn fini_bo_ranges(&self, handle: u32, ranges: &[Range]) -> Result<()> {
        self.inner.fini_bo_ranges(handle, ranges)
    }

    fn now(&self) -> Duration {
        self.inner.now()
    }
}

/// Changes every write to a register.
fn change<R: Register>(words: &mut [Word], edit: impl Fn(&mut R)) {
    for word in words {
        if word.0 & 0xffff_0000_0000_ffff == Word::write(R::INFO, 0).0 {
            let mut register = R::decode((word.0 >> 16) as u32).unwrap();
            edit(&mut register);
            *word = Word::write(R::INFO, register.encode().unwrap());
        }
    }
}

/// What came of a run.
#[derive(Debug, PartialEq)]
enum Outcome {
    Right,
    Wrong,
    Untrusted,
}

/// An operation and its exact result.
struct Case {
    inputs: Vec<Tensor>,
    exact: Tensor,
    network: npu::Network,
}

impl Case {
    fn conv(shape: [usize; 3], kernel: usize, outputs: usize, depthwise: bool) -> Self {
        let mut rng = rng(5);
        let quant = Quant { zero_point: -37, ..quant(&mut rng, ElementType::I8) };
        let input = Tensor::random(&mut rng, shape, ElementType::I8, quant);
        let window = window(kernel, 1, 1, same_padding(kernel));
        let conv = Conv::random(&mut rng, &input, window, outputs, depthwise, Scales::PerChannel(4.0));
        let mut builder = NetworkBuilder::new(&Chip::RK3588);
        let tensor = builder.input(shape, ElementType::I8, quant).unwrap();
        let output = conv.add_to(&mut builder, tensor).unwrap();
        builder.output(output);
        Self { exact: conv.oracle(&input), inputs: vec![input], network: builder.build().unwrap() }
    }

    fn add(shape: [usize; 3]) -> Self {
        let mut rng = rng(6);
        let inputs: Vec<Tensor> = (0..2)
            .map(|_| {
                let quant = quant(&mut rng, ElementType::I8);
                Tensor::random(&mut rng, shape, ElementType::I8, quant)
            })
            .collect();
        let output = Quant { scale: 0.2, zero_point: 3 };
        let mut builder = NetworkBuilder::new(&Chip::RK3588);
        let tensors: Vec<_> =
            inputs.iter().map(|input| builder.input(shape, ElementType::I8, input.quant).unwrap()).collect();
        let add = Add { output, activation: Activation::None };
        let result = builder.add(tensors[0], tensors[1], &add).unwrap();
        builder.output(result);
        let exact = sum(&inputs[0], &inputs[1], output, Activation::None);
        Self { exact, inputs, network: builder.build().unwrap() }
    }

    fn run(&self, tamper: Tamper, lists_twice: bool) -> Outcome {
        self.run_on(&Simulator::new(Options::default()), tamper, lists_twice)
    }

    fn run_on(&self, simulator: &Simulator, tamper: Tamper, lists_twice: bool) -> Outcome {
        let inner = simulator.open().unwrap();
        let device: Arc<dyn Device> = Arc::new(Tampered { inner, memory: Memory::default(), tamper, lists_twice });
        let mut resident = self.network.load(&device).unwrap();
        let inputs: Vec<Vec<u8>> = self.inputs.iter().map(Tensor::bytes).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut outputs = vec![Vec::new()];
        match resident.run(&inputs, &mut outputs, Deadline::Never) {
            Err(RunError::Untrusted { .. }) => Outcome::Untrusted,
            Err(error) => panic!("{error}"),
            Ok(_) => {
                let mut agreement = Agreement::default();
                agreement.add(&from_bytes(ElementType::I8, &outputs[0]), &self.exact.data);
                if agreement.worst <= 1 { Outcome::Right } else { Outcome::Wrong }
            }
        }
    }

    /// With the workaround the result is right, without it the outcome is another.
    fn check(&self, without: Outcome, tamper: Tamper) {
        assert_eq!(self.run(|_, _| {}, false), Outcome::Right);
        assert_eq!(self.run(tamper, false), without);
    }
}

/// The program hangs for the erratum, and for nothing else.
fn check_hang(quirk: Quirk, tamper: Tamper) {
    let case = small();
    assert_eq!(case.run(|_, _| {}, false), Outcome::Right);
    let simulator = Simulator::new(Options::default());
    assert_eq!(case.run_on(&simulator, tamper, false), Outcome::Untrusted);
    let faults = simulator.faults();
    assert!(matches!(&faults[..], [record] if record.fault == Fault::Quirk { quirk }), "{faults:?}");
}

fn small() -> Case {
    Case::conv([6, 6, 32], 3, 40, false)
}

#[test]
fn q1_planes_of_few_rows_at_their_natural_pitch_are_read_from_wrong_places() {
    Case::conv([2, 7, 64], 1, 32, false).check(Outcome::Wrong, |words, memory| {
        // The layout without the workaround: planes as far apart as they have pixels.
        change::<cna::FeatureDataAddr>(words, |address| {
            for plane in 1..4 {
                let pixels = memory.read(address.feature_base_addr + plane * 4 * 7 * 16, 2 * 7 * 16);
                memory.write(address.feature_base_addr + plane * 2 * 7 * 16, &pixels);
            }
        });
    });
}

#[test]
fn q2_an_armed_main_reader_without_operand_hangs() {
    check_hang(Quirk::Q2, |words, _| {
        change::<dpu_rdma::FeatureModeCfg>(words, |mode| mode.mrdma_disable = false);
    });
}

#[test]
fn q3_an_armed_element_wise_reader_without_operand_hangs() {
    check_hang(Quirk::Q3, |words, _| {
        change::<dpu_rdma::Ecfg>(words, |reader| reader.erdma_disable = false);
    });
}

#[test]
fn q4_operands_without_their_reader_hang() {
    check_hang(Quirk::Q4, |words, _| {
        *words.last_mut().unwrap() = Word::enable(BlockMask::new(0x0d).unwrap());
    });
}

#[test]
fn q5_a_program_without_marker_does_not_start() {
    check_hang(Quirk::Q5, |words, _| {
        let marker = words.iter_mut().find(|word| **word == Word::MARKER).unwrap();
        *marker = Word::NOP;
    });
}

#[test]
fn q6_a_program_that_writes_a_pointer_of_the_kernel_hangs() {
    check_hang(Quirk::Q6, |words, _| words[0] = Word::write(cna::SPointer::INFO, 0xe));
}

#[test]
fn q7_a_partial_kernel_group_hangs() {
    check_hang(Quirk::Q7, |words, _| {
        change::<cna::WeightSize0>(words, |size| size.weight_bytes = size.weight_bytes / 64 * 40);
        change::<cna::WeightSize2>(words, |size| size.weight_kernels = 40);
        change::<core::DataoutSize1>(words, |size| size.dataout_channel = 39);
        change::<dpu::DataCubeChannel>(words, |size| (size.channel, size.orig_channel) = (39, 39));
        change::<dpu::WdmaSize0>(words, |size| size.channel_wdma = 39);
        change::<dpu_rdma::DataCubeChannel>(words, |size| size.channel = 39);
    });
}

#[test]
fn q10_a_writer_of_too_few_atoms_leaves_planes_unwritten() {
    small().check(Outcome::Untrusted, |words, _| {
        change::<dpu::BsOwCfg>(words, |writer| (writer.size_e_0, writer.size_e_1, writer.size_e_2) = (0, 0, 0));
    });
}

#[test]
fn q11_banks_of_the_fully_connected_mode_corrupt_the_result() {
    small().check(Outcome::Wrong, |words, _| change::<cna::CbufCon0>(words, |banks| banks.fc_data_bank = 1));
}

#[test]
fn q12_features_that_nearly_fill_their_banks_need_one_more() {
    Case::conv([255, 1, 1024], 1, 32, false).check(Outcome::Wrong, |words, _| {
        change::<cna::CbufCon0>(words, |banks| {
            banks.data_bank -= 1;
            banks.weight_bank += 1;
        });
    });
}

#[test]
fn q22_an_addend_of_few_pixels_at_the_stride_of_twelve_is_read_from_wrong_places() {
    Case::add([3, 3, 96]).check(Outcome::Wrong, |words, _| {
        // What the documented program has for nine pixels.
        change::<dpu_rdma::SurfNotch>(words, |notch| notch.surf_notch_addr = 12);
        change::<dpu_rdma::EwSurfNotch>(words, |notch| notch.ew_surf_notch = 12);
    });
}

#[test]
fn q23_a_scale_of_0x8000_negates_the_result() {
    small().check(Outcome::Wrong, |words, _| {
        change::<dpu::OutCvtScale>(words, |scale| scale.out_cvt_scale = -0x8000);
    });
}

#[test]
fn q24_depthwise_padding_reads_the_second_byte_in_some_lanes() {
    Case::conv([6, 6, 64], 3, 64, true).check(Outcome::Wrong, |words, _| {
        change::<cna::PadCon1>(words, |pad| pad.pad_value &= 0xff);
    });
}

#[test]
fn q29_a_job_that_lists_a_buffer_twice_is_dropped() {
    assert_eq!(small().run(|_, _| {}, true), Outcome::Untrusted);
}

#[test]
fn q31_a_task_that_reads_unmapped_memory_is_no_result() {
    small().check(Outcome::Untrusted, |words, _| {
        change::<cna::FeatureDataAddr>(words, |address| {
            assert_ne!(address.feature_base_addr, 0, "a tensor at address 0");
            address.feature_base_addr = 0xf000_0000;
        });
    });
}

/// A product of ones and small numbers, exact in every datatype: element `[m, n]` of the result is the sum over k of
/// `first(m, k)`, times 1 + n mod 2.
fn multiply<T: Numbers>([rows, depth, columns]: [usize; 3], number: fn(i16) -> T::Factor, tamper: Tamper) -> Outcome
where
    T::Sum: Into<f64>,
{
    let inner = Simulator::new(Options::default()).open().unwrap();
    let device: Arc<dyn Device> = Arc::new(Tampered { inner, memory: Memory::default(), tamper, lists_twice: false });
    // The published rule sums on the chip, which some of the quirks are about.
    let options = npu::Options { cheapest_plan: false, ..npu::Options::default() };
    let mut context = Context::new(&[device], &Chip::RK3588, options).unwrap();
    let first = |m: usize, k: usize| ((m + 2) * (k + k / 8) % 7) as i16 % 3;
    let second = |n: usize| 1 + (n % 2) as i16;
    let a: Vec<_> = (0..rows * depth).map(|i| number(first(i / depth, i % depth))).collect();
    let b: Vec<_> = (0..columns * depth).map(|i| number(second(i / depth))).collect();
    let mut c = vec![T::Sum::default(); rows * columns];
    let (a, b) = (Matrix::new(&a, rows, depth).unwrap(), Matrix::new(&b, columns, depth).unwrap());
    match context.matmul::<T>(a, b, &mut c) {
        Err(RunError::Untrusted { .. }) => Outcome::Untrusted,
        Err(error) => panic!("{error}"),
        Ok(_) => {
            let sum = |m: usize| f64::from((0..depth).map(|k| i32::from(first(m, k))).sum::<i32>());
            let right =
                |(i, found): (usize, &T::Sum)| (*found).into() == sum(i / columns) * f64::from(second(i % columns));
            if c.iter().enumerate().all(right) { Outcome::Right } else { Outcome::Wrong }
        }
    }
}

/// With the workaround the product is right, without it the outcome is another.
fn check_product<T: Numbers>(shape: [usize; 3], number: fn(i16) -> T::Factor, without: Outcome, tamper: Tamper)
where
    T::Sum: Into<f64>,
{
    assert_eq!(multiply::<T>(shape, number, |_, _| {}), Outcome::Right);
    assert_eq!(multiply::<T>(shape, number, tamper), without);
}

fn half(number: i16) -> f16 {
    f16::from_f32(number.into())
}

#[test]
fn q1_a_row_without_padding_is_read_from_wrong_places() {
    check_product::<F16ToF32>([1, 64, 16], half, Outcome::Wrong, |words, memory| {
        change::<cna::FeatureDataAddr>(words, |address| {
            // The planes of one row, one atom apart.
            for plane in 1..8 {
                let atom = memory.read(address.feature_base_addr + plane * 4 * 16, 16);
                memory.write(address.feature_base_addr + plane * 16, &atom);
            }
        });
    });
}

#[test]
fn q8_a_product_of_16_bit_integers_with_eight_atoms_hangs() {
    check_product::<I16>(
        [4, 32, 32],
        |number| number,
        Outcome::Untrusted,
        |words, _| {
            change::<dpu::BsOwCfg>(words, |writer| (writer.size_e_0, writer.size_e_1, writer.size_e_2) = (7, 7, 7));
        },
    );
}

#[test]
fn q9_a_product_of_16_bit_integers_without_qd_en_has_16_columns() {
    check_product::<I16>(
        [4, 32, 32],
        |number| number,
        Outcome::Untrusted,
        |words, _| {
            change::<core::MiscCfg>(words, |config| config.qd_en = false);
        },
    );
}

#[test]
fn q10_a_product_with_too_few_atoms_leaves_columns_unwritten() {
    check_product::<I8>(
        [4, 32, 32],
        |number| number as i8,
        Outcome::Untrusted,
        |words, _| {
            change::<dpu::BsOwCfg>(words, |writer| (writer.size_e_0, writer.size_e_1, writer.size_e_2) = (3, 3, 3));
        },
    );
}

#[test]
fn q12_a_product_whose_features_nearly_fill_their_banks_needs_one_more() {
    check_product::<I8>(
        [252, 1024, 32],
        |number| number as i8,
        Outcome::Wrong,
        |words, _| {
            change::<cna::CbufCon0>(words, |banks| {
                banks.data_bank -= 1;
                banks.weight_bank += 1;
            });
        },
    );
}

#[test]
fn q14_a_product_that_names_tf32_to_the_dpu_writes_nothing() {
    check_product::<F16ToF32>([4, 32, 16], half, Outcome::Untrusted, |words, _| {
        change::<dpu::DataFormat>(words, |format| {
            (format.in_precision, format.proc_precision) = (npu_regs::Precision::Tf32, npu_regs::Precision::Tf32);
        });
    });
}

#[test]
fn q22_partial_sums_of_few_rows_at_the_stride_of_twelve_are_read_from_wrong_places() {
    // Two tiles of depth, and sums below 2048, which half precision holds exactly.
    check_product::<F16>([4, 832, 256], half, Outcome::Wrong, |words, _| {
        // What the documented program has for four rows.
        change::<dpu_rdma::SurfNotch>(words, |notch| notch.surf_notch_addr = notch.surf_notch_addr.min(12));
        change::<dpu_rdma::EwSurfNotch>(words, |notch| notch.ew_surf_notch = notch.ew_surf_notch.min(12));
    });
}

/// A transposed convolution of ones and twos with a kernel of 12, whose padding becomes 12 by `tamper`. Results move down
/// and right by a pixel then: whether they do.
fn moves(steps: usize, tamper: Tamper) -> bool {
    let shape = [3, 3, 32];
    let filter: Vec<f16> = (0..12 * 12 * 32 * 16).map(|i| f16::from_f32(((i / 5) % 7) as f32)).collect();
    let transposed = Transposed::direct([12, 12], 16, &filter).stride([steps; 2]);
    assert_eq!(transposed.route::<f16>(&Chip::RK3588, shape).unwrap(), Route::OnChip);
    let [rows, columns] = transposed.output([3, 3]).unwrap();
    let input: Vec<f16> = (0..3 * 3 * 32).map(|i| f16::from_f32((1 + i % 2) as f32)).collect();
    let run = |tamper: Tamper| {
        let inner = Simulator::new(Options::default()).open().unwrap();
        let device: Arc<dyn Device> =
            Arc::new(Tampered { inner, memory: Memory::default(), tamper, lists_twice: false });
        let mut context = Context::new(&[device], &Chip::RK3588, npu::Options::default()).unwrap();
        let mut results = vec![f16::NAN; rows * columns * 16];
        context.conv_transpose2d(Image::new(&input, shape).unwrap(), &transposed, &mut results).unwrap();
        results
    };
    let (plain, moved) = (run(|_, _| {}), run(tamper));
    let at = |results: &[f16], y: usize, x: usize| results[(y * columns + x) * 16..][..16].to_vec();
    let inside = (1..rows).flat_map(|y| (1..columns).map(move |x| (y, x)));
    inside.into_iter().all(|(y, x)| at(&moved, y, x) == at(&plain, y - 1, x - 1))
}

#[test]
fn q32_padding_from_twelve_is_wrong_with_steps_of_two_alone() {
    let tamper: Tamper = |words, _| change::<cna::PadCon0>(words, |pad| (pad.pad_top, pad.pad_left) = (12, 12));
    assert!(moves(4, tamper));
    assert!(!moves(2, tamper));
    // The workaround: a kernel that needs that padding is computed over zeros that the host puts.
    let filter = [f16::ONE; 13 * 13 * 32 * 16];
    let transposed = Transposed::direct([13, 13], 16, &filter).stride([2, 2]);
    assert_eq!(transposed.route::<f16>(&Chip::RK3588, [3, 3, 32]).unwrap(), Route::Lowered);
}
