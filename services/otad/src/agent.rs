//! The one task that owns an update: it alone changes the state, and writes it down before it acts.
//!
//! ```text
//! D-Bus, MQTT, hawkBit ── orders ──▶ agent ── status ──▶ D-Bus, MQTT, hawkBit
//!                                     │ ▲
//!                          work on RAUC, one at a time
//! ```

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::{ErrorCode, Failure as Refusal};
use semver::Version;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};
use zbus::Connection;

use crate::condition::{Unmet, before_install, before_reboot};
use crate::config::Config;
use crate::failure::{Failure, Kind};
use crate::gate::{self, Log};
use crate::machine::{self, Meter};
use crate::offer::{self, Offer, Source};
use crate::rauc::{self, Access, Progress, Rauc};
use crate::record::{self, Record, Store};
use crate::state::{Attempt, Event, State, next};

/// Orders that may wait.
const ORDERS: usize = 16;
/// The longest wait before a failure is tried again.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// How long a rollback's report waits for the health gate to say what it knows.
// TIMEOUT: the gate writes this first of all when it starts, and is started together with this daemon.
const GATE_PATIENCE: Duration = Duration::from_secs(60);

/// What the front ends see.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Where the update stands.
    pub state: State,
    /// Which updates this machine is for.
    pub channel: Option<String>,
    /// What runs.
    pub version: String,
    /// The bootloader's name of the slot that runs; empty while it is not known.
    pub slot: String,
    /// How far RAUC is.
    pub progress: Progress,
    /// What the update waits for.
    pub waiting: Vec<String>,
    /// Whether the broker is connected.
    pub broker: bool,
    /// The action of hawkBit whose end was reported last.
    pub reported: Option<String>,
    /// Whether a failed offer will not be tried again by itself.
    pub given_up: bool,
}

impl Status {
    /// The version that is or was wanted, or what runs where none is.
    pub fn target_version(&self) -> String {
        let wanted = self.state.offer().and_then(|offer| offer.version.as_ref());
        wanted.map_or_else(|| self.version.clone(), Version::to_string)
    }
}

/// What the agent is asked.
#[derive(Debug)]
enum Order {
    Offer(Box<Offer>),
    Withdraw(Source),
    Proceed,
    Dismiss,
    Broker(bool),
    Reported(String),
    Reset,
}

/// A front end's side of the agent.
#[derive(Clone, Debug)]
pub struct Handle {
    orders: mpsc::Sender<(Order, oneshot::Sender<api::Result<()>>)>,
    status: watch::Receiver<Status>,
}

impl Handle {
    /// Where the update stands, now and from now on.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Offers an update. One that is the same as before changes nothing, unless a person asks again.
    ///
    /// # Errors
    /// `Busy` while another is checked, installed or on trial; `UpdateFailed` where it is refused at once.
    pub async fn offer(&self, offer: Offer) -> api::Result<()> {
        self.order(Order::Offer(Box::new(offer))).await
    }

    /// Takes back an offer of `source`, if it is the present one and nothing was done about it yet.
    ///
    /// # Errors
    /// `Busy` where something was.
    pub async fn withdraw(&self, source: Source) -> api::Result<()> {
        self.order(Order::Withdraw(source)).await
    }

    /// Does now what waits.
    ///
    /// # Errors
    /// `UpdateFailed` where what is remembered cannot be written.
    pub async fn proceed(&self) -> api::Result<()> {
        self.order(Order::Proceed).await
    }

    /// Forgets an offer, a failure or a rollback.
    ///
    /// # Errors
    /// `Busy` where something is being done.
    pub async fn dismiss(&self) -> api::Result<()> {
        self.order(Order::Dismiss).await
    }

    /// Tells whether the broker is connected.
    pub async fn broker(&self, connected: bool) {
        // Only an agent that has ended does not take it.
        let _ = self.order(Order::Broker(connected)).await;
    }

