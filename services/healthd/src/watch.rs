//! The daemon's work: everything that is heard, measured and told comes together here, in one loop.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kit::thermal::Level;
use rustix::time::{ClockId, clock_gettime};
use tracing::{error, info, warn};
use zbus::Connection;

use crate::act;
use crate::bundle::Part;
use crate::class::Severity;
use crate::classify::classify;
use crate::config::Config;
use crate::dbus::Server;
use crate::gauge::{self, Gauges, Load};
use crate::incident::{Change, Hurt, Incident, Tracker};
use crate::ladder::Rung;
use crate::message;
use crate::mqtt::Front;
use crate::source::{Heard, Saved};
use crate::state::State;
use crate::view::{Shown, View};

/// Lines of the kernel's log that a support bundle has.
const RECENT: usize = 2000;
/// Incidents that a support bundle has.
const TOLD: usize = 256;
/// How long an incident is a reason not to be healthy.
const LINGER: Duration = Duration::from_secs(600);

/// Everything that the daemon knows.
#[derive(Debug)]
pub(crate) struct Watch {
    config: Arc<Config>,
    bus: Connection,
    server: Server,
    pub(crate) front: Front,
    pub(crate) state: State,
    tracker: Tracker,
    boot_id: String,
    gauges: Gauges,
    load: Load,
    level: Option<Level>,
    /// Newest incidents, by their numbers, with what was done about each.
    told: VecDeque<(u64, Instant, Severity, Shown)>,
    recent: VecDeque<String>,
    /// What is wrong with the daemon itself.
    troubles: BTreeMap<&'static str, String>,
    dropped_before: u64,
    pub(crate) heard_at: Instant,
}

