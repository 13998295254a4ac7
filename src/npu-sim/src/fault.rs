//! Why a job never completed: the simulator fails closed, and says why.

use npu_regs::{Block, FieldError, WordError};

use crate::quirks::Quirk;

/// What stopped a job. The modelled driver reports it as success after the watchdog; [`crate::Simulator::faults`] keeps it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A command word means nothing.
    #[error(transparent)]
    Word(#[from] WordError),
    /// A register holds what means nothing.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A program for another chip.
    #[error("a program of another chip than the {chip}: {register}")]
    Foreign {
        /// The chip that it reached.
        chip: &'static str,
        /// A register that this chip does not have, or one that each of its programs writes and this one did not.
        register: &'static str,
    },
    /// A stream writes a register that only the kernel may write.
    #[error("a command stream writes {register}")]
    NotForStreams {
        /// The register.
        register: &'static str,
    },
    /// A task has no enable word.
    #[error("the task ends without an enable word")]
    NoEnable,
    /// A batched kick has more tasks than its chain.
    #[error("the chain ends after {done} of {tasks} tasks")]
    BrokenChain {
        /// Tasks that ran.
        done: u32,
        /// Tasks of the kick.
        tasks: u32,
    },
    /// No datapath consists of these blocks.
    #[error("no datapath has the enable mask {mask:#x}")]
    Mask {
        /// The mask.
        mask: u32,
    },
    /// A block reaches outside all buffer objects.
    #[error("{} {} unmapped {dma:#x}", block.name(), direction.verb())]
    Iommu {
        /// The block.
        block: Block,
        /// Read or write.
        direction: Direction,
        /// The address.
        dma: u64,
    },
    /// Hardware can do it, this simulator cannot.
    #[error("not simulated: {0}")]
    Unimplemented(&'static str),
    /// Nobody has seen hardware do it right.
    #[error("unproven on hardware: {0}")]
    Unproven(&'static str),
    /// Two registers that must agree do not.
    #[error("{what}: {left} and {right} disagree")]
    Mismatch {
        /// Which.
        what: &'static str,
        /// One value.
        left: u64,
        /// The other.
        right: u64,
    },
    /// An erratum makes the job hang, or its result wrong.
    #[error("{quirk:?}: {}", quirk.effect())]
    Quirk {
        /// Which.
        quirk: Quirk,
    },
    /// An operand does not fit its banks of CBUF, the on-chip convolution buffer.
    #[error("{bytes} bytes of {operand} do not fit {banks} banks")]
    Cbuf {
        /// Features or weights.
        operand: &'static str,
        /// Size.
        bytes: u64,
        /// Banks.
        banks: u32,
    },
    /// A task reuses what the previous one did not leave.
    #[error("reuse of {operand} that the previous task of this job did not load in this shape")]
    StaleReuse {
        /// Features or weights.
        operand: &'static str,
    },
    /// A job is larger than the simulator is allowed to compute.
    #[error("{work} multiplications or elements, and {left} are left for this job")]
    TooMuchWork {
        /// What the task needs.
        work: u64,
        /// What is left.
        left: u64,
    },
    /// A task completed by an interrupt that the driver does not wait for: its result is there, and the watchdog retires the
    /// job all the same.
    #[error("the driver does not wait for the interrupt of the unit that completed")]
    Unheard,
    /// A job takes longer than the watchdog allows.
    #[error("the job takes longer than the watchdog allows")]
    Overtime,
    /// A test asked for it.
    #[error("injected by a test lever")]
    Injected,
}

/// Which way an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From memory.
    Read,
    /// To memory.
    Write,
}

impl Direction {
    fn verb(self) -> &'static str {
        match self {
            Self::Read => "reads",
            Self::Write => "writes",
        }
    }

    /// The kernel's word in a page-fault line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Result of a step of the hardware.
pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;

/// Refuses two values that must agree and do not.
pub(crate) fn agree(what: &'static str, left: impl Into<u64>, right: impl Into<u64>) -> Result<()> {
    let (left, right) = (left.into(), right.into());
    if left == right { Ok(()) } else { Err(Fault::Mismatch { what, left, right }) }
}

/// Refuses what nobody has seen hardware do.
pub(crate) fn proven(condition: bool, what: &'static str) -> Result<()> {
    if condition { Ok(()) } else { Err(Fault::Unproven(what)) }
}

/// Refuses what this simulator does not do.
pub(crate) fn simulated(condition: bool, what: &'static str) -> Result<()> {
    if condition { Ok(()) } else { Err(Fault::Unimplemented(what)) }
}
