//! For tests: a convolution written as a register program, and the buffers around it.
//!
//! Layouts are the formulas of npu-spec 3, written again and not shared with the simulator.

use std::sync::Arc;

use npu_device::{Access, Bo, Deadline, Device, Driver, Job, JobFlags, Task};
use npu_regs::{
    AluAlgo, BlockMask, ConvMode, ElementSize, EwDataMode, EwOpType, FieldError, Precision, Program, Register,
    RegisterInfo, Word, cna, core, dpu, dpu_rdma as rdma,
};

use crate::{Fault, Options, Simulator};

/// A register program that tests may spoil.
pub(crate) type Stream = Vec<Word>;

/// Room in every buffer.
const BYTES: u32 = 1 << 20;

/// A convolution. `[y, x]` throughout.
#[derive(Clone, Debug)]
pub(crate) struct Conv {
    pub(crate) precision: Precision,
    pub(crate) out: Precision,
    pub(crate) depthwise: bool,
    pub(crate) input: [usize; 2],
    pub(crate) channels: usize,
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) dilation: [usize; 2],
    pub(crate) pad: [usize; 2],
    pub(crate) output: [usize; 2],
    pub(crate) kernels: usize,
    pub(crate) pad_value: u32,
    /// Added to every weight.
    pub(crate) compensation: i32,
    pub(crate) bias: bool,
    /// Scale, shift, offset.
    pub(crate) requantise: (i32, u32, i32),
}

impl Conv {
    /// A 1×1 convolution of 8×8 pixels and 32 channels.
    pub(crate) const fn pointwise(precision: Precision, out: Precision) -> Self {
        Self {
            precision,
            out,
            depthwise: false,
            input: [8, 8],
            channels: 32,
            kernel: [1, 1],
            stride: [1, 1],
            dilation: [1, 1],
            pad: [0, 0],
            output: [8, 8],
            kernels: 32,
            pad_value: 0,
            compensation: 0,
            bias: false,
            requantise: (1, 0, 0),
        }
    }

    fn bits(precision: Precision) -> usize {
        match precision {
            Precision::Int4 => 4,
            Precision::Int8 => 8,
            Precision::Int16 | Precision::Fp16 | Precision::Bf16 => 16,
            _ => 32,
        }
    }

    /// Atoms per pixel of a channel group.
    fn atoms(&self) -> u32 {
        match (self.precision, self.depthwise, self.out) {
            (_, true, _) | (Precision::Fp16 | Precision::Bf16 | Precision::Tf32, false, Precision::Fp32) => 4,
            (Precision::Int16, ..) => 4,
            (Precision::Int4, ..) => 8,
            (Precision::Int8, false, Precision::Int32 | Precision::Fp32) => 8,
            _ => 2,
        }
    }

    /// Byte of an input element in the feature cube; of 4-bit elements, the odd ones are its high half.
    pub(crate) fn feature_at(&self, h: usize, w: usize, c: usize) -> usize {
        let lanes = 128 / Self::bits(self.precision);
        // Planes of fewer than four rows do not exist for the reader.
        let rows = self.input[0].max(4);
        (((c / lanes) * rows + h) * self.input[1] + w) * 16 + c % lanes * Self::bits(self.precision) / 8
    }

    /// Byte of an output element in the output cube.
    pub(crate) fn output_at(&self, h: usize, w: usize, c: usize) -> usize {
        let lanes = 128 / Self::bits(self.out);
        (((c / lanes) * self.output[0] + h) * self.output[1] + w) * 16 + c % lanes * Self::bits(self.out) / 8
    }

