//! Bytes on D-Bus: inline while they are few, a sealed memfd when they are many.
//!
//! A memfd is accepted only with the seals against shrinking, growing and writing. Without them its owner could change
//! the bytes between validation and use.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use zbus::Variant;
use zbus::wire::{Fd, OwnedVariant};

use crate::{ErrorCode, Failure, Result};

/// The most bytes that travel inside a message.
pub const INLINE_BYTES: usize = 64 * 1024;

/// What a memfd must be sealed against.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

/// Bytes to be sent.
#[derive(Debug)]
pub enum Blob {
    /// Inside the message.
    Inline(Bytes),
    /// Beside the message.
    Memfd(OwnedFd),
}

impl Blob {
    /// Chooses by length.
    ///
    /// # Errors
    /// `OutOfMemory` where no memfd can be made.
    pub fn new(data: Bytes) -> Result<Self> {
        if data.len() <= INLINE_BYTES {
            return Ok(Self::Inline(data));
        }
        seal(&data).map(Self::Memfd)
    }

    /// As the variant of the contract.
    pub fn into_variant(self) -> OwnedVariant {
        let variant = match self {
            Self::Inline(data) => Variant::from(Vec::from(data)),
            Self::Memfd(fd) => Variant::from(Fd::from(fd)),
        };
        variant.try_into().expect("an owned value converts")
    }
}

/// Puts bytes in a memfd and seals it.
///
/// # Errors
/// `OutOfMemory` where the kernel refuses.
pub fn seal(data: &[u8]) -> Result<OwnedFd> {
    let error =
        |error: std::io::Error| Failure::new(ErrorCode::OutOfMemory, format!("memfd of {} bytes: {error}", data.len()));
    let fd = memfd_create("cairn-tensor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|errno| error(errno.into()))?;
    let file = File::from(fd);
    file.write_all_at(data, 0).map_err(error)?;
    fcntl_add_seals(&file, SEALS | SealFlags::SEAL).map_err(|errno| error(errno.into()))?;
    Ok(file.into())
}

/// Reads the bytes of a received variant, at most `limit`.
///
/// # Errors
/// `InvalidTensor` for another type, more bytes, or a file that is not a sealed memfd.
pub fn unseal(value: &OwnedVariant, limit: usize) -> Result<Bytes> {
    match &**value {
        Variant::Fd(fd) => read_sealed(fd.as_fd().try_clone_to_owned().map_err(unreadable)?, limit),
        Variant::Array(array) if array.element_signature() == "y" => {
            let data = Vec::<u8>::try_from(array.try_clone().map_err(unreadable)?).map_err(unreadable)?;
            if data.len() > INLINE_BYTES {
                let len = data.len();
                return Err(Failure::invalid_tensor(format!(
                    "{len} bytes are too many for ay, send a sealed memfd (limit {INLINE_BYTES})"
                )));
            }
            Ok(data.into())
        }
        other => {
            let signature = other.value_signature();
            Err(Failure::invalid_tensor(format!("bytes are ay or h, not {signature}")))
        }
    }
}

fn read_sealed(fd: OwnedFd, limit: usize) -> Result<Bytes> {
    let seals = fcntl_get_seals(&fd)
        .map_err(|errno| Failure::invalid_tensor(format!("the descriptor is not a memfd: {errno}")))?;
    if !seals.contains(SEALS) {
        return Err(Failure::invalid_tensor("the memfd is not sealed against shrink, grow and write"));
    }
    let file = File::from(fd);
    let len = file.metadata().map_err(unreadable)?.len();
    let len = usize::try_from(len)
        .ok()
        .filter(|&len| len <= limit)
        .ok_or_else(|| Failure::invalid_tensor(format!("the memfd has {len} bytes, the limit is {limit}")))?;
    let mut data = vec![0; len];
    file.read_exact_at(&mut data, 0).map_err(unreadable)?;
    Ok(data.into())
}

fn unreadable(error: impl std::fmt::Display) -> Failure {
    Failure::invalid_tensor(format!("the bytes cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memfd(seals: SealFlags) -> OwnedVariant {
        let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        let file = File::from(fd);
        file.write_all_at(b"abc", 0).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        Blob::Memfd(file.into()).into_variant()
    }

    #[test]
    fn bytes_survive_the_trip_inline_and_sealed() {
        for len in [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 3 * INLINE_BYTES] {
            let data = Bytes::from_iter((0..len).map(|i| i.to_le_bytes()[0]));
            let blob = Blob::new(data.clone()).unwrap();
            assert_eq!(matches!(blob, Blob::Inline(_)), len <= INLINE_BYTES);
            assert_eq!(unseal(&blob.into_variant(), 1 << 20).unwrap(), data);
        }
    }

    #[test]
    fn a_memfd_with_a_seal_missing_is_refused() {
        for seals in [
            SealFlags::empty(),
            SealFlags::SHRINK | SealFlags::GROW,
            SealFlags::SHRINK | SealFlags::WRITE,
            SealFlags::GROW | SealFlags::WRITE,
        ] {
            assert_eq!(unseal(&memfd(seals), 100).unwrap_err().code, ErrorCode::InvalidTensor);
        }
        assert_eq!(unseal(&memfd(SEALS), 100).unwrap(), &b"abc"[..]);
    }

    #[test]
    fn a_file_that_is_no_memfd_is_refused() {
        let (read, _write) = std::io::pipe().unwrap();
        let failure = unseal(&Blob::Memfd(read.into()).into_variant(), 100).unwrap_err();
        assert!(failure.message.contains("not a memfd"), "{failure}");
    }

    #[test]
    fn a_memfd_over_the_limit_is_refused() {
        unseal(&memfd(SEALS), 2).unwrap_err();
    }

    #[test]
    fn another_type_is_refused() {
        let text = OwnedVariant::try_from(Variant::from("text")).unwrap();
        assert_eq!(unseal(&text, 100).unwrap_err().message, "bytes are ay or h, not s");
    }
}