    /// Tells that hawkBit knows how the action ended.
    ///
    /// # Errors
    /// `UpdateFailed` where that cannot be written down.
    pub async fn reported(&self, action: String) -> api::Result<()> {
        self.order(Order::Reported(action)).await
    }

    /// Has the machine emptied at its next start, and starts it anew at once.
    ///
    /// # Errors
    /// `Busy` while an update is under way; `Internal` where it cannot be asked for, and will not happen then.
    pub async fn factory_reset(&self) -> api::Result<()> {
        self.order(Order::Reset).await
    }

    async fn order(&self, order: Order) -> api::Result<()> {
        let ended = || Refusal::new(ErrorCode::Busy, "the daemon is shutting down");
        let (reply, answer) = oneshot::channel();
        self.orders.send((order, reply)).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

/// What work gives: what happened, or nothing where that is not known yet.
type Work = Pin<Box<dyn Future<Output = Option<Event>> + Send>>;

/// The task.
pub struct Agent {
    config: Config,
    device: String,
    connection: Connection,
    rauc: Rauc,
    store: Store,
    gate: Store,
    meter: Meter,
    record: Record,
    boot_id: String,
    version: Version,
    started: Instant,
    retry_at: Option<Instant>,
    reboot_asked: bool,
    /// What is begun now would not end.
    resetting: bool,
    orders: mpsc::Receiver<(Order, oneshot::Sender<api::Result<()>>)>,
    status: watch::Sender<Status>,
    work: Option<Work>,
    pulse: Pulse,
}

/// Tells whether the agent's loop moves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse {
    beats: Arc<AtomicBool>,
}

impl Pulse {
    /// Whether the loop moved since this was asked last.
    pub(crate) fn beats(&self) -> bool {
        self.beats.swap(false, Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("record", &self.record).finish_non_exhaustive()
    }
}

impl Agent {
    /// Reads what is remembered. Nothing is done before [`Agent::run`].
    ///
    /// # Errors
    /// A bus that does not answer, or a machine that does not say what runs.
    pub async fn new(config: Config, device: String, connection: Connection) -> anyhow::Result<(Self, Handle)> {
        use anyhow::Context as _;
        let places = &config.places;
        let store = Store::new(&places.state, crate::FILE);
        let gate = Store::new(&places.gate, gate::FILE);
        let version = machine::version(&places.os_release).context("what runs")?;
        let boot_id = machine::boot_id(&places.boot_id).context("the boot's name")?;
        let record = match store.load() {
            Ok(record) => record,
            Err(error) => {
                let aside = store.put_aside().context("put a damaged record aside")?;
                warn!(%error, aside = %aside.display(), "what was remembered cannot be read");
                Record::default()
            }
        };
        let (rauc, meter) = (Rauc::new(&connection).await?, Meter::new(&connection).await?);
        let (sender, orders) = mpsc::channel(ORDERS);
        let channel = config.channel().with_context(|| format!("read {}", places.channel.display()))?;
        let status = watch::Sender::new(Status { version: version.to_string(), channel, ..Status::default() });
        let handle = Handle { orders: sender, status: status.subscribe() };
        let agent = Self {
            config,
            device,
            connection,
            rauc,
            store,
            gate,
            meter,
            record,
            boot_id,
            version,
            started: Instant::now(),
            retry_at: None,
            reboot_asked: false,
            resetting: false,
            orders,
            status,
            work: None,
            pulse: Pulse::default(),
        };
        agent.publish();
        Ok((agent, handle))
    }

    pub(crate) fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Works until the future is dropped. What RAUC does then goes on, and is picked up by the next daemon.
    pub async fn run(mut self) {
        let mut look = tokio::time::interval(Duration::from_millis(self.config.look_ms.max(1)));
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.pulse.beats.store(true, Ordering::Relaxed);
            tokio::select! {
                Some((order, reply)) = self.orders.recv() => {
                    // Whoever asked may be gone.
                    let _ = reply.send(self.obey(order).await);
                }
                event = work(&mut self.work) => {
                    self.work = None;
                    let accepted = matches!(event, Some(Event::Accept(..)));
                    if event.is_some_and(|event| self.happened(event)) && accepted {
                        self.begin_install();
                    }
                }
                _ = look.tick() => self.look().await,
            }
        }
    }

