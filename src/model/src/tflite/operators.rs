//! Operators, from what a file or a runtime says of them to checked nodes.

use super::description::{OperatorDescription, Options, WindowOptions};
use super::tensor_id;
use crate::{Activation, Node, Op, Padding, Tensor, TensorId, Window, check};

/// Elements of a constant that lists axes or amounts: a pair for each of 8 axes.
const MAX_CONSTANT: usize = 16;
/// An extent of a window with its dilation, above which it is surely an error.
const MAX_WINDOW: i32 = 1 << 15;

impl OperatorDescription {
    /// The operator's name in the schema, for people.
    pub fn name(&self) -> String {
        let name = usize::try_from(self.builtin).ok().and_then(|builtin| NAMES.get(builtin));
        name.map_or_else(|| format!("builtin {}", self.builtin), |name| (*name).to_owned())
    }

    /// The node, checked against `tensors`, which its inputs and outputs are indices of.
    ///
    /// # Errors
    /// What is malformed or not supported.
    pub fn check(&self, tensors: &[Tensor]) -> Result<Node, String> {
        let name = self.name();
        if name == "CUSTOM" {
            return Err(format!("the custom operator {:?} is not supported", self.custom));
        }
        let input = |&id: &i32| match id {
            -1 => Ok(None),
            _ => tensor_id(id, tensors.len()).map(Some).ok_or_else(|| format!("input {id} is not a tensor")),
        };
        let output = |&id: &i32| tensor_id(id, tensors.len()).ok_or_else(|| format!("output {id} is not a tensor"));
        let inputs: Vec<_> = self.inputs.iter().map(input).collect::<Result<_, _>>()?;
        let outputs: Vec<_> = self.outputs.iter().map(output).collect::<Result<_, _>>()?;
        let op = op(&name, &self.options, &Operands { tensors, inputs: &inputs })?;
        let node = Node { op, inputs, outputs };
        check::node(tensors, &node)?;
        Ok(node)
    }
}

fn op(name: &str, options: &Options, operands: &Operands<'_>) -> Result<Op, String> {
    Ok(match (name, options) {
        ("CONV_2D", Options::Convolution(options)) => conv(options, operands)?,
        ("DEPTHWISE_CONV_2D", Options::Depthwise { window, multiplier }) => depthwise(window, *multiplier, operands)?,
        ("AVERAGE_POOL_2D" | "MAX_POOL_2D", Options::Pool { window, kernel }) => pool(name, window, *kernel, operands)?,
        ("ADD", Options::Fused { activation: fused }) => Op::Add { activation: activation(*fused)? },
        ("MUL", Options::Fused { activation: fused }) => Op::Mul { activation: activation(*fused)? },
        ("FULLY_CONNECTED", Options::FullyConnected { activation: fused, weights_format: 0 }) => {
            Op::FullyConnected { activation: activation(*fused)? }
        }
        ("FULLY_CONNECTED", Options::FullyConnected { weights_format, .. }) => {
            return Err(format!("weights in format {weights_format} are not supported"));
        }
        ("RESHAPE" | "SQUEEZE" | "EXPAND_DIMS", _) => Op::Reshape,
        ("CONCATENATION", Options::Concatenation { axis: along, activation: fused }) => {
            Op::Concatenation { axis: axis(*along, operands.shape(0)?.len())?, activation: activation(*fused)? }
        }
        ("PAD", _) => Op::Pad { amounts: paddings(operands)? },
        ("SOFTMAX", Options::Softmax { beta }) if beta.is_finite() => Op::Softmax { beta: *beta },
        ("SOFTMAX", Options::Softmax { beta }) => return Err(format!("the factor of the exponent is {beta}")),
        ("LOGISTIC", _) => Op::Logistic,
        ("RELU", _) => Op::Relu,
        ("RELU6", _) => Op::Relu6,
        ("QUANTIZE", _) => Op::Quantize,
        ("DEQUANTIZE", _) => Op::Dequantize,
        ("MEAN", Options::Reducer { keep_dims }) => mean(*keep_dims, operands)?,
        _ => return Err("the operator is not supported".to_owned()),
    })
}

