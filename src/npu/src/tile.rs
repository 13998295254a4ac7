//! Cuts a layer into row bands that fit CBUF, the on-chip convolution buffer.
//!
//! A band reads its rows, halo included, where they lie in the whole plane: only the address of its first row, its row
//! count and its padding at the top differ from those of the whole layer.
//!
//! SOURCE: npu-spec 4.4, 4.5, 4.9.

use crate::chip::Chip;
use crate::error::Unsupported;
use crate::ops::Window;

/// Bytes of a CBUF entry; a row starts with a new one.
const ENTRY: usize = 64;

/// A layer as the tiler sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// Input extents `[h, w]`.
    pub(crate) input: [usize; 2],
    /// Output extents `[h, w]`.
    pub(crate) output: [usize; 2],
    /// Movement of the kernel.
    pub(crate) window: Window,
    /// Steps between inputs of a transposed convolution; 1 otherwise.
    pub(crate) spread: [usize; 2],
    /// Bytes of one input pixel with all slots of the task.
    pub(crate) pixel_bytes: usize,
    /// Bytes of weights that must be in CBUF at once.
    pub(crate) weight_bytes: usize,
    /// Banks that stay free.
    pub(crate) slack_banks: usize,
}

/// Rows of a layer that one task computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Band {
    /// First output row.
    pub(crate) output_row: usize,
    /// Output rows.
    pub(crate) output_rows: usize,
    /// First input row.
    pub(crate) input_row: usize,
    /// Input rows.
    pub(crate) input_rows: usize,
    /// Padding above the first input row.
    pub(crate) pad_top: usize,
}

/// How many CBUF banks hold what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Banks {
    /// For features.
    pub(crate) data: usize,
    /// For weights.
    pub(crate) weights: usize,
}

impl Geometry {
    /// 64-byte entries of one input row.
    pub(crate) fn row_entries(&self) -> usize {
        (self.input[1] * self.pixel_bytes).div_ceil(ENTRY)
    }

    fn row_bytes(&self) -> usize {
        self.row_entries() * ENTRY
    }

    /// The fewest bands of about the same height.
    ///
    /// # Errors
    /// A layer of which not even one output row fits.
    pub(crate) fn bands(&self, chip: &Chip) -> Result<Vec<Band>, Unsupported> {
        let fits = self.rows_that_fit(chip)?;
        if self.spread != [1, 1] {
            return self.whole(fits);
        }
        if self.input[0] <= fits {
            return Ok(vec![self.band(0, self.output[0])]);
        }
        let [span, stride] = [self.span(), self.window.stride[0]];
        if fits < span {
            return Err(Unsupported::new(format!(
                "one output row needs {span} input rows of {} bytes, CBUF holds {fits} beside the weights",
                self.row_bytes()
            )));
        }
        let most = (fits - span) / stride + 1;
        let count = self.output[0].div_ceil(most);
        let rows = self.output[0].div_ceil(count);
        Ok((0..self.output[0]).step_by(rows).map(|row| self.band(row, rows.min(self.output[0] - row))).collect())
    }

    /// All rows of a transposed convolution, which is known to be right in one task only. SOURCE: npu-spec 4.11.
    fn whole(&self, fits: usize) -> Result<Vec<Band>, Unsupported> {
        let [input_rows, _] = self.input;
        if input_rows > fits {
            return Err(Unsupported::new(format!(
                "a transposed convolution needs all {input_rows} rows in CBUF, which holds {fits}"
            )));
        }
        let (output_rows, pad_top) = (self.output[0], self.window.padding.top);
        Ok(vec![Band { output_row: 0, output_rows, input_row: 0, input_rows, pad_top }])
    }