/// Time since the boot, with time asleep.
pub(crate) fn uptime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl Watch {
    pub(crate) fn new(config: Arc<Config>, bus: Connection, server: Server, front: Front, state: State) -> Self {
        let boot_id = state.boot_id.clone();
        let dropped_before = state.counters.get("reports-dropped").copied().unwrap_or(0);
        Self {
            config,
            bus,
            server,
            front,
            state,
            tracker: Tracker::default(),
            boot_id,
            gauges: Gauges::new(),
            load: Load::default(),
            level: None,
            told: VecDeque::new(),
            recent: VecDeque::new(),
            troubles: BTreeMap::new(),
            dropped_before,
            heard_at: Instant::now(),
        }
    }

    /// Whether an incident is open, so that time matters.
    pub(crate) fn is_quiet(&self) -> bool {
        self.tracker.is_quiet()
    }

    /// Takes a record of the kernel's log.
    pub(crate) async fn hear(&mut self, heard: Heard) -> Result<()> {
        let Heard { number, record, lost } = heard;
        self.heard_at = Instant::now();
        self.state.sequence = Some(number);
        self.state.count("records", 1);
        if lost > 0 {
            self.state.count("records-lost", lost);
            warn!(lost, "records of the kernel's log were overwritten before they were read");
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(record.text.clone());
        let Some(finding) = classify(&record) else { return Ok(()) };
        let now = uptime();
        let change = self.tracker.observe(&finding, number, &record.text, record.at.unwrap_or(now), now);
        self.take(change).await
    }

    /// Takes what the NPU's owner tells.
    pub(crate) async fn told(&mut self, hurt: Hurt) -> Result<()> {
        let change = self.tracker.hurt(hurt, uptime());
        self.take(change).await
    }

    /// Settles what has become quiet.
    pub(crate) async fn tick(&mut self) -> Result<()> {
        let changes = self.tracker.tick(uptime());
        self.take(changes).await
    }

    async fn take(&mut self, changes: impl IntoIterator<Item = Change>) -> Result<()> {
        for change in changes {
            match change {
                Change::Opened(incident) => {
                    self.state.count("incidents", 1);
                    self.show(&incident, "").await?;
                    self.refresh().await?;
                }
                Change::Updated(incident) => self.show(&incident, "").await?,
                Change::Settled(incident) => self.settle(&incident).await?,
            }
        }
        Ok(())
    }

    /// An incident is complete: decides what is done, writes that down, does it, and reports.
    async fn settle(&mut self, incident: &Incident) -> Result<()> {
        let hurt = !incident.models.is_empty();
        let entry = incident.class.entry.filter(|entry| *entry != crate::class::Entry::FreshContext || hurt);
        let operated = self.state.operated(uptime());
        let rung =
            entry.and_then(|entry| self.state.ladder.fault(entry, operated, &self.boot_id, &self.config.budgets));
        let taken = rung.map_or("", Rung::name);
        self.show(incident, taken).await?;
        if let Some((.., shown)) = self.told.iter().find(|told| told.0 == incident.number) {
            message::settled(&shown.payload);
            self.front.report(&shown.payload);
        }
        match rung {
            Some(rung) => self.act(rung).await,
            // What was heard is not heard again after a crash.
            None => drop(self.save()),
        }
        self.refresh().await
    }

    async fn act(&mut self, rung: Rung) {
        let counter = match rung {
            Rung::RestartWorker => "restarts-requested",
            Rung::RebindDriver => "rebinds-requested",
            Rung::Reboot => "reboots-requested",
            Rung::FreshContext | Rung::GivenUp => return message::acted(rung, None),
        };
        self.state.count(counter, 1);
        // On disk first: a machine that dies of an action must know that it was taken.
        if let Err(error) = self.save() {
            error!(error = format!("{error:#}"), ?rung, "without a record of it nothing is done");
            self.troubles.insert("state", "what was done cannot be written down, so nothing is done any more".into());
            return;
        }
        let done = act::act(&self.bus, &self.config, rung).await;
        message::acted(rung, done.err());
    }

    /// Writes down what must survive.
    pub(crate) fn save(&mut self) -> Result<()> {
        self.state.operated = uptime().as_secs();
        self.state.save(&self.config.state)
    }

    async fn show(&mut self, incident: &Incident, taken: &str) -> Result<()> {
        let mut shown = Shown::of(incident, &self.boot_id, uptime(), taken);
        // The clock may have been set meanwhile; when it began does not change.
        if let Some(told) = self.told.iter().find(|told| told.0 == incident.number) {
            shown.payload.first_seen_ms = told.3.payload.first_seen_ms;
        }
        let entry = (incident.number, Instant::now(), incident.severity, shown.clone());
        match self.told.iter_mut().find(|told| told.0 == incident.number) {
            Some(told) => *told = entry,
            None => {
                if self.told.len() == TOLD {
                    self.told.pop_front();
                }
                self.told.push_back(entry);
            }
        }
        self.server.show_incident(incident.number, &shown).await.context("show an incident")
    }

    /// Takes what the kernel saved when it died. Returns why the boot before this one ended, where that says it.
    pub(crate) async fn remember(&mut self, saved: Vec<Saved>) -> Result<Option<&'static str>> {
        let mut why = None;
        self.state.pstore_seen.retain(|name| saved.iter().any(|saved| saved.name == *name));
        for log in saved {
            if !self.state.pstore_seen.insert(log.name.clone()) {
                continue;
            }
            for (place, record) in log.records.iter().enumerate() {
                let Some(finding) = classify(record).filter(|finding| finding.class.severity == Severity::Critical)
                else {
                    continue;
                };
                why = why.or(match finding.class.name {
                    "thermal-critical" => Some("thermal"),
                    "kernel-panic" | "kernel-oops" | "hard-lockup" | "serror" => Some("panic"),
                    _ => None,
                });
                let number = saved_number(&log.name, place);
                // All of one saved log is one incident.
                let now = uptime();
                let change = self.tracker.observe(&finding, number, &record.text, now, now);
                self.take(change).await?;
            }
        }
        Ok(why)
    }

    /// Measures.
    pub(crate) async fn measure(&mut self) -> Result<()> {
        let (root, units) = (self.config.root.clone(), self.config.units.clone());
        let read = tokio::task::spawn_blocking(move || gauge::read(&root, &units));
        let mut gauges = read.await.context("measure")?;
        self.load.measure(&self.config.root, &mut gauges);
        act::units(&self.bus, &self.config.units, &mut gauges).await;
        self.gauges = gauges;
        if let Err(error) = self.save() {
            let text = format!("{error:#}");
            if self.troubles.insert("state", "what must survive a reboot cannot be written".into()).is_none() {
                error!(error = text, "the state cannot be written");
            }
        } else {
            self.troubles.remove("state");
        }
        self.refresh().await
    }

    /// Says that something is wrong with the daemon itself.
    pub(crate) async fn trouble(&mut self, what: &'static str, why: String) -> Result<()> {
        warn!(what, why, "the daemon does not see everything");
        self.troubles.insert(what, why);
        self.refresh().await
    }

    /// Draws the picture anew.
    pub(crate) async fn refresh(&mut self) -> Result<()> {
        let zone = self.gauges.get(&format!("celsius.{}", self.config.thermal.zone));
        let next = zone.map(|celsius| self.config.thermal.next_level(self.level.unwrap_or_default(), *celsius));
        if next != self.level {
            info!(level = next.map(Level::name), celsius = zone, "thermal level changes");
            self.level = next;
        }
        let mut gauges = self.gauges.clone();
        if let Some(connected) = self.front.connected() {
            gauges.insert("mqtt-connected".into(), f64::from(u8::from(connected)));
            // CAST: connections stay below the 53 bits that a double keeps.
            gauges.insert("mqtt-connections".into(), self.front.connections as f64);
        }
        let (waiting, dropped) = self.front.waiting();
        self.state.counters.insert("reports-dropped".into(), self.dropped_before + dropped);
        gauges.insert("reports-waiting".into(), waiting as f64);
        let (state, reasons) = self.judge(&gauges);
        let mut counters: BTreeMap<String, u64> = COUNTERS.iter().map(|name| ((*name).to_owned(), 0)).collect();
        counters.extend(self.state.counters.clone());
        let view = View {
            state,
            reasons,
            thermal_level: self.level.map_or("unknown", Level::name),
            reset_reason: self.state.reset_reason.clone(),
            boot_id: self.boot_id.clone(),
            uptime: uptime(),
            gauges,
            counters,
        };
        self.front.summarise(view.summary());
        self.server.show(view).await.context("show how the machine is")
    }

    /// How the machine is, and why.
    fn judge(&self, gauges: &Gauges) -> (&'static str, Vec<String>) {
        let mut reasons = gauge::reasons(gauges);
        match self.level {
            Some(Level::Critical) => reasons.push((Severity::Critical, "the NPU is too hot to work".into())),
            Some(Level::Throttled) => reasons.push((Severity::Warning, "the NPU is hot".into())),
            _ => {}
        }
        if self.state.ladder.has_given_up() {
            reasons.push((
                Severity::Critical,
                "the NPU fails again and again, and nothing that may be done helped".into(),
            ));
        }
        reasons.extend(self.troubles.values().map(|trouble| (Severity::Warning, trouble.clone())));
        let fresh = self.told.iter().filter(|(_, at, ..)| at.elapsed() < LINGER);
        let mut classes: BTreeMap<(Severity, &str), u64> = BTreeMap::new();
        for (.., severity, shown) in fresh.filter(|(_, _, severity, _)| *severity >= Severity::Error) {
            *classes.entry((*severity, shown.payload.class.as_str())).or_default() += u64::from(shown.payload.count);
        }
        let incidents =
            classes.into_iter().map(|((severity, class), count)| (severity, format!("{class}, {count} times lately")));
        // One fault that was dealt with leaves the machine well enough; only the worst make it critical by themselves.
        reasons.extend(incidents);
        reasons.sort_by_key(|(severity, _)| std::cmp::Reverse(*severity));
        let state = match reasons.first() {
            Some((Severity::Critical, _)) => "critical",
            Some(_) => "degraded",
            None => "healthy",
        };
        (state, reasons.into_iter().map(|(_, reason)| reason).collect())
    }

    /// What a support bundle has of the daemon itself.
    pub(crate) fn parts(&self, view: &View) -> Vec<Part> {
        let incidents: Vec<_> = self.told.iter().map(|(.., shown)| &shown.payload).collect();
        let json = |value: serde_json::Result<String>| value.expect("text and numbers serialise");
        let recent: Vec<&str> = self.recent.iter().map(String::as_str).collect();
        vec![
            ("summary.json".into(), json(serde_json::to_string_pretty(&view.summary()))),
            ("incidents.json".into(), json(serde_json::to_string_pretty(&incidents))),
            ("kernel-log.txt".into(), recent.join("\n")),
            ("metrics.txt".into(), view.metrics()),
        ]
    }
}

/// Counters that are shown also while they are 0.
const COUNTERS: &[&str] = &[
    "incidents",
    "records",
    "records-lost",
    "unclean-boots",
    "restarts-requested",
    "rebinds-requested",
    "reboots-requested",
    "reports-dropped",
];

/// A number for a record of a saved log: the same whenever it is read, and above those of a boot's own records.
fn saved_number(name: &str, place: usize) -> u64 {
    // FNV-1a, which every reader of the log's name computes alike.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    1 << 62 | (hash >> 16) << 14 | u64::try_from(place).unwrap_or(0) & 0x3fff
}
