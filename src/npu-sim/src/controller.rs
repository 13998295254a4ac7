//! PC, the program controller of a core: fetches command words, writes registers, starts the datapaths.
//!
//! ```text
//! job ─▶ kick (once per task, or once for a self-chained stream) ─▶ task: words ─▶ registers ─▶ enable ─▶ Effect ─▶ memory
//! ```
//!
//! A datapath computes an [`Effect`] from registers and memory and writes nothing itself, so that test levers can spoil
//! the writes of any of them.

use std::collections::HashSet;
use std::time::Duration;

use npu_device::Task;
use npu_regs::{Block, BlockMask, FieldError, Layout, Op, Register, RegisterInfo, Word, WordError, pc};

use crate::cbuf::Cbuf;
use crate::cost::{CostModel, Work};
use crate::fault::{Direction, Fault, Result, proven};
use crate::levers::Lever;
use crate::memory::{ATOM, Journal, Space, Writes};
use crate::quirks::{Quirk, hang};
use crate::registers::RegisterFile;
use crate::{conv, flying, ppu, rk3576};

/// When the kernel gives up on a job. SOURCE: `JOB_TIMEOUT_MS`, drivers/accel/rocket/rocket_job.c; npu-spec-rk3576 1.
pub(crate) const fn watchdog(chip: Layout) -> Duration {
    Duration::from_millis(match chip {
        Layout::Rk3588 => 500,
        Layout::Rk3576 => 125,
    })
}

/// What streams write into the pointers of the blocks that are theirs. SOURCE: npu-spec 1.3.
const PING_PONG: u32 = 0xe;
/// Unit of a lost write.
const BURST: usize = 64;
/// An address that a fault lever pretends to read: no buffer object reaches it.
const WILD: u64 = 0xffff_f000;

/// What a task does to memory.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    /// In the order of the writer.
    pub(crate) writes: Vec<Writes>,
    /// For the cost model and the counters.
    pub(crate) work: Work,
    /// Why the task hangs after these writes.
    pub(crate) hangs: Option<Fault>,
    /// QUIRK(R2): the job after it writes nothing.
    pub(crate) drains: bool,
}

/// What writes the result of a task, and interrupts when it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unit {
    /// The DPU.
    #[default]
    PostProcessor,
    /// The PPU.
    Pooling,
}

/// A job as the core sees it.
pub(crate) struct Order<'a> {
    pub(crate) chip: Layout,
    pub(crate) tasks: &'a [Task],
    /// One kick for all tasks.
    pub(crate) batched: bool,
    /// Whose interrupt the driver waits for.
    pub(crate) awaits: Unit,
    pub(crate) lever: Option<Lever>,
    pub(crate) cost: &'a CostModel,
    /// Largest work of the job, in multiplications or elements.
    pub(crate) work_limit: u64,
    /// When somebody gives up on it.
    pub(crate) time_limit: Duration,
}

/// How a job ended.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Virtual time on the core.
    pub(crate) time: Duration,
    /// Which task hung, and why.
    pub(crate) fault: Option<(usize, Fault)>,
    pub(crate) kicks: u64,
    pub(crate) tasks: u64,
    pub(crate) work: Work,
    /// What it wrote, taken back.
    pub(crate) journal: Journal,
    /// QUIRK(R2): the job after it writes nothing.
    pub(crate) drains: bool,
}

/// One core: its registers and what its CBUF holds.
#[derive(Debug, Default)]
pub(crate) struct Core {
    pub(crate) registers: RegisterFile,
    pub(crate) cbuf: Cbuf,
    /// QUIRK(Q25): half precision hangs until the power domain is cycled.
    pub(crate) poisoned: bool,
    /// What ended the task that ran last.
    last: Unit,
    /// Of an RK3576: whether a job has run since power came, or since sums as results. Before that one writes nothing.
    awake: bool,
}

/// State of a job while it runs.
struct Run<'a> {
    space: &'a Space,
    order: &'a Order<'a>,
    outcome: Outcome,
    work_left: u64,
    /// Command words of the task that runs now.
    command_bytes: u64,
    /// Registers that it wrote, on a chip where it must write all.
    written: HashSet<u16>,
}

