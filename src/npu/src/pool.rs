//! Pooling: windows of a picture become their largest, their smallest or their mean element.
//!
//! ```text
//! PoolPlan (pure: passes) ─▶ Context ─▶ planes shared among the workers ─▶ one job each ─▶ verified, unpacked
//! ```
//!
//! Pictures are `[h, w, c]`, NHWC, of `f16`, `i8` or `u8`. Kernels and steps are 1 to 16 pixels, padding 0 to 7 on each side;
//! what is outside never wins a maximum or minimum. The whole of a picture is pooled in several passes where it is larger.
//!
//! | kind | elements | a cell outside | result |
//! |---|---|---|---|
//! | [`PoolKind::Max`], [`PoolKind::Min`] | all | does not count | exact |
//! | [`PoolKind::Mean`] | all; `u8` without padding | is a zero | see below |
//! | [`PoolKind::MeanInside`] | `f16` | does not count | [`PoolKind::Mean`], scaled by the host where windows reach outside |
//!
//! A mean is the sum times two reciprocals that the hardware rounds: in half precision 65536/k to 11 bits, so a mean is
//! within 2⁻⁹ of itself; of integers ⌊65536/k⌋, so a mean is the nearest integer, and a tie goes to
//! even or toward zero, for windows up to 8×8 and beyond that within one of it. It needs kernels of at least 2 in both
//! directions.
//!
//! The pooling unit ends a job by an interrupt of its own, which mainline's driver does not wait for: there a job takes
//! 500 ms and looks hung. So pooling is refused on a driver below version 1.3.
//!
//! ```
//! # use npu::conv::Image;
//! # use npu::{Context, PoolKind, RunError, Window};
//! # fn halve(context: &mut Context, picture: &[i8]) -> Result<Vec<i8>, RunError> {
//! let window = Window { kernel: [2, 2], stride: [2, 2], ..Window::POINT };
//! let mut smaller = vec![0; 112 * 112 * 64];
//! context.pool(PoolKind::Max, &window, Image::new(picture, [224, 224, 64])?, &mut smaller)?;
//! # Ok(smaller)
//! # }
//! ```

mod element;
mod plan;
mod task;
mod work;

use std::ops::Range;

use half::f16;

use crate::context::Context;
use crate::conv::Image;
use crate::error::{RunError, RunReport, Unsupported};
use crate::ops::Window;
pub use element::PoolElement;
pub use plan::PoolPlan;

/// What becomes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolKind {
    /// Its largest element.
    Max,
    /// Its smallest element.
    Min,
    /// Its mean, in which cells outside the picture count as zeros.
    Mean,
    /// The mean of its cells inside the picture.
    MeanInside,
}

impl PoolKind {
    /// Whether it is a sum of elements.
    pub const fn is_mean(self) -> bool {
        matches!(self, Self::Mean | Self::MeanInside)
    }
}

