//! What the blocks of a core see of memory: the buffer objects of one file at their addresses, or a machine's memory through
//! the page tables of an IOMMU.

use std::ops::Range;
use std::sync::Arc;

use npu_device::Mapping;
use npu_regs::Block;

use crate::fault::{Direction, Fault, Result};

/// Bytes of an atom, the unit of the NPU's layouts: the channels of one pixel that lie together.
pub(crate) const ATOM: usize = 16;

/// A buffer object in the address space.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) dma: u64,
    pub(crate) mapping: Mapping,
}

/// An address space at one moment. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) enum Space {
    /// Of one file of the modelled driver: sorted by address, disjoint.
    Objects(Arc<Vec<Segment>>),
    /// Of a real driver, whose IOMMU is modelled.
    Paged(Pages),
}

impl Default for Space {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

/// Memory that lies together, from an address on.
struct Extent<'a> {
    mapping: &'a Mapping,
    offset: usize,
    bytes: usize,
}

impl Space {
    /// The space of these segments, in any order.
    pub(crate) fn new(mut segments: Vec<Segment>) -> Self {
        segments.sort_by_key(|segment| segment.dma);
        Self::Objects(Arc::new(segments))
    }

    /// Reads for `block`. Neighbouring buffer objects may be crossed, as pages do not know objects.
    pub(crate) fn read(&self, block: Block, mut dma: u64, mut to: &mut [u8]) -> Result<()> {
        while !to.is_empty() {
            let extent = self.extent(block, Direction::Read, dma)?;
            let (now, rest) = to.split_at_mut(extent.bytes.min(to.len()));
            extent.mapping.read(extent.offset, now);
            dma += now.len() as u64;
            to = rest;
        }
        Ok(())
    }

    /// Writes for `block`; what lies before the first unmapped address is written.
    pub(crate) fn write(&self, block: Block, mut dma: u64, mut from: &[u8]) -> Result<()> {
        while !from.is_empty() {
            let extent = self.extent(block, Direction::Write, dma)?;
            let (now, rest) = from.split_at(extent.bytes.min(from.len()));
            extent.mapping.write(extent.offset, now);
            dma += now.len() as u64;
            from = rest;
        }
        Ok(())
    }

    /// Reads `len` bytes, which are checked to be mapped before memory is taken for them.
    pub(crate) fn read_vec(&self, block: Block, dma: u64, len: u64) -> Result<Vec<u8>> {
        let mut at = dma;
        while at < dma + len {
            at += self.extent(block, Direction::Read, at)?.bytes as u64;
        }
        // CAST: mapped, so it fits the host's memory.
        let mut bytes = vec![0; len as usize];
        self.read(block, dma, &mut bytes)?;
        Ok(bytes)
    }

    fn extent(&self, block: Block, direction: Direction, dma: u64) -> Result<Extent<'_>> {
        let extent = match self {
            Self::Objects(segments) => object(segments, dma),
            Self::Paged(pages) => pages.extent(direction, dma),
        };
        extent.ok_or(Fault::Iommu { block, direction, dma })
    }
}

fn object(segments: &[Segment], dma: u64) -> Option<Extent<'_>> {
    let after = segments.partition_point(|segment| segment.dma <= dma);
    let segment = &segments[after.checked_sub(1)?];
    // CAST: an offset inside a mapping where it is below its length.
    let offset = (dma - segment.dma) as usize;
    let bytes = segment.mapping.len().checked_sub(offset).filter(|bytes| *bytes > 0)?;
    Some(Extent { mapping: &segment.mapping, offset, bytes })
}

/// A machine's memory as an IOMMU shows it.
///
/// SOURCE: drivers/iommu/rockchip-iommu.c, "v2": a directory of 1024 tables of 1024 pages of 4 KiB. Bits 31:12 of the
/// directory's register and of every entry are bits 31:12 of an address, 11:8 are its bits 35:32 and 7:4 its bits 39:36.
/// In an entry bit 0 means valid; in that of a page bit 1 means readable and bit 2 writable.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    /// The machine's memory.
    pub(crate) ram: Mapping,
    /// Where it starts.
    pub(crate) base: u64,
    /// The directory's register; none where addresses are not translated.
    pub(crate) directory: Option<u32>,
}

impl Pages {
    /// Bytes of a page.
    pub(crate) const PAGE: u64 = 4096;

