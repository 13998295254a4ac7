//! Cuts a pooling into passes. Pure: no device, no data.
//!
//! SOURCE: npu-spec 6.3 for limits and passes.

use std::time::Duration;

use npu_regs::Layout;

use super::PoolKind;
use crate::chip::{Chip, Operation};
use crate::error::Unsupported;
use crate::layout::ATOM;
use crate::ops::{ElementType, Padding, Window};
use crate::rk3576;

/// Largest kernel and step: 4-bit fields that hold one less.
const MOST_KERNEL: usize = 16;
/// Largest padding of a side.
const MOST_PAD: usize = 7;
/// Largest extent and number of channels of a task: 13-bit fields that hold one less.
const MOST_EXTENT: usize = 8192;

/// A plan of a pooling.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolPlan {
    layout: Layout,
    element: ElementType,
    kind: PoolKind,
    shape: [usize; 3],
    passes: Vec<Pass>,
}

/// Windows over the picture, or over what the pass before made of it. `[h, w]` each.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pass {
    pub(crate) input: [usize; 2],
    pub(crate) output: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) padding: Padding,
}

impl PoolPlan {
    /// Plans one pass of windows over pictures of `shape`, `[h, w, c]`.
    ///
    /// # Errors
    /// What the pooling unit cannot do, by name.
    pub fn new(
        chip: &Chip,
        element: ElementType,
        kind: PoolKind,
        window: &Window,
        shape: [usize; 3],
    ) -> Result<Self, Unsupported> {
        check_window(window)?;
        let input = [shape[0], shape[1]];
        let output = window.output(input)?;
        let (kernel, stride, padding) = (window.kernel, window.stride, window.padding);
        let layout = chip.layout;
        Self { layout, element, kind, shape, passes: vec![Pass { input, output, kernel, stride, padding }] }
            .checked(chip)
    }

    /// Plans the pooling of whole pictures of `shape`, `[h, w, c]`.
    ///
    /// # Errors
    /// As [`PoolPlan::new`]; a mean also over extents that are no products of equally many factors from 2 to 16.
    pub fn global(chip: &Chip, element: ElementType, kind: PoolKind, shape: [usize; 3]) -> Result<Self, Unsupported> {
        let extents = [shape[0], shape[1]];
        if extents.contains(&0) {
            return Err(Unsupported::new(format!("a picture of {shape:?}")));
        }
        let kernels = if kind.is_mean() { mean_kernels(extents)? } else { whole_kernels(extents) };
        let mut input = extents;
        let mut passes = Vec::with_capacity(kernels.len());
        for kernel in kernels {
            let output = [0, 1].map(|axis| input[axis].div_ceil(kernel[axis]));
            let [bottom, right] = [0, 1].map(|axis| output[axis] * kernel[axis] - input[axis]);
            let padding = Padding { bottom, right, ..Padding::default() };
            passes.push(Pass { input, output, kernel, stride: kernel, padding });
            input = output;
        }
        Self { layout: chip.layout, element, kind, shape, passes }.checked(chip)
    }

    fn checked(self, chip: &Chip) -> Result<Self, Unsupported> {
        let refuse = |what: String| Err(Unsupported::new(what));
        let [height, width, channels] = self.shape;
        chip.check(Operation::Pooling(self.kind, self.element))?;
        if channels == 0 {
            return refuse("a picture without channels".into());
        }
        if let Some(extent) = [height, width].into_iter().find(|extent| *extent > MOST_EXTENT) {
            return refuse(format!("an extent of {extent} exceeds {MOST_EXTENT}"));
        }
        for pass in &self.passes {
            self.check_pass(chip, pass)?;
        }
        let bytes = self.pass_bytes().max(self.input_bytes());
        if u32::try_from(bytes).is_err() {
            return refuse(format!("{bytes} bytes exceed the NPU's address space"));
        }
        let (time, most) = (self.time(chip), chip.job_budget);
        if time > most {
            return refuse(format!("the pooling needs {time:?} by the cost model, a job may take {most:?}"));
        }
        Ok(self)
    }

