//! The register tables of the NPUs of the RK3588 and the RK3576.
//!
//! One table for each [`Layout`], declared with `registers!` in [`blocks`], serves the encoder ([`Register::encode`]), the decoder
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

pub use blocks::{cna, core, dpu, dpu_rdma, global, pc, ppu, ppu_rdma, rk3576};
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

/// Whose registers a program writes: what a word means depends on the chip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// That of the RK3588.
    #[default]
    Rk3588,
    /// That of the RK3576.
    Rk3576,
}

impl Layout {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Rk3588, Self::Rk3576];

    /// The chip's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rk3588 => "RK3588",
            Self::Rk3576 => "RK3576",
        }
    }

    /// The device tree's name of a core.
    ///
    /// SOURCE: drivers/accel/rocket/rocket_drv.c; npu-spec-rk3576 1.
    pub const fn compatible(self) -> &'static str {
        match self {
            Self::Rk3588 => "rockchip,rk3588-rknn-core",
            Self::Rk3576 => "rockchip,rk3576-rknn-core",
        }
    }

    /// The table, by block.
    pub const fn registers(self) -> &'static [&'static [&'static RegisterInfo]] {
        match self {
            Self::Rk3588 => REGISTERS,
            Self::Rk3576 => rk3576::REGISTERS,
        }
    }

    /// The register of `block` at `offset` bytes of the core's window.
    pub fn lookup(self, block: Block, offset: u16) -> Option<&'static RegisterInfo> {
        static BY_OFFSET: LazyLock<[Vec<Option<&'static RegisterInfo>>; 2]> =
            LazyLock::new(|| Layout::ALL.map(by_offset));
        BY_OFFSET[self as usize][usize::from(offset)].filter(|register| register.block == block)
    }
}

fn by_offset(layout: Layout) -> Vec<Option<&'static RegisterInfo>> {
    let mut table = vec![None; 0x1_0000];
    for register in layout.registers().iter().copied().flatten() {
        table[usize::from(register.offset)] = Some(*register);
    }
    table
}

/// The table of the RK3588, by block.
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
