//! Sums along the last axis of a matrix, by products with matrices of ones: half-precision numbers, added in single precision.
//!
//! The pooling unit never adds channels; the MAC array does nothing else. SOURCE: npu-spec appendix D.

use half::f16;

use crate::context::Context;
use crate::error::{RunError, RunReport};
use crate::matmul::{F16ToF32, Matrix, Product};

/// Which elements a cumulative sum adds up for a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CumulativeSum {
    /// Without the column itself.
    pub exclusive: bool,
    /// From the last column backwards.
    pub reverse: bool,
}

impl CumulativeSum {
    /// Whether the sum of `column` has the element of `other`.
    pub const fn includes(self, column: usize, other: usize) -> bool {
        let own = !self.exclusive && other == column;
        own || if self.reverse { other > column } else { other < column }
    }
}

impl Context {
    /// The sum of each row of `values`, `[rows, columns]`. `sums`: `[rows]`.
    ///
    /// ```
    /// # use half::f16;
    /// # fn sums(context: &mut npu::Context) -> Result<(), Box<dyn std::error::Error>> {
    /// let (values, mut sums) = ([f16::ONE; 2 * 100], [0.0; 2]);
    /// context.sum_rows(npu::matmul::Matrix::new(&values, 2, 100)?, &mut sums)?;
    /// assert_eq!(sums, [100.0; 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Context::matmul`].
    pub fn sum_rows(&mut self, values: Matrix<'_, f16>, sums: &mut [f32]) -> Result<RunReport, RunError> {
        check(sums, values.rows())?;
        let product = Product::F16ToF32;
        let ones = |_, other| other < values.columns();
        let mut all = vec![0.0; values.rows() * product.column_group()];
        let report = self.sum_where(values, product.column_group(), ones, &mut all).inspect_err(|_| sums.fill(0.0))?;
        sums.iter_mut().zip(all.iter().step_by(product.column_group())).for_each(|(sum, first)| *sum = *first);
        Ok(report)
    }

    /// The mean of each row of `values`, `[rows, columns]`. `means`: `[rows]`.
    ///
    /// # Errors
    /// As [`Context::matmul`].
    pub fn mean_rows(&mut self, values: Matrix<'_, f16>, means: &mut [f32]) -> Result<RunReport, RunError> {
        let report = self.sum_rows(values, means)?;
        // CAST: rounded as the single-precision result is.
        means.iter_mut().for_each(|mean| *mean /= values.columns() as f32);
        Ok(report)
    }

    /// The cumulative sums of each row of `values`, `[rows, columns]`. `sums`: the same shape.
    ///
    /// # Errors
    /// As [`Context::matmul`].
    pub fn cumulative_sum(
        &mut self,
        values: Matrix<'_, f16>,
        kind: CumulativeSum,
        sums: &mut [f32],
    ) -> Result<RunReport, RunError> {
        let (rows, columns) = (values.rows(), values.columns());
        check(sums, rows * columns)?;
        let padded = columns.next_multiple_of(Product::F16ToF32.column_group());
        let inside = |column, other| other < columns && kind.includes(column, other);
        if padded == columns {
            return self.sum_where(values, columns, inside, sums);
        }
        let mut all = vec![0.0; rows * padded];
        let report = self.sum_where(values, padded, inside, &mut all).inspect_err(|_| sums.fill(0.0))?;
        for (sums, all) in sums.chunks_exact_mut(columns).zip(all.chunks_exact(padded)) {
            sums.copy_from_slice(&all[..columns]);
        }
        Ok(report)
    }

    /// Result `column` of a row is the sum of the row's elements `other` for which `adds(column, other)`.
    fn sum_where(
        &mut self,
        values: Matrix<'_, f16>,
        results: usize,
        adds: impl Fn(usize, usize) -> bool,
        sums: &mut [f32],
    ) -> Result<RunReport, RunError> {
        let (rows, columns) = (values.rows(), values.columns());
        let depth = columns.next_multiple_of(Product::F16ToF32.depth_group());
        let ones: Vec<f16> = (0..results)
            .flat_map(|column| (0..depth).map(move |other| (column, other)))
            .map(|(column, other)| if adds(column, other) { f16::ONE } else { f16::ZERO })
            .collect();
        let ones = Matrix::new(&ones, results, depth)?;
        if depth == columns {
            return self.matmul::<F16ToF32>(values, ones, sums);
        }
        let mut padded = vec![f16::ZERO; rows * depth];
        for (to, from) in padded.chunks_exact_mut(depth).zip(values.values().chunks_exact(columns)) {
            to[..columns].copy_from_slice(from);
        }
        self.matmul::<F16ToF32>(Matrix::new(&padded, rows, depth)?, ones, sums)
    }
}

fn check(results: &[f32], count: usize) -> Result<(), RunError> {
    let (found, expected) = (size_of_val(results), count * size_of::<f32>());
    if found == expected { Ok(()) } else { Err(RunError::Size { what: "result", index: 0, found, expected }) }
}
