//! Cuts a matrix product into tasks. Pure: no device, no data.
//!
//! ```text
//! product ─▶ tiles that fit CBUF ─▶ rounds of tiles with all their depth ─▶ jobs of tasks
//! ```
//!
//! The second factor lies in memory depth tile by depth tile, each a weight cube of all columns. So the packed form
//! depends on the depth of a tile alone, and rows and columns may be cut anew for every call. SOURCE: npu-spec 4.3, 4.4,
//! 9.4.

use std::ops::Range;
use std::time::Duration;

use npu_regs::Layout;

use crate::chip::{Chip, Operation};
use crate::emit::{Addend, Arithmetic, ConvTask, Feature, Kernel, Kind, Output, Place, Region, Reuse};
use crate::error::Unsupported;
use crate::layout::ATOM;
use crate::matmul::form::Form;
use crate::matmul::numbers::{Product, Stored};
use crate::options::{MOST_TILE, OperandReuse, Options};
use crate::tile::Banks;
use crate::{quirks, rk3576};

/// What the number of rows must be a multiple of. QUIRK(Q01)
pub(crate) const ROW_GROUP: usize = 4;
/// Columns of a tile that leaves room for depth. SOURCE: npu-spec 9.4.
const NARROW_TILE: usize = 128;
/// Depth at which 16-bit sums of 4-bit codes may saturate: 64 × 480, and 49 × 640 without −8. SOURCE: npu-spec 5.3.
const INT4_DEPTH: usize = 480;
const SYMMETRIC_INT4_DEPTH: usize = 640;
/// Bytes of a CBUF entry.
const ENTRY: usize = 64;
/// Kernels whose weights an RK3576 holds at once. SOURCE: npu-spec-rk3576 4.
const KERNEL_GROUP: usize = 32;

/// Extents of a product C\[rows, columns\] = A\[rows, depth\] · B\[columns, depth\]ᵀ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows of A and C.
    pub rows: usize,
    /// Columns of A and B.
    pub depth: usize,
    /// Rows of B, columns of C.
    pub columns: usize,
}

/// A plan of a matrix product, or of several of one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct MatmulPlan {
    chip: Chip,
    product: Product,
    form: Form,
    shape: Shape,
    items: usize,
    /// All items have the same first factor.
    shared_first: bool,
    tile: Shape,
    on_chip: bool,
    chained: bool,
    reuse: OperandReuse,
    host_order: bool,
    tasks_per_round: usize,
}

/// A tile of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    /// Which product.
    pub(crate) item: usize,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    pub(crate) first_column: usize,
    pub(crate) columns: usize,
}

/// Tiles that are computed together, and their tasks: each a tile of the round and a step of its depth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) tiles: Vec<Tile>,
    pub(crate) tasks: Vec<(usize, usize)>,
    /// Tasks of each job.
    pub(crate) jobs: Vec<Range<usize>>,
}

impl MatmulPlan {
    /// Plans one product.
    ///
    /// # Errors
    /// Extents that the datatype does not allow, by name: rows must be a multiple of 4, depth and columns of what
    /// [`Product`] says, and a depth that cannot be cut must fit the on-chip buffer.
    pub fn new(chip: &Chip, product: Product, shape: Shape, options: &Options) -> Result<Self, Unsupported> {
        let plans = Self::alternatives(chip, product, shape, options)?;
        Ok(Self::cheapest(plans, options))
    }

    /// The plans among which [`MatmulPlan::new`] takes the cheapest by the cost model, that of the published rule first:
    /// tiles of all, half and a quarter of the most rows and columns, each with as much depth as fits; sums on the chip, in
    /// one chain or not, or by the host; and each operand that tasks may share. At most 45, and only what the options allow.
    ///
    /// # Errors
    /// As [`MatmulPlan::new`].
    pub fn alternatives(
        chip: &Chip,
        product: Product,
        shape: Shape,
        options: &Options,
    ) -> Result<Vec<Self>, Unsupported> {
        check_shape(chip, product, shape, options)?;
        let tile = choose_tile(chip, product, shape, options)?;
        let others = tiles(product, shape, options).into_iter().map(|tile| {
            let depth = fit(chip, product, shape.depth, [tile.rows, tile.columns], options);
            Shape { depth, ..tile }
        });
        let others = others.filter(|other| *other != tile && (product.splits_depth() || other.depth == shape.depth));
        let tiles = std::iter::once(tile).chain(others);
        Ok(tiles.flat_map(|tile| Self::with_tile(chip, product, shape, tile, options).ways(options)).collect())
    }

    /// Of equal ones the first.
    fn cheapest(plans: Vec<Self>, options: &Options) -> Self {
        let considered = if options.cheapest_plan { plans.len() } else { 1 };
        // PANIC: the published rule gives one.
        plans.into_iter().take(considered).min_by_key(Self::cost).expect("a plan")
    }