    /// Byte of a weight.
    pub(crate) fn weight_at(&self, oc: usize, ic: usize, kh: usize, kw: usize) -> usize {
        let [rows, columns] = self.kernel;
        let tap = kh * columns + kw;
        let bits = Self::bits(self.precision);
        if self.depthwise {
            let group = if self.precision == Precision::Int8 { 64 } else { 32 };
            let lanes = group.min(self.channels - ic / group * group);
            return (ic / group * group * rows * columns + tap * lanes + ic % group) * bits / 8;
        }
        let (group, inputs) = match self.precision {
            Precision::Int4 => (64, 32),
            Precision::Int8 => (32, 32),
            Precision::Tf32 => (16, 16),
            _ => (16, 32),
        };
        let kernels = group.min(self.kernels - oc / group * group);
        let first = oc / group * group * rows * columns * self.channels;
        let lanes = inputs.min(self.channels - ic / inputs * inputs);
        let block = ic / inputs * inputs * rows * columns * kernels + tap * kernels * lanes;
        (first + block + oc % group * lanes + ic % inputs) * bits / 8
    }

    fn weight_bytes(&self) -> usize {
        let kernels = if self.depthwise { 1 } else { self.kernels };
        self.kernel[0] * self.kernel[1] * self.channels * kernels * Self::bits(self.precision) / 8
    }

    /// The program. SOURCE: npu-spec 4.1 to 4.6.
    pub(crate) fn program(&self, bed: &Bed) -> Stream {
        let mut program = Program::new();
        pointers(&mut program).unwrap();
        self.cna(&mut program, bed).unwrap();
        self.core(&mut program).unwrap();
        self.dpu(&mut program, bed).unwrap();
        self.rdma(&mut program, bed).unwrap();
        program.finish(BlockMask::CONVOLUTION);
        program.words().to_vec()
    }

    fn cna(&self, program: &mut Program, bed: &Bed) -> Result<(), FieldError> {
        let [height, width] = self.input.map(|n| n as u32);
        let [oh, ow] = self.output.map(|n| n as u32);
        let [kh, kw] = self.kernel.map(|n| n as u32);
        let channels = self.channels as u32;
        let kernels = if self.depthwise { 1 } else { self.kernels as u32 };
        let conv_mode = if self.depthwise { ConvMode::Depthwise } else { ConvMode::Direct };
        program.push(cna::ConvCon1 {
            proc_precision: self.precision,
            in_precision: self.precision,
            conv_mode,
            ..Default::default()
        })?;
        program.push(cna::ConvCon2 { feature_grains: height + 1, ..Default::default() })?;
        program.push(cna::ConvCon3 {
            atrous_y_dilation: self.dilation[0] as u32 - 1,
            atrous_x_dilation: self.dilation[1] as u32 - 1,
            conv_y_stride: self.stride[0] as u32,
            conv_x_stride: self.stride[1] as u32,
            ..Default::default()
        })?;
        program.push(cna::DataSize0 { datain_width: width, datain_height: height })?;
        program.push(cna::DataSize1 { datain_channel_real: channels - 1, datain_channel: channels })?;
        program.push(cna::DataSize2 { dataout_width: ow })?;
        program.push(cna::DataSize3 { surf_mode: 0, dataout_atomics: ow * oh })?;
        let bytes = self.weight_bytes() as u32;
        program.push(cna::WeightSize0 { weight_bytes: bytes })?;
        program.push(cna::WeightSize1 { weight_bytes_per_kernel: bytes / kernels })?;
        program.push(cna::WeightSize2 { weight_width: kw, weight_height: kh, weight_kernels: kernels })?;
        program.push(cna::CbufCon0 { weight_bank: 3, data_bank: 9, ..Default::default() })?;
        program.push(cna::CvtCon0 { data_sign: true, cvt_type: true, cvt_bypass: true, ..Default::default() })?;
        program.push(cna::PadCon0 { pad_left: self.pad[1] as u32, pad_top: self.pad[0] as u32 })?;
        program.push(cna::FeatureDataAddr { feature_base_addr: bed.features.dma() })?;
        program.push(cna::DmaCon1 { line_stride: 4 * width })?;
        program.push(cna::DmaCon2 { surf_stride: width * height.saturating_sub(4) })?;
        program.push(cna::FcDataSize0 { dma_width: width, dma_height: height })?;
        program.push(cna::FcDataSize1 { dma_channel: channels })?;
        program.push(cna::DcompAddr0 { decompress_addr0: bed.weights.dma() })?;
        program.push(cna::PadCon1 { pad_value: self.pad_value })
    }

