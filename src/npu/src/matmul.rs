//! Matrix products C\[M, N\] = A\[M, K\] · B\[N, K\]ᵀ in every datatype of the NPU, row-major on the host.
//!
//! ```text
//! MatmulPlan (pure) ─▶ Context (files, memory) ─▶ one-shot · batch · resident · streaming · grouped · exact int16 · requantised
//! ```
//!
//! A product is a convolution of one pixel, cut into tiles that fit the on-chip buffer. The tile's depth is chosen from the
//! whole product, never from a worker's part, so results do not depend on how many workers there are.
//!
//! | type | factors → results | K multiple of | N multiple of |
//! |---|---|---|---|
//! | [`F16`] | fp16 → fp16 | 32 | 16 |
//! | [`F16ToF32`] | fp16 → fp32 | 32 | 16 |
//! | [`I8`] | int8 → int32 | 32 | 32 |
//! | [`I4`] | int4 → int32 | 32 | 64 |
//! | [`I16`] | int16 → int32, saturating, K in one task | 32 | 16 |
//! | [`Bf16`] | fp32, cut to bf16 → fp32 | 32 | 16 |
//! | [`Tf32`] | fp32, rounded to 10 bits → fp32 | 16 | 16 |
//!
//! [`Context::matmul_requantised`] is int8 → int8, with a scale for each column.
//!
//! The hardware computes rows in fours. [`Context::matmul`] and [`Context::matmul_batch`] pad M; the planner and the resident
//! and streaming forms refuse an M that is no multiple of 4, as padding belongs to the caller's scales too ([`pad_rows`]).
//!
//! Every result is verified: where the hardware did not write, or a wait was so long that the watchdog may have ended the
//! job, the call fails and the results are zeros.

mod exact;
mod form;
mod grouped;
pub(crate) mod numbers;
mod pack;
pub(crate) mod plan;
mod requantised;
pub(crate) mod work;

use std::ops::Range;
use std::sync::Arc;

use npu_device::{Bo, Device};

use crate::context::{Context, Worker, fill};
use crate::error::{RunError, RunReport, Unsupported};
use crate::run::{BURST_SLACK, refused};
pub use grouped::{GroupNumbers, Scaled, ScaledWeights};
pub use numbers::{Bf16, F16, F16ToF32, I4, I8, I16, Numbers, Product, Tf32};
pub use plan::{MatmulPlan, Shape};
pub use requantised::{Requantised, RequantisedWeights};
use work::{Gather, Part, Plain, Results, Second};

/// A matrix on the host, row-major.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a, T> {
    values: &'a [T],
    rows: usize,
    columns: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// `values`: `[rows, columns]`.
    ///
    /// # Errors
    /// A number of values that is not `rows` × `columns`, or an extent of 0.
    pub fn new(values: &'a [T], rows: usize, columns: usize) -> Result<Self, Unsupported> {
        if rows == 0 || columns == 0 || rows.checked_mul(columns) != Some(values.len()) {
            return Err(Unsupported::new(format!("{} values are no matrix of {rows} × {columns}", values.len())));
        }
        Ok(Self { values, rows, columns })
    }

    /// The values.
    pub(crate) fn values(&self) -> &'a [T] {
        self.values
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }
}

/// The number of rows that the hardware computes for `rows` rows.
pub const fn pad_rows(rows: usize) -> usize {
    rows.next_multiple_of(plan::ROW_GROUP)
}

/// A second factor in device memory, valid for any number of rows.
#[derive(Debug)]
pub struct Weights<T> {
    depth: usize,
    columns: usize,
    group: Option<usize>,
    parts: Vec<(Range<usize>, Arc<dyn Device>, Bo)>,
    datatype: std::marker::PhantomData<T>,
}

impl<T> Weights<T> {
    /// Bytes of device memory.
    pub fn device_bytes(&self) -> u64 {
        self.parts.iter().map(|(.., bo)| u64::from(bo.bytes())).sum()
    }
}

/// The factors and the plan of a call.
struct Call<'a, T: Numbers> {
    plan: MatmulPlan,
    /// One per item, or one for all.
    first: &'a [&'a [T::Factor]],
    second: Source<'a, T>,
}

/// What is planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// One call.
    Once,
    /// A second factor that is packed for any number of rows.
    Resident,
    /// The same, with scales for groups of the depth.
    Grouped(usize),
}

/// Plans that a context keeps.
const KEPT_PLANS: usize = 16;

/// A plan, and what was asked for.
pub(crate) type Planned = ((Ask, Product, Shape), MatmulPlan);

