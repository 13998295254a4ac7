//! One open file: its buffer objects and its ioctls.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use npu_device::{BoInfo, Deadline, Device, DriverInfo, Errno, Error, Job, Mapping, Range, Result};
use npu_regs::Layout;

use super::address::{AddressSpace, PAGE};
use super::schedule::{FileId, error_of};
use super::{FaultRecord, Shared, lock};
use crate::controller::{Order, Outcome, Unit, watchdog};
use crate::levers::Lever;
use crate::memory::{Journal, Segment, Space};
use crate::quirks::{Quirk, hang};

/// TASK_NUMBER has 12 bits. SOURCE: npu-spec 2.3.
const MAX_BATCH: usize = 4095;

/// One open file: what [`Simulator::open`](npu_device::Driver::open) returns behind the trait, with what a host needs beside it.
pub struct File {
    shared: Arc<Shared>,
    id: FileId,
    table: Mutex<Table>,
}

/// What became of a queued job.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// The core that runs it.
    pub core: usize,
    /// How long it takes, by the cost model.
    pub time: Duration,
    /// When it ends, on the file's clock.
    pub ends: Duration,
    /// Why it never completes and the watchdog ends it.
    pub fault: Option<FaultRecord>,
}

/// Buffer objects of a file.
#[derive(Default)]
struct Table {
    objects: BTreeMap<u32, Object>,
    /// Closed while a job used them; their addresses stay taken until it ends.
    closing: Vec<Object>,
    addresses: AddressSpace,
    /// What cores see, until an object comes or goes.
    space: Option<Space>,
    /// What the newest job wrote, and when it ends.
    unfinished: Option<(Duration, Space, Journal)>,
}

struct Object {
    dma: u64,
    bytes: u32,
    mapping: Mapping,
    offset: u64,
    /// When the last job that writes it ends, on the file's clock.
    busy_until: Duration,
    /// How that job ended, where the driver says so.
    failed: Option<Errno>,
}

impl File {
    pub(super) fn open(shared: Arc<Shared>) -> Self {
        let id = lock(&shared.scheduler).open();
        Self { shared, id, table: Mutex::default() }
    }

    /// Queues one job, or says why not, also where the driver would not.
    ///
    /// # Errors
    /// Why the driver drops the job.
    pub fn queue(&self, job: &Job<'_>) -> std::result::Result<Receipt, Errno> {
        let queued = self.submit_job(&mut lock(&self.table), job);
        if queued.is_err() {
            lock(&self.shared.scheduler).counters.dropped_jobs += 1;
        }
        queued
    }

    /// As [`Device::create_bo`], in memory that the host maps: `map` gets the object's offset for mmap, which no other
    /// object of this simulator has, and its length in bytes. Its memory must read as zeros.
    ///
    /// # Errors
    /// Those of [`Device::create_bo`], and of `map`.
    pub fn create_bo_in(
        &self,
        bytes: u32,
        map: impl FnOnce(u64, usize) -> std::result::Result<Mapping, Errno>,
    ) -> std::result::Result<BoInfo, Errno> {
        let mut table = lock(&self.table);
        table.reap(self.now());
        table.create(bytes, &self.shared.next_offset, map)
    }

    /// When, on the file's clock, the jobs that write the object will have ended; nothing for an unknown handle.
    pub fn busy_until(&self, handle: u32) -> Option<Duration> {
        lock(&self.table).objects.get(&handle).map(|object| object.busy_until)
    }

    fn submit_job(&self, table: &mut Table, job: &Job<'_>) -> std::result::Result<Receipt, Errno> {
        table.check(job)?;
        // As with our kernel patch, which leaves out the flag that others give two meanings. Older drivers ignore it.
        if job.flags.no_dpu_done && self.shared.info.has_ppu_done() {
            return Err(Errno::INVAL);
        }
        let batched = job.flags.batched && self.shared.info.has_batched_submit();
        if batched && job.tasks.len() > MAX_BATCH {
            return Err(Errno::INVAL);
        }
        let core = lock(&self.shared.scheduler).pick(self.id);
        let lever = lock(&self.shared.injected).take(core, job.tasks.len());
        if lever == Some(Lever::SwallowedSubmit) {
            lock(&self.shared.scheduler).unpick(core);
            return Err(Errno::NOMEM);
        }
        // Jobs of a file run one after the other, so the one before has written by now.
        table.settle(Duration::MAX);
        // QUIRK(R3): both stage their features in one buffer.
        let overlap = self.shared.options.chip == Layout::Rk3576 && lock(&self.shared.scheduler).others_work(core);
        let mut outcome = self.run(table, job, core, batched, lever);
        if overlap {
            outcome.journal.spoil();
            self.shared.keep_fault(FaultRecord { core, task: 0, fault: hang(Quirk::R3) });
        }
        let end = lock(&self.shared.scheduler).push(self.id, core, &outcome);
        table.unfinished = Some((end, table.space().clone(), outcome.journal));
        table.attach_fence(job.outputs, end, error_of(outcome.fault.as_ref().map(|(_, fault)| fault)));
        let fault = outcome.fault.map(|(task, fault)| FaultRecord { core, task, fault });
        if let Some(fault) = &fault {
            self.shared.keep_fault(fault.clone());
        }
        Ok(Receipt { core, time: outcome.time, ends: end, fault })
    }