    fn core(&self, program: &mut Program) -> Result<(), FieldError> {
        let [oh, ow] = self.output.map(|n| n as u32);
        let raw = self.precision == Precision::Int8 && self.out != Precision::Int8 || self.precision == Precision::Int4;
        program.push(core::MiscCfg {
            soft_gating: 0,
            proc_precision: self.precision,
            dw_en: self.depthwise,
            qd_en: !raw,
        })?;
        program.push(core::DataoutSize0 { dataout_height: oh - 1, dataout_width: ow - 1 })?;
        program.push(core::DataoutSize1 { dataout_channel: self.kernels as u32 - 1 })
    }

    fn dpu(&self, program: &mut Program, bed: &Bed) -> Result<(), FieldError> {
        let [oh, ow] = self.output.map(|n| n as u32);
        let last = self.kernels as u32 - 1;
        let size_e = self.atoms() - 1;
        let conv_mode = if self.depthwise { ConvMode::Depthwise } else { ConvMode::Direct };
        program.push(dpu::FeatureModeCfg { burst_len: 15, conv_mode, output_mode: 2, ..Default::default() })?;
        let precision = if self.precision == Precision::Tf32 { Precision::Fp32 } else { self.precision };
        program.push(dpu::DataFormat {
            out_precision: self.out,
            in_precision: precision,
            proc_precision: precision,
            ..Default::default()
        })?;
        program.push(dpu::DstBaseAddr { dst_base_addr: bed.output.dma() })?;
        program.push(dpu::DstSurfStride { dst_surf_stride: ow * oh })?;
        program.push(dpu::DataCubeWidth { width: ow - 1 })?;
        program.push(dpu::DataCubeHeight { minmax_ctl: 0, height: oh - 1 })?;
        program.push(dpu::DataCubeChannel { orig_channel: last, channel: last })?;
        program.push(dpu::BsCfg {
            bs_alu_algo: AluAlgo::Add,
            bs_alu_src: self.bias,
            bs_relu_bypass: true,
            bs_mul_bypass: true,
            bs_alu_bypass: !self.bias,
            bs_bypass: !self.bias,
            ..Default::default()
        })?;
        program.push(dpu::BsOwCfg {
            size_e_2: size_e,
            size_e_1: size_e,
            size_e_0: size_e,
            od_bypass: self.compensation == 0,
            ..Default::default()
        })?;
        program.push(dpu::BsOwOp { ow_op: self.compensation })?;
        program.push(dpu::WdmaSize0 { channel_wdma: last, ..Default::default() })?;
        program.push(dpu::WdmaSize1 { height_wdma: oh - 1, width_wdma: ow - 1 })?;
        program.push(dpu::BnCfg { bn_relu_bypass: true, bn_bypass: true, ..Default::default() })?;
        program.push(dpu::EwCfg { ew_lut_bypass: true, ew_op_bypass: true, ew_bypass: true, ..Default::default() })?;
        let (scale, shift, offset) = self.requantise;
        program.push(dpu::OutCvtOffset { out_cvt_offset: offset })?;
        program.push(dpu::OutCvtScale { fp32tofp16_en: self.out == Precision::Fp16, out_cvt_scale: scale })?;
        program.push(dpu::OutCvtShift { out_cvt_shift: shift, ..Default::default() })?;
        program.push(dpu::SurfaceAdd { surf_add: self.atoms() * ow * oh })
    }