    async fn obey(&mut self, order: Order) -> api::Result<()> {
        match order {
            Order::Offer(offer) => self.take(*offer),
            Order::Withdraw(source) => self.withdraw_of(&source),
            Order::Reset => self.factory_reset().await,
            Order::Dismiss => self.withdraw(),
            Order::Proceed => {
                let record = Record { proceed: true, ..self.record.clone() };
                self.reboot_asked = false;
                self.retry_at = self.retry_at.map(|_| Instant::now());
                self.keep(record).map_err(|failure| refusal(&failure))
            }
            Order::Broker(connected) => {
                self.status.send_if_modified(|status| std::mem::replace(&mut status.broker, connected) != connected);
                Ok(())
            }
            Order::Reported(action) => {
                let record = Record { reported: Some(action), ..self.record.clone() };
                self.keep(record).map_err(|failure| refusal(&failure))
            }
        }
    }

    fn take(&mut self, offer: Offer) -> api::Result<()> {
        let channel = self.status.borrow().channel.clone();
        if !offer.is_for(channel.as_deref()) {
            info!(wanted = offer.channel, channel, "what is desired is for another channel");
            // What was desired for this one before is desired no more.
            return self.withdraw_of(&offer.source);
        }
        let present = self.record.state.offer();
        if offer.source != Source::Bus && present.is_some_and(|present| present.is_same(&offer)) {
            return self.renew(offer);
        }
        if self.record.state.is_busy() {
            let message = format!("an update is {}", self.record.state.name());
            return Err(Refusal::new(ErrorCode::Busy, message));
        }
        if offer.source == Source::Mqtt && offer.version.as_ref() == Some(&self.version) {
            info!(version = %self.version, "what is desired runs already");
            return Ok(());
        }
        let direction = offer.check_direction(&self.version);
        info!(url = offer.url, version = ?offer.version, source = offer.source.name(), "an update is offered");
        let record = Record { attempts: 0, proceed: false, ..self.record.clone() };
        let state = next(&record.state, Event::Offer(offer)).unwrap_or_default();
        self.keep(Record { state, ..record }).map_err(|failure| refusal(&failure))?;
        self.retry_at = None;
        match direction {
            Ok(()) => Ok(()),
            Err(failure) => {
                let refused = refusal(&failure);
                self.happened(Event::Fail(failure));
                Err(refused)
            }
        }
    }

    /// Takes over wave and window of an offer that is already known and still waits.
    fn renew(&mut self, offer: Offer) -> api::Result<()> {
        match &self.record.state {
            State::Offered { offer: present } if *present != offer => {
                let record = Record { state: State::Offered { offer }, ..self.record.clone() };
                self.keep(record).map_err(|failure| refusal(&failure))
            }
            _ => Ok(()),
        }
    }

    /// Takes back what `source` wants, if it is what is wanted now.
    fn withdraw_of(&mut self, source: &Source) -> api::Result<()> {
        let present = self.record.state.offer().is_some_and(|offer| offer.source == *source);
        if present { self.withdraw() } else { Ok(()) }
    }

    /// Leaves the marker for the program that empties the machine early at its next start.
    async fn factory_reset(&mut self) -> api::Result<()> {
        let state = &self.record.state;
        if state.is_busy() || matches!(state, State::Installed { .. }) {
            return Err(Refusal::new(ErrorCode::Busy, format!("an update is {}", state.name())));
        }
        let marker = self.store.folder().join(crate::RESET);
        let internal = |error: String| Refusal::new(ErrorCode::Internal, format!("{}: {error}", marker.display()));
        record::write(&marker, b"").map_err(|error| internal(error.to_string()))?;
        warn!(message_id = kit::log::FACTORY_RESET, "the machine is emptied at its next start, which is now");
        match machine::reboot(&self.connection).await {
            Ok(()) => {
                self.resetting = true;
                Ok(())
            }
            Err(error) => {
                // Nobody expects it later.
                std::fs::remove_file(&marker).map_err(|error| internal(error.to_string()))?;
                Err(internal(format!("logind does not start the machine anew: {error}")))
            }
        }
    }

