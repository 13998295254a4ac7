//! The DPU's stages: arithmetic on one value.

use half::f16;
use npu_regs::{AluAlgo, EwDataMode, EwOpType, Precision, dpu};

use super::{LANES, Lane, Source};
use crate::Fault;
use crate::fault::{Result, proven, simulated};
use crate::quirks::{Quirk, hang};
use crate::rdma::{Cube, PerChannel};
use crate::registers::RegisterFile;

/// All stages of a task.
#[derive(Debug)]
pub(crate) struct Stages {
    /// Weight zero-point compensation, where it is on.
    /// A value per channel.
    pub(crate) compensation: Option<Vec<i16>>,
    bias: Option<Bias>,
    norm: Option<Norm>,
    element: Option<Element>,
    output: Output,
}

/// BS: add, then multiply. Bits of the operands as stored.
#[derive(Debug)]
struct Bias {
    addend: Option<Addend>,
    multiplier: Option<Multiplier>,
    relu: Relu,
}

/// A value per channel that is added or subtracted; bits as stored.
#[derive(Debug)]
struct Addend {
    values: Vec<u32>,
    minus: bool,
}

/// A factor per channel, and the shifts that follow; bits as stored.
#[derive(Debug)]
struct Multiplier {
    factors: Vec<u16>,
    shift: u32,
    negative_shift: u32,
    /// Only negative values are multiplied.
    negative_only: bool,
}

/// BN: multiply, then add.
#[derive(Debug)]
struct Norm {
    multiplier: Option<Multiplier>,
    addend: Option<Addend>,
    relu: Relu,
}

/// EW: an operand per element.
#[derive(Debug)]
struct Element {
    operand: Cube,
    operation: Operation,
    /// Integer operand: (x + offset) × scale, shifted. `None` where the converter is bypassed.
    converter: Option<(i64, i64, u32)>,
    relu: Relu,
    /// Operands of 16 bits are half precision, of 32 bits single precision.
    element: usize,
    /// QUIRK(Q21): the second factor has 16 bits.
    short_factor: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Max,
    Min,
    Add,
    Minus,
    Mul,
}

/// Clamps: none, at zero, at zero and a limit.
#[derive(Clone, Copy, Debug, Default)]
struct Relu {
    on: bool,
    limit: Option<u32>,
}

/// The output converter.
#[derive(Debug)]
struct Output {
    precision: Precision,
    scale: i64,
    offset: i64,
    shift: u32,
    half_away: bool,
    /// Floating point: (v + offset) × scale × 2^-minus_exp, where it is on.
    decode: Option<i32>,
}

impl Stages {
    pub(super) fn decode(
        registers: &RegisterFile,
        source: Source,
        channels: usize,
        per_channel: PerChannel,
        operand: Option<Cube>,
    ) -> Result<Self> {
        let format = registers.get::<dpu::DataFormat>()?;
        let floats = is_float(format.proc_precision);
        let config = registers.get::<dpu::BsOwCfg>()?;
        // CAST: the field has 16 bits.
        let constant = vec![registers.get::<dpu::BsOwOp>()?.ow_op as i16; channels];
        // Floating-point datapaths ignore it. SOURCE: npu-spec 5.4.
        let compensated = !config.od_bypass && !floats && source != Source::Flying;
        let raw = matches!(format.out_precision, Precision::Int32 | Precision::Fp32);
        proven(!compensated || !raw, "zero-point compensation with a 32-bit writer")?;
        let compensation = if config.ow_src { per_channel.compensation } else { constant };
        Ok(Self {
            compensation: compensated.then_some(compensation),
            bias: Bias::decode(registers, channels, per_channel.addend, per_channel.multiplier)?,
            norm: Norm::decode(registers, channels)?,
            element: Element::decode(registers, source, operand)?,
            output: Output::decode(registers, floats)?,
        })
    }
}

