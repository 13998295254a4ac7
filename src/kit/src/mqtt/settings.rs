//! Settings of the link: the table `[mqtt]` of a daemon's configuration.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rumqttc::v5::MqttOptions;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::LastWill;
use rumqttc::{NetworkOptions, TlsConfiguration, Transport};
use serde::Deserialize;

use crate::{Error, Result};

/// Port of MQTT.
const PORT: u16 = 1883;
/// Port of MQTT over TLS.
const TLS_PORT: u16 = 8883;
/// The largest packet that MQTT has. SOURCE: MQTT 5.0, 1.5.5: a variable byte integer and its fixed header.
const LARGEST_PACKET: u32 = 268_435_455 + 5;

/// Settings of the link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// `mqtt://host:port` or `mqtts://host:port`.
    pub url: String,
    /// User name.
    pub username: Option<String>,
    /// File with the password, one line.
    pub password_file: Option<PathBuf>,
    /// Certificates, for `mqtts`.
    pub tls: Option<Tls>,
    /// Seconds between signs of life, at least 5.
    #[serde(default = "defaults::keep_alive")]
    pub keep_alive_seconds: u16,
    /// How long the broker keeps our session while we are away. So long, a fleet's requests may wait for us before the
    /// broker gives them to another device.
    #[serde(default = "defaults::session")]
    pub session_seconds: u32,
    /// The largest payload that is processed.
    #[serde(default = "defaults::payload")]
    pub max_payload_bytes: usize,
    /// The largest packet that is received. Between `max-payload-bytes` and this a request is answered with an error;
    /// above, the broker drops it. One such packet is held in memory while it arrives.
    #[serde(default = "defaults::packet")]
    pub max_packet_bytes: u32,
    /// Messages that may wait for the broker.
    #[serde(default = "defaults::queue")]
    pub queue: usize,
    /// The first wait before connecting again. It doubles with each attempt.
    #[serde(default = "defaults::first_wait")]
    pub first_wait_ms: u64,
    /// The longest wait before connecting again.
    #[serde(default = "defaults::longest_wait")]
    pub longest_wait_ms: u64,
}

/// Home Assistant.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HomeAssistant {
    /// Whether it is told about this device.
    pub enabled: bool,
}

/// What a person said about the broker in `cairn.toml`, as `cairn-provision` wrote it.
const PROVISIONED: &str = "/run/cairn/mqtt/mqtt.toml";

/// The settings of a daemon's own configuration, or else what a person said about the broker in `cairn.toml`.
///
/// # Errors
/// [`Error::Read`] or [`Error::Config`].
pub fn or_provisioned(configured: Option<Settings>) -> Result<Option<Settings>> {
    match configured {
        Some(settings) => Ok(Some(settings)),
        None => provisioned(PROVISIONED.as_ref()),
    }
}

fn provisioned(file: &Path) -> Result<Option<Settings>> {
    match std::fs::read_to_string(file) {
        Ok(text) => crate::config::parse(&text, file).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path: file.into(), source }),
    }
}

/// Certificates, as PEM files.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Tls {
    /// Authorities that the broker's certificate must come from.
    pub ca: PathBuf,
    /// Our certificate, where the broker wants one.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

mod defaults {
    pub(super) fn keep_alive() -> u16 {
        30
    }
    pub(super) fn session() -> u32 {
        60
    }
    pub(super) fn payload() -> usize {
        16 << 20
    }
    pub(super) fn packet() -> u32 {
        128 << 20
    }
    pub(super) fn queue() -> usize {
        256
    }
    pub(super) fn first_wait() -> u64 {
        1_000
    }
    pub(super) fn longest_wait() -> u64 {
        60_000
    }
}