fn activation(code: i32) -> Result<Activation, String> {
    Ok(match code {
        0 => Activation::None,
        1 => Activation::Relu,
        2 => Activation::ReluN1To1,
        3 => Activation::Relu6,
        other => return Err(format!("fused activation {other} is not supported")),
    })
}

/// A positive `[h, w]`.
fn pair(values: [i32; 2], what: &str) -> Result<[usize; 2], String> {
    let one = |value: i32| {
        let checked = usize::try_from(value).ok().filter(|_| (1..=MAX_WINDOW).contains(&value));
        checked.ok_or_else(|| format!("{what} {value} is not between 1 and {MAX_WINDOW}"))
    };
    Ok([one(values[0])?, one(values[1])?])
}

/// The tensors that an operator names.
struct Operands<'a> {
    tensors: &'a [Tensor],
    inputs: &'a [Option<TensorId>],
}

impl<'a> Operands<'a> {
    fn input(&self, index: usize) -> Result<&'a Tensor, String> {
        let id = self.inputs.get(index).copied().flatten().ok_or_else(|| format!("input {index} is missing"))?;
        Ok(&self.tensors[id.0])
    }

    fn shape(&self, index: usize) -> Result<&'a [usize], String> {
        Ok(&self.input(index)?.shape)
    }

    /// `[n, h, w, c]` of an input.
    fn shape4(&self, index: usize) -> Result<[usize; 4], String> {
        let shape = self.shape(index)?;
        shape.try_into().map_err(|_| format!("input {index} is {shape:?}, which has not four axes"))
    }

    /// A constant vector of axes or extents.
    fn constant(&self, index: usize) -> Result<Vec<i64>, String> {
        let tensor = self.input(index)?;
        if tensor.elements() > MAX_CONSTANT {
            return Err(format!("input {index} has {} elements, more than {MAX_CONSTANT}", tensor.elements()));
        }
        let data = tensor.data.as_deref().ok_or_else(|| format!("input {index} is not a constant"))?;
        match tensor.dtype {
            crate::DType::I32 => Ok(data.as_chunks().0.iter().map(|&v| i32::from_le_bytes(v).into()).collect()),
            crate::DType::I64 => Ok(data.as_chunks().0.iter().map(|&v| i64::from_le_bytes(v)).collect()),
            other => Err(format!("input {index} is {other:?} instead of I32 or I64")),
        }
    }
}

fn axis(axis: i32, rank: usize) -> Result<usize, String> {
    // CAST: a rank is at most 8.
    let from_front = if axis < 0 { i64::from(axis) + rank as i64 } else { i64::from(axis) };
    let checked = usize::try_from(from_front).ok().filter(|&axis| axis < rank);
    checked.ok_or_else(|| format!("axis {axis} does not exist among {rank}"))
}

/// Resolves the padding rule.
fn window(options: &WindowOptions, kernel: [usize; 2], input: [usize; 4]) -> Result<Window, String> {
    let (stride, dilation) = (pair(options.stride, "stride")?, pair(options.dilation, "dilation")?);
    let same = match options.padding {
        0 => true,
        1 => false,
        other => return Err(format!("padding rule {other} does not exist")),
    };
    let along = |axis: usize| {
        let extent = kernel[axis].checked_sub(1).and_then(|taps| taps.checked_mul(dilation[axis]));
        let extent = extent.filter(|&extent| extent <= 1 << 20);
        let extent = 1 + extent.ok_or_else(|| format!("a kernel of {kernel:?} does not fit a window"))?;
        let steps = input[axis + 1].div_ceil(stride[axis]);
        let total = ((steps - 1) * stride[axis] + extent).saturating_sub(input[axis + 1]);
        Ok::<_, String>(if same { [total / 2, total - total / 2] } else { [0, 0] })
    };
    let ([top, bottom], [left, right]) = (along(0)?, along(1)?);
    Ok(Window { stride, dilation, padding: Padding { top, bottom, left, right } })
}

fn conv(options: &WindowOptions, operands: &Operands<'_>) -> Result<Op, String> {
    let (input, [_, kh, kw, _]) = (operands.shape4(0)?, operands.shape4(1)?);
    let window = window(options, [kh, kw], input)?;
    Ok(Op::Conv2d { window, activation: activation(options.activation)? })
}

