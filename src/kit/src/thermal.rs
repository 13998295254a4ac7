//! Heat: from a thermal zone of the kernel to a level, with hysteresis; and whom a daemon asks for it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::dbus::Health1Proxy;
use serde::Deserialize;
use tokio::time::Interval;
use zbus::Connection;

/// Where the kernel shows thermal zones.
const ZONES: &str = "/sys/class/thermal";
/// How often the level is looked at.
// TIMEOUT: silicon under load heats by a few degrees in a second; the marks are 10 degrees apart.
const PERIOD: Duration = Duration::from_secs(1);
/// How long the health daemon may take.
// TIMEOUT: it answers in a millisecond; one that hangs is no better than one that is away.
const PATIENCE: Duration = Duration::from_secs(2);

/// How hot the machine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    #[default]
    Normal,
    /// Work that can wait should wait.
    Throttled,
    /// All work should wait.
    Critical,
}

impl Level {
    /// As interfaces name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Throttled => "throttled",
            Self::Critical => "critical",
        }
    }

    /// A level by its name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Normal, Self::Throttled, Self::Critical].into_iter().find(|level| level.name() == name)
    }
}

/// Which zone is watched, and what counts as hot. The NPU has no thermal protection of its own below the machine's
/// emergency shutdown.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Marks {
    /// Type of the thermal zone. Nothing is watched where the machine has none of it.
    pub zone: String,
    /// From here on batch requests are refused, in degrees Celsius.
    pub throttle_celsius: f64,
    /// From here on every request is refused.
    pub critical_celsius: f64,
    /// How far below a mark the zone must cool before it counts no more.
    pub hysteresis_celsius: f64,
}

impl Default for Marks {
    fn default() -> Self {
        // SOURCE: rk3588-base.dtsi: npu-thermal has one trip, critical at 115 °C, which shuts the machine down.
        Self { zone: "npu-thermal".into(), throttle_celsius: 85.0, critical_celsius: 95.0, hysteresis_celsius: 5.0 }
    }
}

impl Marks {
    /// The level after `level` at a temperature. A mark that was reached counts until the zone is cooler by the
    /// hysteresis.
    pub fn next_level(&self, level: Level, celsius: f64) -> Level {
        let reached = |mark: f64, already: bool| celsius >= if already { mark - self.hysteresis_celsius } else { mark };
        if reached(self.critical_celsius, level == Level::Critical) {
            return Level::Critical;
        }
        if reached(self.throttle_celsius, level != Level::Normal) {
            return Level::Throttled;
        }
        Level::Normal
    }
}

/// What a [`Follower`] noticed.
#[derive(Debug)]
pub enum Heat {
    /// The level is another one.
    Changed {
        /// The level before.
        before: Level,
        /// The level.
        level: Level,
        /// Whether the health daemon said so.
        told: bool,
    },
    /// The zone cannot be read any more; the level stays.
    Unknown {
        /// The level.
        level: Level,
        /// Why.
        error: io::Error,
    },
}

/// Follows the level: as the health daemon says where there is one, else by a zone of its own.
#[derive(Debug)]
pub struct Follower {
    marks: Marks,
    zone: Option<PathBuf>,
    health: Health1Proxy<'static>,
    level: Level,
    /// The zone could not be read at the last look.
    blind: bool,
    tick: Interval,
}

impl Follower {
    /// Looks for the zone of `marks`, and for the health daemon whenever it is asked.
    ///
    /// # Errors
    /// Where the bus refuses.
    pub async fn new(marks: &Marks, bus: &Connection) -> zbus::Result<Self> {
        // Without a cache: a daemon that went away must not be believed for ever.
        let health = Health1Proxy::builder(bus).cache_properties(zbus::proxy::CacheProperties::No).build().await?;
        let zone = find_zone(Path::new(ZONES), &marks.zone);
        let tick = tokio::time::interval(PERIOD);
        Ok(Self { marks: marks.clone(), zone, health, level: Level::Normal, blind: false, tick })
    }

    /// Whether the machine has the zone.
    pub fn has_zone(&self) -> bool {
        self.zone.is_some()
    }

    /// Looks once a second, until there is something to say. The level is normal at first, and where nobody knows it: what
    /// nobody can confirm must not refuse requests for ever.
    pub async fn next(&mut self) -> Heat {
        loop {
            self.tick.tick().await;
            let told = tokio::time::timeout(PATIENCE, self.health.thermal_level()).await;
            let told = told.ok().and_then(Result::ok).and_then(|name| Level::parse(&name));
            if let Some(heat) = self.look(told) {
                return heat;
            }
        }
    }

    /// One look, after what the health daemon told.
    fn look(&mut self, told: Option<Level>) -> Option<Heat> {
        let level = match (told, &self.zone) {
            (Some(level), _) => Ok(level),
            (None, Some(zone)) => read_celsius(zone).map(|celsius| self.marks.next_level(self.level, celsius)),
            (None, None) => Ok(Level::Normal),
        };
        let was_blind = std::mem::replace(&mut self.blind, level.is_err());
        match level {
            Ok(level) => {
                let before = std::mem::replace(&mut self.level, level);
                (level != before).then_some(Heat::Changed { before, level, told: told.is_some() })
            }
            Err(error) => (!was_blind).then_some(Heat::Unknown { level: self.level, error }),
        }
    }
}

/// The zone of a type below `zones`, the kernel's `/sys/class/thermal`.
pub fn find_zone(zones: &Path, kind: &str) -> Option<PathBuf> {
    let zones = fs::read_dir(zones).ok()?.flatten().map(|entry| entry.path());
    let mut matching = zones.filter(|zone| fs::read_to_string(zone.join("type")).is_ok_and(|text| text.trim() == kind));
    matching.next()
}

/// The temperature of a zone.
///
/// # Errors
/// Where it cannot be read or is no number.
pub fn read_celsius(zone: &Path) -> io::Result<f64> {
    let text = fs::read_to_string(zone.join("temp"))?;
    let millis: i32 = text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "no temperature"))?;
    Ok(f64::from(millis) / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_left_only_below_its_hysteresis() {
        use Level::{Critical, Normal, Throttled};
        let marks = Marks::default();
        let mut level = Normal;
        for (celsius, expected) in [
            (84.9, Normal),
            (85.0, Throttled),
            (80.1, Throttled),
            (94.9, Throttled),
            (95.0, Critical),
            (90.1, Critical),
            (89.9, Throttled),
            (94.0, Throttled),
            (79.9, Normal),
            (84.0, Normal),
            (120.0, Critical),
            (20.0, Normal),
        ] {
            level = marks.next_level(level, celsius);
            assert_eq!(level, expected, "at {celsius}");
        }
    }

    #[test]
    fn the_zone_is_found_by_its_type_and_read_in_degrees() {
        let folder = tempfile::tempdir().unwrap();
        for (zone, kind) in [("thermal_zone0", "soc-thermal\n"), ("thermal_zone1", "npu-thermal\n")] {
            fs::create_dir(folder.path().join(zone)).unwrap();
            fs::write(folder.path().join(zone).join("type"), kind).unwrap();
        }
        let zone = find_zone(folder.path(), "npu-thermal").unwrap();
        assert_eq!(zone, folder.path().join("thermal_zone1"));
        read_celsius(&zone).unwrap_err();
        fs::write(zone.join("temp"), "61250\n").unwrap();
        assert_eq!(read_celsius(&zone).unwrap(), 61.25);
        assert_eq!(find_zone(folder.path(), "gpu-thermal"), None);
    }
}
