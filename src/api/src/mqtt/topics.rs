//! Names of topics.

use crate::{Failure, Result};

/// Topics of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topics {
    device: String,
}

/// What an incoming topic addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address<'a> {
    /// A model of this device.
    Infer(&'a str),
    /// A model of the fleet.
    Pool(&'a str),
    /// Home Assistant came up or went away.
    HomeAssistant,
}

/// Whether `text` can be one level of a topic: not empty, without `/`, `+`, `#` and control characters.
pub fn is_segment(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(|c| matches!(c, '/' | '+' | '#') || c.is_control())
}

impl Topics {
    /// Home Assistant's birth and will.
    pub const HOME_ASSISTANT: &str = "homeassistant/status";

    /// Topics of `device`.
    ///
    /// # Errors
    /// `InvalidArgs` where the name cannot be a level of a topic.
    pub fn new(device: &str) -> Result<Self> {
        if !is_segment(device) || device == "pool" {
            return Err(Failure::invalid_args(format!("{device:?} cannot be a device in a topic")));
        }
        Ok(Self { device: device.to_owned() })
    }

    /// The device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Whether the daemon serves.
    pub fn state(&self) -> String {
        format!("cairn/{}/state", self.device)
    }

    /// Counters.
    pub fn metrics(&self) -> String {
        format!("cairn/{}/metrics", self.device)
    }

    /// What a model is.
    pub fn model_meta(&self, model: &str) -> String {
        format!("cairn/{}/models/{model}/meta", self.device)
    }

    /// Requests to this device for one model, or for `+`, any.
    pub fn infer_request(&self, model: &str) -> String {
        format!("cairn/{}/infer/{model}/request", self.device)
    }

    /// Requests to the fleet for one model, shared with all members of `group`.
    pub fn pool_subscription(group: &str, model: &str) -> String {
        format!("$share/{group}/{}", Self::pool_request(model))
    }

    /// Requests to the fleet for one model.
    pub fn pool_request(model: &str) -> String {
        format!("cairn/pool/infer/{model}/request")
    }

    /// Whether the health daemon watches.
    pub fn health_state(&self) -> String {
        format!("cairn/{}/health/state", self.device)
    }

    /// How the machine is.
    pub fn health_summary(&self) -> String {
        format!("cairn/{}/health/summary", self.device)
    }

    /// Something that went wrong.
    pub fn health_incident(&self) -> String {
        format!("cairn/{}/health/incident", self.device)
    }

    /// Home Assistant's discovery of the health sensors of this device.
    pub fn home_assistant_health(&self) -> String {
        format!("homeassistant/device/{}_health/config", self.home_assistant_id())
    }

    /// Home Assistant's discovery of this device.
    pub fn home_assistant(&self) -> String {
        format!("homeassistant/device/{}/config", self.home_assistant_id())
    }

    /// Name of this device for Home Assistant, which allows letters, digits, `_` and `-`.
    pub fn home_assistant_id(&self) -> String {
        let id = self.device.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' });
        format!("cairn_{}", id.collect::<String>())
    }

    /// What an incoming topic addresses. `None` for a topic that nobody subscribed to.
    pub fn parse<'a>(&self, topic: &'a str) -> Option<Address<'a>> {
        if topic == Self::HOME_ASSISTANT {
            return Some(Address::HomeAssistant);
        }
        let (device, rest) = topic.strip_prefix("cairn/")?.split_once('/')?;
        let model = rest.strip_prefix("infer/")?.strip_suffix("/request")?;
        match device {
            _ if !is_segment(model) => None,
            "pool" => Some(Address::Pool(model)),
            device if device == self.device => Some(Address::Infer(model)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_parsed_as_it_is_built() {
        let topics = Topics::new("d1").unwrap();
        assert_eq!(topics.parse(&topics.infer_request("mnist")), Some(Address::Infer("mnist")));
        assert_eq!(topics.parse(&Topics::pool_request("mnist")), Some(Address::Pool("mnist")));
        assert_eq!(topics.parse(Topics::HOME_ASSISTANT), Some(Address::HomeAssistant));
    }

    #[test]
    fn a_foreign_topic_addresses_nothing() {
        let topics = Topics::new("d1").unwrap();
        for topic in [
            "",
            "cairn",
            "cairn/d1",
            "cairn/d2/infer/m/request",
            "cairn/d1/infer/a/b/request",
            "cairn/d1/infer//request",
        ] {
            assert_eq!(topics.parse(topic), None, "{topic}");
        }
    }

    #[test]
    fn a_device_that_would_break_a_topic_is_refused() {
        for device in ["", "a/b", "+", "#", "pool", "a\nb"] {
            Topics::new(device).unwrap_err();
        }
    }
}
