//! The ioctls and mmap of a file, check by check as the kernel does them.
//!
//! SOURCE: drivers/gpu/drm and drivers/accel/rocket of Linux 7.3.4 and 6.18.15; the functions are named at the checks, and
//! the README's table has them all.

use std::ffi::{c_int, c_ulong};
use std::mem::{offset_of, size_of};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use npu_device::{Deadline, Device as _, Errno, Mapping, abi};

use crate::device::machine_time;
use crate::files::{self, OpenFile};
use crate::settings::{Kernel, Speed};
use crate::{client, clock, lock, submit};

const PAGE: u64 = 4096;

/// What `struct drm_ioctl_desc` says of a command: which way its struct goes, and how long it is.
struct Command {
    to_kernel: bool,
    to_client: bool,
    bytes: usize,
    run: fn(&Call<'_>, &mut [u8]) -> Result<c_int, Errno>,
}

/// Who calls.
pub(crate) struct Call<'a> {
    pub(crate) file: &'a OpenFile,
    pub(crate) fd: c_int,
}

/// Bits of a command's number. SOURCE: include/uapi/asm-generic/ioctl.h.
const IOC_WRITE: u32 = 1;
const IOC_READ: u32 = 2;

/// GET_CAP. SOURCE: include/uapi/drm/drm.h.
const CAP_TIMESTAMP_MONOTONIC: u64 = 0x6;
const CAP_PRIME: u64 = 0x5;
const CAP_SYNCOBJ: u64 = 0x13;
const CAP_SYNCOBJ_TIMELINE: u64 = 0x14;
const PRIME_IMPORT_AND_EXPORT: u64 = 3;