impl Bias {
    fn decode(registers: &RegisterFile, channels: usize, addends: Vec<u32>, factors: Vec<u16>) -> Result<Option<Self>> {
        let config = registers.get::<dpu::BsCfg>()?;
        if config.bs_bypass {
            return Ok(None);
        }
        let mul = registers.get::<dpu::BsMulCfg>()?;
        simulated(!mul.bs_truncate_src, "per-channel truncation")?;
        let constant = registers.get::<dpu::BsAluCfg>()?.bs_alu_operand.cast_unsigned();
        let addends = if config.bs_alu_src { addends } else { vec![constant; channels] };
        let addend = (!config.bs_alu_bypass).then(|| Addend::new(config.bs_alu_algo, addends)).transpose()?;
        // CAST: the field has 16 bits.
        let constant = mul.bs_mul_operand as u16;
        let multiplier = Multiplier {
            factors: if mul.bs_mul_src { factors } else { vec![constant; channels] },
            shift: mul.bs_mul_shift_value,
            negative_shift: registers.get::<dpu::DataFormat>()?.bs_mul_shift_value_neg,
            negative_only: config.bs_mul_prelu,
        };
        let limit = registers.get::<dpu::BsReluxCmpValue>()?.bs_relux_cmp_dat;
        Ok(Some(Self {
            addend,
            multiplier: (!config.bs_mul_bypass).then_some(multiplier),
            relu: Relu::new(!config.bs_relu_bypass, config.bs_relux_en, limit),
        }))
    }
}

impl Norm {
    fn decode(registers: &RegisterFile, channels: usize) -> Result<Option<Self>> {
        let config = registers.get::<dpu::BnCfg>()?;
        if config.bn_bypass {
            return Ok(None);
        }
        let mul = registers.get::<dpu::BnMulCfg>()?;
        simulated(!config.bn_alu_src && !mul.bn_mul_src && !mul.bn_truncate_src, "per-channel BN operands")?;
        let multiplier = Multiplier {
            // CAST: the field has 16 bits.
            factors: vec![mul.bn_mul_operand as u16; channels],
            shift: mul.bn_mul_shift_value,
            negative_shift: registers.get::<dpu::DataFormat>()?.bn_mul_shift_value_neg,
            negative_only: config.bn_mul_prelu,
        };
        let addends = vec![registers.get::<dpu::BnAluCfg>()?.bn_alu_operand.cast_unsigned(); channels];
        let addend = (!config.bn_alu_bypass).then(|| Addend::new(config.bn_alu_algo, addends)).transpose()?;
        let limit = registers.get::<dpu::BnReluxCmpValue>()?.bn_relux_cmp_dat;
        Ok(Some(Self {
            multiplier: (!config.bn_mul_bypass).then_some(multiplier),
            addend,
            relu: Relu::new(!config.bn_relu_bypass, config.bn_relux_en, limit),
        }))
    }
}

impl Element {
    fn decode(registers: &RegisterFile, source: Source, operand: Option<Cube>) -> Result<Option<Self>> {
        let config = registers.get::<dpu::EwCfg>()?;
        if config.ew_bypass {
            return Ok(None);
        }
        simulated(config.ew_lut_bypass, "table lookup")?;
        simulated(!config.ew_op_bypass && config.ew_op_src, "element-wise constants")?;
        simulated(config.ew_data_mode == EwDataMode::PerPixel, "per-channel element-wise operands")?;
        simulated(!config.ew_equal_en && !config.ew_binary_en && !config.ew_mul_prelu, "this element-wise operation")?;
        // PANIC: an operand from memory was read.
        let operand = operand.ok_or(Fault::Unimplemented("element-wise constants"))?;
        let floats = is_float(registers.get::<dpu::DataFormat>()?.proc_precision);
        let operation = Operation::decode(&config)?;
        let converted = !config.ew_op_cvt_bypass;
        if floats && converted && operation == Operation::Mul && source == Source::Flying {
            return Err(hang(Quirk::Q19));
        }
        let scale = registers.get::<dpu::EwCvtScaleValue>()?;
        simulated(scale.ew_truncate == 0, "EW_TRUNCATE")?;
        let offset = registers.get::<dpu::EwCvtOffsetValue>()?.ew_op_cvt_offset;
        let identity = (offset, scale.ew_op_cvt_scale, scale.ew_op_cvt_shift) == (0, 1, 0);
        proven(!floats || !converted || identity, "a scaled floating-point operand")?;
        // CAST: the scale is a signed 16-bit number.
        let factor = i64::from(scale.ew_op_cvt_scale as u16 as i16);
        let limit = registers.get::<dpu::EwReluxCmpValue>()?.ew_relux_cmp_dat;
        let element = match config.edata_size {
            npu_regs::ElementSize::Bits32 => 4,
            npu_regs::ElementSize::Bits16 => 2,
            _ => 1,
        };
        Ok(Some(Self {
            operand,
            operation,
            converter: converted.then_some((offset.into(), factor, scale.ew_op_cvt_shift)),
            relu: Relu::new(!config.ew_relu_bypass, config.ew_relux_en, limit),
            element,
            short_factor: element == 4,
        }))
    }

