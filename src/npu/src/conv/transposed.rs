//! Transposed convolutions: each input adds its kernel to the output, `stride` steps from the next input's.
//!
//! ```text
//! on chip    picture ─▶ the NPU puts zeros between inputs ─▶ results         fp16, steps of 2, 4 or 8
//! lowered    picture ─▶ the host does ─▶ convolution of single steps ─▶ results      everything else
//! scattered  picture ─▶ product with all taps ─▶ the host adds planes ─▶ results     resident weights, any padding
//! ```
//!
//! [`Transposed::route`] says which of the first two a shape takes. The third, [`Context::load_scattered`], inserts no zeros
//! and is the fastest for a layer that runs again and again.

use crate::chip::Chip;
use crate::context::Context;
use crate::conv::numbers::{Element, Gives, Output};
use crate::conv::plan::ConvPlan;
use crate::conv::run::{LoadedConv, check_shapes};
use crate::conv::{Conv, Image, Quantised};
use crate::emit::Kind;
use crate::error::{RunError, RunReport, Unsupported};
use crate::layer::grid;
use crate::ops::{Activation, Bias, Padding, Window};

/// A transposed convolution.
#[derive(Clone, Copy, Debug)]
pub struct Transposed<'a, T> {
    pub(crate) kind: Kind,
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) dilation: [usize; 2],
    pub(crate) padding: Padding,
    pub(crate) output_padding: [usize; 2],
    pub(crate) channels: usize,
    pub(crate) filter: &'a [T],
    pub(crate) bias: Bias<'a>,
    pub(crate) activation: Activation,
    quantised: Quantised<'a>,
}

/// How a transposed convolution is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The NPU puts zeros between inputs.
    OnChip,
    /// The host puts zeros between inputs.
    Lowered,
}

impl<'a, T> Transposed<'a, T> {
    /// Every output channel sees every input channel. `filter`: `[channels, kh, kw, c]`.
    pub fn direct(kernel: [usize; 2], channels: usize, filter: &'a [T]) -> Self {
        Self::new(Kind::Direct, kernel, channels, filter)
    }

    /// Every output channel sees one input channel, and there are as many of them, or a multiple. `filter`:
    /// `[kh, kw, channels]`.
    pub fn depthwise(kernel: [usize; 2], channels: usize, filter: &'a [T]) -> Self {
        Self::new(Kind::Depthwise, kernel, channels, filter)
    }

    fn new(kind: Kind, kernel: [usize; 2], channels: usize, filter: &'a [T]) -> Self {
        Self {
            kind,
            kernel,
            stride: [1; 2],
            dilation: [1; 2],
            padding: Padding::default(),
            output_padding: [0; 2],
            channels,
            filter,
            bias: Bias::None,
            activation: Activation::None,
            quantised: Quantised::default(),
        }
    }

    /// With steps from one input's kernel to the next one's.
    #[must_use]
    pub fn stride(self, stride: [usize; 2]) -> Self {
        Self { stride, ..self }
    }

    /// With distances between taps.
    #[must_use]
    pub fn dilation(self, dilation: [usize; 2]) -> Self {
        Self { dilation, ..self }
    }

    /// With rows and columns of the output that are left out on each side.
    #[must_use]
    pub fn padding(self, padding: Padding) -> Self {
        Self { padding, ..self }
    }

    /// With rows and columns that are added to the output at the bottom and on the right.
    #[must_use]
    pub fn output_padding(self, output_padding: [usize; 2]) -> Self {
        Self { output_padding, ..self }
    }

    /// With a bias, as [`Conv::bias`].
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

    /// Output extents `[h, w]` for input extents `[h, w]`.
    ///
    /// # Errors
    /// Extents of 0, or nothing left of the output.
    pub fn output(&self, input: [usize; 2]) -> Result<[usize; 2], Unsupported> {
        let Self { kernel, stride, dilation, .. } = *self;
        // Checks every extent, of which some are no padding here.
        Window { kernel, stride, dilation, padding: Padding::default() }.check(input)?;
        let Padding { top, bottom, left, right } = self.padding;
        let mut output = [0; 2];
        for (axis, cropped) in [[top, bottom], [left, right]].into_iter().enumerate() {
            let all = (input[axis] - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1;
            let left = (all + self.output_padding[axis]).checked_sub(cropped[0].saturating_add(cropped[1]));
            output[axis] = left.filter(|left| *left > 0).ok_or_else(|| {
                Unsupported::new(format!("padding {cropped:?} leaves nothing of {all} rows or columns"))
            })?;
        }
        Ok(output)
    }

    /// The window of single steps that computes it over inputs with zeros between them.
    fn window(&self) -> Result<Window, Unsupported> {
        let Self { kernel, dilation, output_padding, .. } = *self;
        let reach = [0, 1].map(|axis| dilation[axis] * (kernel[axis] - 1));
        let pad = |axis: usize, cropped: usize, more: usize| {
            (reach[axis] + more).checked_sub(cropped).ok_or_else(|| {
                let reach = reach[axis];
                Unsupported::new(format!(
                    "padding {cropped} beyond a kernel's reach of {reach}, which only scattering can"
                ))
            })
        };
        let Padding { top, bottom, left, right } = self.padding;
        let padding = Padding {
            top: pad(0, top, 0)?,
            bottom: pad(0, bottom, output_padding[0])?,
            left: pad(1, left, 0)?,
            right: pad(1, right, output_padding[1])?,
        };
        Ok(Window { kernel, stride: [1, 1], dilation, padding })
    }
}

impl<T: Element> Transposed<'_, T> {
    /// Which route [`Context::conv_transpose2d`] takes for pictures `[h, w, c]`. Pure.
    ///
    /// # Errors
    /// What exceeds which limit on either route.
    pub fn route<Out>(&self, chip: &Chip, input: [usize; 3]) -> Result<Route, Unsupported>
    where
        T: Gives<Out>,
        Out: Output,
    {
        self.plan::<Out>(chip, 1, input, true).map(|(route, _)| route)
    }

