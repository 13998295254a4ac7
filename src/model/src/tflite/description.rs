//! Tensors and operators as a file or a runtime describes them, before anything is checked.
//!
//! ```text
//! tables of a file ──────────┐
//!                            ├▶ TensorDescription, OperatorDescription ─ check ─▶ Tensor, Node
//! structures of a runtime ───┘
//! ```
//!
//! Numbers are those of the schema: padding 0 is SAME and 1 VALID, activations are 0 none, 1 ReLU, 2 ReLU −1 to 1,
//! 3 ReLU6. Pairs are `[h, w]`.

use crate::{DType, Quantization, Tensor};

/// Bytes of one tensor.
const MAX_TENSOR_BYTES: usize = 1 << 30;
/// Axes of one tensor.
const MAX_RANK: usize = 8;

/// What a file or a runtime says of a tensor.
#[derive(Clone, Debug)]
pub struct TensorDescription {
    /// Name, for people.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<i32>,
    /// Extents with -1 where they are only known at run time; empty where all are known.
    pub signature: Vec<i32>,
    /// Quantisation, where there is one.
    pub quantization: Option<QuantizationDescription>,
}

/// What a file or a runtime says of a quantisation.
#[derive(Clone, Debug, Default)]
pub struct QuantizationDescription {
    /// Scales; none means no quantisation.
    pub scales: Vec<f32>,
    /// Zero points: one per scale, a single one, or none.
    pub zero_points: Vec<i64>,
    /// The axis of several scales.
    pub axis: i32,
}

/// What a file or a runtime says of an operator.
#[derive(Clone, Debug, Default)]
pub struct OperatorDescription {
    /// Code of the built-in operator.
    pub builtin: i32,
    /// Name of a custom operator.
    pub custom: String,
    /// Indices of the inputs; -1 is an absent one.
    pub inputs: Vec<i32>,
    /// Indices of the outputs.
    pub outputs: Vec<i32>,
    /// Options.
    pub options: Options,
}

/// Options of an operator, as far as they are needed.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Options {
    /// None that are needed.
    #[default]
    None,
    /// `CONV_2D`.
    Convolution(WindowOptions),
    /// `DEPTHWISE_CONV_2D`.
    Depthwise {
        /// Window.
        window: WindowOptions,
        /// Output channels per input channel, or 0.
        multiplier: i32,
    },
    /// `AVERAGE_POOL_2D`, `MAX_POOL_2D`.
    Pool {
        /// Window; its dilation is 1.
        window: WindowOptions,
        /// Kernel.
        kernel: [i32; 2],
    },
    /// `ADD`, `MUL`.
    Fused {
        /// Fused activation.
        activation: i32,
    },
    /// `FULLY_CONNECTED`.
    FullyConnected {
        /// Fused activation.
        activation: i32,
        /// Order of the weights.
        weights_format: i32,
    },
    /// `CONCATENATION`.
    Concatenation {
        /// The axis; a negative one counts from the end.
        axis: i32,
        /// Fused activation.
        activation: i32,
    },
    /// `SOFTMAX`.
    Softmax {
        /// Factor of the exponent.
        beta: f32,
    },
    /// `MEAN`.
    Reducer {
        /// Whether the axes stay as 1.
        keep_dims: bool,
    },
}

/// Options of an operator that moves a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOptions {
    /// Padding rule.
    pub padding: i32,
    /// Steps.
    pub stride: [i32; 2],
    /// Distances between taps.
    pub dilation: [i32; 2],
    /// Fused activation.
    pub activation: i32,
}

impl TensorDescription {
    /// The tensor, without contents.
    ///
    /// # Errors
    /// What is malformed or not supported.
    pub fn check(self) -> Result<Tensor, String> {
        let shape = shape(&self.shape, &self.signature, self.dtype)?;
        let quantization = self.quantization.map(|q| q.check(&shape, self.dtype)).transpose()?.flatten();
        Ok(Tensor { name: self.name, shape, dtype: self.dtype, quantization, data: None })
    }
}

fn shape(dims: &[i32], signature: &[i32], dtype: DType) -> Result<Vec<usize>, String> {
    if dims.len() > MAX_RANK {
        return Err(format!("{} axes are more than the {MAX_RANK} that are supported", dims.len()));
    }
    if !signature.is_empty() && signature.len() != dims.len() {
        return Err(format!("shape signature {signature:?} and shape {dims:?} differ in rank"));
    }
    if signature.iter().skip(1).any(|&dim| dim < 0) {
        return Err(format!("the shape {signature:?} is only known at run time, which is not supported"));
    }
    let extent = |&dim| usize::try_from(dim).ok().filter(|&dim| dim > 0);
    let shape: Vec<usize> = dims
        .iter()
        .map(extent)
        .collect::<Option<_>>()
        .ok_or_else(|| format!("the shape {dims:?} has an extent below 1"))?;
    let bytes = shape.iter().try_fold(dtype.bytes(), |bytes, &dim| bytes.checked_mul(dim));
    match bytes {
        Some(bytes) if bytes <= MAX_TENSOR_BYTES => Ok(shape),
        _ => Err(format!("the shape {dims:?} needs more than {MAX_TENSOR_BYTES} bytes")),
    }
}

impl QuantizationDescription {
    /// The quantisation of a tensor, where it has one.
    fn check(self, shape: &[usize], dtype: DType) -> Result<Option<Quantization>, String> {
        let Self { scales, zero_points, axis } = self;
        if scales.is_empty() || matches!(dtype, DType::F16 | DType::F32 | DType::Bool) {
            return Ok(None);
        }
        if let Some(scale) = scales.iter().find(|s| !(s.is_finite() && **s > 0.0)) {
            return Err(format!("scale {scale} is not a positive number"));
        }
        let axis = match usize::try_from(axis) {
            Ok(axis) if scales.len() == 1 && axis >= shape.len() => 0,
            Ok(axis) if scales.len() == 1 || shape.get(axis) == Some(&scales.len()) => axis,
            _ => return Err(format!("{} scales do not fit axis {axis} of {shape:?}", scales.len())),
        };
        let zero_points = checked_zero_points(&zero_points, scales.len(), dtype)?;
        Ok(Some(Quantization { scales, zero_points, axis }))
    }
}

/// Zero points, one per scale. Absent ones are 0 and a single one is for all scales.
fn checked_zero_points(stored: &[i64], count: usize, dtype: DType) -> Result<Vec<i32>, String> {
    let range = match dtype {
        DType::I8 => -128..=127,
        DType::U8 => 0..=255,
        _ => 0..=0,
    };
    let checked = |&zero_point: &i64| {
        let checked = i32::try_from(zero_point).ok().filter(|z| range.contains(z));
        checked.ok_or_else(|| format!("zero point {zero_point} does not fit {dtype:?}"))
    };
    match stored {
        [] => Ok(vec![0; count]),
        [single] => Ok(vec![checked(single)?; count]),
        many if many.len() == count => many.iter().map(checked).collect(),
        many => Err(format!("{} zero points for {count} scales", many.len())),
    }
}
