//! PPU and PPU_RDMA, planar pooling: every output is the mean, the largest or the smallest element of a window of its plane.
//!
//! ```text
//! PPU_RDMA ─▶ planes of atoms ─▶ numbers that compare and add as integers ─▶ windows ─▶ planes of atoms
//! ```
//!
//! Proven are the two datapaths of the known programs, half precision and 8-bit integers. Numbers that no known test shows,
//! a NaN or the mean of an infinity, are refused. SOURCE: npu-spec 6.

use std::ops::Range;

use half::f16;
use npu_regs::{Block, PoolingMethod, Precision, ppu, ppu_rdma as rdma};
use rayon::prelude::*;

use crate::controller::{Core, Effect};
use crate::conv::{MOST_ELEMENTS, allow};
use crate::cost::Work;
use crate::fault::{Result, agree, proven};
use crate::memory::{ATOM, Space, Writes};
use crate::registers::RegisterFile;

/// Burst of every known program.
const BURST: u32 = 3;
/// Fraction bits of the product of both reciprocals.
const RECIPROCAL_BITS: u32 = 32;
/// Fraction bits of half precision's smallest number.
const HALF_BITS: u32 = 24;
/// Bits of the pad value of integers.
const INTEGER_PAD_BITS: u32 = 19;

/// Element type of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    I8,
    F16,
}

/// A pooling task. Axes are `[rows, columns]`.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) element: Element,
    pub(crate) method: PoolingMethod,
    pub(crate) input: [usize; 2],
    pub(crate) output: [usize; 2],
    pub(crate) planes: usize,
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    /// Before the first row and column.
    pub(crate) pad: [usize; 2],
    /// What cells outside the input hold, as [`Element::number`] has it.
    pub(crate) outside: i64,
    /// Of the kernel, as whole numbers over 65536.
    pub(crate) reciprocals: [i64; 2],
    pub(crate) source: u64,
    /// In atoms.
    pub(crate) line_stride: u64,
    pub(crate) surface_stride: u64,
    /// In atoms.
    pub(crate) destination: u64,
    pub(crate) destination_stride: u64,
}

/// Computes a task. `left`: the largest work that is allowed.
pub(crate) fn run(task: &Core, space: &Space, left: u64) -> Result<Effect> {
    Pool::decode(&task.registers)?.run(space, left)
}

impl Pool {
    /// Computes the task. `left`: the largest work that is allowed.
    pub(crate) fn run(&self, space: &Space, left: u64) -> Result<Effect> {
        let [inputs, outputs, window] = [self.input, self.output, self.kernel].map(|[rows, columns]| rows * columns);
        let elements = |pixels: usize| (self.planes * pixels * self.element.lanes()) as u64;
        // Extents have 13 bits each, the channels too, kernels 4: together 47.
        allow(elements(outputs) * window as u64, left)?;
        allow(elements(inputs.max(outputs)), left.min(MOST_ELEMENTS))?;
        let planes = (0..self.planes).into_par_iter().map(|plane| self.plane(space, plane));
        let writes = planes.collect::<Result<Vec<_>>>()?;
        let bytes = |pixels: usize| (self.planes * pixels * ATOM) as u64;
        let work = Work { macs: 0, macs_per_cycle: 1, bytes_read: bytes(inputs), bytes_written: bytes(outputs) };
        Ok(Effect { writes, work, ..Effect::default() })
    }

    /// Refuses what fits neither the windows nor the planes. `after`: padding behind the last row and column.
    pub(crate) fn checked(self, channels: usize, after: [usize; 2]) -> Result<Self> {
        for (axis, after) in after.into_iter().enumerate() {
            let room = (self.pad[axis] + self.input[axis] + after).checked_sub(self.kernel[axis]);
            let fit = room.map_or(0, |room| room / self.stride[axis] + 1);
            agree("output extents of the PPU and windows in its padded input", self.output[axis] as u64, fit as u64)?;
        }
        proven(channels.is_multiple_of(self.element.lanes()), "pooled channels that are no whole planes")?;
        proven(self.source.is_multiple_of(ATOM as u64), "a pooled cube whose address is no multiple of 16")?;
        Ok(self)
    }

