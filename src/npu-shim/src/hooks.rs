//! The names of the C library that clients reach the device by. Each asks the shim first and the next library then.
//!
//! A function that is variadic in C takes its last argument here by name: on x86-64 and aarch64 Linux both are passed in
//! the same registers, and what a caller did not pass is not looked at by the C library either.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{mode_t, nfds_t, off_t, pollfd, size_t, ssize_t};
use npu_device::Errno;

use crate::next::next;
use crate::tree::{self, Route};
use crate::{client, clock, drm, files, ours};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("arguments of variadic functions are known to lie in registers on x86-64 and aarch64 only");

/// What looks at the node's path without opening it looks at this instead, which is a character device as well.
const LIKE_THE_NODE: &std::ffi::CStr = c"/dev/null";

/// Hooks: the function is exported under its name, but not into this crate's own tests.
macro_rules! hooks {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {$(
        $(#[$doc])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code, reason = "nobody calls them there, and what they call is no less alive"))]
        unsafe extern "C" fn $name($($argument: $type),*) -> $result $body
    )*};
}

/// The next library's function, called with these arguments.
macro_rules! forward {
    ($name:ident($($argument:expr => $type:ty),*) -> $result:ty) => {{
        let next = next!($name: unsafe extern "C" fn($($type),*) -> $result);
        // SAFETY: the caller's own arguments, or ours in their place.
        unsafe { next($($argument),*) }
    }};
}

fn set_errno(errno: Errno) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

/// A result as C functions return it.
fn answer(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// Opens a path, by `call` where it is not the node.
fn open_path(path: *const c_char, flags: c_int, call: impl FnOnce(*const c_char) -> c_int) -> c_int {
    match ours(|| tree::route(path)) {
        None => call(path),
        Some(Route::File(file)) => call(file.as_ptr()),
        Some(Route::Node) => match ours(|| Some(files::open(flags))) {
            Some(result) => answer(result),
            None => answer(Err(Errno::NODEV)),
        },
    }
}

/// Opens a path as a stream, by `call` where it is not the node.
fn stream(
    path: *const c_char,
    mode: *const c_char,
    call: impl FnOnce(*const c_char) -> *mut libc::FILE,
) -> *mut libc::FILE {
    match ours(|| tree::route(path)) {
        None => call(path),
        Some(Route::File(file)) => call(file.as_ptr()),
        Some(Route::Node) => match ours(|| Some(files::open(libc::O_RDWR))).unwrap_or(Err(Errno::NODEV)) {
            // SAFETY: a descriptor that nobody else knows, and the caller's mode.
            Ok(fd) => unsafe { libc::fdopen(fd, mode) },
            Err(errno) => {
                set_errno(errno);
                std::ptr::null_mut()
            }
        },
    }
}

/// Looks at a path by `call`; the flag says whether it is the node's.
fn look_at<T>(path: *const c_char, call: impl FnOnce(*const c_char) -> T) -> (T, bool) {
    match ours(|| tree::route(path)) {
        None => (call(path), false),
        Some(Route::File(file)) => (call(file.as_ptr()), false),
        Some(Route::Node) => (call(LIKE_THE_NODE.as_ptr()), true),
    }
}

/// Status by `call`, which becomes the node's where the path is.
fn status(path: *const c_char, to: *mut libc::stat, call: impl FnOnce(*const c_char) -> c_int) -> c_int {
    let (result, is_node) = look_at(path, call);
    if result == 0 && is_node {
        become_node(to);
    }
    result
}

/// Status of a descriptor by `call`, which becomes the node's where the file is ours.
fn status_of(fd: c_int, to: *mut libc::stat, call: impl Fn() -> c_int) -> c_int {
    let result = call();
    if result == 0 && ours(|| files::find(fd)).is_some() {
        // SAFETY: the caller's room, into which the C library has just written.
        if unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, LIKE_THE_NODE.as_ptr(), to, 0) } == 0 {
            become_node(to);
        }
    }
    result
}

/// Status of a character device becomes that of the node.
fn become_node(to: *mut libc::stat) {
    // SAFETY: the caller's room, into which the C library has just written.
    unsafe { (*to).st_rdev = libc::makedev(tree::MAJOR, 0) };
}