    fn withdraw(&mut self) -> api::Result<()> {
        match next(&self.record.state, Event::Withdraw) {
            Some(state) => {
                let record = Record { state, attempts: 0, proceed: false, ..self.record.clone() };
                self.keep(record).map_err(|failure| refusal(&failure))
            }
            None if matches!(self.record.state, State::Idle | State::Healthy { .. }) => Ok(()),
            None => {
                let message = format!("an update is {}, and cannot be taken back", self.record.state.name());
                Err(Refusal::new(ErrorCode::Busy, message))
            }
        }
    }

    /// Lets an event happen, if it can. Returns whether it did.
    fn happened(&mut self, event: Event) -> bool {
        let failed = matches!(event, Event::Fail(_));
        let Some(state) = next(&self.record.state, event) else { return false };
        let mut record = Record { state, ..self.record.clone() };
        record.attempts += u32::from(failed);
        match &record.state {
            State::Failed { failure, .. } => warn!(message_id = kit::log::UPDATE_FAILED, %failure, "the update failed"),
            State::RolledBack { rollback, .. } => {
                warn!(
                    message_id = kit::log::UPDATE_ROLLED_BACK,
                    reason = rollback.text(),
                    "the update was rolled back"
                );
            }
            state => info!(state = state.name(), "the update goes on"),
        }
        if let Err(failure) = self.keep(record) {
            // The event comes again: work that is not settled is looked at with the next glance.
            warn!(%failure, "what happened cannot be written down");
            return false;
        }
        if failed {
            let wait =
                self.config.retry.first_seconds.saturating_mul(1 << self.record.attempts.saturating_sub(1).min(16));
            self.retry_at = Some(Instant::now() + Duration::from_secs(wait).min(LONGEST_WAIT));
        }
        true
    }

    /// Writes a record down, and only then goes by it.
    fn keep(&mut self, record: Record) -> Result<(), Failure> {
        let saved = self.store.save(&record);
        saved.map_err(|error| Failure::new(Kind::Space, format!("{}: {error}", self.store.folder().display())))?;
        self.record = record;
        self.publish();
        Ok(())
    }

    fn publish(&self) {
        let Record { state, reported, .. } = self.record.clone();
        let given_up = self.has_given_up();
        self.status.send_modify(|status| {
            if status.state.name() != state.name() {
                status.waiting.clear();
                status.progress = Progress::default();
            }
            (status.state, status.reported, status.given_up) = (state, reported, given_up);
        });
    }

    fn has_given_up(&self) -> bool {
        match &self.record.state {
            State::Failed { failure, .. } => !failure.may_pass() || self.record.attempts >= self.config.retry.attempts,
            _ => false,
        }
    }

    fn wait_for(&self, waiting: Vec<String>) {
        self.status.send_if_modified(|status| {
            let changes = status.waiting != waiting;
            status.waiting = waiting;
            changes
        });
    }

    /// Looks whether something that was waited for has come.
    async fn look(&mut self) {
        if self.work.is_some() || self.resetting {
            return;
        }
        self.look_at_slot().await;
        match self.record.state.clone() {
            State::Idle | State::Healthy { .. } | State::RolledBack { .. } => {}
            State::Offered { offer } => self.look_at_offer(&offer).await,
            // A daemon that was killed left these.
            State::Checking { .. } => _ = self.happened(Event::Postpone),
            State::Installing { attempt, .. } => self.work = Some(Box::pin(self.settle(attempt, None))),
            State::Installed { offer, boot_id, .. } if boot_id == self.boot_id => self.look_at_reboot(&offer).await,
            State::Installed { .. } | State::Booted { .. } => self.look_at_trial().await,
            State::Failed { .. } => {
                let due = self.retry_at.is_none_or(|at| Instant::now() >= at);
                if due && !self.has_given_up() {
                    self.happened(Event::Retry);
                }
            }
        }
    }

