//! The address space of a file: pages handed out as the kernel's range allocator does.
//!
//! SOURCE: npu-spec 8.3; `drm_mm_insert_node` in drivers/gpu/drm/drm_mm.c: the smallest hole that fits, from its start.

use std::collections::BTreeMap;

/// Page size.
pub(super) const PAGE: u64 = 4096;
/// What 32-bit addresses reach.
const APERTURE: u64 = 1 << 32;

/// Ranges in use, by start.
#[derive(Debug, Default)]
pub(super) struct AddressSpace {
    used: BTreeMap<u64, u64>,
}

impl AddressSpace {
    /// Takes `bytes`, a multiple of the page size, or nothing where no hole is large enough.
    pub(super) fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let mut best: Option<(u64, u64)> = None;
        let mut hole_start = 0;
        for (&start, &len) in self.used.iter().chain([(&APERTURE, &0)]) {
            let hole = start - hole_start;
            if hole >= bytes && best.is_none_or(|(size, _)| hole < size) {
                best = Some((hole, hole_start));
            }
            hole_start = start + len;
        }
        let (_, start) = best?;
        self.used.insert(start, bytes);
        Some(start)
    }

    /// Gives back the range that starts here.
    pub(super) fn free(&mut self, start: u64) {
        self.used.remove(&start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_addresses_ascend_from_zero() {
        let mut space = AddressSpace::default();
        assert_eq!([1, 2, 1].map(|pages| space.allocate(pages * PAGE)), [Some(0), Some(PAGE), Some(3 * PAGE)]);
    }

    #[test]
    fn the_smallest_hole_that_fits_is_reused() {
        let mut space = AddressSpace::default();
        let [a, _, c, _] = [3, 1, 2, 1].map(|pages| space.allocate(pages * PAGE).unwrap());
        space.free(a);
        space.free(c);
        assert_eq!(space.allocate(2 * PAGE), Some(c));
        assert_eq!(space.allocate(PAGE), Some(a));
    }

    #[test]
    fn a_full_space_has_no_room() {
        let mut space = AddressSpace::default();
        assert_eq!(space.allocate(APERTURE), Some(0));
        assert_eq!(space.allocate(PAGE), None);
    }
}