    /// The ways to sum and to share operands with these tiles.
    fn ways(self, options: &Options) -> Vec<Self> {
        let on_host = Self { on_chip: false, ..self.clone() };
        let in_steps = Self { chained: false, ..self.clone() };
        let sums = match (self.on_chip, options.chain_accumulation) {
            (true, true) => vec![self, in_steps, on_host],
            (true, false) => vec![self, on_host],
            (false, _) => vec![self],
        };
        let ways =
            sums.iter().flat_map(|plan| plan.reuses().iter().map(|reuse| Self { reuse: *reuse, ..plan.clone() }));
        ways.collect()
    }

    /// The ways to share operands that are considered, the one of the published rule first. SOURCE: npu-spec 9.4.
    fn reuses(&self) -> &'static [OperandReuse] {
        let tiles = self.tiles();
        match self.reuse {
            OperandReuse::Auto if !self.on_chip => &[OperandReuse::Off],
            OperandReuse::Auto if tiles.columns >= tiles.rows => &[OperandReuse::Features, OperandReuse::Weights],
            OperandReuse::Auto => &[OperandReuse::Weights, OperandReuse::Features],
            OperandReuse::Off => &[OperandReuse::Off],
            OperandReuse::Features => &[OperandReuse::Features],
            OperandReuse::Weights => &[OperandReuse::Weights],
        }
    }

    /// Plans a product with resident second factor: the depth of its tiles is that of 256 rows, so that the packed
    /// factor serves any number of rows. A small number of rows gives up the longer depth that it alone would allow.
    ///
    /// # Errors
    /// As [`MatmulPlan::new`].
    pub fn resident(chip: &Chip, product: Product, shape: Shape, options: &Options) -> Result<Self, Unsupported> {
        check_shape(chip, product, shape, options)?;
        let packed = Self::new(chip, product, Shape { rows: MOST_TILE, ..shape }, options)?.tile;
        // Fewer rows fit beside as many columns.
        let own = Shape { rows: packed.rows.min(shape.rows), ..packed };
        let others = tiles(product, shape, options).into_iter().map(|tile| Shape { depth: packed.depth, ..tile });
        let others = others.filter(|tile| {
            *tile != own && fit(chip, product, tile.depth, [tile.rows, tile.columns], options) == tile.depth
        });
        let tiles = std::iter::once(own).chain(others);
        let plans = tiles.flat_map(|tile| Self::with_tile(chip, product, shape, tile, options).ways(options));
        Ok(Self::cheapest(plans.collect(), options))
    }

    /// Plans a product whose partial sums over each `group` of the depth are scaled: a tile's depth divides the group.
    ///
    /// # Errors
    /// As [`MatmulPlan::new`], and a group that is no whole number of depth groups or does not divide the depth.
    pub fn grouped(
        chip: &Chip,
        product: Product,
        shape: Shape,
        group: usize,
        options: &Options,
    ) -> Result<Self, Unsupported> {
        let step = product.depth_group();
        if group == 0 || !group.is_multiple_of(step) || !shape.depth.is_multiple_of(group) {
            let depth = shape.depth;
            return Err(Unsupported::new(format!("a group of {group} is no multiple of {step} that divides {depth}")));
        }
        let mut plan = Self::resident(chip, product, shape, options)?;
        let most = plan.tile.depth.min(group);
        plan.tile.depth = (step..=most).rev().step_by(step).find(|depth| group.is_multiple_of(*depth)).unwrap_or(step);
        Ok(plan)
    }

    fn with_tile(chip: &Chip, product: Product, shape: Shape, tile: Shape, options: &Options) -> Self {
        let steps = shape.depth.div_ceil(tile.depth);
        let form = Form::new(chip.layout, product);
        let on_chip = product == Product::F16 && !form.narrow_partials && options.accumulate_on_chip && steps > 1;
        let tile = Shape { rows: tile.rows.min(shape.rows), columns: tile.columns.min(shape.columns), ..tile };
        Self {
            chip: chip.clone(),
            product,
            form,
            shape,
            items: 1,
            shared_first: false,
            tile,
            on_chip,
            chained: options.chain_accumulation,
            reuse: options.reuse,
            // SOURCE: npu-spec 4.3 [HW], for these factors.
            host_order: options.host_order && matches!(product, Product::F16 | Product::F16ToF32 | Product::I8),
            tasks_per_round: options.tasks_per_job.clamp(1, chip.max_tasks),
        }
    }

    /// The plan of `items` products of this shape, all of them one job.
    ///
    /// # Errors
    /// More tasks than one job takes, or more time than one job may.
    pub fn batch(mut self, items: usize) -> Result<Self, Unsupported> {
        self.items = items;
        self.tasks_per_round = self.tasks().max(1);
        if self.tasks() > self.chip.max_tasks {
            return Err(Unsupported::new(format!(
                "{} tasks of the batch exceed {} of a job",
                self.tasks(),
                self.chip.max_tasks
            )));
        }
        let (time, most) = (self.time(true), self.chip.job_budget);
        if time > most {
            return Err(Unsupported::new(format!(
                "the batch needs {time:?} by the cost model, a job may take {most:?}"
            )));
        }
        Ok(self)
    }

    /// The plan of `items` products of this shape that share their first factor.
    pub fn fused(self, items: usize) -> Self {
        Self { items, shared_first: true, ..self }
    }

    /// The plan of as many products of this shape, of which each has its own factors.
    pub(crate) fn items_of(&self, items: usize) -> Self {
        Self { items, ..self.clone() }
    }

    /// The plan of some of the columns, in the same tiles.
    pub(crate) fn columns(&self, columns: usize) -> Self {
        let tile = Shape { columns: self.tile.columns.min(columns), ..self.tile };
        Self { shape: Shape { columns, ..self.shape }, tile, ..self.clone() }
    }

    /// Cuts the columns into at most `parts` runs of whole tiles, or of whole groups where there are fewer tiles.
    pub fn split(&self, parts: usize) -> Vec<Range<usize>> {
        let all = self.shape.columns;
        let unit =
            if all.div_ceil(self.tile.columns) >= parts { self.tile.columns } else { self.product.column_group() };
        let units = all.div_ceil(unit);
        let parts = parts.clamp(1, units);
        let cut = |part: usize| (units * part / parts * unit).min(all);
        (0..parts).map(|part| cut(part)..cut(part + 1)).collect()
    }

    /// The kind of product.
    pub fn product(&self) -> Product {
        self.product
    }

    /// The extents.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// How many products.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Extents of a tile.
    pub fn tile(&self) -> Shape {
        self.tile
    }

    /// Tiles along each extent.
    pub fn tiles(&self) -> Shape {
        Shape {
            rows: self.shape.rows.div_ceil(self.tile.rows),
            depth: self.shape.depth.div_ceil(self.tile.depth),
            columns: self.shape.columns.div_ceil(self.tile.columns),
        }
    }

    /// Tasks.
    pub fn tasks(&self) -> usize {
        let tiles = self.tiles();
        self.items * tiles.rows * tiles.depth * tiles.columns
    }

    /// Jobs.
    pub fn jobs(&self) -> usize {
        self.rounds().iter().map(|round| round.jobs.len()).sum()
    }

    /// Kicks: jobs where the driver has batched submit, tasks elsewhere.
    pub fn kicks(&self, batched: bool) -> usize {
        if batched { self.jobs() } else { self.tasks() }
    }

    /// Whether partial sums are added on the chip.
    pub fn accumulates_on_chip(&self) -> bool {
        self.on_chip
    }

    /// Which operand consecutive tasks share; never [`OperandReuse::Auto`].
    pub fn reuse(&self) -> OperandReuse {
        self.reuse
    }

    /// Whether factors and results are in host order.
    pub fn host_order(&self) -> bool {
        self.host_order
    }

    /// Bytes that the device reads and writes.
    pub fn bytes(&self) -> u64 {
        // CAST: widening.
        self.rounds().iter().flat_map(|round| self.works(round)).map(|work| work.bytes as u64).sum()
    }

    /// Time on one core by the cost model, which ranks plans and measures nothing.
    pub fn time(&self, batched: bool) -> Duration {
        let chip = &self.chip;
        let rounds = self.rounds();
        let jobs = rounds.iter().map(|round| round.jobs.len()).sum::<usize>();
        let kicks = if batched { 0 } else { self.tasks() - jobs };
        let seconds: f64 = rounds.iter().flat_map(|round| self.works(round)).map(|work| work.seconds(chip)).sum();
        Duration::from_secs_f64(seconds)
            + chip.job_overhead * u32::try_from(jobs).unwrap_or(u32::MAX)
            + chip.task_overhead * u32::try_from(kicks).unwrap_or(u32::MAX)
    }

    /// What plans are ranked by: [`MatmulPlan::time`], and what it takes the CPU to hand the results of every depth tile to
    /// the device and back. Every task is a kick here, whatever the driver can do: results must not depend on that.
    pub fn cost(&self) -> Duration {
        let bytes: usize = self.rounds().iter().map(|round| self.round_bytes(round)).sum();
        self.time(false) + Duration::from_secs_f64(2.0 * bytes as f64 / self.chip.sync_bytes_per_second as f64)
    }

    fn works<'a>(&'a self, round: &'a Round) -> impl Iterator<Item = Work> + 'a {
        round.tasks.iter().enumerate().map(move |(index, &(tile, step))| {
            let Tile { rows, columns, .. } = round.tiles[tile];
            let depth = self.step(step).len();
            let shared = self.shared(round, index);
            let features = if shared.features { 0 } else { self.product.bytes(rows * depth) };
            let weights = if shared.weights { 0 } else { self.product.bytes(columns * depth) };
            let results = rows * columns * self.stored().bytes();
            let addend = if self.on_chip && step > 0 { results } else { 0 };
            Work { macs: rows * depth * columns, rate: self.rate(), bytes: features + weights + results + addend }
        })
    }

    fn rate(&self) -> u64 {
        match self.product {
            Product::I4 => 2 * self.chip.macs_per_cycle_i8,
            Product::I8 => self.chip.macs_per_cycle_i8,
            Product::Tf32 => self.chip.macs_per_cycle_f16 / 2,
            Product::F16 | Product::F16ToF32 | Product::I16 | Product::Bf16 => self.chip.macs_per_cycle_f16,
        }
    }

    /// How results lie in memory.
    pub(crate) fn stored(&self) -> Stored {
        self.product.stored(self.on_chip || self.form.narrow_partials || self.tiles().depth == 1)
    }

    /// The depth of a step.
    pub(crate) fn step(&self, step: usize) -> Range<usize> {
        let first = step * self.tile.depth;
        first..(first + self.tile.depth).min(self.shape.depth)
    }

    /// The steps of a tile whose results are read by the CPU.
    pub(crate) fn read_steps(&self) -> Range<usize> {
        let steps = self.tiles().depth;
        if self.on_chip { steps - 1..steps } else { 0..steps }
    }

    /// Bytes of the first factors.
    pub(crate) fn feature_bytes(&self) -> usize {
        let items = if self.shared_first { 1 } else { self.items };
        items * self.product.bytes(self.shape.rows * self.shape.depth)
    }

    /// Whose programs its tasks are.
    pub(crate) fn layout(&self) -> Layout {
        self.chip.layout
    }

    /// How often a job is run again that wrote nothing.
    pub(crate) fn reruns(&self) -> usize {
        self.chip.reruns
    }

    /// How the chip multiplies.
    pub(crate) fn form(&self) -> Form {
        self.form
    }

    /// Bytes of the second factors.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.items * self.second_bytes()
    }

    /// Bytes of the second factors and of the operands behind them.
    pub(crate) fn constant_bytes(&self) -> usize {
        self.weight_bytes() + self.operands().len()
    }

    /// Operands that change nothing, where a task reads some.
    pub(crate) fn operands(&self) -> Vec<u8> {
        match self.form.reads_operands {
            true => rk3576::operands::unit(self.form.kernels(MOST_TILE), self.product == Product::F16),
            false => Vec::new(),
        }
    }

    /// Bytes of the results of a tile's step.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.pitch(self.tile.rows) * self.form.written(self.tile.columns) * self.stored().bytes()
    }

    /// Where a tile's step has its results, in bytes of its round.
    pub(crate) fn slot(&self, tile: usize, step: usize) -> usize {
        (tile * self.tiles().depth + step) * self.slot_bytes()
    }

    /// Bytes of the results of a round.
    pub(crate) fn round_bytes(&self, round: &Round) -> usize {
        self.slot(round.tiles.len(), 0)
    }

    /// Atoms between planes of a tile's results.
    pub(crate) fn pitch(&self, rows: usize) -> usize {
        // QUIRK(Q22): partial sums that are added have planes of at least twelve rows.
        if self.on_chip { quirks::plane_pitch([rows, 1]) } else { rows }
    }

    /// Whether the results of a step are in host order.
    pub(crate) fn host_ordered(&self, step: usize) -> bool {
        self.host_order && self.read_steps().contains(&step)
    }

    /// The rounds, in order.
    pub(crate) fn rounds(&self) -> Vec<Round> {
        let steps = self.tiles().depth;
        let together = (self.tasks_per_round / steps).max(1);
        self.blocks().chunks(together).map(|tiles| self.round(tiles.to_vec())).collect()
    }

    /// All tiles, those that share an operand next to each other.
    fn blocks(&self) -> Vec<Tile> {
        let tiles = self.tiles();
        let outer_columns = self.reuse == OperandReuse::Weights;
        let (outer, inner) = if outer_columns { (tiles.columns, tiles.rows) } else { (tiles.rows, tiles.columns) };
        let mut list = Vec::with_capacity(self.items * outer * inner);
        for item in 0..self.items {
            for outer in 0..outer {
                for inner in 0..inner {
                    let (row, column) = if outer_columns { (inner, outer) } else { (outer, inner) };
                    list.push(self.tile_at(item, row, column));
                }
            }
        }
        list
    }

    fn tile_at(&self, item: usize, row: usize, column: usize) -> Tile {
        let (first_row, first_column) = (row * self.tile.rows, column * self.tile.columns);
        Tile {
            item,
            first_row,
            rows: self.tile.rows.min(self.shape.rows - first_row),
            first_column,
            columns: self.tile.columns.min(self.shape.columns - first_column),
        }
    }

    fn round(&self, tiles: Vec<Tile>) -> Round {
        let steps = self.tiles().depth;
        let order = |step: usize| (0..tiles.len()).map(move |tile| (tile, step));
        let tasks: Vec<_> = (0..steps).flat_map(order).collect();
        // A step that is no link of a chain is waited for before the next one.
        let per_job = if self.on_chip && !self.chained { tiles.len() } else { tasks.len() };
        let most = per_job.min(self.chip.max_tasks);
        let jobs = (0..tasks.len()).step_by(most).map(|first| first..(first + most).min(tasks.len())).collect();
        Round { tiles, tasks, jobs }
    }

    /// What a task need not load, because the task before in its job did. SOURCE: npu-spec 4.12.
    fn shared(&self, round: &Round, index: usize) -> Reuse {
        let first = round.jobs.iter().any(|job| job.start == index);
        let Some(before) = index.checked_sub(1).filter(|_| !first).map(|before| round.tasks[before]) else {
            return Reuse::default();
        };
        let (tile, step) = round.tasks[index];
        let (now, then) = (round.tiles[tile], round.tiles[before.0]);
        // Banks are split by the rows, so weights survive only beside as many rows.
        let same = step == before.1 && now.item == then.item && now.rows == then.rows;
        let columns = (now.first_column, now.columns) == (then.first_column, then.columns);
        Reuse {
            features: self.reuse == OperandReuse::Features && same && now.first_row == then.first_row,
            weights: self.reuse == OperandReuse::Weights && same && columns,
        }
    }

    /// A task in the emitter's terms. Places are relative to the factors and to the results of the round.
    pub(crate) fn task(&self, round: &Round, index: usize) -> Result<ConvTask, Unsupported> {
        let (position, step) = round.tasks[index];
        let tile = round.tiles[position];
        let depth = self.step(step);
        let slot = self.slot(position, step);
        let datapath = self.product.datapath(self.stored());
        let pitch = word(self.pitch(tile.rows))?;
        let addend = match self.on_chip && step > 0 {
            true => Some(Addend {
                place: place(Region::Results, self.slot(position, step - 1))?,
                pitch,
                offset: 0,
                scale: 1,
                shift: 0,
            }),
            false => None,
        };
        let lanes = self.stored().lanes();
        let (pitch, notch) = if self.host_ordered(step) { (1, word(tile.columns / lanes - 1)?) } else { (pitch, 0) };
        Ok(ConvTask {
            kind: Kind::Direct,
            feature: self.feature(&tile, &depth)?,
            kernel: self.kernel(&tile, &depth)?,
            banks: self.banks(tile.rows, depth.len()),
            output: Output {
                place: place(Region::Results, slot)?,
                extents: [word(tile.rows)?, 1],
                pitch,
                notch,
                slots: word(self.form.kernels(tile.columns))?,
            },
            arithmetic: Arithmetic::Raw { datapath, operands: self.operand_place()? },
            addend,
            reuse: self.shared(round, index),
        })
    }

    fn feature(&self, tile: &Tile, depth: &Range<usize>) -> Result<Feature, Unsupported> {
        let (product, shape) = (self.product, self.shape);
        let row_bytes = product.bytes(shape.depth);
        let offset = match self.host_order {
            true => tile.first_row * row_bytes + product.bytes(depth.start),
            false => (depth.start / product.lanes() * shape.rows + tile.first_row) * ATOM,
        };
        let item = if self.shared_first { 0 } else { tile.item * shape.rows * row_bytes };
        Ok(Feature {
            place: place(Region::Activations, item + offset)?,
            extents: [word(tile.rows)?, 1],
            pitch: word(shape.rows)?,
            host_rows: if self.host_order { Some(word(row_bytes / ATOM)?) } else { None },
            real: word(depth.len())?,
            slots: word(depth.len())?,
            entries: word(product.bytes(depth.len()).div_ceil(ENTRY))?,
            pad_top: 0,
            pad_left: 0,
            pad_value: 0,
        })
    }

    fn kernel(&self, tile: &Tile, depth: &Range<usize>) -> Result<Kernel, Unsupported> {
        let (product, form) = (self.product, self.form);
        let kernels = form.kernels(self.shape.columns);
        let kernel_bytes = product.bytes(depth.len());
        let item = tile.item * self.second_bytes();
        let first = form.kernel(tile.first_column);
        let offset = item + product.bytes(kernels * depth.start) + first * kernel_bytes;
        Ok(Kernel {
            place: place(Region::Constants, offset)?,
            bytes: word(form.kernels(tile.columns) * kernel_bytes)?,
            kernel_bytes: word(kernel_bytes)?,
            extents: [1, 1],
            stride: [1, 1],
            dilation: [1, 1],
            spread: [1, 1],
        })
    }

    fn operand_place(&self) -> Result<Option<Place>, Unsupported> {
        let place = self.form.reads_operands.then(|| place(Region::Constants, self.weight_bytes()));
        place.transpose()
    }

    fn banks(&self, rows: usize, depth: usize) -> Banks {
        let features = self.product.bytes(rows * depth).div_ceil(self.chip.bank_bytes);
        let data = features + slack_banks(&self.chip, self.product);
        Banks { data, weights: self.chip.cbuf_banks - data }
    }
}

