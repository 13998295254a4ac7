//! What a task reads beside features: depthwise weights, and the coefficients of each output channel.
//!
//! ```text
//! depthwise weights: [tap][pair of slots][weight, weight, 0, 0]
//! coefficients:      [slot / 8][A: i32 × 8][B: i16 × 8, not of a depthwise task][C: i16 × 8], then [shift]
//! ```
//!
//! SOURCE: npu-spec-rk3576 3 [HW].

use half::f16;

use crate::emit::Kind;
use crate::layout::Operand;

/// Slots of one group of coefficients.
const GROUP: usize = 8;
/// Bytes of the group of zeros behind them, in which the shift lies.
const SHIFT_BYTES: usize = 64;
/// Where a slot's negative values have their shift.
const NEGATIVE: u32 = 8;

/// Bytes of the coefficients of `slots` slots.
pub(crate) const fn bytes(kind: Kind, slots: usize) -> usize {
    let group = match kind {
        Kind::Direct => 64,
        Kind::Depthwise => 48,
    };
    slots / GROUP * group
}

/// The coefficients and the shift behind them. `compensation`: what is added to every weight beside the operands' own.
pub(crate) fn pack(kind: Kind, operands: &[Operand], compensation: i16, shift: u32) -> Vec<u8> {
    let mut packed = Vec::with_capacity(bytes(kind, operands.len()) + SHIFT_BYTES);
    for group in operands.chunks_exact(GROUP) {
        packed.extend(group.iter().flat_map(|operand| operand.addend.to_le_bytes()));
        if kind == Kind::Direct {
            packed.extend(group.iter().flat_map(|operand| (operand.compensation + compensation).to_le_bytes()));
        }
        // A multiplier of 0 leaves the whole surface empty; a slot that nobody reads may have any other.
        packed.extend(group.iter().flat_map(|operand| operand.multiplier.max(1).to_le_bytes()));
    }
    packed.extend((shift | shift << NEGATIVE).to_le_bytes());
    packed.resize(bytes(kind, operands.len()) + SHIFT_BYTES, 0);
    packed
}

/// Coefficients that leave sums as they are. `half`: of half precision.
pub(crate) fn unit(slots: usize, half: bool) -> Vec<u8> {
    // CAST: the bits of 1.0, 0x3c00.
    let multiplier = if half { f16::ONE.to_bits().cast_signed() } else { 1 };
    pack(Kind::Direct, &vec![Operand { multiplier, ..Operand::default() }; slots], 0, 0)
}

/// Weights of a depthwise convolution: `weight(slot, tap)`. Two bytes of each are added, of which one is 0.
pub(crate) fn depthwise(slots: usize, taps: usize, group: usize, weight: impl Fn(usize, usize) -> u8) -> Vec<u8> {
    let mut packed = vec![0; 2 * slots * taps];
    for (first, packed) in (0..slots).step_by(group).zip(packed.chunks_mut(2 * group * taps)) {
        for (tap, packed) in packed.chunks_mut(2 * group).enumerate() {
            for (slot, pair) in (first..).step_by(2).zip(packed.chunks_exact_mut(4)) {
                pair[0] = weight(slot, tap);
                pair[1] = weight(slot + 1, tap);
            }
        }
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_depthwise_weight_lies_where_the_index_formula_says() {
        let packed = depthwise(128, 9, 64, |slot, tap| u8::from((slot, tap) == (64 + 7, 4)));
        assert_eq!(packed.len(), 2 * 128 * 9);
        assert_eq!(packed.iter().position(|byte| *byte == 1), Some(64 * 9 * 2 + 4 * 128 + 4 * 3 + 1));
    }

    #[test]
    fn coefficients_are_groups_with_the_shift_behind_them() {
        let operands: Vec<_> = (0..16).map(|i| Operand { addend: i, compensation: 2, multiplier: 3 }).collect();
        let packed = pack(Kind::Direct, &operands, -5, 7);
        assert_eq!(packed.len(), 3 * 64);
        assert_eq!(packed[64 + 4..][..4], 9_i32.to_le_bytes());
        assert_eq!(packed[64 + 32..][..2], (-3_i16).to_le_bytes());
        assert_eq!(packed[64 + 48..][..2], 3_i16.to_le_bytes());
        assert_eq!(packed[128..132], 0x707_u32.to_le_bytes());
        let packed = pack(Kind::Depthwise, &operands, 0, 7);
        assert_eq!(packed.len(), 2 * 48 + 64);
        assert_eq!(packed[48 + 32..][..2], 3_i16.to_le_bytes());
    }

    #[test]
    fn no_multiplier_is_zero() {
        let packed = pack(Kind::Direct, &[Operand::default(); 8], 0, 0);
        assert!(packed[48..64].as_chunks().0.iter().all(|bytes| i16::from_le_bytes(*bytes) == 1));
    }
}
