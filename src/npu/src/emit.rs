//! Register programs: one complete program of 126 words per task, from a description in the planner's terms.
//!
//! Every program writes every register, in one order: registers keep their values over tasks and jobs, so a program that
//! leaves one out would run with a stranger's value. SOURCE: npu-spec 1.3, 4.1, 4.2.

use npu_regs::{
    AluAlgo, BlockMask, ConvMode, ElementSize, EwDataMode, FieldError, Layout, Precision, Program, cna, core, dpu,
    dpu_rdma,
};

use crate::quantize::Requant;
use crate::rk3576;
use crate::tile::Banks;

/// Words of a program for an RK3588. SOURCE: npu-spec 4.1.
const WORDS: u32 = 126;
/// Longest burst of every reader and writer.
const BURST: u32 = 15;
/// Feature rows buffered ahead of a depthwise convolution, beside its stride. SOURCE: npu-spec 1.6; the value does not
/// change results.
const DEPTHWISE_GRAINS: u32 = 51;

/// Words of a program for the chip of `layout`.
pub(crate) const fn words(layout: Layout) -> u32 {
    match layout {
        Layout::Rk3588 => WORDS,
        Layout::Rk3576 => rk3576::program::WORDS,
    }
}

/// A buffer that a task refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Region {
    /// Weights and operands.
    Constants,
    /// Inputs, intermediates and outputs; of a product, its first factor.
    Activations,
    /// The results of a product.
    Results,
}

/// A place in a buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) region: Region,
    pub(crate) offset: u32,
}

/// Where the buffers are in the NPU's address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bases {
    pub(crate) constants: u32,
    pub(crate) activations: u32,
    pub(crate) results: u32,
}

impl Bases {
    pub(crate) fn dma(&self, place: Place) -> u32 {
        let base = match place.region {
            Region::Constants => self.constants,
            Region::Activations => self.activations,
            Region::Results => self.results,
        };
        // A buffer lies inside the address space, so the sum does not wrap.
        base.wrapping_add(place.offset)
    }
}

/// Kind of convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Direct,
    Depthwise,
}

/// One task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConvTask {
    pub(crate) kind: Kind,
    pub(crate) feature: Feature,
    pub(crate) kernel: Kernel,
    pub(crate) banks: Banks,
    pub(crate) output: Output,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) addend: Option<Addend>,
    pub(crate) reuse: Reuse,
}

/// Operands that the task before left in CBUF. SOURCE: npu-spec 4.12.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reuse {
    pub(crate) features: bool,
    pub(crate) weights: bool,
}

/// The input of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Feature {
    /// First row of the band.
    pub(crate) place: Place,
    /// Rows and columns of the band.
    pub(crate) extents: [u32; 2],
    /// Atoms between planes.
    pub(crate) pitch: u32,
    /// Atoms between rows of one pixel in host order, whose planes are neighbours; none in a cube.
    pub(crate) host_rows: Option<u32>,
    /// Slots that hold data.
    pub(crate) real: u32,
    /// Slots that are read.
    pub(crate) slots: u32,
    /// 64-byte entries of a row.
    pub(crate) entries: u32,
    pub(crate) pad_top: u32,
    pub(crate) pad_left: u32,
    /// The pad register.
    pub(crate) pad_value: u32,
}

/// The weights of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    pub(crate) place: Place,
    /// All of them.
    pub(crate) bytes: u32,
    /// One kernel.
    pub(crate) kernel_bytes: u32,
    pub(crate) extents: [u32; 2],
    pub(crate) stride: [u32; 2],
    pub(crate) dilation: [u32; 2],
    /// Steps between inputs of a transposed convolution, with zeros between them; 1 otherwise.
    pub(crate) spread: [u32; 2],
}

/// The output of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    /// First row of the band in the first plane of the block.
    pub(crate) place: Place,
    /// Rows and columns of the band.
    pub(crate) extents: [u32; 2],
    /// Atoms between planes.
    pub(crate) pitch: u32,
    /// Atoms that are skipped between rows.
    pub(crate) notch: u32,
    /// Slots that are written.
    pub(crate) slots: u32,
}

