//! From a record to a finding: by the device first, by the text second.
//!
//! ```text
//! record ─▶ device and message ─▶ rows of that kind of device ─▶ class, role, who suffered
//! ```
//! Pure: no clock, no I/O. What is not known is nothing, and what a program wrote into the log is nothing.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::class::{CLASSES, Class, From, ROWS, Role};
use crate::pattern::Pattern;
use crate::record::Record;

/// Cores of an NPU and the IOMMU of each, in order. The same driver serves other IOMMUs, so the name decides.
/// SOURCE: kernel-lines, line prefix grammar (RK3588); npu-spec-rk3576 (RK3576).
const CORES: &[&[(&str, &str)]] = &[
    &[("fdab0000.npu", "fdab9000.iommu"), ("fdac0000.npu", "fdaca000.iommu"), ("fdad0000.npu", "fdada000.iommu")],
    &[("27700000.npu", "27702000.iommu"), ("27708000.npu", "2770a000.iommu")],
];
/// The NPU's DRM device, which prints for all cores.
const NPU_DRM: &str = "rknn";

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The class.
    pub class: &'static Class,
    /// How the line belongs to it.
    pub role: Role,
    /// The device, as the kernel names it; empty where it is not about one.
    pub device: String,
    /// The core of the NPU.
    pub core: Option<u32>,
    /// Who suffered; empty where nobody is named.
    pub subject: String,
}

struct CompiledRow {
    pattern: Pattern,
    class: &'static Class,
    role: Role,
    /// The beginning of the device's name, where it matters.
    device: &'static str,
}

/// Kinds of senders, each with its rows, so that a line meets few of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Sender {
    Npu,
    NpuIommu,
    Gpu,
    Device,
    AnyDevice,
    Kernel,
}

/// Rows by who sends them and by the first letter of their messages.
type Table = HashMap<(Sender, Option<u8>), Vec<CompiledRow>>;

/// All rows; those whose first letter is not fixed are under `None`.
static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table::new();
    for (from, text, class, role) in ROWS {
        let (sender, device) = match from {
            From::Npu => (Sender::Npu, ""),
            From::NpuIommu => (Sender::NpuIommu, ""),
            From::Gpu => (Sender::Gpu, ""),
            From::Device(prefix) => (Sender::Device, *prefix),
            From::AnyDevice => (Sender::AnyDevice, ""),
            From::Kernel => (Sender::Kernel, ""),
        };
        let pattern = Pattern::new(text);
        let class = crate::class::find(class).expect("every row names a class of the table");
        let row = CompiledRow { class, role: *role, device, pattern };
        table.entry((sender, row.pattern.first())).or_default().push(row);
    }
    table
});

/// What `record` says, if it is known.
pub fn classify(record: &Record) -> Option<Finding> {
    if record.foreign {
        return None;
    }
    let (driver, device, message) = split(&record.text);
    // Both must say the same: a forged text has another device, or none.
    if let (Some(told), Some(device)) = (&record.device, device)
        && !driver.is_empty()
        && told != device
    {
        return None;
    }
    let by_device = device.and_then(|device| device_finding(driver, device, message));
    by_device.or_else(|| look(Sender::Kernel, "", &record.text))
}

/// Driver, device and message of a line that `dev_printk` made: `driver device: message`, or `device: message` as some
/// subsystems write. SOURCE: `__dev_printk`, drivers/base/core.c.
fn split(text: &str) -> (&str, Option<&str>, &str) {
    let Some((prefix, message)) = text.split_once(": ") else { return ("", None, text) };
    let (driver, device) = prefix.rsplit_once(' ').unwrap_or(("", prefix));
    if device.is_empty() || device.contains(['[', '(']) || driver.contains(':') {
        return ("", None, text);
    }
    (driver, Some(device), message)
}

fn device_finding(driver: &str, device: &str, message: &str) -> Option<Finding> {
    // DRM's mark of its own lines and of errors. SOURCE: `__drm_printk`, drm_print.h.
    let message = message.strip_prefix("[drm] ").unwrap_or(message);
    let message = message.strip_prefix("*ERROR* ").unwrap_or(message);
    let finding = match driver {
        "rocket" | "RKNPU" => {
            let core = core_of(device, |core| core.0);
            (core.is_some() || device == NPU_DRM).then(|| look(Sender::Npu, device, message)).flatten()
        }
        "rk_iommu" => core_of(device, |core| core.1).and_then(|_| look(Sender::NpuIommu, device, message)),
        "panthor" if device.ends_with(".gpu") => look(Sender::Gpu, device, message),
        _ => look(Sender::Device, device, message),
    };
    let mut finding = finding.or_else(|| look(Sender::AnyDevice, device, message))?;
    finding.core = core_of(device, |core| core.0).or_else(|| core_of(device, |core| core.1));
    Some(finding)
}

/// The number of the core whose name, chosen by `name`, is `device`.
fn core_of(device: &str, name: impl Fn(&(&'static str, &'static str)) -> &'static str) -> Option<u32> {
    let place = CORES.iter().find_map(|cores| cores.iter().position(|core| name(core) == device))?;
    u32::try_from(place).ok()
}

fn look(sender: Sender, device: &str, message: &str) -> Option<Finding> {
    let first = message.bytes().next();
    let rows = [first, None].into_iter().filter_map(|first| TABLE.get(&(sender, first))).flatten();
    for row in rows.filter(|row| device.starts_with(row.device)) {
        if let Some(subject) = row.pattern.match_whole(message) {
            let device = subject.dev.filter(|_| device.is_empty()).unwrap_or(device).to_owned();
            return Some(Finding { class: row.class, role: row.role, device, core: None, subject: subject.text() });
        }
    }
    None
}

/// Where a class stands in the table: of equally bad classes the earlier names an incident.
pub(crate) fn rank(class: &Class) -> usize {
    CLASSES.iter().position(|known| known.name == class.name).unwrap_or(CLASSES.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class;

    fn text(text: &str) -> Option<(&'static str, Option<u32>)> {
        let record = Record { text: text.into(), ..Record::default() };
        classify(&record).map(|finding| (finding.class.name, finding.core))
    }

    #[test]
    fn every_row_names_a_class_and_compiles() {
        assert_eq!(TABLE.values().flatten().count(), ROWS.len());
    }

    #[test]
    fn class_names_are_unique() {
        for class in CLASSES {
            assert_eq!(class::find(class.name), Some(class));
        }
    }

    #[test]
    fn the_device_decides_before_the_text() {
        assert_eq!(
            text("rk_iommu fdaca000.iommu: Page fault at 0x00000001 of type write"),
            Some(("npu-page-fault", Some(1)))
        );
        assert_eq!(text("rk_iommu fdd97e00.iommu: Page fault at 0x00000001 of type write"), None);
        assert_eq!(text("rocket fdab1000.npu: NPU job timed out"), None);
        assert_eq!(text("NPU job timed out"), None);
        assert_eq!(text("npu fdab0000.npu: NPU job timed out"), None);
    }

    #[test]
    fn a_text_that_contradicts_its_device_says_nothing() {
        let record = Record {
            device: Some("fdac0000.npu".into()),
            text: "rocket fdab0000.npu: NPU job timed out".into(),
            ..Record::default()
        };
        assert_eq!(classify(&record), None);
        let foreign = Record { device: None, foreign: true, ..record };
        assert_eq!(classify(&foreign), None);
    }
}
