//! The D-Bus front end: `org.cairn.Health1`, and an object for each of the newest incidents.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use api::dbus::{CREATE_SUPPORT_BUNDLE, HEALTH_ROOT, RUN_SELF_TEST, incident_path};
use api::{ErrorCode, Failure, Result};
use kit::bus::{Authority, Clients, Found, JobHandle, Jobs, WireOptions, no_options};
use tokio::sync::mpsc;
use zbus::message::Header;
use zbus::wire::{OwnedFd, OwnedVariant};
use zbus::{Connection, OwnedObjectPath, Variant};

use crate::bundle;
use crate::config::Config;
use crate::view::{Shared, Shown, View};

/// Incidents that are objects.
const INCIDENTS: usize = 64;

/// Long work that a client asked for, and the job that shows it.
#[derive(Debug)]
pub(crate) enum Order {
    /// A self-test, with models or without.
    SelfTest { models: bool, job: JobHandle },
    /// A support bundle.
    Bundle { job: JobHandle },
}

/// The daemon on a bus.
#[derive(Debug)]
pub(crate) struct Server {
    connection: Connection,
    view: Shared,
    incidents: VecDeque<u64>,
}

impl Server {
    /// Serves all objects on `connection`. Whoever owns the name does so when there is a picture to show.
    pub(crate) async fn start(
        connection: Connection,
        view: Shared,
        config: &Arc<Config>,
        orders: mpsc::Sender<Order>,
    ) -> zbus::Result<Self> {
        let clients = Clients::watch(&connection).await?;
        let authority = Authority::new(&connection).await?;
        let jobs = Jobs::new(connection.clone(), HEALTH_ROOT, clients, authority.clone());
        let health = Health { view: view.clone(), config: Arc::clone(config), jobs, authority, orders };
        connection.object_server().at(HEALTH_ROOT, zbus::fdo::ObjectManager).await?;
        connection.object_server().at(HEALTH_ROOT, health).await?;
        Ok(Self { connection, view, incidents: VecDeque::new() })
    }

    /// Shows a new picture, and tells clients what changed.
    pub(crate) async fn show(&self, view: View) -> zbus::Result<()> {
        let old = self.view.set(view.clone());
        let object = self.connection.object_server().interface::<_, Health>(HEALTH_ROOT).await?;
        let (health, emitter) = (object.get().await, object.signal_emitter());
        if old.thermal_level != view.thermal_level {
            health.thermal_level_changed(emitter).await?;
        }
        if old.reasons != view.reasons {
            health.reasons_changed(emitter).await?;
        }
        if old.state != view.state {
            health.state_changed(emitter).await?;
        }
        Ok(())
    }

    /// Shows an incident, new or changed.
    pub(crate) async fn show_incident(&mut self, number: u64, shown: &Shown) -> zbus::Result<()> {
        let (path, server) = (incident_path(number), self.connection.object_server());
        if !self.incidents.contains(&number) {
            server.at(&path, Incident(shown.clone())).await?;
            self.incidents.push_back(number);
            if self.incidents.len() > INCIDENTS
                && let Some(oldest) = self.incidents.pop_front()
            {
                server.remove::<Incident, _>(incident_path(oldest)).await?;
            }
            return Ok(());
        }
        let object = server.interface::<_, Incident>(&path).await?;
        let old = std::mem::replace(&mut object.get_mut().await.0, shown.clone());
        let (incident, emitter) = (object.get().await, object.signal_emitter());
        let (old, new) = (&old, shown);
        macro_rules! tell {
            ($($field:ident => $changed:ident),*) => {
                $(if old.payload.$field != new.payload.$field { incident.$changed(emitter).await?; })*
            };
        }
        tell!(class => class_changed, severity => severity_changed, subject => subject_changed, model => model_changed,
            lines => lines_changed, count => count_changed, last_seen_ms => last_seen_changed,
            suggested_action => suggested_action_changed, taken_action => taken_action_changed);
        // Last, so that whoever waits for it finds the rest done.
        if old.open != new.open {
            incident.state_changed(emitter).await?;
        }
        Ok(())
    }
}

/// `org.cairn.Health1`.
#[derive(Debug)]
struct Health {
    view: Shared,
    config: Arc<Config>,
    jobs: Jobs,
    authority: Authority,
    orders: mpsc::Sender<Order>,
}

impl Health {
    async fn order(&self, order: Order) -> Result<()> {
        let busy = |_| Failure::new(ErrorCode::Busy, "too much was asked for, or the daemon is shutting down");
        self.orders.try_send(order).map_err(busy)
    }
}

#[zbus::interface(name = "org.cairn.Health1", introspection_docs = false)]
impl Health {
    #[zbus(property)]
    fn state(&self) -> String {
        self.view.get().state.to_owned()
    }

    #[zbus(property)]
    fn reasons(&self) -> Vec<String> {
        self.view.get().reasons
    }