    fn rdma(&self, program: &mut Program, bed: &Bed) -> Result<(), FieldError> {
        let [oh, ow] = self.output.map(|n| n as u32);
        program.push(rdma::DataCubeWidth { width: ow - 1 })?;
        program.push(rdma::DataCubeHeight { ew_line_notch_addr: 0, height: oh - 1 })?;
        program.push(rdma::DataCubeChannel { channel: self.kernels as u32 - 1 })?;
        program.push(rdma::Bcfg { brdma_data_use: u32::from(self.bias) })?;
        program.push(rdma::BsBaseAddr { bs_base_addr: bed.operands.dma() })?;
        program.push(rdma::Ecfg { erdma_disable: true, ..Default::default() })?;
        program.push(rdma::FeatureModeCfg { burst_len: 15, mrdma_disable: true, ..Default::default() })
    }
}

/// The first words of every program.
fn pointers(program: &mut Program) -> Result<(), FieldError> {
    program.push(dpu::SPointer {
        pointer_pp_mode: true,
        executer_pp_en: true,
        pointer_pp_en: true,
        ..Default::default()
    })?;
    program.push(rdma::SPointer {
        pointer_pp_mode: true,
        executer_pp_en: true,
        pointer_pp_en: true,
        ..Default::default()
    })
}

/// An element-wise operation of `columns` pixels from `features` and `operands` to `output`.
pub(crate) fn flying(bed: &Bed, columns: u32, precision: Precision, mul: bool) -> Stream {
    let mut program = Program::new();
    push_flying(&mut program, bed, columns, precision, mul).unwrap();
    program.finish(BlockMask::FLYING);
    program.words().to_vec()
}

fn push_flying(
    program: &mut Program,
    bed: &Bed,
    columns: u32,
    precision: Precision,
    mul: bool,
) -> Result<(), FieldError> {
    pointers(program)?;
    let (element, edata_size) = match precision {
        Precision::Int8 => (1, ElementSize::Bits8),
        Precision::Int32 => (4, ElementSize::Bits32),
        _ => (2, ElementSize::Bits16),
    };
    let last = 16 / element - 1;
    program.push(dpu::FeatureModeCfg { burst_len: 15, output_mode: 2, flying_mode: true, ..Default::default() })?;
    program.push(dpu::DataFormat {
        out_precision: precision,
        in_precision: precision,
        proc_precision: precision,
        ..Default::default()
    })?;
    program.push(dpu::DstBaseAddr { dst_base_addr: bed.output.dma() })?;
    program.push(dpu::DataCubeWidth { width: columns - 1 })?;
    program.push(dpu::DataCubeHeight::default())?;
    program.push(dpu::DataCubeChannel { orig_channel: last, channel: last })?;
    program.push(dpu::BsCfg { bs_relu_bypass: true, bs_bypass: true, ..Default::default() })?;
    program.push(dpu::BsOwCfg { od_bypass: true, ..Default::default() })?;
    program.push(dpu::WdmaSize0 { channel_wdma: last, ..Default::default() })?;
    program.push(dpu::WdmaSize1 { height_wdma: 0, width_wdma: columns - 1 })?;
    program.push(dpu::BnCfg { bn_relu_bypass: true, bn_bypass: true, ..Default::default() })?;
    program.push(dpu::EwCfg {
        ew_data_mode: EwDataMode::PerPixel,
        edata_size,
        ew_alu_algo: AluAlgo::Add,
        ew_relu_bypass: true,
        ew_op_cvt_bypass: mul || precision == Precision::Int32,
        ew_lut_bypass: true,
        ew_op_src: true,
        ew_op_type: if mul { EwOpType::Mul } else { EwOpType::Alu },
        ..Default::default()
    })?;
    program.push(dpu::EwCvtScaleValue { ew_op_cvt_scale: 1, ..Default::default() })?;
    program.push(dpu::OutCvtScale { fp32tofp16_en: precision == Precision::Fp16, out_cvt_scale: 1 })?;
    program.push(rdma::DataCubeWidth { width: columns - 1 })?;
    program.push(rdma::DataCubeHeight::default())?;
    program.push(rdma::DataCubeChannel { channel: last })?;
    program.push(rdma::SrcBaseAddr { src_base_addr: bed.features.dma() })?;
    program.push(rdma::EwBaseAddr { ew_base_addr: bed.operands.dma() })?;
    program.push(rdma::Ecfg {
        erdma_data_mode: EwDataMode::PerPixel,
        erdma_data_size: edata_size,
        ..Default::default()
    })?;
    program.push(rdma::FeatureModeCfg {
        in_precision: precision,
        burst_len: 15,
        comb_use: 4,
        proc_precision: precision,
        mrdma_fp16tofp32_en: precision == Precision::Fp16,
        flying_mode: true,
        ..Default::default()
    })
}

