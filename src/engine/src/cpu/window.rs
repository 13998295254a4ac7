//! Windows that slide over a picture, and the pools.

use model::{Activation, DType, Padding, Window};

use super::fixed::{quantized_range, real_range};
use super::{Kernel, Kind, Operands, Quant, put, reals, shape4};

/// A window over a picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    pub(super) input: [usize; 4],
    pub(super) output: [usize; 4],
    pub(super) kernel: [usize; 2],
    pub(super) window: Window,
}

/// A tap of a window that lies in the picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tap {
    /// Index of the tap in the kernel, row by row.
    pub(super) kernel: usize,
    /// Index of the pixel in the input.
    pub(super) pixel: usize,
}

impl Sweep {
    pub(super) fn new(operands: &Operands<'_>, kernel: [usize; 2], window: Window) -> Self {
        Self { input: shape4(operands.input(0)), output: shape4(operands.output()), kernel, window }
    }

    /// Calls `visit` with the index of each output pixel and the taps under it.
    pub(super) fn each(&self, mut visit: impl FnMut(usize, &[Tap])) {
        let [n, oh, ow, _] = self.output;
        let mut taps = Vec::with_capacity(self.kernel[0] * self.kernel[1]);
        for batch in 0..n {
            for y in 0..oh {
                for x in 0..ow {
                    self.taps(batch, y, x, &mut taps);
                    visit((batch * oh + y) * ow + x, &taps);
                }
            }
        }
    }

    fn taps(&self, batch: usize, y: usize, x: usize, taps: &mut Vec<Tap>) {
        let [_, h, w, _] = self.input;
        let Window { stride, dilation, padding: Padding { top, left, .. } } = self.window;
        taps.clear();
        for ky in 0..self.kernel[0] {
            let Some(row) = (y * stride[0] + ky * dilation[0]).checked_sub(top).filter(|&row| row < h) else {
                continue;
            };
            for kx in 0..self.kernel[1] {
                let column = (x * stride[1] + kx * dilation[1]).checked_sub(left);
                let Some(column) = column.filter(|&column| column < w) else { continue };
                taps.push(Tap { kernel: ky * self.kernel[1] + kx, pixel: (batch * h + row) * w + column });
            }
        }
    }
}

/// Pools keep the quantisation of their input.
fn check_same_scale(operands: &Operands<'_>) -> Result<(), String> {
    let (input, output) = (operands.input(0), operands.output());
    if input.dtype != DType::F32 && Quant::of(input)? != Quant::of(output)? {
        return Err(format!("pooling {input:?} to another scale is not computed on the CPU"));
    }
    Ok(())
}

pub(super) fn average_pool(
    operands: &Operands<'_>,
    kernel: [usize; 2],
    window: Window,
    activation: Activation,
) -> Result<Kernel, String> {
    check_same_scale(operands)?;
    // Halves away from zero. Sums of more than 2^23 values wrap, as TFLite's do.
    let mean = |sum: i32, count: i32| sum.wrapping_add(sum.signum() * (count / 2)) / count;
    let real_mean = |sum: f32, count: f32| sum / count;
    pool(operands, kernel, window, activation, (0, i32::wrapping_add, mean), (0.0, |a, b| a + b, real_mean))
}

pub(super) fn max_pool(
    operands: &Operands<'_>,
    kernel: [usize; 2],
    window: Window,
    activation: Activation,
) -> Result<Kernel, String> {
    check_same_scale(operands)?;
    pool(operands, kernel, window, activation, (i32::MIN, i32::max, |a, _| a), (f32::MIN, f32::max, |a, _| a))
}

/// How the values under a window become one: the start, the step, and the end with their count.
type Fold<T> = (T, fn(T, T) -> T, fn(T, T) -> T);

fn pool(
    operands: &Operands<'_>,
    kernel: [usize; 2],
    window: Window,
    activation: Activation,
    quantized: Fold<i32>,
    real: Fold<f32>,
) -> Result<Kernel, String> {
    let sweep = Sweep::new(operands, kernel, window);
    let channels = sweep.output[3];
    Ok(match operands.kind()? {
        Kind::Quantized(byte) => {
            let [min, max] = quantized_range(activation, &Quant::of(operands.output())?);
            let (start, step, end) = quantized;
            Box::new(move |inputs, output| {
                sweep.each(|pixel, taps| {
                    // CAST: a kernel has at most 2^30 taps.
                    let count = taps.len() as i32;
                    for channel in 0..channels {
                        let value = |tap: &Tap| byte.decode(inputs[0][tap.pixel * channels + channel]);
                        let all = taps.iter().fold(start, |sum, tap| step(sum, value(tap)));
                        output[pixel * channels + channel] = byte.encode(end(all, count).clamp(min, max));
                    }
                });
            })
        }
        Kind::Real => {
            let [min, max] = real_range(activation);
            let (start, step, end) = real;
            Box::new(move |inputs, output| {
                let input = reals(inputs[0]);
                sweep.each(|pixel, taps| {
                    for channel in 0..channels {
                        let value = |tap: &Tap| input[tap.pixel * channels + channel];
                        let all = taps.iter().fold(start, |sum, tap| step(sum, value(tap)));
                        put(output, pixel * channels + channel, end(all, taps.len() as f32).clamp(min, max));
                    }
                });
            })
        }
    })
}
