//! The configuration: `/etc/cairn/npud.toml`. Every key has a default; `dist/npud.toml` shows them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use kit::bus::Bus;
use kit::mqtt::HomeAssistant;
use kit::thermal::Marks;
use serde::Deserialize;

/// The configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Config {
    /// Name in MQTT topics. Without it, one is derived from the machine identity.
    pub device_name: Option<String>,
    /// Folders whose folders are model packages. A package in a later folder replaces one of its name before.
    pub models: Vec<PathBuf>,
    /// The store of signed models, which `otad` fills. Its models replace those of the folders.
    pub store: PathBuf,
    /// Open files of the driver.
    pub contexts: usize,
    /// Requests that may wait.
    pub queue_capacity: usize,
    /// The bus.
    pub bus: Bus,
    /// The broker. Without it, nothing is served over MQTT.
    pub mqtt: Option<kit::mqtt::Settings>,
    /// The fleet whose requests are shared.
    pub fleet: Option<Fleet>,
    /// Home Assistant.
    pub home_assistant: HomeAssistant,
    /// Seconds between metrics over MQTT.
    pub metrics_seconds: u64,
    /// Heat.
    pub thermal: Marks,
}

impl Default for Config {
    fn default() -> Self {
        let engine = engine::Options::default();
        Self {
            device_name: None,
            models: vec!["/usr/share/cairn/models".into(), "/var/lib/cairn/models".into()],
            store: "/var/lib/cairn-models".into(),
            contexts: engine.contexts,
            queue_capacity: engine.queue_capacity,
            bus: Bus::default(),
            mqtt: None,
            fleet: None,
            home_assistant: HomeAssistant::default(),
            metrics_seconds: 30,
            thermal: Marks::default(),
        }
    }
}

impl Config {
    pub(crate) fn engine_options(&self) -> engine::Options {
        engine::Options { contexts: self.contexts, queue_capacity: self.queue_capacity, ..engine::Options::default() }
    }

    pub(crate) fn metrics_period(&self) -> Result<Duration> {
        ensure!(self.metrics_seconds > 0, "setting metrics-seconds: is 0");
        Ok(Duration::from_secs(self.metrics_seconds))
    }
}

/// A fleet whose requests are shared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// Name of the group; each request goes to one member.
    pub group: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_shows_the_defaults() {
        let example = include_str!("../dist/npud.toml");
        let config: Config = toml::from_str(example).unwrap();
        let default = Config::default();
        assert_eq!((config.models, config.store), (default.models, default.store));
        assert_eq!((config.contexts, config.queue_capacity), (default.contexts, default.queue_capacity));
        assert_eq!((config.bus, config.thermal), (default.bus, default.thermal));
        assert_eq!(config.metrics_seconds, default.metrics_seconds);
        // What is off by default is shown behind a comment sign; it must be right as well.
        let config: Config = toml::from_str(&kit::config::with_all_lines(example)).unwrap();
        assert!(config.mqtt.is_some() && config.fleet.is_some() && config.device_name.is_some());
    }

    #[test]
    fn an_unknown_key_is_refused() {
        toml::from_str::<Config>("contexts = 3\nmodel = []").unwrap_err();
        toml::from_str::<Config>("bus = \"sytem\"").unwrap_err();
    }
}
