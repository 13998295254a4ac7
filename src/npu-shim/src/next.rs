//! The functions that the hooks stand before: those of the next library, which is the C library.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// One of them, looked up when it is first needed.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Where it is; null where no other library has it.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: a name that ends with zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// `next!(name: type)` is the function of that name and type. Where there is none, as a client that was linked with
/// another C library could ask for, there is nothing to call and nothing to return: the process ends with its name.
macro_rules! next {
    ($name:ident : $type:ty) => {{
        static NEXT: $crate::next::Next = {
            const NAME: &std::ffi::CStr =
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without a zero inside"),
                };
            $crate::next::Next::new(NAME)
        };
        let address = NEXT.address();
        if address.is_null() {
            $crate::settings::fail(concat!("no library has ", stringify!($name)));
        }
        // SAFETY: the C library's function of this name has this type.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, $type>(address) }
    }};
}
pub(crate) use next;
