//! `org.cairn.Update1`.

use api::dbus::{FACTORY_RESET, INSTALL_UPDATES, UPDATE_NAME, UPDATE_ROOT};
use api::{ErrorCode, Failure, Result};
use kit::bus::{Authority, Clients, Found, JobHandle, Jobs, WireOptions, no_options};
use tokio::sync::watch;
use zbus::message::Header;
use zbus::object_server::InterfaceRef;
use zbus::{Connection, OwnedObjectPath, Variant};

use crate::agent::{Handle, Status};
use crate::models::Models;
use crate::models_dbus::ModelStore;
use crate::offer::{self, Offer, Source, is_remote};
use crate::rauc::Progress;
use crate::state::State;

/// The object.
#[derive(Debug)]
struct Update {
    handle: Handle,
    jobs: Jobs,
    authority: Authority,
}

/// Serves the object, owns the name, and tells what changes until the agent ends.
///
/// # Errors
/// A bus that refuses, or closes the connection.
pub(crate) async fn serve(
    connection: Connection,
    handle: Handle,
    models: Models,
    ready: impl FnOnce(),
) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let clients = Clients::watch(&connection).await?;
    let authority = Authority::new(&connection).await?;
    let jobs = Jobs::new(connection.clone(), UPDATE_ROOT, clients, authority.clone());
    let mut reports = models.reports();
    let mut status = handle.status();
    let mut before = status.borrow_and_update().clone();
    let server = connection.object_server();
    server.at(UPDATE_ROOT, zbus::fdo::ObjectManager).await?;
    let store = ModelStore { models, jobs: jobs.clone(), authority: authority.clone() };
    server.at(UPDATE_ROOT, store).await?;
    server.at(UPDATE_ROOT, Update { handle, jobs, authority }).await?;
    kit::bus::own(&connection, UPDATE_NAME).await.with_context(|| format!("own the name {UPDATE_NAME}"))?;
    let object = server.interface::<_, Update>(UPDATE_ROOT).await?;
    let store = server.interface::<_, ModelStore>(UPDATE_ROOT).await?;
    ready();
    loop {
        tokio::select! {
            changed = status.changed() => changed.context("the agent ended")?,
            changed = reports.changed() => {
                changed.context("the models ended")?;
                store.get().await.models_changed(store.signal_emitter()).await?;
                continue;
            }
            () = connection.closed() => anyhow::bail!("the bus closed the connection"),
        }
        let now = status.borrow_and_update().clone();
        announce(&object, &before, &now).await?;
        before = now;
    }
}

async fn announce(object: &InterfaceRef<Update>, before: &Status, now: &Status) -> zbus::Result<()> {
    let (update, emitter) = (object.get().await, object.signal_emitter());
    // What explains a state is told before the state.
    if before.waiting != now.waiting {
        update.waiting_changed(emitter).await?;
    }
    if before.progress != now.progress {
        update.progress_changed(emitter).await?;
    }
    if before.slot != now.slot {
        update.slot_changed(emitter).await?;
    }
    if before.broker != now.broker {
        update.broker_connected_changed(emitter).await?;
    }
    if before.state != now.state {
        update.target_version_changed(emitter).await?;
        update.source_changed(emitter).await?;
        update.reason_changed(emitter).await?;
        update.kernel_tail_changed(emitter).await?;
        update.state_changed(emitter).await?;
    }
    Ok(())
}

impl Update {
    fn status(&self) -> Status {
        self.handle.status().borrow().clone()
    }
}

