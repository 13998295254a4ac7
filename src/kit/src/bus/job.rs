//! `org.cairn.Job1`, and the list of jobs.
//!
//! ```text
//! running ─▶ done | failed | cancelled
//! ```
//! A job ends once: whichever of its work, its client's `Cancel` and its client's departure comes first.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use api::dbus::job_path;
use api::{ErrorCode, Failure, Result};
use tokio::sync::watch;
use zbus::message::Header;
use zbus::object_server::SignalEmitter;
use zbus::wire::OwnedVariant;
use zbus::{Connection, ObjectPath, OwnedObjectPath};

use super::{Authority, Clients, WireOptions, no_options};

/// Finished jobs that stay.
const FINISHED: usize = 16;

/// All jobs of a daemon.
#[derive(Clone, Debug)]
pub struct Jobs {
    connection: Connection,
    clients: Clients,
    authority: Authority,
    root: &'static str,
    next: Arc<AtomicU64>,
    finished: Arc<Mutex<VecDeque<u64>>>,
}

/// What a job's work gave.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The object that it made.
    pub object: Option<OwnedObjectPath>,
    /// What else it found out; which keys there are depends on the kind of job.
    pub details: Arc<HashMap<String, OwnedVariant>>,
}

/// How a job stands.
#[derive(Clone, Debug)]
enum State {
    Running { percent: i32, doing: String },
    Done(Found),
    Failed(Failure),
    Cancelled,
}

/// What a kind of job is called, and the polkit action of whoever may cancel those of others.
type Kind = (&'static str, &'static str);

/// The object of a job.
#[derive(Debug)]
struct Job {
    kind: Kind,
    client: Option<String>,
    handle: JobHandle,
    authority: Authority,
}

/// The work's side of a job.
#[derive(Clone, Debug)]
pub struct JobHandle {
    number: u64,
    state: watch::Sender<State>,
    jobs: Jobs,
}

impl Jobs {
    /// No job yet. Their objects will be below `root`.
    pub fn new(connection: Connection, root: &'static str, clients: Clients, authority: Authority) -> Self {
        Self { connection, clients, authority, root, next: Arc::default(), finished: Arc::default() }
    }

    /// Makes a running job. `action` is the polkit action of whoever may cancel it beside its client; it is cancelled
    /// when `client` leaves the bus.
    ///
    /// # Errors
    /// Where the bus refuses.
    pub async fn create(&self, kind: &'static str, action: &'static str, client: Option<String>) -> Result<JobHandle> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let state = watch::Sender::new(State::Running { percent: 0, doing: kind.to_owned() });
        let handle = JobHandle { number, state, jobs: self.clone() };
        let authority = self.authority.clone();
        let job = Job { kind: (kind, action), client: client.clone(), handle: handle.clone(), authority };
        self.connection.object_server().at(handle.path(), job).await?;
        if let Some(client) = client {
            let (handle, clients) = (handle.clone(), self.clients.clone());
            tokio::spawn(async move {
                let left = tokio::select! {
                    () = clients.left(&client) => true,
                    () = handle.ended() => false,
                };
                if left {
                    handle.end(State::Cancelled).await;
                }
            });
        }
        Ok(handle)
    }
}

impl JobHandle {
    /// The job's object.
    pub fn path(&self) -> OwnedObjectPath {
        job_path(self.jobs.root, self.number)
    }

    /// Whether nobody wants the work any more.
    pub fn is_cancelled(&self) -> bool {
        matches!(*self.state.borrow(), State::Cancelled)
    }

    /// Says how far the work is. A job that has ended stays as it is.
    pub async fn progress(&self, percent: i32, doing: impl Into<String>) {
        let doing = doing.into();
        let running = self.state.send_if_modified(|current| {
            let runs = matches!(current, State::Running { .. });
            if runs {
                *current = State::Running { percent, doing };
            }
            runs
        });
        if running && let Ok(object) = self.jobs.connection.object_server().interface::<_, Job>(self.path()).await {
            // A client that is gone misses the signal; the job's state is kept all the same.
            let _ = object.get().await.progress_changed(object.signal_emitter()).await;
        }
    }

    /// Ends the job with what it gave or why it failed. A job that was cancelled stays so.
    pub async fn finish(&self, result: Result<Found>) {
        self.end(result.map_or_else(State::Failed, State::Done)).await;
    }

