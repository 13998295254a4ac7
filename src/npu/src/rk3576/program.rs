//! The register program of a convolution, in the order in which known programs have it.
//!
//! SOURCE: npu-spec-rk3576 2 [DUMP, HW]. It counts 139 writes and names 136; three that it says are 0 are left as they are.

use npu_regs::rk3576::{CBUF_MODE, CHAIN, NO_ELEMENT, Path, VERBATIM, cna, core, dpu, dpu_rdma};
use npu_regs::{BlockMask, FieldError, Precision, Program, Register, RegisterInfo};
use npu_regs::{cna as shared_cna, core as shared_core, dpu as shared_dpu, dpu_rdma as shared_dpu_rdma};

use super::operands;
use crate::emit::{Arithmetic, Bases, ConvTask, Kind};

/// Words of a program.
pub(crate) const WORDS: u32 = 140;

/// A task, and what its registers say of it more than once.
struct Emitter<'a> {
    task: &'a ConvTask,
    bases: &'a Bases,
    path: Path,
    program: Program,
    /// Input rows and columns, output rows and columns, kernel.
    input: [u32; 2],
    output: [u32; 2],
    kernel: [u32; 2],
}

/// The complete program of a task.
///
/// # Errors
/// A value that its register cannot hold.
pub(crate) fn program(task: &ConvTask, bases: &Bases) -> Result<Program, FieldError> {
    let mut emitter = Emitter {
        task,
        bases,
        path: path(task),
        program: Program::new(),
        input: task.feature.extents,
        output: task.output.extents,
        kernel: task.kernel.extents,
    };
    emitter.pointers()?;
    emitter.convolution()?;
    emitter.fetch()?;
    emitter.accumulator()?;
    emitter.writer()?;
    emitter.stages();
    emitter.output_converter()?;
    emitter.readers();
    emitter.program.finish(BlockMask::CONVOLUTION);
    Ok(emitter.program)
}

/// The datapath of a task. The planner makes no others.
fn path(task: &ConvTask) -> Path {
    match (&task.arithmetic, task.kind) {
        (Arithmetic::Int8 { .. }, Kind::Direct) => Path::DIRECT,
        (Arithmetic::Int8 { .. }, Kind::Depthwise) => Path::DEPTHWISE,
        (Arithmetic::Raw { datapath, .. }, _) if datapath.results == Precision::Int32 => Path::WIDE,
        (Arithmetic::Raw { .. } | Arithmetic::Fp16 { .. }, _) => Path::HALF,
    }
}

