//! The daemon that owns the NPU: engine, front ends, and their life.
//!
//! ```text
//! starting ─▶ loading ──── one model verified ───▶ serving ── SIGTERM ──▶ stopping ─▶ stopped
//!    │           └── none can be loaded ─▶ failed     └── bus or link lost ─▶ failed
//!    └── device cannot be opened ─▶ failed                (the service manager starts it again)
//! ```

#![forbid(unsafe_code)]

mod config;
mod packages;
mod thermal;

use std::sync::Arc;

use anyhow::{Context as _, Result};
use engine::{Engine, Event};
use kit::{log, mqtt, systemd};
use npu_device::{Driver, FaultMonitor};
use serve::dbus::Server;
use tokio::sync::{Notify, broadcast};
use tracing::{info, warn};

pub use config::{Config, Fleet};

/// Serves until the service manager asks to stop.
///
/// # Errors
/// Where the device, the bus, the models or a setting are unusable, or a front end ends by itself.
pub async fn run(driver: Arc<dyn Driver>, monitor: Option<Arc<dyn FaultMonitor>>, config: Config) -> Result<()> {
    let options = config.engine_options();
    let engine = Engine::start(driver, monitor, options).context("start the engine")?;
    let models = packages::load_all(&engine, &config.models, &config.store).await?;
    let server = Server::start(engine.clone(), config.bus.connect()).await?;

    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let mqtt = serve_mqtt(&engine, &config, async move { stopped.notified().await });
    let mut mqtt = std::pin::pin!(mqtt);
    // Who hears of readiness may ask for anything at once: what must be heard is listened to before.
    let (follow, log, shutdown) = (server.run(), log_events(engine.events()), systemd::shutdown());
    info!(message_id = log::SERVING, models, device = engine.status().device, "serving");
    systemd::ready(&format!("serving {models} models"))?;
    tokio::select! {
        result = follow => result.context("the D-Bus front end ended")?,
        result = &mut mqtt => result.context("the MQTT front end ended")?,
        result = systemd::keep_alive(|| engine.heartbeat()) => result?,
        result = thermal::watch(&config.thermal, &server, server.connection()) => result?,
        () = log => {}
        result = shutdown => result?,
    }
    info!("stopping");
    systemd::stopping()?;
    stop.notify_one();
    mqtt.await
}

/// Logs what a person may want to know later, until the engine ends.
async fn log_events(mut events: broadcast::Receiver<Event>) {
    loop {
        match events.recv().await {
            Ok(Event::ContextReplaced { context, model, reason, .. }) => {
                warn!(message_id = log::CONTEXT_REPLACED, context, model, reason, "a result could not be trusted");
            }
            Ok(Event::ModelLoaded(model)) => {
                info!(message_id = log::MODEL_LOADED, model = model.name, version = model.version, "loaded");
            }
            Ok(Event::ModelUnloaded(model)) => info!(model, "unloaded"),
            Err(broadcast::error::RecvError::Lagged(events)) => warn!(events, "events were missed"),
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

/// Serves over MQTT if there is a broker in the configuration; else waits for the end.
async fn serve_mqtt(engine: &Engine, config: &Config, stop: impl Future<Output = ()>) -> Result<()> {
    let Some(settings) = &config.mqtt else {
        stop.await;
        return Ok(());
    };
    let device = kit::identity::device(config.device_name.as_deref())?;
    let topics = api::mqtt::Topics::new(&device)?;
    let client = format!("cairn-npud-{device}");
    // The broker sends as many requests ahead as the queue has room for.
    let in_flight = u16::try_from(config.queue_capacity).unwrap_or(u16::MAX);
    let will = (topics.state(), api::mqtt::OFFLINE);
    let (link, events) = mqtt::open(settings, &client, in_flight, (&will.0, will.1))?;
    let front = serve::mqtt::Settings {
        pool_group: config.fleet.as_ref().map(|fleet| fleet.group.clone()),
        max_payload_bytes: settings.max_payload_bytes,
        home_assistant: config.home_assistant.enabled,
        metrics_period: config.metrics_period()?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    Ok(serve::mqtt::run(engine.clone(), topics, link, events, front, stop).await?)
}
