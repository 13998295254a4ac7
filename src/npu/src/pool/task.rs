//! The register program of a pooling task: 30 words, or 32 for an RK3576. SOURCE: npu-spec 6.1, 6.2; npu-spec-rk3576 6, which
//! counts 31 writes and names 28: the others are left as they are.

use half::f16;
use npu_regs::rk3576::{self, ppu as pads};
use npu_regs::{BlockMask, FieldError, Layout, PoolingMethod, Precision, Program, Register, ppu, ppu_rdma};

use super::PoolKind;
use super::plan::Pass;
use crate::layout::ATOM;
use crate::ops::ElementType;

/// Burst of every known program.
const BURST: u32 = 3;

/// The pad value of a mean on an RK3576, beside a multiple of the zero point. SOURCE: npu-spec-rk3576 6.
const MEAN_PAD: u32 = 0x0007_0000;

/// One pass over some planes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolTask<'a> {
    pub(crate) element: ElementType,
    pub(crate) kind: PoolKind,
    pub(crate) pass: &'a Pass,
    pub(crate) planes: usize,
    /// Atoms between planes of the input and of the output.
    pub(crate) pitches: [usize; 2],
    pub(crate) source: u32,
    pub(crate) destination: u32,
}

impl PoolTask<'_> {
    /// The complete program for the chip of `layout`.
    ///
    /// # Errors
    /// A value that its register cannot hold.
    pub(crate) fn program(&self, layout: Layout) -> Result<Program, FieldError> {
        let mut program = Program::new();
        let (pointer_pp_mode, executer_pp_en, pointer_pp_en) = (true, true, true);
        program.push(ppu::SPointer { pointer_pp_mode, executer_pp_en, pointer_pp_en, ..Default::default() })?;
        program.push(ppu_rdma::SPointer { pointer_pp_mode, executer_pp_en, pointer_pp_en, ..Default::default() })?;
        self.extents(&mut program)?;
        self.window(&mut program)?;
        self.pads(&mut program, layout)?;
        self.writer(&mut program, layout)?;
        self.reader(&mut program, layout)?;
        program.finish(BlockMask::POOLING);
        Ok(program)
    }

    fn extents(&self, program: &mut Program) -> Result<(), FieldError> {
        let [height, width] = self.pass.input.map(word);
        let [rows, columns] = self.pass.output.map(word);
        let channels = self.channels();
        program.push(ppu::DataCubeInWidth { cube_in_width: width - 1 })?;
        program.push(ppu::DataCubeInHeight { cube_in_height: height - 1 })?;
        program.push(ppu::DataCubeInChannel { cube_in_channel: channels - 1 })?;
        program.push(ppu::DataCubeOutWidth { cube_out_width: columns - 1 })?;
        program.push(ppu::DataCubeOutHeight { cube_out_height: rows - 1 })?;
        program.push(ppu::DataCubeOutChannel { cube_out_channel: channels - 1 })
    }

    fn window(&self, program: &mut Program) -> Result<(), FieldError> {
        let pooling_method = match self.kind {
            PoolKind::Max => PoolingMethod::Max,
            PoolKind::Min => PoolingMethod::Min,
            PoolKind::Mean | PoolKind::MeanInside => PoolingMethod::Average,
        };
        program.push(ppu::OperationModeCfg { flying_mode: true, pooling_method, ..Default::default() })?;
        let ([height, width], stride) = (self.pass.kernel, self.pass.stride.map(word));
        program.push(ppu::PoolingKernelCfg {
            kernel_stride_height: stride[0] - 1,
            kernel_stride_width: stride[1] - 1,
            kernel_height: word(height) - 1,
            kernel_width: word(width) - 1,
        })?;
        program.push(ppu::RecipKernelWidth { recip_kernel_width: self.reciprocal(width) })?;
        program.push(ppu::RecipKernelHeight { recip_kernel_height: self.reciprocal(height) })?;
        let padding = &self.pass.padding;
        program.push(ppu::PoolingPaddingCfg {
            pad_bottom: word(padding.bottom),
            pad_right: word(padding.right),
            pad_top: word(padding.top),
            pad_left: word(padding.left),
        })
    }

    fn pads(&self, program: &mut Program, layout: Layout) -> Result<(), FieldError> {
        if layout == Layout::Rk3588 {
            program.push(ppu::PaddingValue1Cfg { pad_value_0: self.outside() })?;
            return program.push(ppu::PaddingValue2Cfg::default());
        }
        // A mean has no padding there, and its registers what known programs put beside the zero point's multiples.
        let value = if self.kind.is_mean() { MEAN_PAD } else { self.outside() };
        for register in [pads::Pad1::INFO, pads::Pad2::INFO, pads::Pad3::INFO, pads::Pad4::INFO] {
            program.push_value(register, value);
        }
        Ok(())
    }

    fn writer(&self, program: &mut Program, layout: Layout) -> Result<(), FieldError> {
        let atoms = word(self.pitches[1]);
        program.push(ppu::DstBaseAddr { dst_base_addr: self.destination >> 4 })?;
        program.push(ppu::DstSurfStride { dst_surf_stride: atoms })?;
        let proc_precision = if self.element.is_integer() { Precision::Int8 } else { Precision::Fp16 };
        program.push(ppu::DataFormat { index_add: atoms, dpu_flyin: false, proc_precision })?;
        let burst_len = if layout == Layout::Rk3588 { BURST } else { 0 };
        program.push(ppu::MiscCtrl { burst_len, ..Default::default() })
    }

    fn reader(&self, program: &mut Program, layout: Layout) -> Result<(), FieldError> {
        let [height, width] = self.pass.input.map(word);
        program.push(ppu_rdma::CubeInWidth { cube_in_width: width - 1 })?;
        program.push(ppu_rdma::CubeInHeight { cube_in_height: height - 1 })?;
        program.push(ppu_rdma::CubeInChannel { cube_in_channel: self.channels() - 1 })?;
        program.push(ppu_rdma::SrcBaseAddr { src_base_addr: self.source })?;
        program.push(ppu_rdma::SrcLineStride { src_line_stride: width })?;
        program.push(ppu_rdma::SrcSurfStride { src_surf_stride: word(self.pitches[0]) })?;
        if layout == Layout::Rk3576 {
            program.push_value(rk3576::ppu_rdma::Format::INFO, rk3576::POOL_FORMAT);
            return Ok(());
        }
        // The reader's code of 8-bit integers is 1. SOURCE: npu-spec 6.1 [HW].
        let in_precision = if self.element.is_integer() { 1 } else { 2 };
        program.push(ppu_rdma::DataFormat { in_precision })
    }

    fn channels(&self) -> u32 {
        word(self.planes * ATOM / self.element.bytes())
    }

    /// What a cell outside holds, so that it never wins. SOURCE: npu-spec 6.2; integers have 19 bits there.
    fn outside(&self) -> u32 {
        match (self.kind, self.element.is_integer()) {
            (PoolKind::Max, true) => 0x7_ff80,
            (PoolKind::Min, true) => 0x7f,
            (PoolKind::Max, false) => f16::NEG_INFINITY.to_bits().into(),
            (PoolKind::Min, false) => f16::INFINITY.to_bits().into(),
            (PoolKind::Mean | PoolKind::MeanInside, _) => 0,
        }
    }

    fn reciprocal(&self, extent: usize) -> u32 {
        if !self.kind.is_mean() {
            return 0;
        }
        if self.element.is_integer() {
            return 0x1_0000 / word(extent);
        }
        // CAST: at most 16.
        f16::from_f32(65536.0 / extent as f32).to_bits().into()
    }
}

/// An extent that the plan has checked.
fn word(extent: usize) -> u32 {
    u32::try_from(extent).unwrap_or(u32::MAX)
}
