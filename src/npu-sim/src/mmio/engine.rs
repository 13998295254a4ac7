//! What computes: one core, from a kick to its end.

use std::time::Duration;

use npu_device::{Mapping, Task};
use npu_regs::Layout;

use super::RAM_BASE;
use crate::cbuf::Cbuf;
use crate::controller::{Core, Order, Unit};
use crate::cost::CostModel;
use crate::fault::{Direction, Fault};
use crate::levers::Lever;
use crate::memory::{Journal, Pages, Space};

/// What the driver started.
#[derive(Clone, Debug)]
pub(super) struct Kick {
    /// Names it; a later kick has a larger number.
    pub(super) id: u64,
    pub(super) core: usize,
    /// How often the core was reset before.
    pub(super) resets: u64,
    pub(super) base: u32,
    /// 128-bit beats of the first program.
    pub(super) beats: u32,
    pub(super) tasks: u32,
    /// The IOMMU's directory, where it translates.
    pub(super) directory: Option<u32>,
    pub(super) lever: Option<Lever>,
}

/// How a kick ended.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) id: u64,
    pub(super) core: usize,
    /// By the cost model, from the kick on.
    pub(super) time: Duration,
    /// Tasks that completed.
    pub(super) tasks: u64,
    pub(super) end: End,
    /// What it wrote. Memory shows it when the registers show the end.
    pub(super) writes: Written,
}

/// What a kick wrote, taken back.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    space: Space,
    journal: Journal,
}

impl Written {
    /// Writes it again.
    pub(super) fn show(&self) {
        self.journal.redo(&self.space);
    }
}

/// What the registers show of an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Every task completed; the event of the last, from the post-processor's of group 0 on.
    Complete { event: u32 },
    /// An access faulted, and the core waits for ever.
    PageFault { direction: Direction, dma: u32 },
    /// Nothing happens any more.
    Hang(Fault),
}

/// A core and the memory that it reaches.
pub(super) struct Engine {
    core: Core,
    ram: Mapping,
    cost: CostModel,
    work_limit: u64,
    resets: u64,
    directory: Option<u32>,
}

impl Engine {
    pub(super) fn new(ram: Mapping, work_limit: u64) -> Self {
        // The driver's own share of a job is not modelled here: it runs.
        let cost = CostModel { job: Duration::ZERO, ..CostModel::default() };
        Self { core: Core::default(), ram, cost, work_limit, resets: 0, directory: None }
    }

    pub(super) fn run(&mut self, kick: &Kick) -> Done {
        if self.resets != kick.resets {
            self.core.reset();
        }
        // What lies in CBUF may belong to another file.
        if self.directory != kick.directory {
            self.core.cbuf = Cbuf::default();
        }
        (self.resets, self.directory) = (kick.resets, kick.directory);
        let space = Space::Paged(Pages { ram: self.ram.clone(), base: RAM_BASE, directory: kick.directory });
        let order = Order {
            chip: Layout::Rk3588,
            tasks: &[],
            batched: true,
            // The driver's registers say what it waits for.
            awaits: Unit::default(),
            lever: kick.lever.clone(),
            cost: &self.cost,
            work_limit: self.work_limit,
            time_limit: Duration::MAX,
        };
        let first = Task { dma: kick.base, words: kick.beats * 2 };
        let outcome = self.core.run_kick(&space, &order, first, kick.tasks);
        let end = match outcome.fault {
            None => End::Complete { event: self.core.event() },
            // CAST: the IOMMU has 32 bits; what lies beyond wraps there and is seen as such.
            Some((_, Fault::Iommu { direction, dma, .. })) => End::PageFault { direction, dma: dma as u32 },
            Some((_, fault)) => End::Hang(fault),
        };
        outcome.journal.undo(&space);
        let writes = Written { space, journal: outcome.journal };
        Done { id: kick.id, core: kick.core, time: outcome.time, tasks: outcome.tasks, end, writes }
    }
}
