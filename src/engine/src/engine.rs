//! The engine's public face: loading, admission, status.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::Graph;
use npu_device::{Driver, FaultMonitor};
use tokio::sync::{broadcast, oneshot};

use crate::info::{Counters, Event, InFlight, JobKind, ModelInfo, Options, Status, ThermalLevel};
use crate::loaded::Model;
use crate::queue::{Abandon, Queue};
use crate::worker::{self, Worker};
use crate::{Error, Input, Priority, Reply, Request, Result, Verdict};

/// Events that a slow reader may fall behind before it misses some.
const EVENTS: usize = 64;
/// A worker that has not moved for this long is stuck.
// TIMEOUT: two attempts of the default patience, and as much again for a slow CPU operator.
const STUCK: Duration = Duration::from_secs(20);

/// Serves inference on one NPU. Clones are the same engine; the last one stops it.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One model is loaded or unloaded at a time.
    loading: tokio::sync::Mutex<()>,
}

/// What callers and workers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) monitor: Option<Arc<dyn FaultMonitor>>,
    pub(crate) options: Options,
    pub(crate) queue: Queue<Job, Command>,
    pub(crate) events: broadcast::Sender<Event>,
    pub(crate) tally: Tally,
    pub(crate) pulses: Vec<Mutex<Instant>>,
    /// What each context is doing: model, kind of job, since when.
    running: Vec<Mutex<Option<Running>>>,
    models: RwLock<BTreeMap<String, Arc<Model>>>,
    thermal: AtomicU8,
    driver_info: npu_device::DriverInfo,
}

/// A run: its model, what its jobs are, since when.
type Running = (String, JobKind, Instant);

/// Counters that many threads add to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: AtomicU64,
    pub(crate) trusted: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) untrusted: AtomicU64,
    pub(crate) queue_full: AtomicU64,
    pub(crate) deadline_exceeded: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) contexts_replaced: AtomicU64,
    pub(crate) npu_micros: AtomicU64,
}

impl Tally {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    fn snapshot(&self) -> Counters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            requests: load(&self.requests),
            trusted: load(&self.trusted),
            retried: load(&self.retried),
            untrusted: load(&self.untrusted),
            queue_full: load(&self.queue_full),
            deadline_exceeded: load(&self.deadline_exceeded),
            cancelled: load(&self.cancelled),
            failed: load(&self.failed),
            contexts_replaced: load(&self.contexts_replaced),
            npu_micros: load(&self.npu_micros),
        }
    }
}

/// An admitted request.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) model: Arc<Model>,
    pub(crate) input: Input,
    pub(crate) deadline: Option<Instant>,
    pub(crate) admitted: Instant,
    pub(crate) reply: oneshot::Sender<Result<Reply>>,
}

impl Abandon for Job {
    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

/// What a worker is told beside requests.
#[derive(Debug)]
pub(crate) enum Command {
    /// Make a model resident, replacing an older one of its name.
    Load { model: Arc<Model>, done: oneshot::Sender<Result<()>> },
    /// Free a model.
    Unload { name: String, done: oneshot::Sender<Result<()>> },
}

/// An answer to come. Dropping it cancels the request.
#[derive(Debug)]
pub struct Pending {
    reply: oneshot::Receiver<Result<Reply>>,
}

impl Pending {
    /// Waits for the answer on this thread, which must not run an async runtime.
    ///
    /// # Errors
    /// Those of the request.
    pub fn wait(self) -> Result<Reply> {
        self.reply.blocking_recv().unwrap_or_else(|_| Err(worker_gone()))
    }
}

impl Future for Pending {
    type Output = Result<Reply>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.reply).poll(cx).map(|reply| reply.unwrap_or_else(|_| Err(worker_gone())))
    }
}

fn worker_gone() -> Error {
    Error::Internal("the worker ended without an answer".into())
}

impl Engine {
    /// Opens the device and starts the workers.
    ///
    /// `monitor` makes faults in the kernel log part of the verdict; without it, time and sentinels decide alone.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] where the device cannot be opened, [`Error::Unsupported`] for options without meaning.
    pub fn start(driver: Arc<dyn Driver>, monitor: Option<Arc<dyn FaultMonitor>>, options: Options) -> Result<Self> {
        if options.contexts == 0 || options.queue_capacity == 0 {
            return Err(Error::Unsupported("an engine needs at least one context and room for one request".into()));
        }
        let devices: Vec<_> =
            (0..options.contexts).map(|_| driver.open().map_err(Error::DeviceLost)).collect::<Result<_>>()?;
        let now = Instant::now();
        let shared = Arc::new(Shared {
            driver_info: devices[0].info().clone(),
            driver,
            monitor,
            queue: Queue::new(options.queue_capacity, options.contexts),
            events: broadcast::Sender::new(EVENTS),
            tally: Tally::default(),
            pulses: devices.iter().map(|_| Mutex::new(now)).collect(),
            running: devices.iter().map(|_| Mutex::default()).collect(),
            models: RwLock::default(),
            thermal: AtomicU8::new(0),
            options,
        });
        let mut workers = Vec::with_capacity(devices.len());
        for (index, device) in devices.into_iter().enumerate() {
            let worker = Worker::new(index, Arc::clone(&shared), device);
            let thread = std::thread::Builder::new().name(format!("npu-context-{index}"));
            let spawned = thread.spawn(move || worker::run(worker));
            workers.push(spawned.map_err(|error| Error::OutOfMemory(format!("start a worker: {error}")))?);
        }
        Ok(Self { inner: Arc::new(Inner { shared, workers, loading: tokio::sync::Mutex::default() }) })
    }