    fn integer(&self, value: i64, channel: usize, pixel: usize) -> i64 {
        let bits = self.operand.bits(channel, pixel);
        let operand = match self.converter {
            // SOURCE: npu-spec 5.6; rounding to even is an inference.
            Some((offset, scale, shift)) => half_to_even((i64::from(bits) + offset) * scale, shift),
            None => i64::from(bits),
        };
        match self.operation {
            Operation::Max => value.max(operand),
            Operation::Min => value.min(operand),
            Operation::Add => value + operand,
            Operation::Minus => value - operand,
            // QUIRK(Q21) CAST: the low half, with its sign.
            Operation::Mul if self.short_factor => value * i64::from(operand as i16),
            Operation::Mul => value.saturating_mul(operand),
        }
    }

    fn float(&self, value: f32, channel: usize, pixel: usize) -> f32 {
        let bits = self.operand.bits(channel, pixel).cast_unsigned();
        let operand = match self.element {
            // QUIRK(Q19): without the converter an addend is not widened; what silicon does then is unknown.
            2 if self.converter.is_none() && self.operation != Operation::Mul => f32::from_bits(bits & 0xffff),
            // CAST: the low half.
            2 => f16::from_bits(bits as u16).to_f32(),
            _ => f32::from_bits(bits),
        };
        match self.operation {
            Operation::Max => value.max(operand),
            Operation::Min => value.min(operand),
            Operation::Add => value + operand,
            Operation::Minus => value - operand,
            Operation::Mul => value * operand,
        }
    }
}

impl Operation {
    fn decode(config: &dpu::EwCfg) -> Result<Self> {
        match (config.ew_op_type, config.ew_alu_algo) {
            (EwOpType::Mul, _) => Ok(Self::Mul),
            (EwOpType::Alu, AluAlgo::Max) => Ok(Self::Max),
            (EwOpType::Alu, AluAlgo::Min) => Ok(Self::Min),
            (EwOpType::Alu, AluAlgo::Add) => Ok(Self::Add),
            (EwOpType::Alu, AluAlgo::Minus) => Ok(Self::Minus),
            (EwOpType::Alu, _) => Err(Fault::Unimplemented("this ALU operation")),
        }
    }
}

impl Addend {
    fn new(algo: AluAlgo, values: Vec<u32>) -> Result<Self> {
        simulated(matches!(algo, AluAlgo::Add | AluAlgo::Minus), "this ALU operation")?;
        Ok(Self { values, minus: algo == AluAlgo::Minus })
    }

    fn integers(&self, values: &mut [i64], channel: usize) {
        for (value, addend) in values.iter_mut().zip(&self.values[channel..]) {
            let addend = i64::from(addend.cast_signed());
            *value += if self.minus { -addend } else { addend };
        }
    }

    fn floats(&self, values: &mut [f32], channel: usize) {
        for (value, addend) in values.iter_mut().zip(&self.values[channel..]) {
            let addend = f32::from_bits(*addend);
            *value += if self.minus { -addend } else { addend };
        }
    }
}

impl Multiplier {
    fn signed(&self, values: &mut [i64], channel: usize) {
        for (value, factor) in values.iter_mut().zip(&self.factors[channel..]) {
            *value = self.integer(*value, factor.cast_signed().into());
        }
    }

    fn unsigned(&self, values: &mut [i64], channel: usize) {
        for (value, factor) in values.iter_mut().zip(&self.factors[channel..]) {
            *value = self.integer(*value, i64::from(*factor));
        }
    }

    fn integer(&self, value: i64, factor: i64) -> i64 {
        if self.negative_only && value >= 0 {
            return value;
        }
        let shift = if value < 0 { self.negative_shift } else { self.shift };
        saturate(half_to_even(value * factor, shift)).into()
    }