/// A second tensor that is added after the multiplier, in the layout of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addend {
    pub(crate) place: Place,
    /// Atoms between planes.
    pub(crate) pitch: u32,
    /// Added to each element first.
    pub(crate) offset: i32,
    pub(crate) scale: u32,
    pub(crate) shift: u32,
}

/// What happens to the sums of a task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arithmetic {
    /// 8-bit in and out.
    Int8 {
        /// Operands A, B and C of each slot.
        operands: Place,
        compensation: Compensation,
        requant: Requant,
        clamp: Clamp<i32>,
    },
    /// Half precision in and out.
    Fp16 {
        /// fp32 addend of each slot.
        bias: Option<Place>,
        clamp: Clamp<f32>,
    },
    /// The sums as they are.
    Raw {
        datapath: Datapath,
        /// Operands that change nothing, on a chip that always reads some.
        operands: Option<Place>,
    },
}

/// What the blocks are told of a product's numbers. SOURCE: npu-spec 4.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datapath {
    /// Of the factors, for CNA and CORE.
    pub(crate) factors: Precision,
    /// Of the sums, for the DPU.
    pub(crate) sums: Precision,
    /// Of the results in memory.
    pub(crate) results: Precision,
    /// Atoms that the writer makes of one pixel of a kernel group.
    pub(crate) atoms: u32,
    /// A bit of CORE whose meaning is unknown.
    pub(crate) qd_en: bool,
}

/// What is added to every weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compensation {
    /// The same for all channels.
    Tensor(i32),
    /// Operand B.
    PerChannel,
}

/// Limits before the output converter.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub(crate) struct Clamp<T> {
    /// At least 0.
    pub(crate) relu: bool,
    /// At most this. Only with `relu`.
    pub(crate) most: Option<T>,
}

/// A clamp as registers say it.
#[derive(Clone, Copy)]
struct Relu {
    on: bool,
    limited: bool,
    most: u32,
}

impl ConvTask {
    /// The complete program for the chip of `layout`.
    ///
    /// # Errors
    /// A value that its register cannot hold.
    pub(crate) fn program(&self, layout: Layout, bases: &Bases) -> Result<Program, FieldError> {
        match layout {
            Layout::Rk3588 => self.first_program(bases),
            Layout::Rk3576 => rk3576::program::program(self, bases),
        }
    }

    /// The program for an RK3588.
    fn first_program(&self, bases: &Bases) -> Result<Program, FieldError> {
        let mut program = Program::new();
        // The write pointer alternates between the two register groups. SOURCE: npu-spec 1.3.
        let (pointer_pp_mode, executer_pp_en, pointer_pp_en) = (true, true, true);
        program.push(dpu::SPointer { pointer_pp_mode, executer_pp_en, pointer_pp_en, ..Default::default() })?;
        program.push(dpu_rdma::SPointer { pointer_pp_mode, executer_pp_en, pointer_pp_en, ..Default::default() })?;
        self.convolution(&mut program)?;
        self.input_converter(&mut program)?;
        self.fetch(&mut program, bases)?;
        self.accumulator(&mut program)?;
        self.writer(&mut program, bases)?;
        self.bias_and_scale(&mut program)?;
        self.element_wise(&mut program)?;
        self.output_converter(&mut program)?;
        no_table(&mut program)?;
        self.operand_readers(&mut program, bases)?;
        program.finish(BlockMask::CONVOLUTION);
        Ok(program)
    }

