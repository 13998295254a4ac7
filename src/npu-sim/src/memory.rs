//! What the blocks of a core see of memory: the buffer objects of one file at their addresses.

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

impl Segment {
    fn end(&self) -> u64 {
        // CAST: widening.
        self.dma + self.mapping.len() as u64
    }
}

/// The address space of one file at one moment. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    /// Sorted by address, disjoint.
    segments: Arc<Vec<Segment>>,
}

impl Space {
    /// The space of these segments, in any order.
    pub(crate) fn new(mut segments: Vec<Segment>) -> Self {
        segments.sort_by_key(|segment| segment.dma);
        Self { segments: Arc::new(segments) }
    }

    /// Reads for `block`. Neighbouring buffer objects may be crossed, as pages do not know objects.
    pub(crate) fn read(&self, block: Block, mut dma: u64, mut to: &mut [u8]) -> Result<()> {
        while !to.is_empty() {
            let segment = self.find(dma).ok_or(Fault::Iommu { block, direction: Direction::Read, dma })?;
            let (offset, len) = part(segment, dma, to.len());
            let (now, rest) = to.split_at_mut(len);
            segment.mapping.read(offset, now);
            to = rest;
            dma += len as u64;
        }
        Ok(())
    }

    /// Writes for `block`; what lies before the first unmapped address is written.
    pub(crate) fn write(&self, block: Block, mut dma: u64, mut from: &[u8]) -> Result<()> {
        while !from.is_empty() {
            let segment = self.find(dma).ok_or(Fault::Iommu { block, direction: Direction::Write, dma })?;
            let (offset, len) = part(segment, dma, from.len());
            let (now, rest) = from.split_at(len);
            segment.mapping.write(offset, now);
            from = rest;
            dma += len as u64;
        }
        Ok(())
    }

    /// Reads `len` bytes, which are checked to be mapped before memory is taken for them.
    pub(crate) fn read_vec(&self, block: Block, dma: u64, len: u64) -> Result<Vec<u8>> {
        let mut at = dma;
        while at < dma + len {
            at = self.find(at).ok_or(Fault::Iommu { block, direction: Direction::Read, dma: at })?.end();
        }
        // CAST: mapped, so it fits the host's memory.
        let mut bytes = vec![0; len as usize];
        self.read(block, dma, &mut bytes)?;
        Ok(bytes)
    }

    fn find(&self, dma: u64) -> Option<&Segment> {
        let after = self.segments.partition_point(|segment| segment.dma <= dma);
        let segment = &self.segments[after.checked_sub(1)?];
        (dma < segment.end()).then_some(segment)
    }
}

/// Offset in the segment, and how many of `len` bytes lie in it.
fn part(segment: &Segment, dma: u64, len: usize) -> (usize, usize) {
    // CAST: an offset inside a mapping.
    let offset = (dma - segment.dma) as usize;
    (offset, len.min(segment.mapping.len() - offset))
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
#[derive(Debug, Default)]
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
