//! From findings to incidents: all that the kernel says about one fault is one incident.
//!
//! ```text
//! finding ─▶ joins an open incident of its part and core ─┐
//!        └▶ opens one ────────────────────────────────────┴─▶ quiet for a while ─▶ settled
//! owner: "the result of model m was untrusted" ─▶ joins the incident with the line that it heard
//! ```
//! Pure: whoever calls says what time it is, on the clock that runs from the boot on.

use std::collections::VecDeque;
use std::time::Duration;

use crate::class::{Advice, Class, Part, Role, Severity, find};
use crate::classify::{Finding, rank};

/// An incident is settled when nothing joined for so long.
// TIMEOUT: the lines of one fault come within half a second (the kernel retires a job after 500 ms), and who was hurt is
// told right after the last of them.
const QUIET: Duration = Duration::from_millis(600);
/// How long equal incidents are told one by one.
const MINUTE: Duration = Duration::from_secs(60);
/// So many in a minute are told one by one; what follows is counted in the last of them.
const RATE: usize = 8;
/// A storm is over when nothing came for so long.
const STORM_QUIET: Duration = Duration::from_secs(10);
/// Lines that an incident keeps.
const LINES: usize = 16;
/// How long what an owner told waits for the kernel's line, and the other way round.
// TIMEOUT: both come from the same moment by two ways; a loaded machine may delay one of them by seconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// Incidents that are remembered, so that what is told late finds them.
const REMEMBERED: usize = 16;

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// Number of the record that began it, within this boot.
    pub number: u64,
    /// The class.
    pub class: &'static Class,
    /// How bad; less than its class where nobody of ours was hurt.
    pub severity: Severity,
    /// What should be done.
    pub advice: Advice,
    /// The device.
    pub device: String,
    /// The core of the NPU.
    pub core: Option<u32>,
    /// Who suffered.
    pub subject: String,
    /// Models whose results could not be trusted because of it.
    pub models: Vec<String>,
    /// Whether all that it hurt were pooling jobs that were done before the watchdog ended them.
    unheard: bool,
    /// What the kernel said.
    pub lines: Vec<String>,
    /// How often it was seen.
    pub count: u32,
    /// When it began, since the boot.
    pub first: Duration,
    /// When it was last seen.
    pub last: Duration,
    /// Whether lines may still join.
    pub open: bool,
    /// Whether it has its line that comes once per fault.
    complete: bool,
    /// When it was last touched, by the clock of whoever calls.
    touched: Duration,
}

/// What the owner of the NPU told: a result could not be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hurt {
    /// The model.
    pub model: String,
    /// Whether it was a pooling job that was done, and the kernel does not listen to the pooling unit.
    pub unheard: bool,
    /// Why.
    pub reason: String,
    /// What the kernel had said; empty where the owner heard nothing.
    pub kernel_line: String,
}

/// What happened to an incident.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It began.
    Opened(Incident),
    /// Something joined.
    Updated(Incident),
    /// Nothing changes any more.
    Settled(Incident),
}

/// Open incidents, and what is known of those that were.
#[derive(Debug, Default)]
pub struct Tracker {
    incidents: VecDeque<Incident>,
    hurts: Vec<(Duration, Hurt)>,
    /// Part, core and class of what opened lately.
    opened: VecDeque<(Duration, Part, Option<u32>, &'static str)>,
    /// Numbers for incidents that no record began.
    told: u64,
}

/// Incidents that an owner told have numbers above all records'.
const TOLD: u64 = 1 << 48;

impl Tracker {
    /// Takes a finding with the number and the text of its record. `at` is when it happened, `now` when it is taken.
    pub fn observe(
        &mut self,
        finding: &Finding,
        number: u64,
        text: &str,
        at: Duration,
        now: Duration,
    ) -> Option<Change> {
        if finding.role == Role::Fact {
            return None;
        }
        if let Some(place) = self.joins(finding, at) {
            return Some(self.join(place, finding, text, at, now));
        }
        if finding.role == Role::Tail {
            return None;
        }
        if let Some(storm) = self.storm(finding, at) {
            storm.count += 1;
            (storm.last, storm.touched, storm.open) = (at, now, true);
            return Some(Change::Updated(storm.clone()));
        }
        let mut incident = Incident {
            number,
            class: finding.class,
            severity: finding.class.severity,
            advice: finding.class.advice,
            device: finding.device.clone(),
            core: finding.core,
            subject: finding.subject.clone(),
            models: Vec::new(),
            unheard: false,
            lines: vec![text.to_owned()],
            count: 1,
            first: at,
            last: at,
            open: true,
            complete: finding.role == Role::Once && ends(finding.class),
            touched: now,
        };
        while let Some(place) = self.hurts.iter().position(|(_, hurt)| hurt.kernel_line == text) {
            let (_, hurt) = self.hurts.remove(place);
            incident.hurt(hurt);
        }
        Some(self.open(incident))
    }