    /// Nothing is cached, so an entry that the driver changes counts at once.
    fn extent(&self, direction: Direction, dma: u64) -> Option<Extent<'_>> {
        let physical = match self.directory {
            Some(directory) => self.translate(directory, direction, u32::try_from(dma).ok()?)?,
            None => dma,
        };
        let offset = usize::try_from(physical.checked_sub(self.base)?).ok()?;
        let room = self.ram.len().checked_sub(offset).filter(|room| *room > 0)?;
        // CAST: at most a page.
        let bytes = room.min((Self::PAGE - physical % Self::PAGE) as usize);
        Some(Extent { mapping: &self.ram, offset, bytes })
    }

    fn translate(&self, directory: u32, direction: Direction, dma: u32) -> Option<u64> {
        let table = self.word(address(directory) + u64::from(dma >> 22) * 4)?;
        let page = match table & 1 {
            1 => self.word(address(table) + u64::from(dma >> 12 & 0x3ff) * 4)?,
            _ => return None,
        };
        let allowed = match direction {
            Direction::Read => page & 3 == 3,
            Direction::Write => page & 5 == 5,
        };
        allowed.then(|| address(page) + u64::from(dma) % Self::PAGE)
    }

    fn word(&self, physical: u64) -> Option<u32> {
        let offset = usize::try_from(physical.checked_sub(self.base)?).ok()?;
        let mut bytes = [0; 4];
        if offset.checked_add(bytes.len())? > self.ram.len() {
            return None;
        }
        self.ram.read(offset, &mut bytes);
        Some(u32::from_le_bytes(bytes))
    }
}

/// Where the directory, a table or a page lies.
fn address(entry: u32) -> u64 {
    let entry = u64::from(entry);
    entry & 0xffff_f000 | (entry >> 8 & 0xf) << 32 | (entry >> 4 & 0xf) << 36
}

/// What a task wants to write, in the order of the writer.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    runs: Vec<(u64, usize)>,
    data: Vec<u8>,
}

impl Writes {
    /// Appends bytes at an address.
    pub(crate) fn push(&mut self, dma: u64, bytes: &[u8]) {
        self.runs.push((dma, bytes.len()));
        self.data.extend_from_slice(bytes);
    }

    /// How many bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Keeps the first `bytes`.
    pub(crate) fn truncate(&mut self, bytes: usize) {
        self.data.truncate(bytes);
    }

    /// Writes everything except the bytes of `lost`, positions in the order of the writer.
    pub(crate) fn commit(&self, space: &Space, lost: &Range<usize>, journal: &mut Journal) -> Result<()> {
        let mut at = 0;
        for &(dma, len) in &self.runs {
            let end = (at + len).min(self.data.len());
            for (from, to) in [(at, lost.start.clamp(at, end)), (lost.end.clamp(at, end), end)] {
                if from < to {
                    journal.write(space, dma + (from - at) as u64, &self.data[from..to])?;
                }
            }
            at = end;
        }
        Ok(())
    }
}