    /// Shape of the convolution.
    fn convolution(&self, program: &mut Program) -> Result<(), FieldError> {
        let Self { feature, kernel, output, banks, .. } = self;
        let precision = self.precision();
        program.push(cna::ConvCon1 {
            group_line_off: feature.host_rows.is_some(),
            deconv: kernel.spread != [1, 1],
            proc_precision: precision,
            in_precision: precision,
            conv_mode: self.conv_mode(),
            ..Default::default()
        })?;
        let feature_grains = match self.kind {
            Kind::Direct => feature.extents[0] + 1,
            Kind::Depthwise => DEPTHWISE_GRAINS + kernel.stride[0],
        };
        program.push(cna::ConvCon2 { feature_grains, ..Default::default() })?;
        program.push(cna::ConvCon3 {
            atrous_y_dilation: kernel.dilation[0] - 1,
            atrous_x_dilation: kernel.dilation[1] - 1,
            deconv_y_stride: kernel.spread[0] - 1,
            deconv_x_stride: kernel.spread[1] - 1,
            conv_y_stride: kernel.stride[0],
            conv_x_stride: kernel.stride[1],
            ..Default::default()
        })?;
        program.push(cna::DataSize0 { datain_width: feature.extents[1], datain_height: feature.extents[0] })?;
        program.push(cna::DataSize1 { datain_channel_real: feature.real - 1, datain_channel: feature.slots })?;
        program.push(cna::DataSize2 { dataout_width: output.extents[1] })?;
        let dataout_atomics = output.extents[0] * output.extents[1];
        program.push(cna::DataSize3 { dataout_atomics, ..Default::default() })?;
        program.push(cna::WeightSize0 { weight_bytes: kernel.bytes })?;
        program.push(cna::WeightSize1 { weight_bytes_per_kernel: kernel.kernel_bytes })?;
        let weight_kernels = match self.kind {
            Kind::Direct => output.slots,
            Kind::Depthwise => 1,
        };
        program.push(cna::WeightSize2 {
            weight_width: kernel.extents[1],
            weight_height: kernel.extents[0],
            weight_kernels,
        })?;
        // CAST: at most the twelve banks of CBUF.
        let (weight_bank, data_bank) = (banks.weights as u32, banks.data as u32);
        let (data_reuse, weight_reuse) = (self.reuse.features, self.reuse.weights);
        program.push(cna::CbufCon0 { weight_reuse, data_reuse, weight_bank, data_bank, ..Default::default() })?;
        program.push(cna::CbufCon1 { data_entries: feature.entries })
    }

    /// The input converter, bypassed; and the fully-connected mode, unused.
    fn input_converter(&self, program: &mut Program) -> Result<(), FieldError> {
        program.push(cna::CvtCon0 { data_sign: true, cvt_type: true, cvt_bypass: true, ..Default::default() })?;
        program.push(cna::CvtCon1 { cvt_scale0: 1, cvt_offset0: 0 })?;
        program.push(cna::CvtCon2 { cvt_scale1: 1, cvt_offset1: 0 })?;
        program.push(cna::CvtCon3 { cvt_scale2: 1, cvt_offset2: 0 })?;
        program.push(cna::CvtCon4 { cvt_scale3: 1, cvt_offset3: 0 })?;
        program.push(cna::FcCon0::default())?;
        program.push(cna::FcCon1::default())
    }

