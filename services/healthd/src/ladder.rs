//! The ladder of actions, with budgets that survive reboots.
//!
//! ```text
//! fresh context (the owner's) ─▶ restart the worker ─▶ rebind the driver ─▶ reboot ─▶ given up
//!        three faults in a row lead one rung up; an exhausted budget leads to the next
//! ```
//! Pure. Time is the machine's time in operation, summed over all boots: a board may have no clock that survives power
//! loss, and a clock that jumps must neither refill a budget nor empty it. The state is on disk before the action is
//! carried out, so that a machine that dies of an action does not repeat it for ever.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::class::Entry;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rung {
    /// The owner went on with a fresh context.
    FreshContext,
    /// The worker's unit is started again.
    RestartWorker,
    /// The driver is bound anew.
    RebindDriver,
    /// The machine starts again.
    Reboot,
    /// All budgets are exhausted: a person must look.
    GivenUp,
}

impl Rung {
    /// As interfaces name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::FreshContext => "fresh-context",
            Self::RestartWorker => "restart-worker",
            Self::RebindDriver => "rebind-driver",
            Self::Reboot => "reboot",
            Self::GivenUp => "given-up",
        }
    }
}

/// How often each rung may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Budgets {
    /// Restarts of the worker in a period.
    pub restarts: usize,
    /// Rebinds of the driver in a period.
    pub rebinds: usize,
    /// Reboots in a period.
    pub reboots: usize,
    /// The period, in seconds of operation.
    pub period_seconds: u64,
    /// Faults that lead one rung up.
    pub faults: usize,
    /// Faults are in a row when they come within so many seconds.
    pub row_seconds: u64,
}

impl Default for Budgets {
    fn default() -> Self {
        Self { restarts: 3, rebinds: 1, reboots: 2, period_seconds: 86_400, faults: 3, row_seconds: 600 }
    }
}

/// What the ladder remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ladder {
    /// Faults in a row, seconds of operation each.
    row: Vec<u64>,
    /// What was done, and when.
    done: Vec<(u64, Rung)>,
    /// The boot in which a reboot was requested: it is not requested again.
    reboot_requested: Option<String>,
    /// Whether nothing more is done until a period has passed.
    given_up: bool,
}

impl Ladder {
    /// Takes a fault and says what is to be done, if anything. `operated` is the machine's time in operation, `boot` the
    /// present boot.
    pub fn fault(&mut self, entry: Entry, operated: Duration, boot: &str, budgets: &Budgets) -> Option<Rung> {
        let now = operated.as_secs();
        self.forget(now, budgets);
        if self.reboot_requested.as_deref() == Some(boot) {
            return None;
        }
        self.row.push(now);
        let lowest = match entry {
            Entry::FreshContext | Entry::Repeated if self.row.len() < budgets.faults => {
                return (entry == Entry::FreshContext).then_some(Rung::FreshContext);
            }
            Entry::FreshContext => self.next_rung(now, budgets),
            Entry::Repeated | Entry::Reboot => Rung::Reboot,
            Entry::Rebind => Rung::RebindDriver,
        };
        self.climb(lowest, now, boot, budgets)
    }

    fn climb(&mut self, lowest: Rung, now: u64, boot: &str, budgets: &Budgets) -> Option<Rung> {
        self.row.clear();
        let rungs = [
            (Rung::RestartWorker, budgets.restarts),
            (Rung::RebindDriver, budgets.rebinds),
            (Rung::Reboot, budgets.reboots),
        ];
        let spent = |rung| self.done.iter().filter(|(_, done)| *done == rung).count();
        let affordable = rungs.into_iter().find(|(rung, budget)| *rung >= lowest && spent(*rung) < *budget);
        let Some((rung, _)) = affordable else {
            let news = !self.given_up;
            self.given_up = true;
            return news.then_some(Rung::GivenUp);
        };
        self.done.push((now, rung));
        if rung == Rung::Reboot {
            self.reboot_requested = Some(boot.to_owned());
        }
        Some(rung)
    }

    /// One rung above the last that was used lately and did not help.
    fn next_rung(&self, now: u64, budgets: &Budgets) -> Rung {
        let lately = |at: u64| now.saturating_sub(at) <= budgets.row_seconds;
        match self.done.iter().rev().find(|(at, _)| lately(*at)) {
            None => Rung::RestartWorker,
            Some((_, Rung::RestartWorker)) => Rung::RebindDriver,
            Some(_) => Rung::Reboot,
        }
    }

    /// Drops what is older than a period, and faults that are not in a row with what comes now.
    fn forget(&mut self, now: u64, budgets: &Budgets) {
        self.done.retain(|(at, _)| now.saturating_sub(*at) < budgets.period_seconds);
        self.row.retain(|at| now.saturating_sub(*at) <= budgets.row_seconds);
        self.given_up &= !self.done.is_empty();
    }

    /// Whether all budgets are exhausted.
    pub fn has_given_up(&self) -> bool {
        self.given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Rung::{FreshContext, GivenUp, RebindDriver, Reboot, RestartWorker};

    fn climb(ladder: &mut Ladder, boot: &str, times: std::ops::Range<u64>, budgets: &Budgets) -> Vec<Rung> {
        times.filter_map(|at| ladder.fault(Entry::FreshContext, Duration::from_secs(at), boot, budgets)).collect()
    }

    #[test]
    fn three_in_a_row_lead_one_rung_up_and_a_reboot_is_requested_once() {
        let mut ladder = Ladder::default();
        let done = climb(&mut ladder, "a", 0..100, &Budgets::default());
        let f = FreshContext;
        assert_eq!(done, [f, f, RestartWorker, f, f, RebindDriver, f, f, Reboot]);
    }

    #[test]
    fn it_never_reboots_in_a_loop() {
        let (mut ladder, budgets) = (Ladder::default(), Budgets::default());
        let mut reboots = 0;
        let mut given_up = 0;
        for boot in 0..50_u64 {
            let done = climb(&mut ladder, &boot.to_string(), boot * 100..boot * 100 + 100, &budgets);
            // As after a reboot: only what is on disk is left.
            ladder = serde_json::from_str(&serde_json::to_string(&ladder).unwrap()).unwrap();
            reboots += done.iter().filter(|rung| **rung == Reboot).count();
            given_up += done.iter().filter(|rung| **rung == GivenUp).count();
        }
        assert_eq!((reboots, given_up), (budgets.reboots, 1));
        assert!(ladder.has_given_up());
        let later = Duration::from_secs(5000 + budgets.period_seconds);
        assert_eq!(ladder.fault(Entry::Reboot, later, "z", &budgets), Some(Reboot));
    }

    #[test]
    fn faults_far_apart_are_not_in_a_row() {
        let (mut ladder, budgets) = (Ladder::default(), Budgets::default());
        for fault in 0..50 {
            let at = Duration::from_secs(fault * (budgets.row_seconds + 1));
            assert_eq!(ladder.fault(Entry::FreshContext, at, "a", &budgets), Some(FreshContext));
        }
    }

    #[test]
    fn an_exhausted_budget_leads_to_the_next_rung() {
        let budgets = Budgets { restarts: 0, rebinds: 0, ..Budgets::default() };
        let mut ladder = Ladder::default();
        assert_eq!(climb(&mut ladder, "a", 0..10, &budgets), [FreshContext, FreshContext, Reboot]);
    }
}