    fn rows_that_fit(&self, chip: &Chip) -> Result<usize, Unsupported> {
        if self.weight_bytes > chip.max_weight_bytes {
            return Err(Unsupported::new(format!(
                "{} bytes of weights of one kernel group exceed {} of CBUF",
                self.weight_bytes, chip.max_weight_bytes
            )));
        }
        let weights = self.weight_bytes.div_ceil(chip.bank_bytes).max(1);
        let taken = weights + self.slack_banks;
        if taken >= chip.cbuf_banks {
            return Err(Unsupported::new(format!(
                "{} bytes of weights leave no CBUF bank of {} for features",
                self.weight_bytes, chip.cbuf_banks
            )));
        }
        let bytes = ((chip.cbuf_banks - taken) * chip.bank_bytes).min(chip.max_feature_bytes);
        let rows = bytes / self.row_bytes();
        Ok(rows.min(chip.max_height))
    }

    /// Input rows of one output row.
    fn span(&self) -> usize {
        (self.window.kernel[0] - 1) * self.window.dilation[0] + 1
    }

    fn band(&self, output_row: usize, output_rows: usize) -> Band {
        let first = output_row * self.window.stride[0];
        let above = self.window.padding.top;
        let end = (output_row + output_rows - 1) * self.window.stride[0] + self.span();
        let input_row = first.saturating_sub(above);
        let input_end = end.saturating_sub(above).min(self.input[0]);
        Band {
            output_row,
            output_rows,
            input_row,
            input_rows: input_end - input_row,
            pad_top: above.saturating_sub(first),
        }
    }

    /// The banks of a band.
    pub(crate) fn banks(&self, chip: &Chip, band: &Band) -> Banks {
        let features = (band.input_rows * self.row_bytes()).div_ceil(chip.bank_bytes);
        let data = features + self.slack_banks;
        Banks { data, weights: chip.cbuf_banks - data }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ops::Padding;

    fn geometry(input: [usize; 2], window: Window, pixel_bytes: usize) -> Geometry {
        let output = window.output(input).unwrap();
        let weight_bytes = 9 * 32 * pixel_bytes;
        Geometry { input, output, window, spread: [1, 1], pixel_bytes, weight_bytes, slack_banks: 1 }
    }

    fn window(kernel: usize, stride: usize, dilation: usize, padding: Padding) -> Window {
        Window { kernel: [kernel; 2], stride: [stride; 2], dilation: [dilation; 2], padding }
    }

    proptest! {
        #[test]
        fn bands_cover_every_output_row_with_the_input_rows_it_needs(
            h in 1..400usize, w in 1..200usize, kernel in 1..6usize, stride in 1..3usize, dilation in 1..3usize,
            top in 0..3usize, bottom in 0..3usize, channels in 1..6usize,
        ) {
            let span = (kernel - 1) * dilation + 1;
            let padding = Padding { top: top.min(span - 1), bottom: bottom.min(span - 1), left: 0, right: span - 1 };
            prop_assume!(h + padding.top + padding.bottom >= span);
            let geometry = geometry([h, w], window(kernel, stride, dilation, padding), channels * 32);
            let chip = Chip::RK3588;
            let mut next = 0;
            for band in geometry.bands(&chip).unwrap() {
                prop_assert_eq!(band.output_row, next);
                next += band.output_rows;
                prop_assert!(band.input_rows > 0);
                for row in band.output_row..next {
                    for tap in 0..kernel {
                        let needed = (row * stride + tap * dilation).checked_sub(padding.top).filter(|&row| row < h);
                        let seen = ((row - band.output_row) * stride + tap * dilation).checked_sub(band.pad_top);
                        let seen = seen.filter(|&row| row < band.input_rows).map(|row| row + band.input_row);
                        prop_assert_eq!(seen, needed);
                    }
                }
                let banks = geometry.banks(&chip, &band);
                prop_assert!(banks.data + banks.weights == chip.cbuf_banks);
                prop_assert!(banks.weights * chip.bank_bytes >= geometry.weight_bytes);
            }
            prop_assert_eq!(next, geometry.output[0]);
        }
    }

    #[test]
    fn a_row_that_does_not_fit_is_refused() {
        let error = geometry([9, 2000], window(3, 1, 1, Padding::default()), 512).bands(&Chip::RK3588).unwrap_err();
        assert!(error.what.contains("one output row needs 3 input rows"), "{error}");
    }
}
