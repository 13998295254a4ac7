//! The register table of the RK3588 NPU.
//!
//! One table, declared with `registers!` in [`blocks`], serves the encoder ([`Register::encode`]), the decoder
//! ([`Register::decode`], [`Word::decode`]) and the disassembler (`Word`'s `Display`). No I/O.
//!
//! A register program is a list of 64-bit [`Word`]s; [`Program`] builds one from typed registers.

#![forbid(unsafe_code)]

#[macro_use]
mod register;
mod field;
mod program;
mod word;

pub mod blocks;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

pub use blocks::{cna, core, dpu, dpu_rdma, global, pc, ppu, ppu_rdma};
pub use field::{AluAlgo, ConvMode, ElementSize, EwDataMode, EwOpType, FieldValue, PoolingMethod, Precision};
pub use program::{Link, Program, beats_minus_one};
pub use register::{FieldError, FieldInfo, Register, RegisterInfo};
pub use word::{BlockMask, Op, Word, WordError};

/// A hardware block of a core. SOURCE: npu-spec 0.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Block {
    /// Program controller.
    Pc,
    /// Convolution front end.
    Cna,
    /// MAC array.
    Core,
    /// Post-processor.
    Dpu,
    /// Readers of the post-processor.
    DpuRdma,
    /// Planar pooling.
    Ppu,
    /// Reader of the pooling unit.
    PpuRdma,
    /// AXI configuration of the data DMA.
    Ddma,
    /// AXI configuration of the system DMA.
    Sdma,
    /// Enable bitmap.
    Global,
}

impl Block {
    /// All blocks, in address order.
    pub const ALL: [Self; 10] = [
        Self::Pc,
        Self::Cna,
        Self::Core,
        Self::Dpu,
        Self::DpuRdma,
        Self::Ppu,
        Self::PpuRdma,
        Self::Ddma,
        Self::Sdma,
        Self::Global,
    ];

    /// The TRM's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pc => "PC",
            Self::Cna => "CNA",
            Self::Core => "CORE",
            Self::Dpu => "DPU",
            Self::DpuRdma => "DPU_RDMA",
            Self::Ppu => "PPU",
            Self::PpuRdma => "PPU_RDMA",
            Self::Ddma => "DDMA",
            Self::Sdma => "SDMA",
            Self::Global => "GLOBAL",
        }
    }

    /// The target code of a command word, 0 where command words cannot reach the block. SOURCE: npu-spec 1.1.
    pub const fn target(self) -> u16 {
        match self {
            Self::Pc => 0x0101,
            Self::Cna => 0x0201,
            Self::Core => 0x0801,
            Self::Dpu => 0x1001,
            Self::DpuRdma => 0x2001,
            Self::Ppu => 0x4001,
            Self::PpuRdma => 0x8001,
            Self::Ddma | Self::Sdma | Self::Global => 0,
        }
    }

    fn from_target(target: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|block| block.target() == target && target != 0)
    }

    /// The block's bit in the enable mask. SOURCE: npu-spec 1.1.
    pub const fn enable_bit(self) -> Option<u32> {
        match self {
            Self::Cna => Some(0),
            Self::Core => Some(2),
            Self::Dpu => Some(3),
            Self::DpuRdma => Some(4),
            Self::Ppu => Some(5),
            Self::PpuRdma => Some(6),
            Self::Pc | Self::Ddma | Self::Sdma | Self::Global => None,
        }
    }
}

/// The table, by block.
pub const REGISTERS: &[&[&RegisterInfo]] = &[
    pc::INTERRUPTS,
    pc::TABLE,
    cna::CONTROL,
    cna::VALUES,
    cna::TABLE,
    core::CONTROL,
    core::TABLE,
    dpu::CONTROL,
    dpu::VALUES,
    dpu::TABLE,
    dpu_rdma::CONTROL,
    dpu_rdma::TABLE,
    ppu::CONTROL,
    ppu::TABLE,
    ppu_rdma::CONTROL,
    ppu_rdma::TABLE,
    blocks::ddma::TABLE,
    blocks::sdma::TABLE,
    global::TABLE,
];

/// The register of `block` at `offset` bytes of the core's window.
pub fn lookup(block: Block, offset: u16) -> Option<&'static RegisterInfo> {
    static BY_OFFSET: LazyLock<Vec<Option<&'static RegisterInfo>>> = LazyLock::new(|| {
        let mut table = vec![None; 0x1_0000];
        for register in REGISTERS.iter().copied().flatten() {
            table[usize::from(register.offset)] = Some(*register);
        }
        table
    });
    BY_OFFSET[usize::from(offset)].filter(|register| register.block == block)
}
