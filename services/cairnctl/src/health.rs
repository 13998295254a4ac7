//! `cairnctl health`, `incidents`, `watch` and `bundle`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use api::dbus::{HEALTH_NAME, HEALTH_ROOT, Health1Proxy, Incident1Proxy, Job1Proxy};
use futures_util::StreamExt as _;
use serde::Serialize;
use zbus::fdo::ObjectManagerProxy;
use zbus::proxy::CacheProperties;
use zbus::{Connection, OwnedObjectPath};

use crate::Printer;

/// How the machine is.
#[derive(Debug, Serialize)]
struct Health {
    state: String,
    reasons: Vec<String>,
    thermal_level: String,
    reset_reason: String,
    gauges: BTreeMap<String, f64>,
    counters: BTreeMap<String, u64>,
}

/// What went wrong.
#[derive(Debug, PartialEq, Serialize)]
struct Incident {
    id: String,
    class: String,
    severity: String,
    device: String,
    core: i32,
    subject: String,
    model: String,
    count: u32,
    first_seen_ms: u64,
    suggested_action: String,
    taken_action: String,
    lines: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Bundle {
    /// Where the archive is written; by default here, under its own name
    #[arg(long, value_name = "FILE.tar.gz")]
    output: Option<PathBuf>,
}

/// A written archive.
#[derive(Debug, Serialize)]
struct Written {
    file: PathBuf,
    bytes: u64,
}

pub(crate) async fn health<W: Write>(connection: &Connection, printer: &mut Printer<'_, W>) -> Result<()> {
    let proxy = health_proxy(connection).await?;
    let health = Health {
        state: proxy.state().await.context("ask the health daemon")?,
        reasons: proxy.reasons().await?,
        thermal_level: proxy.thermal_level().await?,
        reset_reason: proxy.reset_reason().await?,
        gauges: proxy.gauges().await?.into_iter().collect(),
        counters: proxy.counters().await?.into_iter().collect(),
    };
    printer.print(&health, health_text)
}

fn health_text(health: &Health) -> String {
    let Health { state, reasons, thermal_level, reset_reason, gauges, counters } = health;
    let mut text = format!("{state}; thermal level {thermal_level}; last start: {reset_reason}\n");
    text.extend(reasons.iter().map(|reason| format!("  {reason}\n")));
    text.extend(gauges.iter().map(|(name, value)| format!("{value:>16.2} {name}\n")));
    text.extend(counters.iter().map(|(name, count)| format!("{count:>16} {name}\n")));
    text
}

pub(crate) async fn incidents<W: Write>(connection: &Connection, printer: &mut Printer<'_, W>) -> Result<()> {
    let mut incidents = Vec::new();
    for path in incident_paths(connection).await? {
        incidents.push(describe(connection, path).await?);
    }
    incidents.sort_by_key(|incident| incident.first_seen_ms);
    printer.print(&incidents, |incidents| {
        if incidents.is_empty() { "none".into() } else { incidents.iter().map(incident_text).collect() }
    })
}

/// Prints each incident when it is settled, for ever.
pub(crate) async fn watch<W: Write>(connection: &Connection, printer: &mut Printer<'_, W>) -> Result<()> {
    let manager = manager(connection).await?;
    let mut added = manager.receive_interfaces_added().await?;
    // One that is open already is not missed.
    for path in incident_paths(connection).await? {
        if Incident1Proxy::new(connection, path.clone()).await?.state().await? == "open" {
            print_settled(connection, path, printer).await?;
        }
    }
    while let Some(signal) = added.next().await {
        let path = OwnedObjectPath::from(signal.args()?.object_path().clone().into_owned());
        if is_incident(&path) {
            print_settled(connection, path, printer).await?;
        }
    }
    bail!("the bus closed the connection")
}

async fn print_settled<W: Write>(
    connection: &Connection,
    path: OwnedObjectPath,
    printer: &mut Printer<'_, W>,
) -> Result<()> {
    let proxy = Incident1Proxy::new(connection, path.clone()).await?;
    // Asked for first, so that no change falls between.
    let mut states = proxy.receive_state_changed().await;
    while proxy.state().await? == "open" {
        states.next().await.context("the daemon went away")?;
    }
    printer.print(&describe(connection, path).await?, incident_text)
}

pub(crate) async fn bundle<W: Write>(
    connection: &Connection,
    arguments: &Bundle,
    printer: &mut Printer<'_, W>,
) -> Result<()> {
    let proxy = health_proxy(connection).await?;
    let job = proxy.create_support_bundle(Default::default()).await.context("ask for a support bundle")?;
    let job = finished(connection, job).await?;
    let name: String = job.details().await?.remove("name").context("the job names no bundle")?.try_into()?;
    let bundle = proxy.open_support_bundle(&name, Default::default()).await.context("open the support bundle")?;
    let target = arguments.output.clone().unwrap_or_else(|| PathBuf::from(&name));
    let write = || -> std::io::Result<u64> {
        let mut source = File::from(std::os::fd::OwnedFd::from(bundle));
        let mut file = OpenOptions::new().write(true).create_new(true).open(&target)?;
        std::io::copy(&mut source, &mut file)
    };
    let bytes = write().with_context(|| format!("write {}", target.display()))?;
    printer.print(&Written { file: target, bytes }, |written| {
        format!("{}: {} bytes", written.file.display(), written.bytes)
    })
}

async fn finished(connection: &Connection, path: OwnedObjectPath) -> Result<Job1Proxy<'static>> {
    let job = Job1Proxy::builder(connection).destination(HEALTH_NAME).path(path).build().await?;
    let mut states = job.receive_state_changed().await;
    let mut state = job.state().await?;
    while state == "running" {
        state = states.next().await.context("the daemon went away")?.get().await?;
    }
    if state != "done" {
        let (code, message) = job.error().await?;
        bail!("{state}: {code}: {message}");
    }
    Ok(job)
}

