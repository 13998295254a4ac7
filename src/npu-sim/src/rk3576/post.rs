//! The DPU: coefficients of every output channel, the output converter, and where atoms of the output go.
//!
//! ```text
//! (sum + A + B · Σx) × C ─▶ shift, saturated to 32 bits ─▶ scale, shift, offset ─▶ saturated to 8 bits
//! ```
//!
//! SOURCE: npu-spec-rk3576 3 [HW]. How the shift of the coefficients rounds is not known; here to nearest, ties to even, as on
//! the RK3588.

use half::f16;
use npu_regs::rk3576::{Path, dpu, dpu_rdma};
use npu_regs::{Block, Register};

use super::conv::{Task, number};
use crate::dpu::{half_away, half_to_even, narrow, saturate};
use crate::fault::{Result, agree, proven};
use crate::memory::{ATOM, Space};
use crate::registers::RegisterFile;

/// Channels of a group of coefficients.
const GROUP: usize = 8;
/// Channels of a group of kernels whose sums lie together.
const WIDE_GROUP: usize = 32;

/// What becomes of sums.
#[derive(Debug)]
pub(super) struct Post {
    path: Path,
    /// Of each channel; those of half precision are bits.
    addends: Vec<u32>,
    compensations: Vec<i16>,
    multipliers: Vec<u16>,
    /// Of values that are not negative, and of the others.
    shifts: [u32; 2],
    offset: i64,
    scale: i64,
    shift: u32,
    half_away: bool,
    destination: u64,
    /// Atoms between planes.
    stride: u64,
    /// Bytes of a result.
    pub(super) element: usize,
    pub(super) bytes_read: u64,
}

/// What the MAC array makes of an output.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    /// The sum of products, and that of the window where coefficients need it.
    Integer {
        products: i64,
        sum: i64,
    },
    Real(f32),
}

/// An atom of the output: a pixel's channels from `channel` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Atom {
    pub(super) pixel: usize,
    pub(super) channel: usize,
    pub(super) dma: u64,
}

impl Post {
    pub(super) fn decode(registers: &RegisterFile, space: &Space, task: &Task) -> Result<Self> {
        let (path, depthwise) = (task.path, task.path == Path::DEPTHWISE);
        let pixels = task.output[0] * task.output[1];
        let stride = number::<dpu::PlaneStride>(registers);
        let planes = if depthwise { 4 } else { 2 };
        // CAST: both are what a register holds.
        let step = ((planes * stride) as u32).wrapping_sub(pixels as u32);
        agree("the step from group to group and the planes", registers.bits(dpu::GroupStep::INFO), step)?;
        proven(stride >= pixels, "output planes that overlap")?;
        proven(!depthwise || stride.is_multiple_of(4), "depthwise output planes that are no multiple of four atoms")?;
        proven(path != Path::WIDE || stride == pixels, "sums of a part of the rows")?;
        let base = registers.bits(dpu_rdma::OperandAddress::INFO);
        let group = if depthwise { 48 } else { 64 };
        let len = task.outputs / GROUP * group;
        // CAST: as above.
        agree("the shift's address", registers.bits(dpu_rdma::ShiftAddress::INFO), base.wrapping_add(len as u32))?;
        let bytes = space.read_vec(Block::DpuRdma, base.into(), len as u64 + 4)?;
        let (groups, shift) = bytes.split_at(len);
        let shift = u32::from_le_bytes([shift[0], shift[1], shift[2], shift[3]]);
        let scale = registers.get::<dpu::OutCvtScale>()?;
        let out_shift = registers.get::<dpu::OutCvtShift>()?;
        let plain = dpu::OutCvtShift {
            cvt_round: out_shift.cvt_round,
            out_cvt_shift: out_shift.out_cvt_shift,
            ..Default::default()
        };
        proven(out_shift == plain && out_shift.out_cvt_shift < 64, "this shift of the output converter")?;
        let mut post = Self {
            path,
            addends: Vec::new(),
            compensations: Vec::new(),
            multipliers: Vec::new(),
            shifts: [shift & 0x3f, shift >> 8 & 0x3f],
            offset: registers.get::<dpu::OutCvtOffset>()?.out_cvt_offset.into(),
            scale: scale.out_cvt_scale.into(),
            shift: out_shift.out_cvt_shift,
            half_away: out_shift.cvt_round,
            destination: registers.bits(dpu::Destination::INFO).into(),
            stride: stride as u64,
            element: match path {
                Path::WIDE => 4,
                Path::HALF => 2,
                _ => 1,
            },
            bytes_read: bytes.len() as u64,
        };
        groups.chunks_exact(group).for_each(|group| post.read(group));
        post.check(scale.fp32tofp16_en, shift)?;
        Ok(post)
    }

