//! What is measured: numbers that the kernel shows in files, and what they mean.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::class::Severity;
use crate::smart;

/// Measurements by name: `name` or `name.of`.
pub(crate) type Gauges = BTreeMap<String, f64>;

/// Reads everything that this machine shows. What it does not have is absent.
pub(crate) fn read(root: &Path, units: &[String]) -> Gauges {
    let mut gauges = Gauges::new();
    thermal(root, &mut gauges);
    pressure(root, &mut gauges);
    memory(root, units, &mut gauges);
    storage(root, &mut gauges);
    smart::measure(root, &mut gauges);
    network(root, &mut gauges);
    gauges
}

/// How busy each core of the processor was between two looks.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Ticks of each core so far: busy, and all.
    before: BTreeMap<String, (u64, u64)>,
}

impl Load {
    /// Measures since the last look. The first only looks.
    /// SOURCE: proc_stat(5): `cpu0 user nice system idle iowait irq softirq steal guest guest_nice`.
    pub(crate) fn measure(&mut self, root: &Path, gauges: &mut Gauges) {
        for line in text(root.join("proc/stat")).unwrap_or_default().lines() {
            let mut words = line.split_whitespace();
            let Some(core) = words.next().filter(|name| name.starts_with("cpu") && *name != "cpu") else { continue };
            // What guests used is in what users used.
            let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
            let sum = |ticks: &[u64]| ticks.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
            let (all, idle) = (sum(&ticks), sum(ticks.get(3..5).unwrap_or_default()));
            let now = (all.saturating_sub(idle), all);
            let Some(before) = self.before.insert(core.to_owned(), now) else { continue };
            let (busy, all) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
            // CAST: ticks of some seconds are exact in a double.
            put(gauges, "cpu-percent", core, (all > 0).then(|| 100.0 * busy as f64 / all as f64));
        }
    }
}

/// Entries of a folder below `root`, with their names.
pub(crate) fn entries(root: &Path, folder: &str) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
    let mut entries: Vec<_> =
        entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).collect();
    entries.sort();
    entries
}

fn text(path: PathBuf) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: PathBuf) -> Option<f64> {
    text(path)?.parse().ok().filter(|number: &f64| number.is_finite())
}

pub(crate) fn put(gauges: &mut Gauges, name: &str, of: &str, value: Option<f64>) {
    if let Some(value) = value {
        gauges.insert(format!("{name}.{of}"), value);
    }
}

fn thermal(root: &Path, gauges: &mut Gauges) {
    for (name, zone) in entries(root, "sys/class/thermal") {
        let Some(kind) = text(zone.join("type")) else { continue };
        if name.starts_with("thermal_zone") {
            put(gauges, "celsius", &kind, number(zone.join("temp")).map(|millis| millis / 1e3));
        }
        if name.starts_with("cooling_device") {
            put(gauges, "cooling", &format!("{kind}-{name}"), number(zone.join("cur_state")));
        }
    }
    // The kernel throttles without a word; the limit that it sets shows it.
    for (name, policy) in entries(root, "sys/devices/system/cpu/cpufreq") {
        let (limit, most) = (number(policy.join("scaling_max_freq")), number(policy.join("cpuinfo_max_freq")));
        put(gauges, "throttled", &name, limit.zip(most).map(|(limit, most)| f64::from(u8::from(limit < most))));
    }
}

/// SOURCE: Documentation/accounting/psi.rst: `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
fn pressure(root: &Path, gauges: &mut Gauges) {
    for (name, file) in entries(root, "proc/pressure") {
        for line in text(file).unwrap_or_default().lines() {
            let mut words = line.split_whitespace();
            let kind = words.next().unwrap_or_default().to_owned();
            let average = words.find_map(|word| word.strip_prefix("avg10=")).and_then(|value| value.parse().ok());
            put(gauges, &format!("pressure-{kind}"), &name, average);
        }
    }
}

fn memory(root: &Path, units: &[String], gauges: &mut Gauges) {
    for line in text(root.join("proc/meminfo")).unwrap_or_default().lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let kib: Option<f64> = value.split_whitespace().next().and_then(|value| value.parse().ok());
        if let ("MemAvailable" | "MemTotal", Some(kib)) = (name, kib) {
            gauges.insert(name.replace("Mem", "memory-bytes.").to_lowercase(), kib * 1024.0);
        }
    }
    for unit in units {
        let group = root.join("sys/fs/cgroup/system.slice").join(unit);
        put(gauges, "unit-memory-bytes", unit, number(group.join("memory.current")));
        let events = text(group.join("memory.events")).unwrap_or_default();
        let kills = events.lines().find_map(|line| line.strip_prefix("oom_kill ")).and_then(|value| value.parse().ok());
        put(gauges, "unit-oom-kills", unit, kills);
    }
}

