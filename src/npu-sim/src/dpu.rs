//! DPU, the post-processor: takes accumulators through its stages and lays the result out in memory.
//!
//! ```text
//! accumulator ─▶ BS (add, multiply, relu) ─▶ BN (multiply, add, relu) ─▶ EW (operand) ─▶ output converter ─▶ writer
//! ```
//!
//! Integer datapaths carry `i32`, floating-point ones `f32`. SOURCE: npu-spec 5.5 to 5.9, 3.5.

mod stage;
mod writer;

use npu_regs::{ConvMode, Precision, dpu, dpu_rdma as rdma};

use crate::fault::{Result, agree, proven, simulated};
use crate::memory::{ATOM, Space, Writes};
use crate::quirks::{Quirk, hang};
use crate::rdma::{Cube, Extents, PerChannel};
use crate::registers::RegisterFile;
pub(crate) use stage::{Stages, half_away, half_to_even, narrow, saturate};
pub(crate) use writer::Writer;

/// Where the DPU's main data comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The MAC array.
    Convolution {
        /// Element type of the features.
        precision: Precision,
        /// Whether it is depthwise.
        depthwise: bool,
    },
    /// Memory.
    Flying,
}

/// A task of the DPU.
#[derive(Debug)]
pub(crate) struct Post {
    pub(crate) extents: Extents,
    pub(crate) stages: Stages,
    pub(crate) writer: Writer,
    /// QUIRK(Q14): nothing is written.
    pub(crate) silent: bool,
    /// Bytes that DPU_RDMA read.
    pub(crate) bytes_read: u64,
}

/// The most channels of an atom.
const LANES: usize = ATOM;

/// A value on its way through the stages.
pub(crate) trait Lane: Copy {
    /// The bits that the writer stores for neighbouring channels, from `channel`, of one pixel.
    fn finish(lanes: &[Self], stages: &Stages, channel: usize, pixel: usize, bits: &mut [u32; LANES]);
}

impl Post {
    /// Decodes the DPU and reads its operands. `readers`: whether DPU_RDMA takes part.
    pub(crate) fn decode(registers: &RegisterFile, space: &Space, source: Source, readers: bool) -> Result<Self> {
        let format = registers.get::<dpu::DataFormat>()?;
        let precisions = [format.in_precision, format.proc_precision, format.out_precision];
        agree("DPU precisions", format.in_precision as u32, format.proc_precision as u32)?;
        check_mode(registers, source)?;
        let extents = extents(registers)?;
        let needs = Needs::decode(registers)?;
        needs.check(registers, source, readers)?;
        if readers {
            extents.check(registers)?;
        }
        let silent = precisions.contains(&Precision::Tf32);
        let per_channel = match needs.per_channel {
            true => PerChannel::read(registers, space, extents.channels)?,
            false => PerChannel::default(),
        };
        let operand = read_operand(registers, space, source, extents, needs.element)?;
        let bytes_read = per_channel.bytes + operand.as_ref().map_or(0, Cube::bytes);
        let stages = Stages::decode(registers, source, extents.channels, per_channel, operand)?;
        let writer = Writer::decode(registers, source, extents)?;
        Ok(Self { extents, stages, writer, silent, bytes_read })
    }

    /// Finishes the rows of one channel group. `values`: `[row, column, channel of the group]`.
    pub(crate) fn emit<V: Lane>(&self, group: usize, rows: std::ops::Range<usize>, values: &[V]) -> Writes {
        let mut writes = Writes::default();
        let (width, lanes) = (self.extents.width, self.writer.group);
        let mut bytes = vec![0; width * ATOM];
        let mut bits = [0; LANES];
        for (row, values) in rows.zip(values.chunks_exact(width * lanes)) {
            for (atom, channels) in self.writer.atoms() {
                let channel = group * lanes + channels.start;
                let pixels = values.chunks_exact(lanes).zip(bytes.chunks_exact_mut(ATOM));
                for (column, (values, atom)) in pixels.enumerate() {
                    V::finish(&values[channels.clone()], &self.stages, channel, row * width + column, &mut bits);
                    store(&bits, self.writer.element, atom);
                }
                writes.push(self.writer.address(group, atom, row), &bytes);
            }
        }
        writes
    }
}

/// The low bytes of `bits` as elements of an atom.
fn store(bits: &[u32; LANES], element: usize, atom: &mut [u8]) {
    match element {
        1 => atom.iter_mut().zip(bits).for_each(|(to, bits)| *to = bits.to_le_bytes()[0]),
        2 => atom.as_chunks_mut().0.iter_mut().zip(bits).for_each(|(to, bits)| {
            let [low, high, ..] = bits.to_le_bytes();
            *to = [low, high];
        }),
        _ => atom.as_chunks_mut().0.iter_mut().zip(bits).for_each(|(to, bits)| *to = bits.to_le_bytes()),
    }
}

fn check_mode(registers: &RegisterFile, source: Source) -> Result<()> {
    let mode = registers.get::<dpu::FeatureModeCfg>()?;
    let flying = source == Source::Flying;
    agree("flying mode", mode.flying_mode, flying)?;
    let depthwise = matches!(source, Source::Convolution { depthwise: true, .. });
    if let Source::Convolution { precision, .. } = source {
        let format = registers.get::<dpu::DataFormat>()?;
        // SOURCE: npu-spec 4.2: what CNA and CORE call tf32 is single precision here.
        let expected = if precision == Precision::Tf32 { Precision::Fp32 } else { precision };
        // QUIRK(Q14): with tf32 anywhere in the DPU nothing is written.
        let silent = [format.in_precision, format.out_precision].contains(&Precision::Tf32);
        proven(silent || format.in_precision == expected, "precisions of CNA and DPU")?;
    }
    agree("depthwise modes of CNA and DPU", depthwise, mode.conv_mode == ConvMode::Depthwise)?;
    simulated(!mode.tp_en && mode.rgp_type == 0 && !mode.nonalign && mode.surf_len == 0, "this DPU feature mode")?;
    proven(mode.output_mode == 2, "an output that does not go to memory")?;
    proven(!mode.comb_use, "COMB_USE in the DPU")?;
    registers.unused::<dpu::OffsetPend>()?;
    registers.unused::<dpu::Unnamed40C4>()?;
    let format = registers.get::<dpu::DataFormat>()?;
    proven(!format.mc_surf_out && format.ew_truncate_neg == 0, "a mode in DPU_DATA_FORMAT")
}

