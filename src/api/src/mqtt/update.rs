//! Topics and payloads of updates.
//!
//! What is wanted is retained, so a device that was away learns of it when it is back; publishing it again changes
//! nothing. An empty payload withdraws it.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::{OFFLINE, ONLINE, Topics};
use crate::{Failure, Result};

/// Payload that installs what is offered now.
pub const INSTALL: &str = "install";
/// Digits of a SHA-256.
const HASH_DIGITS: usize = 64;

/// Payload of [`Topics::update_desired`]: what this device shall run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DesiredUpdate {
    /// Semantic version of the bundle.
    pub version: String,
    /// Where the bundle is: http or https.
    pub url: String,
    /// SHA-256 of the bundle's manifest, as `rauc info` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_hash: Option<String>,
    /// For which channel: only devices that follow it take this; all where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Which part of the fleet goes first; all where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wave: Option<UpdateWave>,
    /// When it may be done; always where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<UpdateWindow>,
}

/// A part of a fleet. Each release has its own order, by its seed; publishing a larger part lets more devices go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateWave {
    /// Any text; another one gives another order.
    pub seed: String,
    /// How many of a hundred go, 0 to 100.
    pub percent: f64,
}

/// A part of the day, in the device's time zone. It may cross midnight; from is in it, to is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateWindow {
    /// When it opens.
    pub from: TimeOfDay,
    /// When it closes.
    pub to: TimeOfDay,
}

/// A time of day as `HH:MM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeOfDay {
    minutes: u16,
}

impl TimeOfDay {
    /// `None` for a time that no day has.
    pub fn new(hour: u16, minute: u16) -> Option<Self> {
        (hour < 24 && minute < 60).then_some(Self { minutes: hour * 60 + minute })
    }

    fn parse(text: &str) -> Option<Self> {
        let (hour, minute) = text.split_once(':')?;
        let two_digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        if !two_digits(hour) || !two_digits(minute) {
            return None;
        }
        Self::new(hour.parse().ok()?, minute.parse().ok()?)
    }
}

impl std::fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02}:{:02}", self.minutes / 60, self.minutes % 60)
    }
}

impl Serialize for TimeOfDay {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TimeOfDay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is no time of day such as 02:30")))
    }
}

impl UpdateWindow {
    /// Whether it is open at a time. One that closes when it opens is always open.
    pub fn contains(&self, time: TimeOfDay) -> bool {
        if self.from < self.to {
            return self.from <= time && time < self.to;
        }
        self.from <= time || time < self.to
    }
}

impl DesiredUpdate {
    /// Reads a payload; `None` where it withdraws what was desired.
    ///
    /// # Errors
    /// `InvalidArgs`, with what is wrong and where.
    pub fn decode(payload: &[u8]) -> Result<Option<Self>> {
        let Some(desired) = super::desired::<Self>(payload, "desired update")? else { return Ok(None) };
        if let Some(hash) = &desired.manifest_hash
            && (hash.len() != HASH_DIGITS || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
        {
            return Err(Failure::invalid_args(format!("manifest_hash {hash:?} is no SHA-256")));
        }
        if let Some(wave) = &desired.wave
            && !(0.0..=100.0).contains(&wave.percent)
        {
            return Err(Failure::invalid_args(format!("wave.percent {} is not between 0 and 100", wave.percent)));
        }
        Ok(Some(desired))
    }
}

/// Payload of [`Topics::update_state`], retained: where the update stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UpdateReport {
    /// `idle`, `offered`, `checking`, `installing`, `installed`, `booted`, `healthy`, `rolled-back` or `failed`.
    pub state: String,
    /// Which updates this device is for; empty where nobody said.
    #[serde(default)]
    pub channel: String,
    /// What runs.
    pub installed_version: String,
    /// What is or was wanted, or what runs where nothing is.
    pub latest_version: String,
    /// Whether work is going on.
    pub in_progress: bool,
    /// How far RAUC is.
    pub update_percentage: Option<i32>,
    /// What RAUC does.
    pub message: String,
    /// Why it failed or was rolled back; empty otherwise.
    pub reason: String,
    /// What an update that is offered or installed waits for.
    pub waiting: Vec<String>,
    /// The bootloader's name of the slot that runs.
    pub slot: String,
    /// After a rollback, the last lines of the kernel that failed.
    pub kernel_tail: Vec<String>,
}

impl Topics {
    /// Whether the update daemon listens.
    pub fn update_availability(&self) -> String {
        format!("cairn/{}/update/availability", self.device())
    }

    /// What this device shall run.
    pub fn update_desired(&self) -> String {
        format!("cairn/{}/update/desired", self.device())
    }