    /// Padding, and where features and weights are.
    fn fetch(&self, program: &mut Program, bases: &Bases) -> Result<(), FieldError> {
        let feature = &self.feature;
        let [rows, columns] = feature.extents;
        program.push(cna::PadCon0 { pad_left: feature.pad_left, pad_top: feature.pad_top })?;
        program.push(cna::FeatureDataAddr { feature_base_addr: bases.dma(feature.place) })?;
        program.push(cna::FcCon2::default())?;
        program.push(cna::DmaCon0 { ov4k_bypass: false, weight_burst_len: BURST, data_burst_len: BURST })?;
        // Rows of a cube are read in groups of four; the surface stride is what a plane has beside the first group.
        let cube = (4 * columns, feature.pitch.wrapping_sub(4 * columns));
        let (line_stride, surf_stride) = feature.host_rows.map_or(cube, |atoms| (atoms, 0));
        program.push(cna::DmaCon1 { line_stride })?;
        program.push(cna::DmaCon2 { surf_stride })?;
        program.push(cna::FcDataSize0 { dma_width: columns, dma_height: rows })?;
        program.push(cna::FcDataSize1 { dma_channel: feature.slots })?;
        program.push(cna::DcompCtrl::default())?;
        program.push(cna::DcompRegnum::default())?;
        program.push(cna::DcompAddr0 { decompress_addr0: bases.dma(self.kernel.place) })?;
        program.push(cna::DcompAmount0::default())?;
        program.push(cna::DcompAmount1::default())?;
        program.push(cna::DcompAmount2::default())?;
        program.push(cna::DcompAmount3::default())?;
        program.push(cna::DcompAmount4::default())?;
        program.push(cna::DcompAmount5::default())?;
        program.push(cna::DcompAmount6::default())?;
        program.push(cna::DcompAmount7::default())?;
        program.push(cna::DcompAmount8::default())?;
        program.push(cna::DcompAmount9::default())?;
        program.push(cna::DcompAmount10::default())?;
        program.push(cna::DcompAmount11::default())?;
        program.push(cna::DcompAmount12::default())?;
        program.push(cna::DcompAmount13::default())?;
        program.push(cna::DcompAmount14::default())?;
        program.push(cna::DcompAmount15::default())?;
        program.push(cna::CvtCon5::default())?;
        program.push(cna::PadCon1 { pad_value: feature.pad_value })
    }

    fn accumulator(&self, program: &mut Program) -> Result<(), FieldError> {
        let [rows, columns] = self.output.extents;
        program.push(core::MiscCfg {
            soft_gating: 0,
            proc_precision: self.precision(),
            dw_en: self.kind == Kind::Depthwise,
            qd_en: self.datapath().qd_en,
        })?;
        program.push(core::DataoutSize0 { dataout_height: rows - 1, dataout_width: columns - 1 })?;
        program.push(core::DataoutSize1 { dataout_channel: self.output.slots - 1 })?;
        program.push(core::ClipTruncate::default())?;
        program.push(core::Unnamed3030::default())
    }

    /// The path of the data through the DPU, and where it goes.
    fn writer(&self, program: &mut Program, bases: &Bases) -> Result<(), FieldError> {
        let output = &self.output;
        let [rows, columns] = output.extents;
        let Datapath { sums, results, .. } = self.datapath();
        program.push(dpu::FeatureModeCfg {
            burst_len: BURST,
            conv_mode: self.conv_mode(),
            // To memory. SOURCE: npu-spec 1.8.
            output_mode: 2,
            ..Default::default()
        })?;
        program.push(dpu::DataFormat {
            out_precision: results,
            in_precision: sums,
            // Negative values have a shift of their own. SOURCE: npu-spec 5.5 [HW].
            bs_mul_shift_value_neg: self.bs_shift(),
            proc_precision: sums,
            ..Default::default()
        })?;
        program.push(dpu::OffsetPend::default())?;
        program.push(dpu::DstBaseAddr { dst_base_addr: bases.dma(output.place) })?;
        program.push(dpu::DstSurfStride { dst_surf_stride: output.pitch })?;
        program.push(dpu::DataCubeWidth { width: columns - 1 })?;
        program.push(dpu::DataCubeHeight { minmax_ctl: 0, height: rows - 1 })?;
        program.push(dpu::DataCubeNotchAddr { notch_addr_1: output.notch, notch_addr_0: output.notch })?;
        program.push(dpu::DataCubeChannel { orig_channel: output.slots - 1, channel: output.slots - 1 })
    }

