//! PPU_RDMA, the pooling unit's reader: as on the RK3588, but for the code of its format.

use crate::blocks::ppu_rdma;
use crate::{Register, RegisterInfo};

/// Registers that are the RK3588's.
pub(crate) const SHARED: &[&RegisterInfo] = &[
    ppu_rdma::CubeInWidth::INFO,
    ppu_rdma::CubeInHeight::INFO,
    ppu_rdma::CubeInChannel::INFO,
    ppu_rdma::SrcBaseAddr::INFO,
    ppu_rdma::SrcLineStride::INFO,
    ppu_rdma::SrcSurfStride::INFO,
];

value_registers! {
    PpuRdma, "Bits that are not understood.";
    Format = "PPU_RDMA_FORMAT" @ 0x7030,
}
