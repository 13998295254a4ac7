//! Pictures made larger by whole factors, as depthwise transposed convolutions with fixed kernels.

use half::f16;

use crate::context::Context;
use crate::conv::{Image, Transposed};
use crate::error::{RunError, RunReport, Unsupported};
use crate::ops::Padding;

impl Context {
    /// Every pixel becomes a block of `factors` pixels. `results`: `[h × factors[0], w × factors[1], c]`.
    ///
    /// # Errors
    /// As [`Context::conv_transpose2d`]; factors above 31 are refused.
    pub fn resize_nearest(
        &mut self,
        image: Image<'_, f16>,
        factors: [usize; 2],
        results: &mut [f16],
    ) -> Result<RunReport, RunError> {
        check(factors)?;
        let channels = image.shape[2];
        let filter = vec![f16::ONE; factors[0] * factors[1] * channels];
        self.conv_transpose2d(image, &Transposed::depthwise(factors, channels, &filter).stride(factors), results)
    }

    /// Pixels are blended with their neighbours by distance, centres of pixels being half a pixel inside. Beyond the
    /// borders everything is 0. `results`: as [`Context::resize_nearest`].
    ///
    /// # Errors
    /// As [`Context::conv_transpose2d`]; factors above 15, or 16 where odd, are refused.
    pub fn resize_bilinear(
        &mut self,
        image: Image<'_, f16>,
        factors: [usize; 2],
        results: &mut [f16],
    ) -> Result<RunReport, RunError> {
        check(factors)?;
        let channels = image.shape[2];
        let [rows, columns] = factors.map(triangle);
        let weights = rows.iter().flat_map(|row| columns.iter().map(move |column| f16::from_f64(row * column)));
        let filter: Vec<f16> = weights.flat_map(|weight| std::iter::repeat_n(weight, channels)).collect();
        let [y, x] = [(rows.len() - factors[0]) / 2, (columns.len() - factors[1]) / 2];
        let transposed = Transposed::depthwise([rows.len(), columns.len()], channels, &filter)
            .stride(factors)
            .padding(Padding { top: y, bottom: y, left: x, right: x });
        self.conv_transpose2d(image, &transposed, results)
    }
}

fn check(factors: [usize; 2]) -> Result<(), Unsupported> {
    match factors.contains(&0) {
        true => Err(Unsupported::new("a picture made larger by a factor of 0")),
        false => Ok(()),
    }
}

/// Weights along one axis, which add up to 1 over the inputs that an output sees.
fn triangle(factor: usize) -> Vec<f64> {
    let taps = 2 * factor - factor % 2;
    // CAST: small numbers.
    let (middle, reach) = ((taps - 1) as f64 / 2.0, factor as f64);
    (0..taps).map(|tap| 1.0 - (tap as f64 - middle).abs() / reach).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weights_that_an_output_sees_add_up_to_one() {
        assert_eq!(triangle(2), [0.25, 0.75, 0.75, 0.25]);
        assert_eq!(triangle(1), [1.0]);
        for factor in 1..16 {
            let weights = triangle(factor);
            for phase in 0..factor {
                let sum: f64 = weights.iter().skip(phase).step_by(factor).sum();
                assert!((sum - 1.0).abs() < 1e-12, "factor {factor}, phase {phase}: {sum}");
            }
        }
    }
}