impl Emitter<'_> {
    fn value<R: Register>(&mut self, value: u32) {
        self.program.push_value(R::INFO, value);
    }

    /// A register that holds the same in every program.
    fn verbatim(&mut self, registers: &[&'static RegisterInfo]) {
        for register in registers {
            let value =
                VERBATIM.iter().find(|(known, _)| known.offset == register.offset).map_or(0, |(_, value)| *value);
            self.program.push_value(register, value);
        }
    }

    fn pointers(&mut self) -> Result<(), FieldError> {
        let (pointer_pp_mode, executer_pp_en, pointer_pp_en) = (true, true, true);
        self.program.push(shared_cna::SPointer {
            pointer_pp_mode,
            executer_pp_en,
            pointer_pp_en,
            ..Default::default()
        })?;
        self.program.push(shared_core::SPointer {
            pointer_pp_mode,
            executer_pp_en,
            pointer_pp_en,
            ..Default::default()
        })?;
        self.program.push(cna::Chain { continues: false, code: CHAIN })?;
        self.program.push(shared_dpu::SPointer {
            pointer_pp_mode,
            executer_pp_en,
            pointer_pp_en,
            ..Default::default()
        })?;
        self.program.push(shared_dpu_rdma::SPointer {
            pointer_pp_mode,
            executer_pp_en,
            pointer_pp_en,
            ..Default::default()
        })
    }

    /// Shape of the convolution, and how CBUF holds its rows.
    fn convolution(&mut self) -> Result<(), FieldError> {
        let (feature, kernel, output) = (&self.task.feature, &self.task.kernel, &self.task.output);
        let ([rows, columns], [out_rows, out_columns], [high, wide]) = (self.input, self.output, self.kernel);
        let (slots, row) = (feature.slots, feature.entries);
        self.value::<cna::Mode>(self.path.mode);
        self.verbatim(&[cna::Grains::INFO]);
        self.program.push(cna::Stride { y: kernel.stride[0], x: kernel.stride[1] })?;
        self.program.push(cna::CbufMode { keep_rows: false, window: true, any: CBUF_MODE })?;
        self.value::<cna::WeightBytes>(kernel.bytes);
        self.value::<cna::KernelBytes>(kernel.kernel_bytes);
        let depthwise = self.task.kind == Kind::Depthwise;
        let kernels = if depthwise { 1 } else { output.slots - 1 };
        self.program.push(cna::Kernel { width: wide - 1, height: high - 1, kernels })?;
        self.program.push(cna::Feature { granules: row * rows, channels: slots - 1 })?;
        self.program.push(cna::Rows { width: columns - 1, height: rows - 1 })?;
        let weights = if depthwise { 8 } else { 2 * slots } * high * wide;
        self.program.push(cna::Step { weights, width: out_columns - 1 })?;
        self.value::<cna::OutputPixels>(out_columns * out_rows - 1);
        self.program.push(cna::Chain { continues: false, code: CHAIN })?;
        self.program.push(cna::Window { row, base: 0 })?;
        self.program.push(cna::Fetch { enable: true, more: 0, base: 0 })?;
        self.program.push(cna::Line { width: columns, granules: row })
    }

    /// The bypassed converter, padding, and where features and weights are.
    fn fetch(&mut self) -> Result<(), FieldError> {
        let (feature, kernel) = (&self.task.feature, &self.task.kernel);
        let [rows, columns] = self.input;
        self.verbatim(&[
            cna::Converter::INFO,
            cna::ConverterScale0::INFO,
            cna::ConverterScale1::INFO,
            cna::ConverterOffset0::INFO,
            cna::ConverterOffset1::INFO,
            cna::ConverterOffset2::INFO,
            cna::Unnamed1060::INFO,
            cna::Unnamed1064::INFO,
            cna::Unnamed1068::INFO,
            cna::Unnamed106C::INFO,
            cna::Unnamed1070::INFO,
            cna::Unnamed1074::INFO,
        ]);
        self.program.push(cna::FetchRows { width: columns - 1, height: rows - 1 })?;
        self.value::<cna::FetchChannels>(feature.slots - 1);
        let trailing = |axis: usize, lead: u32| {
            let span = (self.output[axis] - 1) * kernel.stride[axis] + self.kernel[axis];
            span.saturating_sub(lead + self.input[axis])
        };
        let (bottom, right) = (trailing(0, feature.pad_top), trailing(1, feature.pad_left));
        self.program.push(cna::Pad { right, bottom, left: feature.pad_left, top: feature.pad_top })?;
        // All bytes of the RK3588's pad value are the same.
        let [byte, ..] = feature.pad_value.to_le_bytes();
        self.value::<cna::PadValue>(i32::from(byte.cast_signed()).cast_unsigned());
        self.value::<cna::FeatureAddress>(self.bases.dma(feature.place));
        self.verbatim(&[cna::Bursts::INFO]);
        self.value::<cna::LineStride>(4 * columns);
        self.value::<cna::GroupStride>(feature.pitch);
        self.value::<cna::FetchAtoms>((columns * rows).next_multiple_of(4));
        self.verbatim(&[
            cna::Unnamed1100::INFO,
            cna::Unnamed1104::INFO,
            cna::Unnamed1140::INFO,
            cna::Unnamed1144::INFO,
            cna::Unnamed109C::INFO,
        ]);
        self.value::<cna::WeightAddress>(self.bases.dma(kernel.place));
        self.program.push(cna::Width { width_0: columns - 1, width_1: columns - 1 })
    }

    fn accumulator(&mut self) -> Result<(), FieldError> {
        let [rows, columns] = self.output;
        self.value::<core::Mode>(self.path.core);
        self.program.push(core::Extents { height: rows - 1, width: columns - 1 })?;
        self.value::<core::Channels>(self.task.output.slots - 1);
        self.verbatim(&[core::Unnamed3024::INFO]);
        Ok(())
    }

    fn writer(&mut self) -> Result<(), FieldError> {
        let output = &self.task.output;
        let ([rows, columns], channels) = (self.output, output.slots - 1);
        self.value::<dpu::FeatureMode>(self.path.feature_mode);
        self.value::<dpu::Format>(self.path.format);
        self.value::<dpu::Destination>(self.bases.dma(output.place));
        self.value::<dpu::PlaneStride>(output.pitch);
        self.value::<dpu::Width>(columns - 1);
        self.value::<dpu::Height>(rows - 1);
        self.value::<dpu::Channels>(channels);
        self.program.push(dpu::Writer { channels, code: self.path.writer })?;
        self.program.push(dpu::WriterExtents { height: rows - 1, width: columns - 1 })?;
        self.value::<dpu::WriterMode>(self.path.writer_mode);
        self.value::<dpu::Unnamed4044>(self.path.unnamed_4044);
        Ok(())
    }

    fn stages(&mut self) {
        self.value::<dpu::Bias>(self.path.bias);
        self.verbatim(&[
            dpu::Norm::INFO,
            dpu::Low4048::INFO,
            dpu::High404C::INFO,
            dpu::Low4058::INFO,
            dpu::High405C::INFO,
            dpu::Low406C::INFO,
            dpu::High4070::INFO,
            dpu::Low4074::INFO,
            dpu::High4078::INFO,
            dpu::Low4088::INFO,
            dpu::High408C::INFO,
            dpu::Low40A4::INFO,
            dpu::High40A8::INFO,
            dpu::Element::INFO,
            dpu::Unnamed4080::INFO,
            dpu::Unnamed4084::INFO,
            dpu::Unnamed4090::INFO,
            dpu::Unnamed4094::INFO,
            dpu::Unnamed409C::INFO,
        ]);
    }

    fn output_converter(&mut self) -> Result<(), FieldError> {
        match self.task.arithmetic {
            Arithmetic::Int8 { requant, .. } => {
                self.program.push(dpu::OutCvtOffset { out_cvt_offset: requant.offset })?;
                self.program.push(dpu::OutCvtScale { fp32tofp16_en: false, out_cvt_scale: requant.scale })?;
                // Half away from zero, as TFLite rounds; the bit means the same on both chips.
                let (cvt_round, out_cvt_shift) = (true, requant.shift);
                self.program.push(dpu::OutCvtShift { cvt_round, out_cvt_shift, ..Default::default() })?;
            }
            Arithmetic::Fp16 { .. } | Arithmetic::Raw { .. } => {
                self.program.push(dpu::OutCvtOffset::default())?;
                self.program.push(dpu::OutCvtScale { fp32tofp16_en: self.path == Path::HALF, out_cvt_scale: 1 })?;
                self.program.push(dpu::OutCvtShift::default())?;
            }
        }
        // From the end of a group's planes to the next group.
        let planes = if self.task.kind == Kind::Depthwise { 4 } else { 2 };
        let [rows, columns] = self.output;
        self.value::<dpu::GroupStep>((planes * self.task.output.pitch).wrapping_sub(rows * columns));
        self.verbatim(&[dpu::Unnamed40C0::INFO, dpu::Unnamed40D0::INFO]);
        self.verbatim(dpu::LUT);
        Ok(())
    }

    fn readers(&mut self) {
        let [rows, columns] = self.output;
        let slots = self.task.output.slots;
        let place = match self.task.arithmetic {
            Arithmetic::Int8 { operands, .. } => Some(operands),
            Arithmetic::Fp16 { bias, .. } => bias,
            Arithmetic::Raw { operands, .. } => operands,
        };
        let base = place.map_or(0, |place| self.bases.dma(place));
        self.value::<dpu_rdma::Width>(columns - 1);
        self.value::<dpu_rdma::Height>(rows - 1);
        self.value::<dpu_rdma::Channels>(slots - 1);
        self.value::<dpu_rdma::Operands>(self.path.operands);
        self.value::<dpu_rdma::OperandAddress>(base);
        // CAST: a few thousand slots of at most eight bytes.
        let coefficients = operands::bytes(self.task.kind, slots as usize) as u32;
        self.value::<dpu_rdma::ShiftAddress>(base.wrapping_add(coefficients));
        self.verbatim(&[dpu_rdma::Unnamed5028::INFO]);
        let [integers, reals] = NO_ELEMENT;
        self.value::<dpu_rdma::Element>(if self.path == Path::HALF { reals } else { integers });
        self.value::<dpu_rdma::Mode>(self.path.reader);
    }
}