impl Settings {
    /// Settings for a broker, everything else at its default.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            username: None,
            password_file: None,
            tls: None,
            keep_alive_seconds: defaults::keep_alive(),
            session_seconds: defaults::session(),
            max_payload_bytes: defaults::payload(),
            max_packet_bytes: defaults::packet(),
            queue: defaults::queue(),
            first_wait_ms: defaults::first_wait(),
            longest_wait_ms: defaults::longest_wait(),
        }
    }

    /// Options of the client library. `will` is topic and payload, retained.
    pub(super) fn options(&self, client: &str, in_flight: u16, will: (&str, &str)) -> Result<MqttOptions> {
        self.check()?;
        let (tls, host, port) = parse_url(&self.url)?;
        let mut options = MqttOptions::new(client, host, port);
        options.set_keep_alive(Duration::from_secs(self.keep_alive_seconds.into()));
        options.set_clean_start(self.session_seconds == 0);
        options.set_session_expiry_interval(Some(self.session_seconds));
        options.set_receive_maximum(Some(in_flight.max(1)));
        options.set_max_packet_size(Some(self.max_packet_bytes));
        options.set_manual_acks(true);
        // A reply is one small packet, and must not wait for the acknowledgement of the one before.
        let mut network = NetworkOptions::new();
        network.set_tcp_nodelay(true);
        options.set_network_options(network);
        options.set_last_will(LastWill::new(will.0, will.1, QoS::AtLeastOnce, true, None));
        match (&self.username, &self.password_file) {
            (Some(username), Some(file)) => {
                options.set_credentials(username, read_text(file)?.trim_end_matches(['\r', '\n']));
            }
            (Some(username), None) => {
                options.set_credentials(username, "");
            }
            (None, Some(_)) => return Err(setting("mqtt.username", "is missing beside password-file")),
            (None, None) => {}
        }
        match (tls, &self.tls) {
            (true, Some(tls)) => {
                options.set_transport(tls.transport()?);
            }
            (true, None) => return Err(setting("mqtt.tls", "is missing, and the url is mqtts")),
            (false, Some(_)) => return Err(setting("mqtt.tls", "is set, but the url is not mqtts")),
            (false, None) => {}
        }
        Ok(options)
    }

    fn check(&self) -> Result<()> {
        if self.keep_alive_seconds < 5 {
            return Err(setting("mqtt.keep-alive-seconds", "is less than 5"));
        }
        if self.max_packet_bytes > LARGEST_PACKET || (self.max_packet_bytes as usize) < self.max_payload_bytes {
            return Err(setting("mqtt.max-packet-bytes", "is not between max-payload-bytes and MQTT's 256 MiB"));
        }
        if self.queue == 0 {
            return Err(setting("mqtt.queue", "is 0"));
        }
        if self.first_wait_ms == 0 || self.first_wait_ms > self.longest_wait_ms {
            return Err(setting("mqtt.first-wait-ms", "is 0 or more than longest-wait-ms"));
        }
        Ok(())
    }
}

impl Tls {
    fn transport(&self) -> Result<Transport> {
        let client_auth = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            (None, None) => None,
            _ => return Err(setting("mqtt.tls", "has one of certificate and key, both belong together")),
        };
        // Only the first daemon of a process installs it; the same provider stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(Transport::tls_with_config(TlsConfiguration::Simple { ca: read(&self.ca)?, alpn: None, client_auth }))
    }
}

fn parse_url(url: &str) -> Result<(bool, &str, u16)> {
    let error = || setting("mqtt.url", format!("{url:?} is not mqtt://host:port or mqtts://host:port"));
    let (tls, rest) = match url.split_once("://") {
        Some(("mqtt", rest)) => (false, rest),
        Some(("mqtts", rest)) => (true, rest),
        _ => return Err(error()),
    };
    let default = if tls { TLS_PORT } else { PORT };
    let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Ok(default), |port| port.parse().map_err(|_| error()))?;
    if host.is_empty() || host.contains(['/', '@', '?']) {
        return Err(error());
    }
    Ok((tls, host, port))
}

fn setting(key: &'static str, reason: impl Into<String>) -> Error {
    Error::Setting { key, reason: reason.into() }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| Error::Read { path: path.into(), source })
}

fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_scheme_host_and_port() {
        assert_eq!(parse_url("mqtt://broker").unwrap(), (false, "broker", 1883));
        assert_eq!(parse_url("mqtts://broker").unwrap(), (true, "broker", 8883));
        assert_eq!(parse_url("mqtt://10.0.0.7:1884").unwrap(), (false, "10.0.0.7", 1884));
        assert_eq!(parse_url("mqtt://[::1]:1884").unwrap(), (false, "::1", 1884));
        for url in ["", "broker", "http://broker", "mqtt://", "mqtt://broker:x", "mqtt://user@broker", "mqtt://b/path"]
        {
            parse_url(url).unwrap_err();
        }
    }

    #[test]
    fn a_broker_may_come_from_the_card() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mqtt.toml");
        assert!(provisioned(&file).unwrap().is_none());
        std::fs::write(&file, "url = \"mqtt://broker\"\n").unwrap();
        assert_eq!(provisioned(&file).unwrap().unwrap().url, "mqtt://broker");
        let own = or_provisioned(Some(Settings::new("mqtt://own"))).unwrap();
        assert_eq!(own.unwrap().url, "mqtt://own");
    }

    #[test]
    fn settings_that_contradict_each_other_are_named() {
        let check = |change: fn(&mut Settings), key: &str| {
            let mut settings = Settings::new("mqtt://broker");
            change(&mut settings);
            match settings.options("c", 1, ("t", "offline")) {
                Err(Error::Setting { key: found, .. }) => assert_eq!(found, key),
                other => panic!("{key}: {other:?}"),
            }
        };
        check(|s| s.keep_alive_seconds = 1, "mqtt.keep-alive-seconds");
        check(|s| s.max_packet_bytes = 1, "mqtt.max-packet-bytes");
        check(|s| s.queue = 0, "mqtt.queue");
        check(|s| s.first_wait_ms = 0, "mqtt.first-wait-ms");
        check(|s| s.password_file = Some("x".into()), "mqtt.username");
        check(|s| s.url = "mqtts://broker".into(), "mqtt.tls");
        Settings::new("mqtt://broker").options("c", 1, ("t", "offline")).unwrap();
    }
}
