//! PPU, planar pooling: as on the RK3588, but for the pad values.

use crate::blocks::ppu;
use crate::{Register, RegisterInfo};

/// Registers that are the RK3588's.
pub(crate) const SHARED: &[&RegisterInfo] = &[
    ppu::DataCubeInWidth::INFO,
    ppu::DataCubeInHeight::INFO,
    ppu::DataCubeInChannel::INFO,
    ppu::DataCubeOutWidth::INFO,
    ppu::DataCubeOutHeight::INFO,
    ppu::DataCubeOutChannel::INFO,
    ppu::OperationModeCfg::INFO,
    ppu::PoolingKernelCfg::INFO,
    ppu::RecipKernelWidth::INFO,
    ppu::RecipKernelHeight::INFO,
    ppu::PoolingPaddingCfg::INFO,
    ppu::DstBaseAddr::INFO,
    ppu::DstSurfStride::INFO,
    ppu::DataFormat::INFO,
    ppu::MiscCtrl::INFO,
];

value_registers! {
    Ppu, "What so many neighbouring cells outside add up to, in 19 bits.";
    Pad1 = "PPU_PAD_1" @ 0x6044,
    Pad2 = "PPU_PAD_2" @ 0x6048,
    Pad3 = "PPU_PAD_3" @ 0x604c,
    Pad4 = "PPU_PAD_4" @ 0x6050,
}