    async fn look_at_slot(&self) {
        if self.status.borrow().slot.is_empty()
            && let Ok(slot) = self.rauc.booted().await
        {
            self.status.send_modify(|status| status.slot = slot.bootname);
        }
    }

    async fn look_at_offer(&mut self, offer: &Offer) {
        let gauges = self.meter.read(&self.config.places).await;
        let unmet = before_install(offer, self.record.proceed, &self.device, &gauges, &self.config.rules);
        self.wait_for(unmet.iter().map(Unmet::to_string).collect());
        if !unmet.is_empty() {
            return;
        }
        match self.rauc.is_busy().await {
            Ok(false) => {}
            Ok(true) => return self.wait_for(vec![Unmet::Rauc("it works for somebody else".into()).to_string()]),
            Err(failure) => return self.wait_for(vec![Unmet::Rauc(failure.message).to_string()]),
        }
        let broker = self.status.borrow().broker;
        let (places, gate) = (&self.config.places, &self.config.gate);
        let baseline = machine::baseline(&self.connection, places, gate, broker).await;
        // Kept before anything else, so that a full disk ends the attempt here.
        if let Err(failure) = self.keep(Record { baseline, ..self.record.clone() }) {
            return self.wait_for(vec![failure.to_string()]);
        }
        if self.happened(Event::Begin) {
            self.work = Some(Box::pin(check(
                self.rauc.clone(),
                self.access(offer),
                offer.clone(),
                self.version.clone(),
                self.boot_id.clone(),
            )));
        }
    }

    /// How the bundle of an offer is fetched.
    fn access(&self, offer: &Offer) -> Access {
        let token = match (&offer.source, &self.config.hawkbit) {
            (Source::Hawkbit(_), Some(hawkbit)) => hawkbit.authorization().unwrap_or_default(),
            _ => None,
        };
        let headers = token.map(|token| format!("Authorization: {token}")).into_iter().collect();
        Access { ca: self.config.download_ca.clone(), headers }
    }

    /// Waits until RAUC is through with an attempt, begun by `begin` or before this daemon, and looks at the slots.
    fn settle(&self, attempt: Attempt, begin: Option<(Offer, Access)>) -> impl Future<Output = Option<Event>> + use<> {
        let (rauc, status, boot_id) = (self.rauc.clone(), self.status.clone(), self.boot_id.clone());
        async move {
            let progress = |step| status.send_modify(|status| status.progress = step);
            let ended = match &begin {
                Some((offer, access)) => rauc.install(offer, &attempt, access, progress).await,
                None => rauc.finish(progress).await,
            };
            if begin.is_some() && ended.as_ref().is_err_and(|failure| failure.kind == Kind::Busy) {
                return Some(Event::Postpone);
            }
            // What RAUC says is compared with what the slots are. A RAUC that does not answer is asked again.
            let slots = rauc.slots().await.ok()?;
            let primary = rauc.primary().await;
            let written = rauc::written(&slots, primary.as_deref(), &attempt, &boot_id);
            Some(match (written, ended) {
                (Some(slot), _) => Event::Written(slot),
                (None, Err(failure)) => Event::Fail(failure),
                (None, Ok(())) => Event::Fail(Failure::new(Kind::Interrupted, "the installation came to no end")),
            })
        }
    }

    async fn look_at_reboot(&mut self, offer: &Offer) {
        if self.reboot_asked {
            return;
        }
        let gauges = self.meter.read(&self.config.places).await;
        let unmet = before_reboot(offer, self.record.proceed, &gauges, &self.config.rules);
        self.wait_for(unmet.iter().map(Unmet::to_string).collect());
        if !unmet.is_empty() {
            return;
        }
        info!("the machine starts anew");
        self.reboot_asked = true;
        if let Err(error) = machine::reboot(&self.connection).await {
            warn!(%error, "logind does not start the machine anew");
            self.wait_for(vec![format!("person: logind does not start the machine anew: {error}")]);
        }
    }

