//! FlatBuffers as bytes: tables, vectors and strings, every offset checked when it is followed.
//!
//! The accessors of the `flatbuffers` crate are `unsafe fn`, so code that uses them cannot forbid unsafe code. What a
//! reader needs of the format is little: a table starts with the distance back to its vtable, a vtable holds one 16-bit
//! offset per field, and everything else is a forward offset to a counted sequence.
//!
//! Vectors may overlap in a hostile file, so that a few bytes stand for gigabytes. Every vector that is read is charged
//! to the file's [budget](File::new).

use std::cell::Cell;
use std::fmt;

/// Where the bytes break the rules of the format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Malformed {
    at: usize,
    what: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed at byte {}: {}", self.at, self.what)
    }
}

impl From<Malformed> for String {
    fn from(fault: Malformed) -> Self {
        fault.to_string()
    }
}

type Result<T, E = Malformed> = std::result::Result<T, E>;

/// A number of fixed width, little-endian.
pub(super) trait Scalar: Copy {
    /// Its width.
    const BYTES: usize;
    /// Decodes the first [`Self::BYTES`] of `bytes`; `None` where there are fewer.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

macro_rules! scalars {
    ($($type:ty),*) => {$(
        impl Scalar for $type {
            const BYTES: usize = size_of::<$type>();

            fn decode(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk().map(|chunk| Self::from_le_bytes(*chunk))
            }
        }
    )*};
}

scalars!(i8, u8, u16, i32, u32, i64, u64, f32);

/// The whole file.
pub(super) struct File<'a> {
    bytes: &'a [u8],
    budget: Cell<usize>,
}

impl<'a> File<'a> {
    /// `budget`: how many bytes of vectors may be read, counting again what is read again.
    pub(super) fn new(bytes: &'a [u8], budget: usize) -> Self {
        Self { bytes, budget: Cell::new(budget) }
    }

    /// The four characters that say which schema the file follows.
    pub(super) fn identifier(&self) -> Option<&'a [u8]> {
        self.bytes.get(4..8)
    }

    /// The root table.
    pub(super) fn root(&self) -> Result<Table<'_>> {
        Table::at(self, self.follow(0)?)
    }

    /// A range outside the FlatBuffers part.
    pub(super) fn range(&self, offset: u64, size: u64) -> Result<&[u8]> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let length = usize::try_from(size).unwrap_or(usize::MAX);
        self.slice(start, length, "appended buffer ends outside the file")
    }

    /// Takes `bytes` from the budget, also for what a caller derives from the file.
    pub(super) fn charge(&self, at: usize, bytes: usize) -> Result<()> {
        let left = self.budget.get().checked_sub(bytes).ok_or(Malformed {
            at,
            what: "vectors overlap so much that the file stands for more than its size allows",
        })?;
        self.budget.set(left);
        Ok(())
    }

    fn slice(&self, at: usize, length: usize, what: &'static str) -> Result<&[u8]> {
        at.checked_add(length).and_then(|end| self.bytes.get(at..end)).ok_or(Malformed { at, what })
    }

    fn scalar<T: Scalar>(&self, at: usize, what: &'static str) -> Result<T> {
        T::decode(self.slice(at, T::BYTES, what)?).ok_or(Malformed { at, what })
    }

    /// Where the forward offset at `at` leads.
    fn follow(&self, at: usize) -> Result<usize> {
        let distance: u32 = self.scalar(at, "offset ends outside the file")?;
        // CAST: usize has at least 32 bits on every target of ours.
        let target = at.checked_add(distance as usize).filter(|&target| target < self.bytes.len());
        target.ok_or(Malformed { at, what: "offset leads outside the file" })
    }

    /// Position and count of the vector at `at`; its elements have `element_bytes` each.
    fn vector(&self, at: usize, element_bytes: usize) -> Result<(usize, usize)> {
        const WHAT: &str = "vector ends outside the file";
        // CAST: usize has at least 32 bits on every target of ours.
        let count = self.scalar::<u32>(at, WHAT)? as usize;
        let bytes = count.checked_mul(element_bytes).ok_or(Malformed { at, what: WHAT })?;
        self.slice(at + 4, bytes, WHAT)?;
        self.charge(at, bytes)?;
        Ok((at + 4, count))
    }
}

