//! Errata of the hardware and what the planner does about each, by the ID of npu-spec 7.
//!
//! | ID | erratum | what we do |
//! |---|---|---|
//! | Q1 | planes of fewer than 4 rows are read at a pitch of 4 rows | [`plane_pitch`]: planes are laid out at that pitch |
//! | Q2, Q3 | an armed reader without operand hangs | readers are armed by the presence of their operand only |
//! | Q5, Q6 | a missing marker or a write to CNA/CORE S_POINTER hangs | programs have one shape, see `emit` |
//! | Q7 | partial kernel groups hang | tensors are padded to whole groups; products of partial groups are refused |
//! | Q8, Q10 | too many atoms hang, too few leave columns unwritten | `matmul::numbers`: exactly a group's atoms |
//! | Q9 | 16-bit integers without QD_EN give 16 channels | `matmul::numbers` sets it |
//! | Q11 | FC_DATA_BANK corrupts | never written |
//! | Q12 | the last rows of a nearly full CBUF are wrong with 8-bit features | `Chip::slack_banks`: one bank stays free |
//! | Q13 | wide values wrap silently | `npu-regs` refuses them; the planner names the limit first |
//! | Q14 | the DPU writes nothing in tf32 | `matmul::numbers` calls it single precision there |
//! | Q22 | element-wise operands of planes below 12 pixels are read at a pitch of 12 | [`plane_pitch`] |
//! | Q23 | an output scale of 0x8000 is negative | `quantize` keeps scales below it |
//! | Q24 | depthwise padding uses byte 1 of the pad value in some lanes | [`pad_value`]: all four bytes are equal |
//! | Q26 | a stale operand is reused silently | `matmul::plan` reuses what the task before in the same job loaded |
//! | Q27 | sums of 16-bit products saturate | their depth is one task; exact ones are 8-bit products |
//! | Q29 | a handle listed twice drops the job silently | a job lists its output buffers once and no inputs |
//! | Q30 | the watchdog reports success | the slow mark and sentinels, see `run` |
//! | Q31 | address 0 faults | the first buffer of a file is a guard that nothing uses |
//! | Q32 | transposed convolutions of stride 2 with padding from 12 are wrong | [`check_transposed_padding`]: zeros are inserted on the host |
//! | R1, R2 | on an RK3576 the first job after power came, and the next one after sums as results, writes nothing | `Chip::reruns`: it is run again |
//! | R3 | on an RK3576 two jobs at once corrupt each other | `Chip::parallel`: workers take turns |

use crate::error::Unsupported;

/// Rows that the feature reader groups.
const GROUPED_ROWS: usize = 4;
/// Smallest plane of an element-wise operand, in pixels.
const ELEMENTWISE_PIXELS: usize = 12;

/// Atoms between planes of extents `[h, w]` that every reader and writer can be programmed for.
pub const fn plane_pitch([height, width]: [usize; 2]) -> usize {
    // QUIRK(Q01): the reader's surface stride is what exceeds four rows, and cannot be negative.
    let rows = if height < GROUPED_ROWS { GROUPED_ROWS } else { height };
    let pixels = rows * width;
    // QUIRK(Q22): the operand readers' stride has a floor.
    if pixels < ELEMENTWISE_PIXELS { ELEMENTWISE_PIXELS } else { pixels }
}

/// The pad register for a signed byte outside the input.
pub const fn pad_value(byte: i8) -> u32 {
    // QUIRK(Q24): lanes differ in which byte they read.
    u32::from_le_bytes([byte.cast_unsigned(); 4])
}

/// Refuses what the hardware's transposed convolution computes wrongly.
///
/// # Errors
/// The padding.
pub fn check_transposed_padding(steps: [usize; 2], padding: [usize; 2]) -> Result<(), Unsupported> {
    // QUIRK(Q32): stride 2 with padding from 12 to 15, the most that its field holds.
    let wrong = (0..2).any(|axis| steps[axis] == 2 && padding[axis] >= 12);
    match wrong {
        true => Err(Unsupported::new(format!("a transposed convolution with steps {steps:?}, padding {padding:?}"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pitch_of_a_small_plane_is_four_rows_and_twelve_pixels() {
        assert_eq!(plane_pitch([1, 1]), 12);
        assert_eq!(plane_pitch([2, 5]), 20);
        assert_eq!(plane_pitch([4, 2]), 12);
        assert_eq!(plane_pitch([19, 19]), 361);
    }

    #[test]
    fn the_pad_value_repeats_its_byte() {
        assert_eq!(pad_value(-128), 0x8080_8080);
        assert_eq!(pad_value(3), 0x0303_0303);
    }
}