    fn decode(registers: &RegisterFile) -> Result<Self> {
        check_mode(registers)?;
        let method = registers.get::<ppu::OperationModeCfg>()?.pooling_method;
        let element = Element::decode(registers, method)?;
        let (kernel, stride) = window(registers)?;
        let padding = registers.get::<ppu::PoolingPaddingCfg>()?;
        let pad = [padding.pad_top as usize, padding.pad_left as usize];
        let after = [padding.pad_bottom as usize, padding.pad_right as usize];
        let (input, output, channels) = extents(registers)?;
        let padded = pad.into_iter().chain(after).any(|cells| cells > 0);
        Self {
            element,
            method,
            input,
            output,
            planes: channels / element.lanes(),
            kernel,
            stride,
            pad,
            outside: element.outside(registers, method, padded)?,
            reciprocals: element.reciprocals(registers, method, kernel)?,
            source: registers.get::<rdma::SrcBaseAddr>()?.src_base_addr.into(),
            line_stride: registers.get::<rdma::SrcLineStride>()?.src_line_stride.into(),
            surface_stride: registers.get::<rdma::SrcSurfStride>()?.src_surf_stride.into(),
            destination: registers.get::<ppu::DstBaseAddr>()?.dst_base_addr.into(),
            destination_stride: check_strides(registers)?.into(),
        }
        .checked(channels, after)
    }

    /// Computes one plane.
    fn plane(&self, space: &Space, plane: usize) -> Result<Writes> {
        let numbers = self.read(space, plane)?;
        let lanes = self.element.lanes();
        let mut writes = Writes::default();
        let [rows, columns] = self.output;
        let mut bytes = vec![0; columns * ATOM];
        for row in 0..rows {
            for (column, atom) in bytes.chunks_exact_mut(ATOM).enumerate() {
                for (lane, element) in atom.chunks_exact_mut(ATOM / lanes).enumerate() {
                    self.element.store(self.result(&numbers, [row, column], lane)?, element);
                }
            }
            let atoms = self.destination + plane as u64 * self.destination_stride + (row * columns) as u64;
            writes.push(atoms * ATOM as u64, &bytes);
        }
        Ok(writes)
    }

    /// The numbers of a plane, `[row, column, lane]`.
    fn read(&self, space: &Space, plane: usize) -> Result<Vec<i64>> {
        let [rows, columns] = self.input;
        let mut numbers = Vec::with_capacity(rows * columns * self.element.lanes());
        for row in 0..rows {
            let atoms = plane as u64 * self.surface_stride + row as u64 * self.line_stride;
            let bytes = space.read_vec(Block::PpuRdma, self.source + atoms * ATOM as u64, (columns * ATOM) as u64)?;
            for element in bytes.chunks_exact(ATOM / self.element.lanes()) {
                numbers.push(self.element.number(element, self.method)?);
            }
        }
        Ok(numbers)
    }

    /// Bits of an output.
    fn result(&self, numbers: &[i64], at: [usize; 2], lane: usize) -> Result<u16> {
        let [(rows, outside_rows), (columns, outside_columns)] = [0, 1].map(|axis| self.inside(axis, at[axis]));
        let lanes = self.element.lanes();
        let width = self.input[1];
        let cells = rows.flat_map(|row| columns.clone().map(move |column| (row * width + column) * lanes + lane));
        let inside = cells.map(|cell| numbers[cell]);
        let padded = (outside_rows || outside_columns).then_some(self.outside);
        match self.method {
            // Every window has a cell, inside or outside.
            PoolingMethod::Max => Ok(self.element.bits(inside.chain(padded).max().unwrap_or(self.outside))),
            PoolingMethod::Min => Ok(self.element.bits(inside.chain(padded).min().unwrap_or(self.outside))),
            // What is outside counts as zeros.
            PoolingMethod::Average => self.element.mean(inside.sum(), self.reciprocals),
        }
    }

    /// The cells of an axis that a window has inside the input, and whether it has others.
    fn inside(&self, axis: usize, output: usize) -> (Range<usize>, bool) {
        let first = output * self.stride[axis];
        let end = (first + self.kernel[axis]).saturating_sub(self.pad[axis]).min(self.input[axis]);
        let start = first.saturating_sub(self.pad[axis]).min(end);
        (start..end, end - start < self.kernel[axis])
    }
}

/// Refuses what no known program does.
fn check_mode(registers: &RegisterFile) -> Result<()> {
    let mode = registers.get::<ppu::OperationModeCfg>()?;
    proven(
        mode.flying_mode && !registers.get::<ppu::DataFormat>()?.dpu_flyin,
        "pooling that the reader does not feed",
    )?;
    proven(!mode.index_en && mode.notch_addr == 0 && mode.use_cnt == 0, "a mode in PPU_OPERATION_MODE_CFG")?;
    let plain = ppu::MiscCtrl { burst_len: BURST, ..Default::default() };
    proven(registers.get::<ppu::MiscCtrl>()? == plain, "a mode in PPU_MISC_CTRL")?;
    registers.unused::<ppu::PaddingValue2Cfg>()
}

/// The stride of the result's planes, which is said twice.
pub(crate) fn check_strides(registers: &RegisterFile) -> Result<u32> {
    let stride = registers.get::<ppu::DstSurfStride>()?.dst_surf_stride;
    let step = registers.get::<ppu::DataFormat>()?.index_add;
    agree("surface stride and index step of the PPU", stride, step)?;
    Ok(stride)
}