#[zbus::interface(name = "org.cairn.Update1", introspection_docs = false)]
impl Update {
    #[zbus(property)]
    fn state(&self) -> &'static str {
        self.status().state.name()
    }

    #[zbus(property)]
    fn version(&self) -> String {
        self.status().version
    }

    #[zbus(property)]
    fn target_version(&self) -> String {
        let status = self.status();
        let version = status.state.offer().and_then(|offer| offer.version.as_ref());
        version.map(ToString::to_string).unwrap_or_default()
    }

    #[zbus(property)]
    fn source(&self) -> String {
        self.status().state.offer().map(|offer| offer.url.clone()).unwrap_or_default()
    }

    #[zbus(property)]
    fn slot(&self) -> String {
        self.status().slot
    }

    #[zbus(property)]
    fn progress(&self) -> Progress {
        self.status().progress
    }

    #[zbus(property)]
    fn reason(&self) -> String {
        self.status().state.reason()
    }

    #[zbus(property)]
    fn kernel_tail(&self) -> Vec<String> {
        match self.status().state {
            State::RolledBack { rollback, .. } => rollback.kernel_tail,
            _ => Vec::new(),
        }
    }

    #[zbus(property)]
    fn waiting(&self) -> Vec<String> {
        self.status().waiting
    }

    #[zbus(property)]
    fn broker_connected(&self) -> bool {
        self.status().broker
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn channel(&self) -> String {
        self.status().channel.unwrap_or_default()
    }

    #[zbus(out_args("job"))]
    async fn install(
        &self,
        source: String,
        options: WireOptions,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<OwnedObjectPath> {
        let offer = parse(source, &options)?;
        self.authority.check(&call, INSTALL_UPDATES).await?;
        let mut status = self.handle.status();
        self.handle.offer(offer.clone()).await?;
        // The update survives its client, so the job does too.
        let job = self.jobs.create("update", INSTALL_UPDATES, None).await?;
        status.mark_changed();
        tokio::spawn(follow(self.handle.clone(), status, offer, job.clone()));
        Ok(job.path())
    }

    async fn proceed(&self, options: WireOptions, #[zbus(header)] call: Header<'_>) -> Result<()> {
        no_options(&options)?;
        self.authority.check(&call, INSTALL_UPDATES).await?;
        self.handle.proceed().await
    }

    async fn dismiss(&self, options: WireOptions, #[zbus(header)] call: Header<'_>) -> Result<()> {
        no_options(&options)?;
        self.authority.check(&call, INSTALL_UPDATES).await?;
        self.handle.dismiss().await
    }

    async fn factory_reset(&self, options: WireOptions, #[zbus(header)] call: Header<'_>) -> Result<()> {
        no_options(&options)?;
        self.authority.check(&call, FACTORY_RESET).await?;
        self.handle.factory_reset().await
    }
}

fn parse(source: String, options: &WireOptions) -> Result<Offer> {
    if !is_remote(&source) && !source.starts_with('/') {
        return Err(Failure::invalid_args(format!("{source:?} is neither an absolute path nor an http(s) address")));
    }
    let mut offer = Offer { urgent: true, ..Offer::new(source, None) };
    for (key, value) in options {
        match (key.as_str(), &**value) {
            ("version", Variant::Str(text)) => {
                offer.version = Some(offer::version(text).map_err(|failure| Failure::invalid_args(failure.message))?);
            }
            ("manifest-hash", Variant::Str(text)) => offer.manifest_hash = Some(text.to_string()),
            ("allow-downgrade", Variant::Bool(allow)) => offer.allow_downgrade = *allow,
            ("wait", Variant::Bool(wait)) => offer.urgent = !wait,
            ("version" | "manifest-hash" | "allow-downgrade" | "wait", _) => {
                return Err(Failure::invalid_args(format!("option {key:?} has the wrong type")));
            }
            _ => return Err(Failure::invalid_args(format!("unknown option {key:?}"))),
        }
    }
    Ok(offer)
}

/// Ends a job as its update does. A job that is cancelled in time takes the update back.
async fn follow(handle: Handle, mut status: watch::Receiver<Status>, offer: Offer, job: JobHandle) {
    loop {
        tokio::select! {
            changed = status.changed() => if changed.is_err() { return },
            () = job.ended() => {
                // Refused where RAUC works already: then the update goes on.
                let _ = handle.withdraw(Source::Bus).await;
                return;
            }
        }
        let now = status.borrow_and_update().clone();
        if !now.state.offer().is_some_and(|present| present.is_same(&offer)) {
            let message = "another update was offered, or this one was taken back";
            return job.finish(Err(Failure::new(ErrorCode::Cancelled, message))).await;
        }
        match &now.state {
            State::Installed { .. } | State::Booted { .. } | State::Healthy { .. } => {
                return job.finish(Ok(Found::default())).await;
            }
            State::Failed { failure, .. } if now.given_up => {
                return job.finish(Err(Failure::new(ErrorCode::UpdateFailed, failure.to_string()))).await;
            }
            state => {
                let (percent, doing, _) = now.progress;
                let doing = if doing.is_empty() { state.name().to_owned() } else { doing };
                job.progress(percent, doing).await;
            }
        }
    }
}
