//! DPU_RDMA, the readers of the DPU's operands.

use crate::field::{ConvMode, ElementSize, EwDataMode, Precision};

control_registers!(DpuRdma, "DPU_RDMA", 0x5000);

registers! {
    /// Width, minus one.
    DataCubeWidth = "DPU_RDMA_DATA_CUBE_WIDTH" @ DpuRdma + 0x500c {
        12:0 width: u32,
    }
    /// Height, minus one.
    DataCubeHeight = "DPU_RDMA_DATA_CUBE_HEIGHT" @ DpuRdma + 0x5010 {
        28:16 ew_line_notch_addr: u32,
        12:0 height: u32,
    }
    /// Channels, minus one.
    DataCubeChannel = "DPU_RDMA_DATA_CUBE_CHANNEL" @ DpuRdma + 0x5014 {
        12:0 channel: u32,
    }
    /// DMA address of the main operand.
    SrcBaseAddr = "DPU_RDMA_SRC_BASE_ADDR" @ DpuRdma + 0x5018 {
        31:0 src_base_addr: u32,
    }
    /// Which per-channel operands of the BS stage are read: bit 0 addend, bit 1 zero-point compensation, bit 2 multiplier, bit 3 truncation.
    Bcfg = "DPU_RDMA_BCFG" @ DpuRdma + 0x501c {
        4:1 brdma_data_use: u32,
    }
    /// DMA address of the BS operands.
    BsBaseAddr = "DPU_RDMA_BS_BASE_ADDR" @ DpuRdma + 0x5020 {
        31:0 bs_base_addr: u32,
    }
    /// Which per-channel operands of the BN stage are read.
    Ncfg = "DPU_RDMA_NCFG" @ DpuRdma + 0x5028 {
        4:1 nrdma_data_use: u32,
    }
    /// DMA address of the BN operands.
    BnBaseAddr = "DPU_RDMA_BN_BASE_ADDR" @ DpuRdma + 0x502c {
        31:0 bn_base_addr: u32,
    }
    /// Element-wise operand read.
    Ecfg = "DPU_RDMA_ECFG" @ DpuRdma + 0x5034 {
        31:30 erdma_data_mode: EwDataMode,
        29:29 erdma_surf_mode: bool,
        28:28 erdma_nonalign: bool,
        3:2 erdma_data_size: ElementSize,
        1:1 ov4k_bypass: bool,
        0:0 erdma_disable: bool,
    }
    /// DMA address of the element-wise operand.
    EwBaseAddr = "DPU_RDMA_EW_BASE_ADDR" @ DpuRdma + 0x5038 {
        31:0 ew_base_addr: u32,
    }
    /// Element-wise operand surface stride in atoms.
    EwSurfStride = "DPU_RDMA_EW_SURF_STRIDE" @ DpuRdma + 0x5040 {
        31:4 ew_surf_stride: u32,
    }
    /// Which operands are read, and how.
    FeatureModeCfg = "DPU_RDMA_FEATURE_MODE_CFG" @ DpuRdma + 0x5044 {
        17:15 in_precision: Precision,
        14:11 burst_len: u32,
        10:8 comb_use: u32,
        7:5 proc_precision: Precision,
        4:4 mrdma_disable: bool,
        3:3 mrdma_fp16tofp32_en: bool,
        2:1 conv_mode: ConvMode,
        0:0 flying_mode: bool,
    }
    /// Main operand read of pooling; always 0.
    SrcDmaCfg = "DPU_RDMA_SRC_DMA_CFG" @ DpuRdma + 0x5048 {
        31:19 line_notch_addr: u32,
        13:13 pooling_method: bool,
        12:12 unpooling_en: bool,
        11:9 kernel_stride_height: u32,
        8:6 kernel_stride_width: u32,
        5:3 kernel_height: u32,
        2:0 kernel_width: u32,
    }
    /// Atoms skipped after each plane of the main operand.
    SurfNotch = "DPU_RDMA_SURF_NOTCH" @ DpuRdma + 0x504c {
        31:4 surf_notch_addr: u32,
    }
    /// Padding of the main operand; always 0.
    PadCfg = "DPU_RDMA_PAD_CFG" @ DpuRdma + 0x5064 {
        31:16 pad_value: u32,
        6:4 pad_top: u32,
        2:0 pad_left: u32,
    }
    /// Arbitration weights of the four readers.
    Weight = "DPU_RDMA_WEIGHT" @ DpuRdma + 0x5068 {
        31:24 e_weight: u32,
        23:16 n_weight: u32,
        15:8 b_weight: u32,
        7:0 m_weight: u32,
    }
    /// Atoms skipped after each plane of the element-wise operand.
    EwSurfNotch = "DPU_RDMA_EW_SURF_NOTCH" @ DpuRdma + 0x506c {
        31:4 ew_surf_notch: u32,
    }
}
