//! One bank of registers of a core's IOMMU.
//!
//! SOURCE: drivers/iommu/rockchip-iommu.c; virtual-board.md, "What rocket touches, in order". No translation is cached, so
//! ZAP has nothing to do, and one that was forgotten is not noticed.

use crate::fault::Direction;

/// Address of the directory.
const DTE_ADDR: u32 = 0x00;
const STATUS: u32 = 0x04;
const COMMAND: u32 = 0x08;
/// Address that faulted.
const PAGE_FAULT_ADDR: u32 = 0x0c;
const ZAP_ONE_LINE: u32 = 0x10;
const INT_RAWSTAT: u32 = 0x14;
const INT_CLEAR: u32 = 0x18;
const INT_MASK: u32 = 0x1c;
const INT_STATUS: u32 = 0x20;
const AUTO_GATING: u32 = 0x24;

/// The event of a page fault; the other, bit 1, is a bus error, which nothing here makes.
const PAGE_FAULT: u32 = 1 << 0;
const EVENTS: u32 = 0b11;
/// Bits of the directory's register.
const ADDRESS: u32 = 0xffff_fff0;
/// "The replay buffer is empty": nothing waits to be repeated.
const REPLAY_EMPTY: u32 = 1 << 4;

/// State of a bank. A core without a fault is never seen between two accesses, so a stall is granted at once; one that
/// faulted stays in its access until it is reset, and is never stalled. SOURCE: kernel-lines §1c, fact 4: two requests to stall
/// time out for each fault, where the driver detaches the IOMMU before it resets the core.
#[derive(Clone, Debug, Default)]
pub(super) struct Bank {
    directory: u32,
    paging: bool,
    stalled: bool,
    /// The access that faulted, until the driver is done with it.
    fault: Option<(Direction, u32)>,
    raw: u32,
    mask: u32,
    gating: u32,
    /// Requests to stall that a lever leaves unanswered.
    pub(super) deaf: u32,
    /// The core waits in an access that faulted, whatever the driver does to the fault.
    stuck: bool,
}

impl Bank {
    /// Whether the line is up.
    pub(super) fn line(&self) -> bool {
        self.raw & self.mask != 0
    }

    /// The directory's register, where addresses are translated.
    pub(super) fn directory(&self) -> Option<u32> {
        self.paging.then_some(self.directory)
    }

    /// The core reached what is not there.
    pub(super) fn raise(&mut self, direction: Direction, dma: u32) {
        self.fault = Some((direction, dma));
        self.stuck = true;
        self.raw |= PAGE_FAULT;
    }

    /// The core was reset, which ends its access.
    pub(super) fn release(&mut self) {
        self.stuck = false;
    }

    /// `busy`: whether the core runs. Nothing for an unknown register.
    pub(super) fn read(&self, offset: u32, busy: bool) -> Option<u32> {
        Some(match offset {
            DTE_ADDR => self.directory,
            STATUS => self.status(busy),
            PAGE_FAULT_ADDR => self.fault.map_or(0, |(_, dma)| dma),
            INT_RAWSTAT => self.raw,
            INT_MASK => self.mask,
            INT_STATUS => self.raw & self.mask,
            AUTO_GATING => self.gating,
            _ => return None,
        })
    }

    fn status(&self, busy: bool) -> u32 {
        let write = matches!(self.fault, Some((Direction::Write, _)));
        u32::from(self.paging)
            | u32::from(self.fault.is_some()) << 1
            | u32::from(self.stalled) << 2
            | u32::from(!busy || self.stalled) << 3
            | REPLAY_EMPTY
            | u32::from(write) << 5
    }

    /// Nothing for an unknown register or command.
    pub(super) fn write(&mut self, offset: u32, value: u32) -> Option<()> {
        match offset {
            DTE_ADDR => self.directory = value & ADDRESS,
            COMMAND => return self.command(value),
            ZAP_ONE_LINE => {}
            INT_CLEAR => self.raw &= !value,
            INT_MASK => self.mask = value & EVENTS,
            AUTO_GATING => self.gating = value,
            _ => return None,
        }
        Some(())
    }

    fn command(&mut self, command: u32) -> Option<()> {
        match command {
            0 => self.paging = true,
            1 => self.paging = false,
            2 if self.deaf > 0 => self.deaf -= 1,
            2 => self.stalled = !self.stuck,
            3 => self.stalled = false,
            4 => {}
            5 => self.fault = None,
            6 => *self = Self { deaf: self.deaf, stuck: self.stuck, ..Self::default() },
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(bank: &mut Bank, offset: u32, value: u32) {
        bank.write(offset, value).unwrap();
    }

    #[test]
    fn a_fault_stays_until_it_is_done_and_cleared() {
        let mut bank = Bank::default();
        write(&mut bank, COMMAND, 0);
        write(&mut bank, INT_MASK, 3);
        bank.raise(Direction::Write, 0x1234_5678);
        assert!(bank.line());
        assert_eq!(bank.read(STATUS, true), Some(0x33));
        assert_eq!(bank.read(PAGE_FAULT_ADDR, true), Some(0x1234_5678));
        write(&mut bank, INT_CLEAR, 2);
        assert!(bank.line(), "only ones clear");
        write(&mut bank, INT_CLEAR, 1);
        assert!(!bank.line());
        write(&mut bank, COMMAND, 5);
        assert_eq!(bank.read(STATUS, false), Some(0x19));
    }

    #[test]
    fn a_masked_fault_does_not_raise_the_line() {
        let mut bank = Bank::default();
        bank.raise(Direction::Read, 0);
        assert_eq!((bank.line(), bank.read(INT_RAWSTAT, false)), (false, Some(1)));
    }

    #[test]
    fn a_reset_forgets_everything() {
        let mut bank = Bank::default();
        write(&mut bank, DTE_ADDR, 0xcafe_b000);
        assert_eq!(bank.read(DTE_ADDR, false), Some(0xcafe_b000));
        write(&mut bank, COMMAND, 6);
        assert_eq!((bank.read(DTE_ADDR, false), bank.read(STATUS, false)), (Some(0), Some(0x18)));
    }

    #[test]
    fn a_deaf_bank_grants_the_stall_after_some_requests() {
        let mut bank = Bank { deaf: 1, ..Bank::default() };
        write(&mut bank, COMMAND, 2);
        assert_eq!(bank.read(STATUS, false), Some(0x18));
        write(&mut bank, COMMAND, 2);
        assert_eq!(bank.read(STATUS, false), Some(0x1c));
    }

    #[test]
    fn a_core_that_faulted_is_not_stalled_before_it_is_reset() {
        let mut bank = Bank::default();
        write(&mut bank, COMMAND, 0);
        bank.raise(Direction::Read, 0);
        write(&mut bank, COMMAND, 5);
        write(&mut bank, COMMAND, 2);
        assert_eq!(bank.read(STATUS, true), Some(0x11));
        bank.release();
        write(&mut bank, COMMAND, 2);
        assert_eq!(bank.read(STATUS, false), Some(0x1d));
    }

    #[test]
    fn what_the_hardware_does_not_have_is_refused() {
        let mut bank = Bank::default();
        assert_eq!((bank.read(0x28, false), bank.write(0x28, 0), bank.write(COMMAND, 7)), (None, None, None));
    }
}
