//! How a chip multiplies the numbers of a product: what lies together, and which kernels have results.
//!
//! ```text
//! columns ─▶ kernels: as many, whole groups, or every eight of sixteen ─▶ planes of results
//! ```

use npu_regs::Layout;

use crate::matmul::numbers::Product;

/// What a chip makes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// Factors of a column that lie together; a tile's depth is a multiple.
    pub(crate) depth_group: usize,
    /// Deepest task.
    pub(crate) most_depth: usize,
    /// What the number of kernels must be a multiple of, where columns alone do not decide.
    kernel_group: usize,
    /// Whether only the first eight of every sixteen kernels have results. The columns are put there.
    halves: bool,
    /// Whether results leave in their final type from every task, and are added on the host.
    pub(crate) narrow_partials: bool,
    /// Whether a task always reads operands.
    pub(crate) reads_operands: bool,
}

impl Form {
    /// The RK3588's: the depth is limited by the real-channels field of 14 bits. SOURCE: npu-spec 1.6.
    /// The RK3576's: 4608 bytes of a kernel, of half precision sixteen factors; sums in the wide mode. SOURCE:
    /// npu-spec-rk3576 3, 4, 8 [HW].
    pub(crate) const fn new(layout: Layout, product: Product) -> Self {
        let first = Self {
            depth_group: product.depth_group(),
            most_depth: 1 << 14,
            kernel_group: 1,
            halves: false,
            narrow_partials: false,
            reads_operands: false,
        };
        let second = Self { kernel_group: 32, reads_operands: true, ..first };
        match (layout, product) {
            (Layout::Rk3588, _) => first,
            (Layout::Rk3576, Product::F16) => Self { depth_group: 16, most_depth: 16, narrow_partials: true, ..second },
            (Layout::Rk3576, _) => Self { most_depth: 4608, halves: true, ..second },
        }
    }

    /// Kernels that compute `columns` columns.
    pub(crate) const fn kernels(&self, columns: usize) -> usize {
        if self.halves { 2 * columns } else { columns.next_multiple_of(self.kernel_group) }
    }

    /// The kernel that computes `column`.
    pub(crate) const fn kernel(&self, column: usize) -> usize {
        if self.halves { column / 8 * 16 + column % 8 } else { column }
    }

    /// Columns of which `columns` columns have results in memory.
    pub(crate) const fn written(&self, columns: usize) -> usize {
        if self.halves { columns } else { self.kernels(columns) }
    }

    /// The column that a kernel computes, if it has a result; it may lie beyond the last one.
    pub(crate) const fn column(&self, kernel: usize) -> Option<usize> {
        match self.halves {
            false => Some(kernel),
            true if kernel % 16 < 8 => Some(kernel / 16 * 8 + kernel % 8),
            true => None,
        }
    }

    /// The atom of a row in a plane of columns. `rows`: of the tile, whose planes are `pitch` apart.
    pub(crate) const fn atom(&self, plane: usize, row: usize, rows: usize, pitch: usize) -> usize {
        if !self.halves {
            return plane * pitch + row;
        }
        // Sixteen columns are four planes of four. The two halves of a row follow each other through two of them.
        let (group, half, lane) = (plane / 4, plane % 4 / 2, plane % 2);
        let step = 2 * row + half;
        4 * rows * group + rows * (2 * (step / rows) + lane) + step % rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_a_kernel_and_every_result_an_atom() {
        let form = Form::new(Layout::Rk3576, Product::I8);
        let columns: Vec<_> = (0..form.kernels(96)).filter_map(|kernel| form.column(kernel)).collect();
        assert!(columns.iter().copied().eq(0..96));
        for rows in [1, 4, 20, 33] {
            let all = (0..24).flat_map(|plane| (0..rows).map(move |row| form.atom(plane, row, rows, rows)));
            let mut atoms: Vec<_> = all.collect();
            atoms.sort_unstable();
            assert!(atoms.into_iter().eq(0..24 * rows));
        }
    }

    /// The index formula of the specification, by kernels: what the columns above come from.
    #[test]
    fn a_result_lies_where_the_index_formula_says() {
        let form = Form::new(Layout::Rk3576, Product::I8);
        let rows = 12;
        for kernel in (0..128).filter(|kernel| kernel % 16 < 8) {
            let column = form.column(kernel).unwrap();
            for row in 0..rows {
                let s = 2 * row + kernel % 32 / 16;
                let atom = 4 * rows * (kernel / 32) + rows * (2 * (s / rows) + kernel % 16 / 4) + s % rows;
                assert_eq!(form.atom(column / 4, row, rows, rows), atom, "kernel {kernel}, row {row}");
            }
        }
    }
}
