//! The kernel log as a fault monitor.
//!
//! Counts error lines of the NPU cores and of their IOMMUs. The IOMMUs of other devices use the same driver, so the
//! device's name decides, not the text. SOURCE: kernel-lines §1c; `Documentation/ABI/testing/dev-kmsg`.

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;

use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};

use crate::{Errno, Error, FaultMonitor, Result};

/// Where the rocket driver's devices stand in sysfs.
const ROCKET_DEVICES: &str = "/sys/bus/platform/drivers/rocket";
/// The largest record that `/dev/kmsg` returns. SOURCE: `PRINTK_MESSAGE_MAX`, kernel/printk/internal.h.
const RECORD_BYTES: usize = 2048;
/// Syslog level of errors; smaller is worse.
const LEVEL_ERROR: u32 = 3;

/// Watches `/dev/kmsg` from now on.
#[derive(Debug)]
pub struct KernelLog {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: OwnedFd,
    devices: HashSet<String>,
    faults: u64,
    last: Option<String>,
}

impl KernelLog {
    /// Opens `/dev/kmsg` at its end.
    ///
    /// # Errors
    /// [`Error::KernelLog`], with `EPERM` where the process may not read the kernel log.
    pub fn open() -> Result<Self> {
        let error = |source| Error::KernelLog { source };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open("/dev/kmsg", flags, Mode::empty()).map_err(error)?;
        seek(&file, SeekFrom::End(0)).map_err(error)?;
        let devices = npu_devices(Path::new(ROCKET_DEVICES));
        Ok(Self { state: Mutex::new(State { file, devices, faults: 0, last: None }) })
    }

    fn poll(&self) -> std::sync::MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut record = [0; RECORD_BYTES];
        loop {
            match rustix::io::read(&state.file, &mut record) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(len) => {
                    let text = String::from_utf8_lossy(&record[..len]).into_owned();
                    if let Some(line) = fault(&text, &state.devices) {
                        state.faults += 1;
                        state.last = Some(line);
                    }
                }
                // Overwritten records may have been faults: counting one makes callers doubt, which is safe.
                Err(Errno::PIPE) => {
                    state.faults += 1;
                    state.last = Some("kernel log overran".into());
                }
                Err(Errno::INTR) => {}
                Err(error) => {
                    state.faults += 1;
                    state.last = Some(format!("kernel log unreadable: {error}"));
                    break;
                }
            }
        }
        state
    }
}

impl FaultMonitor for KernelLog {
    fn faults(&self) -> u64 {
        self.poll().faults
    }

    fn last(&self) -> Option<String> {
        self.poll().last.clone()
    }
}

/// Names of the NPU cores and of the IOMMUs that serve them.
fn npu_devices(driver: &Path) -> HashSet<String> {
    let mut devices = HashSet::new();
    for entry in fs::read_dir(driver).into_iter().flatten().flatten() {
        let core = entry.path();
        let Ok(iommu) = fs::canonicalize(core.join("iommu/device")) else { continue };
        devices.insert(entry.file_name().to_string_lossy().into_owned());
        devices.extend(iommu.file_name().map(|name| name.to_string_lossy().into_owned()));
    }
    devices
}

/// The text of a kmsg record that reports a fault of one of `devices`.
///
/// A record is `prefix,sequence,time,flags;text` and then lines ` KEY=value`; the prefix holds the syslog level.
fn fault(record: &str, devices: &HashSet<String>) -> Option<String> {
    let (header, body) = record.split_once(';')?;
    let prefix: u32 = header.split(',').next()?.parse().ok()?;
    if prefix & 7 > LEVEL_ERROR {
        return None;
    }
    let mut lines = body.lines();
    let text = lines.next()?;
    let device = lines.find_map(|line| line.strip_prefix(" DEVICE=+platform:"))?;
    // The DRM device prints for all cores: `rocket rknn: [drm] *ERROR* …`.
    (device == "rknn" || devices.contains(device)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> HashSet<String> {
        ["fdab0000.npu", "fdab9000.iommu"].map(String::from).into()
    }

    #[test]
    fn a_timed_out_job_is_a_fault() {
        let record = "3,1200,5000000,-;rocket fdab0000.npu: NPU job timed out\n SUBSYSTEM=platform\n DEVICE=+platform:fdab0000.npu\n";
        assert_eq!(fault(record, &devices()).as_deref(), Some("rocket fdab0000.npu: NPU job timed out"));
    }

    #[test]
    fn an_iommu_of_another_device_is_not_ours() {
        let record = "3,1,2,-;rk_iommu fdd97e00.iommu: Page fault at 0x0 of type read\n SUBSYSTEM=platform\n DEVICE=+platform:fdd97e00.iommu\n";
        assert_eq!(fault(record, &devices()), None);
    }

    #[test]
    fn an_informational_line_is_no_fault() {
        let record =
            "6,1,2,-;rocket fdab0000.npu: Rockchip NPU core 0 version: 1179210309\n DEVICE=+platform:fdab0000.npu\n";
        assert_eq!(fault(record, &devices()), None);
    }

    #[test]
    fn a_malformed_record_is_ignored() {
        for record in ["", ";", "x;y", "3", "3,1;a\nDEVICE=b"] {
            assert_eq!(fault(record, &devices()), None);
        }
    }
}
