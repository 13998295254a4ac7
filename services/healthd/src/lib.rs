//! Watches the machine's health, says what is wrong and acts within its budgets.
//!
//! ```text
//! kernel log, saved logs ─▶ record ─▶ classify ─▶ finding ─┐
//! npud: "a result of model m was untrusted" ───────────────┼─▶ incident ─▶ ladder ─▶ service manager, logind
//! files of /sys and /proc, service manager ─▶ gauges ──────┴─▶ picture  ─▶ D-Bus, MQTT, metrics, support bundle
//! ```
//! What decides is pure: [`classify`], [`incident`], [`ladder`]. It learns the time from its caller.

#![forbid(unsafe_code)]

mod act;
mod bundle;
pub mod class;
pub mod classify;
mod config;
#[cfg(test)]
mod corpus;
mod dbus;
mod gauge;
pub mod incident;
pub mod ladder;
mod message;
mod metrics;
mod mqtt;
mod pattern;
pub mod record;
mod redact;
mod selftest;
pub mod smart;
mod source;
mod state;
mod view;
mod watch;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use api::dbus::{Device1Proxy, HEALTH_NAME};
use api::{ErrorCode, Failure};
use futures_util::StreamExt as _;
use kit::systemd;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};
use zbus::Connection;

pub use act::rebind;
pub use config::Config;
use dbus::{Order, Server};
use incident::Hurt;
use mqtt::Front;
use state::State;
use view::Shared;
use watch::Watch;

/// How often open incidents are looked at.
// TIMEOUT: an incident is to be told within a second of its last line.
const GLANCE: Duration = Duration::from_millis(100);
/// Records that may wait for the loop.
const RECORDS: usize = 256;
/// How npud calls a pooling job that the kernel's watchdog ended after its work. SOURCE: org.cairn.Device1.xml.
const POOLING_UNHEARD: &str = "pooling-unheard";
/// Self-tests and bundles that may wait.
const ORDERS: usize = 4;

/// Watches until the service manager asks to stop.
///
/// # Errors
/// Where the bus or a setting is unusable, or a front end ends by itself.
pub async fn run(config: Config) -> Result<()> {
    let config = Arc::new(config);
    let (mut state, damaged) = State::load(&config.state);
    if let Some(why) = damaged {
        warn!(why, "what was known before is lost");
    }
    let boot_id = boot_id(&config.root)?;
    let previous = state.clone();
    state.enter(&boot_id);

    let bus = config.bus.connect().build().await.context("connect to the bus")?;
    let (orders, mut ordered) = mpsc::channel(ORDERS);
    let view = Shared::default();
    let server = Server::start(bus.clone(), view.clone(), &config, orders).await.context("serve on the bus")?;
    let front = Front::open(&config)?;
    let (sequence, mut watch) = (state.sequence, Watch::new(Arc::clone(&config), bus.clone(), server, front, state));
    let died_of = watch.remember(source::saved(&config.pstore)).await?;
    if previous.boot_id != boot_id {
        begin_boot(&mut watch.state, &previous, died_of, &config.root);
    }
    watch.measure().await?;
    // Not before there is a picture: nobody sees half of one.
    kit::bus::own(&bus, HEALTH_NAME).await.with_context(|| format!("own the name {HEALTH_NAME}"))?;

    let (records, mut heard) = mpsc::channel(RECORDS);
    // A task of its own reads on while this loop measures.
    let source = source::follow(config.kernel_log.clone(), config.kernel_log_is_text, sequence, records);
    let mut source = tokio::spawn(source);
    let (tell, mut told) = mpsc::channel(RECORDS);
    listen(&bus, tell).await?;
    let listener = config.metrics_socket.as_deref().map(metrics::listen);
    let metrics = async {
        match listener {
            Some(listener) => metrics::serve(listener, &view).await,
            None => std::future::pending().await,
        }
    };
    let mut metrics = std::pin::pin!(metrics);
    let mut shutdown = std::pin::pin!(systemd::shutdown());
    let mut glance = every(GLANCE);
    let mut measure = every(Duration::from_secs(config.gauge_seconds.max(1)));
    let pulse = Arc::new(std::sync::Mutex::new(std::time::Instant::now()));
    let beat = Arc::clone(&pulse);
    // TIMEOUT: the loop measures every few seconds; one that has not come round in three periods stands still.
    let stuck = Duration::from_secs(config.gauge_seconds.max(1)) * 3 + Duration::from_secs(5);
    let alive = move || beat.lock().is_ok_and(|at| at.elapsed() < stuck);
    let keep_alive = tokio::spawn(systemd::keep_alive(alive));
    let (mut deaf, mut unmeasured) = (false, false);

    info!(message_id = message::WATCHING, boot_id, "watching");
    systemd::ready("watching")?;
    loop {
        if let Ok(mut at) = pulse.lock() {
            *at = std::time::Instant::now();
        }
        tokio::select! {
            Some(record) = heard.recv() => watch.hear(record).await?,
            ended = &mut source, if !deaf => {
                deaf = true;
                let ended = ended.context("its reader").and_then(|ended| ended);
                let why = ended.err().map_or_else(|| "it ended".to_owned(), |error| format!("{error:#}"));
                watch.trouble("kernel-log", format!("the kernel's log cannot be read: {why}")).await?;
            }
            Some(hurt) = told.recv() => watch.told(hurt).await?,
            Some(order) = ordered.recv() => carry_out(order, &bus, &config, &watch, &view),
            step = watch.front.step() => {
                step?;
                watch.refresh().await?;
            }
            ended = &mut metrics, if !unmeasured => {
                unmeasured = true;
                let why = ended.err().map(|error| format!("{error:#}")).unwrap_or_default();
                watch.trouble("metrics", format!("metrics are not served: {why}")).await?;
            }
            _ = glance.tick(), if !watch.is_quiet() => {
                // What waits was said before now: no incident is settled without what belongs to it.
                for _ in 0..told.len() {
                    watch.told(told.recv().await.context("what waits is there")?).await?;
                }
                for _ in 0..heard.len() {
                    watch.hear(heard.recv().await.context("what waits is there")?).await?;
                }
                watch.tick().await?;
            }
            _ = measure.tick() => watch.measure().await?,
            result = &mut shutdown => { result?; break }
        }
    }
    keep_alive.abort();
    systemd::stopping()?;
    watch.state.ended_cleanly = act::is_shutting_down(&bus).await;
    watch.save()?;
    watch.front.leave().await;
    Ok(())
}

