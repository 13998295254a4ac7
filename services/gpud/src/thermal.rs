//! Heat decides what is admitted: as the health daemon says where there is one, else by the GPU's own zone.

use anyhow::Result;
use kit::thermal::{Follower, Level, Marks};
use tracing::{info, warn};

use crate::dbus::Server;

/// Follows the heat for ever. While it cannot be read the level stays.
pub(crate) async fn watch(marks: &Marks, server: &Server) -> Result<()> {
    let mut follower = Follower::new(marks, server.connection()).await?;
    if !follower.has_zone() {
        warn!(zone = marks.zone, "this machine has no such thermal zone, only the health daemon can say how hot it is");
    }
    let mut level = Level::Normal;
    let mut blind = false;
    loop {
        match follower.next().await {
            Ok((next, told)) => {
                blind = false;
                if next != level {
                    info!(?level, ?next, told, "thermal level changes");
                    server.set_level(next).await?;
                    level = next;
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut blind, true) {
                    warn!(%error, ?level, "the temperature cannot be read, the level stays");
                }
            }
        }
    }
}
