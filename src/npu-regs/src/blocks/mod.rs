//! One module per hardware block, one struct per register.
//!
//! SOURCE: npu-spec Appendix A, which merges the TRM, the kernel's and Mesa's register lists.

/// Status, pointer and enable registers, which every block has at its base.
macro_rules! control_registers {
    ($block:ident, $prefix:literal, $base:literal) => {
        registers! {
            table CONTROL;
            /// State of the two register groups.
            SStatus = $prefix "_S_STATUS" @ $block + $base {
                17:16 status_1: u32,
                1:0 status_0: u32,
            }
            /// Which of the two register groups is written, and which executes.
            SPointer = $prefix "_S_POINTER" @ $block + $base + 0x4 {
                16:16 executer: bool,
                5:5 executer_pp_clear: bool,
                4:4 pointer_pp_clear: bool,
                3:3 pointer_pp_mode: bool,
                2:2 executer_pp_en: bool,
                1:1 pointer_pp_en: bool,
                0:0 pointer: bool,
            }
            /// Starts the block when written through MMIO.
            OperationEnable = $prefix "_OPERATION_ENABLE" @ $block + $base + 0x8 {
                0:0 op_en: bool,
            }
        }
    };
}

/// Registers that are one 32-bit number.
macro_rules! value_registers {
    ($block:ident, $doc:literal; $($name:ident = $text:literal @ $offset:literal,)*) => {
        registers! {
            table VALUES;
            $(
                #[doc = $doc]
                $name = $text @ $block + $offset {
                    31:0 value: u32,
                }
            )*
        }
    };
}

/// The four interrupt registers, which share one bit list.
macro_rules! interrupt_registers {
    ($($(#[$doc:meta])* $name:ident = $text:literal @ $offset:literal,)*) => {
        registers! {
            table INTERRUPTS;
            $(
                $(#[$doc])*
                $name = $text @ Pc + $offset {
                    13:13 dma_write_error: bool,
                    12:12 dma_read_error: bool,
                    11:11 ppu_1: bool,
                    10:10 ppu_0: bool,
                    9:9 dpu_1: bool,
                    8:8 dpu_0: bool,
                    7:7 core_1: bool,
                    6:6 core_0: bool,
                    5:5 cna_csc_1: bool,
                    4:4 cna_csc_0: bool,
                    3:3 cna_weight_1: bool,
                    2:2 cna_weight_0: bool,
                    1:1 cna_feature_1: bool,
                    0:0 cna_feature_0: bool,
                }
            )*
        }
    };
}

/// The AXI configuration registers, which DDMA and SDMA share.
macro_rules! axi_registers {
    ($block:ident, $prefix:literal, $base:literal) => {
        registers! {
            /// Outstanding transactions.
            CfgOutstanding = $prefix "_CFG_OUTSTANDING" @ $block + $base + 0x000 {
                15:8 wr_os_cnt: u32,
                7:0 rd_os_cnt: u32,
            }
            /// Read arbitration weights.
            RdWeight0 = $prefix "_RD_WEIGHT_0" @ $block + $base + 0x004 {
                31:24 rd_weight_pdp: u32,
                23:16 rd_weight_dpu: u32,
                15:8 rd_weight_kernel: u32,
                7:0 rd_weight_feature: u32,
            }
            /// Write arbitration weights.
            WrWeight0 = $prefix "_WR_WEIGHT_0" @ $block + $base + 0x008 {
                15:8 wr_weight_pdp: u32,
                7:0 wr_weight_dpu: u32,
            }
            /// Identifiers of failed responses.
            CfgIdError = $prefix "_CFG_ID_ERROR" @ $block + $base + 0x00c {
                9:6 wr_resp_id: u32,
                4:0 rd_resp_id: u32,
            }
            /// Read arbitration weight of the program controller.
            RdWeight1 = $prefix "_RD_WEIGHT_1" @ $block + $base + 0x010 {
                7:0 rd_weight_pc: u32,
            }
            /// Clears the FIFOs.
            CfgDmaFifoClr = $prefix "_CFG_DMA_FIFO_CLR" @ $block + $base + 0x014 {
                0:0 dma_fifo_clr: bool,
            }
            /// Arbitration model.
            CfgDmaArb = $prefix "_CFG_DMA_ARB" @ $block + $base + 0x018 {
                9:9 wr_arbit_model: bool,
                8:8 rd_arbit_model: bool,
                6:4 wr_fix_arb: u32,
                2:0 rd_fix_arb: u32,
            }
            /// Quality of service of reads.
            CfgDmaRdQos = $prefix "_CFG_DMA_RD_QOS" @ $block + $base + 0x020 {
                9:8 rd_pc_qos: u32,
                7:6 rd_ppu_qos: u32,
                5:4 rd_dpu_qos: u32,
                3:2 rd_kernel_qos: u32,
                1:0 rd_feature_qos: u32,
            }
            /// AXI read attributes.
            CfgDmaRdCfg = $prefix "_CFG_DMA_RD_CFG" @ $block + $base + 0x024 {
                12:12 rd_arlock: bool,
                11:8 rd_arcache: u32,
                7:5 rd_arprot: u32,
                4:3 rd_arburst: u32,
                2:0 rd_arsize: u32,
            }
            /// AXI write attributes.
            CfgDmaWrCfg = $prefix "_CFG_DMA_WR_CFG" @ $block + $base + 0x028 {
                12:12 wr_awlock: bool,
                11:8 wr_awcache: u32,
                7:5 wr_awprot: u32,
                4:3 wr_awburst: u32,
                2:0 wr_awsize: u32,
            }
            /// AXI write strobes.
            CfgDmaWstrb = $prefix "_CFG_DMA_WSTRB" @ $block + $base + 0x02c {
                31:0 wr_wstrb: u32,
            }
            /// Idle state.
            CfgStatus = $prefix "_CFG_STATUS" @ $block + $base + 0x030 {
                8:8 idel: bool,
            }
        }
    };
}

pub mod cna;
pub mod core;
pub mod ddma;
pub mod dpu;
pub mod dpu_rdma;
pub mod global;
pub mod pc;
pub mod ppu;
pub mod ppu_rdma;
pub mod rk3576;
pub mod sdma;
