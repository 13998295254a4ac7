//! `cairn-status.txt`: what the device made of `cairn.toml`, for whoever holds the card in their hands.

use std::fmt::Write as _;

use anyhow::Result;
use provision::{Fault, Provision};

use crate::{Places, disk};

/// What became of `cairn.toml`.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// There is none.
    Absent,
    /// It says what the device does, and did before or from now on.
    Applied,
    /// It has faults.
    Refused(Vec<Fault>),
}

/// The status as text. `provision` is what the device does, `problems` what else a person should know.
pub(crate) fn text(outcome: &Outcome, provision: &Provision, problems: &[String]) -> String {
    let mut text = String::from("Written by the device at its start. Changes here have no effect.\n\n");
    match outcome {
        Outcome::Absent => text.push_str("cairn.toml: there is none. The device does what it was told before.\n"),
        Outcome::Applied => text.push_str("cairn.toml: applied.\n"),
        Outcome::Refused(faults) => {
            text.push_str("cairn.toml: REFUSED. The device does what it was told before.\n");
            for fault in faults {
                line(&mut text, "", &fault.to_string());
            }
        }
    }
    for problem in problems {
        line(&mut text, "problem: ", problem);
    }
    text.push('\n');
    summary(&mut text, provision);
    text
}

fn summary(text: &mut String, provision: &Provision) {
    let unset = || "as the image has it".to_owned();
    line(text, "host name: ", &provision.hostname.clone().unwrap_or_else(unset));
    let zone = provision.time_zone.as_ref().map(|(name, _)| name.clone());
    line(text, "time zone: ", &zone.unwrap_or_else(unset));
    let wired = provision.ethernet.as_ref().map(|ethernet| format!("{}/{}", ethernet.address.0, ethernet.address.1));
    line(text, "Ethernet: ", &wired.unwrap_or_else(|| "DHCP".into()));
    let wifi = provision.wifi.as_ref().map(|wifi| format!("{:?}", wifi.ssid));
    line(text, "Wi-Fi: ", &wifi.unwrap_or_else(|| "off".into()));
    let broker = provision.mqtt.as_ref().map(|mqtt| mqtt.url.clone());
    line(text, "MQTT broker: ", &broker.unwrap_or_else(|| "none".into()));
    line(text, "keys that may log in: ", &provision.ssh_keys.len().to_string());
    let secrets: Vec<&str> = provision.secrets().map(|(name, _)| name).collect();
    if !secrets.is_empty() {
        line(text, "secrets, not on this card any more: ", &secrets.join(", "));
    }
}

fn line(text: &mut String, label: &str, value: &str) {
    writeln!(text, "  {label}{value}").expect("a string takes everything");
}

/// Writes the status, if it is news: flash memory wears out.
pub(crate) fn write(places: &Places, text: &str) -> Result<()> {
    let path = places.card.join("cairn-status.txt");
    if disk::read(&path, text.len())?.as_deref() == Some(text.as_bytes()) {
        return Ok(());
    }
    disk::write(&path, 0o644, text.as_bytes())
}