async fn health_proxy(connection: &Connection) -> Result<Health1Proxy<'static>> {
    Ok(Health1Proxy::builder(connection).cache_properties(CacheProperties::No).build().await?)
}

async fn manager(connection: &Connection) -> Result<ObjectManagerProxy<'static>> {
    Ok(ObjectManagerProxy::builder(connection).destination(HEALTH_NAME).path(HEALTH_ROOT).build().await?)
}

fn is_incident(path: &OwnedObjectPath) -> bool {
    path.as_str().starts_with(&format!("{HEALTH_ROOT}/incident/"))
}

async fn incident_paths(connection: &Connection) -> Result<Vec<OwnedObjectPath>> {
    let objects = manager(connection).await?.get_managed_objects().await.context("ask the health daemon")?;
    Ok(objects.into_keys().filter(is_incident).collect())
}

async fn describe(connection: &Connection, path: OwnedObjectPath) -> Result<Incident> {
    let proxy = Incident1Proxy::builder(connection).path(path).cache_properties(CacheProperties::No).build().await?;
    Ok(Incident {
        id: proxy.id().await?,
        class: proxy.class().await?,
        severity: proxy.severity().await?,
        device: proxy.device().await?,
        core: proxy.core().await?,
        subject: proxy.subject().await?,
        model: proxy.model().await?,
        count: proxy.count().await?,
        first_seen_ms: proxy.first_seen().await?,
        suggested_action: proxy.suggested_action().await?,
        taken_action: proxy.taken_action().await?,
        lines: proxy.lines().await?,
    })
}

fn incident_text(incident: &Incident) -> String {
    let Incident { id, class, severity, device, subject, model, count, suggested_action, taken_action, .. } = incident;
    let mut text = format!("{id}  {severity} {class}");
    for (what, value) in
        [("on", device), ("hurt", subject), ("model", model), ("should", suggested_action), ("did", taken_action)]
    {
        if !value.is_empty() {
            write!(text, ", {what} {value}").expect("a string takes everything");
        }
    }
    if *count > 1 {
        write!(text, ", {count} times").expect("a string takes everything");
    }
    text.push('\n');
    text.extend(incident.lines.iter().flat_map(|line| line.lines()).map(|line| format!("    {line}\n")));
    text
}
