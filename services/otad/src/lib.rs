//! The daemon that updates the system, and the health gate that says whether an update survived.
//!
//! ```text
//! MQTT desired state ─┐                       ┌─▶ RAUC, which writes the other slot
//! hawkBit action ─────┼─▶ agent (states, disk) ┤
//! D-Bus Install ──────┘        ▲              └─▶ logind, which starts the machine anew
//!                              │ after the reboot
//!                        health gate ─▶ RAUC, which marks the slot good
//! ```
//! [`state`] has the states and their one transition function, [`condition`] what must be true before something is done.

#![forbid(unsafe_code)]

pub mod agent;
pub mod condition;
mod config;
mod dbus;
pub mod failure;
pub mod gate;
pub mod hawkbit;
pub mod machine;
mod models;
mod models_dbus;
mod mqtt;
pub mod offer;
pub mod rauc;
pub mod record;
pub mod state;

use std::sync::Arc;

use anyhow::{Context as _, Result};
use kit::{log, systemd};
use tokio::sync::Notify;
use tracing::info;

use agent::{Agent, Handle};
pub use config::{Config, Gate, Hawkbit, ModelStore, Places, Retry, Rules};
use models::Models;

/// Name of the file that the daemon remembers in.
pub const FILE: &str = "update.json";
/// Name of the file, beside it, that asks for a factory reset. The unit of the program that does it names it as well.
pub const RESET: &str = "factory-reset";

/// Serves until the service manager asks to stop.
///
/// # Errors
/// Where the bus, a setting or what runs is unusable, or a front end ends by itself.
pub async fn run(config: Config) -> Result<()> {
    let device = kit::identity::device(config.device_name.as_deref())?;
    let connection = config.bus.connect().build().await.context("connect to the bus")?;
    let (agent, handle) = Agent::new(config.clone(), device.clone(), connection.clone()).await?;
    let pulse = agent.pulse();
    let models = Models::open(config.model_store.clone(), config.download_ca.clone(), connection.clone()).await?;

    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let mqtt = serve_mqtt(&config, &device, (handle.clone(), models.clone()), async move { stopped.notified().await });
    let mut mqtt = std::pin::pin!(mqtt);
    let ready = || {
        info!(message_id = log::UPDATES_SERVED, device, "serving");
        // Outside a service nothing happens.
        systemd::ready("waiting for updates").unwrap_or_else(|error| tracing::warn!(%error, "not announced"));
    };
    tokio::select! {
        () = agent.run() => {}
        result = dbus::serve(connection, handle.clone(), models.clone(), ready) => result.context("the D-Bus front end ended")?,
        () = models.run() => {}
        result = &mut mqtt => result.context("the MQTT front end ended")?,
        result = serve_hawkbit(&config, &device, handle.clone()) => result.context("the hawkBit front end ended")?,
        result = systemd::keep_alive(move || pulse.beats()) => result?,
        result = systemd::shutdown() => result?,
    }
    info!("stopping");
    systemd::stopping()?;
    stop.notify_one();
    mqtt.await
}

/// Serves over MQTT if there is a broker in the configuration; else waits for the end.
async fn serve_mqtt(
    config: &Config,
    device: &str,
    (handle, models): (Handle, Models),
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let Some(settings) = &config.mqtt else {
        stop.await;
        return Ok(());
    };
    let topics = api::mqtt::Topics::new(device)?;
    let will = (topics.update_availability(), api::mqtt::OFFLINE);
    let (link, events) = kit::mqtt::open(settings, &format!("cairn-otad-{device}"), 1, (&will.0, will.1))?;
    mqtt::run((handle, models), topics, link, events, config.home_assistant.enabled, stop).await
}

/// Asks hawkBit if there is one in the configuration; else waits for ever.
async fn serve_hawkbit(config: &Config, device: &str, handle: Handle) -> Result<()> {
    match &config.hawkbit {
        Some(settings) => hawkbit::run(settings, device, handle).await,
        None => std::future::pending().await,
    }
}
