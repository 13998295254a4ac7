//! Heat decides what the engine admits: as the health daemon says where there is one, else by the NPU's own zone.

use anyhow::Result;
use engine::ThermalLevel;
use kit::thermal::{Follower, Heat, Level, Marks};
use serve::dbus::Server;
use tracing::{info, warn};
use zbus::Connection;

/// Follows the heat for ever. Where nobody knows it says so and only waits; while it cannot be read the level stays.
pub(crate) async fn watch(marks: &Marks, server: &Server, bus: &Connection) -> Result<()> {
    let mut follower = Follower::new(marks, bus).await?;
    if !follower.has_zone() {
        warn!(zone = marks.zone, "this machine has no such thermal zone, only the health daemon can say how hot it is");
    }
    loop {
        match follower.next().await {
            Heat::Changed { before, level, told } => {
                info!(level = ?before, next = ?level, told, "thermal level changes");
                server.set_thermal_level(engine_level(level)).await?;
            }
            Heat::Unknown { level, error } => {
                warn!(%error, ?level, "the temperature cannot be read, the level stays");
            }
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
