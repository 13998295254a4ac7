//! The registers: which access does what. Nothing computes here and nothing takes time.
//!
//! ```text
//! n × 0x10000: core n: 0x0000 PC, 0x1004 and 0x3004 pointers, 0x9000 and 0xa000 banks of the IOMMU (cores 1, 2: 0xa000)
//! 0x30000:     resets: bit 2n AXI, bit 2n + 1 AHB of core n, active high
//! 0x3f000:     test port, 64 bits wide: write 0 pulls a lever, read 8, 16, … counters
//! ```
//!
//! SOURCE: npu-spec 1.4, 2.2, 2.5; rk3588-base.dtsi for cores and IOMMUs. The reset controller is a simple one (of
//! Synopsys), and the test port exists on no board.

use std::collections::VecDeque;

use npu_regs::{FieldError, Register, pc};

use super::engine::{Done, End, Kick};
use super::iommu::Bank;
use super::lever::{Effect, Pull};
use super::{Access, CORES, Counters};
use crate::fault::Direction;
use crate::levers::Lever;

/// Bytes of a core.
const CORE: u32 = 0x1_0000;
/// Bytes of a bank of an IOMMU.
const BANK: u32 = 0x1000;
const RESETS: u32 = 0x3_0000;
const PORT: u32 = 0x3_f000;
/// Pointers of CNA and CORE, which the driver writes.
const POINTERS: [u32; 2] = [0x1004, 0x3004];
/// What the driver writes there, with the core's number in the upper bits.
const PING_PONG: u32 = 0xe;
/// What a board answers. SOURCE: kernel-lines §1c, "RK3588: 1179210309".
const VERSION: u32 = 0x4649_5245;
/// The post-processor's interrupt of group 0; the next bit is group 1's, then come the pooling unit's.
const DPU_0: u32 = 1 << 8;
/// The bit that tells the pooling unit's events from the post-processor's.
const POOLING: u32 = 2;
/// DMA error of a read; the next bit is a write's.
const DMA_READ_ERROR: u32 = 1 << 12;
const INTERRUPTS: u32 = 0x1_ffff;

/// Registers of the machine.
#[derive(Debug, Default)]
pub(super) struct Window {
    cores: [CoreWindow; CORES],
    resets: u32,
    kicks: u64,
    /// For the next kick of any core.
    levers: VecDeque<Lever>,
    pub(super) counters: Counters,
}

#[derive(Debug, Default)]
struct CoreWindow {
    enable: u32,
    base: u32,
    amounts: u32,
    mask: u32,
    raw: u32,
    task_con: u32,
    task_dma: u32,
    completed: u32,
    pointers: [u32; 2],
    banks: [Bank; 2],
    /// The kick that has not ended.
    running: Option<u64>,
    resets: u64,
    in_reset: bool,
    levers: VecDeque<Lever>,
    /// A lever: completion is the pooling unit's interrupt.
    pooling: bool,
    /// A lever: the first of several tasks interrupts as well.
    first: bool,
}

impl Window {
    /// Levels of the lines; the line of a core is shared with its IOMMU.
    pub(super) fn lines(&self) -> u64 {
        let up = self.cores.iter().map(|core| core.line() || core.banks.iter().any(Bank::line));
        up.enumerate().map(|(n, up)| u64::from(up) << n).sum()
    }

    /// What a machine reset leaves: nothing but what tests count.
    pub(super) fn reset(&mut self) {
        let counters = std::mem::take(&mut self.counters);
        let cores = std::mem::take(&mut self.cores);
        *self = Self { kicks: self.kicks, counters, ..Self::default() };
        for (new, old) in self.cores.iter_mut().zip(&cores) {
            new.resets = old.resets + 1;
        }
    }

    /// The value of a register; zero, and counted, where there is none.
    pub(super) fn read(&mut self, access: Access) -> u64 {
        self.counters.iommu_accesses += u64::from(is_iommu(access));
        let value = match access {
            Access { offset: PORT.., bytes: 8 } => self.counters.value(access.offset - PORT),
            Access { offset: RESETS, bytes: 4 } => Some(self.resets.into()),
            Access { offset: ..RESETS, bytes: 4 } => {
                // CAST: three cores.
                let index = (access.offset / CORE) as usize;
                self.cores[index].read(index, access.offset % CORE).map(u64::from)
            }
            _ => None,
        };
        self.counters.refused += u64::from(value.is_none());
        value.unwrap_or(0)
    }