/// Kernel and stride.
pub(crate) fn window(registers: &RegisterFile) -> Result<([usize; 2], [usize; 2])> {
    let window = registers.get::<ppu::PoolingKernelCfg>()?;
    let kernel = [window.kernel_height, window.kernel_width].map(|extent| extent as usize + 1);
    let stride = [window.kernel_stride_height, window.kernel_stride_width].map(|extent| extent as usize + 1);
    Ok((kernel, stride))
}

/// Input, output and channels, on which both blocks agree.
pub(crate) fn extents(registers: &RegisterFile) -> Result<([usize; 2], [usize; 2], usize)> {
    let [height, width, channels] = [
        registers.get::<ppu::DataCubeInHeight>()?.cube_in_height,
        registers.get::<ppu::DataCubeInWidth>()?.cube_in_width,
        registers.get::<ppu::DataCubeInChannel>()?.cube_in_channel,
    ];
    agree("heights of PPU and PPU_RDMA", height, registers.get::<rdma::CubeInHeight>()?.cube_in_height)?;
    agree("widths of PPU and PPU_RDMA", width, registers.get::<rdma::CubeInWidth>()?.cube_in_width)?;
    agree("channels of PPU and PPU_RDMA", channels, registers.get::<rdma::CubeInChannel>()?.cube_in_channel)?;
    agree("channels in and out of the PPU", channels, registers.get::<ppu::DataCubeOutChannel>()?.cube_out_channel)?;
    let output = [
        registers.get::<ppu::DataCubeOutHeight>()?.cube_out_height,
        registers.get::<ppu::DataCubeOutWidth>()?.cube_out_width,
    ];
    let extent = |less_one: u32| less_one as usize + 1;
    Ok(([height, width].map(extent), output.map(extent), extent(channels)))
}

impl Element {
    /// SOURCE: npu-spec 6.1 [HW]: which precision pairs pool right.
    fn decode(registers: &RegisterFile, method: PoolingMethod) -> Result<Self> {
        let precision = registers.get::<ppu::DataFormat>()?.proc_precision;
        match (precision, registers.get::<rdma::DataFormat>()?.in_precision) {
            (Precision::Fp16, 2) => Ok(Self::F16),
            (Precision::Int8, 1) => Ok(Self::I8),
            (Precision::Int8, 2) if method != PoolingMethod::Min => Ok(Self::I8),
            _ => Err(crate::Fault::Unproven("this pair of pooling precisions")),
        }
    }

    pub(crate) fn lanes(self) -> usize {
        match self {
            Self::I8 => ATOM,
            Self::F16 => ATOM / 2,
        }
    }

    /// A pad value of integers.
    pub(crate) fn integer_outside(value: u32) -> Result<i64> {
        let unused = u32::BITS - INTEGER_PAD_BITS;
        let number = (value << unused).cast_signed() >> unused;
        let fits = value >> INTEGER_PAD_BITS == 0 && i8::try_from(number).is_ok();
        proven(fits, "a pad value beyond 8 bits").map(|()| number.into())
    }

    /// The pad value. Of integers it is the low 19 bits, of half precision the low 16. SOURCE: npu-spec 6.2.
    fn outside(self, registers: &RegisterFile, method: PoolingMethod, padded: bool) -> Result<i64> {
        let value = registers.get::<ppu::PaddingValue1Cfg>()?.pad_value_0;
        if !padded {
            return Ok(0);
        }
        if method == PoolingMethod::Average {
            return proven(value == 0, "a mean with a pad value").map(|()| 0);
        }
        match self {
            Self::I8 => Self::integer_outside(value),
            Self::F16 => {
                let bytes = u16::try_from(value).unwrap_or(0).to_le_bytes();
                proven(value <= u16::MAX.into(), "a pad value beyond 16 bits")?;
                self.number(&bytes, method)
            }
        }
    }

    /// The reciprocals of `[height, width]`. SOURCE: npu-spec 6.2: of integers ⌊65536/k⌋, of half precision 65536/k as such.
    pub(crate) fn reciprocals(
        self,
        registers: &RegisterFile,
        method: PoolingMethod,
        kernel: [usize; 2],
    ) -> Result<[i64; 2]> {
        if method != PoolingMethod::Average {
            return Ok([0; 2]);
        }
        proven(!kernel.contains(&1), "a mean over a kernel extent of 1")?;
        let [height, width] = [
            registers.get::<ppu::RecipKernelHeight>()?.recip_kernel_height,
            registers.get::<ppu::RecipKernelWidth>()?.recip_kernel_width,
        ];
        let whole = |code: u32| -> Result<i64> {
            match self {
                Self::I8 => Ok(code.into()),
                Self::F16 => {
                    let value = f16::from_bits(u16::try_from(code).unwrap_or(u16::MAX)).to_f32();
                    proven(
                        value > 0.0 && value.is_finite() && value.fract() == 0.0,
                        "a reciprocal that is no whole number",
                    )?;
                    // CAST: a whole number of 16 bits.
                    Ok(value as i64)
                }
            }
        };
        Ok([whole(height)?, whole(width)?])
    }