/// What a task does, for the cost model.
struct Work {
    macs: usize,
    rate: u64,
    bytes: usize,
}

impl Work {
    fn seconds(&self, chip: &Chip) -> f64 {
        let compute = self.macs as f64 / (self.rate * chip.clock_hz) as f64;
        compute.max(self.bytes as f64 / chip.bytes_per_second as f64)
    }
}

fn check_shape(chip: &Chip, product: Product, shape: Shape, options: &Options) -> Result<(), Unsupported> {
    chip.check(Operation::Product(product))?;
    if options.host_order {
        chip.check(Operation::HostOrder)?;
    }
    if matches!(options.reuse, OperandReuse::Features | OperandReuse::Weights) {
        chip.check(Operation::Reuse)?;
    }
    let (depth, columns) = (product.depth_group(), product.column_group());
    let rules = [("rows", shape.rows, ROW_GROUP), ("depth", shape.depth, depth), ("columns", shape.columns, columns)];
    for (name, extent, group) in rules {
        if extent == 0 || !extent.is_multiple_of(group) {
            return Err(Unsupported::new(format!("{product}: {name} {extent} is no multiple of {group}")));
        }
    }
    let most = product.most_depth();
    if shape.depth > most {
        return Err(Unsupported::new(format!("{product}: depth {} exceeds {most}, sums could overflow", shape.depth)));
    }
    Ok(())
}