    fn floats(&self, values: &mut [f32], channel: usize) {
        for (value, factor) in values.iter_mut().zip(&self.factors[channel..]) {
            if !self.negative_only || *value < 0.0 {
                *value *= f16::from_bits(*factor).to_f32();
            }
        }
    }
}

impl Relu {
    fn new(on: bool, limited: bool, limit: u32) -> Self {
        Self { on, limit: limited.then_some(limit) }
    }

    /// Clamps, and brings every value back to 32 bits.
    fn integers(self, values: &mut [i64]) {
        let low = if self.on { 0 } else { i32::MIN };
        let limit = self.limit.filter(|_| self.on).map_or(i32::MAX, u32::cast_signed);
        values.iter_mut().for_each(|value| *value = (*value).max(low.into()).min(limit.into()));
    }

    fn floats(self, values: &mut [f32]) {
        if self.on {
            let limit = self.limit.map_or(f32::INFINITY, f32::from_bits);
            values.iter_mut().for_each(|value| *value = value.max(0.0).min(limit));
        }
    }
}

impl Output {
    fn decode(registers: &RegisterFile, floats: bool) -> Result<Self> {
        let precision = registers.get::<dpu::DataFormat>()?.out_precision;
        let scale = registers.get::<dpu::OutCvtScale>()?;
        let shift = registers.get::<dpu::OutCvtShift>()?;
        let offset = registers.get::<dpu::OutCvtOffset>()?.out_cvt_offset;
        let identity = scale.out_cvt_scale == 1 && offset == 0 && shift.out_cvt_shift == 0;
        proven(shift.cvt_type || identity || !floats, "a scaled floating-point output")?;
        let narrows = precision == Precision::Fp16;
        proven(
            scale.fp32tofp16_en == narrows || precision == Precision::Tf32,
            "FP32TOFP16 and the output's precision",
        )?;
        if !floats {
            let integers = matches!(precision, Precision::Int8 | Precision::Int16 | Precision::Int32 | Precision::Tf32);
            proven(integers || (precision == Precision::Fp32 && identity), "this output of an integer datapath")?;
        } else {
            let known = matches!(precision, Precision::Fp16 | Precision::Fp32 | Precision::Tf32);
            proven(known, "this output of a floating-point datapath")?;
        }
        Ok(Self {
            precision,
            scale: scale.out_cvt_scale.into(),
            offset: offset.into(),
            // SOURCE: npu-spec 1.8: 6 bits are used.
            shift: shift.out_cvt_shift & 0x3f,
            half_away: shift.cvt_round,
            // CAST: 8 bits.
            decode: (floats && shift.cvt_type).then_some(shift.minus_exp as i32),
        })
    }

    /// SOURCE: npu-spec 5.8. QUIRK(Q23): the scale is signed.
    fn integer(&self, value: i64) -> u32 {
        if self.precision == Precision::Fp32 {
            // CAST: the rounding that the hardware does.
            return (value as f32).to_bits();
        }
        let product = value * self.scale;
        let rounded = if self.half_away { half_away(product, self.shift) } else { half_to_even(product, self.shift) };
        let (low, high) = match self.precision {
            Precision::Int8 => (i8::MIN.into(), i8::MAX.into()),
            Precision::Int16 => (i16::MIN.into(), i16::MAX.into()),
            _ => (i32::MIN.into(), i32::MAX.into()),
        };
        // CAST: clamped; the writer takes the low bytes.
        ((rounded + self.offset).clamp(low, high) as i32).cast_unsigned()
    }

    /// SOURCE: npu-spec 5.7.
    fn float(&self, value: f32) -> u32 {
        let value = match self.decode {
            // CAST: rounded as the value is.
            Some(exponent) => (value + self.offset as f32) * self.scale as f32 * 2f32.powi(-exponent),
            None => value,
        };
        match self.precision {
            Precision::Fp16 => narrow(value).to_bits().into(),
            _ => value.to_bits(),
        }
    }
}

