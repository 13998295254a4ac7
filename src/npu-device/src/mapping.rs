//! Memory that the CPU and a device share.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::Errno;

/// A shared mapping. Clones are the same memory; the last one unmaps it.
#[derive(Clone)]
pub struct Mapping {
    region: Arc<Region>,
}

struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the region is plain memory that lives until the last clone is dropped; `Mapping` reaches it through atomics
// only, and `Access` through slices under the rule written there.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Mapping {
    /// Fresh zeroed memory of `len` bytes, not shared with any device.
    ///
    /// # Errors
    /// `EINVAL` for no bytes, `ENOMEM`.
    pub fn anonymous(len: usize) -> Result<Self, Errno> {
        // SAFETY: a null hint lets the kernel choose an address that nobody uses.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)? };
        Self::new(start.cast(), len)
    }

    /// `len` bytes of `file` from `offset`, shared.
    ///
    /// # Errors
    /// What `mmap` says.
    pub fn of_file(file: impl std::os::fd::AsFd, offset: u64, len: usize) -> Result<Self, Errno> {
        // SAFETY: a null hint lets the kernel choose an address that nobody uses.
        let start = unsafe {
            mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, offset)?
        };
        Self::new(start.cast(), len)
    }

    fn new(start: *mut u8, len: usize) -> Result<Self, Errno> {
        let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
        Ok(Self { region: Arc::new(Region { start, len }) })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.region.len
    }

    /// Whether there is nothing in it. Never true: an empty mapping cannot be made.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.region.start
    }

    /// Copies from the memory at `offset` into `to`, as a device reads: others may write at the same time.
    ///
    /// # Panics
    /// Where the range leaves the memory.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        let (head, words) = self.split(offset, to.len());
        let (first, rest) = to.split_at_mut(head);
        for (i, byte) in first.iter_mut().enumerate() {
            *byte = self.byte(offset + i).load(Ordering::Relaxed);
        }
        let mut at = offset + head;
        let (middle, last) = rest.split_at_mut(words * 8);
        for chunk in middle.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.word(at).load(Ordering::Relaxed).to_ne_bytes());
            at += 8;
        }
        for (i, byte) in last.iter_mut().enumerate() {
            *byte = self.byte(at + i).load(Ordering::Relaxed);
        }
    }

    /// Copies `from` into the memory at `offset`, as a device writes: others may read at the same time.
    ///
    /// # Panics
    /// Where the range leaves the memory.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        let (head, words) = self.split(offset, from.len());
        let (first, rest) = from.split_at(head);
        for (i, byte) in first.iter().enumerate() {
            self.byte(offset + i).store(*byte, Ordering::Relaxed);
        }
        let mut at = offset + head;
        let (middle, last) = rest.split_at(words * 8);
        for chunk in middle.chunks_exact(8) {
            let word = u64::from_ne_bytes(chunk.try_into().expect("chunks of eight"));
            self.word(at).store(word, Ordering::Relaxed);
            at += 8;
        }
        for (i, byte) in last.iter().enumerate() {
            self.byte(at + i).store(*byte, Ordering::Relaxed);
        }
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len()),
            "{len} bytes at {offset} leave a mapping of {} bytes",
            self.len()
        );
    }

    /// Bytes up to the first aligned word, and whole words after them.
    fn split(&self, offset: usize, len: usize) -> (usize, usize) {
        let head = (self.region.start.as_ptr().addr() + offset).wrapping_neg() % 8;
        let head = head.min(len);
        (head, (len - head) / 8)
    }

    fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: callers checked that the offset lies inside the region, and the region outlives the borrow.
        unsafe { AtomicU8::from_ptr(self.region.start.as_ptr().add(offset)) }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: callers checked that eight bytes at the offset lie inside the region and are aligned.
        unsafe { AtomicU64::from_ptr(self.region.start.as_ptr().add(offset).cast()) }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("len", &self.len()).finish()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region was mapped with this address and length, and nothing borrows it any more.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok(), "munmap of a region that was mapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_at_any_offset_is_read_back() {
        let mapping = Mapping::anonymous(64).unwrap();
        let bytes: Vec<u8> = (1..=40).collect();
        for offset in 0..=24 {
            for len in 0..=40 {
                mapping.write(offset, &bytes[..len]);
                let mut back = vec![0; len];
                mapping.read(offset, &mut back);
                assert_eq!(back, bytes[..len]);
            }
        }
    }

    #[test]
    fn clones_share_memory() {
        let mapping = Mapping::anonymous(16).unwrap();
        mapping.clone().write(3, &[7]);
        let mut byte = [0];
        mapping.read(3, &mut byte);
        assert_eq!(byte, [7]);
    }

    #[test]
    #[should_panic(expected = "leave a mapping")]
    fn an_access_beyond_the_end_panics() {
        Mapping::anonymous(16).unwrap().write(9, &[0; 8]);
    }

    #[test]
    fn no_bytes_cannot_be_mapped() {
        assert_eq!(Mapping::anonymous(0).unwrap_err(), Errno::INVAL);
    }
}
