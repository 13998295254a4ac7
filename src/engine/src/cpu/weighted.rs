//! Convolutions and the fully connected layer: sums of products with constant weights.

use std::ops::Range;

use model::{Activation, DType, Tensor, Window};

use super::arithmetic::{Element, widen};
use super::fixed::{Multiplier, quantized_range, real_range};
use super::window::Sweep;
use super::{Kernel, Kind, Operands, Quant, put, reals, shape4};

pub(super) fn conv(operands: &Operands<'_>, window: Window, activation: Activation) -> Result<Kernel, String> {
    let [filters, kh, kw, channels] = shape4(operands.input(1));
    let sweep = Sweep::new(operands, [kh, kw], window);
    layer(operands, activation, filters, Scaling::of_windows(operands), Direct { sweep, filters, channels })
}

pub(super) fn depthwise(
    operands: &Operands<'_>,
    window: Window,
    multiplier: usize,
    activation: Activation,
) -> Result<Kernel, String> {
    let [_, kh, kw, filters] = shape4(operands.input(1));
    let sweep = Sweep::new(operands, [kh, kw], window);
    layer(operands, activation, filters, Scaling::of_windows(operands), Depthwise { sweep, multiplier })
}

pub(super) fn fully_connected(operands: &Operands<'_>, activation: Activation) -> Result<Kernel, String> {
    let &[filters, channels] = operands.input(1).shape.as_slice() else { return Err("weights need two axes".into()) };
    layer(operands, activation, filters, Scaling::ROWS, Rows { filters, channels })
}

/// The sums of products of a layer.
trait Products: Copy + Send + Sync + 'static {
    /// Calls `emit` with the range of output elements that it gives one sum each, in the order of the filters.
    fn each<T: Element>(&self, input: &[T], weights: &[T], emit: impl FnMut(Range<usize>, &[T::Sum]));
}

fn dot<T: Element>(start: T::Sum, a: &[T], b: &[T]) -> T::Sum {
    a.iter().zip(b).fold(start, |sum, (&a, &b)| T::add_product(sum, a, b))
}

#[derive(Clone, Copy)]
struct Direct {
    sweep: Sweep,
    filters: usize,
    channels: usize,
}

impl Products for Direct {
    fn each<T: Element>(&self, input: &[T], weights: &[T], mut emit: impl FnMut(Range<usize>, &[T::Sum])) {
        let Self { sweep, filters, channels } = *self;
        let filter_size = sweep.kernel[0] * sweep.kernel[1] * channels;
        let mut sums = vec![T::Sum::default(); filters];
        sweep.each(|pixel, taps| {
            for (filter, sum) in weights.chunks_exact(filter_size).zip(&mut sums) {
                *sum = taps.iter().fold(T::Sum::default(), |sum, tap| {
                    let pixel = &input[tap.pixel * channels..][..channels];
                    dot(sum, pixel, &filter[tap.kernel * channels..][..channels])
                });
            }
            emit(pixel * filters..(pixel + 1) * filters, &sums);
        });
    }
}

#[derive(Clone, Copy)]
struct Depthwise {
    sweep: Sweep,
    multiplier: usize,
}

impl Products for Depthwise {
    fn each<T: Element>(&self, input: &[T], weights: &[T], mut emit: impl FnMut(Range<usize>, &[T::Sum])) {
        let Self { sweep, multiplier } = *self;
        let channels = sweep.input[3];
        let filters = channels * multiplier;
        let mut sums = vec![T::Sum::default(); filters];
        sweep.each(|pixel, taps| {
            sums.fill(T::Sum::default());
            for tap in taps {
                let weights = &weights[tap.kernel * filters..][..filters];
                let values = &input[tap.pixel * channels..][..channels];
                for (channel, &value) in values.iter().enumerate() {
                    for filter in channel * multiplier..(channel + 1) * multiplier {
                        sums[filter] = T::add_product(sums[filter], value, weights[filter]);
                    }
                }
            }
            emit(pixel * filters..(pixel + 1) * filters, &sums);
        });
    }
}

#[derive(Clone, Copy)]
struct Rows {
    filters: usize,
    channels: usize,
}

impl Products for Rows {
    fn each<T: Element>(&self, input: &[T], weights: &[T], mut emit: impl FnMut(Range<usize>, &[T::Sum])) {
        for (row, values) in input.chunks_exact(self.channels).enumerate() {
            let filters = weights.chunks_exact(self.channels);
            let sums: Vec<_> = filters.map(|filter| dot(T::Sum::default(), values, filter)).collect();
            emit(row * self.filters..(row + 1) * self.filters, &sums);
        }
    }
}

