//! The datapaths of the RK3576, whose programs have registers of their own.
//!
//! ```text
//! registers ─▶ complete? ─▶ a known path ─▶ Effect
//! ```
//!
//! SOURCE: npu-spec-rk3576; where the code says nothing else, its sections are the reference.

mod conv;
mod pool;
mod post;

use std::collections::HashSet;

use npu_regs::{Block, BlockMask, Layout};

use crate::controller::Effect;
use crate::fault::{Fault, Result};
use crate::memory::Space;
use crate::registers::RegisterFile;

/// Refuses a task that leaves out a register of its blocks: every program of this chip writes them all, and one of another
/// chip does not.
pub(crate) fn complete(mask: BlockMask, written: &HashSet<u16>) -> Result<()> {
    let registers = Layout::Rk3576.registers().iter().copied().flatten();
    let own = |block: Block| block != Block::Pc && mask.contains(block);
    // A block's status and enable registers are the kernel's.
    let mut needed = registers.filter(|register| own(register.block) && !matches!(register.offset & 0xfff, 0 | 8));
    match needed.find(|register| !written.contains(&register.offset)) {
        Some(register) => Err(Fault::Foreign { chip: Layout::Rk3576.name(), register: register.name }),
        None => Ok(()),
    }
}

/// Computes a task. `left`: the largest work that is allowed.
pub(crate) fn run(registers: &RegisterFile, space: &Space, mask: BlockMask, left: u64) -> Result<Effect> {
    match mask {
        BlockMask::CONVOLUTION => conv::run(registers, space, left),
        BlockMask::POOLING => pool::run(registers, space, left),
        BlockMask::FLYING => Err(Fault::Unimplemented("an element-wise program of the RK3576")),
        mask => Err(Fault::Mask { mask: mask.bits() }),
    }
}
