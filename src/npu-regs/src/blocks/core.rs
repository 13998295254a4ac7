//! CORE, the MAC array and its accumulator.

use crate::field::Precision;

control_registers!(Core, "CORE", 0x3000);

registers! {
    /// Clock gating of the MAC array.
    MacGating = "CORE_MAC_GATING" @ Core + 0x300c {
        26:0 slcg_op_en: u32,
    }
    /// Precision and mode of the MAC array.
    MiscCfg = "CORE_MISC_CFG" @ Core + 0x3010 {
        19:14 soft_gating: u32,
        10:8 proc_precision: Precision,
        1:1 dw_en: bool,
        0:0 qd_en: bool,
    }
    /// Output extents, minus one.
    DataoutSize0 = "CORE_DATAOUT_SIZE_0" @ Core + 0x3014 {
        31:16 dataout_height: u32,
        15:0 dataout_width: u32,
    }
    /// Output channels, minus one.
    DataoutSize1 = "CORE_DATAOUT_SIZE_1" @ Core + 0x3018 {
        15:0 dataout_channel: u32,
    }
    /// Right shift of the accumulator before the DPU.
    ClipTruncate = "CORE_CLIP_TRUNCATE" @ Core + 0x301c {
        6:6 round_type: bool,
        4:0 clip_truncate: u32,
    }
    /// A register without a public name; every known convolution stream writes 0.
    Unnamed3030 = "CORE_UNNAMED_3030" @ Core + 0x3030 {
        31:0 value: u32,
    }
}
