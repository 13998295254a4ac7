//! Heat: the thermal zone of the NPU decides what the engine admits.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use engine::ThermalLevel;
use serve::dbus::Server;
use tracing::{info, warn};

use crate::config::Thermal;

/// Where the kernel shows thermal zones.
const ZONES: &str = "/sys/class/thermal";
/// How often the zone is read.
// TIMEOUT: silicon under load heats by a few degrees in a second; the marks are 10 degrees apart.
const PERIOD: Duration = Duration::from_secs(1);

/// Watches the zone for ever. Where there is none it says so and only waits; while it cannot be read the level stays.
pub(crate) async fn watch(settings: &Thermal, server: &Server) -> Result<()> {
    let Some(zone) = find_zone(Path::new(ZONES), &settings.zone) else {
        warn!(zone = settings.zone, "this machine has no such thermal zone, heat is not watched");
        return std::future::pending().await;
    };
    let mut level = ThermalLevel::Normal;
    let mut blind = false;
    let mut tick = tokio::time::interval(PERIOD);
    loop {
        tick.tick().await;
        let read = read_celsius(&zone);
        if let Err(error) = &read
            && !blind
        {
            warn!(error = format!("{error:#}"), ?level, "the temperature cannot be read, the level stays");
        }
        blind = read.is_err();
        let Ok(celsius) = read else { continue };
        let next = next_level(settings, level, celsius);
        if next != level {
            info!(celsius, ?level, ?next, "thermal level changes");
            server.set_thermal_level(next).await?;
            level = next;
        }
    }
}

/// The level after `level` at a temperature. A mark that was reached counts until the zone is cooler by the hysteresis.
fn next_level(settings: &Thermal, level: ThermalLevel, celsius: f64) -> ThermalLevel {
    let reached = |mark: f64, already: bool| celsius >= if already { mark - settings.hysteresis_celsius } else { mark };
    if reached(settings.critical_celsius, level == ThermalLevel::Critical) {
        return ThermalLevel::Critical;
    }
    if reached(settings.throttle_celsius, level != ThermalLevel::Normal) {
        return ThermalLevel::Throttled;
    }
    ThermalLevel::Normal
}

fn find_zone(zones: &Path, kind: &str) -> Option<PathBuf> {
    let zones = fs::read_dir(zones).ok()?.flatten().map(|entry| entry.path());
    let mut matching = zones.filter(|zone| fs::read_to_string(zone.join("type")).is_ok_and(|text| text.trim() == kind));
    matching.next()
}

fn read_celsius(zone: &Path) -> Result<f64> {
    let file = zone.join("temp");
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let millis: i32 = text.trim().parse().with_context(|| format!("{} is no temperature", file.display()))?;
    Ok(f64::from(millis) / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_left_only_below_its_hysteresis() {
        use ThermalLevel::{Critical, Normal, Throttled};
        let settings = Thermal::default();
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
            level = next_level(&settings, level, celsius);
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
