//! The configuration: `/etc/cairn/gpud.toml`. Every key has a default; `dist/gpud.toml` shows them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
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
    /// llama.cpp's server.
    pub server: PathBuf,
    /// Folders whose GGUF files are models. A file in a later folder replaces one of its name before.
    pub models: Vec<PathBuf>,
    /// Where the servers' sockets are.
    pub runtime: PathBuf,
    /// Requests that may wait.
    pub queue_capacity: usize,
    /// The longest context, in tokens; less where memory or the model do not allow it.
    pub context: u64,
    /// Tokens of a prompt that are read at once; less where memory does not allow it.
    pub ubatch: u64,
    /// Whether a GPU reads prompts, where there is one.
    pub gpu: bool,
    /// Threads of a server; without it, one for each fast core.
    pub threads: Option<usize>,
    /// A model that was not asked for so long is unloaded; 0 keeps it.
    pub idle_seconds: u64,
    /// The most memory that all models may need together, in MiB; without it, what the machine has.
    pub memory_limit_mib: Option<u64>,
    /// Memory that is left to others, in MiB.
    pub memory_reserve_mib: u64,
    /// A server that gives no sign of life for so long while it works is ended.
    pub stall_seconds: u64,
    /// Bytes of an answer that may wait for a client on D-Bus to read them.
    pub stream_buffer_bytes: usize,
    /// The endpoints of OpenAI's kind.
    pub http: Http,
    /// The bus.
    pub bus: Bus,
    /// The broker. Without it, nothing is served over MQTT.
    pub mqtt: Option<kit::mqtt::Settings>,
    /// Home Assistant.
    pub home_assistant: HomeAssistant,
    /// Heat.
    pub thermal: Marks,
}

/// The endpoints of OpenAI's kind.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Http {
    /// Whether they are there.
    pub enabled: bool,
    /// Where. Elsewhere than on the loopback interface a key is needed.
    pub listen: SocketAddr,
    /// File with the key that clients must send, one line.
    pub key_file: Option<PathBuf>,
}

impl Default for Http {
    fn default() -> Self {
        Self { enabled: true, listen: SocketAddr::from(([127, 0, 0, 1], 8033)), key_file: None }
    }
}

impl Http {
    /// The key that clients must send.
    ///
    /// # Errors
    /// A file that cannot be read or is empty; none where strangers may come.
    pub(crate) fn key(&self) -> Result<Option<String>> {
        let Some(file) = &self.key_file else {
            ensure!(
                self.listen.ip().is_loopback(),
                "setting http.key-file: is missing, and {} is not on the loopback interface",
                self.listen
            );
            return Ok(None);
        };
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let key = text.trim();
        ensure!(!key.is_empty(), "setting http.key-file: {} is empty", file.display());
        Ok(Some(key.to_owned()))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device_name: None,
            server: "/usr/bin/llama-server".into(),
            models: vec!["/usr/share/cairn/llm".into(), "/var/lib/cairn/llm".into()],
            runtime: "/run/cairn-gpud".into(),
            queue_capacity: 16,
            context: 4096,
            ubatch: 512,
            gpu: true,
            threads: None,
            idle_seconds: 600,
            memory_limit_mib: None,
            memory_reserve_mib: 256,
            // TIMEOUT: one ubatch of 512 tokens at 3 tokens/s, the slowest CPU that was reported, takes 170 s.
            stall_seconds: 300,
            stream_buffer_bytes: 64 << 10,
            http: Http::default(),
            bus: Bus::default(),
            mqtt: None,
            home_assistant: HomeAssistant::default(),
            thermal: Marks { zone: "gpu-thermal".into(), ..Marks::default() },
        }
    }
}

impl Config {
    /// Refuses what makes no sense.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(self.queue_capacity > 0, "setting queue-capacity: is 0");
        ensure!(self.context > 0, "setting context: is 0");
        ensure!((32..=8192).contains(&self.ubatch), "setting ubatch: is not 32 to 8192");
        ensure!(self.threads != Some(0), "setting threads: is 0");
        ensure!(self.stall_seconds > 0, "setting stall-seconds: is 0");
        ensure!(self.stream_buffer_bytes > 0, "setting stream-buffer-bytes: is 0");
        Ok(())
    }

    pub(crate) fn stall(&self) -> Duration {
        Duration::from_secs(self.stall_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_shows_the_defaults() {
        let example = include_str!("../dist/gpud.toml");
        let config: Config = toml::from_str(example).unwrap();
        assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()));
        config.check().unwrap();
        // What is off by default is shown behind a comment sign; it must be right as well.
        let config: Config = toml::from_str(&kit::config::with_all_lines(example)).unwrap();
        assert!(config.mqtt.is_some() && config.device_name.is_some() && config.http.key_file.is_some());
    }

    #[test]
    fn strangers_need_a_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        let open = Http { listen: "0.0.0.0:80".parse().unwrap(), ..Http::default() };
        assert!(open.key().unwrap_err().to_string().contains("key-file"));
        assert_eq!(Http::default().key().unwrap(), None);
        std::fs::write(&file, "\n").unwrap();
        let closed = Http { key_file: Some(file.clone()), ..open };
        closed.key().unwrap_err();
        std::fs::write(&file, "secret\n").unwrap();
        assert_eq!(closed.key().unwrap().as_deref(), Some("secret"));
    }
}