    /// Writes a register, and returns what that started. Where there is none, or no such value, nothing happens but that
    /// it is counted.
    pub(super) fn write(&mut self, access: Access, value: u64) -> Option<Kick> {
        self.counters.iommu_accesses += u64::from(is_iommu(access));
        let done = match access {
            Access { offset: PORT, bytes: 8 } => Pull::from_word(value).ok().map(|pull| self.pull(pull)),
            // CAST: four bytes.
            Access { offset: RESETS, bytes: 4 } => self.write_resets(value as u32),
            Access { offset: ..RESETS, bytes: 4 } => {
                // CAST: three cores; four bytes.
                let (index, value) = ((access.offset / CORE) as usize, value as u32);
                let done = self.cores[index].write(index, access.offset % CORE, value);
                if done == Some(Written::Enable) {
                    return self.kick(index);
                }
                self.counters.stops += u64::from(done == Some(Written::Stop));
                done.map(|_| ())
            }
            _ => None,
        };
        self.counters.refused += u64::from(done.is_none());
        None
    }

    /// Pulls a lever.
    pub(super) fn pull(&mut self, pull: Pull) {
        let cores = match pull.core {
            Some(core) => core..core + 1,
            None => 0..CORES,
        };
        match (pull.effect, pull.core) {
            (Effect::Kick(lever), Some(core)) => self.cores[core].levers.push_back(lever),
            (Effect::Kick(lever), None) => self.levers.push_back(lever),
            (Effect::SpuriousInterrupt, _) => self.cores[cores].iter_mut().for_each(|core| core.raw |= DPU_0),
            (Effect::StallTimeouts(requests), _) => {
                let banks = self.cores[cores].iter_mut().flat_map(|core| &mut core.banks);
                banks.for_each(|bank| bank.deaf = requests);
            }
            (Effect::FirstTaskInterrupt(on), _) => self.cores[cores].iter_mut().for_each(|core| core.first = on),
            (Effect::PoolingInterrupt(on), _) => self.cores[cores].iter_mut().for_each(|core| core.pooling = on),
        }
    }

    fn write_resets(&mut self, value: u32) -> Option<()> {
        for (n, core) in self.cores.iter_mut().enumerate() {
            let held = value >> (2 * n) & 0b11 != 0;
            if held && !core.in_reset {
                self.counters.resets += 1;
                core.reset();
            }
            core.in_reset = held;
        }
        self.resets = value;
        (value < 1 << (2 * CORES)).then_some(())
    }

    fn kick(&mut self, index: usize) -> Option<Kick> {
        let core = &mut self.cores[index];
        if core.in_reset {
            return None;
        }
        self.kicks += 1;
        self.counters.kicks[index] += 1;
        core.running = Some(self.kicks);
        core.completed = 0;
        let lever = core.levers.pop_front().or_else(|| self.levers.pop_front());
        // What the PC makes no sense of, it does not begin.
        let decoded = core.decode().ok().filter(|kick| kick.tasks > 0)?;
        let directory = core.banks[0].directory();
        Some(Kick { id: self.kicks, core: index, resets: core.resets, directory, lever, ..decoded })
    }

    /// Shows the first task of a kick that is under way, where a lever says that it interrupts.
    pub(super) fn progress(&mut self, done: &Done) {
        let core = &mut self.cores[done.core];
        if core.first && core.running == Some(done.id) && done.tasks > 1 {
            let was_up = core.line();
            core.completed = 1;
            core.raw |= DPU_0;
            self.counters.interrupts += u64::from(core.line() && !was_up);
        }
    }

