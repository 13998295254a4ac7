//! Bytes to numbers, texts and values: every length is checked against what the file can still hold.

use std::io::{self, BufRead, Read as _};

use crate::{Error, Result};

/// The longest key, and the longest name of a tensor. SOURCE: docs/gguf.md: keys have at most 2^16 - 1 bytes.
pub(super) const KEY_BYTES: u64 = 65_535;
/// The longest text that is kept; what is longer is passed over.
const TEXT_BYTES: u64 = 64 << 10;
/// The longest list of numbers that is kept: one number per layer. Longer lists are vocabularies, of which the length matters.
const LIST_LENGTH: u64 = 4096;
/// Arrays in arrays.
const DEPTH: u32 = 4;

/// A value of the metadata, as far as anybody here wants it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// A whole number of 0 or more.
    Number(u64),
    /// A text.
    Text(String),
    /// A list of whole numbers of 0 or more.
    Numbers(Vec<u64>),
    /// A list of something else, or a long one.
    List {
        /// Its length.
        length: u64,
    },
    /// Something else, which was passed over.
    Other,
}

/// A file that is read from its start.
#[derive(Debug)]
pub(super) struct Reader<R> {
    file: R,
    position: u64,
    file_bytes: u64,
}

impl<R: BufRead> Reader<R> {
    pub(super) fn new(file: R, file_bytes: u64) -> Self {
        Self { file, position: 0, file_bytes }
    }

    /// Bytes that were read.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    fn left(&self) -> u64 {
        self.file_bytes.saturating_sub(self.position)
    }

    /// Takes `bytes` bytes of the file's.
    fn advance(&mut self, bytes: u64, what: &str) -> Result<()> {
        if bytes > self.left() {
            return Err(Error::file(format!("{what}: the file ends at byte {}", self.file_bytes)));
        }
        self.position += bytes;
        Ok(())
    }

    pub(super) fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        // CAST: N is at most 8.
        self.advance(N as u64, what)?;
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes).map_err(|error| unreadable(what, &error))?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes(what)?))
    }

    /// A number of things that have at least `smallest` bytes each.
    pub(super) fn count(&mut self, what: &str, smallest: u64) -> Result<usize> {
        let count = self.u64(what)?;
        if count > self.left() / smallest {
            return Err(Error::file(format!("{what} is {count}, more than the file can hold")));
        }
        usize::try_from(count).map_err(|_| Error::file(format!("{what} is {count}")))
    }

    /// A text that must be there.
    pub(super) fn string(&mut self, what: &str, limit: u64) -> Result<String> {
        let length = self.u64(what)?;
        if length == 0 || length > limit {
            return Err(Error::file(format!("{what}: a name of {length} bytes, 1 to {limit} are allowed")));
        }
        self.text(what, length)
    }

    fn text(&mut self, what: &str, length: u64) -> Result<String> {
        self.advance(length, what)?;
        let mut bytes = Vec::new();
        (&mut self.file).take(length).read_to_end(&mut bytes).map_err(|error| unreadable(what, &error))?;
        // CAST: usize has at most 64 bits.
        if bytes.len() as u64 != length {
            return Err(Error::file(format!("{what}: the file is shorter than it says")));
        }
        String::from_utf8(bytes).map_err(|_| Error::file(format!("{what}: a text is no UTF-8")))
    }

    fn skip(&mut self, what: &str, bytes: u64) -> Result<()> {
        self.advance(bytes, what)?;
        let skipped = io::copy(&mut (&mut self.file).take(bytes), &mut io::sink());
        match skipped {
            Ok(skipped) if skipped == bytes => Ok(()),
            Ok(_) => Err(Error::file(format!("{what}: the file is shorter than it says"))),
            Err(error) => Err(unreadable(what, &error)),
        }
    }

    /// The value of a key.
    pub(super) fn value(&mut self, key: &str) -> Result<Value> {
        let kind = self.u32(key)?;
        self.value_of(kind, key, 0)
    }

    /// SOURCE: gguf.h, enum gguf_type.
    fn value_of(&mut self, kind: u32, key: &str, depth: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Number(u8::from_le_bytes(self.bytes(key)?).into()),
            1 => whole(i8::from_le_bytes(self.bytes(key)?).into()),
            2 => Value::Number(u16::from_le_bytes(self.bytes(key)?).into()),
            3 => whole(i16::from_le_bytes(self.bytes(key)?).into()),
            4 => Value::Number(self.u32(key)?.into()),
            5 => whole(i32::from_le_bytes(self.bytes(key)?).into()),
            7 => match self.bytes::<1>(key)? {
                [0 | 1] => Value::Other,
                [byte] => return Err(Error::file(format!("{key}: {byte} is no truth value"))),
            },
            6 => self.skip(key, 4).map(|()| Value::Other)?,
            12 => self.skip(key, 8).map(|()| Value::Other)?,
            8 => {
                let length = self.u64(key)?;
                if length > TEXT_BYTES {
                    self.skip(key, length)?;
                    return Ok(Value::Other);
                }
                Value::Text(self.text(key, length)?)
            }
            9 => return self.array(key, depth + 1),
            10 => Value::Number(self.u64(key)?),
            11 => whole(i64::from_le_bytes(self.bytes(key)?)),
            other => return Err(Error::file(format!("{key}: type {other} is unknown"))),
        })
    }

    fn array(&mut self, key: &str, depth: u32) -> Result<Value> {
        if depth > DEPTH {
            return Err(Error::file(format!("{key}: more than {DEPTH} arrays within each other")));
        }
        let kind = self.u32(key)?;
        let smallest = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 12,
            other => return Err(Error::file(format!("{key}: type {other} is unknown"))),
        };
        // CAST: usize has at most 64 bits.
        let length = self.count(key, smallest)? as u64;
        let mut numbers = Vec::new();
        for _ in 0..length {
            match self.value_of(kind, key, depth)? {
                Value::Number(number) if length <= LIST_LENGTH => numbers.push(number),
                _ => {}
            }
        }
        // CAST: as above.
        Ok(if numbers.len() as u64 == length { Value::Numbers(numbers) } else { Value::List { length } })
    }
}

fn whole(number: i64) -> Value {
    u64::try_from(number).map_or(Value::Other, Value::Number)
}

fn unreadable(what: &str, error: &io::Error) -> Error {
    Error::file(format!("{what}: the file cannot be read: {error}"))
}
