//! The configuration: `/etc/cairn/healthd.toml`. Every key has a default; `dist/healthd.toml` shows them.

use std::path::PathBuf;

use kit::bus::Bus;
use kit::mqtt::HomeAssistant;
use kit::mqtt::Limits;
use kit::thermal::Marks;
use serde::Deserialize;

use crate::ladder::Budgets;

/// The configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Config {
    /// Name in MQTT topics. Without it, one is derived from the machine identity.
    pub device_name: Option<String>,
    /// The bus.
    pub bus: Bus,
    /// The broker. Without it, nothing is reported over MQTT.
    pub mqtt: Option<kit::mqtt::Settings>,
    /// Home Assistant.
    pub home_assistant: HomeAssistant,
    /// The kernel's log.
    pub kernel_log: PathBuf,
    /// Whether the kernel's log is a file of text instead of the kernel's device.
    pub kernel_log_is_text: bool,
    /// Where `/sys` and `/proc` are.
    pub root: PathBuf,
    /// Folders with what the kernel saved when it died.
    pub pstore: Vec<PathBuf>,
    /// What must survive: budgets, counters, reports that wait, support bundles.
    pub state: PathBuf,
    /// Socket that answers with metrics in Prometheus' text form.
    pub metrics_socket: Option<PathBuf>,
    /// Seconds between measurements.
    pub gauge_seconds: u64,
    /// Seconds between summaries over MQTT.
    pub summary_seconds: u64,
    /// Units whose life is watched.
    pub units: Vec<String>,
    /// The unit that owns the NPU.
    pub npu_unit: String,
    /// The unit that binds the NPU's driver anew, once.
    pub rebind_unit: String,
    /// Cores of the NPU that a whole machine has.
    pub npu_cores: usize,
    /// Whether a whole machine has a GPU.
    pub gpu: bool,
    /// Heat.
    pub thermal: Marks,
    /// How often which action may be taken.
    pub budgets: Budgets,
    /// How much waits for a broker that is away.
    pub spool: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device_name: None,
            bus: Bus::default(),
            mqtt: None,
            home_assistant: HomeAssistant::default(),
            kernel_log: "/dev/kmsg".into(),
            kernel_log_is_text: false,
            root: "/".into(),
            pstore: vec!["/sys/fs/pstore".into(), "/var/lib/systemd/pstore".into()],
            state: "/var/lib/cairn-health".into(),
            metrics_socket: Some("/run/cairn-health/metrics".into()),
            gauge_seconds: 10,
            summary_seconds: 60,
            units: vec!["npud.service".into()],
            npu_unit: "npud.service".into(),
            rebind_unit: "healthd-rebind-npu.service".into(),
            // SOURCE: RK3588 has three NPU cores, npu-spec 0.
            npu_cores: 3,
            gpu: true,
            thermal: Marks::default(),
            budgets: Budgets::default(),
            spool: Limits::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_shows_the_defaults() {
        let example = include_str!("../dist/healthd.toml");
        let config: Config = toml::from_str(example).unwrap();
        assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()));
        // What is off by default is shown behind a comment sign; it must be right as well.
        let config: Config = toml::from_str(&kit::config::with_all_lines(example)).unwrap();
        assert!(config.mqtt.is_some() && config.device_name.is_some());
    }
}
