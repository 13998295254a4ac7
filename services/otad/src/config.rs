//! The configuration: `/etc/cairn/otad.toml`. Every key has a default; `dist/otad.toml` shows them.

use std::fs;
use std::io;
use std::path::PathBuf;

use kit::bus::Bus;
use kit::mqtt::HomeAssistant;
use serde::Deserialize;

/// The configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Config {
    /// Name in MQTT topics, for hawkBit and in waves. Without it, one is derived from the machine identity.
    pub device_name: Option<String>,
    /// Which updates this device is for, where `cairn.toml` does not say.
    pub channel: Option<String>,
    /// The bus.
    pub bus: Bus,
    /// The broker. Without it, nothing is offered over MQTT.
    pub mqtt: Option<kit::mqtt::Settings>,
    /// hawkBit. Without it, nothing is offered by it.
    pub hawkbit: Option<Hawkbit>,
    /// Home Assistant.
    pub home_assistant: HomeAssistant,
    /// When something may be done.
    pub rules: Rules,
    /// Where models are kept, and whose are believed.
    pub model_store: ModelStore,
    /// What is checked after an update.
    pub gate: Gate,
    /// How failures that may pass are tried again.
    pub retry: Retry,
    /// Authority that a bundle's https server must have its certificate from; RAUC's own choice without it.
    pub download_ca: Option<PathBuf>,
    /// Where things are.
    pub places: Places,
    /// Milliseconds between two looks at what an update waits for.
    pub look_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device_name: None,
            channel: None,
            bus: Bus::default(),
            mqtt: None,
            hawkbit: None,
            home_assistant: HomeAssistant::default(),
            rules: Rules::default(),
            model_store: ModelStore::default(),
            gate: Gate::default(),
            retry: Retry::default(),
            download_ca: None,
            places: Places::default(),
            look_ms: 1000,
        }
    }
}

impl Config {
    /// Which updates this device is for: what `cairn.toml` says, or else the image.
    ///
    /// # Errors
    /// A file that is there and cannot be read.
    pub fn channel(&self) -> io::Result<Option<String>> {
        match fs::read_to_string(&self.places.channel) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(self.channel.clone()),
            Err(error) => Err(error),
        }
    }
}

/// When something may be done.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Rules {
    /// Whether what is offered is installed without a person.
    pub automatic: bool,
    /// Whether the machine starts anew by itself after that.
    pub reboot: bool,
    /// How long nobody must have used the NPU before that.
    pub idle_seconds: u64,
    /// The least charge of a battery that is being used up.
    pub battery_percent: u32,
    /// Room that must be free where this daemon writes, in MiB.
    pub free_mib: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { automatic: true, reboot: true, idle_seconds: 60, battery_percent: 50, free_mib: 16 }
    }
}

/// Where models are kept, and whose are believed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct ModelStore {
    /// The store, which npud reads.
    pub folder: PathBuf,
    /// Folder with the public keys, of minisign, of those who may sign models: `*.pub`.
    pub keys: PathBuf,
}

impl Default for ModelStore {
    fn default() -> Self {
        Self { folder: "/var/lib/cairn-models".into(), keys: "/etc/cairn/model-keys".into() }
    }
}

/// What is checked after an update.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Gate {
    /// Cores of the NPU.
    pub npu_cores: usize,
    /// Whether there is a GPU.
    pub gpu: bool,
    /// Units that must be active.
    pub units: Vec<String>,
    /// Models that this system leaves out on purpose, although the one before may have had them.
    pub dropped_models: Vec<String>,
    /// How long all this may take.
    pub deadline_seconds: u64,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            npu_cores: 3,
            gpu: true,
            units: ["npud.service", "healthd.service", "otad.service"].map(Into::into).into(),
            dropped_models: Vec::new(),
            deadline_seconds: 300,
        }
    }
}

/// How failures that may pass are tried again.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Retry {
    /// Attempts at one offer.
    pub attempts: u32,
    /// The first wait. It doubles with each attempt, up to an hour.
    pub first_seconds: u64,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 6, first_seconds: 60 }
    }
}

/// Where things are.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Places {
    /// What the daemon remembers.
    pub state: PathBuf,
    /// What the health gate remembers.
    pub gate: PathBuf,
    /// The channel that `cairn.toml` names, if it names one.
    pub channel: PathBuf,
    /// What runs: `IMAGE_VERSION` or else `VERSION_ID` is its version.
    pub os_release: PathBuf,
    /// The kernel's name of this boot.
    pub boot_id: PathBuf,
    /// The kernel's device tree.
    pub sysfs: PathBuf,
    /// What a kernel that crashed left behind, the first folder that has anything.
    pub pstore: Vec<PathBuf>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            state: "/var/lib/cairn/update".into(),
            gate: "/var/lib/cairn/gate".into(),
            channel: "/run/cairn/channel".into(),
            os_release: "/etc/os-release".into(),
            boot_id: "/proc/sys/kernel/random/boot_id".into(),
            sysfs: "/sys".into(),
            pstore: vec!["/sys/fs/pstore".into(), "/var/lib/systemd/pstore".into()],
        }
    }
}

/// hawkBit's device interface.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Hawkbit {
    /// `https://host` or `http://host:port`.
    pub url: String,
    /// The tenant.
    #[serde(default = "default_tenant")]
    pub tenant: String,
    /// File with the device's security token, one line.
    pub token_file: Option<PathBuf>,
    /// File with the gateway's security token, one line.
    pub gateway_token_file: Option<PathBuf>,
    /// Authorities that the server's certificate must come from, a PEM file.
    #[serde(default = "default_ca")]
    pub ca: PathBuf,
    /// Seconds between two questions, where the server says nothing of it.
    #[serde(default = "default_poll")]
    pub poll_seconds: u64,
}

fn default_tenant() -> String {
    "DEFAULT".into()
}

pub(crate) fn default_ca() -> PathBuf {
    "/etc/ssl/certs/ca-certificates.crt".into()
}

fn default_poll() -> u64 {
    300
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_shows_the_defaults() {
        let example = include_str!("../dist/otad.toml");
        let config: Config = toml::from_str(example).unwrap();
        let default = Config::default();
        assert_eq!((config.rules, config.gate, config.retry), (default.rules, default.gate, default.retry));
        assert_eq!(config.model_store, default.model_store);
        assert_eq!((config.places, config.look_ms, config.bus), (default.places, default.look_ms, default.bus));
        // What is off by default is shown behind a comment sign; it must be right as well.
        let config: Config = toml::from_str(&kit::config::with_all_lines(example)).unwrap();
        assert!(config.mqtt.is_some() && config.hawkbit.is_some() && config.device_name.is_some());
        assert!(config.channel.is_some());
    }

    #[test]
    fn what_cairn_toml_says_of_the_channel_counts_before_the_image() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places { channel: folder.path().join("channel"), ..Places::default() };
        let mut config = Config { places, ..Config::default() };
        assert_eq!(config.channel().unwrap(), None);
        config.channel = Some("stable".into());
        assert_eq!(config.channel().unwrap().as_deref(), Some("stable"));
        // As provision::files writes it.
        fs::write(&config.places.channel, "beta\n").unwrap();
        assert_eq!(config.channel().unwrap().as_deref(), Some("beta"));
        fs::write(&config.places.channel, [0xff]).unwrap();
        config.channel().unwrap_err();
    }

    #[test]
    fn an_unknown_key_is_refused() {
        toml::from_str::<Config>("[rules]\nautomatik = true").unwrap_err();
    }
}