    /// After a reboot: which slot came up, and what the health gate says.
    async fn look_at_trial(&mut self) {
        let slot = self.status.borrow().slot.clone();
        if slot.is_empty() {
            return self.wait_for(vec![Unmet::Rauc("which slot runs is not known yet".into()).to_string()]);
        }
        let log: Log = self.gate.load().unwrap_or_default();
        let here = log.boot(&self.boot_id);
        let Some((target, written)) = trial(&self.record.state) else { return };
        if slot != target && here.is_none() && self.started.elapsed() < GATE_PATIENCE {
            return self.wait_for(vec!["gate: it has not said yet what it knows".into()]);
        }
        let rollback = log.rollback(&target, &written, &self.boot_id);
        let good = here.is_some_and(|boot| boot.good == Some(true) && boot.slot == slot);
        self.happened(Event::Boot { slot: slot.clone(), boot_id: self.boot_id.clone(), rollback });
        if good && slot == target {
            self.happened(Event::Good);
        }
    }

    fn begin_install(&mut self) {
        if let State::Installing { offer, attempt } = self.record.state.clone() {
            let begin = Some((offer.clone(), self.access(&offer)));
            self.work = Some(Box::pin(self.settle(attempt, begin)));
        }
    }
}

/// The slot on trial and the boot that wrote it.
fn trial(state: &State) -> Option<(String, String)> {
    match state {
        State::Installed { slot, boot_id, .. } | State::Booted { slot, boot_id, .. } => {
            Some((slot.bootname.clone(), boot_id.clone()))
        }
        _ => None,
    }
}

/// Waits for the work, or for ever where there is none.
async fn work(work: &mut Option<Work>) -> Option<Event> {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

/// Lets RAUC look into the bundle, and compares with what was offered.
async fn check(rauc: Rauc, access: Access, offer: Offer, running: Version, boot_id: String) -> Option<Event> {
    let result = async {
        let bundle = rauc.inspect(&offer, &access).await?;
        let compatible = rauc.compatible().await?;
        if bundle.compatible != compatible {
            let message = format!("the bundle is for {:?}, this machine is {compatible:?}", bundle.compatible);
            return Err(Failure::new(Kind::Compatible, message));
        }
        let version = offer::version(&bundle.version).map_err(|failure| Failure::new(Kind::Bundle, failure.message))?;
        if let Some(offered) = offer.version.as_ref().filter(|offered| **offered != version) {
            return Err(Failure::new(Kind::Version, format!("{offered} was offered, the bundle has {version}")));
        }
        if let Some(offered) = offer.manifest_hash.as_ref()
            && bundle.manifest_hash.as_ref().is_none_or(|hash| !hash.eq_ignore_ascii_case(offered))
        {
            let found = bundle.manifest_hash.unwrap_or_default();
            return Err(Failure::new(Kind::Manifest, format!("{offered} was offered, the bundle has {found:?}")));
        }
        let offer = Offer { version: Some(version), ..offer.clone() };
        offer.check_direction(&running)?;
        let attempt = Attempt { transaction: transaction()?, counts: rauc::counts(&rauc.slots().await?), boot_id };
        Ok((offer, attempt))
    };
    Some(match result.await {
        Ok((offer, attempt)) => Event::Accept(offer, attempt),
        Err(failure) if failure.kind == Kind::Busy => Event::Postpone,
        Err(failure) => Event::Fail(failure),
    })
}

/// A name that no other installation has.
fn transaction() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    let random = ring::rand::SystemRandom::new();
    let filled = ring::rand::SecureRandom::fill(&random, &mut bytes);
    filled.map_err(|_| Failure::new(Kind::Install, "the kernel gives no random bytes"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn refusal(failure: &Failure) -> Refusal {
    Refusal::new(ErrorCode::UpdateFailed, failure.to_string())
}