/// Where the second factor is.
enum Source<'a, T: Numbers> {
    /// One per item.
    Given(&'a [&'a [T::Factor]]),
    Resident(&'a Weights<T>),
}

impl Context {
    /// One product. `c`: `[a.rows, b.rows]`. Rows are padded.
    ///
    /// ```
    /// # use npu::matmul::{I8, Matrix};
    /// # fn product(context: &mut npu::Context) -> Result<(), Box<dyn std::error::Error>> {
    /// let (a, b) = ([1_i8; 5 * 64], [2_i8; 32 * 64]);
    /// let mut c = [0_i32; 5 * 32];
    /// context.matmul::<I8>(Matrix::new(&a, 5, 64)?, Matrix::new(&b, 32, 64)?, &mut c)?;
    /// assert!(c.iter().all(|sum| *sum == 128));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RunError::Unsupported`] and [`RunError::Value`] for operands that do not fit, [`RunError::Untrusted`],
    /// [`RunError::Deadline`] and [`RunError::Device`] for what happens on the device; `c` is then all zeros.
    pub fn matmul<T: Numbers>(
        &mut self,
        a: Matrix<'_, T::Factor>,
        b: Matrix<'_, T::Factor>,
        c: &mut [T::Sum],
    ) -> Result<RunReport, RunError> {
        let shape = shape_of(pad_rows(a.rows), &a, &b)?;
        let plan = self.plan(Ask::Once, T::PRODUCT, shape)?;
        let (first, second) = ([a.values], [b.values]);
        let call = Call { plan, first: &first, second: Source::Given(&second) };
        self.call::<T, _>(call, &Plain, a.rows, &mut [c])
    }

