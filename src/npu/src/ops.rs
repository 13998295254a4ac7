//! Descriptions of operations: what a caller says of a layer.

use crate::error::Unsupported;

/// Largest extent of anything.
const MOST_EXTENT: usize = 1 << 20;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// Signed 8-bit, quantised.
    I8,
    /// Unsigned 8-bit, quantised; the NPU sees it less 128.
    U8,
    /// IEEE half precision.
    F16,
    /// 32-bit sums of 8-bit products: a result that no operation reads.
    I32,
    /// Single-precision sums of half-precision products: a result that no operation reads.
    F32,
}

impl ElementType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 => 2,
            Self::I32 | Self::F32 => 4,
        }
    }

    /// What is subtracted from a stored integer so that the NPU's signed 8-bit datapath sees it.
    pub(crate) const fn centre(self) -> i32 {
        match self {
            Self::U8 => 128,
            Self::I8 | Self::F16 | Self::I32 | Self::F32 => 0,
        }
    }

    /// Whether elements are quantised: 8-bit integers.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::I8 | Self::U8)
    }
}

/// real = scale × (q − zero_point). Means nothing where [`ElementType::is_integer`] says no.
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

    /// A square kernel with one step in both directions, without dilation and padding.
    pub const fn square(kernel: usize, stride: usize) -> Self {
        Self { kernel: [kernel; 2], stride: [stride; 2], ..Self::POINT }
    }

    /// A kernel that moves along the rows of a series, which has one column; `before` and `after` are padded.
    pub const fn series(kernel: usize, stride: usize, dilation: usize, [before, after]: [usize; 2]) -> Self {
        Self {
            kernel: [kernel, 1],
            stride: [stride, 1],
            dilation: [dilation, 1],
            padding: Padding { top: before, bottom: after, left: 0, right: 0 },
        }
    }

    /// With distances between taps.
    #[must_use]
    pub const fn dilated(self, dilation: [usize; 2]) -> Self {
        Self { dilation, ..self }
    }

    /// With padding.
    #[must_use]
    pub const fn padded(self, padding: Padding) -> Self {
        Self { padding, ..self }
    }

    /// With the padding for which TFLite says SAME: as many outputs as steps fit the input, the odd pixel at the end.
    ///
    /// # Errors
    /// An extent of 0.
    pub fn same(self, input: [usize; 2]) -> Result<Self, Unsupported> {
        self.check(input)?;
        let pad = |axis: usize| {
            let outputs = input[axis].div_ceil(self.stride[axis]);
            ((outputs - 1) * self.stride[axis] + self.span(axis)).saturating_sub(input[axis])
        };
        let [rows, columns] = [pad(0), pad(1)];
        let padding =
            Padding { top: rows / 2, bottom: rows.div_ceil(2), left: columns / 2, right: columns.div_ceil(2) };
        Ok(Self { padding, ..self })
    }

    /// Pixels from the first to the last tap along an axis.
    pub(crate) fn span(&self, axis: usize) -> usize {
        self.dilation[axis] * (self.kernel[axis] - 1) + 1
    }

    /// Padding before the first row or column.
    pub(crate) fn before(&self, axis: usize) -> usize {
        if axis == 0 { self.padding.top } else { self.padding.left }
    }

    /// Refuses extents of 0 and those beyond reason.
    pub(crate) fn check(&self, input: [usize; 2]) -> Result<(), Unsupported> {
        let extents = [self.kernel, self.stride, self.dilation, input];
        if extents.iter().flatten().any(|&extent| extent == 0) {
            return Err(Unsupported::new(format!("kernel, stride, dilation or input of 0: {self:?} on {input:?}")));
        }
        // Far beyond any buffer, and small enough that nothing below overflows.
        let Padding { top, bottom, left, right } = self.padding;
        if extents.iter().flatten().chain(&[top, bottom, left, right]).any(|&extent| extent > MOST_EXTENT) {
            return Err(Unsupported::new(format!("an extent over {MOST_EXTENT}: {self:?} on {input:?}")));
        }
        Ok(())
    }

    /// Output extents `[h, w]` for input extents `[h, w]`.
    ///
    /// # Errors
    /// A window that does not fit the padded input, an extent of 0, or one beyond reason.
    pub fn output(&self, input: [usize; 2]) -> Result<[usize; 2], Unsupported> {
        self.check(input)?;
        let pads = [self.padding.top + self.padding.bottom, self.padding.left + self.padding.right];
        let mut output = [0; 2];
        for axis in 0..2 {
            let span = self.span(axis);
            let room = input[axis] + pads[axis];
            if room < span {
                return Err(Unsupported::new(format!("a window of {span} does not fit {room} padded pixels")));
            }
            output[axis] = (room - span) / self.stride[axis] + 1;
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

/// A convolution whose sums of products leave the NPU as they are: 32-bit integers of 8-bit numbers, single precision of
/// half precision.
///
/// What is outside the input counts as the input's zero point, and no zero point is subtracted: a sum is that of x × w as
/// the signed 8-bit datapath sees both.
#[derive(Clone, Copy, Debug)]
pub struct Sums<'a> {
    /// Movement of the kernel.
    pub window: Window,
    /// Output channels.
    pub channels: usize,
    /// Weights as in [`Filter::data`].
    pub filter: &'a [u8],
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
