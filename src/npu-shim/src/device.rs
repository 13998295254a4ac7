//! The device of this process: one simulated NPU, its clock, and what is written about it.
//!
//! Every file's clock shows the time since the device appeared. With modelled speed it is the machine's clock; with
//! instant and virtual speed it jumps to the end of each job that is submitted.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use npu_device::Errno;
use npu_sim::{Receipt, Simulator};

use crate::clock;
use crate::settings::{self, Settings, Speed};

/// The device.
pub(crate) struct Device {
    pub(crate) npu: Simulator,
    pub(crate) settings: &'static Settings,
    /// When it appeared, on the machine's clock.
    epoch: Duration,
    /// Numbers of files and jobs in the trace.
    pub(crate) files: AtomicU64,
    pub(crate) jobs: AtomicU64,
}

impl Device {
    /// A device after power-on.
    pub(crate) fn new() -> io::Result<Self> {
        let settings = settings::read();
        let npu = with_signals_blocked(|| Simulator::isolated(settings.options()))?;
        npu.inject_random(settings.levers());
        Ok(Self { npu, settings, epoch: machine_time(), files: AtomicU64::new(0), jobs: AtomicU64::new(0) })
    }

    /// Shows every file what the machine's clock shows, where that is the device's, and returns the time.
    pub(crate) fn catch_up(&self) -> Duration {
        let now = machine_time().saturating_sub(self.epoch);
        if self.settings.speed == Speed::Modelled {
            self.npu.pass_until(now);
        }
        now
    }

    /// Lets the job end at once, where time does not matter.
    ///
    /// `now`: the file's clock before it was queued.
    pub(crate) fn submitted(&self, receipt: &Receipt, now: Duration) {
        if self.settings.speed == Speed::Modelled {
            return;
        }
        self.npu.pass_until(receipt.ends);
        if self.settings.speed == Speed::Virtual {
            clock::count(receipt.ends.saturating_sub(now));
        }
    }

    /// A time of the machine's clock on this device's.
    pub(crate) fn time_of(&self, nanos: i64) -> Duration {
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)).saturating_sub(self.epoch)
    }

    /// Sleeps until then.
    ///
    /// # Errors
    /// `EINTR` where a signal came.
    pub(crate) fn sleep_until(&self, time: Duration) -> Result<(), Errno> {
        let until = self.epoch.saturating_add(time);
        let tv_sec = libc::time_t::try_from(until.as_secs()).unwrap_or(libc::time_t::MAX);
        // CAST: below 10⁹.
        let until = libc::timespec { tv_sec, tv_nsec: until.subsec_nanos() as libc::c_long };
        // SAFETY: the time is read, and where an absolute wait ended is not told.
        let error = unsafe {
            libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const until, std::ptr::null_mut())
        };
        if error == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(error)) }
    }

    /// The next number of a counter.
    pub(crate) fn next(counter: &AtomicU64) -> u64 {
        counter.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// `CLOCK_MONOTONIC`, to which deadlines refer.
pub(crate) fn machine_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    // CAST: the monotonic clock is never negative, and nanoseconds are below a second.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs with all signals blocked, so that threads that are started have them blocked: the client's handlers are not to
/// run on threads that it does not know.
fn with_signals_blocked<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: a set of signals is plain data.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: room for a set.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: two sets.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let result = run();
    // SAFETY: the set of before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}