/// The most rows and columns of a tile.
fn limits(product: Product, shape: Shape, options: &Options) -> [usize; 2] {
    let limit =
        |extent: usize, option: usize, group: usize| extent.min(option.min(MOST_TILE).max(group) / group * group);
    let columns = limit(shape.columns, options.tile_columns, product.column_group());
    [limit(shape.rows, options.tile_rows, ROW_GROUP), columns]
}

/// Tiles of all, half and a quarter of the most rows and columns, without their depth.
fn tiles(product: Product, shape: Shape, options: &Options) -> Vec<Shape> {
    let [rows, columns] = limits(product, shape, options);
    let parts = if options.asymmetric_tiles { &[1, 2, 4][..] } else { &[1] };
    let cut = |extent: usize, group: usize| {
        let mut cut: Vec<_> = parts.iter().map(|part| (extent / part / group * group).max(group)).collect();
        cut.dedup();
        cut
    };
    let columns = cut(columns, product.column_group());
    let pairs = cut(rows, ROW_GROUP).into_iter().flat_map(|rows| columns.iter().map(move |columns| (rows, *columns)));
    pairs.map(|(rows, columns)| Shape { rows, columns, depth: shape.depth }).collect()
}

/// The tile of npu-spec 9.4: as many rows and columns as allowed, then as much depth as fits; where that cuts the depth of
/// a product of many columns, half the columns and more depth.
fn choose_tile(chip: &Chip, product: Product, shape: Shape, options: &Options) -> Result<Shape, Unsupported> {
    let [rows, columns] = limits(product, shape, options);
    let tile = Shape { rows, depth: fit(chip, product, shape.depth, [rows, columns], options), columns };
    if !product.splits_depth() {
        return whole_depth(chip, product, shape, tile, options);
    }
    let narrow = options.asymmetric_tiles && columns == MOST_TILE && shape.columns > MOST_TILE;
    if narrow && tile.depth < shape.depth {
        let depth = fit(chip, product, shape.depth, [rows, NARROW_TILE], options);
        return Ok(Shape { depth, columns: NARROW_TILE, ..tile });
    }
    Ok(tile)
}

