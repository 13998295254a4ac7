//! CNA, the convolution front end: decodes a convolution and fetches its features and weights.
//!
//! Features arrive as NHWC without padding, weights as kernels; both as the numbers that the MAC array multiplies.

use std::sync::Arc;

use half::{bf16, f16};
use npu_regs::{Block, ConvMode, Precision, cna};

use crate::fault::{Fault, Result, agree, proven, simulated};
use crate::memory::{ATOM, Space};
use crate::quirks::{Quirk, hang};
use crate::registers::RegisterFile;

/// Bytes of a CBUF bank. SOURCE: npu-spec 4.4.
const BANK: u64 = 32768;
/// Banks of CBUF, the on-chip convolution buffer.
const BANKS: u32 = 12;
/// Rows that lie at the same pitch in grouped-line mode. SOURCE: npu-spec 3.3.
const ROW_GROUP: u64 = 4;
/// Channels of an input group of weights. SOURCE: npu-spec 3.2.
pub(crate) const fn input_group(precision: Precision) -> usize {
    match precision {
        Precision::Tf32 => 16,
        _ => 32,
    }
}

/// A convolution as the CNA's registers describe it.
#[derive(Clone, Debug)]
pub(crate) struct Fetch {
    pub(crate) precision: Precision,
    pub(crate) depthwise: bool,
    pub(crate) window: Window,
    /// Input channels, padding included.
    pub(crate) channels: usize,
    /// Columns and rows that are fetched.
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) output_width: u32,
    pub(crate) output_pixels: u32,
    pub(crate) kernels: usize,
    pub(crate) pad_value: u32,
    /// Steps between inputs of a transposed convolution, with zeros between them; 1 otherwise.
    pub(crate) spread: [usize; 2],
    features: FeatureAddress,
    weights: WeightAddress,
    converter: Option<Converter>,
    pub(crate) banks: cna::CbufCon0,
}

/// The sliding window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) dilation: [usize; 2],
    pub(crate) pad: [usize; 2],
}

/// Where features lie. Strides in atoms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FeatureAddress {
    base: u64,
    grouped: bool,
    /// One byte per pixel.
    single_channel: bool,
    line_stride: u64,
    surface_stride: u64,
    dma_width: u64,
}

/// Where weights lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WeightAddress {
    base: u64,
    bytes: u64,
}

/// The input converter. SOURCE: npu-spec 4.8; the rounding of bits that a shift drops is unknown, here they are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Converter {
    scale: i64,
    offset: i64,
    shift: u32,
}

impl Fetch {
    /// Decodes the CNA's registers.
    pub(crate) fn decode(registers: &RegisterFile) -> Result<Self> {
        let kind = registers.get::<cna::ConvCon1>()?;
        agree("CNA precisions", kind.in_precision as u32, kind.proc_precision as u32)?;
        let sums = !matches!(kind.in_precision, Precision::Int32 | Precision::Fp32);
        proven(sums, "a convolution of 32-bit elements")?;
        let size = registers.get::<cna::DataSize0>()?;
        let channels = registers.get::<cna::DataSize1>()?.datain_channel;
        let dma = registers.get::<cna::FcDataSize0>()?;
        agree("CNA channels", channels, registers.get::<cna::FcDataSize1>()?.dma_channel)?;
        let fc = registers.get::<cna::FcCon0>()?;
        simulated(!fc.fc_skip_en, "fully-connected mode")?;
        let depthwise = kind.conv_mode == ConvMode::Depthwise;
        let weight_size = registers.get::<cna::WeightSize2>()?;
        let fetch = Self {
            precision: kind.in_precision,
            depthwise,
            window: Window::decode(registers)?,
            channels: channels as usize,
            // SOURCE: npu-spec 3.3: columns beyond the fetched ones are never used.
            width: size.datain_width.min(dma.dma_width) as usize,
            height: size.datain_height.min(dma.dma_height) as usize,
            output_width: registers.get::<cna::DataSize2>()?.dataout_width,
            output_pixels: registers.get::<cna::DataSize3>()?.dataout_atomics,
            kernels: if depthwise { 1 } else { weight_size.weight_kernels as usize },
            pad_value: registers.get::<cna::PadCon1>()?.pad_value,
            spread: spread(registers, &kind)?,
            features: FeatureAddress::decode(registers, &kind)?,
            weights: WeightAddress::decode(registers)?,
            converter: Converter::decode(registers, &kind)?,
            banks: registers.get::<cna::CbufCon0>()?,
        };
        fetch.check(registers, weight_size.weight_kernels)?;
        Ok(fetch)
    }

