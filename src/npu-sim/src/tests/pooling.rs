//! Pooling: programs of npu-spec 6.1 against its formulas, and how drivers learn that one has ended.

use half::f16;
use npu_device::{Deadline, Job, JobFlags, Task};
use npu_regs::{BlockMask, FieldError, PoolingMethod, Precision, Program, Register, Word, ppu, ppu_rdma as rdma};
use proptest::prelude::*;

use crate::testbed::{Bed, Conv, Stream, open, set};
use crate::{Fault, Options};

/// A pooling. Axes are `[y, x]`, padding `[top, left, bottom, right]`.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    precision: Precision,
    method: PoolingMethod,
    input: [usize; 2],
    channels: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    pad: [usize; 4],
}

impl Pool {
    /// A window of 2×2 over 6×5 pixels.
    pub(crate) const fn new(precision: Precision, method: PoolingMethod) -> Self {
        Self { precision, method, input: [6, 5], channels: 32, kernel: [2, 2], stride: [2, 2], pad: [0; 4] }
    }

    fn output(&self) -> [usize; 2] {
        [0, 1].map(|axis| {
            let padded = self.pad[axis] + self.input[axis] + self.pad[axis + 2];
            (padded - self.kernel[axis]) / self.stride[axis] + 1
        })
    }

    fn bytes(&self) -> usize {
        if self.precision == Precision::Int8 { 1 } else { 2 }
    }

    /// Byte of an element in a cube of these extents.
    fn at(&self, [rows, columns]: [usize; 2], [row, column, channel]: [usize; 3]) -> usize {
        let lanes = 16 / self.bytes();
        (channel / lanes * rows * columns + row * columns + column) * 16 + channel % lanes * self.bytes()
    }

    fn pad_value(&self) -> u32 {
        match (self.precision, self.method) {
            (_, PoolingMethod::Average) => 0,
            (Precision::Int8, PoolingMethod::Max) => 0x7_ff80,
            (Precision::Int8, PoolingMethod::Min) => 0x7f,
            (_, PoolingMethod::Max) => 0xfc00,
            (_, PoolingMethod::Min) => 0x7c00,
        }
    }

    fn reciprocal(&self, extent: usize) -> u32 {
        match (self.precision, self.method) {
            (Precision::Int8, PoolingMethod::Average) => 0x10000 / extent as u32,
            (_, PoolingMethod::Average) => f16::from_f32(65536.0 / extent as f32).to_bits().into(),
            _ => 0,
        }
    }

    /// The program. SOURCE: npu-spec 6.1.
    pub(crate) fn program(&self, bed: &Bed) -> Stream {
        let mut program = Program::new();
        self.push(&mut program, bed).unwrap();
        program.finish(BlockMask::POOLING);
        assert_eq!(program.words().len(), 30, "as many as npu-spec says");
        program.words().to_vec()
    }