    /// `on_chip`: whether the NPU may put zeros between inputs.
    fn plan<Out>(
        &self,
        chip: &Chip,
        workers: usize,
        input: [usize; 3],
        on_chip: bool,
    ) -> Result<(Route, ConvPlan<T, Out>), Unsupported>
    where
        T: Gives<Out>,
        Out: Output,
    {
        let [h, w, c] = input;
        self.output([h, w])?;
        let filter = self.rotated();
        let Self { kind, stride, channels, bias, activation, quantised, .. } = *self;
        let conv = Conv {
            kind,
            window: self.window()?,
            spread: stride,
            channels,
            filter: &filter,
            bias,
            activation,
            quantised,
        };
        // Without steps there is nothing to put between inputs.
        if on_chip
            && stride != [1, 1]
            && let Ok(plan) = ConvPlan::new(chip, workers, input, &conv)
        {
            return Ok((Route::OnChip, plan));
        }
        let [h, w] = grid([h, w], stride);
        let plan = ConvPlan::new(chip, workers, [h, w, c], &Conv { spread: [1, 1], ..conv })?;
        Ok((Route::Lowered, plan))
    }

    /// The filter turned by 180 degrees. A filter of another length is refused later.
    fn rotated(&self) -> Vec<T> {
        let taps = self.kernel[0] * self.kernel[1];
        let per_tap = match self.kind {
            Kind::Direct => self.filter.len() / (taps * self.channels).max(1),
            Kind::Depthwise => self.channels,
        };
        let (taps, per_tap) = (taps.max(1), per_tap.max(1));
        let kernels = self.filter.chunks(taps * per_tap);
        kernels.flat_map(|kernel| kernel.chunks(per_tap).rev().flatten()).copied().collect()
    }
}

/// A transposed convolution whose weights are on the device, on every worker.
#[derive(Debug)]
pub struct LoadedTransposed<In, Out> {
    route: Route,
    conv: LoadedConv<In, Out>,
    input: [usize; 3],
    stride: [usize; 2],
}

impl Context {
    /// A transposed convolution of one picture by the [route](Transposed::route) of its shape. `results`:
    /// `[h', w', channels]`.
    ///
    /// # Errors
    /// As [`Context::conv2d`]; padding beyond the kernel's reach is refused.
    pub fn conv_transpose2d<In, Out>(
        &mut self,
        image: Image<'_, In>,
        transposed: &Transposed<'_, In>,
        results: &mut [Out],
    ) -> Result<RunReport, RunError>
    where
        In: Gives<Out>,
        Out: Output,
    {
        self.load_transposed(image.shape, transposed)?.run(self, image, results)
    }

    /// Plans a transposed convolution of pictures of a shape, `[h, w, c]`, and puts its weights onto every worker.
    ///
    /// # Errors
    /// As [`Context::conv_transpose2d`].
    pub fn load_transposed<In, Out>(
        &mut self,
        shape: [usize; 3],
        transposed: &Transposed<'_, In>,
    ) -> Result<LoadedTransposed<In, Out>, RunError>
    where
        In: Gives<Out>,
        Out: Output,
    {
        let on_chip = self.options.transposed_on_chip;
        let (route, plan) = transposed.plan(&self.chip, self.workers.len(), shape, on_chip)?;
        Ok(LoadedTransposed { route, conv: self.load_plan(plan)?, input: shape, stride: transposed.stride })
    }
}

impl<In, Out> LoadedTransposed<In, Out>
where
    In: Gives<Out>,
    Out: Output,
{
    /// The route that it takes.
    pub fn route(&self) -> Route {
        self.route
    }

    /// What was planned.
    pub fn plan(&self) -> &ConvPlan<In, Out> {
        self.conv.plan()
    }

    /// Runs it for one picture.
    ///
    /// # Errors
    /// As [`Context::conv_transpose2d`]; [`RunError::Unsupported`] also for another context than that of the weights.
    pub fn run(
        &mut self,
        context: &mut Context,
        image: Image<'_, In>,
        results: &mut [Out],
    ) -> Result<RunReport, RunError> {
        check_shapes::<Out>(image.shape, self.input, results.len(), self.conv.plan().output)?;
        if self.route == Route::OnChip || self.stride == [1, 1] {
            return self.conv.run(context, image, results);
        }
        let [h, w, c] = image.shape;
        let [rows, columns] = grid([h, w], self.stride);
        let mut spread = vec![self.conv.plan().outside; rows * columns * c];
        for (at, pixel) in image.values.chunks_exact(c).enumerate() {
            let (row, column) = (at / w * self.stride[0], at % w * self.stride[1]);
            spread[(row * columns + column) * c..][..c].copy_from_slice(pixel);
        }
        self.conv.run(context, Image { values: &spread, shape: [rows, columns, c] }, results)
    }
}