    fn check(&self, registers: &RegisterFile, kernels: u32) -> Result<()> {
        let multiple = if self.precision == Precision::Int8 { ATOM } else { input_group(self.precision) };
        proven(self.channels > 0 && self.channels.is_multiple_of(multiple), "input channels that are no whole groups")?;
        proven(self.width > 0 && self.height > 0, "an empty input")?;
        proven(kernels > 0, "a convolution without kernels")?;
        self.check_unused(registers)?;
        self.check_products()?;
        self.check_transposed()?;
        let decompression = registers.get::<cna::DcompCtrl>()?;
        simulated(decompression.decomp_control == 0, "weight decompression")?;
        if self.depthwise {
            agree("depthwise kernels", kernels, 1u32)?;
        } else {
            let bytes = registers.get::<cna::WeightSize1>()?.weight_bytes_per_kernel;
            let kernel = self.bytes_of(self.taps() * self.channels) as u64;
            agree("bytes of a kernel", bytes, kernel)?;
            agree("bytes of all kernels", self.weights.bytes, kernel * u64::from(kernels))?;
            fits("one kernel", kernel, 1)?;
        }
        proven(self.banks.data_bank + self.banks.weight_bank <= BANKS, "more CBUF banks than there are")?;
        fits("features", self.feature_bytes(), self.banks.data_bank)
    }

    fn check_unused(&self, registers: &RegisterFile) -> Result<()> {
        registers.unused::<cna::FcCon1>()?;
        registers.unused::<cna::FcCon2>()?;
        let buffering = registers.get::<cna::ConvCon2>()?;
        proven(cna::ConvCon2 { feature_grains: 0, ..buffering } == Default::default(), "a mode in CNA_CONV_CON2")?;
        proven(registers.get::<cna::DataSize3>()?.surf_mode == 0, "SURF_MODE")?;
        if self.converter.is_none() { registers.unused::<cna::CvtCon5>() } else { Ok(()) }
    }

    /// Only matrix products were seen in these precisions.
    fn check_products(&self) -> Result<()> {
        if matches!(self.precision, Precision::Int8 | Precision::Fp16) {
            return Ok(());
        }
        let product = self.taps() == 1 && self.window.stride == [1, 1] && self.window.pad == [0, 0];
        proven(product && self.pad_value == 0 && !self.depthwise, "a window over elements of this precision")
    }

    /// A transposed convolution was seen in half precision, with single steps.
    fn check_transposed(&self) -> Result<()> {
        if self.spread == [1, 1] {
            return Ok(());
        }
        let plain = self.window.stride == [1, 1] && self.window.dilation == [1, 1] && !self.depthwise;
        proven(plain, "a transposed convolution with steps, dilation or one filter per channel")?;
        proven(self.precision == Precision::Fp16, "a transposed convolution of other than half precision")
    }

    /// Rows and columns that the windows move over, inserted zeros included.
    pub(crate) fn grid(&self) -> [usize; 2] {
        [(self.height - 1) * self.spread[0] + 1, (self.width - 1) * self.spread[1] + 1]
    }