    fn bias_and_scale(&self, program: &mut Program) -> Result<(), FieldError> {
        let relu = if self.addend.is_none() { self.relu() } else { Relu::OFF };
        let (has_bias, has_scale) = match self.arithmetic {
            Arithmetic::Int8 { .. } => (true, true),
            Arithmetic::Fp16 { bias, .. } => (bias.is_some(), false),
            Arithmetic::Raw { .. } => (false, false),
        };
        program.push(dpu::BsCfg {
            bs_alu_algo: if has_bias { AluAlgo::Add } else { AluAlgo::default() },
            bs_alu_src: has_bias,
            bs_relux_en: relu.limited,
            bs_relu_bypass: !relu.on,
            bs_mul_prelu: false,
            bs_mul_bypass: !has_scale,
            bs_alu_bypass: !has_bias,
            bs_bypass: !(has_bias || has_scale || relu.on),
        })?;
        program.push(dpu::BsAluCfg::default())?;
        program.push(dpu::BsMulCfg {
            bs_mul_operand: 0,
            bs_mul_shift_value: self.bs_shift(),
            bs_truncate_src: false,
            bs_mul_src: has_scale,
        })?;
        program.push(dpu::BsReluxCmpValue { bs_relux_cmp_dat: relu.most })?;
        let size_e = self.datapath().atoms - 1;
        let (od_bypass, ow_src, ow_op) = self.compensation();
        program.push(dpu::BsOwCfg {
            size_e_2: size_e,
            size_e_1: size_e,
            size_e_0: size_e,
            od_bypass,
            ow_src,
            ..Default::default()
        })?;
        program.push(dpu::BsOwOp { ow_op })?;
        let [rows, columns] = self.output.extents;
        program.push(dpu::WdmaSize0 { channel_wdma: self.output.slots - 1, ..Default::default() })?;
        program.push(dpu::WdmaSize1 { height_wdma: rows - 1, width_wdma: columns - 1 })?;
        program.push(dpu::BnCfg {
            bn_relu_bypass: true,
            bn_mul_bypass: true,
            bn_alu_bypass: true,
            bn_bypass: true,
            ..Default::default()
        })?;
        program.push(dpu::BnAluCfg::default())?;
        program.push(dpu::BnMulCfg::default())?;
        program.push(dpu::BnReluxCmpValue::default())
    }

    fn element_wise(&self, program: &mut Program) -> Result<(), FieldError> {
        let Some(addend) = &self.addend else {
            program.push(dpu::EwCfg {
                ew_relu_bypass: true,
                ew_op_cvt_bypass: true,
                ew_lut_bypass: true,
                ew_op_bypass: true,
                ew_bypass: true,
                ..Default::default()
            })?;
            program.push(dpu::EwCvtOffsetValue::default())?;
            program.push(dpu::EwCvtScaleValue { ew_op_cvt_scale: 1, ..Default::default() })?;
            return program.push(dpu::EwReluxCmpValue::default());
        };
        let relu = self.relu();
        program.push(dpu::EwCfg {
            ew_cvt_type: self.is_integer(),
            ew_data_mode: EwDataMode::PerPixel,
            edata_size: self.element_size(),
            ew_alu_algo: AluAlgo::Add,
            ew_relux_en: relu.limited,
            ew_relu_bypass: !relu.on,
            ew_lut_bypass: true,
            ew_op_src: true,
            ..Default::default()
        })?;
        program.push(dpu::EwCvtOffsetValue { ew_op_cvt_offset: addend.offset })?;
        program.push(dpu::EwCvtScaleValue {
            ew_truncate: 0,
            ew_op_cvt_shift: addend.shift,
            ew_op_cvt_scale: addend.scale,
        })?;
        program.push(dpu::EwReluxCmpValue { ew_relux_cmp_dat: relu.most })
    }

    fn output_converter(&self, program: &mut Program) -> Result<(), FieldError> {
        match self.arithmetic {
            Arithmetic::Int8 { requant, .. } => {
                program.push(dpu::OutCvtOffset { out_cvt_offset: requant.offset })?;
                program.push(dpu::OutCvtScale { fp32tofp16_en: false, out_cvt_scale: requant.scale })?;
                program.push(dpu::OutCvtShift {
                    // Half away from zero, as TFLite rounds. SOURCE: npu-spec 5.8 [HW].
                    cvt_round: true,
                    out_cvt_shift: requant.shift,
                    ..Default::default()
                })?;
            }
            Arithmetic::Fp16 { .. } | Arithmetic::Raw { .. } => {
                program.push(dpu::OutCvtOffset::default())?;
                program.push(dpu::OutCvtScale { fp32tofp16_en: self.narrows(), out_cvt_scale: 1 })?;
                program.push(dpu::OutCvtShift::default())?;
            }
        }
        program.push(dpu::EwOpValue0::default())?;
        program.push(dpu::EwOpValue1::default())?;
        program.push(dpu::EwOpValue2::default())?;
        program.push(dpu::EwOpValue3::default())?;
        program.push(dpu::EwOpValue4::default())?;
        program.push(dpu::EwOpValue5::default())?;
        program.push(dpu::EwOpValue6::default())?;
        program.push(dpu::EwOpValue7::default())?;
        program.push(dpu::SurfaceAdd { surf_add: self.datapath().atoms * self.output.pitch })?;
        program.push(dpu::Unnamed40C4::default())
    }