fn every(period: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

fn boot_id(root: &Path) -> Result<String> {
    let file = root.join("proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    Ok(text.trim().replace('-', ""))
}

/// Decides why this boot began: what the kernel saved says it best, then the watchdog, then how we ended.
fn begin_boot(state: &mut State, previous: &State, died_of: Option<&'static str>, root: &Path) {
    let status = std::fs::read_to_string(root.join("sys/class/watchdog/watchdog0/bootstatus")).unwrap_or_default();
    // SOURCE: WDIOF_CARDRESET, include/uapi/linux/watchdog.h.
    let by_watchdog = status.trim().parse::<u32>().is_ok_and(|status| status & 0x20 != 0);
    let reason = match died_of {
        Some(reason) => reason,
        None if previous.boot_id.is_empty() => "first",
        None if previous.ended_cleanly => "clean",
        None if by_watchdog => "watchdog",
        None => "unclean",
    };
    if !matches!(reason, "first" | "clean") {
        state.count("unclean-boots", 1);
    }
    state.reset_reason = reason.to_owned();
}

/// Listens to what the NPU's owner tells, from now on and for ever. An owner that is not there, or starts again, is no
/// matter.
async fn listen(bus: &Connection, tell: mpsc::Sender<Hurt>) -> Result<()> {
    let device = Device1Proxy::builder(bus).cache_properties(zbus::proxy::CacheProperties::No).build().await?;
    let mut replaced = device.receive_context_replaced().await?;
    tokio::spawn(async move {
        while let Some(signal) = replaced.next().await {
            let Ok(args) = signal.args() else { continue };
            let hurt = Hurt {
                model: args.model().to_string(),
                unheard: *args.job() == POOLING_UNHEARD,
                reason: args.reason().to_string(),
                kernel_line: args.kernel_line().to_string(),
            };
            if tell.send(hurt).await.is_err() {
                break;
            }
        }
    });
    Ok(())
}

/// Starts long work that a client asked for.
fn carry_out(order: Order, bus: &Connection, config: &Arc<Config>, watch: &Watch, view: &Shared) {
    let config = Arc::clone(config);
    match order {
        Order::SelfTest { models, job } => {
            let (bus, mqtt) = (bus.clone(), watch.front.connected());
            tokio::spawn(async move {
                let test = selftest::run(&bus, &config, models, mqtt);
                tokio::select! {
                    checks = test => job.finish(dbus::self_test_details(checks)).await,
                    () = job.ended() => {}
                }
            });
        }
        Order::Bundle { job } => {
            let parts = watch.parts(&view.get());
            let name = format!("{:012}-{}", watch.state.operated(watch::uptime()).as_millis(), "cairn");
            tokio::spawn(async move {
                let write = move || bundle::write(&config.state.join("bundles"), &config.root, &name, parts);
                let written = tokio::task::spawn_blocking(write).await;
                let written = written.context("gather a support bundle").and_then(|written| written);
                let failure = |error: anyhow::Error| Failure::new(ErrorCode::Internal, format!("{error:#}"));
                let found = written.map_err(failure).and_then(|(name, bytes)| dbus::bundle_details(name, bytes));
                job.finish(found).await;
            });
        }
    }
}
