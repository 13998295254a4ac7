//! Memory of the client at addresses that may be anything: the kernel copies, so a wild one is EFAULT and no crash.
//!
//! SOURCE: `copy_from_user` and `copy_to_user`, whose part this plays.

use std::ffi::{c_char, c_int, c_void};

use libc::iovec;
use npu_device::Errno;

const PAGE: usize = 4096;
/// The longest path, its end included.
const PATH_MAX: usize = 4096;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    FromClient,
    ToClient,
}

/// Fills `to` from the client's `address`.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn read(address: u64, to: &mut [u8]) -> Result<(), Errno> {
    copy(Way::FromClient, address, to.as_mut_ptr(), to.len())
}

/// Puts `from` at the client's `address`.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn write(address: u64, from: &[u8]) -> Result<(), Errno> {
    // The pointer is only read from on this way.
    copy(Way::ToClient, address, from.as_ptr().cast_mut(), from.len())
}

/// A path, without its end; nothing where it cannot be read or is too long, which libc then says itself.
pub(crate) fn path(pointer: *const c_char) -> Option<Vec<u8>> {
    let mut path = Vec::new();
    while path.len() < PATH_MAX {
        // CAST: widening on every target with an NPU.
        let at = pointer.addr() + path.len();
        let mut part = [0; PAGE];
        // What lies behind a path's end may not be mapped, so no read crosses into the next page before it must.
        let part = &mut part[..PAGE - at % PAGE];
        read(at as u64, part).ok()?;
        match part.iter().position(|byte| *byte == 0) {
            Some(end) => {
                path.extend_from_slice(&part[..end]);
                return Some(path);
            }
            None => path.extend_from_slice(part),
        }
    }
    None
}

fn copy(way: Way, address: u64, own: *mut u8, len: usize) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    // CAST: an address of this machine, or garbage.
    let foreign = std::ptr::without_provenance_mut::<c_void>(address as usize);
    match directly(way, foreign, own.cast(), len) {
        Ok(()) => Ok(()),
        Err(Errno::FAULT) => Err(Errno::FAULT),
        // Sandboxes forbid the call, and qemu's user mode does not have it.
        Err(_) => by_pipe(way, foreign, own, len),
    }
}

fn directly(way: Way, foreign: *mut c_void, own: *mut c_void, len: usize) -> Result<(), Errno> {
    let own = iovec { iov_base: own, iov_len: len };
    let foreign = iovec { iov_base: foreign, iov_len: len };
    // SAFETY: asks for a number.
    let pid = unsafe { libc::getpid() };
    let moved = match way {
        // SAFETY: `own` is a buffer of this length; the other side is checked by the kernel.
        Way::FromClient => unsafe { libc::process_vm_readv(pid, &raw const own, 1, &raw const foreign, 1, 0) },
        // SAFETY: as above; a client that names its own memory gets it overwritten, as by the kernel.
        Way::ToClient => unsafe { libc::process_vm_writev(pid, &raw const own, 1, &raw const foreign, 1, 0) },
    };
    match usize::try_from(moved) {
        Ok(moved) if moved == len => Ok(()),
        Ok(_) => Err(Errno::FAULT),
        Err(_) => Err(last()),
    }
}

/// Through a pipe, whose ends the kernel fills and empties page by page.
fn by_pipe(way: Way, foreign: *mut c_void, own: *mut u8, len: usize) -> Result<(), Errno> {
    let mut ends: [c_int; 2] = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return Err(last());
    }
    let mut at = 0;
    let mut result = Ok(());
    while at < len && result.is_ok() {
        let part = PAGE.min(len - at);
        let (foreign, own) = (foreign.wrapping_byte_add(at), own.wrapping_add(at).cast());
        let (from, to) = if way == Way::FromClient { (foreign, own) } else { (own, foreign) };
        // SAFETY: the kernel checks the client's side, and the other is a part of a buffer.
        let written = unsafe { libc::write(ends[1], from, part) };
        // SAFETY: as above.
        let read = unsafe { libc::read(ends[0], to, part) };
        // CAST: at most a page.
        let whole = written == part as isize && read == part as isize;
        result = if whole { Ok(()) } else { Err(Errno::FAULT) };
        at += part;
    }
    for end in ends {
        // SAFETY: opened above, and known to nobody else.
        unsafe { libc::close(end) };
    }
    result
}

/// The error of the last call of libc.
pub(crate) fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_copied_and_what_is_not_is_a_fault() {
        let mut client = [1_u8, 2, 3, 4];
        let address = client.as_mut_ptr().expose_provenance() as u64;
        let mut bytes = [0; 4];
        read(address, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4]);
        write(address + 1, &[9, 8]).unwrap();
        read(address, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 9, 8, 4]);
        for wild in [0, 16, 1 << 63, u64::MAX - 1] {
            assert_eq!(read(wild, &mut bytes), Err(Errno::FAULT));
            assert_eq!(write(wild, &bytes), Err(Errno::FAULT));
        }
        assert_eq!(read(16, &mut []), Ok(()));
    }

    #[test]
    fn a_pipe_does_the_same() {
        let client: Vec<u8> = (0..=255).cycle().take(3 * PAGE + 7).collect();
        let mut bytes = vec![0; client.len()];
        let foreign = client.as_ptr().cast_mut().cast();
        by_pipe(Way::FromClient, foreign, bytes.as_mut_ptr(), bytes.len()).unwrap();
        assert_eq!(bytes, client);
        let wild = std::ptr::without_provenance_mut(16);
        assert_eq!(by_pipe(Way::FromClient, wild, bytes.as_mut_ptr(), 4), Err(Errno::FAULT));
        assert_eq!(by_pipe(Way::ToClient, wild, bytes.as_mut_ptr(), 4), Err(Errno::FAULT));
    }

    #[test]
    fn a_path_ends_where_it_ends() {
        assert_eq!(path(c"/dev/accel".as_ptr()), Some(b"/dev/accel".to_vec()));
        assert_eq!(path(std::ptr::null()), None);
        let endless = vec![b'a'; 3 * PATH_MAX];
        assert_eq!(path(endless.as_ptr().cast()), None);
    }
}