    /// Reads a model package, plans it, makes it resident in every context and checks it against its golden output.
    ///
    /// A model of the same name is replaced once the new one has proved itself.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a package or model that cannot be used, with the place and the reason;
    /// [`Error::ResultUntrusted`] where its golden output is not met; [`Error::OutOfMemory`].
    pub async fn load(&self, folder: &Path) -> Result<Arc<ModelInfo>> {
        let folder = folder.to_owned();
        self.load_model(move || Model::read(&folder)).await
    }

    /// As [`Self::load`], for a graph without a package: its first inference is of zeros and must be verifiable.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the operator and the reason; [`Error::ResultUntrusted`]; [`Error::OutOfMemory`].
    pub async fn load_graph(&self, name: &str, graph: Graph) -> Result<Arc<ModelInfo>> {
        let name = name.to_owned();
        self.load_model(move || Model::of_graph(&name, graph)).await
    }

    async fn load_model(&self, read: impl FnOnce() -> Result<Model> + Send + 'static) -> Result<Arc<ModelInfo>> {
        let _one_at_a_time = self.inner.loading.lock().await;
        let model = tokio::task::spawn_blocking(read)
            .await
            .map_err(|error| Error::Internal(format!("planning a model: {error}")))??;
        let model = Arc::new(model);
        let info = Arc::clone(&model.info);
        if let Err(error) = self.tell_all(|done| Command::Load { model: Arc::clone(&model), done }).await {
            self.restore(&info.name).await;
            return Err(error);
        }
        self.inner.shared.models.write().unwrap_or_else(PoisonError::into_inner).insert(info.name.clone(), model);
        self.announce(Event::ModelLoaded(Arc::clone(&info)));
        Ok(info)
    }

    /// Frees a model. Requests that were admitted before are still answered.
    ///
    /// # Errors
    /// [`Error::UnknownModel`].
    pub async fn unload(&self, name: &str) -> Result<()> {
        let _one_at_a_time = self.inner.loading.lock().await;
        let shared = &self.inner.shared;
        let removed = shared.models.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        if removed.is_none() {
            return Err(Error::UnknownModel(name.into()));
        }
        self.tell_all(|done| Command::Unload { name: name.into(), done }).await?;
        self.announce(Event::ModelUnloaded(name.into()));
        Ok(())
    }

    /// The loaded models, by name.
    pub fn models(&self) -> Vec<Arc<ModelInfo>> {
        let models = self.inner.shared.models.read().unwrap_or_else(PoisonError::into_inner);
        models.values().map(|model| Arc::clone(&model.info)).collect()
    }

    /// A loaded model.
    pub fn model(&self, name: &str) -> Option<Arc<ModelInfo>> {
        self.inner.shared.find(name).map(|model| Arc::clone(&model.info))
    }

    /// Requests that a loaded model has answered since it was loaded.
    pub fn answers(&self, name: &str) -> Option<u64> {
        self.inner.shared.find(name).map(|model| model.answers.load(Ordering::Relaxed))
    }

    /// What the contexts are doing now; idle ones are left out.
    pub fn in_flight(&self) -> Vec<InFlight> {
        let slots = self.inner.shared.running.iter().enumerate();
        let busy = slots.filter_map(|(context, slot)| {
            let (model, job, since) = slot.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
            Some(InFlight { context, model, job, running: since.elapsed() })
        });
        busy.collect()
    }

    /// Checks and queues a request.
    ///
    /// # Errors
    /// At once: [`Error::UnknownModel`], [`Error::InvalidTensor`], [`Error::DeadlineExceeded`],
    /// [`Error::ThermalLimit`], [`Error::QueueFull`].
    pub fn submit(&self, request: Request) -> Result<Pending> {
        let shared = &self.inner.shared;
        let admitted = shared.admit(request);
        match &admitted {
            Ok(_) => Tally::add(&shared.tally.requests, 1),
            Err(error) => shared.count_error(error),
        }
        admitted
    }

    /// The bytes of a model's inputs as a request with `input` gives them to it. For tools that hold the engine against
    /// another one.
    ///
    /// # Errors
    /// [`Error::UnknownModel`], [`Error::InvalidTensor`].
    pub fn prepare(&self, model: &str, input: &Input) -> Result<Vec<bytes::Bytes>> {
        let model = self.inner.shared.find(model).ok_or_else(|| Error::UnknownModel(model.into()))?;
        model.check(input)?;
        model.prepare(input)
    }

