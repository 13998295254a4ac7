//! `cairnctl devices`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;

use anyhow::{Context as _, Result};
use api::dbus::Device1Proxy;
use serde::Serialize;
use zbus::Connection;

use crate::Printer;

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
