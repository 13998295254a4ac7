//! Marks in memory that the hardware must overwrite.

/// The finaliser of SplitMix64, which spreads a counter over all bits.
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Sixteen bytes for run `run` that are NaN in half precision: what the chip adds to a mark is marked too.
pub(crate) fn nan_mark(run: u64) -> [u8; 16] {
    let (low, high) = (mix(run), mix(!run));
    let mut mark = [0; 16];
    for (lane, bytes) in mark.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let bits = if lane % 2 == 0 { low } else { high } >> (lane / 2 * 16);
        // CAST: nine payload bits of a quiet NaN.
        *bytes = (0x7e00 | (bits & 0x1ff) as u16).to_le_bytes();
    }
    mark
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn a_mark_is_not_a_number_and_differs_from_run_to_run() {
        let lanes =
            |run| nan_mark(run).as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes)).collect::<Vec<_>>();
        assert!((0..100).flat_map(lanes).all(f16::is_nan));
        assert_ne!(nan_mark(1), nan_mark(2));
    }
}