    /// Takes what the NPU's owner told.
    pub fn hurt(&mut self, hurt: Hurt, now: Duration) -> Option<Change> {
        let fresh = |incident: &&mut Incident| now.saturating_sub(incident.touched) < PATIENCE;
        // One whose model is known has its own; the next fault has the same words.
        let waits = |incident: &&mut Incident| incident.class.part == Part::Npu && incident.models.is_empty();
        let mut ours = self.incidents.iter_mut().rev().filter(fresh).filter(waits);
        let found = ours.find(|incident| hurt.kernel_line.is_empty() || incident.lines.contains(&hurt.kernel_line));
        let Some(incident) = found else {
            self.hurts.push((now, hurt));
            return None;
        };
        incident.hurt(hurt);
        Some(Change::Updated(incident.clone()))
    }

    /// Settles what has been quiet for long enough.
    pub fn tick(&mut self, now: Duration) -> Vec<Change> {
        let mut changes = Vec::new();
        // What no line of the kernel explains is an incident of its own.
        let late = |since: &Duration| now.saturating_sub(*since) >= PATIENCE;
        for (since, hurt) in std::mem::take(&mut self.hurts) {
            if late(&since) {
                // Several contexts may have heard the line of one fault.
                let heard = |incident: &&mut Incident| incident.lines.contains(&hurt.kernel_line);
                if let Some(incident) = self.incidents.iter_mut().rev().find(heard) {
                    incident.hurt(hurt);
                    changes.push(Change::Updated(incident.clone()));
                    continue;
                }
                self.told += 1;
                let change = self.open(untrusted(TOLD + self.told, hurt, now));
                changes.push(change);
            } else {
                self.hurts.push((since, hurt));
            }
        }
        for incident in self.incidents.iter_mut().filter(|incident| incident.open) {
            let quiet = match incident {
                _ if incident.count > 1 => STORM_QUIET,
                // Whose job it was may still be told.
                _ if incident.class.name == "npu-job-timeout" && incident.models.is_empty() => PATIENCE,
                _ => QUIET,
            };
            // A storm that goes on is told once a minute, so that the ladder hears of it.
            let long = incident.count > 1 && now.saturating_sub(incident.first) >= MINUTE;
            if long || now.saturating_sub(incident.touched) >= quiet {
                settle(incident);
                changes.push(Change::Settled(incident.clone()));
            }
        }
        while self.incidents.len() > REMEMBERED && self.incidents.front().is_some_and(|incident| !incident.open) {
            self.incidents.pop_front();
        }
        changes
    }

    /// Whether nothing is open and nothing waits.
    pub fn is_quiet(&self) -> bool {
        self.hurts.is_empty() && self.incidents.iter().all(|incident| !incident.open)
    }

    fn open(&mut self, incident: Incident) -> Change {
        self.opened.push_back((incident.first, incident.class.part, incident.core, incident.class.name));
        self.incidents.push_back(incident.clone());
        Change::Opened(incident)
    }

    /// The incident that a finding belongs to.
    fn joins(&self, finding: &Finding, at: Duration) -> Option<usize> {
        let part = finding.class.part;
        let fits = |incident: &Incident| {
            let recent = incident.open && at.saturating_sub(incident.last) <= 2 * QUIET;
            // A trace's line makes a warning about any domain one about ours.
            let same = incident.class.part == part && (incident.core == finding.core || finding.core.is_none())
                || finding.role == Role::Tail && incident.class.name == "iommu-domain-warning";
            let device = finding.core.is_some()
                || part == Part::Npu
                || finding.device.is_empty()
                || incident.device.is_empty()
                || incident.device == finding.device;
            recent && same && device
        };
        let place = self.incidents.iter().rposition(fits)?;
        let incident = &self.incidents[place];
        // A second line of the kind that a fault has once is another fault; so is another process.
        let another = finding.role == Role::Once && ends(finding.class) && incident.complete
            || finding.role == Role::Once
                && !ends(finding.class)
                && (incident.complete || incident.class == finding.class)
            || finding.role == Role::Root && part == Part::Gpu && differs(&incident.subject, &finding.subject);
        (!another).then_some(place)
    }