    fn operand_readers(&self, program: &mut Program, bases: &Bases) -> Result<(), FieldError> {
        let [rows, columns] = self.output.extents;
        program.push(dpu_rdma::DataCubeWidth { width: columns - 1 })?;
        program.push(dpu_rdma::DataCubeHeight { ew_line_notch_addr: 0, height: rows - 1 })?;
        program.push(dpu_rdma::DataCubeChannel { channel: self.output.slots - 1 })?;
        let addend = self.addend.as_ref().map(|addend| (bases.dma(addend.place), addend.pitch));
        program.push(dpu_rdma::SrcBaseAddr { src_base_addr: addend.map_or(0, |(dma, _)| dma) })?;
        // Bit 0 operand A, bit 1 operand B, bit 2 operand C. SOURCE: npu-spec 1.9.
        let (brdma_data_use, operands) = match self.arithmetic {
            Arithmetic::Int8 { operands, .. } => (7, Some(operands)),
            Arithmetic::Fp16 { bias, .. } => (u32::from(bias.is_some()), bias),
            Arithmetic::Raw { .. } => (0, None),
        };
        program.push(dpu_rdma::Bcfg { brdma_data_use })?;
        program.push(dpu_rdma::BsBaseAddr { bs_base_addr: operands.map_or(0, |place| bases.dma(place)) })?;
        program.push(dpu_rdma::Ncfg::default())?;
        program.push(dpu_rdma::BnBaseAddr::default())?;
        match addend {
            Some(_) => program.push(dpu_rdma::Ecfg {
                erdma_data_mode: EwDataMode::PerPixel,
                erdma_data_size: self.element_size(),
                ..Default::default()
            })?,
            // QUIRK(Q03): an armed reader without operand hangs.
            None => program.push(dpu_rdma::Ecfg { erdma_disable: true, ..Default::default() })?,
        }
        // The two readers take alternate planes, so each skips the other's. SOURCE: npu-spec 4.7 [INF].
        let (stride, notch) = addend.map_or((0, 0), |(_, pitch)| (pitch, 2 * pitch - rows * columns));
        let second = addend.map_or(0, |(dma, pitch)| dma.wrapping_add(pitch * 16));
        program.push(dpu_rdma::EwBaseAddr { ew_base_addr: second })?;
        program.push(dpu_rdma::EwSurfStride { ew_surf_stride: stride })?;
        program.push(self.reader_mode())?;
        program.push(dpu_rdma::SrcDmaCfg::default())?;
        program.push(dpu_rdma::SurfNotch { surf_notch_addr: notch })?;
        program.push(dpu_rdma::PadCfg::default())?;
        program.push(dpu_rdma::Weight { e_weight: 1, n_weight: 1, b_weight: 1, m_weight: 1 })?;
        program.push(dpu_rdma::EwSurfNotch { ew_surf_notch: notch })
    }

    fn reader_mode(&self) -> dpu_rdma::FeatureModeCfg {
        if self.addend.is_some() {
            return dpu_rdma::FeatureModeCfg {
                in_precision: self.precision(),
                burst_len: BURST,
                // Both readers serve one operand. SOURCE: npu-spec 4.7.
                comb_use: 5,
                proc_precision: self.precision(),
                ..Default::default()
            };
        }
        dpu_rdma::FeatureModeCfg {
            burst_len: BURST,
            // QUIRK(Q02): an armed reader without operand hangs.
            mrdma_disable: true,
            mrdma_fp16tofp32_en: self.narrows(),
            conv_mode: self.conv_mode(),
            ..Default::default()
        }
    }