hooks! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_path(path, flags, |path| forward!(open(path => *const c_char, flags => c_int, mode => mode_t) -> c_int))
    }
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_path(path, flags, |path| forward!(open64(path => *const c_char, flags => c_int, mode => mode_t) -> c_int))
    }
    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        open_path(path, flags, |path| forward!(__open_2(path => *const c_char, flags => c_int) -> c_int))
    }
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        open_path(path, flags, |path| forward!(__open64_2(path => *const c_char, flags => c_int) -> c_int))
    }
    fn openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_path(path, flags, |path| {
            forward!(openat(at => c_int, path => *const c_char, flags => c_int, mode => mode_t) -> c_int)
        })
    }
    fn openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_path(path, flags, |path| {
            forward!(openat64(at => c_int, path => *const c_char, flags => c_int, mode => mode_t) -> c_int)
        })
    }
    fn __openat_2(at: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_path(path, flags, |path| {
            forward!(__openat_2(at => c_int, path => *const c_char, flags => c_int) -> c_int)
        })
    }
    fn __openat64_2(at: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_path(path, flags, |path| {
            forward!(__openat64_2(at => c_int, path => *const c_char, flags => c_int) -> c_int)
        })
    }
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        stream(path, mode, |path| forward!(fopen(path => *const c_char, mode => *const c_char) -> *mut libc::FILE))
    }
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        stream(path, mode, |path| forward!(fopen64(path => *const c_char, mode => *const c_char) -> *mut libc::FILE))
    }
    fn opendir(path: *const c_char) -> *mut libc::DIR {
        look_at(path, |path| forward!(opendir(path => *const c_char) -> *mut libc::DIR)).0
    }
    fn access(path: *const c_char, mode: c_int) -> c_int {
        look_at(path, |path| forward!(access(path => *const c_char, mode => c_int) -> c_int)).0
    }
    fn faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        look_at(path, |path| {
            forward!(faccessat(at => c_int, path => *const c_char, mode => c_int, flags => c_int) -> c_int)
        }).0
    }
    fn readlink(path: *const c_char, to: *mut c_char, room: size_t) -> ssize_t {
        look_at(path, |path| {
            forward!(readlink(path => *const c_char, to => *mut c_char, room => size_t) -> ssize_t)
        }).0
    }
    fn readlinkat(at: c_int, path: *const c_char, to: *mut c_char, room: size_t) -> ssize_t {
        look_at(path, |path| {
            forward!(readlinkat(at => c_int, path => *const c_char, to => *mut c_char, room => size_t) -> ssize_t)
        }).0
    }
    fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
        let Some(route) = ours(|| tree::route(path)) else {
            return forward!(realpath(path => *const c_char, to => *mut c_char) -> *mut c_char);
        };
        real_path(&route, to)
    }
    fn stat(path: *const c_char, to: *mut libc::stat) -> c_int {
        status(path, to, |path| forward!(stat(path => *const c_char, to => *mut libc::stat) -> c_int))
    }
    fn stat64(path: *const c_char, to: *mut libc::stat) -> c_int {
        status(path, to, |path| forward!(stat64(path => *const c_char, to => *mut libc::stat) -> c_int))
    }
    fn lstat(path: *const c_char, to: *mut libc::stat) -> c_int {
        status(path, to, |path| forward!(lstat(path => *const c_char, to => *mut libc::stat) -> c_int))
    }
    fn lstat64(path: *const c_char, to: *mut libc::stat) -> c_int {
        status(path, to, |path| forward!(lstat64(path => *const c_char, to => *mut libc::stat) -> c_int))
    }
    fn fstat(fd: c_int, to: *mut libc::stat) -> c_int {
        status_of(fd, to, || forward!(fstat(fd => c_int, to => *mut libc::stat) -> c_int))
    }
    fn fstat64(fd: c_int, to: *mut libc::stat) -> c_int {
        status_of(fd, to, || forward!(fstat64(fd => c_int, to => *mut libc::stat) -> c_int))
    }
    fn fstatat(at: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
        status(path, to, |path| {
            forward!(fstatat(at => c_int, path => *const c_char, to => *mut libc::stat, flags => c_int) -> c_int)
        })
    }
    fn fstatat64(at: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
        status(path, to, |path| {
            forward!(fstatat64(at => c_int, path => *const c_char, to => *mut libc::stat, flags => c_int) -> c_int)
        })
    }
    /// What `stat` is to programs that were linked with glibc before 2.33; so are the next four.
    fn __xstat(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
        status(path, to, |path| forward!(__xstat(version => c_int, path => *const c_char, to => *mut libc::stat) -> c_int))
    }
    fn __xstat64(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
        status(path, to, |path| {
            forward!(__xstat64(version => c_int, path => *const c_char, to => *mut libc::stat) -> c_int)
        })
    }
    fn __lxstat(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
        status(path, to, |path| {
            forward!(__lxstat(version => c_int, path => *const c_char, to => *mut libc::stat) -> c_int)
        })
    }
    fn __lxstat64(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
        status(path, to, |path| {
            forward!(__lxstat64(version => c_int, path => *const c_char, to => *mut libc::stat) -> c_int)
        })
    }
    fn __fxstat(version: c_int, fd: c_int, to: *mut libc::stat) -> c_int {
        status_of(fd, to, || forward!(__fxstat(version => c_int, fd => c_int, to => *mut libc::stat) -> c_int))
    }
    fn __fxstat64(version: c_int, fd: c_int, to: *mut libc::stat) -> c_int {
        status_of(fd, to, || forward!(__fxstat64(version => c_int, fd => c_int, to => *mut libc::stat) -> c_int))
    }
    fn statx(at: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut libc::statx) -> c_int {
        extended_status(at, path, flags, mask, to)
    }
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        let call = || drm::ioctl(&drm::Call { file: &*files::find(fd)?, fd }, request, argument.addr());
        match ours(call) {
            Some(result) => answer(result),
            None => forward!(ioctl(fd => c_int, request => c_ulong, argument => *mut c_void) -> c_int),
        }
    }
    fn mmap(hint: *mut c_void, bytes: size_t, protection: c_int, flags: c_int, fd: c_int, at: off_t) -> *mut c_void {
        match check_map(bytes, flags, fd, at) {
            Err(errno) => {
                set_errno(errno);
                libc::MAP_FAILED
            }
            Ok(()) => forward!(mmap(hint => *mut c_void, bytes => size_t, protection => c_int, flags => c_int,
                                    fd => c_int, at => off_t) -> *mut c_void),
        }
    }
    fn mmap64(hint: *mut c_void, bytes: size_t, protection: c_int, flags: c_int, fd: c_int, at: off_t) -> *mut c_void {
        match check_map(bytes, flags, fd, at) {
            Err(errno) => {
                set_errno(errno);
                libc::MAP_FAILED
            }
            Ok(()) => forward!(mmap64(hint => *mut c_void, bytes => size_t, protection => c_int, flags => c_int,
                                      fd => c_int, at => off_t) -> *mut c_void),
        }
    }
    fn clock_gettime(clock: libc::clockid_t, to: *mut libc::timespec) -> c_int {
        let result = forward!(clock_gettime(clock => libc::clockid_t, to => *mut libc::timespec) -> c_int);
        if result == 0 && clock == libc::CLOCK_MONOTONIC {
            ours(|| {
                // SAFETY: the caller's room, into which the C library has just written.
                show(unsafe { &mut *to });
                Some(())
            });
        }
        result
    }
    fn poll(list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        silently(list, count, |list| forward!(poll(list => *mut pollfd, count => nfds_t, timeout => c_int) -> c_int))
    }
    fn ppoll(list: *mut pollfd, count: nfds_t, timeout: *const libc::timespec, mask: *const libc::sigset_t) -> c_int {
        silently(list, count, |list| {
            forward!(ppoll(list => *mut pollfd, count => nfds_t, timeout => *const libc::timespec,
                           mask => *const libc::sigset_t) -> c_int)
        })
    }
    fn close(fd: c_int) -> c_int {
        closing(fd, fd);
        forward!(close(fd => c_int) -> c_int)
    }
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        // CAST: a flag.
        if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
            let number = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
            closing(number(first), number(last));
        }
        forward!(close_range(first => c_uint, last => c_uint, flags => c_int) -> c_int)
    }
    fn closefrom(first: c_int) -> () {
        closing(first, c_int::MAX);
        forward!(closefrom(first => c_int) -> ());
    }
    fn dup(fd: c_int) -> c_int {
        duplicate(fd, forward!(dup(fd => c_int) -> c_int))
    }
    fn dup2(fd: c_int, to: c_int) -> c_int {
        replaced(fd, to);
        duplicate(fd, forward!(dup2(fd => c_int, to => c_int) -> c_int))
    }
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        replaced(fd, to);
        duplicate(fd, forward!(dup3(fd => c_int, to => c_int, flags => c_int) -> c_int))
    }
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        let result = forward!(fcntl(fd => c_int, command => c_int, argument => usize) -> c_int);
        if duplicates(command) { duplicate(fd, result) } else { result }
    }
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        let result = forward!(fcntl64(fd => c_int, command => c_int, argument => usize) -> c_int);
        if duplicates(command) { duplicate(fd, result) } else { result }
    }
}

