//! What must be true before a slot is written and before the machine starts anew: pure checks over gauges.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use api::mqtt::{TimeOfDay, UpdateWindow};

use crate::config::Rules;
use crate::offer::Offer;

/// What is measured. `None` where this machine cannot tell, which never stands in the way: a machine whose services are
/// broken needs its update most.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Whether the machine is too hot for more work.
    pub hot: Option<bool>,
    /// Charge of a battery that is being used up, in percent.
    pub discharging_percent: Option<u32>,
    /// How long nobody has asked the NPU for anything.
    pub idle: Option<Duration>,
    /// Room for what this daemon writes, in bytes.
    pub free_bytes: Option<u64>,
    /// The time of day in the machine's time zone.
    pub time: Option<TimeOfDay>,
}

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmet {
    /// Nobody said that it shall be done.
    Person,
    /// Other devices go first.
    Wave,
    /// The window is closed.
    Window(UpdateWindow),
    /// The machine is too hot.
    Heat,
    /// The battery is low.
    Power {
        /// Its charge.
        percent: u32,
        /// What it must have.
        wanted: u32,
    },
    /// The NPU is used.
    Idle {
        /// How long nobody must have used it.
        wanted: Duration,
    },
    /// There is no room.
    Space {
        /// What there is.
        free: u64,
        /// What there must be.
        wanted: u64,
    },
    /// RAUC does something else.
    Rauc(String),
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Person => write!(f, "person: nobody said that it shall be done"),
            Self::Wave => write!(f, "wave: other devices go first"),
            Self::Window(window) => write!(f, "window: {} to {}", window.from, window.to),
            Self::Heat => write!(f, "heat: the machine is too hot"),
            Self::Power { percent, wanted } => write!(f, "power: the battery has {percent} %, {wanted} % are needed"),
            Self::Idle { wanted } => write!(f, "idle: the NPU is used; {} s without requests", wanted.as_secs()),
            Self::Space { free, wanted } => write!(f, "space: {free} bytes are free, {wanted} are needed"),
            Self::Rauc(reason) => write!(f, "rauc: {reason}"),
        }
    }
}

/// What keeps a slot from being written. `proceed`: a person said that nothing but heat, power and space counts.
pub fn before_install(offer: &Offer, proceed: bool, device: &str, gauges: &Gauges, rules: &Rules) -> Vec<Unmet> {
    let mut unmet = Vec::new();
    if !proceed && !offer.urgent {
        unmet.extend((!rules.automatic).then_some(Unmet::Person));
        unmet.extend((!offer.wave_reached(device)).then_some(Unmet::Wave));
        unmet.extend(window(offer, gauges));
    }
    unmet.extend((gauges.hot == Some(true)).then_some(Unmet::Heat));
    unmet.extend(power(gauges, rules));
    unmet.extend(space(gauges, rules));
    unmet
}

/// What keeps the machine from starting anew.
pub fn before_reboot(offer: &Offer, proceed: bool, gauges: &Gauges, rules: &Rules) -> Vec<Unmet> {
    let mut unmet = Vec::new();
    if !proceed {
        // Whoever asked for it now sits in front of it.
        unmet.extend((!rules.reboot || offer.urgent).then_some(Unmet::Person));
        unmet.extend(window(offer, gauges));
        let wanted = Duration::from_secs(rules.idle_seconds);
        unmet.extend(gauges.idle.is_some_and(|idle| idle < wanted).then_some(Unmet::Idle { wanted }));
    }
    unmet.extend(power(gauges, rules));
    unmet
}

fn window(offer: &Offer, gauges: &Gauges) -> Option<Unmet> {
    let (window, time) = (offer.window?, gauges.time?);
    (!window.contains(time)).then_some(Unmet::Window(window))
}

fn power(gauges: &Gauges, rules: &Rules) -> Option<Unmet> {
    let (percent, wanted) = (gauges.discharging_percent?, rules.battery_percent);
    (percent < wanted).then_some(Unmet::Power { percent, wanted })
}

fn space(gauges: &Gauges, rules: &Rules) -> Option<Unmet> {
    let (free, wanted) = (gauges.free_bytes?, rules.free_mib.saturating_mul(1 << 20));
    (free < wanted).then_some(Unmet::Space { free, wanted })
}

