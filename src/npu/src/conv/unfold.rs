//! Convolutions as one product of matrices: the host lays the inputs of every output side by side, and the NPU multiplies
//! them with the resident filter.
//!
//! ```text
//! picture ─▶ [pixels, taps × c] ─▶ product with [channels, taps × c]ᵀ ─▶ [pixels, channels], which is the output
//! ```
//!
//! Any stride, padding, dilation and kernel will do, as no register says them.

use std::time::Duration;

use crate::context::Context;
use crate::conv::finish::{Finish, check_bias};
use crate::conv::numbers::{Element, Gives, Output};
use crate::conv::run::check_shapes;
use crate::conv::{Conv, Image};
use crate::emit::Kind;
use crate::error::{RunError, RunReport, Unsupported};
use crate::layer::Tensor;
use crate::matmul::{MatmulPlan, Matrix, Numbers, Shape, Weights, pad_rows};
use crate::ops::{Quant, Window};

/// Most bytes of a matrix on the host.
pub(crate) const MOST_BYTES: usize = 64 << 20;

/// A second factor in device memory, padded to whole groups, and how it is used.
#[derive(Debug)]
pub(crate) struct Product<N> {
    weights: Weights<N>,
    /// Rows of the caller, and what the NPU computes: rows, depth, columns.
    pub(crate) rows: usize,
    pub(crate) shape: Shape,
    plan: MatmulPlan,
}

impl<N: Numbers> Product<N> {
    /// Packs `columns` rows of `depth` values each, which `row` writes.
    ///
    /// # Errors
    /// Matrices beyond [`MOST_BYTES`], and as [`Context::pack_weights`].
    pub(crate) fn pack(
        context: &mut Context,
        [rows, depth, columns]: [usize; 3],
        row: impl Fn(usize, &mut [N::Factor]),
    ) -> Result<Self, RunError> {
        let plan = plan::<N>(context, [rows, depth, columns])?;
        let shape = plan.shape();
        let mut values = vec![N::Factor::default(); shape.columns * shape.depth];
        for (column, values) in values.chunks_exact_mut(shape.depth).take(columns).enumerate() {
            row(column, &mut values[..depth]);
        }
        let weights = context.pack_weights::<N>(Matrix::new(&values, shape.columns, shape.depth)?)?;
        Ok(Self { weights, rows, shape, plan })
    }

    /// Multiplies `first`, `[rows, depth]` with padding.
    pub(crate) fn run(&self, context: &mut Context, first: &[N::Factor]) -> Result<(Vec<N::Sum>, RunReport), RunError> {
        let Shape { rows, depth, columns } = self.shape;
        let mut sums = vec![N::Sum::default(); rows * columns];
        let report = context.matmul_resident::<N>(Matrix::new(first, rows, depth)?, &self.weights, &mut sums)?;
        Ok((sums, report))
    }

    pub(crate) fn device_bytes(&self) -> u64 {
        self.weights.device_bytes()
    }

    /// Modelled time of a call: the NPU's with `workers` workers, and that of `bytes` that the host moves beside.
    pub(crate) fn time(&self, context: &Context, bytes: usize) -> Duration {
        time(context, &self.plan, bytes)
    }
}

/// The plan of a product with its extents padded, and the check that its matrices are not too large.
fn plan<N: Numbers>(context: &Context, [rows, depth, columns]: [usize; 3]) -> Result<MatmulPlan, Unsupported> {
    let shape = Shape {
        rows: pad_rows(rows),
        depth: depth.next_multiple_of(N::PRODUCT.depth_group()),
        columns: columns.next_multiple_of(N::PRODUCT.column_group()),
    };
    let bytes = |rows: usize, columns: usize, size: usize| rows.checked_mul(columns).and_then(|n| n.checked_mul(size));
    let sides = [
        ("inputs side by side", bytes(shape.rows, shape.depth, size_of::<N::Factor>())),
        ("sums", bytes(shape.rows, shape.columns, size_of::<N::Sum>())),
    ];
    for (what, bytes) in sides {
        if bytes.is_none_or(|bytes| bytes > MOST_BYTES) {
            let Shape { rows, depth, columns } = shape;
            let what = format!("the {what} of a product of {rows} × {depth} × {columns} exceed {MOST_BYTES} bytes");
            return Err(Unsupported::new(what));
        }
    }
    MatmulPlan::resident(context.chip(), N::PRODUCT, shape, context.options())
}

fn time(context: &Context, plan: &MatmulPlan, bytes: usize) -> Duration {
    let widest = plan.split(context.workers.len()).first().map_or(0, ExactSizeIterator::len);
    let batched = context.options().batched && context.workers[0].device.info().has_batched_submit();
    // CAST: widening.
    let host = bytes as f64 / context.chip().sync_bytes_per_second as f64;
    plan.columns(widest).time(batched) + Duration::from_secs_f64(host)
}

/// A convolution as a product, with its weights on the device.
#[derive(Debug)]
pub struct Unfolded<In: Element, Out> {
    product: Product<In::Product>,
    input: [usize; 3],
    output: [usize; 3],
    window: Window,
    outside: In,
    finish: Finish,
    results: std::marker::PhantomData<Out>,
}