/// Extents of the output, which DPU and writer agree on.
pub(crate) fn extents(registers: &RegisterFile) -> Result<Extents> {
    let height = registers.get::<dpu::DataCubeHeight>()?;
    simulated(height.minmax_ctl == 0, "MINMAX_CTL")?;
    let channel = registers.get::<dpu::DataCubeChannel>()?;
    let extents = Extents {
        width: registers.get::<dpu::DataCubeWidth>()?.width as usize + 1,
        height: height.height as usize + 1,
        channels: channel.channel as usize + 1,
    };
    let (size, area) = (registers.get::<dpu::WdmaSize0>()?, registers.get::<dpu::WdmaSize1>()?);
    agree("channels of DPU and its writer", channel.channel, size.channel_wdma)?;
    agree("widths of DPU and its writer", extents.width as u64 - 1, area.width_wdma)?;
    agree("heights of DPU and its writer", extents.height as u64 - 1, area.height_wdma)?;
    simulated(!size.tp_precision && size.size_c_wdma == 0, "the transposed writer")?;
    Ok(extents)
}

/// Which operands the stages wait for.
#[derive(Debug)]
struct Needs {
    per_channel: bool,
    element: bool,
    /// The BS stage is off.
    bias_bypassed: bool,
}

impl Needs {
    fn decode(registers: &RegisterFile) -> Result<Self> {
        let bs = registers.get::<dpu::BsCfg>()?;
        let multiplier = registers.get::<dpu::BsMulCfg>()?;
        let writer = registers.get::<dpu::BsOwCfg>()?;
        let ew = registers.get::<dpu::EwCfg>()?;
        let addend = !bs.bs_bypass && !bs.bs_alu_bypass && bs.bs_alu_src;
        let factor = !bs.bs_bypass && !bs.bs_mul_bypass && multiplier.bs_mul_src;
        let compensation = !writer.od_bypass && writer.ow_src;
        let use_of = registers.get::<rdma::Bcfg>()?.brdma_data_use;
        let missing = [(addend, 1), (compensation, 2), (factor, 4)].iter().any(|&(on, bit)| on && use_of & bit == 0);
        proven(!missing, "a per-channel operand that is not read")?;
        Ok(Self {
            per_channel: addend || factor || compensation,
            element: !ew.ew_bypass && !ew.ew_op_bypass && ew.ew_op_src,
            bias_bypassed: bs.bs_bypass,
        })
    }

    fn check(&self, registers: &RegisterFile, source: Source, readers: bool) -> Result<()> {
        if !readers {
            return if self.per_channel || self.element { Err(hang(Quirk::Q4)) } else { Ok(()) };
        }
        registers.unused::<rdma::SrcDmaCfg>()?;
        registers.unused::<rdma::PadCfg>()?;
        let mode = registers.get::<rdma::FeatureModeCfg>()?;
        agree("flying modes of DPU and DPU_RDMA", mode.flying_mode, source == Source::Flying)?;
        let element_reader = !registers.get::<rdma::Ecfg>()?.erdma_disable;
        if element_reader && !self.element {
            return Err(hang(Quirk::Q3));
        }
        if source != Source::Flying && !mode.mrdma_disable && !self.element {
            return Err(hang(Quirk::Q2));
        }
        simulated(registers.get::<rdma::Ncfg>()?.nrdma_data_use == 0, "per-channel BN operands")
    }
}

fn read_operand(
    registers: &RegisterFile,
    space: &Space,
    source: Source,
    extents: Extents,
    needed: bool,
) -> Result<Option<Cube>> {
    if !needed {
        return Ok(None);
    }
    let element: u64 = match registers.get::<dpu::EwCfg>()?.edata_size {
        npu_regs::ElementSize::Bits4 => return Err(crate::Fault::Unimplemented("4-bit element-wise operands")),
        npu_regs::ElementSize::Bits8 => 1,
        npu_regs::ElementSize::Bits16 => 2,
        npu_regs::ElementSize::Bits32 => 4,
    };
    // CAST: the codes are small.
    let reader = registers.get::<rdma::Ecfg>()?.erdma_data_size;
    agree("element sizes of DPU and DPU_RDMA", element, 1u64 << (reader as u64).saturating_sub(1))?;
    let read = match source {
        Source::Flying => crate::rdma::read_second,
        Source::Convolution { .. } => crate::rdma::read_fused,
    };
    read(registers, space, extents, element as usize).map(Some)
}

/// QUIRK(Q25): whether the job arms per-channel operands for a bypassed stage of a 32-bit writer.
pub(crate) fn poisons(registers: &RegisterFile) -> Result<bool> {
    let wide = matches!(registers.get::<dpu::DataFormat>()?.out_precision, Precision::Int32 | Precision::Fp32);
    let armed = registers.get::<rdma::Bcfg>()?.brdma_data_use == 7;
    Ok(wide && armed && Needs::decode(registers)?.bias_bypassed)
}
