//! PC, the program controller: fetches register programs and starts the other blocks.

interrupt_registers! {
    /// Which events raise the interrupt line.
    InterruptMask = "PC_INTERRUPT_MASK" @ 0x0020,
    /// Clears events.
    InterruptClear = "PC_INTERRUPT_CLEAR" @ 0x0024,
    /// Events that passed the mask.
    InterruptStatus = "PC_INTERRUPT_STATUS" @ 0x0028,
    /// Events, masked or not.
    InterruptRawStatus = "PC_INTERRUPT_RAW_STATUS" @ 0x002c,
}

registers! {
    /// Hardware version.
    Version = "PC_VERSION" @ Pc + 0x0000 {
        31:0 version: u32,
    }
    /// Hardware version number.
    VersionNum = "PC_VERSION_NUM" @ Pc + 0x0004 {
        31:0 version_num: u32,
    }
    /// Starts the fetch when written through MMIO.
    OperationEnable = "PC_OPERATION_ENABLE" @ Pc + 0x0008 {
        0:0 op_en: bool,
    }
    /// Where the register program is, in atoms, or slave mode.
    BaseAddress = "PC_BASE_ADDRESS" @ Pc + 0x0010 {
        31:4 pc_source_addr: u32,
        0:0 pc_sel: bool,
    }
    /// 128-bit beats to fetch, minus one.
    RegisterAmounts = "PC_REGISTER_AMOUNTS" @ Pc + 0x0014 {
        15:0 pc_data_amount: u32,
    }
    /// Tasks of one kick.
    TaskCon = "PC_TASK_CON" @ Pc + 0x0030 {
        14:14 kernel_set: bool,
        13:13 task_count_clear: bool,
        12:12 task_pp_en: bool,
        11:0 task_number: u32,
    }
    /// Offset added to task addresses; always 0.
    TaskDmaBaseAddr = "PC_TASK_DMA_BASE_ADDR" @ Pc + 0x0034 {
        31:4 dma_base_addr: u32,
    }
    /// Progress counter.
    TaskStatus = "PC_TASK_STATUS" @ Pc + 0x003c {
        27:0 task_status: u32,
    }
}
