//! Descriptions of operations: what a caller says of a layer.

use crate::error::Unsupported;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// Signed 8-bit, quantised.
    I8,
    /// Unsigned 8-bit, quantised; the NPU sees it less 128.
    U8,
    /// IEEE half precision.
    F16,
}

impl ElementType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 => 2,
        }
    }

    /// What is subtracted from a stored integer so that the NPU's signed 8-bit datapath sees it.
    pub(crate) const fn centre(self) -> i32 {
        match self {
            Self::U8 => 128,
            Self::I8 | Self::F16 => 0,
        }
    }

    /// Whether elements are quantised.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::I8 | Self::U8)
    }
}

/// real = scale × (q − zero_point). Means nothing for [`ElementType::F16`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quant {
    /// Real step of one quantised step.
    pub scale: f32,
    /// The quantised value of 0, in the tensor's own element type.
    pub zero_point: i32,
}

impl Quant {
    /// For tensors of real numbers.
    pub const NONE: Self = Self { scale: 1.0, zero_point: 0 };
}

/// Pixels added on each side.
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

/// How a kernel moves over its input, `[h, w]` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Kernel extents.
    pub kernel: [usize; 2],
    /// Steps.
    pub stride: [usize; 2],
    /// Distances between taps.
    pub dilation: [usize; 2],
    /// Padding.
    pub padding: Padding,
}

impl Window {
    /// A kernel of one tap.
    pub const POINT: Self = Self {
        kernel: [1, 1],
        stride: [1, 1],
        dilation: [1, 1],
        padding: Padding { top: 0, bottom: 0, left: 0, right: 0 },
    };

    /// Output extents `[h, w]` for input extents `[h, w]`.
    ///
    /// # Errors
    /// A window that does not fit the padded input, or an extent of 0.
    pub fn output(&self, input: [usize; 2]) -> Result<[usize; 2], Unsupported> {
        let pads = [self.padding.top + self.padding.bottom, self.padding.left + self.padding.right];
        let mut output = [0; 2];
        for axis in 0..2 {
            let (kernel, stride, dilation) = (self.kernel[axis], self.stride[axis], self.dilation[axis]);
            if kernel == 0 || stride == 0 || dilation == 0 || input[axis] == 0 {
                return Err(Unsupported::new(format!("kernel, stride, dilation or input of 0: {self:?} on {input:?}")));
            }
            let span = dilation * (kernel - 1) + 1;
            let room = input[axis] + pads[axis];
            if room < span {
                return Err(Unsupported::new(format!("a window of {span} does not fit {room} padded pixels")));
            }
            output[axis] = (room - span) / stride + 1;
        }
        Ok(output)
    }
}

/// Activation fused into an operation. For quantised tensors it becomes limits of the output as TFLite computes them.
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

/// Weights of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct Filter<'a> {
    /// Little-endian elements: `[out, kh, kw, in]` for a convolution, `[kh, kw, channels × multiplier]` for a depthwise
    /// one; of the element type of the input, and real = scale × (q − zero_point) for each output channel.
    pub data: &'a [u8],
    /// One scale, or one per output channel. Empty for real numbers.
    pub scales: &'a [f32],
    /// As many zero points as scales, or none where all are 0.
    pub zero_points: &'a [i32],
}

/// What is added to each output channel.
#[derive(Clone, Copy, Debug, Default)]
pub enum Bias<'a> {
    /// Nothing.
    #[default]
    None,
    /// In units of input scale × filter scale; one per output channel.
    I32(&'a [i32]),
    /// Real numbers, one per output channel.
    F32(&'a [f32]),
}

/// A convolution in which every output channel sees every input channel.
#[derive(Clone, Copy, Debug)]
pub struct Conv2d<'a> {
    /// Movement of the kernel.
    pub window: Window,
    /// Output channels.
    pub channels: usize,
    /// Weights.
    pub filter: Filter<'a>,
    /// Bias.
    pub bias: Bias<'a>,
    /// Quantisation of the output.
    pub output: Quant,
    /// Fused activation.
    pub activation: Activation,
}

/// A convolution in which every output channel sees one input channel.
#[derive(Clone, Copy, Debug)]
pub struct Depthwise<'a> {
    /// Movement of the kernel.
    pub window: Window,
    /// Output channels per input channel.
    pub multiplier: usize,
    /// Weights.
    pub filter: Filter<'a>,
    /// Bias.
    pub bias: Bias<'a>,
    /// Quantisation of the output.
    pub output: Quant,
    /// Fused activation.
    pub activation: Activation,
}

/// The sum of two tensors of one shape.
#[derive(Clone, Copy, Debug)]
pub struct Add {
    /// Quantisation of the output.
    pub output: Quant,
    /// Fused activation.
    pub activation: Activation,
}
