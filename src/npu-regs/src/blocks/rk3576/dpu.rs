//! DPU, the post-processor. `Low…` and `High…` limit the values between its stages.

value_registers! {
    Dpu, "A whole number, or bits that are not understood.";
    FeatureMode = "DPU_FEATURE_MODE" @ 0x400c,
    Format = "DPU_FORMAT" @ 0x4010,
    Destination = "DPU_DESTINATION" @ 0x4018,
    PlaneStride = "DPU_PLANE_STRIDE" @ 0x401c,
    Width = "DPU_WIDTH" @ 0x4020,
    Height = "DPU_HEIGHT" @ 0x4024,
    Channels = "DPU_CHANNELS" @ 0x402c,
    WriterMode = "DPU_WRITER_MODE" @ 0x4038,
    Unnamed4044 = "DPU_UNNAMED_4044" @ 0x4044,
    Low4048 = "DPU_LOW_4048" @ 0x4048,
    High404C = "DPU_HIGH_404C" @ 0x404c,
    Bias = "DPU_BIAS" @ 0x4050,
    Low4058 = "DPU_LOW_4058" @ 0x4058,
    High405C = "DPU_HIGH_405C" @ 0x405c,
    Norm = "DPU_NORM" @ 0x4060,
    Low406C = "DPU_LOW_406C" @ 0x406c,
    High4070 = "DPU_HIGH_4070" @ 0x4070,
    Low4074 = "DPU_LOW_4074" @ 0x4074,
    High4078 = "DPU_HIGH_4078" @ 0x4078,
    Element = "DPU_ELEMENT" @ 0x407c,
    Unnamed4080 = "DPU_UNNAMED_4080" @ 0x4080,
    Unnamed4084 = "DPU_UNNAMED_4084" @ 0x4084,
    Low4088 = "DPU_LOW_4088" @ 0x4088,
    High408C = "DPU_HIGH_408C" @ 0x408c,
    Unnamed4090 = "DPU_UNNAMED_4090" @ 0x4090,
    Unnamed4094 = "DPU_UNNAMED_4094" @ 0x4094,
    Unnamed409C = "DPU_UNNAMED_409C" @ 0x409c,
    Low40A4 = "DPU_LOW_40A4" @ 0x40a4,
    High40A8 = "DPU_HIGH_40A8" @ 0x40a8,
    GroupStep = "DPU_GROUP_STEP" @ 0x40b8,
    Unnamed40C0 = "DPU_UNNAMED_40C0" @ 0x40c0,
    Unnamed40D0 = "DPU_UNNAMED_40D0" @ 0x40d0,
}

/// The table lookup, which stays off.
pub const LUT: &[&crate::RegisterInfo] = lut::VALUES;

/// The registers of the table lookup.
pub mod lut {
    value_registers! {
        Dpu, "Zero.";
        Lut4100 = "DPU_LUT_4100" @ 0x4100,
        Lut4104 = "DPU_LUT_4104" @ 0x4104,
        Lut4108 = "DPU_LUT_4108" @ 0x4108,
        Lut410C = "DPU_LUT_410C" @ 0x410c,
        Lut4110 = "DPU_LUT_4110" @ 0x4110,
        Lut4114 = "DPU_LUT_4114" @ 0x4114,
        Lut4118 = "DPU_LUT_4118" @ 0x4118,
        Lut411C = "DPU_LUT_411C" @ 0x411c,
        Lut4120 = "DPU_LUT_4120" @ 0x4120,
        Lut4124 = "DPU_LUT_4124" @ 0x4124,
        Lut4128 = "DPU_LUT_4128" @ 0x4128,
        Lut412C = "DPU_LUT_412C" @ 0x412c,
        Lut4130 = "DPU_LUT_4130" @ 0x4130,
        Lut4134 = "DPU_LUT_4134" @ 0x4134,
        Lut4138 = "DPU_LUT_4138" @ 0x4138,
        Lut413C = "DPU_LUT_413C" @ 0x413c,
        Lut4140 = "DPU_LUT_4140" @ 0x4140,
        Lut4144 = "DPU_LUT_4144" @ 0x4144,
        Lut4148 = "DPU_LUT_4148" @ 0x4148,
        Lut414C = "DPU_LUT_414C" @ 0x414c,
        Lut4150 = "DPU_LUT_4150" @ 0x4150,
        Lut4154 = "DPU_LUT_4154" @ 0x4154,
        Lut4158 = "DPU_LUT_4158" @ 0x4158,
        Lut415C = "DPU_LUT_415C" @ 0x415c,
        Lut4160 = "DPU_LUT_4160" @ 0x4160,
        Lut4164 = "DPU_LUT_4164" @ 0x4164,
        Lut4168 = "DPU_LUT_4168" @ 0x4168,
        Lut416C = "DPU_LUT_416C" @ 0x416c,
        Lut4170 = "DPU_LUT_4170" @ 0x4170,
        Lut4174 = "DPU_LUT_4174" @ 0x4174,
        Lut4178 = "DPU_LUT_4178" @ 0x4178,
        Lut417C = "DPU_LUT_417C" @ 0x417c,
        Lut4180 = "DPU_LUT_4180" @ 0x4180,
        Lut4184 = "DPU_LUT_4184" @ 0x4184,
        Lut4188 = "DPU_LUT_4188" @ 0x4188,
        Lut418C = "DPU_LUT_418C" @ 0x418c,
        Lut4190 = "DPU_LUT_4190" @ 0x4190,
        Lut4194 = "DPU_LUT_4194" @ 0x4194,
    }
}

registers! {
    /// Channels written, minus one, and bits that are not understood.
    Writer = "DPU_WRITER" @ Dpu + 0x4030 {
        31:16 channels: u32,
        15:0 code: u32,
    }
    /// Extents written, minus one.
    WriterExtents = "DPU_WRITER_EXTENTS" @ Dpu + 0x4034 {
        31:16 height: u32,
        15:0 width: u32,
    }
    /// Output converter offset.
    OutCvtOffset = "DPU_OUT_CVT_OFFSET" @ Dpu + 0x40ac {
        31:0 out_cvt_offset: i32,
    }
    /// Output converter scale.
    OutCvtScale = "DPU_OUT_CVT_SCALE" @ Dpu + 0x40b0 {
        16:16 fp32tofp16_en: bool,
        15:0 out_cvt_scale: i32,
    }
    /// Output converter shift and rounding.
    OutCvtShift = "DPU_OUT_CVT_SHIFT" @ Dpu + 0x40b4 {
        31:31 cvt_type: bool,
        30:30 cvt_round: bool,
        19:12 minus_exp: u32,
        11:0 out_cvt_shift: u32,
    }
}