impl Context {
    /// Pools `image` into `output`, `[h', w', c]` with the extents that [`Window::output`] says.
    ///
    /// ```
    /// # use npu::conv::Image;
    /// # use npu::{Context, PoolKind, RunError, Window};
    /// # fn halves(context: &mut Context, picture: &[i8]) -> Result<Vec<i8>, RunError> {
    /// let mut halves = vec![0; 56 * 56 * 64];
    /// context.pool(PoolKind::Max, &Window::square(2, 2), Image::new(picture, [112, 112, 64])?, &mut halves)?;
    /// # Ok(halves)
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RunError::Unsupported`] for what the hardware or the driver cannot do, [`RunError::Size`] for an output that does not
    /// fit, [`RunError::Value`] for a NaN, and for an infinity in a mean, as nobody knows what the hardware makes of them;
    /// otherwise as [`Context::matmul`]. `output` is then all zeros.
    pub fn pool<T: PoolElement>(
        &mut self,
        kind: PoolKind,
        window: &Window,
        image: Image<'_, T>,
        output: &mut [T],
    ) -> Result<RunReport, RunError> {
        let plan = PoolPlan::new(&self.chip, T::ELEMENT, kind, window, image.shape())?;
        self.run_pool(&plan, image.values(), output)
    }

    /// Pools the whole picture into `output`, `[c]`.
    ///
    /// A mean is taken in passes of at most 16 rows and columns, each of which rounds. There must be as many of them for the
    /// rows as for the columns.
    ///
    /// # Errors
    /// As [`Context::pool`]; [`RunError::Unsupported`] also for a mean over extents that have no such passes.
    pub fn pool_global<T: PoolElement>(
        &mut self,
        kind: PoolKind,
        image: Image<'_, T>,
        output: &mut [T],
    ) -> Result<RunReport, RunError> {
        let plan = PoolPlan::global(&self.chip, T::ELEMENT, kind, image.shape())?;
        self.run_pool(&plan, image.values(), output)
    }

    fn run_pool<T: PoolElement>(
        &mut self,
        plan: &PoolPlan,
        input: &[T],
        output: &mut [T],
    ) -> Result<RunReport, RunError> {
        self.check_pool(plan, input, output).inspect_err(|_| output.fill(T::default()))?;
        let outcome = self.run_parts(plan, input, output);
        match outcome {
            Ok(_) if plan.kind() == PoolKind::MeanInside => T::rescale(plan, output),
            Ok(_) => {}
            // An unverified result is never handed out.
            Err(_) => output.fill(T::default()),
        }
        self.record("pool", outcome)
    }

    fn check_pool<T: PoolElement>(&self, plan: &PoolPlan, input: &[T], output: &[T]) -> Result<(), RunError> {
        let (found, expected) = (size_of_val(output), plan.output().iter().product::<usize>() * size_of::<T>());
        if found != expected {
            return Err(RunError::Size { what: "output", index: 0, found, expected });
        }
        if let Some(index) = input.iter().position(|value| !value.known(plan.kind())) {
            return Err(RunError::Value { what: "input", index });
        }
        match self.workers.iter().find(|worker| !worker.device.info().has_ppu_done()) {
            Some(worker) => {
                let (major, minor, patch) = worker.device.info().version;
                let driver = format!("driver {major}.{minor}.{patch} does not wait for the pooling unit");
                Err(Unsupported::new(format!("{driver}, version 1.3 does")).into())
            }
            None => Ok(()),
        }
    }

    /// All workers compute at once, or one after the other where cores must not; this thread packs and unpacks for one after
    /// the other.
    fn run_parts<T: PoolElement>(
        &mut self,
        plan: &PoolPlan,
        input: &[T],
        output: &mut [T],
    ) -> Result<RunReport, RunError> {
        let Self { options, workers, chip, .. } = self;
        let parts = split(plan.planes(), workers.len());
        let mut started = Vec::with_capacity(parts.len());
        let mut total = RunReport::default();
        for (worker, planes) in workers.iter_mut().zip(parts) {
            let part = worker.start_pool(plan, planes, input, options)?;
            if chip.parallel {
                started.push((worker, part));
                continue;
            }
            // QUIRK(R3): two jobs at once corrupt each other.
            total.add(worker.finish_pool(plan, part, output, chip)?);
        }
        for (worker, part) in started {
            total.add(worker.finish_pool(plan, part, output, chip)?);
        }
        Ok(total)
    }
}

/// Cuts the planes into as many parts as there are workers, or planes.
fn split(planes: usize, workers: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    let parts = workers.clamp(1, planes);
    (0..parts).map(move |part| planes * part / parts..planes * (part + 1) / parts)
}

/// Turns means of whole windows into means of what is inside.
fn rescale(plan: &PoolPlan, output: &mut [f16]) {
    let [_, columns, channels] = plan.output();
    for (pixel, values) in output.chunks_exact_mut(channels).enumerate() {
        let [inside, whole] = plan.cells([pixel / columns, pixel % columns]);
        if inside < whole {
            // CAST: at most 256.
            let ratio = whole as f32 / inside as f32;
            values.iter_mut().for_each(|value| *value = f16::from_f32(value.to_f32() * ratio));
        }
    }
}
