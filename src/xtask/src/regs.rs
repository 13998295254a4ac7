//! `cargo xtask regs`: a register program in words.
//!
//! ```text
//! little-endian u64 words ─▶ npu_regs::Word ─▶ offset, word, register and fields, one line each
//! ```

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use npu_regs::{Op, Word};

/// Prints the program in `file`. Fails where a word has no meaning, after all words are printed.
///
/// # Errors
/// A file that cannot be read, or output that cannot be written.
pub(crate) fn run(file: &Path) -> Result<ExitCode> {
    let bytes = std::fs::read(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let malformed = print(&bytes, &mut out).and_then(|malformed| out.flush().map(|()| malformed));
    match malformed {
        Ok(0) => Ok(ExitCode::SUCCESS),
        Ok(malformed) => {
            eprintln!("xtask: {malformed} malformed in {}", file.display());
            Ok(ExitCode::FAILURE)
        }
        // The reader has seen enough, as `head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error).context("the program cannot be printed"),
    }
}

/// Prints the words of `bytes` and returns how many things in it have no meaning.
fn print(bytes: &[u8], out: &mut impl Write) -> io::Result<usize> {
    let mut malformed = 0;
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = Word(u64::from_le_bytes(*word));
        writeln!(out, "{:#06x}  {:016x}  {word}", index * 8, word.0)?;
        malformed += usize::from(!is_meaningful(word));
    }
    if !rest.is_empty() {
        writeln!(out, "{:#06x}  ? {} bytes left, less than a word", words.len() * 8, rest.len())?;
        malformed += 1;
    }
    Ok(malformed)
}

/// Whether the word decodes, sets no reserved bit and holds only known values.
fn is_meaningful(word: Word) -> bool {
    match word.decode() {
        Ok(Op::Write { register, value }) => {
            value & !register.mask() == 0
                && register.fields.iter().all(|field| (field.text)(field.bits(value)).is_some())
        }
        Ok(_) => true,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use npu_regs::{BlockMask, cna};
    use npu_regs::{ConvMode, Program};

    use super::print;

    fn check(bytes: &[u8], malformed: usize, text: Expect) {
        let mut out = Vec::new();
        assert_eq!(print(bytes, &mut out).unwrap(), malformed);
        text.assert_eq(&String::from_utf8(out).unwrap());
    }

    #[test]
    fn a_program_is_printed_with_offsets_registers_and_fields() {
        let mut program = Program::new();
        program.push(cna::ConvCon1 { conv_mode: ConvMode::Depthwise, ..Default::default() }).unwrap();
        program.finish(BlockMask::CONVOLUTION);
        check(
            &program.bytes().collect::<Vec<_>>(),
            0,
            expect![[r#"
            0x0000  020100000003100c  CNA_CONV_CON1 conv_mode=Depthwise
            0x0008  0000000000000000  NOP
            0x0010  0101000000000014  PC_REGISTER_AMOUNTS 0
            0x0018  0041000000000000  MARKER
            0x0020  00810000001d0008  ENABLE CNA+CORE+DPU+DPU_RDMA
        "#]],
        );
    }

    #[test]
    fn malformed_words_are_counted_and_the_rest_is_still_printed() {
        let words = [0x7777_0000_0000_0000_u64, 0x0201_ffff_ffff_100c, 0x0081_0000_0080_0008, 0];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend([1, 2, 3]);
        check(
            &bytes,
            4,
            expect![[r#"
            0x0000  7777000000000000  ? word 0x7777000000000000: unknown target 0x7777
            0x0008  0201ffffffff100c  CNA_CONV_CON1 nonalign_dma=true group_line_off=true deconv=true argb_in=15 proc_precision=Tf32 in_precision=Tf32 conv_mode=?0xf reserved=0x9ffe0c00
            0x0010  0081000000800008  ? word 0x0081000000800008: enable mask 0x80 names unknown blocks
            0x0018  0000000000000000  NOP
            0x0020  ? 3 bytes left, less than a word
        "#]],
        );
    }
}