    fn push(&self, program: &mut Program, bed: &Bed) -> Result<(), FieldError> {
        let [height, width] = self.input.map(|extent| extent as u32);
        let [rows, columns] = self.output().map(|extent| extent as u32);
        let channels = self.channels as u32;
        let (pointer_pp_mode, executer_pp_en, pointer_pp_en) = (true, true, true);
        program.push(ppu::SPointer { pointer_pp_mode, executer_pp_en, pointer_pp_en, ..Default::default() })?;
        program.push(rdma::SPointer { pointer_pp_mode, executer_pp_en, pointer_pp_en, ..Default::default() })?;
        program.push(ppu::DataCubeInWidth { cube_in_width: width - 1 })?;
        program.push(ppu::DataCubeInHeight { cube_in_height: height - 1 })?;
        program.push(ppu::DataCubeInChannel { cube_in_channel: channels - 1 })?;
        program.push(ppu::DataCubeOutWidth { cube_out_width: columns - 1 })?;
        program.push(ppu::DataCubeOutHeight { cube_out_height: rows - 1 })?;
        program.push(ppu::DataCubeOutChannel { cube_out_channel: channels - 1 })?;
        program.push(ppu::OperationModeCfg { flying_mode: true, pooling_method: self.method, ..Default::default() })?;
        program.push(ppu::PoolingKernelCfg {
            kernel_stride_height: self.stride[0] as u32 - 1,
            kernel_stride_width: self.stride[1] as u32 - 1,
            kernel_height: self.kernel[0] as u32 - 1,
            kernel_width: self.kernel[1] as u32 - 1,
        })?;
        program.push(ppu::RecipKernelWidth { recip_kernel_width: self.reciprocal(self.kernel[1]) })?;
        program.push(ppu::RecipKernelHeight { recip_kernel_height: self.reciprocal(self.kernel[0]) })?;
        let [pad_top, pad_left, pad_bottom, pad_right] = self.pad.map(|cells| cells as u32);
        program.push(ppu::PoolingPaddingCfg { pad_bottom, pad_right, pad_top, pad_left })?;
        program.push(ppu::PaddingValue1Cfg { pad_value_0: self.pad_value() })?;
        program.push(ppu::PaddingValue2Cfg::default())?;
        program.push(ppu::DstBaseAddr { dst_base_addr: bed.output.dma() / 16 })?;
        program.push(ppu::DstSurfStride { dst_surf_stride: rows * columns })?;
        let index_add = rows * columns;
        program.push(ppu::DataFormat { index_add, dpu_flyin: false, proc_precision: self.precision })?;
        program.push(ppu::MiscCtrl { burst_len: 3, ..Default::default() })?;
        program.push(rdma::CubeInWidth { cube_in_width: width - 1 })?;
        program.push(rdma::CubeInHeight { cube_in_height: height - 1 })?;
        program.push(rdma::CubeInChannel { cube_in_channel: channels - 1 })?;
        program.push(rdma::SrcBaseAddr { src_base_addr: bed.features.dma() })?;
        program.push(rdma::SrcLineStride { src_line_stride: width })?;
        program.push(rdma::SrcSurfStride { src_surf_stride: width * height })?;
        let in_precision = if self.precision == Precision::Int8 { 1 } else { 2 };
        program.push(rdma::DataFormat { in_precision })
    }

    /// The cells of a window that lie inside the input.
    fn cells(&self, row: usize, column: usize) -> Vec<[usize; 2]> {
        let axis = |axis: usize, at: usize| {
            let cells = (0..self.kernel[axis]).map(move |tap| at * self.stride[axis] + tap);
            cells.filter_map(move |cell| cell.checked_sub(self.pad[axis]).filter(|cell| *cell < self.input[axis]))
        };
        axis(0, row).flat_map(|row| axis(1, column).map(move |column| [row, column])).collect()
    }
}

const METHODS: [PoolingMethod; 3] = [PoolingMethod::Max, PoolingMethod::Min, PoolingMethod::Average];

fn bed() -> Bed {
    Bed::new(Options { version: (1, 3, 0), ..Options::default() })
}

/// Runs one program as a job that the driver hears of.
fn run(bed: &mut Bed, stream: &Stream) -> Vec<u8> {
    submit(bed, &[stream], JobFlags { ppu_done: true, ..JobFlags::default() });
    open(&mut bed.output).to_vec()
}

fn submit(bed: &mut Bed, streams: &[&Stream], flags: JobFlags) {
    let base = bed.commands.dma();
    let mut tasks = Vec::new();
    let mut access = open(&mut bed.commands);
    for (i, stream) in streams.iter().enumerate() {
        let bytes: Vec<u8> = stream.iter().flat_map(|word| word.0.to_le_bytes()).collect();
        access[i * 4096..][..bytes.len()].copy_from_slice(&bytes);
        tasks.push(Task { dma: base + 4096 * i as u32, words: stream.len() as u32 });
    }
    access.finish().unwrap();
    let outputs = [bed.output.handle()];
    bed.device.submit(&[Job { tasks: &tasks, inputs: &[], outputs: &outputs, flags }]).unwrap();
}

