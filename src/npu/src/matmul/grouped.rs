//! Products whose partial sums over each group of the depth have scales of their own.
//!
//! C\[m, n\] = Σ over groups g of a_scale\[m, g\] · b_scale\[n, g\] · (Σ over k in g of A\[m, k\] · B\[n, k\]), in single
//! precision. The NPU cannot scale a part of the depth; the partial sums leave it at every tile's edge anyway, and the scales
//! are applied where they are read.

use super::numbers::{I4, I8, Numbers, sealed};
use super::work::{At, Gather};
use super::{Ask, Call, Division, Matrix, Source, Weights, pad_rows, shape_of};
use crate::context::Context;
use crate::error::{RunError, RunReport, Unsupported};

/// Datatypes that may have a scale per group: [`I8`], and [`I4`] with groups whose 16-bit sums cannot saturate.
pub trait GroupNumbers: Numbers + sealed::Numbers<Partial = i32> {}

impl GroupNumbers for I8 {}
impl GroupNumbers for I4 {}

/// A quantised matrix with a scale for each `group` neighbouring elements of a row.
#[derive(Clone, Copy, Debug)]
pub struct Scaled<'a, T> {
    matrix: Matrix<'a, T>,
    scales: &'a [f32],
    group: usize,
}

impl<'a, T> Scaled<'a, T> {
    /// `scales`: `[rows, columns / group]`.
    ///
    /// # Errors
    /// A group that does not divide the columns, or a number of scales that does not fit.
    pub fn new(matrix: Matrix<'a, T>, scales: &'a [f32], group: usize) -> Result<Self, Unsupported> {
        if group == 0 || !matrix.columns.is_multiple_of(group) {
            return Err(Unsupported::new(format!("a group of {group} does not divide {} columns", matrix.columns)));
        }
        let expected = matrix.rows * (matrix.columns / group);
        if scales.len() != expected {
            return Err(Unsupported::new(format!("{} scales where {expected} are needed", scales.len())));
        }
        Ok(Self { matrix, scales, group })
    }
}

/// A quantised second factor in device memory, with its scales.
#[derive(Debug)]
pub struct ScaledWeights<T> {
    weights: Weights<T>,
    scales: Vec<f32>,
    group: usize,
}

/// Scales partial sums and adds them.
struct Scales<'a> {
    first: &'a [f32],
    second: &'a [f32],
    group: usize,
    /// Groups of a row.
    groups: usize,
}

impl<T: GroupNumbers> Gather<T> for Scales<'_> {
    type Total = f32;
    type Out = f32;

    fn add(&self, at: &At, totals: &mut [f32], partials: &[i32]) {
        let group = at.depth / self.group;
        let first = self.first[at.row * self.groups + group];
        let second = self.second[at.first_column * self.groups + group..].iter().step_by(self.groups);
        for ((total, partial), second) in totals.iter_mut().zip(partials).zip(second) {
            // CAST: rounded as the single-precision result is.
            *total += first * second * *partial as f32;
        }
    }

    fn finish(&self, totals: &[f32], results: &mut [f32]) {
        results.copy_from_slice(totals);
    }
}

impl Context {
    /// One product with a scale per group. Rows are padded.
    ///
    /// # Errors
    /// As [`Context::matmul`]; [`RunError::Unsupported`] also where the groups of the factors differ or are no multiple of
    /// the datatype's depth group.
    pub fn matmul_scaled<T: GroupNumbers>(
        &mut self,
        a: Scaled<'_, T::Factor>,
        b: Scaled<'_, T::Factor>,
        c: &mut [f32],
    ) -> Result<RunReport, RunError> {
        let shape = shape_of(pad_rows(a.matrix.rows), &a.matrix, &b.matrix)?;
        same_group(a.group, b.group)?;
        let plan = self.plan(Ask::Grouped(a.group), T::PRODUCT, shape)?;
        let (first, second) = ([a.matrix], [b.matrix]);
        let call = self.by_columns(plan, &first, &second);
        let scales = Scales { first: a.scales, second: b.scales, group: a.group, groups: shape.depth / a.group };
        self.call::<T, _>(call, &scales, a.matrix.rows, &mut [c])
    }

    /// Packs a quantised second factor once, for any number of rows.
    ///
    /// # Errors
    /// As [`Context::matmul_scaled`].
    pub fn pack_scaled_weights<T: GroupNumbers>(
        &mut self,
        b: Scaled<'_, T::Factor>,
    ) -> Result<ScaledWeights<T>, RunError> {
        let weights = self.pack(b.matrix, Some(b.group))?;
        Ok(ScaledWeights { weights, scales: b.scales.to_vec(), group: b.group })
    }

    /// A product with a resident quantised second factor.
    ///
    /// # Errors
    /// As [`Context::matmul_scaled`]; [`RunError::Unsupported`] also for a number of rows that is no multiple of 4, and for
    /// weights of another context, of more workers or in tiles of another depth.
    pub fn matmul_scaled_resident<T: GroupNumbers>(
        &mut self,
        a: Scaled<'_, T::Factor>,
        b: &ScaledWeights<T>,
        c: &mut [f32],
    ) -> Result<RunReport, RunError> {
        same_group(a.group, b.group)?;
        let packed = &b.weights.packed;
        let plan = self.resident_plan::<T>(Ask::Grouped(a.group), &a.matrix, packed)?;
        let first = [a.matrix];
        let call = Call { plan, division: Division::Columns, first: &first, second: Source::Resident(packed) };
        let groups = packed.depth / a.group;
        let scales = Scales { first: a.scales, second: &b.scales, group: a.group, groups };
        self.call::<T, _>(call, &scales, a.matrix.rows, &mut [c])
    }
}

fn same_group(a: usize, b: usize) -> Result<(), Unsupported> {
    if a == b { Ok(()) } else { Err(Unsupported::new(format!("groups of {a} and of {b}"))) }
}
