//! Packs the factors of a product into the NPU's layouts.
//!
//! ```text
//! first factor:  cube [plane][row][16 bytes], or rows in host order
//! second factor: [depth tile][column group][depth group][column][factors of a depth group]
//! ```
//!
//! SOURCE: npu-spec 3.1, 3.2, 9.1.

use crate::layout::ATOM;
use crate::matmul::numbers::Numbers;
use crate::matmul::plan::{MatmulPlan, Shape};

/// Rows that are packed together. Rows that lie a power of two apart fall into one set of the nearest cache, which has
/// eight ways on common processors; more of them would be read anew for each atom of a line.
const ROWS: usize = 8;

/// Packs the first factor of one item: `rows` rows of `[rows, depth]`; the plan's other rows become zeros.
pub(crate) fn features<T: Numbers>(plan: &MatmulPlan, factor: &[T::Factor], memory: &mut [u8]) {
    let Shape { rows, depth, .. } = plan.shape();
    let lanes = T::PRODUCT.lanes();
    let (atoms, _) = memory[..T::PRODUCT.bytes(rows * depth)].as_chunks_mut::<ATOM>();
    let given = factor.len() / depth;
    if plan.host_order() {
        let (own, padding) = atoms.split_at_mut(given * (depth / lanes));
        own.iter_mut().zip(factor.chunks_exact(lanes)).for_each(|(atom, factors)| T::encode(factors, atom));
        return padding.fill([0; ATOM]);
    }
    for (block, factor) in factor.chunks(ROWS * depth).enumerate() {
        for plane in 0..depth / lanes {
            let atoms = &mut atoms[plane * rows + block * ROWS..][..factor.len() / depth];
            for (row, atom) in atoms.iter_mut().enumerate() {
                T::encode(&factor[row * depth + plane * lanes..][..lanes], atom);
            }
        }
    }
    atoms.chunks_exact_mut(rows).for_each(|plane| plane[given..].fill([0; ATOM]));
}

impl MatmulPlan {
    /// Packs the first factor of one item into the memory that the NPU reads. `factor`: `[rows, depth]`, some rows may be
    /// missing, which become zeros. [`MatmulPlan::first_bytes`] are written.
    ///
    /// # Panics
    /// Where the plan is of another datatype, or a slice too short.
    pub fn pack_first<T: Numbers>(&self, factor: &[T::Factor], memory: &mut [u8]) {
        assert_eq!(self.product(), T::PRODUCT, "the plan's datatype");
        features::<T>(self, factor, memory);
    }

    /// Packs the second factor of one item. `factor`: `[columns, depth]`. [`MatmulPlan::second_bytes`] are written.
    ///
    /// # Panics
    /// As [`MatmulPlan::pack_first`].
    pub fn pack_second<T: Numbers>(&self, factor: &[T::Factor], memory: &mut [u8]) {
        assert_eq!(self.product(), T::PRODUCT, "the plan's datatype");
        weights::<T>(self, factor, memory);
    }

    /// Bytes of the packed first factor of one item.
    pub fn first_bytes(&self) -> usize {
        self.product().bytes(self.shape().rows * self.shape().depth)
    }

    /// Bytes of the packed second factor of one item.
    pub fn second_bytes(&self) -> usize {
        self.product().bytes(self.form().kernels(self.shape().columns) * self.shape().depth)
    }
}

/// Packs the second factor of one item, `[columns, depth]`.
pub(crate) fn weights<T: Numbers>(plan: &MatmulPlan, factor: &[T::Factor], memory: &mut [u8]) {
    let Shape { depth, columns, .. } = plan.shape();
    let form = plan.form();
    let (lanes, group) = (T::PRODUCT.lanes(), form.depth_group);
    let (atoms, _) = memory.as_chunks_mut::<ATOM>();
    let mut groups = atoms.chunks_exact_mut(T::PRODUCT.column_group() * group / lanes);
    for step in 0..plan.tiles().depth {
        for first in (0..form.kernels(columns)).step_by(T::PRODUCT.column_group()) {
            for (start, atoms) in plan.step(step).step_by(group).zip(&mut groups) {
                for (kernel, atoms) in atoms.chunks_exact_mut(group / lanes).enumerate() {
                    let Some(column) = form.column(first + kernel).filter(|column| *column < columns) else {
                        atoms.fill([0; ATOM]);
                        continue;
                    };
                    let factors = &factor[column * depth + start..][..group];
                    let pairs = factors.chunks_exact(lanes).zip(atoms);
                    pairs.for_each(|(factors, atom)| T::encode(factors, atom));
                }
            }
        }
    }
}

