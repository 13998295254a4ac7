//! Heat decides what the engine admits: as the health daemon says where there is one, else by the NPU's own zone.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use api::dbus::Health1Proxy;
use engine::ThermalLevel;
use kit::thermal::{Level, Marks, find_zone, read_celsius};
use serve::dbus::Server;
use tracing::{info, warn};
use zbus::Connection;

/// Where the kernel shows thermal zones.
const ZONES: &str = "/sys/class/thermal";
/// How often the level is looked at.
// TIMEOUT: silicon under load heats by a few degrees in a second; the marks are 10 degrees apart.
const PERIOD: Duration = Duration::from_secs(1);
/// How long the health daemon may take.
// TIMEOUT: it answers in a millisecond; one that hangs is no better than one that is away.
const PATIENCE: Duration = Duration::from_secs(2);

/// Follows the heat for ever. Where nobody knows it says so and only waits; while it cannot be read the level stays.
pub(crate) async fn watch(marks: &Marks, server: &Server, bus: &Connection) -> Result<()> {
    let zone = find_zone(Path::new(ZONES), &marks.zone);
    if zone.is_none() {
        warn!(zone = marks.zone, "this machine has no such thermal zone, only the health daemon can say how hot it is");
    }
    // Without a cache: a daemon that went away must not be believed for ever.
    let health = Health1Proxy::builder(bus).cache_properties(zbus::proxy::CacheProperties::No).build().await?;
    let mut level = Level::Normal;
    let mut blind = false;
    let mut tick = tokio::time::interval(PERIOD);
    loop {
        tick.tick().await;
        let told = tokio::time::timeout(PATIENCE, health.thermal_level()).await;
        let told = told.ok().and_then(Result::ok).and_then(|name| Level::parse(&name));
        let own = || zone.as_deref().map(|zone| read_celsius(zone).map(|celsius| marks.next_level(level, celsius)));
        let next = match told.map(Ok).or_else(own) {
            Some(Ok(next)) => next,
            Some(Err(error)) => {
                if !std::mem::replace(&mut blind, true) {
                    warn!(%error, ?level, "the temperature cannot be read, the level stays");
                }
                continue;
            }
            // A level that nobody can confirm any more must not refuse requests for ever.
            None => Level::Normal,
        };
        blind = false;
        if next != level {
            info!(?level, ?next, told = told.is_some(), "thermal level changes");
            server.set_thermal_level(engine_level(next)).await?;
            level = next;
        }
    }
}

fn engine_level(level: Level) -> ThermalLevel {
    match level {
        Level::Normal => ThermalLevel::Normal,
        Level::Throttled => ThermalLevel::Throttled,
        Level::Critical => ThermalLevel::Critical,
    }
}
