//! Matrix products C\[M, N\] = A\[M, K\] · B\[N, K\]ᵀ in every datatype of the NPU, row-major on the host.
//!
//! ```text
//! MatmulPlan (pure) ─▶ Context (files, memory) ─▶ one-shot · batch · resident, one or a batch · streaming · grouped · exact int16 · requantised
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

use std::marker::PhantomData;
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
    /// Divided by columns.
    packed: Packed,
    group: Option<usize>,
    datatype: PhantomData<T>,
}

impl<T> Weights<T> {
    /// Bytes of device memory.
    pub fn device_bytes(&self) -> u64 {
        self.packed.device_bytes()
    }
}

/// The second factors of a batch in device memory, valid for any number of rows.
#[derive(Debug)]
pub struct BatchWeights<T> {
    /// Divided by items.
    packed: Packed,
    items: usize,
    datatype: PhantomData<T>,
}

impl<T> BatchWeights<T> {
    /// How many products.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Bytes of device memory.
    pub fn device_bytes(&self) -> u64 {
        self.packed.device_bytes()
    }
}

/// Second factors of one shape in device memory.
#[derive(Debug)]
struct Packed {
    depth: usize,
    columns: usize,
    /// Of the tiles that they lie in.
    tile_depth: usize,
    /// One for each worker that has any.
    parts: Vec<PackedPart>,
}

/// What one worker has of second factors.
#[derive(Debug)]
struct PackedPart {
    /// Columns of the factor, or items of the batch.
    range: Range<usize>,
    device: Arc<dyn Device>,
    bo: Bo,
}

impl Packed {
    fn device_bytes(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.bo.bytes())).sum()
    }
}

/// The factors and the plan of a call.
struct Call<'a, T: Numbers> {
    plan: MatmulPlan,
    division: Division,
    /// One per item, or one for all.
    first: &'a [Matrix<'a, T::Factor>],
    second: Source<'a, T::Factor>,
}

/// What the workers divide among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Division {
    /// Columns of every item.
    Columns,
    /// Whole items, each worker's in one job.
    Items,
}

/// What is planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// One call.
    Once,
    /// A second factor that is packed for any number of rows.
    Resident,
    /// As many of them in one job.
    ResidentBatch(usize),
    /// One, with scales for groups of the depth.
    Grouped(usize),
}

/// Plans that a context keeps.
const KEPT_PLANS: usize = 16;

/// A plan, and what was asked for.
pub(crate) type Planned = ((Ask, Product, Shape), MatmulPlan);

/// Where the second factors are.
enum Source<'a, F> {
    /// One per item, and what each worker packs of them.
    Given {
        factors: &'a [Matrix<'a, F>],
        split: Vec<Range<usize>>,
    },
    Resident(&'a Packed),
}