/// Where a stream says that the next task is.
#[derive(Default)]
struct Link {
    base: Option<u32>,
    beats: u32,
}

impl Core {
    /// Runs a job to its end or to the watchdog, and takes back what it wrote.
    pub(crate) fn run_job(&mut self, space: &Space, order: &Order<'_>) -> Outcome {
        // What an earlier job left may belong to another file.
        self.cbuf = Cbuf::default();
        let mut outcome = self.attempt(space, order, Self::kicks);
        if outcome.fault.is_some() {
            outcome.time = watchdog(order.chip);
            self.reset();
        }
        outcome.journal.undo(space);
        if order.chip == Layout::Rk3576 {
            self.wake(&mut outcome);
        }
        outcome
    }

    /// QUIRK(R1), QUIRK(R2): the first job after power came, and the next one after sums as results, complete and write
    /// nothing.
    fn wake(&mut self, outcome: &mut Outcome) {
        let writes = std::mem::replace(&mut self.awake, true);
        if writes {
            self.awake = !outcome.drains;
            return;
        }
        outcome.journal = Journal::default();
    }

    /// Runs one kick of `count` tasks to its end, or to where it hangs.
    pub(crate) fn run_kick(&mut self, space: &Space, order: &Order<'_>, first: Task, count: u32) -> Outcome {
        self.attempt(space, order, |core, run| core.kick(run, first, count))
    }

