//! Model updates: from a bundle, wherever it comes from, to a model that serves.
//!
//! ```text
//! D-Bus Add, Fetch ─┐                                             ┌─ right ─▶ current, and the one before is kept
//! MQTT desired ─────┴▶ incoming ─▶ signature ─▶ candidate ─▶ npud ┼─ wrong ─▶ refused, with the reason
//! start of this daemon: candidate ──────────────────▲             └─ away ──▶ once more, later
//! ```
//! npud holds a package against its golden output before it replaces the model that serves. It reads the store and never
//! writes to it; this daemon has the network and the keys.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use api::dbus::{Job1Proxy, Models1Proxy, NPU_NAME};
use api::mqtt::{DesiredModel, ModelReport};
use api::{ErrorCode, Failure, Result};
use futures_util::StreamExt as _;
use kit::bus::JobHandle;
use store::{Candidate, Incoming, Keys, Model, Offer, Store};
use tokio::sync::{Notify, watch};
use tracing::{info, warn};
use zbus::Connection;

use crate::config::ModelStore;

/// How long what failed for a passing reason waits.
// TIMEOUT: npud is started again within 30 s.
const PAUSE: Duration = Duration::from_secs(60);
/// How long npud may take to plan, load and check a model.
// TIMEOUT: the largest so far takes 10 s on the simulator; twenty times that.
const PROOF: Duration = Duration::from_secs(200);
/// How long a download may take.
// TIMEOUT: 2 GiB at 1 MiB/s, and some.
const DOWNLOAD: Duration = Duration::from_secs(3600);
/// How much is read at once.
const CHUNK: usize = 64 << 10;

/// Where a bundle comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// An open file.
    File(File),
    /// http or https.
    Url(String),
}

/// All model updates of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Models {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: ModelStore,
    download_ca: Option<PathBuf>,
    connection: Connection,
    store: Mutex<Store>,
    /// One candidate at a time.
    turn: tokio::sync::Mutex<()>,
    desired: Mutex<BTreeMap<String, DesiredModel>>,
    changed: Notify,
    reports: watch::Sender<BTreeMap<String, ModelReport>>,
}

/// Why a candidate does not serve.
#[derive(Debug)]
enum Unproved {
    /// It does not compute what it should, or cannot be used.
    Wrong(String),
    /// npud could not say.
    Unknown(String),
}

impl Models {
    pub(crate) async fn open(
        settings: ModelStore,
        download_ca: Option<PathBuf>,
        connection: Connection,
    ) -> anyhow::Result<Self> {
        let folder = settings.folder.clone();
        let store = blocking(move || Ok(Store::open(&folder)?)).await.context("open the model store")?;
        let inner = Inner {
            settings,
            download_ca,
            connection,
            store: Mutex::new(store),
            turn: tokio::sync::Mutex::default(),
            desired: Mutex::default(),
            changed: Notify::new(),
            reports: watch::Sender::default(),
        };
        let models = Self { inner: Arc::new(inner) };
        for model in models.list()? {
            models.report(&model.name, report(&model));
        }
        Ok(models)
    }

    /// The models of the store.
    pub(crate) fn list(&self) -> anyhow::Result<Vec<Model>> {
        Ok(store::models(&self.inner.settings.folder)?)
    }

    /// Where each model stands.
    pub(crate) fn reports(&self) -> watch::Receiver<BTreeMap<String, ModelReport>> {
        self.inner.reports.subscribe()
    }