/// The lowest charge of the batteries that are being used up. `None` on a machine without any.
/// SOURCE: Documentation/ABI/testing/sysfs-class-power.
pub(crate) fn discharging_percent(sysfs: &Path) -> Option<u32> {
    let supplies = fs::read_dir(sysfs.join("class/power_supply")).ok()?;
    let read = |supply: &Path, file: &str| fs::read_to_string(supply.join(file)).map(|text| text.trim().to_owned());
    let charge = |supply: &Path| {
        let used = read(supply, "type").ok()? == "Battery" && read(supply, "status").ok()? == "Discharging";
        if used { read(supply, "capacity").ok()?.parse().ok() } else { None }
    };
    supplies.flatten().filter_map(|supply| charge(&supply.path())).min()
}

/// Room in the file system of `folder`, in bytes.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let status = rustix::fs::statvfs(folder).ok()?;
    Some(status.f_bavail.saturating_mul(status.f_frsize))
}

/// The time of day of now.
pub(crate) fn time_of_day() -> Option<TimeOfDay> {
    let now = jiff::ZonedDateTime::now();
    TimeOfDay::new(u16::try_from(now.hour()).ok()?, u16::try_from(now.minute()).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::mqtt::UpdateWave;

    fn offer() -> Offer {
        let window = UpdateWindow { from: TimeOfDay::new(2, 0).unwrap(), to: TimeOfDay::new(4, 0).unwrap() };
        let wave = UpdateWave { seed: "s".into(), percent: 0.0 };
        Offer { window: Some(window), wave: Some(wave), ..Offer::new("/b", None) }
    }

    fn bad() -> Gauges {
        Gauges {
            hot: Some(true),
            discharging_percent: Some(20),
            idle: Some(Duration::ZERO),
            free_bytes: Some(1),
            time: TimeOfDay::new(12, 0),
        }
    }

    fn words(unmet: Vec<Unmet>) -> Vec<String> {
        unmet.iter().map(|unmet| unmet.to_string().split(':').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn each_condition_is_named() {
        let rules = Rules { automatic: false, reboot: false, ..Rules::default() };
        let install = words(before_install(&offer(), false, "d", &bad(), &rules));
        assert_eq!(install, ["person", "wave", "window", "heat", "power", "space"]);
        let reboot = words(before_reboot(&offer(), false, &bad(), &rules));
        assert_eq!(reboot, ["person", "window", "idle", "power"]);
    }

    #[test]
    fn a_person_overrides_what_is_for_comfort_and_not_what_is_for_safety() {
        let rules = Rules { automatic: false, reboot: false, ..Rules::default() };
        assert_eq!(words(before_install(&offer(), true, "d", &bad(), &rules)), ["heat", "power", "space"]);
        let urgent = Offer { urgent: true, ..offer() };
        assert_eq!(words(before_install(&urgent, false, "d", &bad(), &rules)), ["heat", "power", "space"]);
        assert_eq!(words(before_reboot(&offer(), true, &bad(), &rules)), ["power"]);
    }

    #[test]
    fn what_the_machine_cannot_tell_stands_in_no_way() {
        let offer = Offer { wave: None, ..offer() };
        assert!(before_install(&offer, false, "d", &Gauges::default(), &Rules::default()).is_empty());
        assert!(before_reboot(&offer, false, &Gauges::default(), &Rules::default()).is_empty());
    }

    #[test]
    fn the_lowest_battery_in_use_counts() {
        let sysfs = tempfile::tempdir().unwrap();
        assert_eq!(discharging_percent(sysfs.path()), None);
        for (name, kind, status, capacity) in [
            ("mains", "Mains", "", ""),
            ("bat0", "Battery", "Discharging", "61"),
            ("bat1", "Battery", "Discharging", "34"),
            ("bat2", "Battery", "Charging", "3"),
        ] {
            let supply = sysfs.path().join("class/power_supply").join(name);
            fs::create_dir_all(&supply).unwrap();
            for (file, text) in [("type", kind), ("status", status), ("capacity", capacity)] {
                fs::write(supply.join(file), format!("{text}\n")).unwrap();
            }
        }
        assert_eq!(discharging_percent(sysfs.path()), Some(34));
    }
}
