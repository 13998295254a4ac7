//! DPU_RDMA, the readers of the DPU: per-channel operands and the element-wise operand.

use npu_regs::{Block, EwDataMode, dpu_rdma as rdma};

use crate::fault::{Result, agree, proven, simulated};
use crate::memory::{ATOM, Space};
use crate::quirks::{Quirk, hang};
use crate::registers::RegisterFile;

/// Channels whose three operands lie together. SOURCE: npu-spec 3.4.
const OPERAND_GROUP: usize = 8;
/// Bytes of such a group.
const OPERAND_GROUP_BYTES: usize = 64;

/// Operands of the BS stage, one per channel; empty where they are not read. Bits as stored.
#[derive(Debug, Default)]
pub(crate) struct PerChannel {
    /// Addend: 32-bit integer or single precision.
    pub(crate) addend: Vec<u32>,
    /// Weight zero-point compensation.
    pub(crate) compensation: Vec<i16>,
    /// Multiplier: 16-bit integer or half precision.
    pub(crate) multiplier: Vec<u16>,
    /// Bytes read.
    pub(crate) bytes: u64,
}

impl PerChannel {
    /// Reads what BRDMA is told to read, for this many channels.
    pub(crate) fn read(registers: &RegisterFile, space: &Space, channels: usize) -> Result<Self> {
        let base = registers.get::<rdma::BsBaseAddr>()?.bs_base_addr.into();
        match registers.get::<rdma::Bcfg>()?.brdma_data_use {
            0 => Ok(Self::default()),
            1 => Self::read_addends(space, base, channels),
            7 => Self::read_groups(space, base, channels),
            _ => Err(crate::Fault::Unimplemented("this choice of BRDMA operands")),
        }
    }

    fn read_addends(space: &Space, base: u64, channels: usize) -> Result<Self> {
        let bytes = space.read_vec(Block::DpuRdma, base, 4 * channels as u64)?;
        Ok(Self { addend: words(&bytes), bytes: bytes.len() as u64, ..Self::default() })
    }