/// Sums of products, then bias, scale and activation.
fn layer(
    operands: &Operands<'_>,
    activation: Activation,
    filters: usize,
    scaling: Scaling,
    products: impl Products,
) -> Result<Kernel, String> {
    match operands.kind()? {
        Kind::Quantized(_) => quantized(operands, activation, filters, scaling, products),
        Kind::Real => real(operands, activation, filters, products),
    }
}

fn quantized(
    operands: &Operands<'_>,
    activation: Activation,
    filters: usize,
    scaling: Scaling,
    products: impl Products,
) -> Result<Kernel, String> {
    let (input, output) = (Quant::of(operands.input(0))?, Quant::of(operands.output())?);
    let filter = operands.input(1);
    let weights = widen(constant(filter)?, &filter_quant(filter)?);
    let multipliers = scaling.multipliers(&input, filter, &output, filters)?;
    let bias = match operands.optional(2) {
        Some(bias) if bias.dtype == DType::I32 => integers(constant(bias)?),
        Some(bias) => return Err(format!("a bias {bias:?} is not computed on the CPU")),
        None => vec![0; filters],
    };
    let [min, max] = quantized_range(activation, &output);
    Ok(Box::new(move |inputs, bytes| {
        products.each(&widen(inputs[0], &input), &weights, |range, sums: &[i32]| {
            let channels = sums.iter().zip(&bias).zip(&multipliers);
            for (byte, ((sum, bias), multiplier)) in bytes[range].iter_mut().zip(channels) {
                let value = (scaling.apply)(*multiplier, sum.wrapping_add(*bias)).saturating_add(output.zero_point);
                *byte = output.byte.encode(value.clamp(min, max));
            }
        });
    }))
}

fn real(
    operands: &Operands<'_>,
    activation: Activation,
    filters: usize,
    products: impl Products,
) -> Result<Kernel, String> {
    let weights = reals(constant(operands.input(1))?);
    let bias = match operands.optional(2) {
        Some(bias) => reals(constant(bias)?),
        None => vec![0.0; filters],
    };
    let [min, max] = real_range(activation);
    Ok(Box::new(move |inputs, bytes| {
        products.each(&reals(inputs[0]), &weights, |range, sums: &[f32]| {
            for (index, (sum, bias)) in range.zip(sums.iter().zip(&bias)) {
                put(bytes, index, (sum + bias).clamp(min, max));
            }
        });
    }))
}

fn constant(tensor: &Tensor) -> Result<&[u8], String> {
    tensor.data.as_deref().ok_or_else(|| format!("{tensor:?} is not a constant"))
}

fn integers(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect()
}

/// How the weights are numbers. Signed ones have no zero point, so their scales do not matter here.
fn filter_quant(filter: &Tensor) -> Result<Quant, String> {
    let quantization = filter.quantization.as_ref().ok_or_else(|| format!("{filter:?} has no scale"))?;
    Ok(Quant { byte: super::Byte::of(filter)?, scale: quantization.scales[0], zero_point: quantization.zero_points[0] })
}

/// How TFLite scales the sums of a kind of layer.
#[derive(Clone, Copy)]
struct Scaling {
    /// Product of the scales of input and weights.
    product: fn(f32, f32) -> f64,
    apply: fn(Multiplier, i32) -> i32,
}

impl Scaling {
    /// The fully connected layer's.
    const ROWS: Self = Self { product: |a, b| f64::from(a) * f64::from(b), apply: Multiplier::apply_once };

    /// That of convolutions, where unsigned scales are multiplied in single precision.
    fn of_windows(operands: &Operands<'_>) -> Self {
        let apply = Multiplier::apply;
        match operands.input(0).dtype {
            DType::U8 => Self { product: |a, b| f64::from(a * b), apply },
            _ => Self { product: |a, b| f64::from(a) * f64::from(b), apply },
        }
    }

    /// One multiplier per filter.
    fn multipliers(
        &self,
        input: &Quant,
        filter: &Tensor,
        output: &Quant,
        filters: usize,
    ) -> Result<Vec<Multiplier>, String> {
        let scales = filter.quantization.as_ref().map(|q| q.scales.as_slice()).unwrap_or_default();
        let multiplier = |scale: f32| Multiplier::new((self.product)(input.scale, scale) / f64::from(output.scale));
        match scales {
            &[scale] => Ok(vec![multiplier(scale)?; filters]),
            scales => scales.iter().map(|&scale| multiplier(scale)).collect(),
        }
    }
}