/// Turns a convolution's program into one that adds an operand at `features + from`, as npu-spec 4.7 does.
pub(crate) fn fuse(program: &mut Stream, conv: &Conv, operand: u32, mode: u32, reader: u32) {
    let plane = (conv.output[0] * conv.output[1]) as u32;
    let notch = plane.max(12) << 4;
    let readers = if conv.precision == Precision::Fp16 { 0x17d40 } else { 0x7d00 };
    for (register, value) in [
        (dpu::EwCfg::INFO, mode),
        (rdma::Ecfg::INFO, reader),
        (rdma::FeatureModeCfg::INFO, readers),
        (dpu::EwCvtScaleValue::INFO, 1),
        (rdma::SrcBaseAddr::INFO, operand),
        (rdma::EwBaseAddr::INFO, operand + plane * 16),
        (rdma::EwSurfStride::INFO, notch),
        (rdma::SurfNotch::INFO, notch),
        (rdma::EwSurfNotch::INFO, notch),
    ] {
        set(program, register, value);
    }
}

/// Sets a register, whether or not the stream writes it.
pub(crate) fn set(stream: &mut Stream, register: &RegisterInfo, value: u32) {
    let same = |word: &Word| word.0 & 0xffff_0000_0000_ffff == Word::write(register, 0).0;
    match stream.iter_mut().find(|word| same(word)) {
        Some(word) => *word = Word::write(register, value),
        None => stream.insert(0, Word::write(register, value)),
    }
}

/// A simulator with one file and a buffer for everything.
pub(crate) struct Bed {
    pub(crate) simulator: Simulator,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) features: Bo,
    pub(crate) weights: Bo,
    pub(crate) operands: Bo,
    pub(crate) output: Bo,
    pub(crate) commands: Bo,
}

impl Bed {
    pub(crate) fn new(options: Options) -> Self {
        let simulator = Simulator::new(options);
        let device = simulator.open().unwrap();
        let bo = || Bo::new(&device, BYTES).unwrap();
        let [features, weights, operands, output, commands] = std::array::from_fn(|_| bo());
        Self { simulator, features, weights, operands, output, commands, device }
    }

    /// Queues programs as one job and returns at once.
    pub(crate) fn submit(&mut self, programs: &[&Stream], batched: bool) {
        let mut tasks = Vec::new();
        {
            let base = self.commands.dma();
            let mut access = open(&mut self.commands);
            for (i, program) in programs.iter().enumerate() {
                let at = i * 4096;
                let bytes: Vec<u8> = program.iter().flat_map(|word| word.0.to_le_bytes()).collect();
                access[at..][..bytes.len()].copy_from_slice(&bytes);
                tasks.push(Task { dma: base + at as u32, words: program.len() as u32 });
            }
        }
        let flags = JobFlags { batched, ..JobFlags::default() };
        let job = Job { tasks: &tasks, inputs: &[], outputs: &[self.output.handle()], flags };
        self.device.submit(&[job]).unwrap();
    }

    /// Runs programs as one job and returns the output.
    pub(crate) fn run(&mut self, programs: &[&Stream]) -> Vec<u8> {
        self.submit(programs, false);
        open(&mut self.output).to_vec()
    }

    /// Why the newest job did not complete.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.simulator.faults().pop().map(|record| record.fault)
    }
}

/// CPU access when all jobs are done.
pub(crate) fn open(bo: &mut Bo) -> Access<'_> {
    bo.access(Deadline::Never).unwrap()
}