impl Lane for i32 {
    fn finish(lanes: &[i32], stages: &Stages, channel: usize, pixel: usize, bits: &mut [u32; LANES]) {
        let mut values = [0i64; LANES];
        let values = &mut values[..lanes.len()];
        values.iter_mut().zip(lanes).for_each(|(value, lane)| *value = i64::from(*lane));
        if let Some(bias) = &stages.bias {
            bias.addend.iter().for_each(|addend| addend.integers(values, channel));
            bias.multiplier.iter().for_each(|multiplier| multiplier.signed(values, channel));
            bias.relu.integers(values);
        }
        if let Some(norm) = &stages.norm {
            norm.multiplier.iter().for_each(|multiplier| multiplier.unsigned(values, channel));
            norm.addend.iter().for_each(|addend| addend.integers(values, channel));
            norm.relu.integers(values);
        }
        if let Some(element) = &stages.element {
            for (lane, value) in values.iter_mut().enumerate() {
                *value = element.integer(*value, channel + lane, pixel);
            }
            element.relu.integers(values);
        }
        bits.iter_mut().zip(values).for_each(|(bits, value)| *bits = stages.output.integer(*value));
    }
}

impl Lane for f32 {
    fn finish(lanes: &[f32], stages: &Stages, channel: usize, pixel: usize, bits: &mut [u32; LANES]) {
        let mut values = [0.0; LANES];
        let values = &mut values[..lanes.len()];
        values.copy_from_slice(lanes);
        if let Some(bias) = &stages.bias {
            bias.addend.iter().for_each(|addend| addend.floats(values, channel));
            bias.multiplier.iter().for_each(|multiplier| multiplier.floats(values, channel));
            bias.relu.floats(values);
        }
        if let Some(norm) = &stages.norm {
            norm.multiplier.iter().for_each(|multiplier| multiplier.floats(values, channel));
            norm.addend.iter().for_each(|addend| addend.floats(values, channel));
            norm.relu.floats(values);
        }
        if let Some(element) = &stages.element {
            for (lane, value) in values.iter_mut().enumerate() {
                *value = element.float(*value, channel + lane, pixel);
            }
            element.relu.floats(values);
        }
        bits.iter_mut().zip(values).for_each(|(bits, value)| *bits = stages.output.float(*value));
    }
}

fn is_float(precision: Precision) -> bool {
    matches!(precision, Precision::Fp16 | Precision::Bf16 | Precision::Fp32 | Precision::Tf32)
}

/// The nearest 32-bit number.
pub(crate) fn saturate(value: i64) -> i32 {
    // CAST: clamped.
    value.clamp(i32::MIN.into(), i32::MAX.into()) as i32
}

/// `value` / 2^`shift`, ties to even.
pub(crate) fn half_to_even(value: i64, shift: u32) -> i64 {
    if shift == 0 {
        return value;
    }
    let almost_half = (1i64 << (shift - 1)) - 1;
    (value + almost_half + ((value >> shift) & 1)) >> shift
}

/// `value` / 2^`shift`, ties away from zero.
pub(crate) fn half_away(value: i64, shift: u32) -> i64 {
    if shift == 0 {
        return value;
    }
    let half = 1i64 << (shift - 1);
    if value < 0 { -((half - value) >> shift) } else { (value + half) >> shift }
}

/// QUIRK(Q28): saturates, never infinite.
pub(crate) fn narrow(value: f32) -> f16 {
    if value.is_nan() { f16::NAN } else { f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32())) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ties_go_to_even_or_away() {
        assert_eq!([5, 6, 7, -5, -6, -7, -2].map(|v| half_to_even(v, 2)), [1, 2, 2, -1, -2, -2, 0]);
        assert_eq!([5, 6, 7, -5, -6, -7, -2].map(|v| half_away(v, 2)), [1, 2, 2, -1, -2, -2, -1]);
        assert_eq!(half_to_even(-3, 0), -3);
    }

    proptest! {
        #[test]
        fn rounding_is_within_half_a_unit(value in -(1i64 << 46)..(1i64 << 46), shift in 1u32..40) {
            for rounded in [half_to_even(value, shift), half_away(value, shift)] {
                prop_assert!(((rounded << shift) - value).abs() <= 1 << (shift - 1));
            }
        }
    }

    #[test]
    fn half_precision_saturates() {
        assert_eq!(narrow(1e9), f16::MAX);
        assert_eq!(narrow(f32::NEG_INFINITY), f16::MIN);
        assert!(narrow(f32::NAN).is_nan());
        assert_eq!(narrow(1.0 + 1.0 / 2048.0), f16::from_f32(1.0), "a tie goes to even");
    }
}