    /// Lets a model answer its golden input, as a request among others, and holds the answer against its golden output.
    /// Where its package has none, the answer must at least be verifiable.
    ///
    /// # Errors
    /// Those of a request; [`Error::ResultUntrusted`] where the answer is not the golden one.
    pub async fn verify(&self, name: &str) -> Result<Verdict> {
        let model = self.inner.shared.find(name).ok_or_else(|| Error::UnknownModel(name.into()))?;
        let input = model.golden().map_or_else(|| model.blank(), |golden| golden.input.clone());
        let request = Request { model: name.into(), input, priority: Priority::Interactive, deadline: None };
        let reply = self.submit(request)?.await?;
        model.golden().map_or(Ok(()), |golden| golden.check(&reply.outputs))?;
        Ok(reply.verdict)
    }

    /// What happens from now on.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.inner.shared.events.subscribe()
    }

    /// A snapshot.
    pub fn status(&self) -> Status {
        let shared = &self.inner.shared;
        let (major, minor, patch) = shared.driver_info.version;
        Status {
            device: shared.driver.describe(),
            driver_version: format!("{major}.{minor}.{patch}"),
            batched_submit: shared.driver_info.has_batched_submit(),
            kernel_log_watched: shared.monitor.is_some(),
            contexts: shared.options.contexts,
            queue_depth: shared.queue.depth(),
            queue_capacity: shared.queue.capacity(),
            thermal_level: shared.thermal_level(),
            counters: shared.tally.snapshot(),
        }
    }

    /// Says how hot the machine is; admission follows.
    pub fn set_thermal_level(&self, level: ThermalLevel) {
        let code = match level {
            ThermalLevel::Normal => 0,
            ThermalLevel::Throttled => 1,
            ThermalLevel::Critical => 2,
        };
        self.inner.shared.thermal.store(code, Ordering::Relaxed);
    }

    /// Whether every worker has moved lately: what a watchdog is fed from.
    pub fn heartbeat(&self) -> bool {
        let pulses = &self.inner.shared.pulses;
        pulses.iter().all(|pulse| pulse.lock().unwrap_or_else(PoisonError::into_inner).elapsed() < STUCK)
    }

    /// Gives every worker a command and waits until all have obeyed; the first error counts.
    async fn tell_all(&self, mut command: impl FnMut(oneshot::Sender<Result<()>>) -> Command) -> Result<()> {
        let mut answers = Vec::new();
        self.inner.shared.queue.command(|_| {
            let (done, answer) = oneshot::channel();
            answers.push(answer);
            command(done)
        })?;
        let mut result = Ok(());
        for answer in answers {
            result = result.and(answer.await.unwrap_or_else(|_| Err(worker_gone())));
        }
        result
    }

    /// Brings the workers back to what callers see of model `name`, after it could not be replaced.
    async fn restore(&self, name: &str) {
        let command = |done| match self.inner.shared.find(name) {
            Some(model) => Command::Load { model, done },
            None => Command::Unload { name: name.into(), done },
        };
        // The error that made this necessary is the one that the caller sees.
        let _ = self.tell_all(command).await;
    }

    fn announce(&self, event: Event) {
        // Nobody listening is not an error.
        let _ = self.inner.shared.events.send(event);
    }
}

impl Shared {
    fn find(&self, name: &str) -> Option<Arc<Model>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn admit(&self, request: Request) -> Result<Pending> {
        let model = self.find(&request.model).ok_or(Error::UnknownModel(request.model))?;
        model.check(&request.input)?;
        let admitted = Instant::now();
        if let Some(deadline) = request.deadline.filter(|deadline| *deadline <= admitted) {
            return Err(Error::DeadlineExceeded { late: admitted - deadline, stage: "before admission" });
        }
        let limit = match request.priority {
            Priority::Batch => ThermalLevel::Throttled,
            Priority::Interactive | Priority::Stream => ThermalLevel::Critical,
        };
        if self.thermal_level() >= limit {
            return Err(Error::ThermalLimit);
        }
        let (reply, pending) = oneshot::channel();
        let job = Job { model, input: request.input, deadline: request.deadline, admitted, reply };
        self.queue.push(job, request.priority)?;
        Ok(Pending { reply: pending })
    }

    pub(crate) fn running(&self, context: usize, run: Option<Running>) {
        *self.running[context].lock().unwrap_or_else(PoisonError::into_inner) = run;
    }

    pub(crate) fn count_error(&self, error: &Error) {
        let counter = match error {
            Error::QueueFull { .. } => &self.tally.queue_full,
            Error::DeadlineExceeded { .. } => &self.tally.deadline_exceeded,
            Error::ResultUntrusted(_) => &self.tally.untrusted,
            Error::Cancelled => &self.tally.cancelled,
            _ => &self.tally.failed,
        };
        Tally::add(counter, 1);
    }

    fn thermal_level(&self) -> ThermalLevel {
        match self.thermal.load(Ordering::Relaxed) {
            0 => ThermalLevel::Normal,
            1 => ThermalLevel::Throttled,
            _ => ThermalLevel::Critical,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.queue.close();
        for worker in self.workers.drain(..) {
            // A worker that panicked has told its callers; there is nobody left to tell.
            let _ = worker.join();
        }
    }
}