    fn read_groups(space: &Space, base: u64, channels: usize) -> Result<Self> {
        let len = channels.div_ceil(OPERAND_GROUP) * OPERAND_GROUP_BYTES;
        let bytes = space.read_vec(Block::DpuRdma, base, len as u64)?;
        let mut operands = Self { bytes: len as u64, ..Self::default() };
        for group in bytes.chunks_exact(OPERAND_GROUP_BYTES) {
            operands.addend.extend(words(&group[..32]));
            operands.compensation.extend(shorts(&group[32..48]).map(u16::cast_signed));
            operands.multiplier.extend(shorts(&group[48..]));
        }
        Ok(operands)
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

fn shorts(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes.chunks_exact(2).map(|short| u16::from_le_bytes([short[0], short[1]]))
}

/// A cube of elements as it lies in memory: planes of atoms.
#[derive(Debug)]
pub(crate) struct Cube {
    bytes: Vec<u8>,
    pixels: usize,
    element: usize,
}

impl Cube {
    /// Reads `planes` planes of `pixels` atoms from these addresses.
    fn read(space: &Space, planes: impl Iterator<Item = u64>, pixels: usize, element: usize) -> Result<Self> {
        let mut bytes = Vec::new();
        for plane in planes {
            bytes.extend(space.read_vec(Block::DpuRdma, plane, (pixels * ATOM) as u64)?);
        }
        Ok(Self { bytes, pixels, element })
    }

    /// The bits of an element, sign-extended.
    pub(crate) fn bits(&self, channel: usize, pixel: usize) -> i32 {
        let lanes = ATOM / self.element;
        let at = (channel / lanes * self.pixels + pixel) * ATOM + channel % lanes * self.element;
        let bytes = &self.bytes[at..at + self.element];
        match *bytes {
            [a] => a.cast_signed().into(),
            [a, b] => i16::from_le_bytes([a, b]).into(),
            // PANIC: elements have 1, 2 or 4 bytes.
            _ => i32::from_le_bytes(bytes.try_into().expect("four bytes")),
        }
    }

    /// Bytes read.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// Extents of what the DPU works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extents {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) channels: usize,
}

impl Extents {
    /// Pixels of a plane.
    pub(crate) fn pixels(&self) -> usize {
        self.width * self.height
    }

    /// Checks that DPU_RDMA is told the same.
    pub(crate) fn check(&self, registers: &RegisterFile) -> Result<()> {
        let height = registers.get::<rdma::DataCubeHeight>()?;
        agree("widths of DPU and DPU_RDMA", self.width as u64 - 1, registers.get::<rdma::DataCubeWidth>()?.width)?;
        agree("heights of DPU and DPU_RDMA", self.height as u64 - 1, height.height)?;
        let channel = registers.get::<rdma::DataCubeChannel>()?.channel;
        agree("channels of DPU and DPU_RDMA", self.channels as u64 - 1, channel)?;
        simulated(height.ew_line_notch_addr == 0, "element-wise line notch")
    }
}

/// The element-wise operand of a convolution: even planes by the main reader, odd ones by the element-wise reader.
///
/// SOURCE: npu-spec 4.7. QUIRK(Q22): the notches decide where a plane is read.
pub(crate) fn read_fused(registers: &RegisterFile, space: &Space, extents: Extents, element: usize) -> Result<Cube> {
    let mode = registers.get::<rdma::FeatureModeCfg>()?;
    proven(mode.comb_use == 5 && !mode.mrdma_disable, "a fused operand that is not read by alternate planes")?;
    check_element_reader(registers)?;
    let pixels = extents.pixels() as u64;
    let even = u64::from(registers.get::<rdma::SrcBaseAddr>()?.src_base_addr);
    let odd = u64::from(registers.get::<rdma::EwBaseAddr>()?.ew_base_addr);
    let even_notch = u64::from(registers.get::<rdma::SurfNotch>()?.surf_notch_addr);
    let odd_notch = u64::from(registers.get::<rdma::EwSurfNotch>()?.ew_surf_notch);
    let planes = extents.channels.div_ceil(ATOM / element) as u64;
    let address = |plane| {
        let (base, notch) = if plane % 2 == 0 { (even, even_notch) } else { (odd, odd_notch) };
        base + plane / 2 * (pixels + notch) * ATOM as u64
    };
    Cube::read(space, (0..planes).map(address), extents.pixels(), element)
}

/// The second operand of a flying operation: one plane.
pub(crate) fn read_second(registers: &RegisterFile, space: &Space, extents: Extents, element: usize) -> Result<Cube> {
    let combination = registers.get::<rdma::FeatureModeCfg>()?.comb_use;
    if combination % 2 == 1 {
        return Err(hang(Quirk::Q20));
    }
    proven(combination == 4, "two operands that are not read apart")?;
    check_element_reader(registers)?;
    let base = registers.get::<rdma::EwBaseAddr>()?.ew_base_addr.into();
    Cube::read(space, std::iter::once(base), extents.pixels(), element)
}

/// The main operand of a flying operation: one plane.
pub(crate) fn read_main(registers: &RegisterFile, space: &Space, extents: Extents, element: usize) -> Result<Cube> {
    let base = registers.get::<rdma::SrcBaseAddr>()?.src_base_addr.into();
    Cube::read(space, std::iter::once(base), extents.pixels(), element)
}

fn check_element_reader(registers: &RegisterFile) -> Result<()> {
    let reader = registers.get::<rdma::Ecfg>()?;
    proven(!reader.erdma_disable, "an element-wise operand whose reader is off")?;
    simulated(reader.erdma_data_mode == EwDataMode::PerPixel, "per-channel element-wise operands")?;
    simulated(!reader.erdma_surf_mode && !reader.erdma_nonalign, "this mode of the element-wise reader")
}
