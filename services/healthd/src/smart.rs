//! What NVMe drives say of their own wear and errors.
//!
//! ```text
//! timer ─▶ healthd --read-smart, root in a unit of its own ─▶ smartctl ─▶ a file per drive in /run ─▶ gauges of healthd
//! ```
//! The drive's log is read by an ioctl that only root may call, so the daemon does not: it reads what the unit wrote.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::gauge::{Gauges, entries, put};

/// The program of smartmontools.
pub const SMARTCTL: &str = "smartctl";
/// Where the unit's files are.
const FOLDER: &str = "run/cairn-smart";
/// The most that is taken of a report; one has 3 KiB.
const REPORT_BYTES: usize = 1 << 16;
/// Bits of smartctl's status that mean that there is no report. SOURCE: smartctl(8), return values.
const NO_REPORT: i32 = 0b11;

/// A report, as far as it matters here. SOURCE: smartmontools 7, `nvmeprint.cpp`.
#[derive(Debug, Deserialize)]
struct Report {
    #[serde(rename = "nvme_smart_health_information_log")]
    log: Log,
}

/// SOURCE: NVMe Base Specification 2.0, 5.16.1.3, SMART / Health Information.
#[derive(Debug, Deserialize)]
struct Log {
    critical_warning: f64,
    available_spare: f64,
    available_spare_threshold: f64,
    percentage_used: f64,
    unsafe_shutdowns: f64,
    media_errors: f64,
}

/// Lets `smartctl` ask every NVMe drive below `root` and writes down what it says. What `healthd --read-smart` does.
///
/// # Errors
/// Where a drive does not answer, after all others were asked; where nothing can be written.
pub fn write_down(root: &Path, smartctl: &Path) -> Result<()> {
    let folder = root.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let mut failed = Vec::new();
    for (name, _) in entries(root, "sys/class/nvme") {
        if let Err(error) = ask(smartctl, &name).and_then(|report| put_down(&folder, &name, &report)) {
            failed.push(format!("{name}: {error:#}"));
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("; ")) }
}

fn ask(smartctl: &Path, name: &str) -> Result<Vec<u8>> {
    let mut command = Command::new(smartctl);
    command.args(["--json=c", "--health", "--attributes"]).arg(format!("/dev/{name}"));
    let output = command.output().with_context(|| format!("start {}", smartctl.display()))?;
    // All other bits say that the drive is unwell, which the report says as well.
    match output.status.code() {
        Some(code) if code & NO_REPORT == 0 && output.stdout.len() <= REPORT_BYTES => Ok(output.stdout),
        _ => bail!("no report: smartctl ended with {}", output.status),
    }
}

fn put_down(folder: &Path, name: &str, report: &[u8]) -> Result<()> {
    let (file, beside) = (folder.join(format!("{name}.json")), folder.join(format!("{name}.new")));
    let written = fs::write(&beside, report).and_then(|()| fs::rename(&beside, &file));
    written.with_context(|| format!("write {}", file.display()))
}

/// What the unit wrote down last. A file that says nothing of a drive gives no gauges.
pub(crate) fn measure(root: &Path, gauges: &mut Gauges) {
    for (file, path) in entries(root, FOLDER) {
        let Some(name) = file.strip_suffix(".json") else { continue };
        let Ok(report) = fs::read(path) else { continue };
        let Ok(Report { log }) = serde_json::from_slice(&report) else { continue };
        let low = f64::from(u8::from(log.available_spare < log.available_spare_threshold));
        for (gauge, value) in [
            ("wear-percent", log.percentage_used),
            ("nvme-spare-percent", log.available_spare),
            ("nvme-spare-low", low),
            ("nvme-critical-warning", log.critical_warning),
            ("nvme-media-errors", log.media_errors),
            ("nvme-unsafe-shutdowns", log.unsafe_shutdowns),
        ] {
            put(gauges, gauge, name, Some(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::class::Severity;
    use crate::gauge::reasons;

    /// As smartctl 7.3 prints it, shortened.
    const WORN: &str = r#"{"json_format_version":[1,0],"smartctl":{"version":[7,3],"exit_status":8},
        "device":{"name":"/dev/nvme0","type":"nvme","protocol":"NVMe"},"smart_status":{"passed":false,"nvme":{"value":4}},
        "nvme_smart_health_information_log":{"critical_warning":4,"temperature":41,"available_spare":3,
        "available_spare_threshold":10,"percentage_used":103,"data_units_read":9,"power_cycles":7,"power_on_hours":9000,
        "unsafe_shutdowns":5,"media_errors":2,"num_err_log_entries":12},"temperature":{"current":41}}"#;

    fn machine(script: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sys/class/nvme/nvme0")).unwrap();
        let program = root.path().join("smartctl");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        root
    }

    #[test]
    fn what_a_worn_drive_says_becomes_gauges_and_reasons() {
        let root = machine(&format!("test \"$4\" = /dev/nvme0 || exit 1\ncat <<'END'\n{WORN}\nEND\nexit 8"));
        write_down(root.path(), &root.path().join("smartctl")).unwrap();
        let mut gauges = Gauges::new();
        measure(root.path(), &mut gauges);
        for (gauge, value) in [
            ("wear-percent.nvme0", 103.0),
            ("nvme-spare-percent.nvme0", 3.0),
            ("nvme-critical-warning.nvme0", 4.0),
            ("nvme-media-errors.nvme0", 2.0),
            ("nvme-unsafe-shutdowns.nvme0", 5.0),
        ] {
            assert_eq!(gauges.get(gauge), Some(&value), "{gauge}: {gauges:?}");
        }
        let reasons = reasons(&gauges);
        assert_eq!(reasons[0], (Severity::Critical, "nvme0 says that it fails".into()));
        assert!(reasons.contains(&(Severity::Error, "nvme0 has lost data".into())), "{reasons:?}");
        assert!(reasons.contains(&(Severity::Warning, "nvme0 has used 90 % of its life".into())), "{reasons:?}");
    }

    #[test]
    fn a_drive_that_does_not_answer_is_named_and_nonsense_measures_nothing() {
        let root = machine("exit 2");
        let error = write_down(root.path(), &root.path().join("smartctl")).unwrap_err().to_string();
        assert!(error.contains("nvme0") && error.contains("exit status: 2"), "{error}");
        let missing = write_down(root.path(), &root.path().join("nowhere")).unwrap_err().to_string();
        assert!(missing.contains("nowhere"), "{missing}");
        for text in ["", "{}", "{\"nvme_smart_health_information_log\":{\"media_errors\":\"many\"}}"] {
            fs::write(root.path().join(FOLDER).join("nvme0.json"), text).unwrap();
            let mut gauges = Gauges::new();
            measure(root.path(), &mut gauges);
            assert!(gauges.is_empty(), "{text}: {gauges:?}");
        }
    }
}
