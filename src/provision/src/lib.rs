//! `cairn.toml`: what a person says about a device, checked, and the files that follow from it. No I/O.
//!
//! ```text
//! text ─▶ read ─┬─▶ every fault, with line and column
//!               └─▶ Provision ─┬─▶ secrets, which leave the text (scrubbed)
//!                              └─▶ files, for the network, ssh, the clock and MQTT
//! ```
//! An unknown key is a fault, and so is a value that would do nothing. A secret that the device holds already is `true` in
//! the text.

#![forbid(unsafe_code)]

mod check;
mod files;
mod reader;

use std::net::IpAddr;
use std::ops::Range;

pub use files::{File, PATHS, files};
pub use reader::read;

/// The largest `cairn.toml`, in bytes.
pub const MAX_BYTES: usize = 256 << 10;

/// What is wrong with a `cairn.toml`, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {} column {}: {}", self.line, self.column, self.message)
    }
}

impl Fault {
    /// A fault at a byte of `text`.
    pub fn at(text: &str, byte: usize, message: impl Into<String>) -> Self {
        let before = &text[..text.floor_char_boundary(byte)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let (line, column) = (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1);
        Self { line, column, message: message.into() }
    }
}

/// What a person says about a device. What is not said stays as the image has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provision {
    /// Name of the machine.
    pub hostname: Option<String>,
    /// Name of a time zone, as in `Europe/Berlin`, and its place in the text.
    pub time_zone: Option<(String, Range<usize>)>,
    /// Which updates the device is for.
    pub channel: Option<String>,
    /// Who may log in: lines of `authorized_keys`.
    pub ssh_keys: Vec<String>,
    /// The wired network. DHCP where it is missing.
    pub ethernet: Option<Ethernet>,
    /// The wireless network.
    pub wifi: Option<Wifi>,
    /// The broker.
    pub mqtt: Option<Mqtt>,
    /// Whether a factory reset keeps the secrets and the ssh host keys.
    pub reset_keeps_keys: bool,
}

/// A fixed address in the wired network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// Address of the machine and length of the network's prefix.
    pub address: (IpAddr, u8),
    /// The router.
    pub gateway: Option<IpAddr>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
}

/// A wireless network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wifi {
    /// Its name.
    pub ssid: String,
    /// The passphrase, or 64 hexadecimal digits of a key. Open where it is missing.
    pub passphrase: Option<Secret>,
    /// The country whose rules the radio follows.
    pub country: String,
    /// Whether the network does not announce itself.
    pub hidden: bool,
}

/// A broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mqtt {
    /// `mqtt://host:port` or `mqtts://host:port`.
    pub url: String,
    /// User name.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<Secret>,
    /// Authorities that the broker's certificate must come from, as PEM.
    pub ca: Option<String>,
    /// The device's certificate, as PEM.
    pub certificate: Option<String>,
    /// Its key, as PEM.
    pub key: Option<Secret>,
}

/// Something that must not stay in the text.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// The secret; `None` where the text says that the device holds it.
    pub given: Option<String>,
    /// Its place in the text.
    pub span: Range<usize>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.given.is_some() { "Secret(given)" } else { "Secret(held by the device)" })
    }
}

/// Name of the Wi-Fi passphrase among the device's secrets.
pub const WIFI_PASSPHRASE: &str = "wifi-passphrase";
/// Name of the broker's password.
pub const MQTT_PASSWORD: &str = "mqtt-password";
/// Name of the key of the device's certificate.
pub const MQTT_KEY: &str = "mqtt-key";

impl Provision {
    /// The secrets that are spoken of, by name.
    pub fn secrets(&self) -> impl Iterator<Item = (&'static str, &Secret)> {
        let wifi = self.wifi.as_ref().and_then(|wifi| wifi.passphrase.as_ref());
        let password = self.mqtt.as_ref().and_then(|mqtt| mqtt.password.as_ref());
        let key = self.mqtt.as_ref().and_then(|mqtt| mqtt.key.as_ref());
        let named = [(WIFI_PASSPHRASE, wifi), (MQTT_PASSWORD, password), (MQTT_KEY, key)];
        named.into_iter().filter_map(|(name, secret)| Some((name, secret?)))
    }

    /// The text that this was read from, with `true` in the place of every secret.
    pub fn scrubbed(&self, text: &str) -> String {
        let mut given: Vec<_> = self.secrets().filter(|(_, secret)| secret.given.is_some()).collect();
        given.sort_by_key(|(_, secret)| secret.span.start);
        let mut scrubbed = text.to_owned();
        for (_, secret) in given.into_iter().rev() {
            scrubbed.replace_range(secret.span.clone(), "true");
        }
        scrubbed
    }
}