/// The most depth that fits the banks beside each other.
fn fit(chip: &Chip, product: Product, depth: usize, [rows, columns]: [usize; 2], options: &Options) -> usize {
    let form = Form::new(chip.layout, product);
    let step = form.depth_group;
    let slack = slack_banks(chip, product);
    let fits = |depth: usize| match chip.layout {
        Layout::Rk3588 => {
            let banks = |extent: usize| product.bytes(extent * depth).div_ceil(chip.bank_bytes);
            banks(rows) + banks(columns) + slack <= chip.cbuf_banks
        }
        // A row takes whole entries, and of the weights those of one kernel group are there.
        Layout::Rk3576 => {
            let weights = product.bytes(depth) * KERNEL_GROUP;
            rows * product.bytes(depth).next_multiple_of(ENTRY) <= chip.max_feature_bytes
                && weights <= chip.max_weight_bytes
        }
    };
    let most = match product {
        Product::I4 if options.symmetric_int4 => SYMMETRIC_INT4_DEPTH,
        Product::I4 => INT4_DEPTH,
        _ => form.most_depth.min(chip.max_kernel_bytes * 8 / product.bits()),
    };
    let most = depth.min(most).min(options.tile_depth.max(step)) / step;
    // Even the largest tile of one step takes a bank or two of each operand.
    (1..=most).rev().map(|steps| steps * step).find(|depth| fits(*depth)).unwrap_or(step)
}