    /// Features with zeros between them, as the windows of a transposed convolution see them. SOURCE: npu-spec 4.11.
    pub(crate) fn spread_out(&self, features: Arc<Vec<u8>>) -> Arc<Vec<u8>> {
        if self.spread == [1, 1] {
            return features;
        }
        let pixel = self.bytes_of(self.channels);
        let [rows, columns] = self.grid();
        let mut spread = vec![0; rows * columns * pixel];
        // QUIRK(Q32): which wrong values silicon gives is unknown; here all features are zero.
        if (0..2).any(|axis| self.spread[axis] == 2 && (12..16).contains(&self.window.pad[axis])) {
            return Arc::new(spread);
        }
        for (at, from) in features.chunks_exact(pixel).enumerate() {
            let (row, column) = (at / self.width * self.spread[0], at % self.width * self.spread[1]);
            spread[(row * columns + column) * pixel..][..pixel].copy_from_slice(from);
        }
        Arc::new(spread)
    }

    /// Bytes of `elements` elements.
    fn bytes_of(&self, elements: usize) -> usize {
        match self.precision {
            Precision::Int4 => elements / 2,
            Precision::Int8 => elements,
            Precision::Int16 | Precision::Fp16 | Precision::Bf16 => 2 * elements,
            Precision::Int32 | Precision::Fp32 | Precision::Tf32 => 4 * elements,
        }
    }

    /// Positions of the kernel.
    pub(crate) fn taps(&self) -> usize {
        self.window.kernel[0] * self.window.kernel[1]
    }

    /// Channels whose depthwise filters are stored.
    pub(crate) fn filters(&self) -> Result<usize> {
        let per_channel = self.bytes_of(self.taps()) as u64;
        proven(self.weights.bytes.is_multiple_of(per_channel), "depthwise weights that are no whole filters")?;
        // CAST: a filter of a channel that the DPU cannot write has no use.
        let filters = (self.weights.bytes / per_channel).min(1 << 13);
        agree("depthwise weight bytes", filters * per_channel, self.weights.bytes)?;
        Ok(filters as usize)
    }

    fn feature_bytes(&self) -> u64 {
        self.bytes_of(self.width * self.height * self.channels) as u64
    }

    /// Bytes that the fetch takes from memory: features and weights, without what is reused.
    pub(crate) fn bytes(&self) -> u64 {
        let features = if self.banks.data_reuse { 0 } else { self.feature_bytes() };
        let weights = if self.banks.weight_reuse { 0 } else { self.weights.bytes };
        features + weights
    }

    /// What must be equal for the features of one task to serve another.
    pub(crate) fn feature_shape(&self) -> [usize; 5] {
        [self.width, self.height, self.channels, self.precision as usize, self.banks.data_bank as usize]
    }

    /// What must be equal for the weights of one task to serve another.
    pub(crate) fn weight_shape(&self) -> [usize; 5] {
        let [rows, columns] = self.window.kernel;
        [self.kernels, rows << 8 | columns, self.channels, self.precision as usize, self.banks.data_bank as usize]
    }

    /// Features as stored: `[h, w, c]`, elements as little-endian bytes.
    pub(crate) fn read_features(&self, space: &Space) -> Result<Vec<u8>> {
        let mut bytes = match self.features.single_channel {
            true => self.read_single_channel(space)?,
            false => self.read_planes(space)?,
        };
        self.spoil_features(&mut bytes);
        Ok(bytes)
    }

    fn read_planes(&self, space: &Space) -> Result<Vec<u8>> {
        let pixel = self.bytes_of(self.channels);
        let mut features = vec![0; self.width * self.height * pixel];
        let mut row = vec![0; self.width * ATOM];
        for plane in 0..pixel / ATOM {
            for h in 0..self.height {
                space.read(Block::Cna, self.features.address(plane as u64, h as u64), &mut row)?;
                let pixels = features[h * self.width * pixel..].chunks_exact_mut(pixel);
                for (atom, pixel) in row.chunks_exact(ATOM).zip(pixels) {
                    pixel[plane * ATOM..][..ATOM].copy_from_slice(atom);
                }
            }
        }
        Ok(features)
    }