/// A table; its fields are named by their number in the schema.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    file: &'a File<'a>,
    at: usize,
    bytes: usize,
    vtable: &'a [u8],
}

impl<'a> Table<'a> {
    fn at(file: &'a File<'a>, at: usize) -> Result<Self> {
        let distance: i32 = file.scalar(at, "table ends outside the file")?;
        let fault = Malformed { at, what: "vtable lies outside the file" };
        // CAST: a position in a slice fits in i64.
        let vtable_at = usize::try_from(at as i64 - i64::from(distance)).map_err(|_| fault)?;
        let vtable_bytes = usize::from(file.scalar::<u16>(vtable_at, fault.what)?);
        let vtable = file.slice(vtable_at, vtable_bytes, fault.what)?;
        let bytes = vtable.get(2..).and_then(u16::decode).map(usize::from);
        let bytes = bytes.ok_or(Malformed { at: vtable_at, what: "vtable is too short" })?;
        file.slice(at, bytes, "table ends outside the file")?;
        Ok(Self { file, at, bytes, vtable })
    }

    /// Position of a field that is present and has at least `width` bytes.
    fn position(&self, field: usize, width: usize) -> Result<Option<usize>> {
        let Some(offset) = self.vtable.get(4 + 2 * field..).and_then(u16::decode) else { return Ok(None) };
        let offset = usize::from(offset);
        if offset == 0 {
            return Ok(None);
        }
        if offset < 4 || offset + width > self.bytes {
            return Err(Malformed { at: self.at, what: "field lies outside its table" });
        }
        Ok(Some(self.at + offset))
    }

    fn target(&self, field: usize) -> Result<Option<usize>> {
        self.position(field, 4)?.map(|at| self.file.follow(at)).transpose()
    }

    /// A number, or `default` where it is absent.
    pub(super) fn scalar<T: Scalar>(&self, field: usize, default: T) -> Result<T> {
        match self.position(field, T::BYTES)? {
            Some(at) => self.file.scalar(at, "field ends outside the file"),
            None => Ok(default),
        }
    }

    /// Whether an offset field is present.
    pub(super) fn has(&self, field: usize) -> Result<bool> {
        Ok(self.position(field, 4)?.is_some())
    }

    /// A table.
    pub(super) fn table(&self, field: usize) -> Result<Option<Table<'a>>> {
        self.target(field)?.map(|at| Table::at(self.file, at)).transpose()
    }

    /// A vector of tables; empty where it is absent.
    pub(super) fn tables(&self, field: usize) -> Result<Vec<Table<'a>>> {
        let Some(at) = self.target(field)? else { return Ok(Vec::new()) };
        let (start, count) = self.file.vector(at, 4)?;
        (0..count).map(|i| Table::at(self.file, self.file.follow(start + 4 * i)?)).collect()
    }

    /// A vector of numbers; empty where it is absent.
    pub(super) fn scalars<T: Scalar>(&self, field: usize) -> Result<Vec<T>> {
        let Some(at) = self.target(field)? else { return Ok(Vec::new()) };
        let (start, count) = self.file.vector(at, T::BYTES)?;
        (0..count).map(|i| self.file.scalar(start + T::BYTES * i, "vector ends outside the file")).collect()
    }

    /// A vector of bytes, or a string's; empty where it is absent.
    pub(super) fn bytes(&self, field: usize) -> Result<&'a [u8]> {
        let Some(at) = self.target(field)? else { return Ok(&[]) };
        let (start, count) = self.file.vector(at, 1)?;
        self.file.slice(start, count, "vector ends outside the file")
    }

    /// A string, with a replacement character for what is not UTF-8; empty where it is absent.
    pub(super) fn string(&self, field: usize) -> Result<String> {
        Ok(String::from_utf8_lossy(self.bytes(field)?).into_owned())
    }
}