fn storage(root: &Path, gauges: &mut Gauges) {
    for (name, disk) in entries(root, "sys/block") {
        // SOURCE: JEDEC eMMC 5.1, EXT_CSD 268 and 269: steps of ten percent, the worse of two areas counts.
        let life = text(disk.join("device/life_time")).unwrap_or_default();
        let worst = life.split_whitespace().filter_map(hexadecimal).max();
        put(gauges, "wear-percent", &name, worst.map(|step| f64::from(step.saturating_sub(1)) * 10.0));
        let end = text(disk.join("device/pre_eol_info")).and_then(|value| hexadecimal(&value));
        put(gauges, "end-of-life", &name, end.map(f64::from));
    }
    for (name, controller) in entries(root, "sys/class/nvme") {
        let state = text(controller.join("state"));
        put(gauges, "nvme-live", &name, state.map(|state| f64::from(u8::from(state == "live"))));
        for (hwmon, folder) in entries(&controller, "").into_iter().filter(|(name, _)| name.starts_with("hwmon")) {
            let sensor = if hwmon == "hwmon" {
                entries(&folder, "").into_iter().next().map(|(_, path)| path)
            } else {
                Some(folder)
            };
            let celsius = sensor.and_then(|sensor| number(sensor.join("temp1_input")));
            put(gauges, "celsius", &name, celsius.map(|millis| millis / 1e3));
        }
    }
    for (name, filesystem) in entries(root, "sys/fs/ext4") {
        put(gauges, "filesystem-errors", &name, number(filesystem.join("errors_count")));
    }
    for (name, folder) in [("root", root.to_owned()), ("var", root.join("var"))] {
        // What cannot be written to is as full as it was made.
        let free = rustix::fs::statvfs(&folder)
            .ok()
            .filter(|space| space.f_blocks > 0 && !space.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
        // CAST: a share needs no more than the 53 bits that a double keeps.
        put(gauges, "free-percent", name, free.map(|space| 100.0 * space.f_bavail as f64 / space.f_blocks as f64));
    }
}

fn hexadecimal(text: &str) -> Option<u8> {
    u8::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn network(root: &Path, gauges: &mut Gauges) {
    for (name, interface) in entries(root, "sys/class/net").into_iter().filter(|(name, _)| name != "lo") {
        let state = text(interface.join("operstate"));
        put(gauges, "link-up", &name, state.map(|state| f64::from(u8::from(state == "up"))));
        put(gauges, "link-changes", &name, number(interface.join("carrier_changes")));
        for direction in ["rx", "tx"] {
            let errors = number(interface.join(format!("statistics/{direction}_errors")));
            put(gauges, &format!("{direction}-errors"), &name, errors);
        }
    }
}

/// What a measurement means: its name, whether more or less is bad, from where on, how bad, in words.
type Limit = (&'static str, bool, f64, Severity, &'static str);

/// From where on a measurement is a reason not to be healthy.
#[rustfmt::skip]
const LIMITS: &[Limit] = &[
    ("end-of-life", true, 3.0, Severity::Critical, "has used up its spare blocks and must be replaced"),
    ("end-of-life", true, 2.0, Severity::Warning, "has used most of its spare blocks"),
    ("wear-percent", true, 90.0, Severity::Warning, "has used 90 % of its life"),
    ("nvme-critical-warning", true, 1.0, Severity::Critical, "says that it fails"),
    ("nvme-media-errors", true, 1.0, Severity::Error, "has lost data"),
    ("nvme-spare-low", true, 1.0, Severity::Warning, "has used most of its spare blocks"),
    ("nvme-live", false, 0.5, Severity::Critical, "does not answer"),
    ("filesystem-errors", true, 1.0, Severity::Error, "has errors in its file system"),
    ("free-percent", false, 2.0, Severity::Critical, "is full"),
    ("free-percent", false, 10.0, Severity::Warning, "has less than 10 % free"),
    ("pressure-full", true, 40.0, Severity::Warning, "is short for more than 40 % of the time"),
    ("unit-failed", true, 1.0, Severity::Critical, "has failed"),
    ("unit-oom-kills", true, 1.0, Severity::Error, "was killed because memory ran out"),
    ("throttled", true, 1.0, Severity::Warning, "is slowed down because of heat"),
];

/// Why the machine is not healthy, the worst first: one reason per thing.
pub(crate) fn reasons(gauges: &Gauges) -> Vec<(Severity, String)> {
    let mut reasons = Vec::new();
    for (key, value) in gauges {
        let (name, of) = key.split_once('.').unwrap_or((key, ""));
        let beyond = |limit: &&Limit| limit.0 == name && if limit.1 { *value >= limit.2 } else { *value <= limit.2 };
        if let Some((.., severity, words)) = LIMITS.iter().find(beyond) {
            reasons.push((*severity, format!("{of} {words}")));
        }
    }
    reasons.sort_by_key(|(severity, _)| std::cmp::Reverse(*severity));
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    #[test]
    fn every_source_is_read() {
        let root = tree(&[
            ("sys/class/thermal/thermal_zone3/type", "npu-thermal\n"),
            ("sys/class/thermal/thermal_zone3/temp", "61250\n"),
            ("sys/class/thermal/cooling_device0/type", "pwm-fan\n"),
            ("sys/class/thermal/cooling_device0/cur_state", "2\n"),
            ("sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq", "1800000\n"),
            ("sys/devices/system/cpu/cpufreq/policy4/cpuinfo_max_freq", "2304000\n"),
            (
                "proc/pressure/memory",
                "some avg10=1.50 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=9\n",
            ),
            ("proc/meminfo", "MemTotal:       8000000 kB\nMemAvailable:   4000000 kB\n"),
            ("sys/fs/cgroup/system.slice/npud.service/memory.events", "low 0\noom 1\noom_kill 1\n"),
            ("sys/block/mmcblk0/device/life_time", "0x0a 0x02\n"),
            ("sys/block/mmcblk0/device/pre_eol_info", "0x01\n"),
            ("sys/class/nvme/nvme0/state", "dead\n"),
            ("sys/class/nvme/nvme0/hwmon1/temp1_input", "44850\n"),
            ("sys/fs/ext4/mmcblk0p3/errors_count", "0\n"),
            ("sys/class/net/end0/operstate", "up\n"),
            ("sys/class/net/end0/statistics/rx_errors", "3\n"),
            ("sys/class/net/lo/operstate", "unknown\n"),
        ]);
        let gauges = read(root.path(), &["npud.service".into()]);
        for (key, value) in [
            ("celsius.npu-thermal", 61.25),
            ("cooling.pwm-fan-cooling_device0", 2.0),
            ("throttled.policy4", 1.0),
            ("pressure-some.memory", 1.5),
            ("pressure-full.memory", 0.5),
            ("memory-bytes.available", 4_096_000_000.0),
            ("unit-oom-kills.npud.service", 1.0),
            ("wear-percent.mmcblk0", 90.0),
            ("end-of-life.mmcblk0", 1.0),
            ("nvme-live.nvme0", 0.0),
            ("celsius.nvme0", 44.85),
            ("filesystem-errors.mmcblk0p3", 0.0),
            ("link-up.end0", 1.0),
            ("rx-errors.end0", 3.0),
        ] {
            assert_eq!(gauges.get(key), Some(&value), "{key}: {gauges:?}");
        }
        let reasons = reasons(&gauges);
        assert_eq!(reasons[0], (Severity::Critical, "nvme0 does not answer".into()));
        assert!(reasons.contains(&(Severity::Warning, "mmcblk0 has used 90 % of its life".into())), "{reasons:?}");
    }

    #[test]
    fn the_load_is_what_was_busy_since_the_last_look() {
        let root = tree(&[("proc/stat", "cpu  9 9 9 9\ncpu0 100 0 100 700 100 0 0 0 0 0\nintr 5\n")]);
        let (mut load, mut gauges) = (Load::default(), Gauges::new());
        load.measure(root.path(), &mut gauges);
        assert!(gauges.is_empty(), "{gauges:?}");
        fs::write(root.path().join("proc/stat"), "cpu0 130 0 120 740 110 0 0 0 0 0\ncpu1 x\n").unwrap();
        load.measure(root.path(), &mut gauges);
        assert_eq!(gauges, [("cpu-percent.cpu0".to_owned(), 50.0)].into());
    }

    #[test]
    fn a_machine_that_shows_nothing_or_nonsense_has_no_gauges() {
        let root = tree(&[
            ("sys/class/thermal/thermal_zone0/type", "soc\n"),
            ("sys/class/thermal/thermal_zone0/temp", "hot\n"),
            ("sys/block/mmcblk0/device/life_time", "much\n"),
            ("proc/pressure/cpu", "\u{0}nonsense avg10=\n"),
        ]);
        let mut gauges = read(root.path(), &[]);
        gauges.retain(|key, _| !key.starts_with("free-percent"));
        assert!(gauges.is_empty(), "{gauges:?}");
    }
}
