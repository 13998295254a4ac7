//! CNA, the convolution front end: fetches features and weights into CBUF and feeds the MAC array.

use crate::field::{ConvMode, Precision};

control_registers!(Cna, "CNA", 0x1000);

value_registers! {
    Cna, "Weight decompression amount.";
    DcompAmount0 = "CNA_DCOMP_AMOUNT0" @ 0x1140,
    DcompAmount1 = "CNA_DCOMP_AMOUNT1" @ 0x1144,
    DcompAmount2 = "CNA_DCOMP_AMOUNT2" @ 0x1148,
    DcompAmount3 = "CNA_DCOMP_AMOUNT3" @ 0x114c,
    DcompAmount4 = "CNA_DCOMP_AMOUNT4" @ 0x1150,
    DcompAmount5 = "CNA_DCOMP_AMOUNT5" @ 0x1154,
    DcompAmount6 = "CNA_DCOMP_AMOUNT6" @ 0x1158,
    DcompAmount7 = "CNA_DCOMP_AMOUNT7" @ 0x115c,
    DcompAmount8 = "CNA_DCOMP_AMOUNT8" @ 0x1160,
    DcompAmount9 = "CNA_DCOMP_AMOUNT9" @ 0x1164,
    DcompAmount10 = "CNA_DCOMP_AMOUNT10" @ 0x1168,
    DcompAmount11 = "CNA_DCOMP_AMOUNT11" @ 0x116c,
    DcompAmount12 = "CNA_DCOMP_AMOUNT12" @ 0x1170,
    DcompAmount13 = "CNA_DCOMP_AMOUNT13" @ 0x1174,
    DcompAmount14 = "CNA_DCOMP_AMOUNT14" @ 0x1178,
    DcompAmount15 = "CNA_DCOMP_AMOUNT15" @ 0x117c,
}

