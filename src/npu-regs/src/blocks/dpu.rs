//! DPU, the post-processor: BS, BN, EW and LUT stages, output converter and writer.

use crate::field::{AluAlgo, ConvMode, ElementSize, EwDataMode, EwOpType, Precision};

control_registers!(Dpu, "DPU", 0x4000);

value_registers! {
    Dpu, "Element-wise operand where it does not come from memory.";
    EwOpValue0 = "DPU_EW_OP_VALUE_0" @ 0x4090,
    EwOpValue1 = "DPU_EW_OP_VALUE_1" @ 0x4094,
    EwOpValue2 = "DPU_EW_OP_VALUE_2" @ 0x4098,
    EwOpValue3 = "DPU_EW_OP_VALUE_3" @ 0x409c,
    EwOpValue4 = "DPU_EW_OP_VALUE_4" @ 0x40a0,
    EwOpValue5 = "DPU_EW_OP_VALUE_5" @ 0x40a4,
    EwOpValue6 = "DPU_EW_OP_VALUE_6" @ 0x40a8,
    EwOpValue7 = "DPU_EW_OP_VALUE_7" @ 0x40ac,
}

registers! {
    /// Where the data comes from and goes to.
    FeatureModeCfg = "DPU_FEATURE_MODE_CFG" @ Dpu + 0x400c {
        31:31 comb_use: bool,
        30:30 tp_en: bool,
        29:26 rgp_type: u32,
        25:25 nonalign: bool,
        24:9 surf_len: u32,
        8:5 burst_len: u32,
        4:3 conv_mode: ConvMode,
        2:1 output_mode: u32,
        0:0 flying_mode: bool,
    }
    /// Precisions, and the right shifts of negative values.
    DataFormat = "DPU_DATA_FORMAT" @ Dpu + 0x4010 {
        31:29 out_precision: Precision,
        28:26 in_precision: Precision,
        25:16 ew_truncate_neg: u32,
        15:10 bn_mul_shift_value_neg: u32,
        9:4 bs_mul_shift_value_neg: u32,
        3:3 mc_surf_out: bool,
        2:0 proc_precision: Precision,
    }
    /// Pending offset; always 0.
    OffsetPend = "DPU_OFFSET_PEND" @ Dpu + 0x4014 {
        15:0 offset_pend: u32,
    }
    /// DMA address of the output.
    DstBaseAddr = "DPU_DST_BASE_ADDR" @ Dpu + 0x4020 {
        31:0 dst_base_addr: u32,
    }
    /// Output surface stride in atoms of 16 bytes.
    DstSurfStride = "DPU_DST_SURF_STRIDE" @ Dpu + 0x4024 {
        31:4 dst_surf_stride: u32,
    }
    /// Width, minus one.
    DataCubeWidth = "DPU_DATA_CUBE_WIDTH" @ Dpu + 0x4030 {
        12:0 width: u32,
    }
    /// Height, minus one.
    DataCubeHeight = "DPU_DATA_CUBE_HEIGHT" @ Dpu + 0x4034 {
        24:22 minmax_ctl: u32,
        12:0 height: u32,
    }
    /// Atoms skipped after each output row.
    DataCubeNotchAddr = "DPU_DATA_CUBE_NOTCH_ADDR" @ Dpu + 0x4038 {
        28:16 notch_addr_1: u32,
        12:0 notch_addr_0: u32,
    }
    /// Channels, minus one: the real count and the one written.
    DataCubeChannel = "DPU_DATA_CUBE_CHANNEL" @ Dpu + 0x403c {
        28:16 orig_channel: u32,
        12:0 channel: u32,
    }
    /// Bias-and-scale stage.
    BsCfg = "DPU_BS_CFG" @ Dpu + 0x4040 {
        19:16 bs_alu_algo: AluAlgo,
        8:8 bs_alu_src: bool,
        7:7 bs_relux_en: bool,
        6:6 bs_relu_bypass: bool,
        5:5 bs_mul_prelu: bool,
        4:4 bs_mul_bypass: bool,
        1:1 bs_alu_bypass: bool,
        0:0 bs_bypass: bool,
    }
    /// Bias operand where it is not per channel.
    BsAluCfg = "DPU_BS_ALU_CFG" @ Dpu + 0x4044 {
        31:0 bs_alu_operand: i32,
    }
    /// Multiplier of the bias-and-scale stage.
    BsMulCfg = "DPU_BS_MUL_CFG" @ Dpu + 0x4048 {
        31:16 bs_mul_operand: i32,
        13:8 bs_mul_shift_value: u32,
        1:1 bs_truncate_src: bool,
        0:0 bs_mul_src: bool,
    }
    /// Upper clamp of the bias-and-scale stage.
    BsReluxCmpValue = "DPU_BS_RELUX_CMP_VALUE" @ Dpu + 0x404c {
        31:0 bs_relux_cmp_dat: u32,
    }
    /// Writer geometry (atoms per pixel minus one) and weight zero-point compensation.
    BsOwCfg = "DPU_BS_OW_CFG" @ Dpu + 0x4050 {
        31:28 rgp_cnter: u32,
        27:27 tp_org_en: bool,
        10:8 size_e_2: u32,
        7:5 size_e_1: u32,
        4:2 size_e_0: u32,
        1:1 od_bypass: bool,
        0:0 ow_src: bool,
    }
    /// Weight zero-point compensation operand.
    BsOwOp = "DPU_BS_OW_OP" @ Dpu + 0x4054 {
        15:0 ow_op: i32,
    }
    /// Channels written, minus one.
    WdmaSize0 = "DPU_WDMA_SIZE_0" @ Dpu + 0x4058 {
        27:27 tp_precision: bool,
        26:16 size_c_wdma: u32,
        12:0 channel_wdma: u32,
    }
    /// Extents written, minus one.
    WdmaSize1 = "DPU_WDMA_SIZE_1" @ Dpu + 0x405c {
        28:16 height_wdma: u32,
        12:0 width_wdma: u32,
    }
    /// Batch-norm stage.
    BnCfg = "DPU_BN_CFG" @ Dpu + 0x4060 {
        19:16 bn_alu_algo: AluAlgo,
        8:8 bn_alu_src: bool,
        7:7 bn_relux_en: bool,
        6:6 bn_relu_bypass: bool,
        5:5 bn_mul_prelu: bool,
        4:4 bn_mul_bypass: bool,
        1:1 bn_alu_bypass: bool,
        0:0 bn_bypass: bool,
    }
    /// Addend of the batch-norm stage.
    BnAluCfg = "DPU_BN_ALU_CFG" @ Dpu + 0x4064 {
        31:0 bn_alu_operand: i32,
    }
    /// Multiplier of the batch-norm stage.
    BnMulCfg = "DPU_BN_MUL_CFG" @ Dpu + 0x4068 {
        31:16 bn_mul_operand: u32,
        13:8 bn_mul_shift_value: u32,
        1:1 bn_truncate_src: bool,
        0:0 bn_mul_src: bool,
    }
    /// Upper clamp of the batch-norm stage.
    BnReluxCmpValue = "DPU_BN_RELUX_CMP_VALUE" @ Dpu + 0x406c {
        31:0 bn_relux_cmp_dat: u32,
    }
    /// Element-wise stage.
    EwCfg = "DPU_EW_CFG" @ Dpu + 0x4070 {
        31:31 ew_cvt_type: bool,
        30:30 ew_cvt_round: bool,
        29:28 ew_data_mode: EwDataMode,
        23:22 edata_size: ElementSize,
        21:21 ew_equal_en: bool,
        20:20 ew_binary_en: bool,
        19:16 ew_alu_algo: AluAlgo,
        10:10 ew_relux_en: bool,
        9:9 ew_relu_bypass: bool,
        8:8 ew_op_cvt_bypass: bool,
        7:7 ew_lut_bypass: bool,
        6:6 ew_op_src: bool,
        5:5 ew_mul_prelu: bool,
        2:2 ew_op_type: EwOpType,
        1:1 ew_op_bypass: bool,
        0:0 ew_bypass: bool,
    }
    /// Operand converter offset.
    EwCvtOffsetValue = "DPU_EW_CVT_OFFSET_VALUE" @ Dpu + 0x4074 {
        31:0 ew_op_cvt_offset: i32,
    }
    /// Operand converter scale and shift.
    EwCvtScaleValue = "DPU_EW_CVT_SCALE_VALUE" @ Dpu + 0x4078 {
        31:22 ew_truncate: u32,
        21:16 ew_op_cvt_shift: u32,
        15:0 ew_op_cvt_scale: u32,
    }
    /// Upper clamp of the element-wise stage.
    EwReluxCmpValue = "DPU_EW_RELUX_CMP_VALUE" @ Dpu + 0x407c {
        31:0 ew_relux_cmp_dat: u32,
    }
    /// Output converter offset.
    OutCvtOffset = "DPU_OUT_CVT_OFFSET" @ Dpu + 0x4080 {
        31:0 out_cvt_offset: i32,
    }
    /// Output converter scale.
    OutCvtScale = "DPU_OUT_CVT_SCALE" @ Dpu + 0x4084 {
        16:16 fp32tofp16_en: bool,
        15:0 out_cvt_scale: i32,
    }
    /// Output converter shift and rounding.
    OutCvtShift = "DPU_OUT_CVT_SHIFT" @ Dpu + 0x4088 {
        31:31 cvt_type: bool,
        30:30 cvt_round: bool,
        19:12 minus_exp: u32,
        11:0 out_cvt_shift: u32,
    }
    /// Atoms from one kernel group to the next.
    SurfaceAdd = "DPU_SURFACE_ADD" @ Dpu + 0x40c0 {
        31:4 surf_add: u32,
    }
    /// A register without a public name; every known stream writes 0.
    Unnamed40C4 = "DPU_UNNAMED_40C4" @ Dpu + 0x40c4 {
        31:0 value: u32,
    }
    /// Table port address.
    LutAccessCfg = "DPU_LUT_ACCESS_CFG" @ Dpu + 0x4100 {
        17:17 lut_access_type: bool,
        16:16 lut_table_id: bool,
        9:0 lut_addr: u32,
    }
    /// Table port data.
    LutAccessData = "DPU_LUT_ACCESS_DATA" @ Dpu + 0x4104 {
        15:0 lut_access_data: u32,
    }
    /// Table lookup.
    LutCfg = "DPU_LUT_CFG" @ Dpu + 0x4108 {
        7:7 lut_cal_sel: bool,
        6:6 lut_hybrid_priority: bool,
        5:5 lut_oflow_priority: bool,
        4:4 lut_uflow_priority: bool,
        3:2 lut_lo_le_mux: u32,
        1:1 lut_expand_en: bool,
        0:0 lut_road_sel: bool,
    }
    /// Table index steps, as powers of two.
    LutInfo = "DPU_LUT_INFO" @ Dpu + 0x410c {
        23:16 lut_lo_index_select: u32,
        15:8 lut_le_index_select: u32,
    }
    /// First index value of table LE.
    LutLeStart = "DPU_LUT_LE_START" @ Dpu + 0x4110 {
        31:0 lut_le_start: i32,
    }
    /// Last index value of table LE.
    LutLeEnd = "DPU_LUT_LE_END" @ Dpu + 0x4114 {
        31:0 lut_le_end: i32,
    }
    /// First index value of table LO.
    LutLoStart = "DPU_LUT_LO_START" @ Dpu + 0x4118 {
        31:0 lut_lo_start: i32,
    }
    /// Last index value of table LO.
    LutLoEnd = "DPU_LUT_LO_END" @ Dpu + 0x411c {
        31:0 lut_lo_end: i32,
    }
    /// Slopes beyond table LE.
    LutLeSlopeScale = "DPU_LUT_LE_SLOPE_SCALE" @ Dpu + 0x4120 {
        31:16 lut_le_slope_oflow_scale: u32,
        15:0 lut_le_slope_uflow_scale: u32,
    }
    /// Shifts of the slopes beyond table LE.
    LutLeSlopeShift = "DPU_LUT_LE_SLOPE_SHIFT" @ Dpu + 0x4124 {
        9:5 lut_le_slope_oflow_shift: u32,
        4:0 lut_le_slope_uflow_shift: u32,
    }
    /// Slopes beyond table LO.
    LutLoSlopeScale = "DPU_LUT_LO_SLOPE_SCALE" @ Dpu + 0x4128 {
        31:16 lut_lo_slope_oflow_scale: u32,
        15:0 lut_lo_slope_uflow_scale: u32,
    }
    /// Shifts of the slopes beyond table LO.
    LutLoSlopeShift = "DPU_LUT_LO_SLOPE_SHIFT" @ Dpu + 0x412c {
        9:5 lut_lo_slope_oflow_shift: u32,
        4:0 lut_lo_slope_uflow_shift: u32,
    }
}