/// The name of what a route leads to, in room of the caller's or in fresh memory.
fn real_path(route: &Route, to: *mut c_char) -> *mut c_char {
    let name = match route {
        Route::Node => CString::new(tree::NODE).ok(),
        Route::File(file) => {
            let found =
                forward!(realpath(file.as_ptr() => *const c_char, std::ptr::null_mut() => *mut c_char) -> *mut c_char);
            if found.is_null() {
                return found;
            }
            // SAFETY: the C library returned a string in memory that is ours now.
            let path = unsafe { std::ffi::CStr::from_ptr(found) }.to_owned();
            // SAFETY: as above.
            unsafe { libc::free(found.cast()) };
            let path = Path::new(std::ffi::OsStr::from_bytes(path.as_bytes())).to_owned();
            ours(|| tree::name_of(&path)).and_then(|name| CString::new(name.as_os_str().as_bytes()).ok())
        }
    };
    let Some(name) = name else {
        set_errno(Errno::NOENT);
        return std::ptr::null_mut();
    };
    if to.is_null() {
        // SAFETY: a string.
        return unsafe { libc::strdup(name.as_ptr()) };
    }
    // SAFETY: the caller has room for the longest path, as this function demands.
    unsafe { libc::strcpy(to, name.as_ptr()) }
}