    fn run(&self, table: &mut Table, job: &Job<'_>, core: usize, batched: bool, lever: Option<Lever>) -> Outcome {
        let options = &self.shared.options;
        let pooled = job.flags.ppu_done && self.shared.info.has_ppu_done();
        let awaits = if pooled { Unit::Pooling } else { Unit::PostProcessor };
        let (cost, work_limit, chip) = (&options.cost, options.work_limit, options.chip);
        let time_limit = watchdog(chip);
        let order = Order { chip, tasks: job.tasks, batched, awaits, lever, cost, work_limit, time_limit };
        let space = table.space();
        let mut guard = lock(&self.shared.cores[core]);
        let core = &mut *guard;
        match &self.shared.threads {
            Some(threads) => threads.install(|| core.run_job(space, &order)),
            None => core.run_job(space, &order),
        }
    }

    fn prep(&self, handle: u32, sync: impl FnOnce(&Object) -> Result<u64, Errno>, deadline: Deadline) -> Result<()> {
        let error = |source| Error::PrepBo { handle, source };
        let mut table = lock(&self.table);
        let object = table.objects.get(&handle).ok_or(error(Errno::NOENT))?;
        let bytes = sync(object).map_err(error)?;
        let failed = object.failed.filter(|_| self.shared.options.reports_failed_jobs);
        let mut scheduler = lock(&self.shared.scheduler);
        let waited = scheduler.wait(self.id, object.busy_until, deadline);
        table.settle(scheduler.now(self.id));
        // The kernel makes the object readable even where the wait failed.
        scheduler.counters.prep_bytes += bytes;
        scheduler.pass(self.id, self.shared.options.cost.sync(bytes));
        waited.map_err(error)?;
        failed.map_or(Ok(()), |source| Err(error(source)))
    }

    fn fini(&self, handle: u32, sync: impl FnOnce(&Object) -> Result<u64, Errno>) -> Result<()> {
        let error = |source| Error::FiniBo { handle, source };
        let table = lock(&self.table);
        let object = table.objects.get(&handle).ok_or(error(Errno::NOENT))?;
        let bytes = sync(object).map_err(error)?;
        let mut scheduler = lock(&self.shared.scheduler);
        scheduler.counters.fini_bytes += bytes;
        scheduler.pass(self.id, self.shared.options.cost.sync(bytes));
        Ok(())
    }

    /// Bytes of `ranges`, where the driver knows ranges and they lie in the object.
    fn ranged(&self, object: &Object, ranges: &[Range]) -> Result<u64, Errno> {
        if !self.shared.info.has_ranged_sync() {
            return Err(Errno::INVAL);
        }
        ranges.iter().try_fold(0u64, |sum, range| {
            let end = range.offset.checked_add(range.bytes).filter(|end| *end <= u64::from(object.bytes));
            end.map(|_| sum.saturating_add(range.bytes)).ok_or(Errno::INVAL)
        })
    }
}

/// PREP and FINI work on the whole object.
#[expect(clippy::unnecessary_wraps, reason = "one of two ways to find what is synchronised")]
fn whole(object: &Object) -> Result<u64, Errno> {
    // CAST: widening.
    Ok(object.mapping.len() as u64)
}

impl Table {
    /// Refuses what the kernel drops.
    fn check(&self, job: &Job<'_>) -> std::result::Result<(), Errno> {
        if job.tasks.is_empty() || job.tasks.iter().any(|task| task.words == 0) {
            return Err(Errno::INVAL);
        }
        let mut seen = HashSet::new();
        for handle in job.inputs.iter().chain(job.outputs) {
            if !self.objects.contains_key(handle) {
                return Err(Errno::NOENT);
            }
            // QUIRK(Q29): the second lock of the same reservation fails.
            if !seen.insert(handle) {
                return Err(Errno::ALREADY);
            }
        }
        Ok(())
    }

