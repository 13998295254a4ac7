//! Which descriptors of the process are files of the device.
//!
//! ```text
//! descriptor ─▶ Entry (which memfd) ─▶ OpenFile (buffer objects, queue) ─▶ Device
//! ```
//!
//! A descriptor may go without our seeing it, by a raw system call or inside libc, and its number may be another file's
//! then; so every use compares the memfd's inode. In a child after fork, the parent's simulator is gone with the parent's
//! threads: each inherited descriptor becomes a fresh, empty file of a fresh device when it is first used. A child that
//! shares the parent's memory (vfork) is served by nobody, and changes nothing.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::io::Write;
use std::mem;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use npu_device::{BoInfo, Errno};

use crate::client::last;
use crate::device::Device;
use crate::{lock, settings};

/// One call of `open`.
pub(crate) struct OpenFile {
    pub(crate) device: Arc<Device>,
    /// For the trace.
    pub(crate) number: u64,
    pub(crate) npu: npu_sim::File,
    /// Buffer objects by handle.
    pub(crate) objects: Mutex<BTreeMap<u32, BoInfo>>,
}

/// A memfd: device and inode.
type Inode = (u64, u64);

struct Entry {
    inode: Inode,
    /// Nothing where a child inherited it and has not used it yet.
    file: Option<Arc<OpenFile>>,
}

struct Table {
    entries: BTreeMap<c_int, Entry>,
    device: Option<Arc<Device>>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { entries: BTreeMap::new(), device: None });
/// How many entries, so that a process without the device pays nothing.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Whose table it is; 0 before the first file.
static OWNER: AtomicI32 = AtomicI32::new(0);

fn pid() -> c_int {
    // SAFETY: asks for a number.
    unsafe { libc::getpid() }
}

/// The table, unless nothing is in it or this is a child that shares the parent's memory.
fn table() -> Option<MutexGuard<'static, Table>> {
    (any() && OWNER.load(Ordering::Relaxed) == pid()).then(|| lock(&TABLE))
}

/// Whether there are any files of ours.
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// The file behind a descriptor, if it is ours.
pub(crate) fn find(fd: c_int) -> Option<Arc<OpenFile>> {
    if fd < 0 {
        return None;
    }
    let mut table = table()?;
    let entry = table.entries.get(&fd)?;
    if inode(fd) != Some(entry.inode) {
        table.remove(fd);
        return None;
    }
    match &entry.file {
        Some(file) => Some(Arc::clone(file)),
        None => table.adopt(fd).ok(),
    }
}

/// Whether another file of this process has an object at the offset.
pub(crate) fn is_foreign(offset: u64) -> bool {
    let Some(table) = table() else { return false };
    let mut files = table.entries.values().filter_map(|entry| entry.file.as_ref());
    files.any(|file| lock(&file.objects).values().any(|object| object.map_offset == offset))
}

/// Opens the device.
///
/// # Errors
/// Those of `drm_open_helper`, and of the machine's.
pub(crate) fn open(flags: c_int) -> Result<c_int, Errno> {
    if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 {
        return Err(Errno::EXIST);
    }
    if flags & libc::O_DIRECTORY != 0 {
        return Err(Errno::NOTDIR);
    }
    if flags & libc::O_EXCL != 0 {
        return Err(Errno::BUSY);
    }
    let owner = OWNER.load(Ordering::Relaxed);
    if owner != 0 && owner != pid() {
        // A child of vfork must not change the parent's memory.
        return Err(Errno::NODEV);
    }
    OWNER.store(pid(), Ordering::Relaxed);
    let mut table = lock(&TABLE);
    let file = table.open()?;
    let fd = memfd(flags & libc::O_CLOEXEC != 0)?;
    // PANIC: it was opened the line before.
    let inode = inode(fd).expect("an open descriptor has an inode");
    table.insert(fd, Entry { inode, file: Some(file) });
    Ok(fd)
}

/// `to` is a duplicate of `from` now.
pub(crate) fn duplicated(from: c_int, to: c_int) {
    let Some(mut table) = table() else { return };
    let Some(entry) = table.entries.get(&from) else { return };
    if inode(to) == Some(entry.inode) {
        let entry = Entry { inode: entry.inode, file: entry.file.clone() };
        table.insert(to, entry);
    }
}

/// The descriptors of a range are about to close.
pub(crate) fn closing(range: std::ops::RangeInclusive<c_int>) {
    if range.is_empty() {
        return;
    }
    let Some(mut table) = table() else { return };
    let ours: Vec<c_int> = table.entries.range(range).map(|(fd, _)| *fd).collect();
    let gone: Vec<_> = ours.into_iter().filter_map(|fd| table.remove(fd)).collect();
    drop(table);
    // Jobs of a closed file run to their end.
    drop(gone);
}

