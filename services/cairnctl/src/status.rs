//! `cairnctl devices` and `cairnctl top`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context as _, Result};
use api::dbus::Device1Proxy;
use serde::Serialize;
use zbus::Connection;

use crate::Printer;

/// Time between two views.
const PERIOD: Duration = Duration::from_secs(1);
/// Clears a terminal and goes to its upper left corner. SOURCE: ECMA-48, ED and CUP.
const CLEAR: &str = "\x1b[2J\x1b[H";

#[derive(Debug, Serialize)]
struct Device {
    description: String,
    driver_version: String,
    contexts: u32,
    queue_depth: u32,
    queue_capacity: u32,
    kernel_log_watched: bool,
    thermal_level: String,
    counters: BTreeMap<String, u64>,
}

pub(crate) async fn devices<W: Write>(connection: &Connection, printer: &mut Printer<'_, W>) -> Result<()> {
    printer.print(&read(connection).await?, text)
}

pub(crate) async fn top<W: Write>(connection: &Connection, once: bool, printer: &mut Printer<'_, W>) -> Result<()> {
    let mut device = read(connection).await?;
    if once {
        return printer.print(&device, text);
    }
    let mut tick = tokio::time::interval(PERIOD);
    tick.tick().await;
    loop {
        tick.tick().await;
        let before = std::mem::replace(&mut device, read(connection).await?);
        printer.print(&device, |device| format!("{CLEAR}{}{}", text(device), rates(&before, device)))?;
    }
}

async fn read(connection: &Connection) -> Result<Device> {
    let proxy = Device1Proxy::new(connection).await?;
    Ok(Device {
        description: proxy.description().await.context("ask the NPU's daemon")?,
        driver_version: proxy.driver_version().await?,
        contexts: proxy.contexts().await?,
        queue_depth: proxy.queue_depth().await?,
        queue_capacity: proxy.queue_capacity().await?,
        kernel_log_watched: proxy.kernel_log_watched().await?,
        thermal_level: proxy.thermal_level().await?,
        counters: proxy.counters().await?.into_iter().collect(),
    })
}

fn text(device: &Device) -> String {
    let Device { description, driver_version, contexts, queue_depth, queue_capacity, thermal_level, .. } = device;
    let log = if device.kernel_log_watched { "watched" } else { "not watched" };
    let mut text = format!(
        "npu0  {description}, driver {driver_version}, {contexts} contexts\n\
         queue {queue_depth}/{queue_capacity}, thermal level {thermal_level}, kernel log {log}\n"
    );
    for (name, count) in &device.counters {
        writeln!(text, "{count:>12} {name}").expect("a string takes everything");
    }
    text
}

/// What changed within one period.
fn rates(before: &Device, now: &Device) -> String {
    let since = |name: &str| {
        let count = |device: &Device| device.counters.get(name).copied().unwrap_or(0);
        count(now).saturating_sub(count(before))
    };
    let seconds = PERIOD.as_secs_f64();
    let requests = since("requests") as f64 / seconds;
    // Each context may keep a core busy all the time.
    let busy = since("npu-us") as f64 / 1e4 / seconds;
    format!("{requests:.0} requests/s, NPU busy {busy:.0} % of one core\n")
}
