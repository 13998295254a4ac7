//! What the daemon writes into the journal about incidents and actions, each with the MESSAGE_ID of its kind, for which
//! the catalog has an explanation.

use api::mqtt::HealthIncident;
use tracing::{error, info, warn};

use crate::ladder::Rung;

/// Identities of messages by the part of the machine that an incident's class names first.
pub(crate) const INCIDENTS: &[(&str, &str)] = &[
    ("npu", "3b1d3c0de2914c6c8f0a6a5f54d1c701"),
    ("gpu", "3b1d3c0de2914c6c8f0a6a5f54d1c702"),
    ("oom", "3b1d3c0de2914c6c8f0a6a5f54d1c703"),
    ("thermal", "3b1d3c0de2914c6c8f0a6a5f54d1c704"),
    ("storage", "3b1d3c0de2914c6c8f0a6a5f54d1c705"),
    ("undervoltage", "3b1d3c0de2914c6c8f0a6a5f54d1c706"),
    ("kernel", "3b1d3c0de2914c6c8f0a6a5f54d1c707"),
];
/// Identity of messages about every other class.
pub(crate) const OTHER: &str = "3b1d3c0de2914c6c8f0a6a5f54d1c700";
/// Something was done.
pub(crate) const ACTED: &str = "3b1d3c0de2914c6c8f0a6a5f54d1c710";
/// Nothing more is done.
pub(crate) const GIVEN_UP: &str = "3b1d3c0de2914c6c8f0a6a5f54d1c711";

/// Logs an incident.
pub(crate) fn settled(incident: &HealthIncident) {
    let HealthIncident { id, class, severity, device, core, subject, model, count, .. } = incident;
    let (suggested, taken) = (&incident.suggested_action, &incident.taken_action);
    let first = class.split('-').next().unwrap_or_default();
    let message_id = INCIDENTS.iter().find(|(part, _)| *part == first).map_or(OTHER, |(_, id)| id);
    let line = incident.lines.first().map_or("", String::as_str);
    if severity == "note" {
        info!(message_id, id, class, device, line, "known to be harmless");
        return;
    }
    warn!(message_id, id, class, severity, device, core, subject, model, count, suggested, taken, line, "incident");
}

/// Logs an action.
pub(crate) fn acted(rung: Rung, failed: Option<anyhow::Error>) {
    let action = rung.name();
    match (rung, failed) {
        (Rung::GivenUp, _) => error!(message_id = GIVEN_UP, action, "all budgets are exhausted, a person must look"),
        (_, Some(failed)) => error!(message_id = ACTED, action, error = format!("{failed:#}"), "an action failed"),
        (Rung::FreshContext, None) => {}
        (_, None) => warn!(message_id = ACTED, action, "acted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_explained_in_the_catalog() {
        let catalog = include_str!("../dist/healthd.catalog");
        let ids = INCIDENTS.iter().map(|(_, id)| *id).chain([OTHER, ACTED, GIVEN_UP]);
        for id in ids {
            assert!(catalog.contains(&format!("-- {id}\n")), "{id}");
        }
    }
}