    fn join(&mut self, place: usize, finding: &Finding, text: &str, at: Duration, now: Duration) -> Change {
        let incident = &mut self.incidents[place];
        if incident.lines.len() < LINES {
            incident.lines.push(text.to_owned());
        }
        let worse = (finding.class.severity, std::cmp::Reverse(rank(finding.class)))
            > (incident.class.severity, std::cmp::Reverse(rank(incident.class)));
        if worse {
            (incident.class, incident.severity, incident.advice) =
                (finding.class, finding.class.severity, finding.class.advice);
        }
        // The line that names the unit says more than the one that names the process.
        if incident.subject.is_empty() || finding.role == Role::Detail && finding.subject.ends_with(".service") {
            incident.subject.clone_from(&finding.subject);
        }
        incident.complete |= finding.role == Role::Once && ends(finding.class);
        (incident.last, incident.touched) = (at, now);
        while let Some(found) = self.hurts.iter().position(|(_, hurt)| hurt.kernel_line == text) {
            let (_, hurt) = self.hurts.remove(found);
            self.incidents[place].hurt(hurt);
        }
        Change::Updated(self.incidents[place].clone())
    }

    /// The newest incident of the finding's kind, where there were too many of them lately.
    fn storm(&mut self, finding: &Finding, at: Duration) -> Option<&mut Incident> {
        self.opened.retain(|(opened, ..)| at.saturating_sub(*opened) < MINUTE);
        let (part, core, name) = (finding.class.part, finding.core, finding.class.name);
        let same = self.opened.iter().filter(|opened| (opened.1, opened.2, opened.3) == (part, core, name)).count();
        if same < RATE {
            return None;
        }
        self.incidents.iter_mut().rev().find(|incident| incident.class.part == part && incident.core == core)
    }
}

/// Whether a line of the class ends a fault: the watchdog's, which comes last and exactly once.
fn ends(class: &Class) -> bool {
    class.name == "npu-job-timeout"
}

fn differs(one: &str, other: &str) -> bool {
    !one.is_empty() && !other.is_empty() && one != other
}

impl Incident {
    /// Notes whom it hurt.
    fn hurt(&mut self, hurt: Hurt) {
        self.unheard = hurt.unheard && (self.unheard || self.models.is_empty());
        if !self.models.contains(&hurt.model) {
            self.models.push(hurt.model);
        }
    }
}

/// A job that timed out hurt nobody of ours where nobody told so: it was another program's. One that was done before
/// that is known to be harmless.
fn settle(incident: &mut Incident) {
    incident.open = false;
    let name = match incident.class.name {
        "npu-job-timeout" if incident.models.is_empty() => "npu-foreign-timeout",
        "npu-job-timeout" | "npu-result-untrusted" if incident.unheard => "npu-pooling-unheard",
        _ => return,
    };
    let class = find(name).expect("the class is in the table");
    (incident.class, incident.severity, incident.advice) = (class, class.severity, class.advice);
}

fn untrusted(number: u64, hurt: Hurt, now: Duration) -> Incident {
    let class = find("npu-result-untrusted").expect("the class is in the table");
    Incident {
        number,
        class,
        severity: class.severity,
        advice: class.advice,
        device: String::new(),
        core: None,
        subject: String::new(),
        models: vec![hurt.model],
        unheard: hurt.unheard,
        lines: vec![hurt.reason],
        count: 1,
        first: now,
        last: now,
        open: true,
        complete: true,
        touched: now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::classify;
    use crate::record::Record;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn observe(tracker: &mut Tracker, number: u64, text: &str, at: Duration) -> Option<Change> {
        let record = Record { text: text.into(), ..Record::default() };
        tracker.observe(&classify(&record)?, number, text, at, at)
    }

    const TIMEOUT: &str = "rocket fdac0000.npu: NPU job timed out";

    fn hurt(kernel_line: &str) -> Hurt {
        Hurt { model: "mnist".into(), unheard: false, reason: "too slow".into(), kernel_line: kernel_line.into() }
    }

    fn settled(changes: Vec<Change>) -> Vec<Incident> {
        changes
            .into_iter()
            .filter_map(|change| if let Change::Settled(it) = change { Some(it) } else { None })
            .collect()
    }

    #[test]
    fn one_fault_of_a_client_is_one_incident() {
        let mut tracker = Tracker::default();
        let lines = [
            (0, "rk_iommu fdaca000.iommu: Page fault at 0x0000000000012345 of type read"),
            (
                0,
                "rk_iommu fdaca000.iommu: iova = 0x0000000000012345: dte_index: 0x000 pte_index: 0x012 page_offset: 0x345",
            ),
            (500, TIMEOUT),
            (500, "rk_iommu fdaca000.iommu: Enable stall request timed out, status: 0x00001d"),
            (500, "rk_iommu fdaca000.iommu: Enable stall request timed out, status: 0x00001d"),
        ];
        for (number, (at, text)) in lines.iter().enumerate() {
            let change = observe(&mut tracker, number as u64, text, ms(*at)).unwrap();
            assert_eq!(matches!(change, Change::Opened(_)), number == 0, "{text}");
        }
        assert!(tracker.hurt(hurt(TIMEOUT), ms(510)).is_some());
        let incidents = settled(tracker.tick(ms(1200)));
        assert_eq!(incidents.len(), 1);
        let incident = &incidents[0];
        assert_eq!((incident.class.name, incident.core, incident.lines.len()), ("npu-page-fault", Some(1), 5));
        assert_eq!(incident.models, ["mnist"]);
        assert!(tracker.is_quiet());
    }

    #[test]
    fn a_second_job_that_times_out_is_a_second_fault() {
        let mut tracker = Tracker::default();
        observe(&mut tracker, 1, TIMEOUT, ms(0));
        tracker.hurt(hurt(TIMEOUT), ms(1));
        observe(&mut tracker, 2, TIMEOUT, ms(507));
        tracker.hurt(hurt(TIMEOUT), ms(508));
        let incidents = settled(tracker.tick(ms(2000)));
        assert_eq!(incidents.len(), 2);
        assert!(incidents.iter().all(|incident| incident.models == ["mnist"]));
    }

    #[test]
    fn cores_do_not_join() {
        let mut tracker = Tracker::default();
        observe(&mut tracker, 1, TIMEOUT, ms(0));
        observe(&mut tracker, 2, "rocket fdab0000.npu: NPU job timed out", ms(1));
        assert_eq!(settled(tracker.tick(ms(3000))).len(), 2);
    }

    #[test]
    fn what_is_told_first_is_of_the_next_fault_and_not_of_the_last() {
        let mut tracker = Tracker::default();
        observe(&mut tracker, 1, TIMEOUT, ms(0));
        tracker.hurt(hurt(TIMEOUT), ms(1));
        assert_eq!(settled(tracker.tick(ms(700))).len(), 1);
        assert_eq!(tracker.hurt(hurt(TIMEOUT), ms(800)), None);
        observe(&mut tracker, 2, TIMEOUT, ms(900));
        let incidents = settled(tracker.tick(ms(1600)));
        assert_eq!((incidents[0].number, &incidents[0].models[..]), (2, &["mnist".to_owned()][..]));
    }

    #[test]
    fn several_contexts_that_heard_one_line_are_one_incident() {
        let mut tracker = Tracker::default();
        observe(&mut tracker, 1, TIMEOUT, ms(0));
        for model in ["mnist", "other"] {
            tracker.hurt(Hurt { model: model.into(), ..hurt(TIMEOUT) }, ms(1));
        }
        let changes = tracker.tick(ms(2100));
        assert!(!changes.iter().any(|change| matches!(change, Change::Opened(_))), "{changes:?}");
        assert!(matches!(&changes[0], Change::Updated(incident) if incident.models == ["mnist", "other"]));
    }

    #[test]
    fn what_is_told_before_the_line_is_heard_finds_it() {
        let mut tracker = Tracker::default();
        assert_eq!(tracker.hurt(hurt(TIMEOUT), ms(0)), None);
        match observe(&mut tracker, 1, TIMEOUT, ms(400)) {
            Some(Change::Opened(incident)) => assert_eq!(incident.models, ["mnist"]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_result_that_no_line_explains_is_an_incident() {
        let mut tracker = Tracker::default();
        tracker.hurt(hurt(""), ms(0));
        assert!(tracker.tick(ms(1000)).is_empty());
        let changes = tracker.tick(ms(2000));
        assert!(matches!(&changes[..], [Change::Opened(it)] if it.class.name == "npu-result-untrusted"), "{changes:?}");
    }

    #[test]
    fn a_job_of_nobody_of_ours_is_a_warning_without_a_ladder() {
        let mut tracker = Tracker::default();
        observe(&mut tracker, 1, TIMEOUT, ms(0));
        assert!(tracker.tick(ms(1000)).is_empty(), "who was hurt may still be told");
        let incidents = settled(tracker.tick(ms(2000)));
        assert_eq!((incidents[0].class.name, incidents[0].class.entry), ("npu-foreign-timeout", None));
    }

    #[test]
    fn only_pooling_that_was_done_is_harmless() {
        let unheard = || Hurt { unheard: true, ..hurt(TIMEOUT) };
        let fault = "rk_iommu fdaca000.iommu: Page fault at 0x0000000000012345 of type read";
        for (lines, told, expected) in [
            (&[TIMEOUT][..], vec![unheard()], "npu-pooling-unheard"),
            (&[TIMEOUT], vec![hurt(TIMEOUT)], "npu-job-timeout"),
            (&[fault, TIMEOUT], vec![unheard()], "npu-page-fault"),
            (&[], vec![Hurt { kernel_line: String::new(), ..unheard() }], "npu-pooling-unheard"),
        ] {
            let mut tracker = Tracker::default();
            for (number, line) in lines.iter().enumerate() {
                observe(&mut tracker, number as u64, line, ms(0));
            }
            told.into_iter().for_each(|hurt| drop(tracker.hurt(hurt, ms(10))));
            let changes: Vec<_> = (1..40).flat_map(|tenth| tracker.tick(ms(tenth * 100))).collect();
            let incidents = settled(changes);
            assert_eq!(incidents.len(), 1, "{incidents:?}");
            let class = incidents[0].class;
            assert_eq!((class.name, class.entry.is_none()), (expected, expected == "npu-pooling-unheard"));
        }
    }

    #[test]
    fn one_real_hang_beside_harmless_ones_counts() {
        let mut tracker = Tracker::default();
        observe(&mut tracker, 1, TIMEOUT, ms(0));
        let [first, second] = [("a", true), ("b", false)].map(|(model, unheard)| {
            let incident = &mut tracker.incidents[0];
            incident.hurt(Hurt { model: model.into(), unheard, ..hurt(TIMEOUT) });
            incident.unheard
        });
        assert_eq!((first, second), (true, false));
        tracker.incidents[0].hurt(Hurt { unheard: true, ..hurt(TIMEOUT) });
        assert_eq!(settled(tracker.tick(ms(1000)))[0].class.name, "npu-job-timeout");
    }

    #[test]
    fn a_storm_is_counted_in_one_incident() {
        let mut tracker = Tracker::default();
        let mut opened = 0;
        for number in 0..100 {
            let change = observe(
                &mut tracker,
                number,
                "EXT4-fs (mmcblk0p2): Remounting filesystem read-only",
                ms(1300 * number),
            );
            opened += usize::from(matches!(change, Some(Change::Opened(_))));
            tracker.tick(ms(1300 * number + 1200));
        }
        assert!(opened < 30, "{opened}");
    }

    #[test]
    fn a_trace_makes_a_warning_ours() {
        let mut tracker = Tracker::default();
        let warning = "WARNING: CPU: 4 PID: 99 at drivers/iommu/iommu.c:2329 __iommu_group_set_core_domain+0x30/0x40";
        observe(&mut tracker, 1, warning, ms(0));
        observe(&mut tracker, 2, " rocket_reset+0x5c/0x120 [rocket]", ms(1));
        assert_eq!(settled(tracker.tick(ms(1000)))[0].class.name, "npu-detach-failed");
    }
}
