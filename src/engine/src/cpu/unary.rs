//! Operators of one input, element by element, and softmax.

use model::{Activation, DType};

use super::fixed::{Multiplier, quantized_range, real_range};
use super::{Kernel, Kind, Operands, Quant, put, reals};

/// A function of a byte.
fn table(input: &Quant, output: &Quant, function: impl Fn(i32) -> i32) -> Kernel {
    let bytes: [u8; 256] = std::array::from_fn(|index| {
        // CAST: the index of a table of 256 is a byte.
        output.byte.encode(function(input.decode(index as u8)).saturating_add(output.zero_point))
    });
    Box::new(move |inputs, output| {
        for (to, &from) in output.iter_mut().zip(inputs[0]) {
            *to = bytes[usize::from(from)];
        }
    })
}

/// A function of a real number.
fn map(function: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Kernel {
    Box::new(move |inputs, output| {
        for (index, value) in reals(inputs[0]).into_iter().enumerate() {
            put(output, index, function(value));
        }
    })
}

pub(super) fn logistic(operands: &Operands<'_>) -> Result<Kernel, String> {
    let sigmoid = |value: f32| 1.0 / (1.0 + (-value).exp());
    let Kind::Quantized(_) = operands.kind()? else { return Ok(map(sigmoid)) };
    let (input, output) = (Quant::of(operands.input(0))?, Quant::of(operands.output())?);
    let inverse = 1.0 / output.scale;
    // CAST: saturates, and the table keeps the nearest byte.
    Ok(table(&input, &output, |value| (sigmoid(input.scale * value as f32) * inverse).round() as i32))
}

pub(super) fn relu(operands: &Operands<'_>, activation: Activation) -> Result<Kernel, String> {
    let [low, high] = real_range(activation);
    let Kind::Quantized(_) = operands.kind()? else { return Ok(map(move |value| value.clamp(low, high))) };
    let (input, output) = (Quant::of(operands.input(0))?, Quant::of(operands.output())?);
    let [min, max] = quantized_range(activation, &output);
    let multiplier = Multiplier::new(f64::from(input.scale / output.scale))?;
    Ok(table(&input, &output, |value| multiplier.apply(value).clamp(min - output.zero_point, max - output.zero_point)))
}

pub(super) fn quantize(operands: &Operands<'_>) -> Result<Kernel, String> {
    let output = Quant::of(operands.output())?;
    if let Kind::Quantized(_) = operands.kind()? {
        let input = Quant::of(operands.input(0))?;
        let multiplier = Multiplier::new(f64::from(input.scale) / f64::from(output.scale))?;
        return Ok(table(&input, &output, |value| multiplier.apply(value)));
    }
    Ok(Box::new(move |inputs, bytes| {
        for (byte, value) in bytes.iter_mut().zip(reals(inputs[0])) {
            // CAST: saturates, and the encoding keeps the nearest byte.
            let steps = (value / output.scale).round() as i32;
            *byte = output.byte.encode(steps.saturating_add(output.zero_point));
        }
    }))
}

pub(super) fn dequantize(operands: &Operands<'_>) -> Result<Kernel, String> {
    if operands.input(0).dtype == DType::F16 {
        return Err("half-precision values are not computed on the CPU".to_owned());
    }
    let input = Quant::of(operands.input(0))?;
    Ok(Box::new(move |inputs, output| {
        for (index, &byte) in inputs[0].iter().enumerate() {
            put(output, index, input.scale * input.decode(byte) as f32);
        }
    }))
}

/// Softmax over the last axis. Quantised exponentials come from a table of distances to the largest value.
pub(super) fn softmax(operands: &Operands<'_>, beta: f32) -> Result<Kernel, String> {
    let row = operands.input(0).shape.last().copied().unwrap_or(1);
    let Kind::Quantized(_) = operands.kind()? else { return Ok(real_softmax(row, beta)) };
    let (input, to) = (Quant::of(operands.input(0))?, Quant::of(operands.output())?);
    let factor = -input.scale * beta;
    let exponentials: Vec<f32> = (0_u8..=255).map(|distance| (factor * f32::from(distance)).exp()).collect();
    Ok(Box::new(move |inputs, output| {
        for (values, bytes) in inputs[0].chunks_exact(row).zip(output.chunks_exact_mut(row)) {
            let largest = values.iter().map(|&byte| input.byte.decode(byte)).max().unwrap_or_default();
            // CAST: two values of 8 bits are at most 255 apart.
            let exponential = |&byte: &u8| exponentials[largest.abs_diff(input.byte.decode(byte)) as usize];
            let sum = values.iter().map(exponential).fold(0.0, |sum, term| sum + term);
            let inverse = 1.0 / (sum * to.scale);
            for (byte, value) in bytes.iter_mut().zip(values) {
                // CAST: saturates, and the encoding keeps the nearest byte.
                let steps = (exponential(value) * inverse).round() as i32;
                *byte = to.byte.encode(steps.saturating_add(to.zero_point));
            }
        }
    }))
}

fn real_softmax(row: usize, beta: f32) -> Kernel {
    Box::new(move |inputs, output| {
        for (index, values) in reals(inputs[0]).chunks_exact(row).enumerate() {
            let largest = values.iter().copied().fold(f32::MIN, f32::max);
            let terms: Vec<f32> = values.iter().map(|value| ((value - largest) * beta).exp()).collect();
            let sum: f32 = terms.iter().sum();
            for (offset, term) in terms.iter().enumerate() {
                put(output, index * row + offset, term / sum);
            }
        }
    })
}