    /// An element as a number that compares, or adds, as the element does.
    fn number(self, element: &[u8], method: PoolingMethod) -> Result<i64> {
        let half = match *element {
            [low, high] => f16::from_le_bytes([low, high]),
            // One byte.
            _ => return Ok(element[0].cast_signed().into()),
        };
        proven(!half.is_nan(), "pooling of a NaN")?;
        if method == PoolingMethod::Average {
            proven(half.is_finite(), "the mean of an infinity")?;
            // CAST: a multiple of 2^-24 below 2^16.
            return Ok((half.to_f64() * f64::from(1 << HALF_BITS)) as i64);
        }
        let bits = half.to_bits().cast_signed();
        Ok(if bits < 0 { bits ^ i16::MAX } else { bits }.into())
    }

    /// The bits of a number that was compared: the inverse of [`Element::number`].
    fn bits(self, number: i64) -> u16 {
        // CAST: the number came from an element.
        let bits = number as i16;
        let half = if bits < 0 { bits ^ i16::MAX } else { bits };
        if self == Self::F16 { half } else { bits }.cast_unsigned()
    }

    /// The bits of sum × reciprocal × reciprocal.
    ///
    /// Integers: to nearest, ties to even. npu-spec 6.2 [HW] describes it by the quotient: a tie steps toward zero where a
    /// reciprocal is inexact, and that is because ⌊65536/k⌋ makes the product a little less than the tie. Half precision:
    /// the exact product rounded once, as the specification models it; what is inside is unknown.
    fn mean(self, sum: i64, [height, width]: [i64; 2]) -> Result<u16> {
        let product = i128::from(sum) * i128::from(height) * i128::from(width);
        if self == Self::I8 {
            // CAST: sums have 16 bits, reciprocals 17 each.
            let mean = crate::dpu::half_to_even(product as i64, RECIPROCAL_BITS);
            let mean = i8::try_from(mean).map_err(|_| crate::Fault::Unproven("a mean beyond 8 bits"))?;
            return Ok(u16::from(mean.cast_unsigned()));
        }
        let half = narrow(product);
        proven(half.is_finite(), "a mean beyond half precision")?;
        Ok(half.to_bits())
    }

    fn store(self, bits: u16, element: &mut [u8]) {
        let bytes = bits.to_le_bytes();
        element.copy_from_slice(&bytes[..element.len()]);
    }
}

/// `product` · 2^-56 in half precision, rounded once.
fn narrow(product: i128) -> f16 {
    let magnitude = product.unsigned_abs();
    // To odd in single precision, so that the next rounding sees whether anything was lost.
    let shift = (u128::BITS - magnitude.leading_zeros()).saturating_sub(f32::MANTISSA_DIGITS);
    let kept = magnitude >> shift;
    let lost = u128::from(kept << shift != magnitude);
    // CAST: 24 bits; the shift is below 128.
    let value = (kept | lost) as f32 * 2f32.powi(shift as i32 - (RECIPROCAL_BITS + HALF_BITS) as i32);
    f16::from_f32(if product < 0 { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_rounded_once() {
        let one = 1i128 << 56;
        assert_eq!(narrow(one), f16::ONE);
        assert_eq!(narrow(-3 * one / 2), f16::from_f32(-1.5));
        let tie = one + (one >> 11);
        assert_eq!(narrow(tie), f16::ONE, "a tie goes to even");
        assert_eq!(narrow(tie + 1), f16::from_bits(f16::ONE.to_bits() + 1), "and anything above it up");
        assert_eq!(narrow(1 << 32), f16::from_bits(1));
    }

    #[test]
    fn halves_compare_as_their_numbers() {
        let number = |value: f32| Element::F16.number(&f16::from_f32(value).to_le_bytes(), PoolingMethod::Max).unwrap();
        let ascending = [f32::NEG_INFINITY, -3.0, -1e-7, -0.0, 0.0, 1e-7, 2.0, f32::INFINITY].map(number);
        assert!(ascending.is_sorted_by(|a, b| a < b), "{ascending:?}");
        assert!(
            ascending
                .iter()
                .all(|&n| n == Element::F16.number(&Element::F16.bits(n).to_le_bytes(), PoolingMethod::Max).unwrap())
        );
    }
}