fn depthwise(options: &WindowOptions, stored: i32, operands: &Operands<'_>) -> Result<Op, String> {
    let (input, [_, kh, kw, outputs]) = (operands.shape4(0)?, operands.shape4(1)?);
    let window = window(options, [kh, kw], input)?;
    // The stored multiplier may be 0; the shapes say the same.
    let multiplier = outputs / input[3];
    if stored != 0 && usize::try_from(stored) != Ok(multiplier) {
        return Err(format!("multiplier {stored} does not fit {outputs} filters on {} channels", input[3]));
    }
    Ok(Op::DepthwiseConv2d { window, multiplier, activation: activation(options.activation)? })
}

fn pool(name: &str, options: &WindowOptions, kernel: [i32; 2], operands: &Operands<'_>) -> Result<Op, String> {
    let kernel = pair(kernel, "kernel")?;
    let window = window(options, kernel, operands.shape4(0)?)?;
    let activation = activation(options.activation)?;
    Ok(match name {
        "MAX_POOL_2D" => Op::MaxPool2d { kernel, window, activation },
        _ => Op::AveragePool2d { kernel, window, activation },
    })
}

fn paddings(operands: &Operands<'_>) -> Result<Vec<[usize; 2]>, String> {
    let amounts = operands.constant(1)?;
    let (pairs, rest) = amounts.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(format!("{} amounts do not come in pairs", amounts.len()));
    }
    let amount = |&amount: &i64| usize::try_from(amount).ok().filter(|&amount| amount <= 1 << 30);
    let pair = |[before, after]: &[i64; 2]| Some([amount(before)?, amount(after)?]);
    pairs.iter().map(pair).collect::<Option<_>>().ok_or_else(|| format!("amounts {amounts:?} are out of range"))
}

fn mean(keep_dims: bool, operands: &Operands<'_>) -> Result<Op, String> {
    let rank = operands.shape(0)?.len();
    let one = |&value: &i64| axis(i32::try_from(value).unwrap_or(i32::MAX), rank);
    let mut axes: Vec<usize> = operands.constant(1)?.iter().map(one).collect::<Result<_, _>>()?;
    axes.sort_unstable();
    axes.dedup();
    Ok(Op::Mean { axes, keep_dims })
}

