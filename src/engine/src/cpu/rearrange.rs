//! Operators that move elements, and the mean over axes.

use model::{DType, Tensor};

use super::fixed::Multiplier;
use super::{Byte, Kernel, Kind, Operands, Quant, put, reals};

pub(super) fn reshape() -> Kernel {
    Box::new(|inputs, output| output.copy_from_slice(inputs[0]))
}

/// Joins along `axis`: each input gives a run of bytes in turn.
pub(super) fn concatenation(operands: &Operands<'_>, axis: usize) -> Result<Kernel, String> {
    let output = operands.output();
    let run = |tensor: &Tensor| tensor.shape[axis..].iter().product::<usize>() * tensor.dtype.bytes();
    let inputs = 0..operands.node.inputs.len();
    let runs: Vec<usize> = inputs.clone().map(|index| run(operands.input(index))).collect();
    let rescales = inputs.map(|index| rescale(operands.input(index), output)).collect::<Result<Vec<_>, _>>()?;
    let period = run(output);
    Ok(Box::new(move |inputs, output| {
        let mut start = 0;
        for ((input, &run), rescale) in inputs.iter().zip(&runs).zip(&rescales) {
            for (to, from) in output.chunks_exact_mut(period).zip(input.chunks_exact(run)) {
                let to = &mut to[start..start + run];
                to.copy_from_slice(from);
                if let Some(table) = rescale {
                    to.iter_mut().for_each(|byte| *byte = table[usize::from(*byte)]);
                }
            }
            start += run;
        }
    }))
}

/// How an unsigned input of another scale becomes the output's; TFLite does this for unsigned tensors only.
fn rescale(input: &Tensor, output: &Tensor) -> Result<Option<[u8; 256]>, String> {
    if input.quantization == output.quantization || !matches!(input.dtype, DType::I8 | DType::U8) {
        return Ok(None);
    }
    let (from, to) = (Quant::of(input)?, Quant::of(output)?);
    if (from.scale, from.zero_point) == (to.scale, to.zero_point) {
        return Ok(None);
    }
    if from.byte != Byte::Unsigned {
        return Err(format!("joining {input:?} to another scale is not computed on the CPU"));
    }
    let scale = from.scale * (1.0 / to.scale);
    let bias = -(from.zero_point as f32) * scale;
    Ok(Some(std::array::from_fn(|byte| {
        // CAST: saturates, and the encoding keeps the nearest byte.
        to.byte.encode(((byte as f32 * scale + bias).round() as i32).saturating_add(to.zero_point))
    })))
}

/// Puts the input into a field of zeros.
pub(super) fn pad(operands: &Operands<'_>, amounts: &[[usize; 2]]) -> Result<Kernel, String> {
    let (input, output) = (operands.input(0), operands.output());
    let zero: Vec<u8> = match operands.kind()? {
        Kind::Real => vec![0; 4],
        Kind::Quantized(byte) => {
            let quant = Quant::of(output)?;
            if Quant::of(input)? != quant {
                return Err(format!("padding {input:?} to another scale is not computed on the CPU"));
            }
            vec![byte.encode(quant.zero_point)]
        }
    };
    let Some((&columns, outer)) = input.shape.split_last() else { return Err("has no axes".to_owned()) };
    let (outer, outer_to) = (outer.to_vec(), output.shape.clone());
    let amounts = amounts.to_vec();
    let row = columns * zero.len();
    Ok(Box::new(move |inputs, output| {
        output.chunks_exact_mut(zero.len()).for_each(|element| element.copy_from_slice(&zero));
        for (index, from) in inputs[0].chunks_exact(row).enumerate() {
            // Splits the row's index into its position, last axis first, and puts it together in the larger shape.
            let (mut rest, mut to, mut step) = (index, amounts[outer.len()][0], outer_to[outer.len()]);
            for axis in (0..outer.len()).rev() {
                to += (rest % outer[axis] + amounts[axis][0]) * step;
                rest /= outer[axis];
                step *= outer_to[axis];
            }
            output[to * zero.len()..][..row].copy_from_slice(from);
        }
    }))
}

/// Mean over `axes`.
pub(super) fn mean(operands: &Operands<'_>, axes: &[usize]) -> Result<Kernel, String> {
    let shape = operands.input(0).shape.clone();
    let kept: Vec<bool> = (0..shape.len()).map(|axis| !axes.contains(&axis)).collect();
    let count: usize = axes.iter().map(|&axis| shape[axis]).product();
    // The output element of each input element.
    let target = move |index: usize| {
        let (mut rest, mut to, mut step) = (index, 0, 1);
        for axis in (0..shape.len()).rev() {
            if kept[axis] {
                to += rest % shape[axis] * step;
                step *= shape[axis];
            }
            rest /= shape[axis];
        }
        to
    };
    let outputs = operands.output().elements();
    let Kind::Quantized(_) = operands.kind()? else {
        return Ok(Box::new(move |inputs, output| {
            let mut sums = vec![0.0; outputs];
            reals(inputs[0]).iter().enumerate().for_each(|(index, value)| sums[target(index)] += value);
            sums.iter().enumerate().for_each(|(index, sum)| put(output, index, sum / count as f32));
        }));
    };
    let (from, to) = (Quant::of(operands.input(0))?, Quant::of(operands.output())?);
    let multiplier = Multiplier::new(f64::from(from.scale) / f64::from(to.scale))?.divided_by(count)?;
    Ok(Box::new(move |inputs, output| {
        let mut sums = vec![0_i32; outputs];
        for (index, &byte) in inputs[0].iter().enumerate() {
            let sum = &mut sums[target(index)];
            *sum = sum.wrapping_add(from.decode(byte));
        }
        for (byte, sum) in output.iter_mut().zip(sums) {
            *byte = to.byte.encode(multiplier.apply(sum).saturating_add(to.zero_point));
        }
    }))
}