    /// One byte per pixel, through the converter; the other channels are zero. SOURCE: npu-spec 4.8.
    fn read_single_channel(&self, space: &Space) -> Result<Vec<u8>> {
        let mut features = vec![0; self.width * self.height * self.channels];
        let mut row = vec![0; self.width];
        let pitch = self.features.line_stride.max(ATOM as u64);
        for h in 0..self.height {
            space.read(Block::Cna, self.features.base + h as u64 * pitch, &mut row)?;
            let pixels = features[h * self.width * self.channels..].chunks_exact_mut(self.channels);
            for (byte, pixel) in row.iter().zip(pixels) {
                pixel[0] = match &self.converter {
                    Some(converter) => converter.convert(*byte),
                    None => *byte,
                };
            }
        }
        Ok(features)
    }

    fn spoil_features(&self, features: &mut [u8]) {
        // QUIRK(Q11): what silicon does with those banks is unknown; here they read as zero.
        let taken = (self.banks.fc_data_bank as usize * BANK as usize).min(features.len());
        features[..taken].fill(0);
        // QUIRK(Q12): which wrong values silicon reads is unknown; here the last row is zero.
        let room = u64::from(self.banks.data_bank) * BANK;
        let (bytes, banks) = (self.feature_bytes(), self.feature_bytes().div_ceil(BANK));
        let nearly_full = bytes * 100 >= room * 97 && bytes < room;
        if self.precision == Precision::Int8 && self.width == 1 && banks * BANK == room && nearly_full {
            let row = self.channels.min(features.len());
            let start = features.len() - row;
            features[start..].fill(0);
        }
    }

    /// Direct weights as `[kernel, kh, kw, c]`.
    ///
    /// Stored in groups of output channels; in them, groups of input channels, the last of which may be half as wide; in
    /// them, kernel positions. Partial groups are dense. SOURCE: npu-spec 3.2, 4.8.
    pub(crate) fn read_direct_weights(&self, space: &Space, output_group: usize) -> Result<Vec<u8>> {
        let stored = space.read_vec(Block::Cna, self.weights.base, self.weights.bytes)?;
        let (taps, input_group) = (self.taps(), input_group(self.precision));
        let mut kernels = vec![0; stored.len()];
        let mut stored = stored.as_slice();
        let kernel_bytes = self.bytes_of(taps * self.channels);
        for group in kernels.chunks_mut(output_group * kernel_bytes) {
            for first in (0..self.channels).step_by(input_group) {
                let lanes = self.bytes_of(input_group.min(self.channels - first));
                for tap in 0..taps {
                    for kernel in group.chunks_exact_mut(kernel_bytes) {
                        let (from, rest) = stored.split_at(lanes);
                        let at = self.bytes_of(tap * self.channels + first);
                        kernel[at..][..lanes].copy_from_slice(from);
                        stored = rest;
                    }
                }
            }
        }
        Ok(kernels)
    }

    /// Depthwise weights as `[kh, kw, c]`; channels without a filter are zero.
    ///
    /// Stored in groups of channels, the last of which is dense. SOURCE: npu-spec 3.2.
    pub(crate) fn read_depthwise_weights(&self, space: &Space, group: usize) -> Result<Vec<u8>> {
        let filters = self.filters()?;
        let stored = space.read_vec(Block::Cna, self.weights.base, self.weights.bytes)?;
        let (element, taps) = (self.bytes_of(1), self.taps());
        let mut weights = vec![0; taps * self.channels * element];
        for first in (0..filters.min(self.channels)).step_by(group) {
            let lanes = group.min(filters - first);
            let used = lanes.min(self.channels - first) * element;
            for tap in 0..taps {
                let from = (first * taps + tap * lanes) * element;
                let to = (tap * self.channels + first) * element;
                weights[to..to + used].copy_from_slice(&stored[from..from + used]);
            }
        }
        Ok(weights)
    }
}