    /// Lets the newest job write, where it ended by `now`.
    fn settle(&mut self, now: Duration) {
        if let Some((_, space, journal)) = self.unfinished.take_if(|(end, _, _)| *end <= now) {
            journal.redo(&space);
        }
    }

    fn attach_fence(&mut self, outputs: &[u32], end: Duration, failed: Option<Errno>) {
        for handle in outputs {
            if let Some(object) = self.objects.get_mut(handle) {
                object.busy_until = object.busy_until.max(end);
                object.failed = failed;
            }
        }
    }

    fn space(&mut self) -> &Space {
        let objects = self.objects.values().chain(&self.closing);
        self.space.get_or_insert_with(|| {
            Space::new(objects.map(|object| Segment { dma: object.dma, mapping: object.mapping.clone() }).collect())
        })
    }

    fn create(
        &mut self,
        bytes: u32,
        next_offset: &AtomicU64,
        map: impl FnOnce(u64, usize) -> std::result::Result<Mapping, Errno>,
    ) -> std::result::Result<BoInfo, Errno> {
        // SOURCE: `drm_mm_insert_node_in_range`, for the offset of an object without pages.
        if bytes == 0 {
            return Err(Errno::NOSPC);
        }
        let mapped = u64::from(bytes).next_multiple_of(PAGE);
        let len = usize::try_from(mapped).map_err(|_| Errno::NOMEM)?;
        let offset = next_offset.fetch_add(mapped, Ordering::Relaxed);
        let mapping = map(offset, len)?;
        let dma = self.addresses.allocate(mapped).ok_or(Errno::NOSPC)?;
        // The kernel hands out the lowest free handle, from 1.
        // PANIC: a file has fewer objects than pages of address space.
        let handle = (1..).find(|handle| !self.objects.contains_key(handle)).expect("a free handle");
        let object = Object { dma, bytes, mapping, offset, busy_until: Duration::ZERO, failed: None };
        self.objects.insert(handle, object);
        self.space = None;
        // CAST: the address space has 32 bits.
        Ok(BoInfo { handle, bytes, dma: dma as u32, map_offset: offset })
    }

    /// Frees what was closed and is no longer used.
    fn reap(&mut self, now: Duration) {
        let (closing, free): (Vec<_>, Vec<_>) = self.closing.drain(..).partition(|object| object.busy_until > now);
        self.closing = closing;
        for object in free {
            self.addresses.free(object.dma);
            self.space = None;
        }
    }
}

impl Device for File {
    fn info(&self) -> &DriverInfo {
        &self.shared.info
    }

    fn create_bo(&self, bytes: u32) -> Result<BoInfo> {
        let created = self.create_bo_in(bytes, |_, len| Mapping::anonymous(len));
        created.map_err(|source| Error::CreateBo { bytes, source })
    }

    fn close_bo(&self, handle: u32) -> Result<()> {
        let mut table = lock(&self.table);
        // GEM_CLOSE says EINVAL where the others say ENOENT. SOURCE: `drm_gem_handle_delete`.
        let object = table.objects.remove(&handle).ok_or(Error::CloseBo { handle, source: Errno::INVAL })?;
        table.closing.push(object);
        table.reap(self.now());
        Ok(())
    }

    fn map_bo(&self, bo: &BoInfo) -> Result<Mapping> {
        let table = lock(&self.table);
        let object = table.objects.values().find(|object| object.offset == bo.map_offset);
        let mapping = object.map(|object| object.mapping.clone());
        mapping.ok_or(Error::MapBo { handle: bo.handle, source: Errno::INVAL })
    }

    fn submit(&self, jobs: &[Job<'_>]) -> Result<()> {
        for job in jobs {
            match self.queue(job) {
                Err(source) if self.shared.options.reports_dropped_jobs => {
                    return Err(Error::Submit { jobs: jobs.len(), source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn prep_bo(&self, handle: u32, deadline: Deadline) -> Result<()> {
        self.prep(handle, whole, deadline)
    }

    fn fini_bo(&self, handle: u32) -> Result<()> {
        self.fini(handle, whole)
    }

    fn prep_bo_ranges(&self, handle: u32, ranges: &[Range], deadline: Deadline) -> Result<()> {
        self.prep(handle, |object| self.ranged(object, ranges), deadline)
    }

    fn fini_bo_ranges(&self, handle: u32, ranges: &[Range]) -> Result<()> {
        self.fini(handle, |object| self.ranged(object, ranges))
    }

    fn now(&self) -> Duration {
        lock(&self.shared.scheduler).now(self.id)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        lock(&self.shared.scheduler).close(self.id);
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("id", &self.id).finish_non_exhaustive()
    }
}