/// What a job wrote. It is taken back when the job was computed, and written again when the job ends by its file's clock:
/// who does not wait finds stale bytes, as on a board.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    runs: Vec<(u64, usize)>,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Journal {
    fn write(&mut self, space: &Space, dma: u64, bytes: &[u8]) -> Result<()> {
        let start = self.before.len();
        self.before.resize(start + bytes.len(), 0);
        // What is mapped before the first unmapped address is written all the same.
        let old = space.read(Block::Dpu, dma, &mut self.before[start..]);
        let written = space.write(Block::Dpu, dma, bytes);
        if old.is_err() {
            self.before.truncate(start);
            return written;
        }
        self.after.extend_from_slice(bytes);
        self.runs.push((dma, bytes.len()));
        written
    }

    /// Makes everything that the job wrote wrong. How wrong nobody knows; here every bit is.
    pub(crate) fn spoil(&mut self) {
        self.after.iter_mut().for_each(|byte| *byte = !*byte);
    }

    /// Puts back what was there before the job.
    pub(crate) fn undo(&self, space: &Space) {
        let mut end = self.before.len();
        for &(dma, len) in self.runs.iter().rev() {
            // Every run was mapped when it was written, and `space` keeps its memory alive.
            let _ = space.write(Block::Dpu, dma, &self.before[end - len..end]);
            end -= len;
        }
    }

    /// Writes what the job wrote.
    pub(crate) fn redo(&self, space: &Space) {
        let mut start = 0;
        for &(dma, len) in &self.runs {
            // As in `undo`.
            let _ = space.write(Block::Dpu, dma, &self.after[start..start + len]);
            start += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        let segment = |dma| Segment { dma, mapping: Mapping::anonymous(4096).unwrap() };
        Space::new(vec![segment(0x3000), segment(0x1000), segment(0x2000)])
    }

    #[test]
    fn an_access_crosses_neighbouring_buffers() {
        let space = space();
        space.write(Block::Dpu, 0x1ffe, &[1, 2, 3, 4]).unwrap();
        assert_eq!(space.read_vec(Block::Cna, 0x1ffd, 6).unwrap(), [0, 1, 2, 3, 4, 0]);
    }

    #[test]
    fn an_access_outside_names_block_direction_and_address() {
        let error = space().read_vec(Block::Cna, 0x3ff0, 32).unwrap_err();
        assert_eq!(error.to_string(), "CNA reads unmapped 0x4000");
        assert_eq!(space().write(Block::Dpu, 0, &[0]).unwrap_err().to_string(), "DPU writes unmapped 0x0");
    }

    /// Memory at 0x4000_0000 with its directory in the first page, a table in the second, and 0x0040_3000 at the fourth.
    fn pages(flags: u32) -> Space {
        let ram = Mapping::anonymous(4 * 4096).unwrap();
        ram.write(4, &0x4000_1001u32.to_le_bytes());
        ram.write(4096 + 4 * 3, &(0x4000_3000 | flags).to_le_bytes());
        Space::Paged(Pages { ram, base: 0x4000_0000, directory: Some(0x4000_0000) })
    }

    #[test]
    fn an_address_is_found_through_the_page_tables() {
        let space = pages(7);
        space.write(Block::Dpu, 0x40_3ffe, &[1, 2]).unwrap();
        assert_eq!(space.read_vec(Block::Cna, 0x40_3ffd, 3).unwrap(), [0, 1, 2]);
        let Space::Paged(pages) = &space else { unreachable!() };
        let mut bytes = [0; 2];
        pages.ram.read(4 * 4096 - 2, &mut bytes);
        assert_eq!(bytes, [1, 2]);
    }

    #[test]
    fn a_page_that_is_not_there_or_not_allowed_is_a_fault() {
        let read = |space: &Space, dma| space.read_vec(Block::Cna, dma, 1).map_err(|fault| fault.to_string());
        assert_eq!(read(&pages(7), 0x40_4000).unwrap_err(), "CNA reads unmapped 0x404000");
        assert_eq!(read(&pages(7), 0xf000_0000).unwrap_err(), "CNA reads unmapped 0xf0000000");
        assert_eq!(read(&pages(6), 0x40_3000).unwrap_err(), "CNA reads unmapped 0x403000");
        assert_eq!(read(&pages(5), 0x40_3000).unwrap_err(), "CNA reads unmapped 0x403000");
        assert!(read(&pages(3), 0x40_3000).is_ok());
        assert!(pages(3).write(Block::Dpu, 0x40_3000, &[0]).is_err());
    }

    #[test]
    fn an_entry_holds_forty_bits_of_address() {
        assert_eq!(address(0x1234_5ab1), 0xba_1234_5000);
    }

    #[test]
    fn lost_bytes_stay_as_they_were() {
        let space = space();
        let mut writes = Writes::default();
        writes.push(0x1000, &[1; 8]);
        writes.push(0x2000, &[2; 8]);
        let mut journal = Journal::default();
        writes.commit(&space, &(6..10), &mut journal).unwrap();
        assert_eq!(space.read_vec(Block::Cna, 0x1000, 8).unwrap(), [1, 1, 1, 1, 1, 1, 0, 0]);
        assert_eq!(space.read_vec(Block::Cna, 0x2000, 8).unwrap(), [0, 0, 2, 2, 2, 2, 2, 2]);
        journal.undo(&space);
        assert_eq!(space.read_vec(Block::Cna, 0x2000, 8).unwrap(), [0; 8]);
        journal.redo(&space);
        assert_eq!(space.read_vec(Block::Cna, 0x2000, 8).unwrap(), [0, 0, 2, 2, 2, 2, 2, 2]);
    }
}