fn fits(operand: &'static str, bytes: u64, banks: u32) -> Result<()> {
    if bytes <= u64::from(banks) * BANK { Ok(()) } else { Err(Fault::Cbuf { operand, bytes, banks }) }
}

impl Window {
    fn decode(registers: &RegisterFile) -> Result<Self> {
        let step = registers.get::<cna::ConvCon3>()?;
        simulated(step.nn_mode == 0, "NN_MODE")?;
        let size = registers.get::<cna::WeightSize2>()?;
        let pad = registers.get::<cna::PadCon0>()?;
        let window = Self {
            kernel: [size.weight_height as usize, size.weight_width as usize],
            stride: [step.conv_y_stride as usize, step.conv_x_stride as usize],
            dilation: [step.atrous_y_dilation as usize + 1, step.atrous_x_dilation as usize + 1],
            pad: [pad.pad_top as usize, pad.pad_left as usize],
        };
        proven(!window.kernel.contains(&0), "an empty kernel")?;
        proven(!window.stride.contains(&0), "a stride of 0")?;
        Ok(window)
    }

    /// Positions that `outputs` windows cover along one axis.
    pub(crate) fn span(&self, axis: usize, outputs: usize) -> usize {
        (outputs - 1) * self.stride[axis] + (self.kernel[axis] - 1) * self.dilation[axis] + 1
    }
}

/// Steps between the inputs of a transposed convolution. SOURCE: npu-spec 4.11 [HW]: equal powers of two, and two rows with
/// single columns.
fn spread(registers: &RegisterFile, kind: &cna::ConvCon1) -> Result<[usize; 2]> {
    let step = registers.get::<cna::ConvCon3>()?;
    let spread = [step.deconv_y_stride as usize + 1, step.deconv_x_stride as usize + 1];
    match (kind.deconv, spread) {
        (false, [1, 1]) | (true, [1, 1] | [2, 2] | [4, 4] | [8, 8] | [2, 1]) => Ok(spread),
        (false, _) => Err(Fault::Unproven("a transposed stride without transposition")),
        (true, _) => Err(Fault::Unproven("these transposed strides")),
    }
}

impl FeatureAddress {
    fn decode(registers: &RegisterFile, kind: &cna::ConvCon1) -> Result<Self> {
        let single_channel = kind.argb_in == 8;
        simulated(single_channel || kind.argb_in == 0, "packed pixels of this many channels")?;
        agree("NONALIGN_DMA and ARGB_IN", kind.nonalign_dma, single_channel)?;
        proven(!single_channel || kind.group_line_off, "packed pixels in grouped-line mode")?;
        let width = registers.get::<cna::FcDataSize0>()?.dma_width;
        let narrow = single_channel || !kind.group_line_off || width == 1;
        proven(narrow, "ungrouped lines of more than one pixel")?;
        Ok(Self {
            base: registers.get::<cna::FeatureDataAddr>()?.feature_base_addr.into(),
            grouped: !kind.group_line_off,
            single_channel,
            line_stride: registers.get::<cna::DmaCon1>()?.line_stride.into(),
            surface_stride: registers.get::<cna::DmaCon2>()?.surf_stride.into(),
            dma_width: width.into(),
        })
    }

    /// Address of the first atom of a row. SOURCE: npu-spec 3.3.
    fn address(&self, plane: u64, h: u64) -> u64 {
        let atom = match self.grouped {
            // QUIRK(Q1): planes are at least four rows apart, unless the stride that is added is negative.
            true => {
                let plane_pitch = ROW_GROUP * self.dma_width + self.surface_stride;
                (h / ROW_GROUP) * self.line_stride + (h % ROW_GROUP) * self.dma_width + plane * plane_pitch
            }
            false => h * self.line_stride + plane * (self.dma_width + self.surface_stride),
        };
        // A stride of 28 bits in atoms is a whole address in bytes, and addresses have 32 bits: a negative stride wraps.
        // SOURCE: Mesa's `fill_task` programs such strides for planes of fewer than four rows, and its MobileNet V1,
        // whose last convolution has one row, is right on silicon.
        (self.base + atom * ATOM as u64) & u64::from(u32::MAX)
    }
}

