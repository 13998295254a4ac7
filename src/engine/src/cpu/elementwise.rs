//! Sums and products of two tensors, broadcast.

use model::Activation;

use super::fixed::{Multiplier, quantized_range, real_range};
use super::{Kernel, Kind, Operands, Quant, put, reals};

/// Bits that quantised terms gain before they are brought to one scale.
const HEADROOM: u32 = 20;

pub(super) fn add(operands: &Operands<'_>, activation: Activation) -> Result<Kernel, String> {
    let pairs = pairs(operands);
    let Kind::Quantized(_) = operands.kind()? else { return Ok(real(pairs, activation, |a, b| a + b)) };
    let (a, b, output) = quants(operands)?;
    let unit = 2.0 * f64::from(a.scale.max(b.scale));
    let [of_a, of_b] = [Multiplier::new(f64::from(a.scale) / unit)?, Multiplier::new(f64::from(b.scale) / unit)?];
    let of_sum = Multiplier::new(unit / (f64::from(1_u32 << HEADROOM) * f64::from(output.scale)))?;
    let term = |multiplier: Multiplier, value: i32| multiplier.apply(value << HEADROOM);
    quantized(operands, pairs, activation, move |x, y| of_sum.apply(term(of_a, x) + term(of_b, y)))
}

pub(super) fn mul(operands: &Operands<'_>, activation: Activation) -> Result<Kernel, String> {
    let pairs = pairs(operands);
    let Kind::Quantized(_) = operands.kind()? else { return Ok(real(pairs, activation, |a, b| a * b)) };
    let (a, b, output) = quants(operands)?;
    // TFLite computes this in single precision.
    let multiplier = Multiplier::new(f64::from(a.scale * b.scale / output.scale))?;
    quantized(operands, pairs, activation, move |x, y| multiplier.apply(x * y))
}

fn quants(operands: &Operands<'_>) -> Result<(Quant, Quant, Quant), String> {
    Ok((Quant::of(operands.input(0))?, Quant::of(operands.input(1))?, Quant::of(operands.output())?))
}

/// `combine` takes the two values without their zero points and gives the output's without its own.
fn quantized(
    operands: &Operands<'_>,
    pairs: Pairs,
    activation: Activation,
    combine: impl Fn(i32, i32) -> i32 + Send + Sync + 'static,
) -> Result<Kernel, String> {
    let (a, b, to) = quants(operands)?;
    let [min, max] = quantized_range(activation, &to);
    Ok(Box::new(move |inputs, output| {
        pairs.each(|index, left, right| {
            let value = combine(a.decode(inputs[0][left]), b.decode(inputs[1][right]));
            output[index] = to.byte.encode(value.saturating_add(to.zero_point).clamp(min, max));
        });
    }))
}

fn real(pairs: Pairs, activation: Activation, combine: fn(f32, f32) -> f32) -> Kernel {
    let [min, max] = real_range(activation);
    Box::new(move |inputs, output| {
        let (a, b) = (reals(inputs[0]), reals(inputs[1]));
        pairs.each(|index, left, right| put(output, index, combine(a[left], b[right]).clamp(min, max)));
    })
}

/// Which elements of the inputs meet in which element of the output.
struct Pairs {
    shape: Vec<usize>,
    /// Per axis, how far each input moves; 0 where it is broadcast.
    steps: Vec<[usize; 2]>,
}

fn pairs(operands: &Operands<'_>) -> Pairs {
    let shape = operands.output().shape.clone();
    let steps = [0, 1].map(|index| broadcast_steps(&operands.input(index).shape, shape.len()));
    let [a, b] = steps;
    Pairs { shape, steps: a.into_iter().zip(b).map(|(a, b)| [a, b]).collect() }
}

fn broadcast_steps(shape: &[usize], rank: usize) -> Vec<usize> {
    let mut steps = vec![0; rank];
    let mut step = 1;
    for (to, &extent) in steps.iter_mut().rev().zip(shape.iter().rev()) {
        *to = if extent == 1 { 0 } else { step };
        step *= extent;
    }
    steps
}

impl Pairs {
    /// Calls `visit` with the indices of each output element and the two inputs'.
    fn each(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let elements: usize = self.shape.iter().product();
        let mut position = vec![0; self.shape.len()];
        let [mut a, mut b] = [0, 0];
        for index in 0..elements {
            visit(index, a, b);
            for axis in (0..position.len()).rev() {
                position[axis] += 1;
                a += self.steps[axis][0];
                b += self.steps[axis][1];
                if position[axis] < self.shape[axis] {
                    break;
                }
                position[axis] = 0;
                a -= self.steps[axis][0] * self.shape[axis];
                b -= self.steps[axis][1] * self.shape[axis];
            }
        }
    }
}
