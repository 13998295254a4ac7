//! Transposed convolutions as one product of matrices: every tap of every input pixel, which the host adds into the output.
//!
//! ```text
//! picture [pixels, c] ─▶ product with [taps × channels, c]ᵀ ─▶ [pixels, taps × channels] ─▶ added where each tap belongs
//! ```
//!
//! No zeros are multiplied. Any stride, dilation and padding will do, padding beyond the kernel's reach included.

use std::borrow::Cow;
use std::time::Duration;

use half::f16;

use crate::context::Context;
use crate::conv::finish::check_bias;
use crate::conv::numbers::{Gives, Output};
use crate::conv::run::check_shapes;
use crate::conv::unfold::Product;
use crate::conv::{Image, Transposed};
use crate::emit::Kind;
use crate::error::{RunError, RunReport, Unsupported};
use crate::matmul::{F16ToF32, Shape};
use crate::ops::{Activation, Bias, ElementType};

/// A transposed convolution as a product, with its weights on the device. Later changes of the filter do not reach it.
#[derive(Debug)]
pub struct Scattered {
    product: Product<F16ToF32>,
    input: [usize; 3],
    output: [usize; 3],
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    /// Rows and columns that are left out before the output.
    before: [usize; 2],
    bias: Option<Vec<f32>>,
}

impl Context {
    /// Puts the weights of a transposed convolution onto the device, for products with pictures of a shape, `[h, w, c]`.
    ///
    /// # Errors
    /// [`RunError::Unsupported`] for a depthwise one, for an activation and for matrices beyond 64 MiB; as
    /// [`Context::pack_weights`].
    pub fn load_scattered(
        &mut self,
        shape: [usize; 3],
        transposed: &Transposed<'_, f16>,
    ) -> Result<Scattered, RunError> {
        let [h, w, c] = shape;
        let Transposed { kernel, stride, dilation, padding, channels, filter, .. } = *transposed;
        if transposed.kind == Kind::Depthwise {
            return Err(Unsupported::new("a depthwise transposed convolution as a product").into());
        }
        if transposed.activation != Activation::None {
            return Err(Unsupported::new("an activation of a scattered transposed convolution").into());
        }
        let [oh, ow] = transposed.output([h, w])?;
        let taps = kernel[0] * kernel[1];
        if channels == 0 || c == 0 || filter.len() != channels * taps * c {
            let (found, each) = (filter.len(), taps * c);
            let what = format!("the filter has {found} weights, {channels} kernels of {each} are needed");
            return Err(Unsupported::new(what).into());
        }
        check_bias(&transposed.bias, ElementType::F16, channels)?;
        let product = Product::pack(self, [h * w, c, taps * channels], |column, values| {
            let (tap, channel) = (column / channels, column % channels);
            values.copy_from_slice(&filter[(channel * taps + tap) * c..][..c]);
        })?;
        let bias = if let Bias::F32(bias) = transposed.bias { Some(bias.to_vec()) } else { None };
        let (output, before) = ([oh, ow, channels], [padding.top, padding.left]);
        Ok(Scattered { product, input: shape, output, kernel, stride, dilation, before, bias })
    }
}

impl Scattered {
    /// `[h, w, c]` of the results.
    pub fn output(&self) -> [usize; 3] {
        self.output
    }

    /// Bytes of device memory that the weights take.
    pub fn device_bytes(&self) -> u64 {
        self.product.device_bytes()
    }

    /// Modelled time of a call, as [`Unfolded::estimate`](crate::conv::Unfolded::estimate).
    pub fn estimate(&self, context: &Context) -> Duration {
        let Shape { rows, depth, columns } = self.product.shape;
        let output: usize = self.output.iter().product();
        self.product.time(context, rows * (depth * 2 + columns * 8) + output * 4)
    }

    /// Runs it for one picture. Results are rounded once, from sums in single precision.
    ///
    /// # Errors
    /// As [`Context::conv_transpose2d`]; [`RunError::Unsupported`] also for another context than that of the weights.
    pub fn run<Out>(
        &self,
        context: &mut Context,
        image: Image<'_, f16>,
        results: &mut [Out],
    ) -> Result<RunReport, RunError>
    where
        f16: Gives<Out>,
        Out: Output,
    {
        check_shapes::<Out>(image.shape, self.input, results.len(), self.output)?;
        results.fill(Out::default());
        let (sums, report) = self.product.run(context, &self.first(image))?;
        let [_, ow, channels] = self.output;
        let filled = context.fill_lines(results, ow * channels, |y, line| self.line(&sums, y, line));
        // A part of a result is never handed out.
        filled.inspect_err(|_| results.fill(Out::default()))?;
        Ok(report)
    }

    /// The picture as a matrix: itself, where it needs no padding.
    fn first<'a>(&self, image: Image<'a, f16>) -> Cow<'a, [f16]> {
        let Shape { rows, depth, .. } = self.product.shape;
        let c = self.input[2];
        if (self.product.rows, c) == (rows, depth) {
            return Cow::Borrowed(image.values);
        }
        let mut matrix = vec![f16::ZERO; rows * depth];
        for (row, pixel) in matrix.chunks_exact_mut(depth).zip(image.values.chunks_exact(c)) {
            row[..c].copy_from_slice(pixel);
        }
        Cow::Owned(matrix)
    }

    /// One row of the output: what every tap that reaches it brings.
    fn line<Out: Output>(&self, sums: &[f32], y: usize, results: &mut [Out]) {
        let [h, w, _] = self.input;
        let [_, ow, channels] = self.output;
        let columns = self.product.shape.columns;
        let mut totals = vec![0.0_f32; results.len()];
        for (ky, kx) in (0..self.kernel[0]).flat_map(|ky| (0..self.kernel[1]).map(move |kx| (ky, kx))) {
            let Some(row) = self.source(0, y, ky).filter(|row| *row < h) else { continue };
            for (x, totals) in (0..ow).zip(totals.chunks_exact_mut(channels)) {
                let Some(column) = self.source(1, x, kx).filter(|column| *column < w) else { continue };
                let tap = ky * self.kernel[1] + kx;
                let sums = &sums[(row * w + column) * columns + tap * channels..][..channels];
                totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
            }
        }
        for (results, totals) in results.chunks_exact_mut(channels).zip(totals.chunks_exact(channels)) {
            for (channel, (result, total)) in results.iter_mut().zip(totals).enumerate() {
                let bias = self.bias.as_ref().map_or(0.0, |bias| bias[channel]);
                *result = Out::from_real(f64::from(*total) + f64::from(bias));
            }
        }
    }

    /// The input position whose tap `tap` reaches output position `at` along an axis.
    fn source(&self, axis: usize, at: usize, tap: usize) -> Option<usize> {
        let step = (at + self.before[axis]).checked_sub(tap * self.dilation[axis])?;
        step.is_multiple_of(self.stride[axis]).then_some(step / self.stride[axis])
    }
}