    /// Shows how a kick ended, unless a reset came first.
    pub(super) fn finish(&mut self, done: &Done) {
        let core = &mut self.cores[done.core];
        if core.running != Some(done.id) {
            self.counters.dropped += 1;
            return;
        }
        done.writes.show();
        self.counters.tasks += done.tasks;
        // CAST: at most 4095.
        core.completed = done.tasks as u32;
        match done.end {
            End::Complete { event } => {
                let was_up = core.line();
                core.raw |= DPU_0 << if core.pooling { event | POOLING } else { event };
                core.running = None;
                self.counters.interrupts += u64::from(core.line() && !was_up);
            }
            End::PageFault { direction, dma } => {
                self.counters.page_faults += 1;
                core.raw |= DMA_READ_ERROR << u32::from(direction == Direction::Write);
                core.banks[0].raise(direction, dma);
            }
            End::Hang(_) => self.counters.hangs += 1,
        }
    }
}

/// Whether an access is one to an IOMMU.
fn is_iommu(Access { offset, .. }: Access) -> bool {
    // CAST: three cores.
    offset < RESETS && bank(offset % CORE, (offset / CORE) as usize).is_some()
}

/// The bank at an offset in a core: the first core has two, the others have theirs where the first has its second.
fn bank(offset: u32, core: usize) -> Option<usize> {
    match (offset / BANK, core) {
        (0x9, 0) | (0xa, 1..) => Some(0),
        (0xa, 0) => Some(1),
        _ => None,
    }
}

/// What a write to a core did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Stored,
    /// It started the core.
    Enable,
    /// It stopped a core that was computing.
    Stop,
}

impl CoreWindow {
    fn line(&self) -> bool {
        self.raw & self.mask != 0
    }

    /// Levers outlive it, and so does the IOMMU, which has resets of its own.
    fn reset(&mut self) {
        let (banks, levers) = (std::mem::take(&mut self.banks), std::mem::take(&mut self.levers));
        *self = Self {
            banks,
            levers,
            pooling: self.pooling,
            first: self.first,
            resets: self.resets + 1,
            ..Self::default()
        };
        self.banks.iter_mut().for_each(Bank::release);
    }

    fn read(&self, index: usize, offset: u32) -> Option<u32> {
        Some(match offset {
            0x00 => VERSION,
            0x04 => 0,
            0x08 => self.enable,
            0x10 => self.base,
            0x14 => self.amounts,
            0x20 => self.mask,
            0x28 => self.raw & self.mask,
            0x2c => self.raw,
            0x30 => self.task_con,
            0x34 => self.task_dma,
            0x3c => self.completed,
            0x1004 => self.pointers[0],
            0x3004 => self.pointers[1],
            _ => {
                let bank = &self.banks[bank(offset, index)?];
                return bank.read(offset % BANK, self.running.is_some());
            }
        })
    }

    fn write(&mut self, index: usize, offset: u32, value: u32) -> Option<Written> {
        match offset {
            0x08 => {
                self.enable = value;
                if value == 1 {
                    return Some(Written::Enable);
                }
                if self.running.is_some() {
                    return Some(Written::Stop);
                }
            }
            0x10 => self.base = value,
            0x14 => self.amounts = value,
            0x20 => self.mask = value & INTERRUPTS,
            0x24 => self.raw &= !value,
            0x30 => self.task_con = value,
            0x34 => self.task_dma = value,
            0x1004 | 0x3004 => {
                // CAST: three cores.
                if value != PING_PONG | (index as u32) << 28 {
                    return None;
                }
                self.pointers[usize::from(offset == POINTERS[1])] = value;
            }
            _ => self.banks[bank(offset, index)?].write(offset % BANK, value)?,
        }
        Some(Written::Stored)
    }

    /// What the PC's registers say of a kick.
    fn decode(&self) -> Result<Kick, FieldError> {
        let base = pc::BaseAddress::decode(self.base)?;
        let amounts = pc::RegisterAmounts::decode(self.amounts)?;
        let tasks = pc::TaskCon::decode(self.task_con)?.task_number;
        let dma = pc::TaskDmaBaseAddr::decode(self.task_dma)?.dma_base_addr << 4;
        Ok(Kick {
            id: 0,
            core: 0,
            resets: 0,
            base: (base.pc_source_addr << 4).wrapping_add(dma),
            beats: amounts.pc_data_amount + 1,
            // Slave mode fetches nothing.
            tasks: if base.pc_sel { 0 } else { tasks },
            directory: None,
            lever: None,
        })
    }
}
