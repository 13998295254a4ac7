//! The DPU's writer: where each atom of the output goes.
//!
//! SOURCE: npu-spec 3.5.

use std::ops::Range;

use npu_regs::{Precision, dpu};

use super::Source;
use crate::Fault;
use crate::fault::{Result, agree, proven, simulated};
use crate::memory::ATOM;
use crate::quirks::{Quirk, hang};
use crate::rdma::Extents;
use crate::registers::RegisterFile;

/// Geometry of the output. Strides in atoms.
#[derive(Debug)]
pub(crate) struct Writer {
    base: u64,
    surface_stride: u64,
    group_stride: u64,
    row_stride: u64,
    /// Channels that are written together.
    pub(crate) group: usize,
    /// Bytes of an element.
    pub(crate) element: usize,
    /// Atoms per pixel that are written.
    atoms: usize,
    /// Whole groups.
    pub(crate) groups: usize,
    /// Why the task hangs after it wrote.
    pub(crate) hangs: Option<Hang>,
}

/// A hang that leaves part of the output behind.
#[derive(Clone, Debug)]
pub(crate) enum Hang {
    /// QUIRK(Q7): after all whole groups.
    PartialGroup,
    /// QUIRK(Q8): after the first group of the first row.
    TooManyAtoms,
}

impl From<&Hang> for Fault {
    fn from(kind: &Hang) -> Self {
        hang(match kind {
            Hang::PartialGroup => Quirk::Q7,
            Hang::TooManyAtoms => Quirk::Q8,
        })
    }
}

impl Writer {
    pub(super) fn decode(registers: &RegisterFile, source: Source, extents: Extents) -> Result<Self> {
        let out = registers.get::<dpu::DataFormat>()?.out_precision;
        let config = registers.get::<dpu::BsOwCfg>()?;
        simulated(!config.tp_org_en && config.rgp_cnter == 0, "the transposed writer")?;
        agree("SIZE_E_0 and SIZE_E_1", config.size_e_0, config.size_e_1)?;
        agree("SIZE_E_0 and SIZE_E_2", config.size_e_0, config.size_e_2)?;
        let notch = registers.get::<dpu::DataCubeNotchAddr>()?;
        agree("halves of NOTCH_ADDR", notch.notch_addr_0, notch.notch_addr_1)?;
        let element = bytes(out)?;
        let group = group(source, out)?;
        let (full, programmed) = (group * element / ATOM, config.size_e_0 as usize + 1);
        let mut writer = Self {
            base: registers.get::<dpu::DstBaseAddr>()?.dst_base_addr.into(),
            surface_stride: registers.get::<dpu::DstSurfStride>()?.dst_surf_stride.into(),
            group_stride: registers.get::<dpu::SurfaceAdd>()?.surf_add.into(),
            row_stride: extents.width as u64 + u64::from(notch.notch_addr_0),
            group,
            element,
            // QUIRK(Q10): the other atoms are never written.
            atoms: full.min(programmed),
            groups: extents.channels / group,
            hangs: (programmed > full).then_some(Hang::TooManyAtoms),
        };
        if !extents.channels.is_multiple_of(group) {
            proven(out == Precision::Int8, "output channels that are no whole groups")?;
            writer.hangs = Some(Hang::PartialGroup);
        }
        Ok(writer)
    }

    /// Atoms of a pixel, and the channels of the group in each.
    pub(crate) fn atoms(&self) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let lanes = ATOM / self.element;
        (0..self.atoms).map(move |atom| (atom, atom * lanes..(atom + 1) * lanes))
    }

    /// The rows of the first group that are written before a hang, where that is all.
    pub(crate) fn only_rows(&self) -> Option<Range<usize>> {
        matches!(self.hangs, Some(Hang::TooManyAtoms)).then_some(0..1)
    }

    /// Address of the first atom of a row.
    pub(crate) fn address(&self, group: usize, atom: usize, row: usize) -> u64 {
        let (group, atom, row) = (group as u64, atom as u64, row as u64);
        let atoms = group * self.group_stride + atom * self.surface_stride + row * self.row_stride;
        self.base + atoms * ATOM as u64
    }
}

fn bytes(precision: Precision) -> Result<usize> {
    match precision {
        Precision::Int8 => Ok(1),
        Precision::Int16 | Precision::Fp16 => Ok(2),
        Precision::Int32 | Precision::Fp32 => Ok(4),
        // QUIRK(Q14): nothing is written, so the size does not matter.
        Precision::Tf32 => Ok(4),
        Precision::Bf16 | Precision::Int4 => Err(Fault::Unimplemented("output of this precision")),
    }
}

/// Channels per group: the table of npu-spec 3.5.
fn group(source: Source, out: Precision) -> Result<usize> {
    use Precision::{Bf16, Fp16, Fp32, Int4, Int8, Int16, Int32, Tf32};
    let Source::Convolution { precision, depthwise } = source else {
        return Ok(ATOM / bytes(out)?);
    };
    match (precision, depthwise, out) {
        (Fp16, false, Fp16 | Fp32 | Tf32) => Ok(16),
        (Bf16 | Tf32, false, Fp32) | (Int16, false, Int32) => Ok(16),
        (Int4, false, Int16) => Ok(64),
        (Int8, false, Int8 | Int32 | Fp32 | Tf32) => Ok(32),
        (Int8, true, Int8) => Ok(64),
        (Fp16, true, Fp16) => Ok(32),
        (Int8 | Fp16, true, _) => Err(Fault::Unproven("a depthwise convolution with this output")),
        (Int8, false, Int16) => Err(Fault::Unimplemented("16-bit integer output of a convolution")),
        _ => Err(Fault::Unproven("a convolution with this output")),
    }
}
