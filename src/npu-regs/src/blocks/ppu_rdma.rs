//! PPU_RDMA, the pooling unit's reader.

control_registers!(PpuRdma, "PPU_RDMA", 0x7000);

registers! {
    /// Width, minus one.
    CubeInWidth = "PPU_RDMA_CUBE_IN_WIDTH" @ PpuRdma + 0x700c {
        12:0 cube_in_width: u32,
    }
    /// Height, minus one.
    CubeInHeight = "PPU_RDMA_CUBE_IN_HEIGHT" @ PpuRdma + 0x7010 {
        12:0 cube_in_height: u32,
    }
    /// Channels, minus one.
    CubeInChannel = "PPU_RDMA_CUBE_IN_CHANNEL" @ PpuRdma + 0x7014 {
        12:0 cube_in_channel: u32,
    }
    /// DMA address of the input.
    SrcBaseAddr = "PPU_RDMA_SRC_BASE_ADDR" @ PpuRdma + 0x701c {
        31:0 src_base_addr: u32,
    }
    /// Line stride in atoms.
    SrcLineStride = "PPU_RDMA_SRC_LINE_STRIDE" @ PpuRdma + 0x7024 {
        31:4 src_line_stride: u32,
    }
    /// Surface stride in atoms.
    SrcSurfStride = "PPU_RDMA_SRC_SURF_STRIDE" @ PpuRdma + 0x7028 {
        31:4 src_surf_stride: u32,
    }
    /// Input precision code of the reader.
    DataFormat = "PPU_RDMA_DATA_FORMAT" @ PpuRdma + 0x7030 {
        1:0 in_precision: u32,
    }
}