    /// Returns when the job has ended, also by being cancelled.
    pub async fn ended(&self) {
        let mut state = self.state.subscribe();
        // The sender lives in `self`.
        let _ = state.wait_for(|state| !matches!(state, State::Running { .. })).await;
    }

    async fn end(&self, state: State) {
        let ended = self.state.send_if_modified(|current| {
            let runs = matches!(current, State::Running { .. });
            if runs {
                *current = state;
            }
            runs
        });
        if ended {
            // A client that is gone misses the signals; the job's state is kept all the same.
            let _ = self.announce().await;
            self.retire().await;
        }
    }

    async fn announce(&self) -> zbus::Result<()> {
        let object = self.jobs.connection.object_server().interface::<_, Job>(self.path()).await?;
        let (job, emitter) = (object.get().await, object.signal_emitter());
        job.progress_changed(emitter).await?;
        job.result_changed(emitter).await?;
        job.details_changed(emitter).await?;
        job.error_changed(emitter).await?;
        job.state_changed(emitter).await?;
        Job::completed(emitter, job.state()).await
    }

    /// Removes the oldest finished jobs.
    async fn retire(&self) {
        let retired: Vec<_> = {
            let mut finished = self.jobs.finished.lock().unwrap_or_else(PoisonError::into_inner);
            finished.push_back(self.number);
            let surplus = finished.len().saturating_sub(FINISHED);
            finished.drain(..surplus).collect()
        };
        for number in retired {
            // Only the bus can refuse, and then there is nobody to see the object.
            let _ = self.jobs.connection.object_server().remove::<Job, _>(job_path(self.jobs.root, number)).await;
        }
    }
}

#[zbus::interface(name = "org.cairn.Job1", introspection_docs = false)]
impl Job {
    #[zbus(property(emits_changed_signal = "const"))]
    fn kind(&self) -> &'static str {
        self.kind.0
    }

    #[zbus(property)]
    fn state(&self) -> &'static str {
        match *self.handle.state.borrow() {
            State::Running { .. } => "running",
            State::Done(_) => "done",
            State::Failed(_) => "failed",
            State::Cancelled => "cancelled",
        }
    }

    #[zbus(property)]
    fn progress(&self) -> (i32, String, i32) {
        let (percent, text) = match &*self.handle.state.borrow() {
            State::Running { percent, doing } => (*percent, doing.clone()),
            State::Done(_) => (100, "done".into()),
            State::Failed(failure) => (100, failure.message.clone()),
            State::Cancelled => (100, "cancelled".into()),
        };
        (percent, text, 1)
    }

    #[zbus(property)]
    fn result(&self) -> OwnedObjectPath {
        match &*self.handle.state.borrow() {
            State::Done(Found { object: Some(path), .. }) => path.clone(),
            _ => ObjectPath::from_static_str_unchecked("/").into(),
        }
    }

    #[zbus(property)]
    fn details(&self) -> zbus::fdo::Result<HashMap<String, OwnedVariant>> {
        let details = match &*self.handle.state.borrow() {
            State::Done(found) => Arc::clone(&found.details),
            _ => Arc::default(),
        };
        let copies = details.iter().map(|(key, value)| Ok((key.clone(), value.try_clone()?)));
        copies.collect::<zbus::wire::Result<_>>().map_err(|error| zbus::fdo::Error::Failed(format!("details: {error}")))
    }

    #[zbus(property)]
    fn error(&self) -> (String, String) {
        match &*self.handle.state.borrow() {
            State::Failed(failure) => (failure.code.dbus_name().to_owned(), failure.message.clone()),
            State::Cancelled => (ErrorCode::Cancelled.dbus_name().to_owned(), "the job was cancelled".to_owned()),
            _ => Default::default(),
        }
    }

    async fn cancel(&self, options: WireOptions, #[zbus(header)] call: Header<'_>) -> Result<()> {
        no_options(&options)?;
        let caller = call.sender().map(|name| name.as_str());
        if caller.is_none() || caller != self.client.as_deref() {
            self.authority.check(&call, self.kind.1).await?;
        }
        self.handle.end(State::Cancelled).await;
        Ok(())
    }

    #[zbus(signal)]
    async fn completed(emitter: &SignalEmitter<'_>, state: &str) -> zbus::Result<()>;
}