/// Narrower and lower tiles until the whole depth fits, for sums that cannot be cut.
fn whole_depth(
    chip: &Chip,
    product: Product,
    shape: Shape,
    tile: Shape,
    options: &Options,
) -> Result<Shape, Unsupported> {
    let group = product.column_group();
    let columns = (group..=tile.columns).rev().step_by(group).map(|columns| Shape { columns, ..tile });
    let rows = (ROW_GROUP..=tile.rows).rev().step_by(ROW_GROUP);
    let narrow = rows.map(|rows| Shape { rows, columns: group.min(tile.columns), ..tile });
    let mut tiles = columns.chain(narrow).map(|tile| Shape { depth: shape.depth, ..tile });
    tiles.find(|tile| fit(chip, product, shape.depth, [tile.rows, tile.columns], options) == shape.depth).ok_or_else(
        || Unsupported::new(format!("{product}: depth {} does not fit one task, and its sums saturate", shape.depth)),
    )
}

/// CBUF banks beside those that hold the first factor.
fn slack_banks(chip: &Chip, product: Product) -> usize {
    if product == Product::I8 { chip.slack_banks } else { 0 }
}

fn word(value: usize) -> Result<u32, Unsupported> {
    u32::try_from(value).map_err(|_| Unsupported::new(format!("{value} exceeds the NPU's address space")))
}

