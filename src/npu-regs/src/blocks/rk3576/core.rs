//! CORE, the MAC array.

value_registers! {
    Core, "A whole number, or bits that are not understood.";
    Mode = "CORE_MODE" @ 0x3018,
    Channels = "CORE_CHANNELS" @ 0x3020,
    Unnamed3024 = "CORE_UNNAMED_3024" @ 0x3024,
}

registers! {
    /// Output extents, minus one.
    Extents = "CORE_EXTENTS" @ Core + 0x301c {
        31:16 height: u32,
        15:0 width: u32,
    }
}
