//! Payloads of the health topics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Payload of the summary topic. The names are those of `org.cairn.Health1`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HealthSummary {
    /// `healthy`, `degraded` or `critical`.
    pub state: String,
    /// Why it is not healthy, the worst first.
    pub reasons: Vec<String>,
    /// `normal`, `throttled`, `critical` or `unknown`.
    pub thermal_level: String,
    /// Why the machine started last.
    pub reset_reason: String,
    /// The kernel's name of this boot.
    pub boot_id: String,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// What is measured.
    pub gauges: BTreeMap<String, f64>,
    /// What was counted.
    pub counters: BTreeMap<String, u64>,
}

/// Payload of the incident topic: one message per incident, sent when it is settled. The names are those of
/// `org.cairn.Incident1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthIncident {
    /// Unique for ever; the same in a repetition.
    pub id: String,
    /// What happened.
    pub class: String,
    /// How bad it is.
    pub severity: String,
    /// The device; empty where it is not about one.
    pub device: String,
    /// The core of the NPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<u32>,
    /// Who suffered.
    pub subject: String,
    /// The model that ran.
    pub model: String,
    /// What the kernel said.
    pub lines: Vec<String>,
    /// How often it was seen.
    pub count: u32,
    /// When it began, milliseconds since 1970.
    pub first_seen_ms: u64,
    /// When it was last seen.
    pub last_seen_ms: u64,
    /// What should be done.
    pub suggested_action: String,
    /// What was done.
    pub taken_action: String,
    /// The boot that it happened in.
    pub boot_id: String,
}
