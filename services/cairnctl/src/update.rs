//! `cairnctl update`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write;

use anyhow::{Context as _, Result, bail};
use api::dbus::{Job1Proxy, UPDATE_NAME, Update1Proxy};
use futures_util::StreamExt as _;
use serde::Serialize;
use zbus::fdo::PropertiesProxy;
use zbus::{Connection, Variant};

use crate::{Printer, absolute};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Update {
    /// Show where the update stands
    Status,
    /// Install a bundle now; the new system runs after the machine's next start
    Install(Bundle),
    /// Offer a bundle, to be installed when window and idleness allow
    Offer(Bundle),
    /// Do now what waits: install what is offered, or start the machine anew after an installation
    Proceed,
    /// Forget an offer, a failure or a rollback
    Dismiss,
    /// Show each change until the update ends
    Watch,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Bundle {
    /// File, or http(s) address
    source: String,
    /// Refuse a bundle of another version
    #[arg(long)]
    version: Option<String>,
    /// Refuse a bundle with another manifest: its SHA-256
    #[arg(long, value_name = "SHA256")]
    manifest_hash: Option<String>,
    /// Take a bundle that is older than what runs
    #[arg(long)]
    allow_downgrade: bool,
}

#[derive(Debug, PartialEq, Serialize)]
struct Status {
    state: String,
    channel: String,
    version: String,
    slot: String,
    target_version: String,
    source: String,
    percent: i32,
    doing: String,
    waiting: Vec<String>,
    reason: String,
    kernel_tail: Vec<String>,
}

pub(crate) async fn run<W: Write>(
    connection: &Connection,
    update: &Update,
    printer: &mut Printer<'_, W>,
) -> Result<()> {
    let proxy = Update1Proxy::builder(connection).cache_properties(zbus::proxy::CacheProperties::No).build().await?;
    match update {
        Update::Status => printer.print(&read(&proxy).await?, text),
        Update::Install(bundle) => install(connection, &proxy, bundle, printer).await,
        Update::Offer(bundle) => {
            call(&proxy, bundle, true).await?;
            printer.print(&read(&proxy).await?, text)
        }
        Update::Proceed => {
            proxy.proceed(Default::default()).await.context("proceed with the update")?;
            printer.print(&read(&proxy).await?, text)
        }
        Update::Dismiss => {
            proxy.dismiss(Default::default()).await.context("dismiss the update")?;
            printer.print(&read(&proxy).await?, text)
        }
        Update::Watch => watch(connection, &proxy, printer).await,
    }
}

/// `cairnctl reset`.
pub(crate) async fn reset<W: Write>(connection: &Connection, yes: bool, printer: &mut Printer<'_, W>) -> Result<()> {
    if !yes {
        bail!("this removes models, settings and logs, and starts the machine anew: say --yes");
    }
    Update1Proxy::new(connection).await?.factory_reset(Default::default()).await.context("reset the machine")?;
    printer.print(&"resetting", |_| "the machine starts anew and is emptied on the way".into())
}

/// Asks the daemon to update. Returns the job.
async fn call(proxy: &Update1Proxy<'_>, bundle: &Bundle, wait: bool) -> Result<zbus::OwnedObjectPath> {
    let source = if bundle.source.contains("://") {
        bundle.source.clone()
    } else {
        absolute(bundle.source.as_ref())?.to_str().context("the file's name is not UTF-8")?.to_owned()
    };
    let mut options = HashMap::from([("wait", Variant::from(wait))]);
    options.insert("allow-downgrade", bundle.allow_downgrade.into());
    for (key, value) in [("version", &bundle.version), ("manifest-hash", &bundle.manifest_hash)] {
        if let Some(value) = value {
            options.insert(key, value.as_str().into());
        }
    }
    proxy.install(&source, options).await.with_context(|| format!("update from {source}"))
}

async fn install<W: Write>(
    connection: &Connection,
    proxy: &Update1Proxy<'_>,
    bundle: &Bundle,
    printer: &mut Printer<'_, W>,
) -> Result<()> {
    let path = call(proxy, bundle, false).await?;
    let job = Job1Proxy::builder(connection).destination(UPDATE_NAME).path(path).build().await?;
    // Asked for first, so that no change falls between.
    let mut states = job.receive_state_changed().await;
    let mut steps = job.receive_progress_changed().await;
    while job.state().await? == "running" {
        tokio::select! {
            state = states.next() => { state.context("the daemon went away")?; }
            step = steps.next() => {
                let (percent, doing, _) = step.context("the daemon went away")?.get().await?;
                printer.print(&(percent, &doing), |(percent, doing)| format!("{percent:>3} %  {doing}"))?;
            }
        }
    }
    let state = job.state().await?;
    if state != "done" {
        let (code, message) = job.error().await?;
        bail!("update from {}: {state}: {code}: {message}", bundle.source);
    }
    printer.print(&read(proxy).await?, text)
}

async fn watch<W: Write>(
    connection: &Connection,
    proxy: &Update1Proxy<'_>,
    printer: &mut Printer<'_, W>,
) -> Result<()> {
    let root = proxy.inner().path().to_owned();
    let properties = PropertiesProxy::builder(connection).destination(UPDATE_NAME).path(root).build().await?;
    let mut changes = properties.receive_properties_changed().await?;
    let mut told = None;
    loop {
        let status = read(proxy).await?;
        let ended = ["idle", "healthy", "failed", "rolled-back"].contains(&status.state.as_str());
        if told.as_ref() != Some(&status) {
            printer.print(&status, text)?;
        }
        if ended {
            return Ok(());
        }
        told = Some(status);
        changes.next().await.context("the bus closed the connection")?;
    }
}

async fn read(proxy: &Update1Proxy<'_>) -> Result<Status> {
    let state = proxy.state().await.context("ask the update daemon")?;
    let (percent, doing, _) = proxy.progress().await?;
    Ok(Status {
        state,
        channel: proxy.channel().await?,
        version: proxy.version().await?,
        slot: proxy.slot().await?,
        target_version: proxy.target_version().await?,
        source: proxy.source().await?,
        percent,
        doing,
        waiting: proxy.waiting().await?,
        reason: proxy.reason().await?,
        kernel_tail: proxy.kernel_tail().await?,
    })
}

fn text(status: &Status) -> String {
    let Status { state, channel, version, slot, target_version, source, percent, doing, waiting, reason, kernel_tail } =
        status;
    let mut text = format!("{version} runs from slot {slot}; the update is {state}\n");
    let mut line = |label: &str, value: &str| writeln!(text, "  {label:8} {value}").expect("a string takes everything");
    if !channel.is_empty() {
        line("channel", channel);
    }
    if !source.is_empty() {
        line("wanted", &format!("{target_version} from {source}"));
    }
    if state == "installing" {
        line("progress", &format!("{percent} % {doing}"));
    }
    waiting.iter().for_each(|waiting| line("waits", waiting));
    if !reason.is_empty() {
        line("reason", reason);
    }
    kernel_tail.iter().for_each(|tail| line("kernel", tail));
    text
}
