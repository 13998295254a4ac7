//! The states of an update, and the one function that leads from one to the next.
//!
//! ```text
//!            ┌────────────── withdrawn ──────────────┐        ┌── RAUC busy, daemon killed ──┐
//!            ▼                                       │        ▼                              │
//!          idle ─── offer ──▶ offered ── may start ──┴────▶ checking ── bundle fits ──▶ installing
//!            ▲                  ▲  ▲                          │                             │ │
//!            │                  │  └─ retry ── failed ◀─ refused ◀──── failed, interrupted ─┘ │
//!            │                  │                                                             ▼
//!   withdrawn│                  └── newer offer ── healthy ◀── gate says so ── booted ◀── installed
//!            └── rolled-back ◀── another slot came up ──────────────────────────┴──────────────┘
//! ```
//! Every state but `idle` knows its offer. A state is written to the disk before anything is done in it, so what the
//! daemon reads after a crash is never ahead of the slots.

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::offer::Offer;

/// Where an update stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum State {
    /// Nothing is wanted.
    #[default]
    Idle,
    /// Something is wanted, and waits.
    Offered {
        /// What.
        offer: Offer,
    },
    /// RAUC looks at the bundle.
    Checking {
        /// What.
        offer: Offer,
    },
    /// RAUC writes the other slot.
    Installing {
        /// What.
        offer: Offer,
        /// What tells this installation from others.
        attempt: Attempt,
    },
    /// The other slot is written and is the next to boot.
    Installed {
        /// What.
        offer: Offer,
        /// The slot.
        slot: Slot,
        /// The boot that wrote it.
        boot_id: String,
    },
    /// The new slot runs, and nobody has said that it is good.
    Booted {
        /// What.
        offer: Offer,
        /// The slot.
        slot: Slot,
        /// The boot that wrote it.
        boot_id: String,
    },
    /// The new slot runs and is good.
    Healthy {
        /// What.
        offer: Offer,
        /// The slot.
        slot: Slot,
    },
    /// The new slot was tried, and the bootloader gave it up.
    RolledBack {
        /// What.
        offer: Offer,
        /// Why.
        rollback: Rollback,
    },
    /// No slot was changed for good; the machine is as before.
    Failed {
        /// What.
        offer: Offer,
        /// Why.
        failure: Failure,
    },
}

/// A slot of the system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// RAUC's name, such as `rootfs.1`.
    pub name: String,
    /// The bootloader's name, such as `B`.
    pub bootname: String,
}

/// What tells an installation from others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Given to RAUC where it takes one.
    pub transaction: String,
    /// How often each slot had been written before, by RAUC's name.
    pub counts: std::collections::BTreeMap<String, u32>,
    /// The boot that it was begun in.
    pub boot_id: String,
}

/// Why a slot that was tried is not the one that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    /// The bootloader's name of the slot.
    pub slot: String,
    /// How often it reached the health gate.
    pub tries: u32,
    /// What the gate found, `check: what was seen`, at the last try. Empty where the gate was not reached or not done.
    pub failed: Vec<String>,
    /// The last lines of the kernel that the failed boot left behind.
    pub kernel_tail: Vec<String>,
}

impl Rollback {
    /// The reason in one line.
    pub fn text(&self) -> String {
        let Self { slot, tries, failed, .. } = self;
        match (tries, failed.as_slice()) {
            (0, _) => format!("slot {slot} never reached the health gate"),
            (_, []) => format!("slot {slot} stopped during the health gate, tries: {tries}"),
            (_, failed) => format!("slot {slot} failed {}, tries: {tries}", failed.join("; ")),
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An update is wanted.
    Offer(Offer),
    /// It is wanted no more.
    Withdraw,
    /// Everything allows to begin.
    Begin,
    /// RAUC does something else and has not begun with this; later.
    Postpone,
    /// The bundle fits; its version is known now.
    Accept(Offer, Attempt),
    /// The other slot is written.
    Written(Slot),
    /// It went wrong.
    Fail(Failure),
    /// After a failure that may pass.
    Retry,
    /// The daemon sees which slot runs, in which boot. `rollback` is what is known in case it is the wrong one.
    Boot {
        /// The bootloader's name of the slot.
        slot: String,
        /// The boot.
        boot_id: String,
        /// What is known.
        rollback: Rollback,
    },
    /// The gate marked the slot good.
    Good,
}

impl State {
    /// The name, as clients see it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Offered { .. } => "offered",
            Self::Checking { .. } => "checking",
            Self::Installing { .. } => "installing",
            Self::Installed { .. } => "installed",
            Self::Booted { .. } => "booted",
            Self::Healthy { .. } => "healthy",
            Self::RolledBack { .. } => "rolled-back",
            Self::Failed { .. } => "failed",
        }
    }

