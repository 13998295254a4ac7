//! Buffer objects that free themselves.

use std::ops::{Deref, DerefMut};
use std::slice;
use std::sync::Arc;

use crate::{BoInfo, Deadline, Device, Errno, Mapping, Range, Result};

/// A buffer object of one open file: device memory with a CPU mapping.
#[derive(Debug)]
pub struct Bo {
    device: Arc<dyn Device>,
    info: BoInfo,
    mapping: Mapping,
}

impl Bo {
    /// Creates and maps a buffer object of at least `bytes`, zero-filled.
    ///
    /// # Errors
    /// Those of [`Device::create_bo`] and [`Device::map_bo`].
    pub fn new(device: &Arc<dyn Device>, bytes: u32) -> Result<Self> {
        let info = device.create_bo(bytes)?;
        match device.map_bo(&info) {
            Ok(mapping) => Ok(Self { device: Arc::clone(device), info, mapping }),
            Err(error) => {
                // The mapping's error matters more than that of closing what nobody has seen.
                let _ = device.close_bo(info.handle);
                Err(error)
            }
        }
    }

    /// Its handle in the file.
    pub fn handle(&self) -> u32 {
        self.info.handle
    }

    /// Its address in the NPU's address space.
    pub fn dma(&self) -> u32 {
        self.info.dma
    }

    /// Its size in bytes, as asked for.
    pub fn bytes(&self) -> u32 {
        self.info.bytes
    }

    /// Waits for the jobs that write it, and opens it for the CPU until the guard goes.
    ///
    /// # Errors
    /// Those of [`Device::prep_bo`].
    pub fn access(&mut self, deadline: Deadline) -> Result<Access<'_>> {
        self.device.prep_bo(self.info.handle, deadline)?;
        Ok(Access { bo: self, ranges: None })
    }

    /// As [`Bo::access`], but only `ranges` are kept coherent where the driver can do that.
    ///
    /// Bytes outside `ranges` are visible and may be stale; what is written there may be lost.
    ///
    /// # Errors
    /// Those of [`Device::prep_bo`].
    pub fn access_ranges<'a>(&'a mut self, ranges: &'a [Range], deadline: Deadline) -> Result<Access<'a>> {
        if !self.device.info().has_ranged_sync() {
            return self.access(deadline);
        }
        self.device.prep_bo_ranges(self.info.handle, ranges, deadline)?;
        Ok(Access { bo: self, ranges: Some(ranges) })
    }

    /// As [`Bo::access`] without `ranges` and [`Bo::access_ranges`] with them, for what is to be written anew: it does not
    /// matter that a job failed that was to write it. A driver that reports failed jobs does so until a later job writes the
    /// buffer.
    ///
    /// # Errors
    /// Those of [`Device::prep_bo`] but that one.
    pub fn overwrite<'a>(&'a mut self, ranges: Option<&'a [Range]>, deadline: Deadline) -> Result<Access<'a>> {
        let ranges = ranges.filter(|_| self.device.info().has_ranged_sync());
        let waited = match ranges {
            Some(ranges) => self.device.prep_bo_ranges(self.info.handle, ranges, deadline),
            None => self.device.prep_bo(self.info.handle, deadline),
        };
        match waited {
            // The driver has waited, and made the buffer readable, before it says this.
            Err(error) if error.errno() != Some(Errno::IO) => Err(error),
            _ => Ok(Access { bo: self, ranges }),
        }
    }
}

impl Drop for Bo {
    fn drop(&mut self) {
        // A handle that the driver does not know any more is closed already.
        let _ = self.device.close_bo(self.info.handle);
    }
}

/// CPU access to a buffer object, between PREP and FINI. Dropping it hands the buffer back to the device.
#[derive(Debug)]
pub struct Access<'a> {
    bo: &'a mut Bo,
    ranges: Option<&'a [Range]>,
}

impl Access<'_> {
    /// Hands the buffer back to the device and says whether that worked.
    ///
    /// # Errors
    /// Those of [`Device::fini_bo`].
    pub fn finish(self) -> Result<()> {
        let result = self.fini();
        std::mem::forget(self);
        result
    }

    fn fini(&self) -> Result<()> {
        match self.ranges {
            Some(ranges) => self.bo.device.fini_bo_ranges(self.bo.info.handle, ranges),
            None => self.bo.device.fini_bo(self.bo.info.handle),
        }
    }

    fn len(&self) -> usize {
        // CAST: widening on every target with an NPU.
        self.bo.info.bytes as usize
    }
}

impl Deref for Access<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping holds at least as many bytes as were asked for and outlives the borrow. PREP returned, so
        // no job writes the buffer, and `&mut Bo` keeps every other CPU access of this handle out.
        unsafe { slice::from_raw_parts(self.bo.mapping.start().as_ptr(), self.len()) }
    }
}

impl DerefMut for Access<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`.
        unsafe { slice::from_raw_parts_mut(self.bo.mapping.start().as_ptr(), self.len()) }
    }
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        // Only an unknown handle makes this fail, and `Bo` owns it.
        let _ = self.fini();
    }
}