    fn attempt(
        &mut self,
        space: &Space,
        order: &Order<'_>,
        body: impl FnOnce(&mut Self, &mut Run<'_>) -> Result<()>,
    ) -> Outcome {
        let outcome = Outcome { time: order.cost.job, ..Outcome::default() };
        let (work_left, written) = (order.work_limit, HashSet::new());
        let mut run = Run { space, order, outcome, work_left, command_bytes: 0, written };
        let result = run.delay().and_then(|()| body(self, &mut run));
        let mut outcome = run.outcome;
        // The task that is not heard of did complete.
        let completed = |fault: &Fault| outcome.tasks - u64::from(*fault == Fault::Unheard);
        // CAST: at most as many tasks as the job has.
        outcome.fault = result.err().map(|fault| (completed(&fault) as usize, fault));
        outcome
    }

    /// The event by which a driver learns of the task that ran last, from the post-processor's of group 0 on: that of its
    /// group 1, then the pooling unit's two. SOURCE: npu-spec 2.5.
    pub(crate) fn event(&self) -> u32 {
        match self.last {
            Unit::PostProcessor => self.registers.finished_group(Block::Dpu),
            Unit::Pooling => 2 + self.registers.finished_group(Block::Ppu),
        }
    }

    /// What the kernel's watchdog does. The power domain stays on.
    pub(crate) fn reset(&mut self) {
        *self = Self { poisoned: self.poisoned, awake: self.awake, ..Self::default() };
    }

    fn kicks(&mut self, run: &mut Run<'_>) -> Result<()> {
        let tasks = run.order.tasks;
        if run.order.batched {
            // CAST: the kernel refuses more tasks than TASK_NUMBER holds.
            self.kick(run, tasks[0], tasks.len() as u32)?;
            return self.interrupt(run);
        }
        for (i, task) in tasks.iter().enumerate() {
            if i > 0 {
                run.outcome.time += run.order.cost.kick;
            }
            self.kick(run, *task, 1)?;
            self.interrupt(run)?;
        }
        Ok(())
    }

    /// A kick interrupts by its last task. QUIRK(Q30): where the driver does not listen to that unit, nobody learns that the
    /// result is there, and the watchdog retires the job.
    fn interrupt(&self, run: &Run<'_>) -> Result<()> {
        if self.last == run.order.awaits { Ok(()) } else { Err(Fault::Unheard) }
    }

    /// `count` tasks, the first of which the kernel names; the others are found by the links.
    fn kick(&mut self, run: &mut Run<'_>, first: Task, count: u32) -> Result<()> {
        // SOURCE: npu-spec 2.2, 1.4: PC_DATA_AMOUNT has 16 bits, wider ones wrap. QUIRK(Q13)
        let (mut base, mut beats) = (first.dma, (npu_regs::beats_minus_one(first.words as usize) & 0xffff) + 1);
        run.outcome.kicks += 1;
        for done in 1..=count {
            proven(base.is_multiple_of(ATOM as u32), "a task whose address is no multiple of 16")?;
            let link = self.task(run, base, beats)?;
            if done < count {
                base = link.base.ok_or(Fault::BrokenChain { done, tasks: count })?;
                beats = link.beats + 1;
            }
        }
        Ok(())
    }

    fn task(&mut self, run: &mut Run<'_>, base: u32, beats: u32) -> Result<Link> {
        let bytes = run.space.read_vec(Block::Pc, base.into(), u64::from(beats) * ATOM as u64)?;
        run.command_bytes = bytes.len() as u64;
        run.written.clear();
        let (words, _) = bytes.as_chunks();
        let words = words.iter().map(|word| Word(u64::from_le_bytes(*word)));
        self.words(run, words.clone()).map_err(|fault| foreign(run.order.chip, words).unwrap_or(fault))
    }

    fn words(&mut self, run: &mut Run<'_>, words: impl Iterator<Item = Word>) -> Result<Link> {
        let (mut link, mut armed, mut started) = (Link::default(), false, false);
        for word in words {
            match word.decode_as(run.order.chip)? {
                Op::Nop => {}
                Op::Marker => armed = true,
                Op::Write { register, value } => self.write(run, register, value, &mut link)?,
                Op::Enable(_) if !armed => return Err(hang(Quirk::Q5)),
                Op::Enable(mask) => {
                    proven(!started, "a task that starts the blocks twice")?;
                    self.start(run, mask)?;
                    (armed, started) = (false, true);
                }
            }
        }
        if !started {
            return Err(Fault::NoEnable);
        }
        run.outcome.tasks += 1;
        Ok(link)
    }

    fn write(&mut self, run: &mut Run<'_>, register: &'static RegisterInfo, value: u32, link: &mut Link) -> Result<()> {
        let reserved = value & !register.mask();
        if reserved != 0 {
            return Err(FieldError::Reserved { register: register.name, bits: reserved }.into());
        }
        if register.block == Block::Pc {
            return follow(register, value, link);
        }
        if run.order.chip == Layout::Rk3576 {
            run.written.insert(register.offset);
        }
        match register.offset & 0xfff {
            0x0 | 0x8 => return Err(Fault::NotForStreams { register: register.name }),
            0x4 if run.order.chip == Layout::Rk3588 && matches!(register.block, Block::Cna | Block::Core) => {
                return Err(hang(Quirk::Q6));
            }
            // The write does not move the pointer. SOURCE: npu-spec 1.3.
            0x4 => return proven(value == PING_PONG, "a pointer mode other than ping-pong"),
            _ => {}
        }
        self.registers.write(register, value);
        Ok(())
    }

    /// Runs the blocks of `mask` and lets them write.
    fn start(&mut self, run: &mut Run<'_>, mask: BlockMask) -> Result<()> {
        let lever = run.lever().cloned();
        match lever {
            Some(Lever::Hang { .. }) => return Err(Fault::Injected),
            Some(Lever::IommuFault { .. }) => {
                return Err(Fault::Iommu { block: Block::Cna, direction: Direction::Read, dma: WILD });
            }
            _ => {}
        }
        let mut effect = match mask {
            mask if run.order.chip == Layout::Rk3576 => {
                rk3576::complete(mask, &run.written)?;
                rk3576::run(&self.registers, run.space, mask, run.work_left)?
            }
            // 0x0d is a convolution without operands from memory.
            BlockMask::CONVOLUTION => conv::run(self, run.space, true, run.work_left)?,
            mask if mask.bits() == 0x0d => conv::run(self, run.space, false, run.work_left)?,
            BlockMask::FLYING => flying::run(self, run.space, run.work_left)?,
            BlockMask::POOLING => ppu::run(self, run.space, run.work_left)?,
            mask => return Err(Fault::Mask { mask: mask.bits() }),
        };
        run.account(&effect)?;
        let lost = spoil(&mut effect.writes, lever.as_ref());
        let mut at = 0;
        for writes in &effect.writes {
            let local = lost.start.saturating_sub(at)..lost.end.saturating_sub(at);
            writes.commit(run.space, &local, &mut run.outcome.journal)?;
            at += writes.bytes();
        }
        self.registers.toggle(mask);
        self.last = if mask == BlockMask::POOLING { Unit::Pooling } else { Unit::PostProcessor };
        run.outcome.drains |= effect.drains;
        effect.hangs.map_or(Ok(()), Err)
    }
}

/// The fault of a program whose words mean something to another chip only.
fn foreign(chip: Layout, words: impl Iterator<Item = Word>) -> Option<Fault> {
    words.filter(|word| matches!(word.decode_as(chip), Err(WordError::UnknownRegister { .. }))).find_map(|word| {
        let mut others = Layout::ALL.into_iter().filter(|other| *other != chip);
        others.find_map(|other| match word.decode_as(other) {
            Ok(Op::Write { register, .. }) => Some(Fault::Foreign { chip: chip.name(), register: register.name }),
            _ => None,
        })
    })
}

/// A write to a PC register: where the next task is.
fn follow(register: &'static RegisterInfo, value: u32, link: &mut Link) -> Result<()> {
    if register.offset == pc::BaseAddress::INFO.offset {
        let base = pc::BaseAddress::decode(value)?;
        proven(!base.pc_sel, "a link into slave mode")?;
        link.base = Some(base.pc_source_addr << 4);
        return Ok(());
    }
    if register.offset == pc::RegisterAmounts::INFO.offset {
        link.beats = pc::RegisterAmounts::decode(value)?.pc_data_amount;
        return Ok(());
    }
    Err(Fault::NotForStreams { register: register.name })
}

/// Cuts the writes as the lever says, and returns which bytes of them get lost.
fn spoil(writes: &mut [Writes], lever: Option<&Lever>) -> std::ops::Range<usize> {
    let total: usize = writes.iter().map(Writes::bytes).sum();
    match lever {
        Some(Lever::PartialWrite { percent, .. }) => {
            let mut keep = total * usize::from(*percent).min(100) / 100;
            for writes in writes {
                writes.truncate(keep);
                keep -= writes.bytes().min(keep);
            }
            0..0
        }
        Some(Lever::LostWrite { burst, .. }) => {
            let start = burst % total.div_ceil(BURST).max(1) * BURST;
            start..start + BURST
        }
        _ => 0..0,
    }
}

impl Run<'_> {
    /// Time that passes before the first task because of a lever.
    fn delay(&mut self) -> Result<()> {
        if let Some(Lever::Slow(delay)) = self.order.lever {
            self.outcome.time += delay;
        }
        self.check_time()
    }

    /// The lever, where it concerns the task that runs now.
    fn lever(&self) -> Option<&Lever> {
        // CAST: a count of tasks.
        self.order.lever.as_ref().filter(|lever| lever.task() == Some(self.outcome.tasks as usize))
    }

    fn account(&mut self, effect: &Effect) -> Result<()> {
        let work = Work { bytes_read: effect.work.bytes_read + self.command_bytes, ..effect.work };
        self.work_left = self.work_left.saturating_sub(work.macs);
        self.outcome.time += self.order.cost.task(&work);
        self.outcome.work.macs += work.macs;
        self.outcome.work.bytes_read += work.bytes_read;
        self.outcome.work.bytes_written += work.bytes_written;
        self.check_time()
    }

    fn check_time(&self) -> Result<()> {
        if self.outcome.time < self.order.time_limit { Ok(()) } else { Err(Fault::Overtime) }
    }
}