registers! {
    /// Convolution kind, precisions and input packing.
    ConvCon1 = "CNA_CONV_CON1" @ Cna + 0x100c {
        30:30 nonalign_dma: bool,
        29:29 group_line_off: bool,
        16:16 deconv: bool,
        15:12 argb_in: u32,
        9:7 proc_precision: Precision,
        6:4 in_precision: Precision,
        3:0 conv_mode: ConvMode,
    }
    /// Input rows buffered before compute may start.
    ConvCon2 = "CNA_CONV_CON2" @ Cna + 0x1010 {
        23:16 kernel_group: u32,
        13:4 feature_grains: u32,
        2:2 csc_wo_en: bool,
        1:1 csc_do_en: bool,
        0:0 cmd_fifo_srst: bool,
    }
    /// Strides, dilation and transposed stride. Strides are plain values, dilation and transposed stride are minus one.
    ConvCon3 = "CNA_CONV_CON3" @ Cna + 0x1014 {
        30:28 nn_mode: u32,
        25:21 atrous_y_dilation: u32,
        20:16 atrous_x_dilation: u32,
        13:11 deconv_y_stride: u32,
        10:8 deconv_x_stride: u32,
        5:3 conv_y_stride: u32,
        2:0 conv_x_stride: u32,
    }
    /// Input extents in pixels, plain values.
    DataSize0 = "CNA_DATA_SIZE0" @ Cna + 0x1020 {
        26:16 datain_width: u32,
        10:0 datain_height: u32,
    }
    /// Input channels: real count minus one, and padded count.
    DataSize1 = "CNA_DATA_SIZE1" @ Cna + 0x1024 {
        29:16 datain_channel_real: u32,
        15:0 datain_channel: u32,
    }
    /// Output width in pixels, plain value.
    DataSize2 = "CNA_DATA_SIZE2" @ Cna + 0x1028 {
        10:0 dataout_width: u32,
    }
    /// Output pixels (width times height) and surface mode.
    DataSize3 = "CNA_DATA_SIZE3" @ Cna + 0x102c {
        23:22 surf_mode: u32,
        21:0 dataout_atomics: u32,
    }
    /// Bytes of all kernels.
    WeightSize0 = "CNA_WEIGHT_SIZE0" @ Cna + 0x1030 {
        31:0 weight_bytes: u32,
    }
    /// Bytes of one kernel.
    WeightSize1 = "CNA_WEIGHT_SIZE1" @ Cna + 0x1034 {
        18:0 weight_bytes_per_kernel: u32,
    }
    /// Kernel extents and kernel count, plain values.
    WeightSize2 = "CNA_WEIGHT_SIZE2" @ Cna + 0x1038 {
        28:24 weight_width: u32,
        20:16 weight_height: u32,
        13:0 weight_kernels: u32,
    }
    /// CBUF (on-chip convolution buffer) banks, and reuse of what the previous task left there.
    CbufCon0 = "CNA_CBUF_CON0" @ Cna + 0x1040 {
        13:13 weight_reuse: bool,
        12:12 data_reuse: bool,
        10:8 fc_data_bank: u32,
        7:4 weight_bank: u32,
        3:0 data_bank: u32,
    }
    /// 64-byte CBUF entries of one row group.
    CbufCon1 = "CNA_CBUF_CON1" @ Cna + 0x1044 {
        13:0 data_entries: u32,
    }
    /// Input converter: kind, sign and right shifts.
    CvtCon0 = "CNA_CVT_CON0" @ Cna + 0x104c {
        27:22 cvt_truncate_3: u32,
        21:16 cvt_truncate_2: u32,
        15:10 cvt_truncate_1: u32,
        9:4 cvt_truncate_0: u32,
        3:3 data_sign: bool,
        2:2 round_type: bool,
        1:1 cvt_type: bool,
        0:0 cvt_bypass: bool,
    }
    /// Input converter, lane 0.
    CvtCon1 = "CNA_CVT_CON1" @ Cna + 0x1050 {
        31:16 cvt_scale0: u32,
        15:0 cvt_offset0: i32,
    }
    /// Input converter, lane 1.
    CvtCon2 = "CNA_CVT_CON2" @ Cna + 0x1054 {
        31:16 cvt_scale1: u32,
        15:0 cvt_offset1: i32,
    }
    /// Input converter, lane 2.
    CvtCon3 = "CNA_CVT_CON3" @ Cna + 0x1058 {
        31:16 cvt_scale2: u32,
        15:0 cvt_offset2: i32,
    }
    /// Input converter, lane 3.
    CvtCon4 = "CNA_CVT_CON4" @ Cna + 0x105c {
        31:16 cvt_scale3: u32,
        15:0 cvt_offset3: i32,
    }
    /// Fully-connected mode: data to skip.
    FcCon0 = "CNA_FC_CON0" @ Cna + 0x1060 {
        31:16 fc_skip_data: u32,
        0:0 fc_skip_en: bool,
    }
    /// Fully-connected mode: data offset.
    FcCon1 = "CNA_FC_CON1" @ Cna + 0x1064 {
        16:0 data_offset: u32,
    }
    /// Padding at the left and the top, in pixels. Right and bottom follow from the output extents.
    PadCon0 = "CNA_PAD_CON0" @ Cna + 0x1068 {
        7:4 pad_left: u32,
        3:0 pad_top: u32,
    }
    /// DMA address of the input's first pixel.
    FeatureDataAddr = "CNA_FEATURE_DATA_ADDR" @ Cna + 0x1070 {
        31:0 feature_base_addr: u32,
    }
    /// Fully-connected mode: weight offset.
    FcCon2 = "CNA_FC_CON2" @ Cna + 0x1074 {
        16:0 weight_offset: u32,
    }
    /// Burst lengths of feature and weight reads.
    DmaCon0 = "CNA_DMA_CON0" @ Cna + 0x1078 {
        31:31 ov4k_bypass: bool,
        19:16 weight_burst_len: u32,
        3:0 data_burst_len: u32,
    }
    /// Line stride in atoms of 16 bytes.
    DmaCon1 = "CNA_DMA_CON1" @ Cna + 0x107c {
        27:0 line_stride: u32,
    }
    /// Surface stride in atoms of 16 bytes.
    DmaCon2 = "CNA_DMA_CON2" @ Cna + 0x1080 {
        27:0 surf_stride: u32,
    }
    /// Extents actually fetched, plain values.
    FcDataSize0 = "CNA_FC_DATA_SIZE0" @ Cna + 0x1084 {
        29:16 dma_width: u32,
        10:0 dma_height: u32,
    }
    /// Channels actually fetched, plain value.
    FcDataSize1 = "CNA_FC_DATA_SIZE1" @ Cna + 0x1088 {
        15:0 dma_channel: u32,
    }
    /// Clock gates.
    ClkGate = "CNA_CLK_GATE" @ Cna + 0x1090 {
        4:4 cbuf_cs_disable_clkgate: bool,
        2:2 csc_disable_clkgate: bool,
        1:1 cna_weight_disable_clkgate: bool,
        0:0 cna_feature_disable_clkgate: bool,
    }
    /// Weight decompression control.
    DcompCtrl = "CNA_DCOMP_CTRL" @ Cna + 0x1100 {
        3:3 wt_dec_bypass: bool,
        2:0 decomp_control: u32,
    }
    /// Weight decompression register count.
    DcompRegnum = "CNA_DCOMP_REGNUM" @ Cna + 0x1104 {
        31:0 dcomp_regnum: u32,
    }
    /// DMA address of the weights.
    DcompAddr0 = "CNA_DCOMP_ADDR0" @ Cna + 0x1110 {
        31:0 decompress_addr0: u32,
    }
    /// Input converter: channels converted.
    CvtCon5 = "CNA_CVT_CON5" @ Cna + 0x1180 {
        31:0 per_channel_cvt_en: u32,
    }
    /// Value read outside the input.
    PadCon1 = "CNA_PAD_CON1" @ Cna + 0x1184 {
        31:0 pad_value: u32,
    }
}
