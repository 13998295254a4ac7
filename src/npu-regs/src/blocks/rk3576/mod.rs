//! The registers of the RK3576's NPU.
//!
//! Command words, block addresses, pointers and the pooling unit are those of the RK3588; the convolution's three blocks and
//! their reader are laid out anew. Nobody has published names for them, so those here are ours. A program writes every
//! register of its blocks, as this table has them.
//!
//! SOURCE: npu-spec-rk3576 2 and 6 [DUMP, HW].

pub mod cna;
pub mod core;
pub mod dpu;
pub mod dpu_rdma;
pub mod ppu;
pub mod ppu_rdma;

use crate::blocks::{
    cna as first_cna, core as first_core, dpu as first_dpu, dpu_rdma as first_dpu_rdma, pc, ppu as first_ppu,
    ppu_rdma as first_ppu_rdma,
};
use crate::{Register, RegisterInfo};

/// The table, by block.
pub(crate) const REGISTERS: &[&[&RegisterInfo]] = &[
    pc::INTERRUPTS,
    pc::TABLE,
    first_cna::CONTROL,
    cna::VALUES,
    cna::TABLE,
    first_core::CONTROL,
    core::VALUES,
    core::TABLE,
    first_dpu::CONTROL,
    dpu::VALUES,
    dpu::LUT,
    dpu::TABLE,
    first_dpu_rdma::CONTROL,
    dpu_rdma::VALUES,
    first_ppu::CONTROL,
    ppu::SHARED,
    ppu::VALUES,
    first_ppu_rdma::CONTROL,
    ppu_rdma::SHARED,
    ppu_rdma::VALUES,
];

/// Words whose bits are not understood, which together choose a datapath. Every known program of the path has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// [`cna::Mode`].
    pub mode: u32,
    /// [`core::Mode`].
    pub core: u32,
    /// [`dpu::FeatureMode`].
    pub feature_mode: u32,
    /// [`dpu::Format`].
    pub format: u32,
    /// [`dpu::Writer::code`].
    pub writer: u32,
    /// [`dpu::WriterMode`].
    pub writer_mode: u32,
    /// [`dpu::Unnamed4044`].
    pub unnamed_4044: u32,
    /// [`dpu::Bias`].
    pub bias: u32,
    /// [`dpu_rdma::Operands`].
    pub operands: u32,
    /// [`dpu_rdma::Mode`].
    pub reader: u32,
}

impl Path {
    /// A direct convolution of 8-bit integers with 8-bit results.
    pub const DIRECT: Self = Self {
        mode: 0,
        core: 0x1000_0001,
        feature_mode: 0x4000_0004,
        format: 0,
        writer: 0x710,
        writer_mode: 0x0012_0080,
        unnamed_4044: 1,
        bias: 0x8001_1111,
        operands: 0x710,
        reader: 0x4000_0010,
    };
    /// The same with the sums as results, of half the output channels.
    pub const WIDE: Self = Self { format: 0x8000_0004, ..Self::DIRECT };
    /// A depthwise convolution of 8-bit integers.
    pub const DEPTHWISE: Self = Self {
        mode: 1,
        core: 0x1000_000a,
        feature_mode: 0x4000_000c,
        format: 0,
        writer: 0x310,
        writer_mode: 0x0010_0092,
        unnamed_4044: 0,
        bias: 0x0001_3333,
        operands: 0x510,
        reader: 0x4000_0012,
    };
    /// A direct convolution of half precision.
    pub const HALF: Self = Self {
        mode: 0x0020_0120,
        core: 0x1000_0200,
        feature_mode: 0x4000_0004,
        format: 0x4000_0002,
        writer: 0x710,
        writer_mode: 0x0010_0092,
        unnamed_4044: 1,
        bias: 0x0002_1111,
        operands: 0x710,
        reader: 0x4001_0050,
    };
    /// Every path.
    pub const ALL: [Self; 4] = [Self::DIRECT, Self::WIDE, Self::DEPTHWISE, Self::HALF];
}

/// Registers that hold the same in every program of a convolution, beside the [table lookup](dpu::LUT)'s zeros.
pub const VERBATIM: &[(&RegisterInfo, u32)] = &[
    (cna::Grains::INFO, 0xfff),
    (cna::Converter::INFO, 0xb),
    (cna::ConverterScale0::INFO, 0x0001_0001),
    (cna::ConverterScale1::INFO, 0x0001_0001),
    (cna::ConverterOffset0::INFO, 0),
    (cna::ConverterOffset1::INFO, 0),
    (cna::ConverterOffset2::INFO, 0),
    (cna::Unnamed1060::INFO, 0),
    (cna::Unnamed1064::INFO, 0),
    (cna::Unnamed1068::INFO, 0),
    (cna::Unnamed106C::INFO, 0),
    (cna::Unnamed1070::INFO, 0),
    (cna::Unnamed1074::INFO, 0),
    (cna::Bursts::INFO, 0x000f_000f),
    (cna::Unnamed1100::INFO, 0),
    (cna::Unnamed1104::INFO, 0),
    (cna::Unnamed1140::INFO, 0),
    (cna::Unnamed1144::INFO, 0),
    (cna::Unnamed109C::INFO, 0),
    (core::Unnamed3024::INFO, 0),
    (dpu::Low4048::INFO, LOW),
    (dpu::High404C::INFO, HIGH),
    (dpu::Low4058::INFO, LOW),
    (dpu::High405C::INFO, HIGH),
    (dpu::Norm::INFO, 0x903),
    (dpu::Low406C::INFO, LOW),
    (dpu::High4070::INFO, HIGH),
    (dpu::Low4074::INFO, LOW),
    (dpu::High4078::INFO, HIGH),
    (dpu::Element::INFO, 0x0100_41c1),
    (dpu::Unnamed4080::INFO, 0),
    (dpu::Unnamed4084::INFO, 1),
    (dpu::Low4088::INFO, LOW),
    (dpu::High408C::INFO, HIGH),
    (dpu::Unnamed4090::INFO, 0),
    (dpu::Unnamed4094::INFO, 0),
    (dpu::Unnamed409C::INFO, 0),
    (dpu::Low40A4::INFO, LOW),
    (dpu::High40A8::INFO, HIGH),
    (dpu::Unnamed40C0::INFO, 0x0444_0100),
    (dpu::Unnamed40D0::INFO, 0x0040_ffff),
    (dpu_rdma::Unnamed5028::INFO, 0),
];

/// The lowest and the highest value of 32 bits.
const LOW: u32 = 0x8000_0000;
const HIGH: u32 = 0x7fff_ffff;

/// The RDMA's code of an element-wise operand that is not read, of integers and of half precision.
pub const NO_ELEMENT: [u32; 2] = [0x41, 1];
/// [`cna::CbufMode::any`] as known programs have it.
pub const CBUF_MODE: u32 = 0x404;
/// [`cna::Chain::code`].
pub const CHAIN: u32 = 7;
/// What known programs write into the pooling reader's format.
pub const POOL_FORMAT: u32 = 0x40;