    fn check_pass(&self, chip: &Chip, pass: &Pass) -> Result<(), Unsupported> {
        let refuse = |what: &str| Err(Unsupported::new(what));
        let padded = pass.padding != Padding::default();
        if self.kind.is_mean() && padded {
            chip.check(Operation::PaddedMean)?;
        }
        if self.kind.is_mean() && pass.kernel.contains(&1) {
            // SOURCE: npu-spec 6.2: half precision cannot hold the reciprocal, and nobody has seen integers do it.
            return refuse("a mean over a kernel extent of 1");
        }
        if self.kind == PoolKind::Mean && padded && self.element == ElementType::U8 {
            return refuse("a mean of unsigned bytes with padding, whose zero the hardware takes for 128");
        }
        if self.kind == PoolKind::MeanInside && padded && self.element != ElementType::F16 {
            return refuse("a mean of integers that leaves padding out, which would be rounded twice");
        }
        for at in [[0, 0], [pass.output[0] - 1, pass.output[1] - 1]] {
            if pass.inside(at).contains(&0) {
                return refuse("a window that lies wholly in the padding");
            }
        }
        Ok(())
    }

    /// `[h, w, c]` of the picture.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// `[h, w, c]` of the result.
    pub fn output(&self) -> [usize; 3] {
        let [rows, columns] = self.last().output;
        [rows, columns, self.shape[2]]
    }

    /// What becomes of a window.
    pub fn kind(&self) -> PoolKind {
        self.kind
    }

    /// Element type.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// How often the elements are pooled.
    pub fn passes(&self) -> usize {
        self.passes.len()
    }

    /// Bytes that the device reads and writes.
    pub fn bytes(&self) -> u64 {
        let pixels = |[rows, columns]: [usize; 2]| rows * columns;
        let all: usize = self.passes.iter().map(|pass| pixels(pass.input) + pixels(pass.output)).sum();
        // CAST: widening.
        (all * self.planes() * ATOM) as u64
    }

    /// Time on one core by the cost model, which ranks plans and measures nothing.
    pub fn time(&self, chip: &Chip) -> Duration {
        chip.job_overhead + Duration::from_secs_f64(self.bytes() as f64 / chip.bytes_per_second as f64)
    }

    /// Channels of an atom.
    pub(crate) fn lanes(&self) -> usize {
        ATOM / self.element.bytes()
    }

    /// Whose programs its tasks are.
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Atoms between planes of `[rows, columns]`.
    pub(crate) fn pitch(&self, [rows, columns]: [usize; 2]) -> usize {
        match self.layout {
            Layout::Rk3588 => rows * columns,
            // As what a depthwise task writes.
            Layout::Rk3576 => rk3576::plane_pitch([rows, columns], true),
        }
    }

    /// Planes of atoms.
    pub(crate) fn planes(&self) -> usize {
        self.shape[2].div_ceil(self.lanes())
    }

    /// Planes of one task.
    pub(crate) fn most_planes(&self) -> usize {
        MOST_EXTENT / self.lanes()
    }

    pub(crate) fn list(&self) -> &[Pass] {
        &self.passes
    }

    pub(crate) fn last(&self) -> &Pass {
        // PANIC: every constructor makes a pass.
        self.passes.last().expect("a plan has a pass")
    }

    /// Cells inside the picture of the window of an output, and cells of the window.
    pub(crate) fn cells(&self, at: [usize; 2]) -> [usize; 2] {
        let pass = self.last();
        [pass.inside(at), pass.kernel].map(|[rows, columns]| rows * columns)
    }

    fn input_bytes(&self) -> usize {
        self.planes() * self.pitch([self.shape[0], self.shape[1]]) * ATOM
    }

    /// Bytes of what all passes write.
    fn pass_bytes(&self) -> usize {
        self.passes.iter().map(|pass| self.pitch(pass.output) * ATOM * self.planes()).sum()
    }
}

