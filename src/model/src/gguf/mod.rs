//! GGUF: the header of a language model, without its weights.
//!
//! ```text
//! magic, version, counts ─▶ metadata: key, type, value … ─▶ tensors: name, extents, type, offset … ─▶ (weights, not read)
//! ```
//! A header says what a model is and what it costs before anything is loaded. Everything that a [`Header`] holds was
//! checked: counts against what the file can hold, extents against overflow, and every tensor's place against the file.
//! SOURCE: ggml's docs/gguf.md and gguf.cpp.

mod facts;
mod types;
mod wire;

use std::io::BufRead;

use crate::{Error, Result};

pub use facts::{Header, Memory};

use facts::Facts;
use types::TensorType;
use wire::{Reader, Value};

/// Versions that are read. Version 1 counted in 32 bits, and nothing writes it any more.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;
/// Bytes between the starts of tensors where the file does not say.
const ALIGNMENT: u64 = 32;
/// The largest alignment; a file that says more is malformed.
const LARGEST_ALIGNMENT: u64 = 1 << 20;
/// Extents of a tensor. SOURCE: GGML_MAX_DIMS.
const DIMENSIONS: u32 = 4;
/// The smallest entry of the metadata: length of the key, one byte of it, type, one byte of value.
const SMALLEST_ENTRY: u64 = 8 + 1 + 4 + 1;
/// The smallest description of a tensor: length of the name, number of extents, one extent, type, offset.
const SMALLEST_TENSOR: u64 = 8 + 4 + 8 + 4 + 8;

/// A tensor as the header describes it.
#[derive(Debug)]
struct Tensor {
    index: usize,
    name: String,
    elements: u64,
    kind: &'static TensorType,
    bytes: u64,
    offset: u64,
}

/// Reads the header of a file of `file_bytes` bytes.
///
/// # Errors
/// [`Error::File`] or [`Error::Tensor`], with what is wrong and where.
pub fn read(file: impl BufRead, file_bytes: u64) -> Result<Header> {
    let mut reader = Reader::new(file, file_bytes);
    if reader.bytes::<4>("magic")? != *b"GGUF" {
        return Err(Error::file("it does not begin with GGUF"));
    }
    let version = reader.u32("version")?;
    if !VERSIONS.contains(&version) {
        // A file of a machine of the other byte order has its version in the upper half.
        let order = if version & 0xffff == 0 { "; the byte order seems to be the other one" } else { "" };
        return Err(Error::file(format!("GGUF version {version}, supported are 2 and 3{order}")));
    }
    let tensors = reader.count("number of tensors", SMALLEST_TENSOR)?;
    let entries = reader.count("number of metadata entries", SMALLEST_ENTRY)?;
    let facts = metadata(&mut reader, entries)?;
    let alignment = match facts.metadata.get("general.alignment") {
        None => ALIGNMENT,
        Some(&Value::Number(bytes)) if bytes.is_power_of_two() && bytes <= LARGEST_ALIGNMENT => bytes,
        Some(other) => return Err(Error::file(format!("general.alignment is {other:?}, no power of two to 1 MiB"))),
    };
    let tensors = (0..tensors).map(|index| tensor(&mut reader, index)).collect::<Result<Vec<_>>>()?;
    check_places(&tensors, reader.position(), alignment, file_bytes)?;
    facts.header(&tensors, version, file_bytes)
}

fn metadata(reader: &mut Reader<impl BufRead>, entries: usize) -> Result<Facts> {
    let mut facts = Facts::default();
    for index in 0..entries {
        let place = || format!("metadata entry {index}");
        let key = reader.string(&place(), wire::KEY_BYTES)?;
        let value = reader.value(&key)?;
        if facts.metadata.contains_key(&key) {
            return Err(Error::file(format!("{}: {key:?} is there twice", place())));
        }
        facts.metadata.insert(key, value);
    }
    Ok(facts)
}

fn tensor(reader: &mut Reader<impl BufRead>, index: usize) -> Result<Tensor> {
    let place = format!("tensor {index}");
    let name = reader.string(&place, wire::KEY_BYTES)?;
    let wrong = |reason: String| Error::Tensor { index, name: name.clone(), reason };
    let dimensions = reader.u32(&place)?;
    if !(1..=DIMENSIONS).contains(&dimensions) {
        return Err(wrong(format!("{dimensions} extents, at most {DIMENSIONS} are supported")));
    }
    let mut extents = Vec::new();
    for _ in 0..dimensions {
        extents.push(reader.u64(&place)?);
    }
    let kind = reader.u32(&place)?;
    let kind = types::find(kind).ok_or_else(|| wrong(format!("type {kind} is unknown")))?;
    let offset = reader.u64(&place)?;
    let elements = extents.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent));
    let elements = elements.filter(|&elements| elements > 0);
    let elements = elements.ok_or_else(|| wrong(format!("extents {extents:?} are 0 or too many")))?;
    if extents.first().is_none_or(|row| row % kind.block != 0) {
        return Err(wrong(format!("rows of extents {extents:?} are no blocks of {} for {}", kind.block, kind.name)));
    }
    let bytes = (elements / kind.block).checked_mul(kind.bytes);
    let bytes = bytes.ok_or_else(|| wrong(format!("extents {extents:?} are too many")))?;
    Ok(Tensor { index, name, elements, kind, bytes, offset })
}

/// Tensors follow each other without gaps or overlaps, in the order of their descriptions, and end inside the file.
fn check_places(tensors: &[Tensor], header_bytes: u64, alignment: u64, file_bytes: u64) -> Result<()> {
    let data = header_bytes.next_multiple_of(alignment);
    let mut names = std::collections::HashSet::new();
    let mut next = 0u64;
    for tensor in tensors {
        let wrong = |reason: String| Error::Tensor { index: tensor.index, name: tensor.name.clone(), reason };
        if !names.insert(&tensor.name) {
            return Err(wrong("the name is there twice".into()));
        }
        if tensor.offset != next {
            return Err(wrong(format!("it begins at {}, the one before ends at {next}", tensor.offset)));
        }
        let end = tensor.offset.checked_add(tensor.bytes).and_then(|end| data.checked_add(end));
        if end.is_none_or(|end| end > file_bytes) {
            let (offset, bytes) = (tensor.offset, tensor.bytes);
            return Err(wrong(format!("{bytes} bytes at {offset} lie outside the file of {file_bytes} bytes")));
        }
        // Inside the file, so far from the end of 64 bits.
        next = (tensor.offset + tensor.bytes).next_multiple_of(alignment);
    }
    Ok(())
}