/// Integers: sum · ⌊65536/kh⌋ · ⌊65536/kw⌋ / 2^32 to nearest, ties to even; written with a remainder.
fn integer_mean(sum: i64, [height, width]: [usize; 2]) -> i64 {
    let product = i128::from(sum) * (0x10000 / height as i128) * (0x10000 / width as i128);
    let (quotient, rest) = (product.div_euclid(1 << 32), product.rem_euclid(1 << 32));
    let up = rest > 1 << 31 || (rest == 1 << 31 && quotient % 2 != 0);
    (quotient + i128::from(up)) as i64
}

/// The rule of npu-spec 6.2 [HW] in its own words: to nearest, except that ties step toward zero where a reciprocal is
/// inexact and to the even neighbour where both are exact.
fn described_mean(sum: i64, [height, width]: [usize; 2]) -> i64 {
    let cells = (height * width) as i64;
    let (quotient, rest) = (sum.abs() / cells, sum.abs() % cells);
    let exact = height.is_power_of_two() && width.is_power_of_two();
    let up = if 2 * rest == cells { exact && quotient % 2 == 1 } else { 2 * rest > cells };
    sum.signum() * (quotient + i64::from(up))
}

#[test]
fn the_product_of_reciprocals_rounds_as_silicon_was_seen_to() {
    for window in (2..=8).flat_map(|height| (2..=8).map(move |width| [height, width])) {
        let cells = (window[0] * window[1]) as i64;
        for sum in -128 * cells..=127 * cells {
            assert_eq!(integer_mean(sum, window), described_mean(sum, window), "{sum} over {window:?}");
        }
    }
}

fn check_integers(pool: &Pool, input: &[u8], output: &[u8]) {
    let extents = pool.output();
    for [row, column, channel] in positions(extents, pool.channels) {
        let cells = pool.cells(row, column);
        let number = |&[y, x]: &[usize; 2]| i64::from(input[pool.at(pool.input, [y, x, channel])] as i8);
        let numbers = cells.iter().map(number);
        let expected = match pool.method {
            PoolingMethod::Max => numbers.max().unwrap_or(-128),
            PoolingMethod::Min => numbers.min().unwrap_or(127),
            PoolingMethod::Average => integer_mean(numbers.sum(), pool.kernel),
        };
        let found = output[pool.at(extents, [row, column, channel])] as i8;
        assert_eq!(i64::from(found), expected, "{pool:?} at {row}, {column}, {channel}");
    }
}

fn check_halves(pool: &Pool, input: &[u8], output: &[u8]) {
    let extents = pool.output();
    let half = |bytes: &[u8], at: usize| f64::from(f16::from_le_bytes([bytes[at], bytes[at + 1]]));
    for [row, column, channel] in positions(extents, pool.channels) {
        let cells = pool.cells(row, column);
        let numbers = cells.iter().map(|&[y, x]| half(input, pool.at(pool.input, [y, x, channel])));
        let found = half(output, pool.at(extents, [row, column, channel]));
        let expected = match pool.method {
            PoolingMethod::Max => numbers.fold(f64::NEG_INFINITY, f64::max),
            PoolingMethod::Min => numbers.fold(f64::INFINITY, f64::min),
            PoolingMethod::Average => {
                let [high, wide] = pool.kernel.map(|k| f64::from(f16::from_f64(65536.0 / k as f64)) / 65536.0);
                let exact = numbers.sum::<f64>() * high * wide;
                // Half a unit in the last place.
                assert!((found - exact).abs() <= (exact.abs() * 2f64.powi(-11)).max(2f64.powi(-25)), "{pool:?}");
                continue;
            }
        };
        assert_eq!(found, expected, "{pool:?} at {row}, {column}, {channel}");
    }
}

fn positions([rows, columns]: [usize; 2], channels: usize) -> impl Iterator<Item = [usize; 3]> {
    let pixels = (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)));
    pixels.flat_map(move |(row, column)| (0..channels).map(move |channel| [row, column, channel]))
}

/// Random finite elements.
fn fill(bed: &mut Bed, precision: Precision, seed: u64) -> Vec<u8> {
    use rand::{Rng, SeedableRng};
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
    let mut access = open(&mut bed.features);
    match precision {
        Precision::Int8 => rng.fill(&mut access[..]),
        _ => access.as_chunks_mut().0.iter_mut().for_each(|element| {
            *element = f16::from_f32(rng.random_range(-300.0..300.0)).to_le_bytes();
        }),
    }
    access.to_vec()
}