impl Table {
    fn insert(&mut self, fd: c_int, entry: Entry) {
        self.entries.insert(fd, entry);
        COUNT.store(self.entries.len(), Ordering::Relaxed);
    }

    fn remove(&mut self, fd: c_int) -> Option<Entry> {
        let entry = self.entries.remove(&fd);
        COUNT.store(self.entries.len(), Ordering::Relaxed);
        entry
    }

    /// A fresh file of the device, which is made with its first file.
    fn open(&mut self) -> Result<Arc<OpenFile>, Errno> {
        let device = match &self.device {
            Some(device) => Arc::clone(device),
            None => {
                let made = Device::new().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))?;
                Arc::clone(self.device.insert(Arc::new(made)))
            }
        };
        let npu = device.npu.open_file();
        let number = Device::next(&device.files);
        Ok(Arc::new(OpenFile { device, number, npu, objects: Mutex::default() }))
    }

    /// Gives an inherited file, under all its descriptors, a memfd and objects of its own.
    fn adopt(&mut self, fd: c_int) -> Result<Arc<OpenFile>, Errno> {
        let old = self.entries[&fd].inode;
        let file = self.open()?;
        let fresh = memfd(true)?;
        // PANIC: it was opened the line before.
        let new = inode(fresh).expect("an open descriptor has an inode");
        for (&fd, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.inode == old) {
            // SAFETY: asks for the flag of a descriptor.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
            let flags = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
            // SAFETY: replaces the parent's memfd under a number that the client knows as this file.
            if inode(fd) == Some(old) && unsafe { libc::dup3(fresh, fd, flags) } == fd {
                *entry = Entry { inode: new, file: Some(Arc::clone(&file)) };
            }
        }
        // SAFETY: opened above, and known to nobody else.
        unsafe { libc::close(fresh) };
        Ok(file)
    }
}

/// Memory of a file, which must not shrink under the cores.
fn memfd(close_on_exec: bool) -> Result<c_int, Errno> {
    let flags = libc::MFD_ALLOW_SEALING | if close_on_exec { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: a name that ends with zero.
    let fd = unsafe { libc::memfd_create(c"accel0".as_ptr(), flags) };
    if fd < 0 {
        return Err(last());
    }
    // SAFETY: a descriptor that was opened above. Without the seal everything works but a client that truncates it.
    unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    Ok(fd)
}

/// By the system call itself: the function of this name is a hook.
fn inode(fd: c_int) -> Option<Inode> {
    // SAFETY: plain data.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: room for the answer, in the kernel's layout on both architectures.
    let result = unsafe { libc::syscall(libc::SYS_fstat, fd, &raw mut stat) };
    (result == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Writes the statistics of the process, if it used the device and somebody wants them.
pub(crate) fn report() {
    let settings = settings::read();
    let Some(to) = &settings.statistics else { return };
    if OWNER.load(Ordering::Relaxed) != pid() {
        return;
    }
    let Some(device) = lock(&TABLE).device.clone() else { return };
    let mut text = format!(
        "npu-shim: process {}, {} files\n{}\n",
        pid(),
        device.files.load(Ordering::Relaxed),
        device.npu.counters()
    );
    for line in device.npu.kernel_log() {
        text.push_str(&format!("kernel log: {line}\n"));
    }
    let written = if to.as_os_str() == "-" {
        std::io::stderr().write_all(text.as_bytes())
    } else {
        crate::trace::append(to, &text)
    };
    // Nobody is left to be told.
    let _ = written;
}

/// The table's lock from before a fork until after it.
struct Held(UnsafeCell<Option<MutexGuard<'static, Table>>>);

// SAFETY: only the thread that holds the table's lock touches it.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// A fork waits until the table is whole.
pub(crate) unsafe extern "C" fn before_fork() {
    let guard = lock(&TABLE);
    // SAFETY: this thread holds the lock.
    unsafe { *HELD.0.get() = Some(guard) };
}

pub(crate) unsafe extern "C" fn in_parent() {
    // SAFETY: this thread took the lock in `before_fork`.
    drop(unsafe { (*HELD.0.get()).take() });
}

/// The parent's threads are not here, and their locks may be taken for ever: nothing of the parent's device is touched,
/// not even to free it.
pub(crate) unsafe extern "C" fn in_child() {
    // SAFETY: this thread took the lock in `before_fork`.
    let guard = unsafe { (*HELD.0.get()).take() };
    let Some(mut table) = guard else { return };
    for entry in table.entries.values_mut() {
        mem::forget(entry.file.take());
    }
    mem::forget(table.device.take());
    if OWNER.load(Ordering::Relaxed) != 0 {
        OWNER.store(pid(), Ordering::Relaxed);
    }
}