/// Names of the built-in operators by their code, for people; [`op`] says which of them are read.
#[rustfmt::skip]
const NAMES: [&str; 210] = [
    "ADD", "AVERAGE_POOL_2D", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE", "DEQUANTIZE",
    "EMBEDDING_LOOKUP", "FLOOR", "FULLY_CONNECTED", "HASHTABLE_LOOKUP", "L2_NORMALIZATION", "L2_POOL_2D",
    "LOCAL_RESPONSE_NORMALIZATION", "LOGISTIC", "LSH_PROJECTION", "LSTM", "MAX_POOL_2D", "MUL", "RELU",
    "RELU_N1_TO_1", "RELU6", "RESHAPE", "RESIZE_BILINEAR", "RNN", "SOFTMAX", "SPACE_TO_DEPTH", "SVDF", "TANH",
    "CONCAT_EMBEDDINGS", "SKIP_GRAM", "CALL", "CUSTOM", "EMBEDDING_LOOKUP_SPARSE", "PAD",
    "UNIDIRECTIONAL_SEQUENCE_RNN", "GATHER", "BATCH_TO_SPACE_ND", "SPACE_TO_BATCH_ND", "TRANSPOSE", "MEAN", "SUB",
    "DIV", "SQUEEZE", "UNIDIRECTIONAL_SEQUENCE_LSTM", "STRIDED_SLICE", "BIDIRECTIONAL_SEQUENCE_RNN", "EXP",
    "TOPK_V2", "SPLIT", "LOG_SOFTMAX", "DELEGATE", "BIDIRECTIONAL_SEQUENCE_LSTM", "CAST", "PRELU", "MAXIMUM",
    "ARG_MAX", "MINIMUM", "LESS", "NEG", "PADV2", "GREATER", "GREATER_EQUAL", "LESS_EQUAL", "SELECT", "SLICE",
    "SIN", "TRANSPOSE_CONV", "SPARSE_TO_DENSE", "TILE", "EXPAND_DIMS", "EQUAL", "NOT_EQUAL", "LOG", "SUM", "SQRT",
    "RSQRT", "SHAPE", "POW", "ARG_MIN", "FAKE_QUANT", "REDUCE_PROD", "REDUCE_MAX", "PACK", "LOGICAL_OR", "ONE_HOT",
    "LOGICAL_AND", "LOGICAL_NOT", "UNPACK", "REDUCE_MIN", "FLOOR_DIV", "REDUCE_ANY", "SQUARE", "ZEROS_LIKE", "FILL",
    "FLOOR_MOD", "RANGE", "RESIZE_NEAREST_NEIGHBOR", "LEAKY_RELU", "SQUARED_DIFFERENCE", "MIRROR_PAD", "ABS",
    "SPLIT_V", "UNIQUE", "CEIL", "REVERSE_V2", "ADD_N", "GATHER_ND", "COS", "WHERE", "RANK", "ELU",
    "REVERSE_SEQUENCE", "MATRIX_DIAG", "QUANTIZE", "MATRIX_SET_DIAG", "ROUND", "HARD_SWISH", "IF", "WHILE",
    "NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", "SCATTER_ND", "SELECT_V2", "DENSIFY", "SEGMENT_SUM",
    "BATCH_MATMUL", "PLACEHOLDER_FOR_GREATER_OP_CODES", "CUMSUM", "CALL_ONCE", "BROADCAST_TO", "RFFT2D", "CONV_3D",
    "IMAG", "REAL", "COMPLEX_ABS", "HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE",
    "REDUCE_ALL", "CONV_3D_TRANSPOSE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "BROADCAST_ARGS",
    "RANDOM_STANDARD_NORMAL", "BUCKETIZE", "RANDOM_UNIFORM", "MULTINOMIAL", "GELU", "DYNAMIC_UPDATE_SLICE",
    "RELU_0_TO_1", "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_SUM", "ATAN2",
    "UNSORTED_SEGMENT_MIN", "SIGN", "BITCAST", "BITWISE_XOR", "RIGHT_SHIFT", "STABLEHLO_LOGISTIC", "STABLEHLO_ADD",
    "STABLEHLO_DIVIDE", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_RESHAPE", "STABLEHLO_CLAMP",
    "STABLEHLO_CONCATENATE", "STABLEHLO_BROADCAST_IN_DIM", "STABLEHLO_CONVOLUTION", "STABLEHLO_SLICE",
    "STABLEHLO_CUSTOM_CALL", "STABLEHLO_REDUCE", "STABLEHLO_ABS", "STABLEHLO_AND", "STABLEHLO_COSINE",
    "STABLEHLO_EXPONENTIAL", "STABLEHLO_FLOOR", "STABLEHLO_LOG", "STABLEHLO_MINIMUM", "STABLEHLO_NEGATE",
    "STABLEHLO_OR", "STABLEHLO_POWER", "STABLEHLO_REMAINDER", "STABLEHLO_RSQRT", "STABLEHLO_SELECT",
    "STABLEHLO_SUBTRACT", "STABLEHLO_TANH", "STABLEHLO_SCATTER", "STABLEHLO_COMPARE", "STABLEHLO_CONVERT",
    "STABLEHLO_DYNAMIC_SLICE", "STABLEHLO_DYNAMIC_UPDATE_SLICE", "STABLEHLO_PAD", "STABLEHLO_IOTA",
    "STABLEHLO_DOT_GENERAL", "STABLEHLO_REDUCE_WINDOW", "STABLEHLO_SORT", "STABLEHLO_WHILE", "STABLEHLO_GATHER",
    "STABLEHLO_TRANSPOSE", "DILATE", "STABLEHLO_RNG_BIT_GENERATOR", "REDUCE_WINDOW", "STABLEHLO_COMPOSITE",
    "STABLEHLO_SHIFT_LEFT", "STABLEHLO_CBRT", "STABLEHLO_CASE",
];
