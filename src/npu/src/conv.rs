//! Convolutions on all cores, without a network around them: from pictures on the host to pictures on the host.
//!
//! ```text
//! Conv (description) ─▶ ConvPlan (pure: pieces) ─▶ LoadedConv (weights on the device) ─▶ run, any number of times
//! ```
//!
//! Pictures are [`Image`]s, `[h, w, c]`; the type of the results says how sums become results:
//!
//! | features → results | direct | depthwise | sums become results by |
//! |---|---|---|---|
//! | `f16` → `f16` | yes | yes | bias, activation, rounding to half precision |
//! | `f16` → `f32` | yes | refused | bias and activation |
//! | `i8` → `i8`, `u8` → `u8` | yes | yes | bias, requantisation per tensor or per channel, activation |
//! | `i8` → `i32`, `u8` → `i32` | yes | refused | bias |
//!
//! Depthwise sums are refused because the hardware's 32-bit writer repeats lanes there (npu-spec 4.6).
//!
//! A convolution is cut into *pieces* that the hardware can do: rows for the workers, columns where a row is too wide, input
//! channels where a kernel is too large (the parts' sums are then added on the host), output channels where there are too
//! many. Padding that no register can express is written into the piece's input. How many workers there are never changes
//! a result.
//!
//! ```
//! # use npu::conv::{Conv, Image};
//! # use npu::{Bias, Context, RunError, Window};
//! # fn sums(context: &mut Context, picture: &[i8], filter: &[i8]) -> Result<Vec<i32>, RunError> {
//! let image = Image::new(picture, [224, 224, 3])?;
//! let conv = Conv::direct(Window::square(3, 2).same([224, 224])?, 32, filter);
//! let mut sums = vec![0; 112 * 112 * 32];
//! context.conv2d(image, &conv, &mut sums)?;
//! # Ok(sums)
//! # }
//! ```

mod finish;
mod numbers;
mod piece;
mod plan;
mod resize;
mod run;
mod scatter;
mod transposed;
mod unfold;

use crate::emit::Kind;
use crate::error::Unsupported;
use crate::ops::{Activation, Bias, Quant, Window};
pub use numbers::{Element, Gives, Output};
pub use plan::ConvPlan;
pub use run::LoadedConv;
pub use scatter::Scattered;
pub use transposed::{LoadedTransposed, Route, Transposed};
pub use unfold::Unfolded;

/// A picture on the host, or a series of one column: `[h, w, c]`, NHWC.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a, T> {
    values: &'a [T],
    shape: [usize; 3],
}

impl<'a, T> Image<'a, T> {
    /// `values`: `[h, w, c]`.
    ///
    /// # Errors
    /// A number of values that is not that of the shape, or an extent of 0.
    pub fn new(values: &'a [T], shape: [usize; 3]) -> Result<Self, Unsupported> {
        let expected = shape.iter().try_fold(1, |product: usize, extent| product.checked_mul(*extent));
        if shape.contains(&0) || expected != Some(values.len()) {
            return Err(Unsupported::new(format!("{} values are no picture of {shape:?}", values.len())));
        }
        Ok(Self { values, shape })
    }

    /// `values`: `[steps, channels]`, for a convolution in one dimension with [`Window::series`].
    ///
    /// # Errors
    /// As [`Image::new`].
    pub fn series(values: &'a [T], steps: usize, channels: usize) -> Result<Self, Unsupported> {
        Self::new(values, [steps, 1, channels])
    }

    /// Its values, in that order.
    pub(crate) fn values(&self) -> &'a [T] {
        self.values
    }

    /// `[h, w, c]`.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }
}

/// What quantised numbers mean. The zero points count for sums too, the scales do not.
#[derive(Clone, Copy, Debug)]
pub struct Quantised<'a> {
    /// Of the input.
    pub input: Quant,
    /// One scale, or one per output channel.
    pub filter_scales: &'a [f32],
    /// One zero point, one per output channel, or none where all are 0.
    pub filter_zero_points: &'a [i32],
    /// Of the results.
    pub output: Quant,
}

impl Default for Quantised<'_> {
    fn default() -> Self {
        Self { input: Quant::NONE, filter_scales: &[1.0], filter_zero_points: &[], output: Quant::NONE }
    }
}

/// A convolution.
#[derive(Clone, Copy, Debug)]
pub struct Conv<'a, T> {
    kind: Kind,
    window: Window,
    /// Steps between inputs of a transposed convolution, with zeros between them; 1 otherwise.
    spread: [usize; 2],
    channels: usize,
    filter: &'a [T],
    bias: Bias<'a>,
    activation: Activation,
    quantised: Quantised<'a>,
}

impl<'a, T> Conv<'a, T> {
    /// Every output channel sees every input channel. `filter`: `[channels, kh, kw, c]`.
    pub fn direct(window: Window, channels: usize, filter: &'a [T]) -> Self {
        Self::new(Kind::Direct, window, channels, filter)
    }

    /// Every output channel sees one input channel, and there are as many of them, or a multiple: output channel `i` sees
    /// input channel `i / multiplier`. `filter`: `[kh, kw, channels]`.
    pub fn depthwise(window: Window, channels: usize, filter: &'a [T]) -> Self {
        Self::new(Kind::Depthwise, window, channels, filter)
    }

    fn new(kind: Kind, window: Window, channels: usize, filter: &'a [T]) -> Self {
        let (bias, activation) = (Bias::None, Activation::None);
        let quantised = Quantised::default();
        Self { kind, window, spread: [1, 1], channels, filter, bias, activation, quantised }
    }

    /// With a bias: real for half precision, in units of input scale × filter scale for integers.
    #[must_use]
    pub fn bias(self, bias: Bias<'a>) -> Self {
        Self { bias, ..self }
    }

    /// With a fused activation.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// With the meaning of its 8-bit numbers.
    #[must_use]
    pub fn quantised(self, quantised: Quantised<'a>) -> Self {
        Self { quantised, ..self }
    }
}