    /// What is or was wanted.
    pub fn offer(&self) -> Option<&Offer> {
        match self {
            Self::Idle => None,
            Self::Offered { offer }
            | Self::Checking { offer }
            | Self::Installing { offer, .. }
            | Self::Installed { offer, .. }
            | Self::Booted { offer, .. }
            | Self::Healthy { offer, .. }
            | Self::RolledBack { offer, .. }
            | Self::Failed { offer, .. } => Some(offer),
        }
    }

    /// The slot that was written.
    pub fn slot(&self) -> Option<&Slot> {
        match self {
            Self::Installed { slot, .. } | Self::Booted { slot, .. } | Self::Healthy { slot, .. } => Some(slot),
            _ => None,
        }
    }

    /// Why it went wrong, in one line; empty where it did not.
    pub fn reason(&self) -> String {
        match self {
            Self::RolledBack { rollback, .. } => rollback.text(),
            Self::Failed { failure, .. } => failure.to_string(),
            _ => String::new(),
        }
    }

    /// Whether a new offer must wait until this one is through.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Checking { .. } | Self::Installing { .. } | Self::Booted { .. })
    }
}

/// The state after an event. `None`: the event cannot happen in this state, which stays.
pub fn next(state: &State, event: Event) -> Option<State> {
    let offer = state.offer().cloned();
    match (state, event) {
        (state, Event::Offer(offer)) if !state.is_busy() => Some(State::Offered { offer }),
        (State::Offered { .. } | State::Failed { .. } | State::RolledBack { .. }, Event::Withdraw) => Some(State::Idle),
        (State::Offered { offer }, Event::Begin) => Some(State::Checking { offer: offer.clone() }),
        (State::Checking { offer } | State::Installing { offer, .. }, Event::Postpone) => {
            Some(State::Offered { offer: offer.clone() })
        }
        (State::Checking { .. }, Event::Accept(offer, attempt)) => Some(State::Installing { offer, attempt }),
        (State::Installing { offer, attempt }, Event::Written(slot)) => {
            Some(State::Installed { offer: offer.clone(), slot, boot_id: attempt.boot_id.clone() })
        }
        (State::Offered { .. } | State::Checking { .. } | State::Installing { .. }, Event::Fail(failure)) => {
            offer.map(|offer| State::Failed { offer, failure })
        }
        (State::Failed { offer, failure }, Event::Retry) if failure.may_pass() => {
            Some(State::Offered { offer: offer.clone() })
        }
        (
            State::Installed { offer, slot, boot_id } | State::Booted { offer, slot, boot_id },
            Event::Boot { slot: running, boot_id: now, rollback },
        ) => {
            if now == *boot_id || (running == slot.bootname && matches!(state, State::Booted { .. })) {
                return None;
            }
            let (offer, slot) = (offer.clone(), slot.clone());
            if running == slot.bootname {
                return Some(State::Booted { offer, slot, boot_id: boot_id.clone() });
            }
            Some(State::RolledBack { offer, rollback })
        }
        (State::Booted { offer, slot, .. }, Event::Good) => {
            Some(State::Healthy { offer: offer.clone(), slot: slot.clone() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::failure::Kind;

    fn offer(number: u64) -> Offer {
        Offer::new(format!("/bundles/{number}"), Some(semver::Version::new(1, number, 0)))
    }

    fn slot() -> Slot {
        Slot { name: "rootfs.1".into(), bootname: "B".into() }
    }

    fn attempt() -> Attempt {
        Attempt { boot_id: "boot1".into(), ..Attempt::default() }
    }

    fn boot(slot: &str, boot_id: &str) -> Event {
        Event::Boot { slot: slot.into(), boot_id: boot_id.into(), rollback: Rollback::default() }
    }

    fn failure(kind: Kind) -> Failure {
        Failure::new(kind, "test")
    }

    fn events() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..3u64).prop_map(|number| Event::Offer(offer(number))),
            Just(Event::Withdraw),
            Just(Event::Begin),
            Just(Event::Postpone),
            (0..3u64).prop_map(|number| Event::Accept(offer(number), attempt())),
            Just(Event::Written(slot())),
            prop_oneof![Just(Kind::Signature), Just(Kind::Interrupted)].prop_map(|kind| Event::Fail(failure(kind))),
            Just(Event::Retry),
            (prop_oneof!["A", "B"], prop_oneof!["boot1", "boot2"]).prop_map(|(slot, id)| boot(&slot, &id)),
            Just(Event::Good),
        ]
    }

    /// What is left of the events that could happen, in order, and the states after them.
    fn walk(events: Vec<Event>) -> Vec<(Event, State)> {
        let mut state = State::Idle;
        let mut steps = Vec::new();
        for event in events {
            if let Some(after) = next(&state, event.clone()) {
                state = after;
                steps.push((event, state.clone()));
            }
        }
        steps
    }

    proptest! {
        #[test]
        fn healthy_comes_only_after_written_booted_in_another_boot_and_good(events in prop::collection::vec(events(), 0..60)) {
            let steps = walk(events);
            for end in 0..steps.len() {
                if !matches!(steps[end].1, State::Healthy { .. }) {
                    continue;
                }
                prop_assert_eq!(&steps[end].0, &Event::Good);
                prop_assert_eq!(&steps[end - 1].0, &boot("B", "boot2"));
                prop_assert!(matches!(steps[end - 2].0, Event::Written(..)));
                prop_assert!(matches!(steps[end - 3].0, Event::Accept(..)));
                prop_assert_eq!(&steps[end - 4].0, &Event::Begin);
            }
        }

        #[test]
        fn a_slot_that_was_tried_is_rolled_back_only_when_another_runs(events in prop::collection::vec(events(), 0..60)) {
            for (event, state) in walk(events) {
                if matches!(state, State::RolledBack { .. }) {
                    prop_assert_eq!(event, boot("A", "boot2"));
                }
            }
        }

        #[test]
        fn every_state_survives_the_disk(events in prop::collection::vec(events(), 0..60)) {
            for (_, state) in walk(events) {
                let text = serde_json::to_string(&state).unwrap();
                prop_assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
            }
        }

        #[test]
        fn work_in_progress_is_not_replaced(number in 0..3u64) {
            for state in [
                State::Checking { offer: offer(7) },
                State::Installing { offer: offer(7), attempt: attempt() },
                State::Booted { offer: offer(7), slot: slot(), boot_id: "boot1".into() },
            ] {
                prop_assert_eq!(next(&state, Event::Offer(offer(number))), None);
                prop_assert_eq!(next(&state, Event::Withdraw), None);
            }
        }
    }

    #[test]
    fn the_boot_that_wrote_the_slot_decides_nothing() {
        let state = State::Installed { offer: offer(1), slot: slot(), boot_id: "boot1".into() };
        assert_eq!(next(&state, boot("A", "boot1")), None);
    }

    #[test]
    fn a_failure_that_cannot_pass_is_not_tried_again() {
        let failed = |kind| State::Failed { offer: offer(1), failure: failure(kind) };
        assert_eq!(next(&failed(Kind::Signature), Event::Retry), None);
        assert_eq!(next(&failed(Kind::Interrupted), Event::Retry), Some(State::Offered { offer: offer(1) }));
    }

    #[test]
    fn a_rollback_says_slot_check_and_tries() {
        let mut rollback = Rollback { slot: "B".into(), tries: 3, ..Rollback::default() };
        assert_eq!(rollback.text(), "slot B stopped during the health gate, tries: 3");
        rollback.failed = vec!["npu: 2 of 3 cores".into()];
        assert_eq!(rollback.text(), "slot B failed npu: 2 of 3 cores, tries: 3");
        rollback.tries = 0;
        assert_eq!(rollback.text(), "slot B never reached the health gate");
    }
}
