//! The typed graph that every model file becomes.
//!
//! ```text
//! Graph ─ tensors: [Tensor]          indexed by TensorId
//!       └ nodes:   [Node]            in execution order; each names its input and output tensors
//! ```
//!
//! A graph that a reader returned is checked: every index is in range, every constant holds exactly its shape's bytes,
//! and the shapes of a node agree with its operator.

use std::fmt;
use std::sync::Arc;

/// Element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Bool => 1,
            Self::I16 | Self::F16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 => 8,
        }
    }
}

/// Index of a tensor in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub usize);

/// real = scale × (q − zero_point), for the whole tensor or for each index of `axis`.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// One scale, or one per index of `axis`.
    pub scales: Vec<f32>,
    /// As many zero points as scales.
    pub zero_points: Vec<i32>,
    /// The axis of the scales where there is more than one.
    pub axis: usize,
}

impl Quantization {
    /// Scale and zero point of a tensor quantised as a whole.
    pub fn per_tensor(&self) -> Option<(f32, i32)> {
        match (self.scales.as_slice(), self.zero_points.as_slice()) {
            (&[scale], &[zero_point]) => Some((scale, zero_point)),
            _ => None,
        }
    }
}

/// A tensor of the graph.
#[derive(Clone)]
pub struct Tensor {
    /// Name in the file, for people.
    pub name: String,
    /// Extents, outermost first; a picture is `[n, h, w, c]`.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// Quantisation, where there is one.
    pub quantization: Option<Quantization>,
    /// Little-endian contents of a constant.
    pub data: Option<Arc<[u8]>>,
}

impl Tensor {
    /// Elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{:?} {:?}", self.dtype, self.shape, self.name)?;
        if self.data.is_some() { f.write_str(" const") } else { Ok(()) }
    }
}

/// Activation fused into an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// None.
    #[default]
    None,
    /// At least 0.
    Relu,
    /// Between -1 and 1.
    ReluN1To1,
    /// Between 0 and 6.
    Relu6,
}

/// Pixels added on each side, already resolved from SAME or VALID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Padding {
    /// Rows above.
    pub top: usize,
    /// Rows below.
    pub bottom: usize,
    /// Columns before.
    pub left: usize,
    /// Columns after.
    pub right: usize,
}

/// Window of a convolution or pooling, `[h, w]` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Steps.
    pub stride: [usize; 2],
    /// Distances between taps.
    pub dilation: [usize; 2],
    /// Padding.
    pub padding: Padding,
}

/// What a node computes. Inputs and outputs are named in the order of the TFLite schema.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// input `[n,h,w,c]`, filter `[k,kh,kw,c]`, optional bias `[k]`.
    Conv2d {
        /// Window.
        window: Window,
        /// Fused activation.
        activation: Activation,
    },
    /// input `[n,h,w,c]`, filter `[1,kh,kw,c*multiplier]`, optional bias.
    DepthwiseConv2d {
        /// Window.
        window: Window,
        /// Output channels per input channel.
        multiplier: usize,
        /// Fused activation.
        activation: Activation,
    },
    /// Two inputs, broadcast.
    Add {
        /// Fused activation.
        activation: Activation,
    },
    /// Two inputs, broadcast.
    Mul {
        /// Fused activation.
        activation: Activation,
    },
    /// input `[n, k]` (flattened), filter `[m, k]`, optional bias.
    FullyConnected {
        /// Fused activation.
        activation: Activation,
    },
    /// Mean of each window; padding does not count.
    AveragePool2d {
        /// Kernel `[h, w]`.
        kernel: [usize; 2],
        /// Window.
        window: Window,
        /// Fused activation.
        activation: Activation,
    },
    /// Maximum of each window.
    MaxPool2d {
        /// Kernel `[h, w]`.
        kernel: [usize; 2],
        /// Window.
        window: Window,
        /// Fused activation.
        activation: Activation,
    },
    /// Same elements, other shape.
    Reshape,
    /// Joins along an axis.
    Concatenation {
        /// The axis.
        axis: usize,
        /// Fused activation.
        activation: Activation,
    },
    /// Constant border.
    Pad {
        /// Elements before and after, per axis.
        amounts: Vec<[usize; 2]>,
    },
    /// Softmax over the last axis.
    Softmax {
        /// Factor of the exponent.
        beta: f32,
    },
    /// Sigmoid.
    Logistic,
    /// max(0, x), unfused.
    Relu,
    /// min(max(0, x), 6), unfused.
    Relu6,
    /// To another quantisation, or from real numbers.
    Quantize,
    /// To real numbers.
    Dequantize,
    /// Mean over axes.
    Mean {
        /// The axes.
        axes: Vec<usize>,
        /// Whether the axes stay as 1.
        keep_dims: bool,
    },
}

impl Op {
    /// The operator's name in the TFLite schema.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Conv2d { .. } => "CONV_2D",
            Self::DepthwiseConv2d { .. } => "DEPTHWISE_CONV_2D",
            Self::Add { .. } => "ADD",
            Self::Mul { .. } => "MUL",
            Self::FullyConnected { .. } => "FULLY_CONNECTED",
            Self::AveragePool2d { .. } => "AVERAGE_POOL_2D",
            Self::MaxPool2d { .. } => "MAX_POOL_2D",
            Self::Reshape => "RESHAPE",
            Self::Concatenation { .. } => "CONCATENATION",
            Self::Pad { .. } => "PAD",
            Self::Softmax { .. } => "SOFTMAX",
            Self::Logistic => "LOGISTIC",
            Self::Relu => "RELU",
            Self::Relu6 => "RELU6",
            Self::Quantize => "QUANTIZE",
            Self::Dequantize => "DEQUANTIZE",
            Self::Mean { .. } => "MEAN",
        }
    }
}

/// One operator application.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// Inputs; an absent optional input is `None`.
    pub inputs: Vec<Option<TensorId>>,
    /// Outputs.
    pub outputs: Vec<TensorId>,
}

/// A checked graph.
#[derive(Clone, Debug)]
pub struct Graph {
    /// Tensors.
    pub tensors: Vec<Tensor>,
    /// Nodes in execution order.
    pub nodes: Vec<Node>,
    /// What a caller provides.
    pub inputs: Vec<TensorId>,
    /// What a caller gets.
    pub outputs: Vec<TensorId>,
}

impl Graph {
    /// A graph of checked tensors and nodes.
    ///
    /// # Errors
    /// [`crate::Error`] where a node reads what has no value yet, or a tensor is written twice.
    ///
    /// # Panics
    /// For inputs and outputs that are no index of `tensors`.
    pub fn assemble(
        tensors: Vec<Tensor>,
        nodes: Vec<Node>,
        inputs: Vec<TensorId>,
        outputs: Vec<TensorId>,
    ) -> crate::Result<Self> {
        let graph = Self { tensors, nodes, inputs, outputs };
        crate::check::order(&graph)?;
        Ok(graph)
    }
}

impl std::ops::Index<TensorId> for Graph {
    type Output = Tensor;

    fn index(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0]
    }
}
