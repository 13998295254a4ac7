//! The 64-bit command word that the program controller fetches: `target << 48 | value << 16 | register`.

use std::fmt;

use crate::{Block, Layout, RegisterInfo};

/// Target of the marker that must stand right before the enable word. SOURCE: npu-spec 1.1 [HW].
const MARKER: u16 = 0x0041;
/// Target of the enable word.
const ENABLE: u16 = 0x0081;
/// PC_OPERATION_ENABLE, the register of the enable word.
const ENABLE_REGISTER: u16 = 0x0008;

/// A command word as it lies in memory.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Word(pub u64);

/// What a command word does.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Nothing.
    Nop,
    /// Writes a register.
    Write {
        /// The register.
        register: &'static RegisterInfo,
        /// Its new value.
        value: u32,
    },
    /// Arms the enable word that follows.
    Marker,
    /// Starts the blocks of the mask.
    Enable(BlockMask),
}

/// A command word without meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WordError {
    /// The target names no block.
    #[error("word {word:#018x}: unknown target {target:#06x}")]
    UnknownTarget {
        /// The word.
        word: u64,
        /// Its target.
        target: u16,
    },
    /// The block has no such register.
    #[error("word {word:#018x}: no register at {offset:#06x} of {block:?}")]
    UnknownRegister {
        /// The word.
        word: u64,
        /// The block.
        block: Block,
        /// The offset in the core's window.
        offset: u16,
    },
    /// The enable mask names a block that does not exist.
    #[error("word {word:#018x}: enable mask {mask:#x} names unknown blocks")]
    UnknownBlocks {
        /// The word.
        word: u64,
        /// The mask.
        mask: u32,
    },
    /// A marker or enable word carries what it must not.
    #[error("word {word:#018x}: malformed marker or enable word")]
    Malformed {
        /// The word.
        word: u64,
    },
}

/// Which blocks an enable word starts, in the layout of GLOBAL_OPERATION_ENABLE.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct BlockMask(u32);

impl BlockMask {
    /// A convolution or matmul: CNA, CORE, DPU and its reader.
    pub const CONVOLUTION: Self = Self(0x1d);
    /// The DPU fed from memory.
    pub const FLYING: Self = Self(0x18);
    /// Pooling.
    pub const POOLING: Self = Self(0x60);

    /// The mask of these bits, or `None` where a bit names no block.
    pub const fn new(bits: u32) -> Option<Self> {
        if bits & !0x7d != 0 {
            return None;
        }
        Some(Self(bits))
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether `block` takes part.
    pub const fn contains(self, block: Block) -> bool {
        match block.enable_bit() {
            Some(bit) => self.0 & (1 << bit) != 0,
            None => false,
        }
    }
}

impl fmt::Debug for BlockMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for block in Block::ALL {
            if self.contains(block) {
                write!(f, "{separator}{}", block.name())?;
                separator = "+";
            }
        }
        if self.0 == 0 { f.write_str("none") } else { Ok(()) }
    }
}

impl Word {
    /// The word that does nothing.
    pub const NOP: Self = Self(0);
    /// The word that arms the enable word.
    pub const MARKER: Self = Self((MARKER as u64) << 48);

    /// A register write.
    pub const fn write(register: &RegisterInfo, value: u32) -> Self {
        // CAST: widening.
        Self((register.block.target() as u64) << 48 | (value as u64) << 16 | register.offset as u64)
    }

    /// The word that starts the blocks of `mask`.
    pub const fn enable(mask: BlockMask) -> Self {
        // CAST: widening.
        Self((ENABLE as u64) << 48 | (mask.bits() as u64) << 16 | ENABLE_REGISTER as u64)
    }

    /// The word as text, as the chip of `layout` takes it.
    pub fn text(self, layout: Layout) -> impl fmt::Display {
        Text { word: self, layout }
    }

    /// Target, value and register.
    const fn split(self) -> (u16, u32, u16) {
        // CAST: the shifts leave 16, 32 and 16 bits.
        ((self.0 >> 48) as u16, (self.0 >> 16) as u32, self.0 as u16)
    }

    /// What the word does on an RK3588.
    ///
    /// # Errors
    /// A target, register or mask that does not exist.
    pub fn decode(self) -> Result<Op, WordError> {
        self.decode_as(Layout::Rk3588)
    }

    /// What the word does on the chip of `layout`.
    ///
    /// # Errors
    /// A target, register or mask that does not exist there.
    pub fn decode_as(self, layout: Layout) -> Result<Op, WordError> {
        let word = self.0;
        if word == 0 {
            return Ok(Op::Nop);
        }
        let (target, value, offset) = self.split();
        match target {
            MARKER if self == Self::MARKER => return Ok(Op::Marker),
            ENABLE if offset == ENABLE_REGISTER => {
                let mask = BlockMask::new(value).ok_or(WordError::UnknownBlocks { word, mask: value })?;
                return Ok(Op::Enable(mask));
            }
            MARKER | ENABLE => return Err(WordError::Malformed { word }),
            _ => {}
        }
        let block = Block::from_target(target).ok_or(WordError::UnknownTarget { word, target })?;
        let register = layout.lookup(block, offset).ok_or(WordError::UnknownRegister { word, block, offset })?;
        Ok(Op::Write { register, value })
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// The word as text, as an RK3588 takes it.
impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text(Layout::Rk3588).fmt(f)
    }
}

/// A word as the chip of a layout takes it: the register's name and its non-zero fields,
/// `CNA_CONV_CON1 conv_mode=Depthwise`.
#[derive(Clone, Copy, Debug)]
struct Text {
    word: Word,
    layout: Layout,
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.word.decode_as(self.layout) {
            Ok(Op::Nop) => f.write_str("NOP"),
            Ok(Op::Marker) => f.write_str("MARKER"),
            Ok(Op::Enable(mask)) => write!(f, "ENABLE {mask:?}"),
            Ok(Op::Write { register, value }) => {
                f.write_str(register.name)?;
                if value == 0 {
                    return f.write_str(" 0");
                }
                for field in register.fields {
                    let bits = field.bits(value);
                    if bits == 0 {
                        continue;
                    }
                    match (field.text)(bits) {
                        Some(text) => write!(f, " {}={text}", field.name)?,
                        None => write!(f, " {}=?{bits:#x}", field.name)?,
                    }
                }
                match value & !register.mask() {
                    0 => Ok(()),
                    reserved => write!(f, " reserved={reserved:#x}"),
                }
            }
            Err(error) => write!(f, "? {error}"),
        }
    }
}