    /// Reads the coefficients of eight channels.
    fn read(&mut self, group: &[u8]) {
        let (words, _) = group.as_chunks::<4>();
        let (shorts, _) = group.as_chunks::<2>();
        self.addends.extend(words[..GROUP].iter().map(|word| u32::from_le_bytes(*word)));
        let rest: Vec<u16> = shorts[2 * GROUP..].iter().map(|short| u16::from_le_bytes(*short)).collect();
        // A depthwise group has multipliers alone.
        let (compensations, multipliers) = rest.split_at(rest.len() - GROUP);
        match compensations.is_empty() {
            true => self.compensations.extend([0; GROUP]),
            false => self.compensations.extend(compensations.iter().map(|value| value.cast_signed())),
        }
        self.multipliers.extend(multipliers);
    }

    fn check(&self, narrows: bool, shift: u32) -> Result<()> {
        let half = self.path == Path::HALF;
        agree("FP32TOFP16 and the path", narrows, half)?;
        let identity = self.scale == 1 && self.shift == 0 && self.offset == 0;
        proven(self.path == Path::DIRECT || self.path == Path::DEPTHWISE || identity, "sums that are converted")?;
        proven(!half || shift == 0, "a shift of half precision")?;
        // SOURCE: npu-spec-rk3576 3: the surface stays empty.
        proven(self.multipliers.iter().all(|multiplier| *multiplier != 0), "a multiplier of 0")?;
        proven(!half || self.compensations.iter().all(|value| *value == 0), "compensation of half precision")?;
        proven(self.destination.is_multiple_of(ATOM as u64), "an output whose address is no multiple of 16")
    }

    /// Whether a channel's result needs the sum of its window.
    pub(super) fn compensates(&self, channel: usize) -> bool {
        self.compensations[channel] != 0
    }

    /// The bits of a channel's result.
    pub(super) fn finish(&self, channel: usize, value: Value) -> u32 {
        match value {
            Value::Integer { products, sum } => self.integer(channel, products, sum),
            Value::Real(sum) => {
                let multiplier = f16::from_bits(self.multipliers[channel]).to_f32();
                narrow((sum + f32::from_bits(self.addends[channel])) * multiplier).to_bits().into()
            }
        }
    }

    fn integer(&self, channel: usize, products: i64, sum: i64) -> u32 {
        let addend = i64::from(self.addends[channel].cast_signed());
        let value = products + addend + i64::from(self.compensations[channel]) * sum;
        let product = value * i64::from(self.multipliers[channel].cast_signed());
        let shift = self.shifts[usize::from(product < 0)];
        let scaled = i64::from(saturate(half_to_even(product, shift)));
        if self.path == Path::WIDE {
            // CAST: saturated to 32 bits.
            return (scaled as i32).cast_unsigned();
        }
        let product = scaled * self.scale;
        let rounded = if self.half_away { half_away(product, self.shift) } else { half_to_even(product, self.shift) };
        // CAST: clamped to eight bits.
        ((rounded + self.offset).clamp(i8::MIN.into(), i8::MAX.into()) as i32).cast_unsigned()
    }

    /// Atoms of the output.
    pub(super) fn atoms(&self, task: &Task) -> usize {
        let pixels = task.output[0] * task.output[1];
        match self.path {
            // Of every sixteen channels eight have sums.
            Path::WIDE => task.outputs / WIDE_GROUP * 4 * pixels,
            _ => task.outputs * self.element / ATOM * pixels,
        }
    }

    /// The atom of this index, in the order of the writer.
    pub(super) fn atom(&self, task: &Task, index: usize) -> Atom {
        let pixels = task.output[0] * task.output[1];
        let (plane, at) = (index / pixels, index % pixels);
        if self.path != Path::WIDE {
            let dma = self.destination + (plane as u64 * self.stride + at as u64) * ATOM as u64;
            return Atom { pixel: at, channel: plane * ATOM / self.element, dma };
        }
        // Two planes hold one half of all pixels after the other, of each pixel first one sixteen, then the other.
        let (group, plane) = (plane / 4, plane % 4);
        let step = plane / 2 * pixels + at;
        let channel = group * WIDE_GROUP + step % 2 * 16 + plane % 2 * 4;
        Atom { pixel: step / 2, channel, dma: self.destination + (index * ATOM) as u64 }
    }
}