    fn is_integer(&self) -> bool {
        matches!(self.arithmetic, Arithmetic::Int8 { .. })
    }

    /// SOURCE: npu-spec 3.5, 4.2.
    fn datapath(&self) -> Datapath {
        let atoms = if self.kind == Kind::Depthwise { 4 } else { 2 };
        let same = |precision| Datapath { factors: precision, sums: precision, results: precision, atoms, qd_en: true };
        match self.arithmetic {
            Arithmetic::Int8 { .. } => same(Precision::Int8),
            Arithmetic::Fp16 { .. } => same(Precision::Fp16),
            Arithmetic::Raw { datapath, .. } => datapath,
        }
    }

    fn precision(&self) -> Precision {
        self.datapath().factors
    }

    /// Whether single-precision sums leave as half precision.
    fn narrows(&self) -> bool {
        self.datapath().results == Precision::Fp16
    }

    fn element_size(&self) -> ElementSize {
        if self.is_integer() { ElementSize::Bits8 } else { ElementSize::Bits16 }
    }

    fn conv_mode(&self) -> ConvMode {
        match self.kind {
            Kind::Direct => ConvMode::Direct,
            Kind::Depthwise => ConvMode::Depthwise,
        }
    }

    fn bs_shift(&self) -> u32 {
        match self.arithmetic {
            Arithmetic::Int8 { requant, .. } => requant.bs_shift,
            Arithmetic::Fp16 { .. } | Arithmetic::Raw { .. } => 0,
        }
    }

    /// Bypass, source and constant of the weight zero-point compensation.
    fn compensation(&self) -> (bool, bool, i32) {
        match (&self.arithmetic, self.kind) {
            (Arithmetic::Int8 { compensation: Compensation::Tensor(value), .. }, _) => (false, false, *value),
            (Arithmetic::Int8 { compensation: Compensation::PerChannel, .. }, _) => (false, true, 0),
            (Arithmetic::Fp16 { .. }, Kind::Direct) | (Arithmetic::Raw { .. }, _) => (true, false, 0),
            // Real numbers ignore it; this is what known programs write. SOURCE: npu-spec 4.6.
            (Arithmetic::Fp16 { .. }, Kind::Depthwise) => (false, false, 0x80),
        }
    }

    fn relu(&self) -> Relu {
        match self.arithmetic {
            Arithmetic::Int8 { clamp, .. } => Relu::new(clamp.relu, clamp.most.map(i32::cast_unsigned)),
            Arithmetic::Fp16 { clamp, .. } => Relu::new(clamp.relu, clamp.most.map(f32::to_bits)),
            Arithmetic::Raw { .. } => Relu::OFF,
        }
    }
}

impl Relu {
    const OFF: Self = Self { on: false, limited: false, most: 0 };

    fn new(on: bool, most: Option<u32>) -> Self {
        Self { on, limited: most.is_some(), most: most.unwrap_or(0) }
    }
}

/// The table lookup, unused.
fn no_table(program: &mut Program) -> Result<(), FieldError> {
    program.push(dpu::LutAccessCfg::default())?;
    program.push(dpu::LutAccessData::default())?;
    program.push(dpu::LutCfg::default())?;
    program.push(dpu::LutInfo::default())?;
    program.push(dpu::LutLeStart::default())?;
    program.push(dpu::LutLeEnd::default())?;
    program.push(dpu::LutLoStart::default())?;
    program.push(dpu::LutLoEnd::default())?;
    program.push(dpu::LutLeSlopeScale::default())?;
    program.push(dpu::LutLeSlopeShift::default())?;
    program.push(dpu::LutLoSlopeScale::default())?;
    program.push(dpu::LutLoSlopeShift::default())
}