    #[zbus(property)]
    fn thermal_level(&self) -> String {
        self.view.get().thermal_level.to_owned()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn reset_reason(&self) -> String {
        self.view.get().reset_reason
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn boot_id(&self) -> String {
        self.view.get().boot_id
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn gauges(&self) -> BTreeMap<String, f64> {
        self.view.get().gauges
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn counters(&self) -> BTreeMap<String, u64> {
        self.view.get().counters
    }

    #[zbus(out_args("job"))]
    async fn run_self_test(&self, options: WireOptions, #[zbus(header)] call: Header<'_>) -> Result<OwnedObjectPath> {
        let mut models = true;
        for (key, value) in &options {
            match (key.as_str(), &**value) {
                ("models", Variant::Bool(value)) => models = *value,
                ("models", _) => return Err(Failure::invalid_args("option \"models\" is true or false")),
                _ => return Err(Failure::invalid_args(format!("unknown option {key:?}"))),
            }
        }
        self.authority.check(&call, RUN_SELF_TEST).await?;
        let client = call.sender().map(|name| name.as_str().to_owned());
        let job = self.jobs.create("self-test", RUN_SELF_TEST, client).await?;
        let path = job.path();
        self.order(Order::SelfTest { models, job }).await?;
        Ok(path)
    }

    #[zbus(out_args("job"))]
    async fn create_support_bundle(
        &self,
        options: WireOptions,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<OwnedObjectPath> {
        no_options(&options)?;
        self.authority.check(&call, CREATE_SUPPORT_BUNDLE).await?;
        let client = call.sender().map(|name| name.as_str().to_owned());
        let job = self.jobs.create("support-bundle", CREATE_SUPPORT_BUNDLE, client).await?;
        let path = job.path();
        self.order(Order::Bundle { job }).await?;
        Ok(path)
    }

    #[zbus(out_args("bundle"))]
    async fn open_support_bundle(
        &self,
        name: String,
        options: WireOptions,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<OwnedFd> {
        no_options(&options)?;
        self.authority.check(&call, CREATE_SUPPORT_BUNDLE).await?;
        let file = bundle::open(&self.config.state.join("bundles"), &name);
        let file = file.map_err(|error| Failure::invalid_args(format!("{error:#}")))?;
        Ok(std::os::fd::OwnedFd::from(file).into())
    }
}

/// What a self-test found, as its job shows it.
pub(crate) fn self_test_details(checks: Vec<api::dbus::Check>) -> Result<Found> {
    let passed = checks.iter().all(|(_, passed, _)| *passed);
    found([("passed", Variant::from(passed)), ("checks", Variant::from(checks))])
}

/// Where a bundle is, as its job shows it.
pub(crate) fn bundle_details(name: String, bytes: u64) -> Result<Found> {
    found([("name", Variant::from(name)), ("bytes", Variant::from(bytes))])
}

fn found<const N: usize>(details: [(&str, Variant<'_>); N]) -> Result<Found> {
    let internal = |error: zbus::wire::Error| Failure::new(ErrorCode::Internal, error.to_string());
    let owned = |value| OwnedVariant::try_from(value).map_err(internal);
    let details = details.into_iter().map(|(key, value)| Ok((key.to_owned(), owned(value)?)));
    Ok(Found { object: None, details: Arc::new(details.collect::<Result<HashMap<_, _>>>()?) })
}

/// `org.cairn.Incident1`.
#[derive(Debug)]
struct Incident(Shown);

#[zbus::interface(name = "org.cairn.Incident1", introspection_docs = false)]
impl Incident {
    #[zbus(property(emits_changed_signal = "const"))]
    fn id(&self) -> &str {
        &self.0.payload.id
    }

    #[zbus(property)]
    fn class(&self) -> &str {
        &self.0.payload.class
    }

    #[zbus(property)]
    fn state(&self) -> &'static str {
        if self.0.open { "open" } else { "settled" }
    }

    #[zbus(property)]
    fn severity(&self) -> &str {
        &self.0.payload.severity
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn device(&self) -> &str {
        &self.0.payload.device
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn core(&self) -> i32 {
        self.0.payload.core.and_then(|core| i32::try_from(core).ok()).unwrap_or(-1)
    }

    #[zbus(property)]
    fn subject(&self) -> &str {
        &self.0.payload.subject
    }

    #[zbus(property)]
    fn model(&self) -> &str {
        &self.0.payload.model
    }

    #[zbus(property)]
    fn lines(&self) -> &[String] {
        &self.0.payload.lines
    }

    #[zbus(property)]
    fn count(&self) -> u32 {
        self.0.payload.count
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn first_seen(&self) -> u64 {
        self.0.payload.first_seen_ms
    }

    #[zbus(property)]
    fn last_seen(&self) -> u64 {
        self.0.payload.last_seen_ms
    }

    #[zbus(property)]
    fn suggested_action(&self) -> &str {
        &self.0.payload.suggested_action
    }

    #[zbus(property)]
    fn taken_action(&self) -> &str {
        &self.0.payload.taken_action
    }
}
