//! GLOBAL, the enable bitmap of all blocks.

registers! {
    /// Blocks that take part, one bit each.
    OperationEnable = "GLOBAL_OPERATION_ENABLE" @ Global + 0xf008 {
        6:6 ppu_rdma_op_en: bool,
        5:5 ppu_op_en: bool,
        4:4 dpu_rdma_op_en: bool,
        3:3 dpu_op_en: bool,
        2:2 core_op_en: bool,
        0:0 cna_op_en: bool,
    }
}
