//! Errata of silicon and driver, by ID. The workarounds live in the `npu` library, the misbehaviour here.
//!
//! SOURCE: npu-spec 7. The numbers are that table's. Those with an R are the RK3576's: npu-spec-rk3576 1 for the first and the
//! third; the second from the reference of the library that the survey describes.

/// An erratum that this simulator reproduces.
///
/// Not modelled: Q15 to Q17 (tables), as that path is not simulated; Q33, a rare low-order difference that nobody can predict; Q13, which is the width of the fields; Q34, which
/// says that cores do not disturb each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quirk {
    /// A plane of fewer than 4 rows is read at a pitch of 4 rows. Follows from the address model in `cna`.
    Q1,
    /// A convolution with the main reader on and nothing that consumes it hangs.
    Q2,
    /// The element-wise reader is on and the stage is bypassed: hang.
    Q3,
    /// An operand is needed and the mask lacks DPU_RDMA: hang.
    Q4,
    /// No marker before the enable word: the task does not start.
    Q5,
    /// The stream writes CNA's or CORE's pointer: hang.
    Q6,
    /// 8-bit output whose channels are no whole groups: hang, the partial group stays unwritten.
    Q7,
    /// More atoms per pixel than the datapath has: the first group of row 0 is written, then hang.
    Q8,
    /// 16-bit integers without QD_EN: only the first 16 output channels are produced.
    Q9,
    /// Fewer atoms per pixel than the datapath has: the others are never written.
    Q10,
    /// FC_DATA_BANK is not 0: wrong results. Which ones nobody knows; here those banks read as zero.
    Q11,
    /// 8-bit features one pixel wide that nearly fill their banks without a slack bank: the last row is wrong.
    /// How wrong nobody knows; here it reads as zero.
    Q12,
    /// Precision code 7 in the DPU: nothing is written, the job completes.
    Q14,
    /// Flying operation 8191 pixels wide: the last 54 elements are wrong; here they stay unwritten.
    Q18,
    /// Half-precision addition with the operand converter bypassed is wrong; multiplication with it live hangs.
    Q19,
    /// Flying two-operand form with an odd COMB_USE: hang.
    Q20,
    /// 32-bit multiplication takes 16 bits of the second operand.
    Q21,
    /// Fused operand whose plane has fewer than 12 pixels is read at wrong strides. Follows from the address model.
    Q22,
    /// A scale of 0x8000 is negative. Follows from the field's sign.
    Q23,
    /// Depthwise 8-bit padding takes byte 1 for odd channels of the first 32 of each 64.
    Q24,
    /// Per-channel operands armed while BS is bypassed on a 32-bit writer poison the core for half precision.
    Q25,
    /// Reuse without the matching previous task takes the stale operand silently.
    Q26,
    /// Sums of 16-bit products saturate.
    Q27,
    /// Narrowing to half precision saturates.
    Q28,
    /// A buffer listed twice drops the job silently.
    Q29,
    /// A job over 500 ms is retired as if it had succeeded.
    Q30,
    /// An access outside all buffers ends by the watchdog.
    Q31,
    /// A transposed convolution of stride 2 with padding from 12 to 15 is wrong. How wrong nobody knows; here its features
    /// are zero.
    Q32,
    /// RK3576: the first job of a core after power came completes and writes nothing.
    R1,
    /// RK3576: so does the next job after one whose results are sums.
    R2,
    /// RK3576: two jobs at once corrupt each other, on whichever cores. Here the one that came later is wrong.
    R3,
}

impl Quirk {
    /// What happens, for messages.
    pub fn effect(self) -> &'static str {
        match self {
            Self::Q1 => "planes of fewer than 4 rows are read at a pitch of 4 rows",
            Self::Q2 => "the main reader is on and nothing consumes it",
            Self::Q3 => "the element-wise reader is on and its stage is bypassed",
            Self::Q4 => "an operand is needed and DPU_RDMA does not take part",
            Self::Q5 => "no marker stands before the enable word",
            Self::Q6 => "the stream writes a pointer that is the kernel's",
            Self::Q7 => "8-bit output channels are no whole groups",
            Self::Q8 => "more atoms per pixel than the datapath has",
            Self::Q9 => "16-bit integers without QD_EN give 16 output channels",
            Self::Q10 => "fewer atoms per pixel than the datapath has",
            Self::Q11 => "banks given to fully-connected mode read as zero",
            Self::Q12 => "the last row of nearly full banks is wrong",
            Self::Q14 => "the DPU writes nothing in tf32",
            Self::Q18 => "the end of an 8191 pixels wide operation is wrong",
            Self::Q19 => "half-precision multiplication with a live operand converter",
            Self::Q20 => "two-operand flying mode with an odd COMB_USE",
            Self::Q21 => "the second factor has 16 bits",
            Self::Q22 => "operand planes of fewer than 12 pixels are read at wrong strides",
            Self::Q23 => "a scale of 0x8000 is negative",
            Self::Q24 => "odd channels pad with byte 1",
            Self::Q25 => "the core was poisoned by operands armed for a bypassed stage",
            Self::Q26 => "a stale operand is reused",
            Self::Q27 => "sums of 16-bit products saturate",
            Self::Q28 => "half precision saturates",
            Self::Q29 => "a buffer is listed twice",
            Self::Q30 => "a hung job is retired as a success",
            Self::Q31 => "an access outside all buffers",
            Self::Q32 => "a transposed convolution of stride 2 with padding from 12 is wrong",
            Self::R1 => "the first job after power came writes nothing",
            Self::R2 => "the job after one with sums as results writes nothing",
            Self::R3 => "another core works at the same time, with its features in the same buffer",
        }
    }
}

/// A hang because of `quirk`.
pub(crate) fn hang(quirk: Quirk) -> crate::Fault {
    crate::Fault::Quirk { quirk }
}
