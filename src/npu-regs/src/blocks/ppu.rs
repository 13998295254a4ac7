//! PPU, planar pooling.

use crate::field::{PoolingMethod, Precision};

control_registers!(Ppu, "PPU", 0x6000);

registers! {
    /// Input width, minus one.
    DataCubeInWidth = "PPU_DATA_CUBE_IN_WIDTH" @ Ppu + 0x600c {
        12:0 cube_in_width: u32,
    }
    /// Input height, minus one.
    DataCubeInHeight = "PPU_DATA_CUBE_IN_HEIGHT" @ Ppu + 0x6010 {
        12:0 cube_in_height: u32,
    }
    /// Input channels, minus one.
    DataCubeInChannel = "PPU_DATA_CUBE_IN_CHANNEL" @ Ppu + 0x6014 {
        12:0 cube_in_channel: u32,
    }
    /// Output width, minus one.
    DataCubeOutWidth = "PPU_DATA_CUBE_OUT_WIDTH" @ Ppu + 0x6018 {
        12:0 cube_out_width: u32,
    }
    /// Output height, minus one.
    DataCubeOutHeight = "PPU_DATA_CUBE_OUT_HEIGHT" @ Ppu + 0x601c {
        12:0 cube_out_height: u32,
    }
    /// Output channels, minus one.
    DataCubeOutChannel = "PPU_DATA_CUBE_OUT_CHANNEL" @ Ppu + 0x6020 {
        12:0 cube_out_channel: u32,
    }
    /// Pooling method and data source.
    OperationModeCfg = "PPU_OPERATION_MODE_CFG" @ Ppu + 0x6024 {
        30:30 index_en: bool,
        28:16 notch_addr: u32,
        7:5 use_cnt: u32,
        4:4 flying_mode: bool,
        1:0 pooling_method: PoolingMethod,
    }
    /// Kernel and stride, minus one.
    PoolingKernelCfg = "PPU_POOLING_KERNEL_CFG" @ Ppu + 0x6034 {
        23:20 kernel_stride_height: u32,
        19:16 kernel_stride_width: u32,
        11:8 kernel_height: u32,
        3:0 kernel_width: u32,
    }
    /// Reciprocal of the kernel width.
    RecipKernelWidth = "PPU_RECIP_KERNEL_WIDTH" @ Ppu + 0x6038 {
        16:0 recip_kernel_width: u32,
    }
    /// Reciprocal of the kernel height.
    RecipKernelHeight = "PPU_RECIP_KERNEL_HEIGHT" @ Ppu + 0x603c {
        16:0 recip_kernel_height: u32,
    }
    /// Padding in pixels.
    PoolingPaddingCfg = "PPU_POOLING_PADDING_CFG" @ Ppu + 0x6040 {
        14:12 pad_bottom: u32,
        10:8 pad_right: u32,
        6:4 pad_top: u32,
        2:0 pad_left: u32,
    }
    /// Pad value, low part.
    PaddingValue1Cfg = "PPU_PADDING_VALUE_1_CFG" @ Ppu + 0x6044 {
        31:0 pad_value_0: u32,
    }
    /// Pad value, high part.
    PaddingValue2Cfg = "PPU_PADDING_VALUE_2_CFG" @ Ppu + 0x6048 {
        2:0 pad_value_1: u32,
    }
    /// DMA address of the output, in atoms.
    DstBaseAddr = "PPU_DST_BASE_ADDR" @ Ppu + 0x6070 {
        31:4 dst_base_addr: u32,
    }
    /// Output surface stride in atoms.
    DstSurfStride = "PPU_DST_SURF_STRIDE" @ Ppu + 0x607c {
        31:4 dst_surf_stride: u32,
    }
    /// Precision, data source and index step.
    DataFormat = "PPU_DATA_FORMAT" @ Ppu + 0x6084 {
        31:4 index_add: u32,
        3:3 dpu_flyin: bool,
        2:0 proc_precision: Precision,
    }
    /// Burst length and writer geometry.
    MiscCtrl = "PPU_MISC_CTRL" @ Ppu + 0x60dc {
        31:16 surf_len: u32,
        8:8 mc_surf_out: bool,
        7:7 nonalign: bool,
        3:0 burst_len: u32,
    }
}