fn extended_status(at: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut libc::statx) -> c_int {
    let next = |at: c_int, path: *const c_char, flags: c_int| forward!(statx(at => c_int, path => *const c_char, flags => c_int, mask => c_uint, to => *mut libc::statx) -> c_int);
    let of_descriptor = flags & libc::AT_EMPTY_PATH != 0
        && ours(|| files::find(at)).is_some()
        && ours(|| Some(path.is_null() || client::path(path)?.is_empty())) == Some(true);
    let (result, is_node) = match of_descriptor {
        true => (next(libc::AT_FDCWD, LIKE_THE_NODE.as_ptr(), 0), true),
        false => look_at(path, |path| next(at, path, flags)),
    };
    if result == 0 && is_node {
        // SAFETY: the caller's room, into which the C library has just written.
        unsafe { ((*to).stx_rdev_major, (*to).stx_rdev_minor) = (tree::MAJOR, 0) };
    }
    result
}

/// Whether a mapping of this file would be refused.
fn check_map(bytes: size_t, flags: c_int, fd: c_int, at: off_t) -> Result<(), Errno> {
    if fd < 0 || flags & libc::MAP_ANONYMOUS != 0 || bytes == 0 {
        return Ok(());
    }
    // CAST: offsets are unsigned to this kind of file. SOURCE: `FOP_UNSIGNED_OFFSET`.
    let check = || Some(drm::may_map(&*files::find(fd)?, at as u64, bytes, flags));
    ours(check).unwrap_or(Ok(()))
}

/// Polls without files of the device, which never have anything to tell. SOURCE: `drm_poll`.
fn silently(list: *mut pollfd, count: nfds_t, call: impl FnOnce(*mut pollfd) -> c_int) -> c_int {
    let quiet = || {
        let size = size_of::<pollfd>();
        let mut bytes = vec![0; usize::try_from(count).ok().filter(|count| files::any() && *count < 1 << 20)? * size];
        client::read(list.expose_provenance() as u64, &mut bytes).ok()?;
        let fd = |entry: &[u8]| entry.first_chunk().map_or(-1, |fd| c_int::from_ne_bytes(*fd));
        let entries =
            bytes.chunks_exact(size).map(|entry| if files::find(fd(entry)).is_some() { None } else { Some(fd(entry)) });
        let entries: Vec<Option<c_int>> = entries.collect();
        entries.iter().any(Option::is_none).then_some((bytes, entries))
    };
    let Some((bytes, entries)) = ours(quiet) else { return call(list) };
    let events = bytes.chunks_exact(size_of::<pollfd>()).map(|entry| i16::from_ne_bytes([entry[4], entry[5]]));
    let mut copy: Vec<pollfd> =
        entries.iter().zip(events).map(|(fd, events)| pollfd { fd: fd.unwrap_or(-1), events, revents: 0 }).collect();
    let result = call(copy.as_mut_ptr());
    for (index, entry) in copy.iter().enumerate() {
        // SAFETY: the caller's list was readable to this length, and is the caller's to have written.
        unsafe { (*list.add(index)).revents = entry.revents };
    }
    result
}

/// A time of the machine's clock becomes one of the client's.
fn show(time: &mut libc::timespec) {
    const SECOND: i64 = 1_000_000_000;
    let shown = clock::shown(time.tv_sec * SECOND + time.tv_nsec);
    (time.tv_sec, time.tv_nsec) = (shown / SECOND, shown % SECOND);
}

fn duplicates(command: c_int) -> bool {
    matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

fn closing(first: c_int, last: c_int) {
    ours(|| {
        files::closing(first..=last);
        Some(())
    });
}

/// A descriptor is about to be replaced by a duplicate of another.
fn replaced(fd: c_int, to: c_int) {
    // One that does not exist replaces nothing.
    if fd != to && forward!(fcntl(fd => c_int, libc::F_GETFD => c_int, 0 => usize) -> c_int) >= 0 {
        closing(to, to);
    }
}

/// Notes a duplicate, if one was made.
fn duplicate(fd: c_int, made: c_int) -> c_int {
    if made >= 0 && made != fd {
        ours(|| {
            files::duplicated(fd, made);
            Some(())
        });
    }
    made
}
