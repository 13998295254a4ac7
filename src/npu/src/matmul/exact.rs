//! Exact products of 16-bit integers, by 8-bit ones.
//!
//! x = 256·h + l + 128 with h and l of 8 bits. One 8-bit product of the stacked halves [h; l] of both factors gives the four
//! sums hh, hl, lh and ll, and
//!
//! ```text
//! Σ x·y = 65536·hh + 256·(hl + lh) + ll + 128·(Σ (256·h + l) of x + Σ (256·h + l) of y) + 128²·K
//! ```
//!
//! Unlike a split into two signed halves this covers all 16-bit numbers.

use super::{I8, Matrix, shape_of};
use crate::context::Context;
use crate::error::{RunError, RunReport};

/// What the lower half is short of.
const MIDDLE: i64 = 128;

impl Context {
    /// One product of 16-bit integers, exact in 64 bits. `c`: `[a.rows, b.rows]`. K and N must be multiples of 32. Rows are
    /// padded.
    ///
    /// # Errors
    /// As [`Context::matmul`].
    pub fn matmul_i16_exact(
        &mut self,
        a: Matrix<'_, i16>,
        b: Matrix<'_, i16>,
        c: &mut [i64],
    ) -> Result<RunReport, RunError> {
        let shape = shape_of(a.rows, &a, &b)?;
        let (found, expected) = (size_of_val(c), a.rows * b.rows * size_of::<i64>());
        if found != expected {
            return Err(RunError::Size { what: "result", index: 0, found, expected });
        }
        c.fill(0);
        let (first, second) = (halves(a.values), halves(b.values));
        let mut sums = vec![0; first.len() / shape.depth * (second.len() / shape.depth)];
        let columns = 2 * b.rows;
        let first = Matrix::new(&first, 2 * a.rows, shape.depth)?;
        let second = Matrix::new(&second, columns, shape.depth)?;
        let report = self.matmul::<I8>(first, second, &mut sums)?;
        let (rows, others) = (centred(&a), centred(&b));
        // CAST: an extent.
        let constant = MIDDLE * MIDDLE * shape.depth as i64;
        for (m, (result, row)) in c.chunks_exact_mut(b.rows).zip(&rows).enumerate() {
            let high = &sums[m * columns..][..columns];
            let low = &sums[(a.rows + m) * columns..][..columns];
            for (n, (result, other)) in result.iter_mut().zip(&others).enumerate() {
                let [hh, hl, lh, ll] = [high[n], high[b.rows + n], low[n], low[b.rows + n]].map(i64::from);
                *result = 65536 * hh + 256 * (hl + lh) + ll + MIDDLE * (row + other) + constant;
            }
        }
        Ok(report)
    }
}

/// All upper halves, then all lower ones.
fn halves(values: &[i16]) -> Vec<i8> {
    let halves = values.iter().map(|value| value.to_be_bytes());
    let upper = halves.clone().map(|[upper, _]| upper.cast_signed());
    // Less 128: one flipped bit.
    upper.chain(halves.map(|[_, lower]| (lower ^ 0x80).cast_signed())).collect()
}

/// Each row's sum of 256·h + l.
fn centred(matrix: &Matrix<'_, i16>) -> Vec<i64> {
    let rows = matrix.values.chunks_exact(matrix.columns);
    rows.map(|row| row.iter().map(|value| i64::from(*value) - MIDDLE).sum()).collect()
}