/// Puts the operands that tasks read behind the second factors.
pub(crate) fn operands(plan: &MatmulPlan, memory: &mut [u8]) {
    let operands = plan.operands();
    memory[plan.weight_bytes()..][..operands.len()].copy_from_slice(&operands);
}

#[cfg(test)]
mod tests {
    use half::f16;
    use proptest::prelude::*;

    use super::*;
    use crate::chip::Chip;
    use crate::matmul::numbers::{Bf16, F16, I4, I8, I16, Tf32};
    use crate::options::Options;

    /// A plan with small tiles, so that every extent has an edge.
    fn plan<T: Numbers>([rows, depth, columns]: [usize; 3], host_order: bool) -> MatmulPlan {
        let shape = Shape {
            rows: 4 * rows,
            depth: depth * T::PRODUCT.depth_group(),
            columns: columns * T::PRODUCT.column_group(),
        };
        let tile_depth = if T::PRODUCT.splits_depth() { 64 } else { usize::MAX };
        let options = Options { tile_depth, host_order, ..Options::default() };
        MatmulPlan::new(&Chip::RK3588, T::PRODUCT, shape, &options).unwrap()
    }

    /// The bits of an element of the packed form.
    fn element<T: Numbers>(memory: &[u8], index: usize) -> u32 {
        let bits = T::PRODUCT.bits();
        let bytes = &memory[index * bits / 8..][..bits.div_ceil(8)];
        let value = bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
        if bits == 4 { value >> (index % 2 * 4) & 15 } else { value }
    }

    /// Unpacks by the index formulas of the specification, which the loops above do not use.
    fn check<T: Numbers>(extents: [usize; 3], host_order: bool, number: fn(u32) -> (T::Factor, u32)) {
        let plan = plan::<T>(extents, host_order);
        let Shape { rows, depth, columns } = plan.shape();
        let numbers = |count: usize| (0..count).map(|i| number((i as u32).wrapping_mul(2_654_435_761))).unzip();
        let (factors, bits): (Vec<_>, Vec<_>) = numbers((rows - 1) * depth);
        let mut memory = vec![0xff; plan.feature_bytes()];
        features::<T>(&plan, &factors, &mut memory);
        let lanes = 128 / T::PRODUCT.bits();
        for (m, k) in (0..rows).flat_map(|m| (0..depth).map(move |k| (m, k))) {
            let cube = (k / lanes * rows + m) * lanes + k % lanes;
            let index = if plan.host_order() { m * depth + k } else { cube };
            let expected = bits.get(m * depth + k).copied().unwrap_or(0);
            assert_eq!(element::<T>(&memory, index), expected, "A[{m}, {k}]");
        }
        let (factors, bits): (Vec<_>, Vec<_>) = numbers(columns * depth);
        let mut memory = vec![0; plan.weight_bytes()];
        weights::<T>(&plan, &factors, &mut memory);
        let (og, ig) = (T::PRODUCT.column_group(), T::PRODUCT.depth_group());
        for (n, k) in (0..columns).flat_map(|n| (0..depth).map(move |k| (n, k))) {
            let step = plan.step(k / plan.tile().depth);
            let within = k - step.start;
            let group = n / og * step.len().div_ceil(ig) + within / ig;
            let index = columns * step.start + group * og * ig + n % og * ig + within % ig;
            assert_eq!(element::<T>(&memory, index), bits[n * depth + k], "B[{n}, {k}]");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn every_element_lies_where_the_formulas_say(rows in 1..6usize, depth in 1..6usize, columns in 1..4usize, host in any::<bool>()) {
            let extents = [rows, depth, columns];
            check::<F16>(extents, host, |x| (f16::from_bits(x as u16), x & 0xffff));
            check::<I8>(extents, host, |x| (x as i8, x & 0xff));
            check::<I4>(extents, false, |x| ((x as i8) << 4 >> 4, x & 15));
            check::<I16>(extents, false, |x| (x as i16, x & 0xffff));
            check::<Bf16>(extents, false, |x| (f32::from_bits(x), x >> 16));
            check::<Tf32>(extents, false, |x| (f32::from_bits(x), x));
        }
    }
}