impl Pass {
    /// Atoms of an output plane.
    pub(crate) fn output_atoms(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// Rows and columns of an output's window that lie inside the input.
    fn inside(&self, at: [usize; 2]) -> [usize; 2] {
        let before = [self.padding.top, self.padding.left];
        [0, 1].map(|axis| {
            let first = at[axis] * self.stride[axis];
            let end = (first + self.kernel[axis]).min(before[axis] + self.input[axis]);
            end.saturating_sub(first.max(before[axis]))
        })
    }
}

fn check_window(window: &Window) -> Result<(), Unsupported> {
    if window.dilation != [1, 1] {
        return Err(Unsupported::new("pooling with dilation"));
    }
    let Padding { top, bottom, left, right } = window.padding;
    let limits = [("kernel", window.kernel, MOST_KERNEL), ("stride", window.stride, MOST_KERNEL)];
    for (name, extents, most) in limits {
        if let Some(extent) = extents.into_iter().find(|extent| *extent > most) {
            return Err(Unsupported::new(format!("a pooling {name} of {extent} exceeds {most}")));
        }
    }
    match [top, bottom, left, right].into_iter().find(|pad| *pad > MOST_PAD) {
        Some(pad) => Err(Unsupported::new(format!("pooling with padding of {pad}, more than {MOST_PAD}"))),
        None => Ok(()),
    }
}

/// Kernels that cover an extent of any size, as padding never wins: the last window may reach outside.
fn whole_kernels(mut extents: [usize; 2]) -> Vec<[usize; 2]> {
    let mut kernels = Vec::new();
    while kernels.is_empty() || extents != [1, 1] {
        let kernel = extents.map(|extent| {
            let fits = |kernel: &usize| extent.div_ceil(*kernel) * kernel - extent <= MOST_PAD;
            (1..=MOST_KERNEL.min(extent)).rev().find(fits).unwrap_or(1)
        });
        extents = [0, 1].map(|axis| extents[axis].div_ceil(kernel[axis]));
        kernels.push(kernel);
    }
    kernels
}

/// Kernels whose products are the extents, equally many for both, the smallest first.
fn mean_kernels(extents: [usize; 2]) -> Result<Vec<[usize; 2]>, Unsupported> {
    // 2^13 is the largest extent.
    for passes in 1..=13 {
        if let [Some(rows), Some(columns)] = extents.map(|extent| factors(extent, passes)) {
            return Ok(rows.into_iter().zip(columns).map(|(row, column)| [row, column]).collect());
        }
    }
    let [height, width] = extents;
    Err(Unsupported::new(format!(
        "a mean over {height} × {width}, which are no products of equally many factors from 2 to {MOST_KERNEL}"
    )))
}

/// `extent` as a product of `count` factors from 2 to 16, ascending.
fn factors(extent: usize, count: usize) -> Option<Vec<usize>> {
    if count == 1 {
        return (2..=MOST_KERNEL).contains(&extent).then(|| vec![extent]);
    }
    let firsts = (2..=MOST_KERNEL).filter(|factor| extent.is_multiple_of(*factor));
    firsts.into_iter().find_map(|first| {
        let mut rest = factors(extent / first, count - 1)?;
        rest.insert(0, first);
        rest.sort_unstable();
        Some(rest)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHIP: Chip = Chip::RK3588;

    fn kernels(kind: PoolKind, extents: [usize; 2]) -> Result<Vec<[usize; 2]>, String> {
        let plan = PoolPlan::global(&CHIP, ElementType::F16, kind, [extents[0], extents[1], 8]);
        plan.map(|plan| plan.passes.iter().map(|pass| pass.kernel).collect()).map_err(|error| error.what)
    }

    #[test]
    fn a_mean_takes_as_many_passes_for_rows_as_for_columns() {
        assert_eq!(kernels(PoolKind::Mean, [7, 7]), Ok(vec![[7, 7]]));
        assert_eq!(kernels(PoolKind::Mean, [4, 16]), Ok(vec![[4, 16]]));
        assert_eq!(kernels(PoolKind::Mean, [8, 112]), Ok(vec![[2, 7], [4, 16]]));
        let error = kernels(PoolKind::Mean, [7, 49]).unwrap_err();
        assert_eq!(error, "a mean over 7 × 49, which are no products of equally many factors from 2 to 16");
        assert!(kernels(PoolKind::Mean, [17, 17]).is_err());
        assert!(kernels(PoolKind::Mean, [1, 8]).is_err());
    }

    proptest! {
        #[test]
        fn passes_of_a_maximum_cover_every_extent(height in 1..=8192usize, width in 1..=8192usize) {
            let kernels = whole_kernels([height, width]);
            prop_assert!(kernels.len() <= 5);
            let mut extents = [height, width];
            for kernel in kernels {
                for axis in 0..2 {
                    let outputs = extents[axis].div_ceil(kernel[axis]);
                    prop_assert!(kernel[axis] <= 16 && outputs * kernel[axis] - extents[axis] <= 7);
                    extents[axis] = outputs;
                }
            }
            prop_assert_eq!(extents, [1, 1]);
        }
    }
}