impl<T: Numbers> Call<'_, T> {
    /// Columns or items of a worker.
    fn range(&self, worker: usize) -> Option<Range<usize>> {
        match &self.second {
            Source::Given { split, .. } => split.get(worker).cloned(),
            Source::Resident(packed) => packed.parts.get(worker).map(|part| part.range.clone()),
        }
    }
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
        let (first, second) = ([a], [b]);
        let call = self.by_columns(plan, &first, &second);
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
        if a.len() != b.len() || !alike(a) || !alike(b) {
            return Err(Unsupported::new("the products of a batch have different shapes").into());
        }
        let shape = shape_of(pad_rows(first.rows), first, second)?;
        let plan = self.plan(Ask::Once, T::PRODUCT, shape)?;
        if a.len() == 1 {
            // All workers divide a single product.
            let call = self.by_columns(plan, a, b);
            return self.call::<T, _>(call, &Plain, first.rows, c);
        }
        let split = split_items(a.len(), self.workers.len());
        let plan = plan.batch(split[0].len())?.items_of(a.len());
        let second = Source::Given { factors: b, split };
        let call = Call { plan, division: Division::Items, first: a, second };
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
        if !alike(b) {
            return Err(Unsupported::new("the second factors have different shapes").into());
        }
        let shape = shape_of(a.rows, &a, second)?;
        let plan = self.plan(Ask::Once, T::PRODUCT, shape)?.fused(b.len());
        let first = [a];
        let call = self.by_columns(plan, &first, b);
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
    /// weights of another context, of more workers, in tiles of another depth or packed for groups.
    pub fn matmul_resident<T: Numbers>(
        &mut self,
        a: Matrix<'_, T::Factor>,
        b: &Weights<T>,
        c: &mut [T::Sum],
    ) -> Result<RunReport, RunError> {
        if b.group.is_some() {
            return Err(Unsupported::new("the weights are packed for scaled groups").into());
        }
        let plan = self.resident_plan::<T>(Ask::Resident, &a, &b.packed)?;
        let first = [a];
        let call = Call { plan, division: Division::Columns, first: &first, second: Source::Resident(&b.packed) };
        self.call::<T, _>(call, &Plain, a.rows, &mut [c])
    }

    /// Packs the second factors of a batch once, for [`Context::matmul_batch_resident`] with any number of rows. Each is on
    /// one worker, so fewer factors than workers leave workers idle.
    ///
    /// # Errors
    /// As [`Context::matmul`]; [`RunError::Unsupported`] also for no factor, and for factors of different shapes.
    pub fn pack_batch<T: Numbers>(&mut self, b: &[Matrix<'_, T::Factor>]) -> Result<BatchWeights<T>, RunError> {
        let Some(second) = b.first() else { return Err(Unsupported::new("a batch of no products").into()) };
        if !alike(b) {
            return Err(Unsupported::new("the second factors have different shapes").into());
        }
        b.iter().try_for_each(|b| self.check_values::<T>("second factor", b.values))?;
        let shape = Shape { rows: pad_rows(1), depth: second.columns, columns: second.rows };
        let plan = self.plan(Ask::Resident, T::PRODUCT, shape)?;
        let mut parts = Vec::new();
        for (items, worker) in split_items(b.len(), self.workers.len()).into_iter().zip(&self.workers) {
            let factors = b[items.clone()].iter().map(|b| b.values);
            parts.push(pack_part::<T>(worker, items.clone(), &plan.items_of(items.len()), factors)?);
        }
        let packed = Packed { depth: shape.depth, columns: shape.columns, tile_depth: plan.tile().depth, parts };
        Ok(BatchWeights { packed, items: b.len(), datatype: PhantomData })
    }

    /// Independent products of one shape with resident second factors, one job on each worker that has any.
    /// `a`, `c`: one per product, in the order of the factors. Bit-identical to [`Context::matmul_resident`] of each.
    ///
    /// ```
    /// # use npu::matmul::{I8, Matrix};
    /// # use npu::{Chip, Context, Options};
    /// # fn products(context: &mut Context) -> Result<(), Box<dyn std::error::Error>> {
    /// let (first, second) = ([1_i8; 4 * 64], [2_i8; 32 * 64]);
    /// let weights = context.pack_batch::<I8>(&[Matrix::new(&second, 32, 64)?; 6])?;
    /// let mut sums = [[0_i32; 4 * 32]; 6];
    /// // Lists that are kept from call to call, so that a call allocates nothing.
    /// let a = [Matrix::new(&first, 4, 64)?; 6];
    /// let mut c = sums.each_mut().map(|sums| &mut sums[..]);
    /// for _ in 0..3 {
    ///     context.matmul_batch_resident::<I8>(&a, &weights, &mut c)?;
    /// }
    /// assert!(sums.iter().flatten().all(|sum| *sum == 128));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Context::matmul_resident`]; [`RunError::Count`] for another number of first factors or results than of second
    /// factors; [`RunError::Unsupported`] also where first factors have different shapes, or a worker's part is larger than
    /// a job may be.
    pub fn matmul_batch_resident<T: Numbers>(
        &mut self,
        a: &[Matrix<'_, T::Factor>],
        b: &BatchWeights<T>,
        c: &mut [&mut [T::Sum]],
    ) -> Result<RunReport, RunError> {
        let Some(first) = a.first().filter(|_| a.len() == b.items) else {
            return Err(RunError::Count { what: "first factors", found: a.len(), expected: b.items });
        };
        if !alike(a) {
            return Err(Unsupported::new("the first factors have different shapes").into());
        }
        let each = b.packed.parts[0].range.len();
        let plan = self.resident_plan::<T>(Ask::ResidentBatch(each), first, &b.packed)?.items_of(b.items);
        let call = Call { plan, division: Division::Items, first: a, second: Source::Resident(&b.packed) };
        self.call::<T, _>(call, &Plain, first.rows, c)
    }

    /// A call whose second factors are given, and whose columns the workers divide.
    fn by_columns<'a, T: Numbers>(
        &self,
        plan: MatmulPlan,
        first: &'a [Matrix<'a, T::Factor>],
        factors: &'a [Matrix<'a, T::Factor>],
    ) -> Call<'a, T> {
        let second = Source::Given { factors, split: plan.split(self.workers.len()) };
        Call { plan, division: Division::Columns, first, second }
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
            Ask::ResidentBatch(items) => MatmulPlan::resident(chip, product, shape, options)?.batch(items),
            Ask::Grouped(group) => MatmulPlan::grouped(chip, product, shape, group, options),
        }?;
        if self.planned.len() == KEPT_PLANS {
            self.planned.remove(0);
        }
        self.planned.push((question, plan.clone()));
        Ok(plan)
    }

    /// The plan of a call with resident second factors, which must be this context's.
    fn resident_plan<T: Numbers>(
        &mut self,
        ask: Ask,
        a: &Matrix<'_, T::Factor>,
        b: &Packed,
    ) -> Result<MatmulPlan, Unsupported> {
        self.check_own(b.parts.iter().map(|part| &part.device))?;
        if a.columns != b.depth {
            return Err(Unsupported::new(format!("a depth of {} and weights of depth {}", a.columns, b.depth)));
        }
        let plan = self.plan(ask, T::PRODUCT, Shape { rows: a.rows, depth: b.depth, columns: b.columns })?;
        // Another context of the same files may have other options.
        let (packed, planned) = (b.tile_depth, plan.tile().depth);
        if packed != planned {
            return Err(Unsupported::new(format!("weights in tiles of depth {packed}, {planned} are planned")));
        }
        Ok(plan)
    }

    fn pack<T: Numbers>(&mut self, b: Matrix<'_, T::Factor>, group: Option<usize>) -> Result<Weights<T>, RunError> {
        self.check_values::<T>("second factor", b.values)?;
        let shape = Shape { rows: pad_rows(1), depth: b.columns, columns: b.rows };
        let plan = self.plan(group.map_or(Ask::Resident, Ask::Grouped), T::PRODUCT, shape)?;
        let mut parts = Vec::new();
        for (columns, worker) in plan.split(self.workers.len()).into_iter().zip(&self.workers) {
            let values = &b.values[columns.start * b.columns..columns.end * b.columns];
            let plan = plan.columns(columns.len());
            parts.push(pack_part::<T>(worker, columns, &plan, std::iter::once(values))?);
        }
        let packed = Packed { depth: shape.depth, columns: shape.columns, tile_depth: plan.tile().depth, parts };
        Ok(Weights { packed, group, datatype: PhantomData })
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
            self.check_values::<T>("first factor", first.values)?;
        }
        if let Source::Given { factors, .. } = &call.second {
            factors.iter().try_for_each(|second| self.check_values::<T>("second factor", second.values))?;
        }
        let outcome = match (call.division, &mut *results, &mut self.workers[..]) {
            (Division::Columns, [result], [worker]) => {
                let results = Results::Whole { values: result, columns };
                let part = columns_part(&call, 0, 0..columns, results);
                worker.multiply(part, gather, &self.options, self.chip.slow_mark)
            }
            (Division::Columns, ..) => self.run_columns(&call, rows, gather, results),
            (Division::Items, ..) => self.run_items(&call, rows, gather, results),
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
        let mut rest = self.rest.take();
        rest.extend(results.iter_mut().flat_map(|result| result.chunks_mut(call.plan.shape().columns)));
        let deal = |index: usize, worker: &mut Worker| {
            let columns = call.range(index)?;
            let mut list = worker.rows.take();
            list.extend(rest.iter_mut().filter_map(|row| row.split_off_mut(..columns.len())));
            Some(columns_part(call, index, columns, Results::Rows { list, rows }))
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
        let columns = call.plan.shape().columns;
        let mut rest = results;
        let deal = |index: usize, worker: &mut Worker| {
            let items = call.range(index)?;
            let results = rest.split_off_mut(..items.len())?;
            let mut list = worker.rows.take();
            list.extend(results.iter_mut().flat_map(|result| result.chunks_mut(columns)));
            let plan = call.plan.items_of(items.len());
            let second = match &call.second {
                Source::Given { factors, .. } => {
                    Second::Given { factors: &factors[items.clone()], columns: 0..columns }
                }
                Source::Resident(packed) => Second::Resident(&packed.parts[index].bo),
            };
            let results = Results::Rows { list, rows };
            Some(Part { plan, first_column: 0, first: &call.first[items], second, results })
        };
        self.on_workers(deal, |worker, part, options, mark| worker.multiply(part, gather, options, mark))
    }
}

