//! DPU_RDMA, the reader of the DPU's operands.

value_registers! {
    DpuRdma, "A whole number, or bits that are not understood.";
    Width = "DPU_RDMA_WIDTH" @ 0x500c,
    Height = "DPU_RDMA_HEIGHT" @ 0x5010,
    Channels = "DPU_RDMA_CHANNELS" @ 0x5014,
    Operands = "DPU_RDMA_OPERANDS" @ 0x501c,
    OperandAddress = "DPU_RDMA_OPERAND_ADDRESS" @ 0x5020,
    ShiftAddress = "DPU_RDMA_SHIFT_ADDRESS" @ 0x5024,
    Unnamed5028 = "DPU_RDMA_UNNAMED_5028" @ 0x5028,
    Element = "DPU_RDMA_ELEMENT" @ 0x5034,
    Mode = "DPU_RDMA_MODE" @ 0x5044,
}
