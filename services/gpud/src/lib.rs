//! The daemon that owns the GPU: language models, each served by a `llama-server` of its own.
//!
//! ```text
//! client ─D-Bus─▶ dbus ┐
//! broker ─MQTT──▶ mqtt ┼▶ queue ─▶ service ─▶ llama-server (a child for each model) ─▶ GPU: prompts, CPU: answers
//! client ─HTTP──▶ http ┘
//!
//! starting ─▶ serving ── SIGTERM ──▶ stopping ─▶ stopped
//!    │           └── bus, link or address lost ─▶ failed     (the service manager starts it again)
//!    └── no server program, bus or setting ─▶ failed
//! ```

#![forbid(unsafe_code)]

mod child;
mod config;
mod dbus;
mod generate;
mod http;
mod http_client;
mod machine;
mod mqtt;
mod plan;
mod queue;
mod service;
mod sse;
mod stream;
mod thermal;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kit::{log, systemd};
use tokio::sync::Notify;
use tracing::info;

pub use config::{Config, Http};

use dbus::Server;
use service::Service;

/// How late the runtime may be before the watchdog is not fed any more.
// TIMEOUT: a third of the unit's WatchdogSec.
const LATE: Duration = Duration::from_secs(10);

/// Serves until the service manager asks to stop.
///
/// # Errors
/// Where the server's program, the bus or a setting are unusable, or a front end ends by itself.
pub async fn run(config: Config) -> Result<()> {
    let service = Service::start(config).await?;
    let config = service.config().clone();
    let server = Server::start(service.clone(), config.bus.connect()).await?;

    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let mqtt = serve_mqtt(&service, &config, async move { stopped.notified().await });
    let mut mqtt = std::pin::pin!(mqtt);
    let models = service.models().len();
    info!(message_id = log::SERVING, models, device = service.device(), "serving");
    let shutdown = systemd::shutdown();
    systemd::ready(&format!("serving {models} language models"))?;
    let alive = Arc::new(std::sync::Mutex::new(Instant::now()));
    let pulse = Arc::clone(&alive);
    let lives = move || pulse.lock().is_ok_and(|at| at.elapsed() < LATE);
    tokio::select! {
        result = server.run() => result.context("the D-Bus front end ended")?,
        result = http::run(service.clone()) => result.context("the HTTP front end ended")?,
        result = &mut mqtt => result.context("the MQTT front end ended")?,
        result = systemd::keep_alive(lives) => result?,
        result = thermal::watch(&config.thermal, &server) => result?,
        () = service.watch_idle() => {}
        () = beat(&alive) => {}
        result = shutdown => result?,
    }
    info!("stopping");
    systemd::stopping()?;
    service.stop().await;
    stop.notify_one();
    mqtt.await
}

/// Notes for ever that the runtime moves.
async fn beat(alive: &std::sync::Mutex<Instant>) {
    let mut tick = tokio::time::interval(LATE / 4);
    loop {
        tick.tick().await;
        if let Ok(mut alive) = alive.lock() {
            *alive = Instant::now();
        }
    }
}

/// Serves over MQTT if there is a broker in the configuration; else waits for the end.
async fn serve_mqtt(service: &Service, config: &Config, stop: impl Future<Output = ()>) -> Result<()> {
    let Some(settings) = &config.mqtt else {
        stop.await;
        return Ok(());
    };
    let device = kit::identity::device(config.device_name.as_deref())?;
    let topics = api::mqtt::Topics::new(&device)?;
    let client = format!("cairn-gpud-{device}");
    // The broker sends as many requests ahead as the queue has room for.
    let in_flight = u16::try_from(config.queue_capacity).unwrap_or(u16::MAX);
    let will = topics.llm_state();
    let (link, events) = kit::mqtt::open(settings, &client, in_flight, (&will, api::mqtt::OFFLINE))?;
    mqtt::run(service.clone(), topics, link, events, settings.max_payload_bytes, stop).await
}