    /// Where the update stands.
    pub fn update_state(&self) -> String {
        format!("cairn/{}/update/state", self.device())
    }

    /// Orders to the update daemon: [`INSTALL`].
    pub fn update_command(&self) -> String {
        format!("cairn/{}/update/command", self.device())
    }

    /// Home Assistant's discovery of the update entity of this device.
    pub fn home_assistant_update(&self) -> String {
        format!("homeassistant/device/{}_update/config", self.home_assistant_id())
    }
}

/// Payload of [`Topics::home_assistant_update`]. `version` is that of the daemon. Names the same device as the other
/// discoveries, so that the entity appears beside theirs.
pub fn update_discovery(topics: &Topics, version: &str) -> Value {
    let id = topics.home_assistant_id();
    // Home Assistant refuses a report with members that it does not know.
    let template = "{{ {'installed_version': value_json.installed_version, 'latest_version': value_json.latest_version, \
                    'in_progress': value_json.in_progress, 'update_percentage': value_json.update_percentage} | to_json }}";
    json!({
        "dev": {"ids": [id], "name": format!("Cairn {}", topics.device()), "mf": "Cairn", "mdl": "NPU inference"},
        "o": {"name": "cairn", "sw": version},
        "cmps": {
            "update": {
                "p": "update",
                "name": "System",
                "unique_id": format!("{id}_update"),
                "device_class": "firmware",
                "state_topic": topics.update_state(),
                "value_template": template,
                "json_attributes_topic": topics.update_state(),
                "command_topic": topics.update_command(),
                "payload_install": INSTALL,
                "availability": [{
                    "topic": topics.update_availability(),
                    "payload_available": ONLINE,
                    "payload_not_available": OFFLINE,
                }],
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::discovery;

    const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn a_desired_state_is_read_as_it_is_written() {
        let text = format!(
            r#"{{"version":"1.4.0","url":"https://example.org/a.raucb","manifest_hash":"{HASH}",
                "channel":"beta","wave":{{"seed":"1.4.0","percent":12.5}},"window":{{"from":"22:30","to":"04:00"}}}}"#
        );
        let desired = DesiredUpdate::decode(text.as_bytes()).unwrap().unwrap();
        let again = serde_json::to_vec(&desired).unwrap();
        assert_eq!(DesiredUpdate::decode(&again).unwrap().unwrap(), desired);
        assert_eq!(DesiredUpdate::decode(b"").unwrap(), None);
    }

    #[test]
    fn a_malformed_desired_state_is_refused_with_the_place() {
        let check = |text: &str, words: &str| {
            let failure = DesiredUpdate::decode(text.as_bytes()).unwrap_err();
            assert!(failure.message.contains(words), "{text}: {failure}");
        };
        check("{", "line 1 column 1");
        check(r#"{"version":"1"}"#, "missing field `url`");
        check(r#"{"version":"1","url":"u","wafe":1}"#, "unknown field `wafe`");
        check(r#"{"version":"1","url":"u","manifest_hash":"12"}"#, "manifest_hash \"12\"");
        check(r#"{"version":"1","url":"u","wave":{"seed":"","percent":101}}"#, "wave.percent 101");
        check(r#"{"version":"1","url":"u","window":{"from":"24:00","to":"01:00"}}"#, "24:00");
        check(r#"{"version":"1","url":"u","window":{"from":"1:00","to":"01:00"}}"#, "1:00");
        check(&" ".repeat(super::super::LARGEST_DESIRED + 1), "the limit is");
    }

    #[test]
    fn a_window_may_cross_midnight() {
        let time = |text: &str| TimeOfDay::parse(text).unwrap();
        let window = |from, to| UpdateWindow { from: time(from), to: time(to) };
        for (from, to, now, open) in [
            ("02:00", "04:00", "02:00", true),
            ("02:00", "04:00", "03:59", true),
            ("02:00", "04:00", "04:00", false),
            ("22:00", "04:00", "23:00", true),
            ("22:00", "04:00", "00:00", true),
            ("22:00", "04:00", "12:00", false),
            ("05:00", "05:00", "12:00", true),
        ] {
            assert_eq!(window(from, to).contains(time(now)), open, "{now} in {from}-{to}");
        }
    }

    #[test]
    fn home_assistant_sees_the_entity_on_the_same_device() {
        let topics = Topics::new("d.1").unwrap();
        let payload = update_discovery(&topics, "1");
        assert_eq!(payload["dev"], discovery(&topics, "1")["dev"]);
        let entity = &payload["cmps"]["update"];
        assert_eq!(entity["p"], "update");
        for member in ["unique_id", "state_topic", "command_topic", "payload_install", "value_template"] {
            assert!(entity[member].is_string(), "no {member}");
        }
    }
}