impl Context {
    /// Puts the weights of a convolution onto the device, for products with pictures of a shape, `[h, w, c]`, that are laid
    /// out by the host.
    ///
    /// # Errors
    /// [`RunError::Unsupported`] for a depthwise convolution and for matrices beyond 64 MiB; as [`Context::pack_weights`].
    pub fn load_unfolded<In, Out>(
        &mut self,
        shape: [usize; 3],
        conv: &Conv<'_, In>,
    ) -> Result<Unfolded<In, Out>, RunError>
    where
        In: Gives<Out>,
        Out: Output,
    {
        let [h, w, c] = shape;
        if conv.kind == Kind::Depthwise {
            return Err(Unsupported::new("a depthwise convolution as a product").into());
        }
        let [oh, ow] = conv.window.output([h, w])?;
        let depth = conv.window.kernel[0] * conv.window.kernel[1] * c;
        if conv.channels == 0 || conv.filter.len() != depth * conv.channels {
            let (found, channels) = (conv.filter.len(), conv.channels);
            let what = format!("the filter has {found} weights, {channels} kernels of {depth} are needed");
            return Err(Unsupported::new(what).into());
        }
        check_bias(&conv.bias, In::TYPE, conv.channels)?;
        let output = [oh, ow, conv.channels];
        let finish = finish::<In, Out>(conv, shape, output)?;
        let ones = usize::from(finish.needs_window());
        let product = Product::pack(self, [oh * ow, depth, conv.channels + ones], |column, values| {
            match conv.filter.chunks_exact(depth).nth(column) {
                Some(kernel) => values.copy_from_slice(&In::factors(kernel)),
                None => values.copy_from_slice(&In::factors(&vec![In::ONE; depth])),
            }
        })?;
        let outside = In::from_zero_point(conv.quantised.input.zero_point);
        let results = std::marker::PhantomData;
        Ok(Unfolded { product, input: shape, output, window: conv.window, outside, finish, results })
    }
}

fn finish<In: Gives<Out>, Out: Output>(
    conv: &Conv<'_, In>,
    input: [usize; 3],
    output: [usize; 3],
) -> Result<Finish, Unsupported> {
    let sums = Out::TYPE.bytes() == 4;
    let quant = match sums {
        true => Quant { scale: 1.0, zero_point: In::TYPE.centre() },
        false => conv.quantised.output,
    };
    let input = Tensor::of_any_size(input, In::TYPE, conv.quantised.input)?;
    // Real numbers have no limits that the hardware sets.
    Finish::new(conv, &input, &Tensor::of_any_size(output, In::TYPE, quant)?, sums || !In::TYPE.is_integer())
}

impl<In, Out> Unfolded<In, Out>
where
    In: Gives<Out>,
    Out: Output,
{
    /// `[h, w, c]` of the results.
    pub fn output(&self) -> [usize; 3] {
        self.output
    }

    /// Bytes of device memory that the weights take.
    pub fn device_bytes(&self) -> u64 {
        self.product.device_bytes()
    }

    /// Modelled time of a call: the NPU's, and that of what the host lays out and reads, at the bandwidth of memory. For
    /// whoever decides where a layer runs; no measurement.
    pub fn estimate(&self, context: &Context) -> Duration {
        let Shape { rows, depth, columns } = self.product.shape;
        let bytes = rows * (2 * depth * In::TYPE.bytes() + columns * 4);
        self.product.time(context, bytes)
    }

    /// Runs it for one picture.
    ///
    /// # Errors
    /// As [`Context::conv2d`]; [`RunError::Unsupported`] also for another context than that of the weights.
    pub fn run(&self, context: &mut Context, image: Image<'_, In>, results: &mut [Out]) -> Result<RunReport, RunError> {
        check_shapes::<Out>(image.shape, self.input, results.len(), self.output)?;
        results.fill(Out::default());
        let first = self.unfold(context, &image)?;
        let (sums, report) = self.product.run(context, &first)?;
        let rows = sums.chunks_exact(self.product.shape.columns);
        let channels = self.output[2];
        for (results, sums) in results.chunks_exact_mut(channels).zip(rows) {
            let window = if self.finish.needs_window() { In::real(sums[channels]) } else { 0.0 };
            for (channel, (result, sum)) in results.iter_mut().zip(sums).enumerate() {
                *result = self.finish.result(channel, In::real(*sum), window);
            }
        }
        Ok(report)
    }

    /// The inputs of each output side by side.
    fn unfold(
        &self,
        context: &mut Context,
        image: &Image<'_, In>,
    ) -> Result<Vec<<In::Product as Numbers>::Factor>, RunError> {
        let Shape { rows, depth, .. } = self.product.shape;
        let mut matrix = vec![Default::default(); rows * depth];
        let values = In::factors(image.values);
        context.fill_lines(&mut matrix, self.output[1] * depth, |y, line| {
            line.chunks_exact_mut(depth).enumerate().for_each(|(x, row)| self.place(&values, [y, x], row));
        })?;
        Ok(matrix)
    }

    /// The inputs of one output.
    fn place(
        &self,
        values: &[<In::Product as Numbers>::Factor],
        [y, x]: [usize; 2],
        row: &mut [<In::Product as Numbers>::Factor],
    ) {
        let [h, w, c] = self.input;
        let Window { kernel, stride, dilation, padding } = self.window;
        for (tap, row) in row.chunks_exact_mut(c).take(kernel[0] * kernel[1]).enumerate() {
            let y = (y * stride[0] + tap / kernel[1] * dilation[0]).checked_sub(padding.top).filter(|y| *y < h);
            let x = (x * stride[1] + tap % kernel[1] * dilation[1]).checked_sub(padding.left).filter(|x| *x < w);
            match y.zip(x) {
                Some((y, x)) => row.copy_from_slice(&values[(y * w + x) * c..][..c]),
                None => row.fill(In::factor(self.outside)),
            }
        }
    }
}