fn place(region: Region, offset: usize) -> Result<Place, Unsupported> {
    Ok(Place { region, offset: word(offset)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHIP: Chip = Chip::RK3588;

    fn plan(product: Product, [rows, depth, columns]: [usize; 3]) -> MatmulPlan {
        MatmulPlan::new(&CHIP, product, Shape { rows, depth, columns }, &Options::default()).unwrap()
    }

    /// SOURCE: npu-spec 9.4.
    #[test]
    fn the_published_shape_has_the_published_plan() {
        let options = Options { cheapest_plan: false, ..Options::default() };
        let shape = Shape { rows: 512, depth: 3840, columns: 4096 };
        let plan = MatmulPlan::new(&CHIP, Product::F16, shape, &options).unwrap();
        assert_eq!(plan.tile(), Shape { rows: 256, depth: 512, columns: 128 });
        assert_eq!(plan.tiles(), Shape { rows: 2, depth: 8, columns: 32 });
        assert_eq!((plan.tasks(), plan.jobs(), plan.kicks(false)), (512, 8, 512));
        let symmetric = Options { asymmetric_tiles: false, ..options };
        let plan = MatmulPlan::new(&CHIP, Product::F16, plan.shape(), &symmetric).unwrap();
        assert_eq!(plan.tile(), Shape { rows: 256, depth: 384, columns: 256 });
    }

    #[test]
    fn sums_of_4_bit_codes_are_cut_before_they_saturate() {
        assert_eq!(plan(Product::I4, [4, 2048, 64]).tile().depth, 480);
        let options = Options { symmetric_int4: true, ..Options::default() };
        let shape = Shape { rows: 4, depth: 2048, columns: 64 };
        assert_eq!(MatmulPlan::new(&CHIP, Product::I4, shape, &options).unwrap().tile().depth, 640);
    }

    #[test]
    fn a_resident_factor_has_one_depth_for_all_rows() {
        let depth = |rows| {
            let shape = Shape { rows, depth: 4096, columns: 512 };
            MatmulPlan::resident(&CHIP, Product::I8, shape, &Options::default()).unwrap().tile().depth
        };
        assert!([4, 60, 512, 1000].into_iter().all(|rows| depth(rows) == depth(256)));
    }

    #[test]
    fn a_group_beyond_the_buffer_is_cut_where_it_divides() {
        let shape = Shape { rows: 256, depth: 8192, columns: 256 };
        let tile = |group| MatmulPlan::grouped(&CHIP, Product::I8, shape, group, &Options::default()).unwrap().tile();
        assert_eq!([tile(32).depth, tile(4096).depth], [32, 512]);
    }

    #[test]
    fn a_batch_of_more_than_a_job_is_refused() {
        let error = plan(Product::I8, [4, 32, 32]).batch(5000).unwrap_err();
        assert_eq!(error.what, "5000 tasks of the batch exceed 4095 of a job");
        assert!(
            plan(Product::F16ToF32, [1000, 4096, 4096]).batch(3).unwrap_err().what.contains("a job may take 150ms")
        );
    }

    #[test]
    fn of_its_alternatives_a_plan_is_the_cheapest_for_two_hundred_shapes_of_each_datatype() {
        use proptest::strategy::ValueTree;
        use proptest::test_runner::TestRunner;
        let mut runner = TestRunner::deterministic();
        let extents = (1..=512usize, 1..=160usize, 1..=100usize, any::<bool>());
        for product in Product::ALL {
            let (mut choices, mut others) = (0, 0);
            for _ in 0..200 {
                let (rows, depth, columns, chain_accumulation) = extents.new_tree(&mut runner).unwrap().current();
                let (depth, columns) = (depth * product.depth_group(), columns * product.column_group());
                let shape = Shape { rows: 4 * rows, depth, columns };
                let options = Options { chain_accumulation, ..Options::default() };
                let plan = MatmulPlan::new(&CHIP, product, shape, &options).unwrap();
                let plans = MatmulPlan::alternatives(&CHIP, product, shape, &options).unwrap();
                assert!(plans.len() <= 45 && plans.contains(&plan), "{product} {shape:?}");
                let costs: Vec<_> = plans.iter().map(MatmulPlan::cost).collect();
                assert!(costs.iter().all(|cost| plan.cost() <= *cost), "{product} {shape:?}: {costs:?}");
                choices += usize::from(costs.iter().any(|cost| *cost != costs[0]));
                others += usize::from(plan != plans[0]);
            }
            assert!(choices >= 50, "{product}: {choices} shapes have a choice, of which {others} leave the rule");
        }
    }

    fn shapes() -> impl Strategy<Value = (Product, Shape)> {
        let product = prop::sample::select(Product::ALL.to_vec());
        (product, 1..200usize, 1..60usize, 1..12usize).prop_map(|(product, rows, depth, columns)| {
            let (depth, columns) = (depth * product.depth_group(), columns * product.column_group());
            (product, Shape { rows: 4 * rows, depth, columns })
        })
    }

    proptest! {
        #[test]
        fn tasks_cover_every_product_once_and_fit_the_buffer(
            (product, shape) in shapes(), parts in 1..4usize, kind in 0..4u8, pick in any::<prop::sample::Index>()
        ) {
            let options = Options {
                accumulate_on_chip: kind & 1 == 0,
                reuse: if kind & 2 == 0 { OperandReuse::Weights } else { OperandReuse::Features },
                ..Options::default()
            };
            let plans = MatmulPlan::alternatives(&CHIP, product, shape, &options).unwrap();
            let plan = pick.get(&plans);
            let mut next = 0;
            for columns in plan.split(parts) {
                prop_assert_eq!(columns.start, next);
                next = columns.end;
                check_part(&plan.columns(columns.len()))?;
            }
            prop_assert_eq!(next, shape.columns);
        }
    }

    fn check_part(plan: &MatmulPlan) -> Result<(), TestCaseError> {
        let shape = plan.shape();
        let mut done = 0;
        for round in plan.rounds() {
            let mut slots = std::collections::HashSet::new();
            for (index, &(tile, step)) in round.tasks.iter().enumerate() {
                let task = plan.task(&round, index).unwrap();
                task.program(Layout::Rk3588, &Default::default()).unwrap();
                let tile = round.tiles[tile];
                done += tile.rows * tile.columns * plan.step(step).len();
                prop_assert!(slots.insert(task.output.place.offset));
                let (features, weights) = (tile.rows * plan.step(step).len(), tile.columns * plan.step(step).len());
                let needed = [features, weights].map(|extent| plan.product.bytes(extent).div_ceil(CHIP.bank_bytes));
                prop_assert!(task.banks.data >= needed[0] + slack_banks(&plan.chip, plan.product));
                prop_assert!(
                    task.banks.weights >= needed[1] && task.banks.data + task.banks.weights == CHIP.cbuf_banks
                );
            }
            prop_assert!(round.jobs.iter().map(Range::len).sum::<usize>() == round.tasks.len());
        }
        prop_assert_eq!(done, shape.rows * shape.depth * shape.columns);
        Ok(())
    }
}