    /// Works off what was interrupted and what is desired, for ever.
    pub(crate) async fn run(&self) {
        loop {
            self.reconcile().await;
            tokio::select! {
                () = self.inner.changed.notified() => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    /// Notes what a model shall be; `None` takes it back.
    pub(crate) fn desire(&self, name: &str, desired: Option<DesiredModel>) {
        let mut all = self.inner.desired.lock().unwrap_or_else(PoisonError::into_inner);
        match desired {
            Some(desired) => all.insert(name.to_owned(), desired),
            None => all.remove(name),
        };
        self.inner.changed.notify_one();
    }

    /// The whole way of one bundle. `job` is told what is being done.
    pub(crate) async fn add(&self, source: Source, offer: Offer, job: Option<&JobHandle>) -> Result<Candidate> {
        tell(job, 0, "receiving").await;
        let incoming = self.receive(source).await.map_err(failure)?;
        tell(job, 40, "checking the signature").await;
        let _turn = self.inner.turn.lock().await;
        let keys = self.inner.settings.keys.clone();
        let candidate = self.with_store(move |store| store.add(incoming, &Keys::read(&keys)?, &offer)).await?;
        tell(job, 60, "checking the golden output").await;
        self.prove(&candidate).await?;
        Ok(candidate)
    }

    async fn reconcile(&self) {
        let undecided = self.with_store(|store| store.candidates()).await;
        for candidate in undecided.unwrap_or_else(|failure| {
            warn!(%failure, "the model store cannot be read");
            Vec::new()
        }) {
            let _turn = self.inner.turn.lock().await;
            // What becomes of it is in the log and in the report.
            let _ = self.prove(&candidate).await;
        }
        let desired = self.inner.desired.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (name, desired) in desired {
            if let Err(failure) = self.follow(&name, &desired).await {
                warn!(model = name, %failure, "the desired version does not serve");
            }
        }
    }

    /// Makes a model what is desired, unless it is, or was found to be wrong.
    async fn follow(&self, name: &str, desired: &DesiredModel) -> Result<()> {
        let models = self.list().map_err(failure)?;
        let known = models.iter().find(|model| model.name == name);
        let is = |sha256: Option<&String>| sha256 == Some(&desired.sha256);
        if known.is_some_and(|model| is(model.current.as_ref().map(|release| &release.sha256)))
            || known.is_some_and(|model| is(model.refused.as_ref().map(|refusal| &refusal.sha256)))
        {
            return Ok(());
        }
        let offer = Offer {
            name: Some(name.to_owned()),
            version: Some(desired.version.clone()),
            sha256: Some(desired.sha256.clone()),
        };
        let working = |state: &str, reason: String| ModelReport {
            state: state.to_owned(),
            version: desired.version.clone(),
            sha256: desired.sha256.clone(),
            reason,
        };
        self.report(name, working("fetching", String::new()));
        let (sha256, here) = (desired.sha256.clone(), offer.clone());
        let held =
            self.with_store(move |store| store.holds(&sha256).then(|| store.propose(&sha256, &here)).transpose());
        let done = match held.await {
            Ok(Some(candidate)) => {
                let _turn = self.inner.turn.lock().await;
                self.prove(&candidate).await
            }
            Ok(None) => self.add(Source::Url(desired.url.clone()), offer, None).await.map(|_| ()),
            Err(failure) => Err(failure),
        };
        // A candidate that was proved or refused has a report of its own.
        if let Err(failure) = &done
            && self.inner.reports.borrow().get(name).is_some_and(|report| report.state == "fetching")
        {
            self.report(name, working("failed", failure.message.clone()));
        }
        done
    }

    /// Has npud hold a candidate against its golden output, and records what it said.
    async fn prove(&self, candidate: &Candidate) -> Result<()> {
        let release = candidate.release.clone();
        let state = |state: &str, reason: &str| ModelReport {
            state: state.to_owned(),
            version: release.version.clone(),
            sha256: release.sha256.clone(),
            reason: reason.to_owned(),
        };
        let name = &candidate.name;
        self.report(name, state("checking", ""));
        let decided = candidate.clone();
        match self.ask(candidate).await {
            Ok(()) => {
                self.with_store(move |store| store.accept(&decided)).await?;
                info!(message_id = kit::log::MODEL_UPDATED, model = name, version = release.version, "serves");
                self.report(name, state("serving", ""));
                Ok(())
            }
            Err(Unproved::Wrong(reason)) => {
                let why = reason.clone();
                self.with_store(move |store| store.refuse(&decided, &why)).await?;
                warn!(message_id = kit::log::MODEL_REFUSED, model = name, version = release.version, reason, "refused");
                self.report(name, state("refused", &reason));
                Err(Failure::new(ErrorCode::Unsupported, format!("{name} {} is refused: {reason}", release.version)))
            }
            Err(Unproved::Unknown(reason)) => {
                warn!(model = name, version = release.version, reason, "not proved yet");
                self.report(name, state("failed", &reason));
                let message =
                    format!("{name} {} is not proved yet, and will be tried again: {reason}", release.version);
                Err(Failure::new(ErrorCode::DeviceLost, message))
            }
        }
    }

    async fn ask(&self, candidate: &Candidate) -> std::result::Result<(), Unproved> {
        let asked = tokio::time::timeout(PROOF, self.load(candidate)).await;
        asked.unwrap_or_else(|_| Err(Unproved::Unknown(format!("npud did not answer within {PROOF:?}"))))
    }

    async fn load(&self, candidate: &Candidate) -> std::result::Result<(), Unproved> {
        let unknown = |error: zbus::Error| Unproved::Unknown(error.to_string());
        let folder = candidate.folder.to_string_lossy();
        let npud = Models1Proxy::new(&self.inner.connection).await.map_err(unknown)?;
        let mut owner = npud.inner().receive_owner_changed().await.map_err(unknown)?;
        let path = npud.load_model(&folder, Default::default()).await.map_err(unknown)?;
        let job = Job1Proxy::builder(&self.inner.connection).destination(NPU_NAME).path(path);
        let job = job.build().await.map_err(unknown)?;
        // Asked for first, so that no change falls between.
        let mut states = job.receive_state_changed().await;
        let mut state = job.state().await.map_err(unknown)?;
        while state == "running" {
            tokio::select! {
                change = states.next() => match change {
                    Some(change) => state = change.get().await.map_err(unknown)?,
                    None => return Err(Unproved::Unknown("npud went away".into())),
                },
                _ = owner.next() => return Err(Unproved::Unknown("npud went away".into())),
            }
        }
        if state == "done" {
            return Ok(());
        }
        let (code, message) = job.error().await.map_err(unknown)?;
        match passes(&code) {
            true => Err(Unproved::Unknown(message)),
            false => Err(Unproved::Wrong(message)),
        }
    }

    async fn receive(&self, source: Source) -> anyhow::Result<Incoming> {
        let models = self.clone();
        blocking(move || {
            let store = models.inner.store.lock().unwrap_or_else(PoisonError::into_inner);
            let mut incoming = store.receive()?;
            drop(store);
            match source {
                Source::File(file) => copy(file, &mut incoming)?,
                Source::Url(url) => models.download(&url, &mut incoming)?,
            }
            Ok(incoming)
        })
        .await
    }

    fn download(&self, url: &str, incoming: &mut Incoming) -> anyhow::Result<()> {
        let mut config = ureq::Agent::config_builder().timeout_global(Some(DOWNLOAD)).max_redirects(3);
        if url.starts_with("https://") {
            let ca = self.inner.download_ca.clone().unwrap_or_else(crate::config::default_ca);
            config = config.tls_config(crate::hawkbit::tls(&ca)?).https_only(true);
        } else {
            // The signature makes up for it.
            ensure!(url.starts_with("http://"), "{url:?} is neither http nor https");
        }
        let agent = config.build().new_agent();
        let mut answer = agent.get(url).call().with_context(|| format!("get {url}"))?;
        copy(answer.body_mut().as_reader(), incoming).with_context(|| format!("get {url}"))
    }

    async fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Store) -> store::Result<T> + Send + 'static,
    ) -> Result<T> {
        let models = self.clone();
        let worked = blocking(move || {
            let mut store = models.inner.store.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(work(&mut store)?)
        });
        worked.await.map_err(failure)
    }

    fn report(&self, name: &str, report: ModelReport) {
        self.inner.reports.send_modify(|reports| {
            reports.insert(name.to_owned(), report);
        });
    }
}

/// What is known of a model after a start.
fn report(model: &Model) -> ModelReport {
    let release = model.candidate.as_ref().or(model.current.as_ref());
    let state = if model.candidate.is_some() { "checking" } else { "serving" };
    let (version, sha256) =
        release.map(|release| (release.version.clone(), release.sha256.clone())).unwrap_or_default();
    match (&model.refused, &model.candidate) {
        (Some(refused), None) => ModelReport {
            state: "refused".into(),
            version: refused.version.clone(),
            sha256: refused.sha256.clone(),
            reason: refused.reason.clone(),
        },
        _ => ModelReport { state: state.into(), version, sha256, reason: String::new() },
    }
}

/// Whether a failure of npud says nothing about the model.
fn passes(code: &str) -> bool {
    use ErrorCode as E;
    [E::Busy, E::QueueFull, E::DeadlineExceeded, E::DeviceLost, E::ThermalLimit, E::Cancelled]
        .iter()
        .any(|passing| passing.dbus_name() == code)
}

async fn tell(job: Option<&JobHandle>, percent: i32, doing: &str) {
    if let Some(job) = job {
        job.progress(percent, doing).await;
    }
}

fn copy(mut from: impl Read, incoming: &mut Incoming) -> anyhow::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        match from.read(&mut chunk).context("read the bundle")? {
            0 => return Ok(()),
            bytes => incoming.write(&chunk[..bytes])?,
        }
    }
}

/// Does blocking work elsewhere.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await.context("work at the model store panicked")?
}

/// What a client is told: a bundle at fault is the client's affair.
fn failure(error: anyhow::Error) -> Failure {
    let text = format!("{error:#}");
    match error.downcast_ref::<store::Error>() {
        Some(fault) if fault.is_final() => Failure::invalid_args(text),
        _ => Failure::new(ErrorCode::Internal, text),
    }
}
