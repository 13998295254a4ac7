//! What the daemon writes into the journal about incidents and actions, each with the MESSAGE_ID of its kind, for which
//! the catalog has an explanation.

use api::mqtt::HealthIncident;
use tracing::{error, info, warn};

use crate::class::{Part, find};
use crate::ladder::Rung;

/// Identities of messages about incidents, by the part of the machine.
const INCIDENTS: &[(Part, &str)] = &[
    (Part::Network, "3b1d3c0de2914c6c8f0a6a5f54d1c700"),
    (Part::Npu, "3b1d3c0de2914c6c8f0a6a5f54d1c701"),
    (Part::Gpu, "3b1d3c0de2914c6c8f0a6a5f54d1c702"),
    (Part::Memory, "3b1d3c0de2914c6c8f0a6a5f54d1c703"),
    (Part::Thermal, "3b1d3c0de2914c6c8f0a6a5f54d1c704"),
    (Part::Storage, "3b1d3c0de2914c6c8f0a6a5f54d1c705"),
    (Part::Power, "3b1d3c0de2914c6c8f0a6a5f54d1c706"),
    (Part::Kernel, "3b1d3c0de2914c6c8f0a6a5f54d1c707"),
];
/// The daemon watches.
pub(crate) const WATCHING: &str = "3b1d3c0de2914c6c8f0a6a5f54d1c70f";
/// Something was done.
pub(crate) const ACTED: &str = "3b1d3c0de2914c6c8f0a6a5f54d1c710";
/// Nothing more is done.
pub(crate) const GIVEN_UP: &str = "3b1d3c0de2914c6c8f0a6a5f54d1c711";

/// Logs an incident.
pub(crate) fn settled(incident: &HealthIncident) {
    let HealthIncident { id, class, severity, device, core, subject, model, count, .. } = incident;
    let (suggested, taken) = (&incident.suggested_action, &incident.taken_action);
    let message_id = identity(class);
    let line = incident.lines.first().map_or("", String::as_str);
    if severity == "note" {
        info!(message_id, id, class, device, line, "known to be harmless");
        return;
    }
    warn!(message_id, id, class, severity, device, core, subject, model, count, suggested, taken, line, "incident");
}

/// Identity of messages about a class; every class of the table has a part, and every part a message.
fn identity(class: &str) -> &'static str {
    let part = find(class).map_or(Part::Network, |class| class.part);
    INCIDENTS.iter().find(|(known, _)| *known == part).map_or(INCIDENTS[0].1, |(_, id)| id)
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
    fn every_class_has_the_message_of_its_part() {
        for class in crate::class::CLASSES {
            assert!(INCIDENTS.contains(&(class.part, identity(class.name))), "{}", class.name);
        }
    }
}