fn check(pool: &Pool, seed: u64) {
    let mut bed = bed();
    let input = fill(&mut bed, pool.precision, seed);
    open(&mut bed.output).fill(0x77);
    let stream = pool.program(&bed);
    let output = run(&mut bed, &stream);
    assert_eq!(bed.fault(), None, "{pool:?}");
    match pool.precision {
        Precision::Int8 => check_integers(pool, &input, &output),
        _ => check_halves(pool, &input, &output),
    }
    let [rows, columns] = pool.output();
    let written = rows * columns * pool.channels * pool.bytes();
    assert!(output[written..].iter().all(|byte| *byte == 0x77), "nothing behind the end");
}

fn pools() -> impl Strategy<Value = Pool> {
    let precision = prop::sample::select(vec![Precision::Int8, Precision::Fp16]);
    let extents =
        (prop::array::uniform2(2..=16usize), prop::array::uniform2(1..=16usize), prop::array::uniform4(0..=7usize));
    let window = (prop::array::uniform2(0..20usize), 1..4usize);
    (precision, 0..3usize, extents, window).prop_map(|(precision, method, (kernel, stride, pad), (more, planes))| {
        // At least one window.
        let input = [0, 1].map(|axis| kernel[axis].saturating_sub(pad[axis] + pad[axis + 2]).max(1) + more[axis]);
        Pool { precision, method: METHODS[method], input, channels: planes * 16, kernel, stride, pad }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn windows_are_pooled_as_the_formulas_say(pool in pools(), seed in any::<u64>()) {
        check(&pool, seed);
    }
}

#[test]
fn extents_of_one_compare_and_have_no_mean() {
    for precision in [Precision::Int8, Precision::Fp16] {
        for method in [PoolingMethod::Max, PoolingMethod::Min] {
            check(&Pool { kernel: [1, 3], stride: [1, 1], pad: [0, 1, 0, 1], ..Pool::new(precision, method) }, 3);
        }
        let pool = Pool { kernel: [1, 3], ..Pool::new(precision, PoolingMethod::Average) };
        refused(&pool, |_| {}, Fault::Unproven("a mean over a kernel extent of 1"));
    }
}

/// Spoils a program and expects this fault.
#[track_caller]
fn refused(pool: &Pool, spoil: impl FnOnce(&mut Stream), expected: Fault) {
    let mut bed = bed();
    open(&mut bed.output).fill(0x77);
    let mut stream = pool.program(&bed);
    spoil(&mut stream);
    let output = run(&mut bed, &stream);
    assert_eq!(bed.fault(), Some(expected));
    assert!(output.iter().all(|byte| *byte == 0x77), "the output is untouched");
}

#[test]
fn what_no_program_was_seen_to_do_is_refused() {
    let int8 = Pool::new(Precision::Int8, PoolingMethod::Max);
    let unproven = |what| Fault::Unproven(what);
    for code in [0, 3] {
        let pair = unproven("this pair of pooling precisions");
        refused(&int8, |stream| set(stream, rdma::DataFormat::INFO, code), pair);
    }
    let mode = |stream: &mut Stream| set(stream, ppu::OperationModeCfg::INFO, 1 << 30 | 0x11);
    refused(&int8, mode, unproven("a mode in PPU_OPERATION_MODE_CFG"));
    refused(
        &int8,
        |stream| set(stream, ppu::OperationModeCfg::INFO, 1),
        unproven("pooling that the reader does not feed"),
    );
    refused(&int8, |stream| set(stream, ppu::MiscCtrl::INFO, 0x103), unproven("a mode in PPU_MISC_CTRL"));
    refused(&int8, |stream| set(stream, ppu::PaddingValue2Cfg::INFO, 1), unproven("PPU_PADDING_VALUE_2_CFG"));
    refused(&Pool { channels: 24, ..int8.clone() }, |_| {}, unproven("pooled channels that are no whole planes"));
    let padded = Pool { pad: [1; 4], ..int8.clone() };
    refused(&padded, |stream| set(stream, ppu::PaddingValue1Cfg::INFO, 0x80), unproven("a pad value beyond 8 bits"));
    let mean = Pool { pad: [1; 4], ..Pool::new(Precision::Fp16, PoolingMethod::Average) };
    refused(&mean, |stream| set(stream, ppu::PaddingValue1Cfg::INFO, 1), unproven("a mean with a pad value"));
    let extents =
        Fault::Mismatch { what: "output extents of the PPU and windows in its padded input", left: 3, right: 2 };
    refused(&int8, |stream| set(stream, ppu::DataCubeOutWidth::INFO, 2), extents);
    let reader = Fault::Mismatch { what: "widths of PPU and PPU_RDMA", left: 4, right: 5 };
    refused(&int8, |stream| set(stream, rdma::CubeInWidth::INFO, 5), reader);
}

#[test]
fn numbers_that_no_test_showed_are_refused() {
    for (method, number, fault) in [
        (PoolingMethod::Max, f16::NAN, Fault::Unproven("pooling of a NaN")),
        (PoolingMethod::Average, f16::INFINITY, Fault::Unproven("the mean of an infinity")),
    ] {
        let mut bed = bed();
        open(&mut bed.features)[32..34].copy_from_slice(&number.to_le_bytes());
        let stream = Pool::new(Precision::Fp16, method).program(&bed);
        run(&mut bed, &stream);
        assert_eq!(bed.fault(), Some(fault));
    }
}

#[test]
fn a_maximum_padded_with_zeros_hides_what_is_below() {
    let pool = Pool { pad: [1; 4], ..Pool::new(Precision::Int8, PoolingMethod::Max) };
    let mut bed = bed();
    open(&mut bed.features).fill(0xfb);
    let right = pool.program(&bed);
    let mut wrong = right.clone();
    set(&mut wrong, ppu::PaddingValue1Cfg::INFO, 0);
    assert_eq!(run(&mut bed, &right)[0] as i8, -5);
    assert_eq!(run(&mut bed, &wrong)[0] as i8, 0, "the corner's window has cells outside");
}

#[test]
fn strides_are_where_rows_and_planes_lie() {
    let pool = Pool::new(Precision::Int8, PoolingMethod::Max);
    let mut bed = bed();
    {
        let mut access = open(&mut bed.features);
        // Two planes of six rows, rows 8 and planes 64 atoms apart.
        for (row, column, channel) in (0..6).flat_map(|y| (0..5).flat_map(move |x| (0..32).map(move |c| (y, x, c)))) {
            access[(channel / 16 * 64 + row * 8 + column) * 16 + channel % 16] = (row * 10 + column + channel) as u8;
        }
    }
    let mut stream = pool.program(&bed);
    for (register, value) in [(rdma::SrcLineStride::INFO, 8 << 4), (rdma::SrcSurfStride::INFO, 64 << 4)] {
        set(&mut stream, register, value);
    }
    set(&mut stream, ppu::DstSurfStride::INFO, 10 << 4);
    set(&mut stream, ppu::DataFormat::INFO, 10 << 4);
    let output = run(&mut bed, &stream);
    assert_eq!(bed.fault(), None);
    assert_eq!([output[0], output[5 * 16 + 3], output[10 * 16]], [11, 53 + 3, 11 + 16]);
}

/// A program that pools the convolution's kind of data, and one that convolves.
fn both(bed: &mut Bed) -> (Stream, Stream) {
    open(&mut bed.features).fill(1);
    open(&mut bed.weights).fill(1);
    let conv = Conv::pointwise(Precision::Int8, Precision::Int8).program(bed);
    (Pool::new(Precision::Int8, PoolingMethod::Max).program(bed), conv)
}

/// Runs these tasks and says how the driver sees it: the fault, and how long it took.
fn outcome(options: Options, flags: JobFlags, pooled: &[bool], chained: bool) -> (Option<Fault>, u128, u8) {
    let mut bed = Bed::new(options);
    let (pool, conv) = both(&mut bed);
    let mut streams: Vec<Stream> =
        pooled.iter().map(|pooled| if *pooled { pool.clone() } else { conv.clone() }).collect();
    for i in (1..streams.len()).filter(|_| chained) {
        let (next, words) = (bed.commands.dma() + 4096 * i as u32, streams[i].len());
        let link = streams[i - 1].len() - 4;
        streams[i - 1][link] = Word::write(npu_regs::pc::BaseAddress::INFO, next);
        streams[i - 1][link + 1] = Word::write(npu_regs::pc::RegisterAmounts::INFO, npu_regs::beats_minus_one(words));
    }
    let before = bed.device.now();
    submit(&mut bed, &streams.iter().collect::<Vec<_>>(), flags);
    bed.device.prep_bo(bed.output.handle(), Deadline::Never).unwrap();
    let took = (bed.device.now() - before).as_millis();
    (bed.fault(), took, open(&mut bed.output)[0])
}

const STOCK: fn() -> Options = Options::default;
/// Its errors are left out, so that the output can be looked at after a job that the driver gave up.
const PATCHED: fn() -> Options =
    || Options { reports_failed_jobs: false, reports_dropped_jobs: false, ..Options::batched() };
const NONE: JobFlags = JobFlags { batched: false, no_dpu_done: false, ppu_done: false };
const PPU: JobFlags = JobFlags { ppu_done: true, ..NONE };
const CHAIN: JobFlags = JobFlags { batched: true, ..NONE };

#[test]
fn q30_a_stock_driver_hears_nothing_of_pooling_and_the_result_is_there() {
    assert_eq!(outcome(STOCK(), NONE, &[true], false), (Some(Fault::Unheard), 500, 1));
    assert_eq!(outcome(STOCK(), PPU, &[true], false), (Some(Fault::Unheard), 500, 1), "it does not know the flag");
    assert_eq!(outcome(PATCHED(), NONE, &[true], false), (Some(Fault::Unheard), 500, 1), "not asked for");
    assert_eq!(outcome(PATCHED(), PPU, &[true], false), (None, 0, 1));
}

#[test]
fn a_driver_that_waits_for_pooling_hears_nothing_of_a_convolution() {
    assert_eq!(outcome(PATCHED(), PPU, &[false], false), (Some(Fault::Unheard), 500, 32));
}

#[test]
fn every_kick_of_a_job_must_be_heard_and_of_a_chain_the_last_task() {
    assert_eq!(outcome(STOCK(), NONE, &[true, false], false), (Some(Fault::Unheard), 500, 1), "the next never starts");
    assert_eq!(outcome(PATCHED(), PPU, &[true, true], false), (None, 0, 1));
    assert_eq!(outcome(PATCHED(), CHAIN, &[true, false], true), (None, 0, 32), "hidden behind a convolution");
    assert_eq!(outcome(PATCHED(), CHAIN, &[false, true], true).0, Some(Fault::Unheard));
    assert_eq!(outcome(PATCHED(), JobFlags { ppu_done: true, ..CHAIN }, &[false, true], true), (None, 0, 1));
}

#[test]
fn the_flag_that_others_use_twice_is_refused_where_flags_are_known() {
    let flags = JobFlags { no_dpu_done: true, ..NONE };
    assert_eq!(outcome(PATCHED(), flags, &[false], false), (None, 0, 0), "dropped in silence");
    assert_eq!(outcome(STOCK(), flags, &[false], false), (None, 0, 32), "ignored");
}

#[test]
fn pooling_alternates_between_the_groups_of_its_own_blocks() {
    let mut bed = bed();
    fill(&mut bed, Precision::Int8, 1);
    let full = Pool::new(Precision::Int8, PoolingMethod::Max).program(&bed);
    let (_, conv) = both(&mut bed);
    let delta: Stream = full[full.len() - 4..].to_vec();
    let flags = JobFlags { ppu_done: true, ..NONE };
    submit(&mut bed, &[&full, &full], flags);
    submit(&mut bed, &[&conv], NONE);
    open(&mut bed.output).fill(0x77);
    submit(&mut bed, &[&delta], flags);
    let first = open(&mut bed.output)[0];
    assert_eq!((first, bed.fault()), (1, None), "registers outlive jobs and other blocks' toggles");
}