impl WeightAddress {
    fn decode(registers: &RegisterFile) -> Result<Self> {
        Ok(Self {
            base: registers.get::<cna::DcompAddr0>()?.decompress_addr0.into(),
            bytes: registers.get::<cna::WeightSize0>()?.weight_bytes.into(),
        })
    }
}

impl Converter {
    fn decode(registers: &RegisterFile, kind: &cna::ConvCon1) -> Result<Option<Self>> {
        let control = registers.get::<cna::CvtCon0>()?;
        if control.cvt_bypass {
            proven(control.data_sign, "unsigned features without a converter")?;
            return Ok(None);
        }
        simulated(kind.argb_in == 8, "the input converter on more than one channel")?;
        simulated(!control.cvt_type && !control.round_type && !control.data_sign, "this kind of input conversion")?;
        let lane = registers.get::<cna::CvtCon1>()?;
        Ok(Some(Self { scale: lane.cvt_scale0.into(), offset: lane.cvt_offset0.into(), shift: control.cvt_truncate_0 }))
    }

    fn convert(&self, byte: u8) -> u8 {
        let value = ((i64::from(byte) + self.offset) * self.scale) >> self.shift;
        // CAST: clamped.
        (value.clamp(-128, 127) as i8).cast_unsigned()
    }
}

/// Bytes as signed 8-bit numbers.
pub(crate) fn int8(bytes: &[u8]) -> Vec<i16> {
    bytes.iter().map(|byte| i16::from(byte.cast_signed())).collect()
}

/// Bytes as signed 4-bit numbers, the first in the low half of each byte. SOURCE: npu-spec 3.1.
pub(crate) fn int4(bytes: &[u8]) -> Vec<i16> {
    bytes.iter().flat_map(|byte| [byte << 4, byte & 0xf0]).map(|high| i16::from(high.cast_signed() >> 4)).collect()
}

/// Bytes as signed 16-bit numbers.
pub(crate) fn int16(bytes: &[u8]) -> Vec<i16> {
    bytes.as_chunks().0.iter().map(|pair| i16::from_le_bytes(*pair)).collect()
}

/// Bytes as the real numbers that the array multiplies.
pub(crate) fn reals(precision: Precision, bytes: &[u8]) -> Vec<f64> {
    match precision {
        Precision::Bf16 => bytes.as_chunks().0.iter().map(|pair| bf16::from_le_bytes(*pair).to_f64()).collect(),
        Precision::Tf32 => bytes.as_chunks().0.iter().map(|word| tf32(u32::from_le_bytes(*word))).collect(),
        _ => bytes.as_chunks().0.iter().map(|pair| f16::from_le_bytes(*pair).to_f64()).collect(),
    }
}

/// A single-precision number rounded to 10 mantissa bits. SOURCE: npu-spec 5.3; ties to even are an inference.
fn tf32(bits: u32) -> f64 {
    const DROPPED: u32 = 13;
    let value = f32::from_bits(bits);
    if !value.is_finite() {
        return value.into();
    }
    let half = (1 << (DROPPED - 1)) - 1 + (bits >> DROPPED & 1);
    f32::from_bits((bits + half) >> DROPPED << DROPPED).into()
}

/// Refuses half precision on a poisoned core.
pub(crate) fn check_poison(fetch: &Fetch, poisoned: bool) -> Result<()> {
    if poisoned && fetch.precision == Precision::Fp16 { Err(hang(Quirk::Q25)) } else { Ok(()) }
}
