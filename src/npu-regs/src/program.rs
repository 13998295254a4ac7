//! A task's register program: typed registers in, command words out.

use crate::blocks::pc;
use crate::{BlockMask, FieldError, Register, RegisterInfo, Word};

/// Words of the trailer: link, amount, marker, enable. SOURCE: npu-spec 1.2.
const TRAILER: usize = 4;

/// Words of one task, in the order in which the program controller applies them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    words: Vec<Word>,
}

/// Where the program controller goes after a task of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// DMA address of the next task's first word, a multiple of 16.
    pub dma: u32,
    /// Words of the next task.
    pub words: usize,
}

impl Program {
    /// An empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a register write.
    ///
    /// # Errors
    /// A value wider than its field.
    pub fn push<R: Register>(&mut self, register: R) -> Result<(), FieldError> {
        self.words.push(Word::write(R::INFO, register.encode()?));
        Ok(())
    }

    /// Appends a write to a register that is one number of 32 bits.
    pub fn push_value(&mut self, register: &RegisterInfo, value: u32) {
        self.words.push(Word::write(register, value));
    }

    /// Ends the program: an empty link, the marker and the word that starts `mask`.
    pub fn finish(&mut self, mask: BlockMask) {
        self.words.extend([Word::NOP, Word::write(pc::RegisterAmounts::INFO, 0), Word::MARKER, Word::enable(mask)]);
    }

    /// Chains a finished program to the next task of the same kick.
    ///
    /// Only a kernel with batched submit may be given a chained program: another one kicks every task itself.
    ///
    /// # Errors
    /// A next task whose address or length its register cannot hold.
    pub fn link(&mut self, next: Link) -> Result<(), FieldError> {
        let base = pc::BaseAddress { pc_source_addr: next.dma >> 4, pc_sel: false };
        let amounts = pc::RegisterAmounts { pc_data_amount: beats_minus_one(next.words) };
        let trailer = self.words.len() - TRAILER;
        self.words[trailer] = Word::write(pc::BaseAddress::INFO, base.encode()?);
        self.words[trailer + 1] = Word::write(pc::RegisterAmounts::INFO, amounts.encode()?);
        Ok(())
    }

    /// The words.
    pub fn words(&self) -> &[Word] {
        &self.words
    }

    /// The words as the device reads them, little-endian.
    pub fn bytes(&self) -> impl Iterator<Item = u8> + '_ {
        self.words.iter().flat_map(|word| word.0.to_le_bytes())
    }

    /// Replaces the value of every write to `register`.
    pub fn patch(&mut self, register: &RegisterInfo, value: u32) {
        for word in &mut self.words {
            // CAST: the register's half of a word.
            if word.0 & 0xffff_0000_0000_ffff == Word::write(register, 0).0 {
                *word = Word::write(register, value);
            }
        }
    }
}

/// 128-bit beats that hold `words` words, minus one: the code of PC_REGISTER_AMOUNTS.
pub fn beats_minus_one(words: usize) -> u32 {
    u32::try_from(words.div_ceil(2).saturating_sub(1)).unwrap_or(u32::MAX)
}
