//! CNA, the convolution front end. CBUF, the on-chip convolution buffer, is counted in granules of 64 bytes.

value_registers! {
    Cna, "A whole number, or bits that are not understood.";
    Mode = "CNA_MODE" @ 0x100c,
    Grains = "CNA_GRAINS" @ 0x1010,
    WeightBytes = "CNA_WEIGHT_BYTES" @ 0x101c,
    KernelBytes = "CNA_KERNEL_BYTES" @ 0x1020,
    OutputPixels = "CNA_OUTPUT_PIXELS" @ 0x1034,
    Converter = "CNA_CONVERTER" @ 0x1048,
    ConverterScale0 = "CNA_CONVERTER_SCALE_0" @ 0x104c,
    ConverterScale1 = "CNA_CONVERTER_SCALE_1" @ 0x1050,
    ConverterOffset0 = "CNA_CONVERTER_OFFSET_0" @ 0x1054,
    ConverterOffset1 = "CNA_CONVERTER_OFFSET_1" @ 0x1058,
    ConverterOffset2 = "CNA_CONVERTER_OFFSET_2" @ 0x105c,
    Unnamed1060 = "CNA_UNNAMED_1060" @ 0x1060,
    Unnamed1064 = "CNA_UNNAMED_1064" @ 0x1064,
    Unnamed1068 = "CNA_UNNAMED_1068" @ 0x1068,
    Unnamed106C = "CNA_UNNAMED_106C" @ 0x106c,
    Unnamed1070 = "CNA_UNNAMED_1070" @ 0x1070,
    Unnamed1074 = "CNA_UNNAMED_1074" @ 0x1074,
    FetchChannels = "CNA_FETCH_CHANNELS" @ 0x107c,
    PadValue = "CNA_PAD_VALUE" @ 0x1084,
    FeatureAddress = "CNA_FEATURE_ADDRESS" @ 0x1088,
    Bursts = "CNA_BURSTS" @ 0x108c,
    LineStride = "CNA_LINE_STRIDE" @ 0x1090,
    GroupStride = "CNA_GROUP_STRIDE" @ 0x1094,
    FetchAtoms = "CNA_FETCH_ATOMS" @ 0x1098,
    Unnamed109C = "CNA_UNNAMED_109C" @ 0x109c,
    Unnamed1100 = "CNA_UNNAMED_1100" @ 0x1100,
    Unnamed1104 = "CNA_UNNAMED_1104" @ 0x1104,
    WeightAddress = "CNA_WEIGHT_ADDRESS" @ 0x1110,
    Unnamed1140 = "CNA_UNNAMED_1140" @ 0x1140,
    Unnamed1144 = "CNA_UNNAMED_1144" @ 0x1144,
}

registers! {
    /// Strides, plain values.
    Stride = "CNA_STRIDE" @ Cna + 0x1014 {
        5:3 y: u32,
        2:0 x: u32,
    }
    /// How CBUF is used: a bit that must be set, and one that keeps rows for the next task.
    CbufMode = "CNA_CBUF_MODE" @ Cna + 0x1018 {
        31:31 keep_rows: bool,
        30:30 window: bool,
        15:0 any: u32,
    }
    /// Kernel extents and kernels, minus one.
    Kernel = "CNA_KERNEL" @ Cna + 0x1024 {
        31:24 width: u32,
        23:16 height: u32,
        15:0 kernels: u32,
    }
    /// Granules of the rows that are fetched, and channels minus one.
    Feature = "CNA_FEATURE" @ Cna + 0x1028 {
        31:16 granules: u32,
        15:0 channels: u32,
    }
    /// Extents of the rows in CBUF, minus one.
    Rows = "CNA_ROWS" @ Cna + 0x102c {
        31:16 width: u32,
        15:0 height: u32,
    }
    /// Twice a kernel's weights, or eight times its positions where it is depthwise; and the output's width minus one.
    Step = "CNA_STEP" @ Cna + 0x1030 {
        31:16 weights: u32,
        15:0 width: u32,
    }
    /// Whether the task goes on with the rows of the one before.
    Chain = "CNA_CHAIN" @ Cna + 0x1038 {
        31:31 continues: bool,
        2:0 code: u32,
    }
    /// Granules of a row, and where the window begins.
    Window = "CNA_WINDOW" @ Cna + 0x103c {
        31:16 row: u32,
        15:0 base: u32,
    }
    /// Granules beside the first 4096, and where the fetch begins.
    Fetch = "CNA_FETCH" @ Cna + 0x1040 {
        28:28 enable: bool,
        27:16 more: u32,
        15:0 base: u32,
    }
    /// Pixels of a row, and granules from one to the next.
    Line = "CNA_LINE" @ Cna + 0x1044 {
        31:16 width: u32,
        15:0 granules: u32,
    }
    /// Extents that are fetched, minus one.
    FetchRows = "CNA_FETCH_ROWS" @ Cna + 0x1078 {
        31:16 width: u32,
        15:0 height: u32,
    }
    /// Padding in pixels.
    Pad = "CNA_PAD" @ Cna + 0x1080 {
        31:24 right: u32,
        23:16 bottom: u32,
        15:8 left: u32,
        7:0 top: u32,
    }
    /// The width of a row, minus one, twice.
    Width = "CNA_WIDTH" @ Cna + 0x118c {
        31:16 width_0: u32,
        15:0 width_1: u32,
    }
}
