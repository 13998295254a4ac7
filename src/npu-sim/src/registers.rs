//! The register groups of a core.
//!
//! Every block has two groups. A stream writes the group that the block's write pointer names; starting a task toggles the
//! pointer of the blocks that take part. Contents survive tasks and jobs until the core is reset. SOURCE: npu-spec 1.3.

use npu_regs::{Block, BlockMask, Register, RegisterInfo};

use crate::fault::{Result, proven};

/// Blocks whose registers streams write, at 4 KiB windows from 0.
const BLOCKS: usize = 8;
/// 32-bit registers of a window.
const WINDOW: usize = 1024;

/// Both groups of every block. After a reset they hold zeros; what silicon holds is unknown.
#[derive(Debug)]
pub(crate) struct RegisterFile {
    values: Vec<u32>,
    pointers: [usize; BLOCKS],
}

impl Default for RegisterFile {
    fn default() -> Self {
        Self { values: vec![0; BLOCKS * 2 * WINDOW], pointers: [0; BLOCKS] }
    }
}

impl RegisterFile {
    fn index(&self, register: &RegisterInfo) -> usize {
        let offset = usize::from(register.offset);
        let block = offset / (4 * WINDOW);
        (block * 2 + self.pointers[block]) * WINDOW + offset / 4 % WINDOW
    }

    /// Writes a register of a block that command words reach.
    pub(crate) fn write(&mut self, register: &RegisterInfo, value: u32) {
        let index = self.index(register);
        self.values[index] = value;
    }

    /// The bits of a register in the group that was written last.
    pub(crate) fn bits(&self, register: &RegisterInfo) -> u32 {
        self.values[self.index(register)]
    }

    /// The register in the group that was written last.
    pub(crate) fn get<R: Register>(&self) -> Result<R> {
        Ok(R::decode(self.values[self.index(R::INFO)])?)
    }

    /// Refuses anything but 0 in a register that no known stream uses.
    pub(crate) fn unused<R: Register>(&self) -> Result<()> {
        proven(self.get::<R>()? == R::default(), R::INFO.name)
    }

    /// The group that a block ran last. The same number names its interrupt.
    pub(crate) fn finished_group(&self, block: Block) -> u32 {
        // CAST: 0 or 1.
        window(block).map_or(0, |window| self.pointers[window] as u32 ^ 1)
    }

    /// Moves the blocks of `mask` to their other group.
    pub(crate) fn toggle(&mut self, mask: BlockMask) {
        let blocks = Block::ALL.into_iter().filter(|block| mask.contains(*block));
        blocks.filter_map(window).for_each(|window| self.pointers[window] ^= 1);
    }
}

/// The window of a block that has groups.
fn window(block: Block) -> Option<usize> {
    match block {
        Block::Cna => Some(1),
        Block::Core => Some(3),
        Block::Dpu => Some(4),
        Block::DpuRdma => Some(5),
        Block::Ppu => Some(6),
        Block::PpuRdma => Some(7),
        Block::Pc | Block::Ddma | Block::Sdma | Block::Global => None,
    }
}

#[cfg(test)]
mod tests {
    use npu_regs::{cna, dpu};

    use super::*;

    #[test]
    fn the_pointer_toggles_for_blocks_in_the_mask_only() {
        let mut file = RegisterFile::default();
        let write = |file: &mut RegisterFile, value| file.write(cna::DataSize2::INFO, value);
        write(&mut file, 1);
        file.toggle(BlockMask::CONVOLUTION);
        assert_eq!(file.get::<cna::DataSize2>().unwrap().dataout_width, 0);
        write(&mut file, 2);
        file.toggle(BlockMask::FLYING);
        assert_eq!(file.get::<cna::DataSize2>().unwrap().dataout_width, 2);
        file.toggle(BlockMask::CONVOLUTION);
        assert_eq!(file.get::<cna::DataSize2>().unwrap().dataout_width, 1);
    }

    #[test]
    fn a_register_without_meaning_is_refused_when_it_is_used() {
        let mut file = RegisterFile::default();
        file.write(dpu::FeatureModeCfg::INFO, 1 << 3);
        assert!(file.get::<dpu::FeatureModeCfg>().is_err());
    }
}