const fn command(
    to_kernel: bool,
    to_client: bool,
    bytes: usize,
    run: fn(&Call<'_>, &mut [u8]) -> Result<c_int, Errno>,
) -> Option<Command> {
    Some(Command { to_kernel, to_client, bytes, run })
}

/// The commands that are served.
fn commands(number: u32) -> Option<Command> {
    match number {
        0x00 => command(true, true, size_of::<abi::Version>(), version),
        0x09 => command(true, false, size_of::<abi::GemClose>(), gem_close),
        0x0c => command(true, true, 16, get_cap),
        0x0d => command(true, false, 16, |_, _| Err(Errno::OPNOTSUPP)),
        // Sharing between files would need one memory for both; see the README.
        0x2d | 0x2e => command(true, true, 12, |_, _| Err(Errno::OPNOTSUPP)),
        0x40 => command(true, true, size_of::<abi::CreateBo>(), create_bo),
        0x41 => command(true, false, size_of::<abi::Submit>(), submit::submit),
        0x42 => command(true, false, size_of::<abi::PrepBo>(), prep_bo),
        0x43 => command(true, false, size_of::<abi::FiniBo>(), fini_bo),
        _ => None,
    }
}

/// One ioctl; nothing where the virtual file system answers before any driver. SOURCE: `do_vfs_ioctl`, `drm_ioctl`.
pub(crate) fn ioctl(call: &Call<'_>, request: c_ulong, argument: usize) -> Option<Result<c_int, Errno>> {
    const BEFORE_DRIVERS: [c_ulong; 4] = [libc::FIOCLEX, libc::FIONCLEX, libc::FIONBIO, libc::FIOASYNC];
    if BEFORE_DRIVERS.contains(&request) {
        return None;
    }
    // CAST: the kernel takes 32 bits.
    let request = request as u32;
    let before = machine_time();
    let result = driver(call, request, argument as u64);
    if call.file.device.settings.speed == Speed::Virtual {
        clock::leave_out(machine_time().saturating_sub(before));
    }
    Some(result)
}

fn driver(call: &Call<'_>, request: u32, argument: u64) -> Result<c_int, Errno> {
    if (request >> 8) & 0xff != u32::from(b'd') {
        return Err(Errno::NOTTY);
    }
    let command = commands(request & 0xff).ok_or(Errno::INVAL)?;
    // CAST: 14 bits.
    let (bytes, way) = (((request >> 16) & 0x3fff) as usize, request >> 30);
    let incoming = if command.to_kernel && way & IOC_WRITE != 0 { bytes } else { 0 };
    let outgoing = if command.to_client && way & IOC_READ != 0 { bytes } else { 0 };
    // What the client's struct lacks is zero, and what it has more is kept for it.
    let mut data = vec![0; bytes.max(command.bytes)];
    client::read(argument, &mut data[..incoming])?;
    call.file.device.catch_up();
    let result = (command.run)(call, &mut data);
    client::write(argument, &data[..outgoing])?;
    result
}

/// A field of a struct.
pub(crate) fn u32_at(data: &[u8], at: usize) -> u32 {
    // PANIC: the slice has four bytes, and structs are as long as their offsets say.
    u32::from_ne_bytes(data[at..at + 4].try_into().expect("four bytes"))
}

/// A field of a struct.
pub(crate) fn u64_at(data: &[u8], at: usize) -> u64 {
    // PANIC: as above.
    u64::from_ne_bytes(data[at..at + 8].try_into().expect("eight bytes"))
}

/// `drm_version`.
fn version(call: &Call<'_>, data: &mut [u8]) -> Result<c_int, Errno> {
    let (major, minor, patch) = call.file.npu.info().version;
    for (at, number) in [
        (offset_of!(abi::Version, major), major),
        (offset_of!(abi::Version, minor), minor),
        (offset_of!(abi::Version, patchlevel), patch),
    ] {
        data[at..at + 4].copy_from_slice(&number.to_ne_bytes());
    }
    for (len, pointer, text) in [
        (offset_of!(abi::Version, name_len), offset_of!(abi::Version, name), call.file.npu.info().name.as_str()),
        (offset_of!(abi::Version, date_len), offset_of!(abi::Version, date), "0"),
        (offset_of!(abi::Version, desc_len), offset_of!(abi::Version, desc), "rocket DRM"),
    ] {
        let (room, pointer) = (u64_at(data, len), u64_at(data, pointer));
        data[len..len + 8].copy_from_slice(&(text.len() as u64).to_ne_bytes());
        let room = usize::try_from(room).unwrap_or(usize::MAX).min(text.len());
        if pointer != 0 {
            client::write(pointer, &text.as_bytes()[..room])?;
        }
    }
    Ok(0)
}

/// `drm_getcap` of a driver without displays.
fn get_cap(_: &Call<'_>, data: &mut [u8]) -> Result<c_int, Errno> {
    let value: u64 = match u64_at(data, 0) {
        CAP_TIMESTAMP_MONOTONIC => 1,
        CAP_PRIME => PRIME_IMPORT_AND_EXPORT,
        CAP_SYNCOBJ | CAP_SYNCOBJ_TIMELINE => 0,
        _ => {
            data[8..16].fill(0);
            return Err(Errno::OPNOTSUPP);
        }
    };
    data[8..16].copy_from_slice(&value.to_ne_bytes());
    Ok(0)
}

/// `rocket_ioctl_create_bo`.
fn create_bo(call: &Call<'_>, data: &mut [u8]) -> Result<c_int, Errno> {
    let bytes = u32_at(data, offset_of!(abi::CreateBo, size));
    // The mapped size is an `int` on mainline.
    if i32::try_from(bytes).is_err() && call.file.device.settings.kernel != Kernel::Cairn {
        return Err(Errno::NOMEM);
    }
    // The lock is held so that no other thread can use or close a handle before it is known here.
    let mut objects = lock(&call.file.objects);
    let object = call.file.npu.create_bo_in(bytes, |offset, len| memory(call.fd, offset, len))?;
    objects.insert(object.handle, object);
    data[offset_of!(abi::CreateBo, handle)..][..4].copy_from_slice(&object.handle.to_ne_bytes());
    data[offset_of!(abi::CreateBo, dma_address)..][..8].copy_from_slice(&u64::from(object.dma).to_ne_bytes());
    data[offset_of!(abi::CreateBo, offset)..][..8].copy_from_slice(&object.map_offset.to_ne_bytes());
    Ok(0)
}

/// Fresh memory at an offset of the file's memfd.
fn memory(fd: c_int, offset: u64, len: usize) -> Result<Mapping, Errno> {
    let end = libc::off_t::try_from(offset + len as u64).map_err(|_| Errno::NOMEM)?;
    // SAFETY: a descriptor that was found to be a memfd of ours.
    if unsafe { libc::ftruncate(fd, end) } != 0 {
        return Err(Errno::NOMEM);
    }
    // SAFETY: the client's call of ioctl keeps it open, unless the client closes it under its own call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Mapping::of_file(fd, offset, len).map_err(|_| Errno::NOMEM)
}

/// `drm_gem_close_ioctl`.
fn gem_close(call: &Call<'_>, data: &mut [u8]) -> Result<c_int, Errno> {
    let handle = u32_at(data, offset_of!(abi::GemClose, handle));
    let mut objects = lock(&call.file.objects);
    objects.remove(&handle).ok_or(Errno::INVAL)?;
    call.file.npu.close_bo(handle).map_err(|_| Errno::INVAL)?;
    Ok(0)
}

/// `rocket_ioctl_prep_bo`.
fn prep_bo(call: &Call<'_>, data: &mut [u8]) -> Result<c_int, Errno> {
    if u32_at(data, offset_of!(abi::PrepBo, reserved)) != 0 {
        return Err(Errno::INVAL);
    }
    let handle = u32_at(data, offset_of!(abi::PrepBo, handle));
    // CAST: the field is signed.
    let deadline = u64_at(data, offset_of!(abi::PrepBo, timeout_ns)) as i64;
    // Whether there is any time to wait, as the kernel sees it when it starts.
    let polls = jiffies_until(deadline) == 0;
    wait(call, handle, deadline, polls)?;
    let done = call.file.npu.prep_bo(handle, Deadline::POLL);
    done.map_err(|error| match error.errno() {
        Some(Errno::BUSY) if !polls => Errno::TIMEDOUT,
        errno => errno.unwrap_or(Errno::IO),
    })?;
    match call.file.device.settings.kernel {
        // What is left of the time, cut to the `int` that the function returns.
        Kernel::V6_18 => {
            let left = jiffies_until(deadline).max(1) as i32;
            if (-4095..0).contains(&left) { Err(Errno::from_raw_os_error(-left)) } else { Ok(left) }
        }
        Kernel::V7_3 | Kernel::Cairn => Ok(0),
    }
}

/// Waits until the object is idle or the deadline passes.
fn wait(call: &Call<'_>, handle: u32, deadline: i64, polls: bool) -> Result<(), Errno> {
    let (file, device) = (call.file, &call.file.device);
    if device.settings.speed != Speed::Modelled || polls {
        return Ok(());
    }
    loop {
        // The file's clock shows this time from here on, so what has ended by it will be found idle.
        let now = device.catch_up();
        let (busy, until) = (file.npu.busy_until(handle).ok_or(Errno::NOENT)?, device.time_of(deadline));
        if busy <= now || until <= now {
            return Ok(());
        }
        device.sleep_until(busy.min(until))?;
    }
}

/// `drm_timeout_abs_to_jiffies`, with the 250 ticks a second of arm64.
fn jiffies_until(deadline: i64) -> i64 {
    const JIFFY: Duration = Duration::from_millis(4);
    let left = Duration::from_nanos(u64::try_from(deadline).unwrap_or(0)).saturating_sub(machine_time());
    if left.is_zero() {
        return 0;
    }
    // CAST: a time of 63 bits in units of 22.
    (left.as_nanos() / JIFFY.as_nanos()) as i64 + 1
}

/// `rocket_ioctl_fini_bo`.
fn fini_bo(call: &Call<'_>, data: &mut [u8]) -> Result<c_int, Errno> {
    if u32_at(data, offset_of!(abi::FiniBo, reserved)) != 0 {
        return Err(Errno::INVAL);
    }
    let handle = u32_at(data, offset_of!(abi::FiniBo, handle));
    call.file.npu.fini_bo(handle).map_err(|error| error.errno().unwrap_or(Errno::IO))?;
    Ok(0)
}

/// Whether the file may be mapped so. SOURCE: `drm_gem_object_lookup_at_offset`, `drm_gem_shmem_mmap`.
///
/// # Errors
/// `EINVAL`, `EACCES`.
pub(crate) fn may_map(file: &OpenFile, offset: u64, bytes: usize, flags: c_int) -> Result<(), Errno> {
    let object = lock(&file.objects).values().find(|object| object.map_offset == offset).copied();
    let Some(object) = object else {
        return Err(if files::is_foreign(offset) { Errno::ACCESS } else { Errno::INVAL });
    };
    let shared = matches!(flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
    let fits = bytes as u64 <= u64::from(object.bytes).next_multiple_of(PAGE);
    if fits && shared { Ok(()) } else { Err(Errno::INVAL) }
}
