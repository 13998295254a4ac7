//! A library for `LD_PRELOAD` that makes `/dev/accel/accel0` appear, served by the simulator inside the process.
//!
//! ```text
//! client ─▶ libc's names (hooks) ─┬─▶ path of the device tree, sysfs or /dev/accel ─▶ a folder of ordinary files (tree)
//!                                 ├─▶ a file of ours (files) ─▶ ioctl (drm) ─▶ npu_sim::File
//!                                 └─▶ everything else ─▶ the next library
//! ```
//!
//! An open file of the device is a memfd, one for each call of `open`. A buffer object's memory lies in it at the offset
//! that CREATE_BO tells, so the kernel maps it, and the simulator's cores read and write the very pages that the client
//! sees. Pointers of the client may be garbage and are never followed: the kernel copies, and says EFAULT.
//!
//! Which errors are whose, and the environment variables, are in the README beside `src`.

mod client;
mod clock;
mod device;
mod drm;
mod files;
mod hooks;
mod next;
mod settings;
mod submit;
mod trace;
mod tree;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Runs when the library is loaded, before the client's `main`; this crate's own tests are no client.
#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static START: extern "C" fn() = start;

extern "C" fn start() {
    settings::read();
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(files::before_fork), Some(files::in_parent), Some(files::in_child)) };
    // SAFETY: as above.
    unsafe { libc::atexit(at_exit) };
}

extern "C" fn at_exit() {
    ours(|| {
        files::report();
        tree::remove();
        Some(())
    });
}

thread_local! {
    /// Whether this thread runs code of this library, whose own calls of libc go to the next one.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a part of the shim; nothing where it is running already, where it has nothing to say, or where it panicked. The
/// client's call then goes to the next library.
fn ours<T>(run: impl FnOnce() -> Option<T>) -> Option<T> {
    // A thread that ends has no flag any more, and no business here.
    if INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true) {
        return None;
    }
    let result = catch_unwind(AssertUnwindSafe(run)).ok().flatten();
    INSIDE.set(false);
    result
}

/// A lock whose holder panicked is still consistent: no step leaves one half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
