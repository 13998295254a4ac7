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
use tokio::sync::mpsc;
use zbus::fdo::ObjectManagerProxy;
use zbus::proxy::CacheProperties;
use zbus::{Connection, OwnedObjectPath};

use crate::Printer;
use crate::objects::{self, Properties, take};

/// The interface of an incident.
const INCIDENT: &str = "org.cairn.Incident1";

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
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Incident {
    id: String,
    class: String,
    pub(crate) severity: String,
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
    let incidents = all_incidents(connection).await?;
    printer.print(&incidents, |incidents| {
        if incidents.is_empty() { "none".into() } else { incidents.iter().map(incident_text).collect() }
    })
}

/// The newest incidents, oldest first.
pub(crate) async fn all_incidents(connection: &Connection) -> Result<Vec<Incident>> {
    let objects = objects::all(connection, HEALTH_NAME, HEALTH_ROOT).await?;
    let found = objects.into_iter().filter_map(|(_, mut interfaces)| interfaces.remove(INCIDENT));
    let mut incidents = found.map(Incident::of).collect::<Result<Vec<_>>>()?;
    incidents.sort_by_key(|incident| incident.first_seen_ms);
    Ok(incidents)
}

/// Prints each incident when it is settled, for ever.
pub(crate) async fn watch<W: Write>(connection: &Connection, printer: &mut Printer<'_, W>) -> Result<()> {
    let manager = manager(connection).await?;
    let mut added = manager.receive_interfaces_added().await?;
    eprintln!("watching; ctrl-C ends");
    // One that is open already is not missed.
    let mut open = Vec::new();
    for path in incident_paths(connection).await? {
        if Incident1Proxy::new(connection, path.clone()).await?.state().await? == "open" {
            open.push(path);
        }
    }
    // A task of its own empties the stream: a connection whose streams are full reads nothing, changes neither.
    let (send, mut paths) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(signal) = added.next().await {
            let Ok(args) = signal.args() else { continue };
            if send.send(OwnedObjectPath::from(args.object_path().clone().into_owned())).is_err() {
                return;
            }
        }
    });
    for path in open {
        print_settled(connection, path, printer).await?;
    }
    while let Some(path) = paths.recv().await {
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
    Incident::of(objects::properties(connection, HEALTH_NAME, path.as_str(), INCIDENT).await?)
}

impl Incident {
    fn of(mut all: Properties) -> Result<Self> {
        Ok(Self {
            id: take(&mut all, "Id")?,
            class: take(&mut all, "Class")?,
            severity: take(&mut all, "Severity")?,
            device: take(&mut all, "Device")?,
            core: take(&mut all, "Core")?,
            subject: take(&mut all, "Subject")?,
            model: take(&mut all, "Model")?,
            count: take(&mut all, "Count")?,
            first_seen_ms: take(&mut all, "FirstSeen")?,
            suggested_action: take(&mut all, "SuggestedAction")?,
            taken_action: take(&mut all, "TakenAction")?,
            lines: take(&mut all, "Lines")?,
        })
    }

    /// All but the kernel's lines, in one.
    pub(crate) fn headline(&self) -> String {
        let Self { id, class, severity, device, subject, model, count, suggested_action, taken_action, .. } = self;
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
        text
    }
}

fn incident_text(incident: &Incident) -> String {
    let lines = incident.lines.iter().flat_map(|line| line.lines()).map(|line| format!("    {line}\n"));
    format!("{}\n{}", incident.headline(), lines.collect::<String>())
}