    /// Independent products of one shape, one job on each worker. Bit-identical to [`Context::matmul`] of each.
    ///
    /// # Errors
    /// As [`Context::matmul`]; [`RunError::Unsupported`] also where lists or shapes differ, or a worker's part is larger
    /// than a job may be.
    pub fn matmul_batch<T: Numbers>(
        &mut self,
        a: &[Matrix<'_, T::Factor>],
        b: &[Matrix<'_, T::Factor>],
        c: &mut [&mut [T::Sum]],
    ) -> Result<RunReport, RunError> {
        let (Some(first), Some(second)) = (a.first(), b.first()) else {
            return Err(Unsupported::new("a batch of no products").into());
        };
        let alike = |a: &Matrix<'_, T::Factor>, b: &Matrix<'_, T::Factor>| (a.rows, a.columns) == (b.rows, b.columns);
        if a.len() != b.len() || !a.iter().all(|a| alike(a, first)) || !b.iter().all(|b| alike(b, second)) {
            return Err(Unsupported::new("the products of a batch have different shapes").into());
        }
        let shape = shape_of(pad_rows(first.rows), first, second)?;
        let plan = self.plan(Ask::Once, T::PRODUCT, shape)?.items_of(a.len());
        let firsts: Vec<_> = a.iter().map(|a| a.values).collect();
        let seconds: Vec<_> = b.iter().map(|b| b.values).collect();
        let call = Call { plan, first: &firsts, second: Source::Given(&seconds) };
        self.call::<T, _>(call, &Plain, first.rows, c)
    }

    /// Products of one first factor with several second factors of one shape, which are packed anew for every call:
    /// `gate` and `up` of a feed-forward block. Memory and register programs are kept from call to call.
    ///
    /// # Errors
    /// As [`Context::matmul`]; [`RunError::Unsupported`] also for a number of rows that is no multiple of 4.
    pub fn matmul_stream<T: Numbers>(
        &mut self,
        a: Matrix<'_, T::Factor>,
        b: &[Matrix<'_, T::Factor>],
        c: &mut [&mut [T::Sum]],
    ) -> Result<RunReport, RunError> {
        let Some(second) = b.first() else { return Err(Unsupported::new("no second factor").into()) };
        if b.iter().any(|b| (b.rows, b.columns) != (second.rows, second.columns)) {
            return Err(Unsupported::new("the second factors have different shapes").into());
        }
        let shape = shape_of(a.rows, &a, second)?;
        let plan = self.plan(Ask::Once, T::PRODUCT, shape)?.fused(b.len());
        let (first, seconds) = ([a.values], b.iter().map(|b| b.values).collect::<Vec<_>>());
        let call = Call { plan, first: &first, second: Source::Given(&seconds) };
        self.call::<T, _>(call, &Plain, a.rows, c)
    }

    /// Packs a second factor once, for [`Context::matmul_resident`] with any number of rows.
    ///
    /// # Errors
    /// As [`Context::matmul`].
    pub fn pack_weights<T: Numbers>(&mut self, b: Matrix<'_, T::Factor>) -> Result<Weights<T>, RunError> {
        self.pack(b, None)
    }

    /// A product with a resident second factor.
    ///
    /// # Errors
    /// As [`Context::matmul`]; [`RunError::Unsupported`] also for a number of rows that is no multiple of 4, and for
    /// weights of another context or packed for groups.
    pub fn matmul_resident<T: Numbers>(
        &mut self,
        a: Matrix<'_, T::Factor>,
        b: &Weights<T>,
        c: &mut [T::Sum],
    ) -> Result<RunReport, RunError> {
        if b.group.is_some() {
            return Err(Unsupported::new("the weights are packed for scaled groups").into());
        }
        let plan = self.resident_plan(&a, b)?;
        let first = [a.values];
        let call = Call { plan, first: &first, second: Source::Resident(b) };
        self.call::<T, _>(call, &Plain, a.rows, &mut [c])
    }

    /// The plan of a product. Those that were asked for last are not made again: a layer's products take turns.
    fn plan(&mut self, ask: Ask, product: Product, shape: Shape) -> Result<MatmulPlan, Unsupported> {
        let question = (ask, product, shape);
        if let Some((_, plan)) = self.planned.iter().find(|(asked, _)| *asked == question) {
            return Ok(plan.clone());
        }
        let (chip, options) = (&self.chip, &self.options);
        let plan = match ask {
            Ask::Once => MatmulPlan::new(chip, product, shape, options),
            Ask::Resident => MatmulPlan::resident(chip, product, shape, options),
            Ask::Grouped(group) => MatmulPlan::grouped(chip, product, shape, group, options),
        }?;
        if self.planned.len() == KEPT_PLANS {
            self.planned.remove(0);
        }
        self.planned.push((question, plan.clone()));
        Ok(plan)
    }

    fn resident_plan<T: Numbers>(
        &mut self,
        a: &Matrix<'_, T::Factor>,
        b: &Weights<T>,
    ) -> Result<MatmulPlan, Unsupported> {
        let own = b.parts.iter().zip(&self.workers).all(|((_, device, _), worker)| Arc::ptr_eq(device, &worker.device));
        if !own {
            return Err(Unsupported::new("the weights belong to another context"));
        }
        if a.columns != b.depth {
            return Err(Unsupported::new(format!("a depth of {} and weights of depth {}", a.columns, b.depth)));
        }
        let shape = Shape { rows: a.rows, depth: b.depth, columns: b.columns };
        self.plan(b.group.map_or(Ask::Resident, Ask::Grouped), T::PRODUCT, shape)
    }

    fn pack<T: Numbers>(&mut self, b: Matrix<'_, T::Factor>, group: Option<usize>) -> Result<Weights<T>, RunError> {
        self.check_values::<T>("second factor", b.values)?;
        let shape = Shape { rows: pad_rows(1), depth: b.columns, columns: b.rows };
        let plan = self.plan(group.map_or(Ask::Resident, Ask::Grouped), T::PRODUCT, shape)?;
        let mut parts = Vec::new();
        for (columns, worker) in plan.split(self.workers.len()).into_iter().zip(&self.workers) {
            let plan = plan.columns(columns.len());
            let bytes = plan.constant_bytes() + BURST_SLACK;
            let too_large = |_| Unsupported::new(format!("weights of {bytes} bytes exceed the NPU's address space"));
            let bytes = u32::try_from(bytes).map_err(too_large)?;
            let mut bo = Bo::new(&worker.device, bytes).map_err(refused("allocate the weights"))?;
            let values = &b.values[columns.start * b.columns..columns.end * b.columns];
            fill(&mut bo, "pack the weights", |memory| {
                pack::weights::<T>(&plan, values, memory);
                pack::operands(&plan, memory);
            })?;
            parts.push((columns, Arc::clone(&worker.device), bo));
        }
        Ok(Weights { depth: b.columns, columns: b.rows, group, parts, datatype: std::marker::PhantomData })
    }

    fn check_values<T: Numbers>(&self, what: &'static str, values: &[T::Factor]) -> Result<(), RunError> {
        match T::misfit(values, self.options.symmetric_int4) {
            Some(index) => Err(RunError::Value { what, index }),
            None => Ok(()),
        }
    }

    /// Runs a call on all workers. `rows`: those of the caller.
    fn call<T: Numbers, G: Gather<T>>(
        &mut self,
        call: Call<'_, T>,
        gather: &G,
        rows: usize,
        results: &mut [&mut [G::Out]],
    ) -> Result<RunReport, RunError> {
        let columns = call.plan.shape().columns;
        if results.len() != call.plan.items() {
            let (found, expected) = (results.len(), call.plan.items());
            return Err(RunError::Count { what: "results", found, expected });
        }
        for (index, result) in results.iter().enumerate() {
            let (found, expected) = (size_of_val::<[G::Out]>(&**result), rows * columns * size_of::<G::Out>());
            if found != expected {
                return Err(RunError::Size { what: "result", index, found, expected });
            }
        }
        for first in call.first {
            self.check_values::<T>("first factor", first)?;
        }
        if let Source::Given(second) = &call.second {
            second.iter().try_for_each(|second| self.check_values::<T>("second factor", second))?;
        }
        let outcome = match (&mut *results, &mut self.workers[..]) {
            ([result], [worker]) => {
                let results = Results::Whole { values: result, columns };
                let part = part(&call, 0, 0..columns, results);
                worker.multiply(part, gather, &self.options, self.chip.slow_mark)
            }
            _ if call.plan.items() > 1 && !call.plan.shares_first() => self.run_items(&call, rows, gather, results),
            _ => self.run_columns(&call, rows, gather, results),
        };
        if outcome.is_err() {
            // An unverified result is never handed out.
            results.iter_mut().for_each(|result| result.fill(G::Out::default()));
        }
        self.record("matmul", outcome)
    }

    /// Gives every worker some columns of all results.
    fn run_columns<T: Numbers, G: Gather<T>>(
        &mut self,
        call: &Call<'_, T>,
        rows: usize,
        gather: &G,
        results: &mut [&mut [G::Out]],
    ) -> Result<RunReport, RunError> {
        let split = match &call.second {
            Source::Given(_) => call.plan.split(self.workers.len()),
            Source::Resident(_) => Vec::new(),
        };
        let range = |index: usize| match &call.second {
            Source::Given(_) => split.get(index),
            Source::Resident(weights) => weights.parts.get(index).map(|(columns, ..)| columns),
        };
        let mut rest = self.rest.take();
        rest.extend(results.iter_mut().flat_map(|result| result.chunks_mut(call.plan.shape().columns)));
        let deal = |index: usize, worker: &mut Worker| {
            let columns = range(index)?.clone();
            let mut list = worker.rows.take();
            list.extend(rest.iter_mut().filter_map(|row| row.split_off_mut(..columns.len())));
            Some(part(call, index, columns, Results::Rows { list, rows }))
        };
        let outcome = self.on_workers(deal, |worker, part, options, mark| worker.multiply(part, gather, options, mark));
        self.rest.keep(rest);
        outcome
    }

    /// Gives every worker whole items of a batch.
    fn run_items<T: Numbers, G: Gather<T>>(
        &mut self,
        call: &Call<'_, T>,
        rows: usize,
        gather: &G,
        results: &mut [&mut [G::Out]],
    ) -> Result<RunReport, RunError> {
        let Source::Given(second) = &call.second else {
            return Err(Unsupported::new("a batch of resident weights").into());
        };
        let (columns, each) = (call.plan.shape().columns, results.len().div_ceil(self.workers.len()));
        let mut chunks = call.first.chunks(each).zip(second.chunks(each)).zip(results.chunks_mut(each));
        let deal = |_, worker: &mut Worker| {
            let ((first, second), results) = chunks.next()?;
            let mut list = worker.rows.take();
            list.extend(results.iter_mut().flat_map(|result| result.chunks_mut(columns)));
            let (second, results) =
                (Second::Given { factors: second, columns: 0..columns }, Results::Rows { list, rows });
            let plan = call.plan.items_of(first.len()).batch(first.len());
            Some(plan.map(|plan| Part { plan, first_column: 0, first, second, results }))
        };
        self.on_workers(deal, |worker, part, options, mark| worker.multiply(part?, gather, options, mark))
    }
}

fn shape_of<F>(rows: usize, a: &Matrix<'_, F>, b: &Matrix<'_, F>) -> Result<Shape, Unsupported> {
    if a.columns != b.columns {
        return Err(Unsupported::new(format!("factors of depth {} and {}", a.columns, b.columns)));
    }
    Ok(Shape { rows, depth: a.columns, columns: b.rows })
}

/// The part of some columns.
fn part<'a, T: Numbers, G: Gather<T>>(
    call: &'a Call<'_, T>,
    index: usize,
    columns: Range<usize>,
    results: Results<'a, G::Out>,
) -> Part<'a, T, G> {
    let (plan, first_column) = (call.plan.columns(columns.len()), columns.start);
    let second = match &call.second {
        Source::Given(factors) => Second::Given { factors, columns },
        Source::Resident(weights) => Second::Resident(&weights.parts[index].2),
    };
    Part { plan, first_column, first: call.first, second, results }
}