fn shape_of<F>(rows: usize, a: &Matrix<'_, F>, b: &Matrix<'_, F>) -> Result<Shape, Unsupported> {
    if a.columns != b.columns {
        return Err(Unsupported::new(format!("factors of depth {} and {}", a.columns, b.columns)));
    }
    Ok(Shape { rows, depth: a.columns, columns: b.rows })
}

/// Whether all have one shape.
fn alike<F>(matrices: &[Matrix<'_, F>]) -> bool {
    matrices.windows(2).all(|pair| (pair[0].rows, pair[0].columns) == (pair[1].rows, pair[1].columns))
}

/// Deals whole items to at most so many workers; none gets more than the first.
fn split_items(items: usize, workers: usize) -> Vec<Range<usize>> {
    let each = items.div_ceil(workers);
    (0..items).step_by(each).map(|first| first..(first + each).min(items)).collect()
}

/// Packs a worker's part of second factors. `factors`: one per item of the plan, `[columns, depth]` of the plan.
fn pack_part<'a, T: Numbers>(
    worker: &Worker,
    range: Range<usize>,
    plan: &MatmulPlan,
    factors: impl Iterator<Item = &'a [T::Factor]>,
) -> Result<PackedPart, RunError> {
    let bytes = plan.constant_bytes() + BURST_SLACK;
    let too_large = |_| Unsupported::new(format!("weights of {bytes} bytes exceed the NPU's address space"));
    let bytes = u32::try_from(bytes).map_err(too_large)?;
    let mut bo = Bo::new(&worker.device, bytes).map_err(refused("allocate the weights"))?;
    fill(&mut bo, "pack the weights", |memory| {
        for (factor, memory) in factors.zip(memory.chunks_exact_mut(plan.second_bytes())) {
            pack::weights::<T>(plan, factor, memory);
        }
        pack::operands(plan, memory);
    })?;
    Ok(PackedPart { range, device: Arc::clone(&worker.device), bo })
}

/// A worker's part of a call whose columns are divided.
fn columns_part<'a, T: Numbers, G: Gather<T>>(
    call: &'a Call<'_, T>,
    index: usize,
    columns: Range<usize>,
    results: Results<'a, G::Out>,
) -> Part<'a, T, G> {
    let (plan, first_column) = (call.plan.columns(columns.len()), columns.start);
    let second = match &call.second {
        Source::Given { factors, .. } => Second::Given { factors, columns },
        Source::Resident(packed) => Second::Resident(&packed.parts[index].bo),
    };
    Part { plan, first_column, first: call.first, second, results }
}
