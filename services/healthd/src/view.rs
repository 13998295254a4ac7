//! What the interfaces show: one picture for D-Bus, MQTT and the metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::mqtt::{HealthIncident, HealthSummary};
use serde::Serialize;

use crate::gauge::Gauges;
use crate::incident::Incident;

/// The present picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct View {
    /// `healthy`, `degraded` or `critical`.
    pub(crate) state: &'static str,
    /// Why.
    pub(crate) reasons: Vec<String>,
    /// `normal`, `throttled`, `critical` or `unknown`.
    pub(crate) thermal_level: &'static str,
    /// Why the machine started.
    pub(crate) reset_reason: String,
    /// This boot.
    pub(crate) boot_id: String,
    /// Since when it runs.
    pub(crate) uptime: Duration,
    /// What is measured.
    pub(crate) gauges: Gauges,
    /// What was counted.
    pub(crate) counters: BTreeMap<String, u64>,
}

/// The picture, shared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Arc<RwLock<View>>);

impl Shared {
    /// A copy.
    pub(crate) fn get(&self) -> View {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts a new one in its place and returns the old one.
    pub(crate) fn set(&self, view: View) -> View {
        std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), view)
    }
}

impl View {
    /// As MQTT shows it.
    pub(crate) fn summary(&self) -> HealthSummary {
        HealthSummary {
            state: self.state.to_owned(),
            reasons: self.reasons.clone(),
            thermal_level: self.thermal_level.to_owned(),
            reset_reason: self.reset_reason.clone(),
            boot_id: self.boot_id.clone(),
            uptime_s: self.uptime.as_secs(),
            gauges: self.gauges.clone(),
            counters: self.counters.clone(),
        }
    }

    /// As Prometheus reads it. SOURCE: its text exposition format, version 0.0.4.
    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        let mut previous = String::new();
        let gauges = self.gauges.iter().map(|(key, value)| (key, *value, "gauge", ""));
        // CAST: counters stay below the 53 bits that a double keeps.
        let counters = self.counters.iter().map(|(key, value)| (key, *value as f64, "counter", "_total"));
        for (key, value, kind, suffix) in gauges.chain(counters) {
            let (name, of) = key.split_once('.').unwrap_or((key, ""));
            let name = format!("cairn_{}{suffix}", name.replace('-', "_"));
            if name != previous {
                text += &format!("# TYPE {name} {kind}\n");
                previous.clone_from(&name);
            }
            let of = of.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let label = if of.is_empty() { String::new() } else { format!("{{of=\"{of}\"}}") };
            text += &format!("{name}{label} {value}\n");
        }
        text
    }
}

/// An incident as interfaces show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Its payload over MQTT.
    pub(crate) payload: HealthIncident,
    /// Whether it is open.
    pub(crate) open: bool,
}

impl Shown {
    /// What is shown of an incident, `uptime` after boot `boot_id` began; `taken` is what was done about it.
    pub(crate) fn of(incident: &Incident, boot_id: &str, uptime: Duration, taken: &str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let clock = |at: Duration| {
            let ago = uptime.saturating_sub(at);
            u64::try_from(now.saturating_sub(ago).as_millis()).unwrap_or(u64::MAX)
        };
        let lines = incident.lines.iter().map(|line| crate::redact::redact(line)).collect();
        let payload = HealthIncident {
            id: format!("{}-{}", boot_id.get(..8).unwrap_or(boot_id), incident.number),
            class: incident.class.name.to_owned(),
            severity: word(&incident.severity),
            device: incident.device.clone(),
            core: incident.core,
            subject: incident.subject.clone(),
            model: incident.models.join(","),
            lines,
            count: incident.count,
            first_seen_ms: clock(incident.first),
            last_seen_ms: clock(incident.last),
            suggested_action: word(&incident.advice),
            taken_action: taken.to_owned(),
            boot_id: boot_id.to_owned(),
        };
        Self { payload, open: incident.open }
    }
}

/// An enumerated value as interfaces name it.
pub(crate) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_grouped_by_name_and_labelled_by_what_they_are_of() {
        let view = View {
            gauges: [("celsius.a\"b".to_owned(), 1.5), ("celsius.c".to_owned(), 2.0)].into(),
            counters: [("incidents".to_owned(), 3)].into(),
            ..View::default()
        };
        let expected = "# TYPE cairn_celsius gauge\ncairn_celsius{of=\"a\\\"b\"} 1.5\ncairn_celsius{of=\"c\"} 2\n\
                        # TYPE cairn_incidents_total counter\ncairn_incidents_total 3\n";
        assert_eq!(view.metrics(), expected);
    }
}
