//! Heat decides what is admitted: as the health daemon says where there is one, else by the GPU's own zone.

use anyhow::Result;
use kit::thermal::{Follower, Heat, Marks};
use tracing::{info, warn};

use crate::dbus::Server;

/// Follows the heat for ever. While it cannot be read the level stays.
pub(crate) async fn watch(marks: &Marks, server: &Server) -> Result<()> {
    let mut follower = Follower::new(marks, server.connection()).await?;
    if !follower.has_zone() {
        warn!(zone = marks.zone, "this machine has no such thermal zone, only the health daemon can say how hot it is");
    }
    loop {
        match follower.next().await {
            Heat::Changed { before, level, told } => {
                info!(level = ?before, next = ?level, told, "thermal level changes");
                server.set_level(level).await?;
            }
            Heat::Unknown { level, error } => {
                warn!(%error, ?level, "the temperature cannot be read, the level stays");
            }
        }
    }
}
