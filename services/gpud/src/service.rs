//! The models, their servers, and the requests that use them.
//!
//! ```text
//!          ┌──────────────── unasked for long ─────────────────┐
//!          ▼                                                   │
//!        idle ── request ─▶ starting ── it read a prompt ─▶ ready ── it ended by itself ─▶ lost
//!                              ▲ └── its device failed: a smaller step of the plan           │
//!                              └── request; one that comes too soon, by a wait that doubles, is refused ──┘
//! ```
//! A file that is replaced is another model: the next request is answered by it.

use std::collections::BTreeMap;
use std::fs::{Metadata, OpenOptions};
use std::io::BufReader;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::tensor::Priority;
use api::text::Usage;
use api::{ErrorCode, Failure, Result};
use kit::thermal::Level;
use model::gguf::{self, Header};
use rustix::fs::OFlags;
use tokio::sync::broadcast;
use tracing::{error, info, warn};

use crate::child::{Ended, Server, Start};
use crate::config::Config;
use crate::machine::{self, Gpu};
use crate::plan::{self, Placement, Room, Wish};
use crate::queue::{Place, Queue, Turn};

/// Events that a slow listener may miss.
const EVENTS: usize = 64;
/// The longest wait before a lost server is started again.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How often idle models are looked for.
const GLANCE: Duration = Duration::from_secs(1);
/// How long a request that was cut off waits for the reason.
// TIMEOUT: the kernel tells of a dead child at once; the rest is a slow machine.
const REASON: Duration = Duration::from_secs(5);
/// How long all servers may take to stop.
// TIMEOUT: half of the unit's TimeoutStopSec.
const STOPPING: Duration = Duration::from_secs(10);
/// How long a request without a deadline may wait in the queue.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// Time that every request may take, and more for each token that is read and written.
// TIMEOUT: the slowest figures reported of RK3588's CPU are 4 tokens/s read and 2 written; half as fast, and two minutes
// to load the model.
const ALLOWED: (Duration, Duration, Duration) =
    (Duration::from_secs(120), Duration::from_millis(500), Duration::from_secs(1));

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Another model is known, or one is not any more.
    Models,
    /// What a model shows has changed.
    Changed(String),
    /// A server was lost.
    Lost { model: String, reason: String },
}

/// A model.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) header: Header,
    stamp: Stamp,
    shown: Mutex<Shown>,
    life: tokio::sync::Mutex<Life>,
    /// Requests that use its server.
    users: AtomicUsize,
}

/// What tells a file from one that takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    written: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// What others see of a model's life.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    pub(crate) state: &'static str,
    pub(crate) placement: Option<Placement>,
    pub(crate) reason: String,
}

#[derive(Debug)]
struct Life {
    server: Option<Server>,
    placement: Option<Placement>,
    wish: Wish,
    failures: u32,
    not_before: Option<Instant>,
    used: Instant,
    /// Nobody may start it any more.
    removed: bool,
}

/// What was counted since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) answered: AtomicU64,
    pub(crate) queue_full: AtomicU64,
    pub(crate) deadline_exceeded: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) servers_lost: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) completion_tokens: AtomicU64,
}

impl Counters {
    /// Each with its name.
    pub(crate) fn all(&self) -> [(&'static str, u64); 9] {
        [
            ("requests", &self.requests),
            ("answered", &self.answered),
            ("queue-full", &self.queue_full),
            ("deadline-exceeded", &self.deadline_exceeded),
            ("cancelled", &self.cancelled),
            ("failed", &self.failed),
            ("servers-lost", &self.servers_lost),
            ("prompt-tokens", &self.prompt_tokens),
            ("completion-tokens", &self.completion_tokens),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }

    fn failure(&self, failure: &Failure) {
        let counter = match failure.code {
            ErrorCode::QueueFull => &self.queue_full,
            ErrorCode::DeadlineExceeded => &self.deadline_exceeded,
            ErrorCode::Cancelled => &self.cancelled,
            _ => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Service(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: Config,
    gpu: Option<Gpu>,
    cores: Vec<usize>,
    threads: usize,
    queue: Queue,
    models: Mutex<BTreeMap<String, Arc<Model>>>,
    level: Mutex<Level>,
    /// The model whose turn it is, and since when.
    running: Mutex<Option<(String, Instant)>>,
    counters: Counters,
    events: broadcast::Sender<Event>,
    next_socket: AtomicU64,
}

/// A request that has its place in the queue.
#[derive(Debug)]
pub(crate) struct Admitted {
    service: Service,
    model: Arc<Model>,
    size: Size,
    received: Instant,
    place: Place,
}

/// A request whose turn it is, with the server that is to do it.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) model: Arc<Model>,
    pub(crate) server: Server,
    /// When it must have ended.
    pub(crate) deadline: Instant,
    /// Time in the queue.
    pub(crate) queued: Duration,
    service: Service,
    _turn: Turn,
}

/// How much a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Bytes of the prompt.
    pub(crate) prompt_bytes: usize,
    /// The longest answer, in tokens.
    pub(crate) tokens: Option<u32>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Model {
    /// What others see of its life.
    pub(crate) fn shown(&self) -> Shown {
        lock(&self.shown).clone()
    }
}

impl Service {
    /// Looks at the machine, and at the models of the configured folders.
    pub(crate) async fn start(config: Config) -> anyhow::Result<Self> {
        config.check()?;
        std::fs::create_dir_all(&config.runtime).with_context(|| format!("make {}", config.runtime.display()))?;
        let gpus = machine::gpus(&config.server).await.context("look for GPUs")?;
        let gpu = gpus.into_iter().next().filter(|_| config.gpu);
        let cores = if config.threads.is_none() { machine::fast_cores(Path::new("/")) } else { Vec::new() };
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = config.threads.unwrap_or(if cores.is_empty() { all } else { cores.len() });
        info!(gpu = gpu.as_ref().map(|gpu| &gpu.description), ?cores, threads, "the machine was looked at");
        let service = Self(Arc::new(Inner {
            gpu,
            cores,
            threads,
            queue: Queue::new(config.queue_capacity),
            models: Mutex::default(),
            level: Mutex::default(),
            running: Mutex::default(),
            counters: Counters::default(),
            events: broadcast::Sender::new(EVENTS),
            next_socket: AtomicU64::new(0),
            config,
        }));
        for file in service.0.config.models.iter().flat_map(|folder| files(folder)) {
            if let Err(failure) = service.register(file.clone()).await {
                error!(file = %file.display(), %failure, "the model is left out");
            }
        }
        Ok(service)
    }

    /// What happens from now on.
    pub(crate) fn events(&self) -> broadcast::Receiver<Event> {
        self.0.events.subscribe()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.0.config
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.0.queue
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// What prompts are read by.
    pub(crate) fn device(&self) -> String {
        self.0.gpu.as_ref().map_or_else(|| "CPU".to_owned(), |gpu| format!("{} ({})", gpu.description, gpu.name))
    }

    pub(crate) fn level(&self) -> Level {
        *lock(&self.0.level)
    }

    pub(crate) fn set_level(&self, level: Level) {
        *lock(&self.0.level) = level;
    }

    /// The model whose turn it is, and for how many microseconds.
    pub(crate) fn running(&self) -> Option<(String, u64)> {
        let running = lock(&self.0.running).clone();
        running.map(|(model, since)| (model, u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)))
    }

    /// All models, by name.
    pub(crate) fn models(&self) -> Vec<Arc<Model>> {
        lock(&self.0.models).values().cloned().collect()
    }

    /// The model of a name.
    ///
    /// # Errors
    /// `UnknownModel`.
    pub(crate) fn model(&self, name: &str) -> Result<Arc<Model>> {
        let unknown = || Failure::new(ErrorCode::UnknownModel, format!("no language model {name:?} is known"));
        lock(&self.0.models).get(name).cloned().ok_or_else(unknown)
    }

    fn tell(&self, event: Event) {
        // Nobody may be listening.
        let _ = self.0.events.send(event);
    }

    /// Makes a file known, in place of a model of its name.
    ///
    /// # Errors
    /// `Unsupported` for a file that is no model, `OutOfMemory` where it can never fit.
    pub(crate) async fn register(&self, path: PathBuf) -> Result<Arc<Model>> {
        let name = path.file_stem().and_then(|name| name.to_str()).map(str::to_owned);
        let name = name.ok_or_else(|| Failure::invalid_args(format!("{} has no name in UTF-8", path.display())))?;
        let file = path.clone();
        let header = tokio::task::spawn_blocking(move || read_header(&file)).await;
        let (header, stamp) =
            header.map_err(|error| Failure::new(ErrorCode::Internal, format!("read the header: {error}")))??;
        let config = &self.0.config;
        let wish = Wish {
            context: config.context,
            ubatch: config.ubatch,
            on_gpu: header.gpu_warning.is_none().then_some(config.ubatch),
        };
        plan::place(&header, &self.room(&name)?, wish).map_err(|failure| in_model(&name, failure))?;
        if let Some(warning) = header.gpu_warning {
            warn!(model = name, warning, "the GPU is left out");
        }
        let life = Life {
            server: None,
            placement: None,
            wish,
            failures: 0,
            not_before: None,
            used: Instant::now(),
            removed: false,
        };
        let shown = Mutex::new(Shown { state: "idle", ..Shown::default() });
        let model = Arc::new(Model { name, path, header, stamp, shown, life: life.into(), users: AtomicUsize::new(0) });
        let before = lock(&self.0.models).insert(model.name.clone(), Arc::clone(&model));
        if let Some(before) = before {
            self.remove(&before).await;
        }
        self.tell(Event::Models);
        Ok(model)
    }

    /// Makes a file known and starts its server.
    ///
    /// # Errors
    /// As [`Self::register`], and why the server does not start.
    pub(crate) async fn load(&self, path: PathBuf) -> Result<Arc<Model>> {
        let model = self.register(path).await?;
        match self.ready(&model).await {
            Ok(_) => Ok(model),
            Err(failure) => {
                // What does not serve is not kept.
                let _ = self.unload(&model.name).await;
                Err(failure)
            }
        }
    }

    /// Forgets a model. A request that uses it is cut off.
    ///
    /// # Errors
    /// `UnknownModel`.
    pub(crate) async fn unload(&self, name: &str) -> Result<()> {
        let model = self.model(name)?;
        lock(&self.0.models).remove(name);
        self.remove(&model).await;
        self.tell(Event::Models);
        Ok(())
    }

    async fn remove(&self, model: &Model) {
        let mut life = model.life.lock().await;
        life.removed = true;
        if let Some(server) = life.server.take() {
            server.stop().await;
        }
    }

    /// Ends all servers. One that is just being started ends with the runtime.
    pub(crate) async fn stop(&self) {
        let stop = async {
            for model in self.models() {
                self.remove(&model).await;
            }
        };
        let _ = tokio::time::timeout(STOPPING, stop).await;
    }

    /// Unloads what nobody asked for, for ever.
    pub(crate) async fn watch_idle(&self) {
        let mut tick = tokio::time::interval(GLANCE);
        let limit = Duration::from_secs(self.0.config.idle_seconds);
        loop {
            tick.tick().await;
            if limit.is_zero() {
                continue;
            }
            for model in self.models() {
                self.unload_idle(&model, limit).await;
            }
        }
    }

    async fn unload_idle(&self, model: &Model, limit: Duration) {
        // Whoever has it uses it.
        let Ok(mut life) = model.life.try_lock() else { return };
        if model.users.load(Ordering::Relaxed) > 0 || life.used.elapsed() < limit {
            return;
        }
        if let Some(server) = life.server.take() {
            info!(model = model.name, "unloaded, nobody asked for it");
            server.stop().await;
            self.show(model, |shown| shown.state = "idle");
        }
    }

    fn show(&self, model: &Model, change: impl FnOnce(&mut Shown)) {
        change(&mut lock(&model.shown));
        self.tell(Event::Changed(model.name.clone()));
    }

    /// What a model of a name may use. Weights of the others are mapped files, which the kernel counts as available.
    fn room(&self, but: &str) -> Result<Room> {
        let others = self.models().into_iter().filter(|model| model.name != but);
        let placed = others.filter(|model| matches!(model.shown().state, "ready" | "starting"));
        let (mut weights, mut all) = (0u64, 0u64);
        for model in placed {
            weights = weights.saturating_add(model.header.tensor_bytes);
            all = all.saturating_add(model.shown().placement.map_or(0, |placement| placement.memory));
        }
        let unknown = |error: anyhow::Error| Failure::new(ErrorCode::Internal, format!("{error:#}"));
        let free = machine::available_bytes(Path::new("/")).map_err(unknown)?;
        let config = &self.0.config;
        let free = free.saturating_sub(weights).saturating_sub(config.memory_reserve_mib << 20);
        let limit = config.memory_limit_mib.map_or(u64::MAX, |mib| mib.saturating_mul(1 << 20));
        Ok(Room { available: free.min(limit.saturating_sub(all)), gpu: self.0.gpu.clone() })
    }

    /// The model's server, started where it does not run. A start goes on also where nobody waits for it any more.
    async fn ready(&self, model: &Arc<Model>) -> Result<Server> {
        let (service, model) = (self.clone(), Arc::clone(model));
        let started = tokio::spawn(async move {
            let mut life = model.life.lock().await;
            life.used = Instant::now();
            match life.server.as_ref().filter(|server| server.runs()) {
                Some(server) => Ok(server.clone()),
                None => service.bring_up(&model, &mut life).await,
            }
        });
        started.await.map_err(|error| Failure::new(ErrorCode::Internal, format!("start the server: {error}")))?
    }

    async fn bring_up(&self, model: &Arc<Model>, life: &mut Life) -> Result<Server> {
        if let Some(server) = life.server.take() {
            let ended = server.ended().await;
            self.note_lost(model, life, &ended);
        }
        if life.removed {
            return Err(Failure::new(ErrorCode::UnknownModel, format!("{:?} was unloaded", model.name)));
        }
        // The turn is not spent on waiting: others have models that work.
        let wait = life.not_before.map(|at| at.saturating_duration_since(Instant::now()));
        if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
            let (failures, seconds) = (life.failures, wait.as_secs() + 1);
            let again = format!("its server was lost {failures} times, it is started again in {seconds} s");
            return Err(in_model(&model.name, Failure::new(ErrorCode::Busy, again)));
        }
        loop {
            let room = self.room(&model.name)?;
            let placement =
                plan::place(&model.header, &room, life.wish).map_err(|failure| in_model(&model.name, failure))?;
            self.show(model, |shown| (shown.state, shown.placement) = ("starting", Some(placement.clone())));
            let begin = Instant::now();
            match Server::start(self.start_of(model, &placement)).await {
                Ok(server) => {
                    let (name, took) = (&model.name, begin.elapsed());
                    info!(
                        message_id = kit::log::MODEL_LOADED,
                        model = name,
                        version = model.header.quantization,
                        placement = placement.name(),
                        context = placement.context,
                        ubatch = placement.ubatch,
                        ?took,
                        "loaded"
                    );
                    life.server = Some(server.clone());
                    life.placement = Some(placement);
                    self.show(model, |shown| shown.state = "ready");
                    self.follow(model, &server);
                    return Ok(server);
                }
                Err(ended) => {
                    life.placement = Some(placement);
                    if !self.note_lost(model, life, &ended) {
                        return Err(ended.failure());
                    }
                }
            }
        }
    }

    fn start_of<'a>(&'a self, model: &'a Model, placement: &'a Placement) -> Start<'a> {
        let number = self.0.next_socket.fetch_add(1, Ordering::Relaxed);
        Start {
            program: &self.0.config.server,
            model: &model.path,
            name: &model.name,
            header: &model.header,
            placement,
            threads: self.0.threads,
            cores: &self.0.cores,
            // The ending is how the server knows that it is a socket. A second daemon takes none of ours away.
            socket: self.0.config.runtime.join(format!("{}-{number}.sock", std::process::id())),
        }
    }

    /// Notes when the server ends by itself, also while nobody asks.
    fn follow(&self, model: &Arc<Model>, server: &Server) {
        let (service, model, server) = (self.clone(), Arc::clone(model), server.clone());
        tokio::spawn(async move {
            let ended = server.ended().await;
            let mut life = model.life.lock().await;
            // Whoever asked for it in between has noted it already.
            if life.server.as_ref().is_some_and(|current| current.pid() == server.pid() && !current.runs()) {
                life.server = None;
                service.note_lost(&model, &mut life, &ended);
            }
        });
    }

    /// Decides what is different at the next start. Returns whether less is asked of the device then.
    fn note_lost(&self, model: &Model, life: &mut Life, ended: &Ended) -> bool {
        if ended.asked {
            return false;
        }
        self.0.counters.servers_lost.fetch_add(1, Ordering::Relaxed);
        let failed = life.placement.as_ref().filter(|_| ended.fault.is_some());
        let smaller = failed.and_then(|failed| life.wish.smaller(failed));
        match smaller {
            Some(smaller) => life.wish = smaller,
            None => {
                // The first one may come at once.
                let wait = Duration::from_secs(1 << life.failures.min(6)) - Duration::from_secs(1);
                life.failures += 1;
                life.not_before = Some(Instant::now() + wait.min(LONGEST_WAIT));
            }
        }
        warn!(
            message_id = kit::log::SERVER_LOST,
            model = model.name,
            reason = ended.reason,
            smaller = smaller.is_some(),
            "the server was lost"
        );
        self.show(model, |shown| (shown.state, shown.reason) = ("lost", ended.reason.clone()));
        self.tell(Event::Lost { model: model.name.clone(), reason: ended.reason.clone() });
        smaller.is_some()
    }

    /// Admits a request: it has its place in the queue.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn admit(&self, name: &str, priority: Priority, size: Size) -> Result<Admitted> {
        let received = Instant::now();
        self.0.counters.requests.fetch_add(1, Ordering::Relaxed);
        let model = self.model(name)?;
        match (self.level(), priority) {
            (Level::Critical, _) => return Err(Failure::new(ErrorCode::ThermalLimit, "the machine is too hot")),
            (Level::Throttled, Priority::Batch) => {
                return Err(Failure::new(ErrorCode::ThermalLimit, "the machine is hot, batch requests must wait"));
            }
            _ => {}
        }
        Ok(Admitted { service: self.clone(), model, size, received, place: self.0.queue.enter()? })
    }

    /// The model of a name as it is now, with its server.
    async fn served(&self, name: &str) -> Result<(Arc<Model>, Server)> {
        let model = self.current(name).await?;
        let server = self.ready(&model).await?;
        Ok((model, server))
    }

    /// The model of a name; another one where its file is another one by now.
    async fn current(&self, name: &str) -> Result<Arc<Model>> {
        let model = self.model(name)?;
        // A file that is gone is of no matter while its server runs, and else the server says so.
        match std::fs::metadata(&model.path) {
            Ok(now) if Stamp::of(&now) != model.stamp => {
                info!(model = name, "its file was replaced");
                let (service, path) = (self.clone(), model.path.clone());
                // Goes on also where nobody waits for it any more: there is a server to be stopped.
                let registered = tokio::spawn(async move { service.register(path).await }).await;
                registered.map_err(|error| Failure::new(ErrorCode::Internal, format!("read {name:?}: {error}")))?
            }
            _ => Ok(model),
        }
    }

    /// Counts what an answer cost.
    pub(crate) fn count_tokens(&self, usage: &Usage) {
        self.0.counters.prompt_tokens.fetch_add(usage.prompt_tokens, Ordering::Relaxed);
        self.0.counters.completion_tokens.fetch_add(usage.completion_tokens, Ordering::Relaxed);
    }

    /// Counts how a request ended.
    pub(crate) fn count<T>(&self, result: &Result<T>) {
        match result {
            Ok(_) => drop(self.0.counters.answered.fetch_add(1, Ordering::Relaxed)),
            Err(failure) => self.0.counters.failure(failure),
        }
    }
}

impl Admitted {
    /// Requests before this one.
    pub(crate) fn before(&self) -> usize {
        self.place.before
    }

    /// Waits for its turn, and for the server that does it.
    ///
    /// # Errors
    /// Why it waits no longer, or why the server does not start.
    pub(crate) async fn turn(self, deadline: Option<Instant>) -> Result<Work> {
        let Self { service, model, size, received, place } = self;
        let turn = place.turn(deadline.unwrap_or(received + PATIENCE)).await?;
        let queued = received.elapsed();
        let deadline = deadline.unwrap_or_else(|| Instant::now() + allowed(size, model.header.context_length));
        let late = || Failure::new(ErrorCode::DeadlineExceeded, "the deadline passed while the model was loaded");
        let served = tokio::time::timeout_at(deadline.into(), service.served(&model.name)).await;
        let (model, server) = served.map_err(|_| late())??;
        model.users.fetch_add(1, Ordering::Relaxed);
        *lock(&service.0.running) = Some((model.name.clone(), Instant::now()));
        Ok(Work { model, server, deadline, queued, service, _turn: turn })
    }
}

impl Work {
    /// Why an answer was cut off: how the server ended, if it did, and else what was seen of it.
    pub(crate) async fn cut_off(&self, seen: Failure) -> Failure {
        match tokio::time::timeout(REASON, self.server.ended()).await {
            Ok(ended) if ended.asked => Failure::new(ErrorCode::Busy, "the model was unloaded"),
            Ok(ended) => ended.failure(),
            Err(_) => seen,
        }
    }

    /// After a device failed: the server of the next smaller step, if there is one.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn again(&mut self) -> Result<()> {
        let next = self.service.ready(&self.model);
        let late = || Failure::new(ErrorCode::DeadlineExceeded, "the deadline passed while the model was loaded again");
        self.server = tokio::time::timeout_at(self.deadline.into(), next).await.map_err(|_| late())??;
        Ok(())
    }

    /// Whether its server ended because its device failed, so that a smaller step may do.
    pub(crate) async fn device_failed(&self) -> bool {
        let ended = tokio::time::timeout(REASON, self.server.ended()).await;
        ended.is_ok_and(|ended| !ended.asked && ended.fault.is_some())
    }

    /// How long a server may be silent.
    pub(crate) fn stall(&self) -> Duration {
        self.service.config().stall()
    }

    /// Ends a server that gives no sign of life.
    pub(crate) async fn give_up(&self) -> Failure {
        let stall = self.stall();
        let reason = format!("llama-server gave no sign of life for {stall:?}");
        warn!(model = self.model.name, reason, "the server is ended");
        self.server.stop().await;
        self.service.show(&self.model, |shown| (shown.state, shown.reason) = ("lost", reason.clone()));
        self.service.tell(Event::Lost { model: self.model.name.clone(), reason: reason.clone() });
        Failure::new(ErrorCode::DeviceLost, reason)
    }

    /// An answer came whole: what failed before is forgotten.
    pub(crate) async fn succeeded(&self) {
        let mut life = self.model.life.lock().await;
        life.failures = 0;
        life.used = Instant::now();
    }

    /// Where it is computed.
    pub(crate) fn placement(&self) -> String {
        self.model.shown().placement.map(|placement| placement.name()).unwrap_or_default()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Before its turn ends, which is when the fields are dropped.
        *lock(&self.service.0.running) = None;
        self.model.users.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long a request of a size may take.
fn allowed(size: Size, context_length: u64) -> Duration {
    let (base, per_read, per_written) = ALLOWED;
    // A token has three bytes or more in the languages of the models; one that has fewer only gets less time.
    let read = u32::try_from(size.prompt_bytes / 3).unwrap_or(u32::MAX);
    let written = size.tokens.unwrap_or_else(|| u32::try_from(context_length).unwrap_or(u32::MAX));
    base.saturating_add(per_read.saturating_mul(read)).saturating_add(per_written.saturating_mul(written)).min(PATIENCE)
}

fn in_model(name: &str, failure: Failure) -> Failure {
    Failure::new(failure.code, format!("model {name:?}: {}", failure.message))
}

fn read_header(path: &Path) -> Result<(Header, Stamp)> {
    let unreadable = |error: std::io::Error| Failure::invalid_args(format!("{}: {error}", path.display()));
    // To open a pipe would wait for somebody who writes into it.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("the flag is one of the lower bits");
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(Failure::invalid_args(format!("{} is no file", path.display())));
    }
    let header = gguf::read(BufReader::new(file), metadata.len())
        .map_err(|error| Failure::new(ErrorCode::Unsupported, format!("{}: {error}", path.display())))?;
    Ok((header, Stamp::of(&metadata)))
}

/// GGUF files of a folder, by name.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            warn!(folder = %folder.display(), %error, "no language models here");
            return Vec::new();
        }
    };
    let is_model = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "gguf");
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(is_model).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe.gguf");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        for path in [&pipe, folder.path(), Path::new("/dev/zero")] {
            let failure = read_header(path).unwrap_err();
            assert_eq!(failure.code, ErrorCode::InvalidArgs);
            assert!(failure.message.ends_with("is no file"), "{failure}");
        }
    }

    #[test]
    fn a_longer_request_may_take_longer() {
        let size = |prompt_bytes, tokens| Size { prompt_bytes, tokens: Some(tokens) };
        let short = allowed(size(300, 10), 4096);
        assert_eq!(short, Duration::from_secs(120 + 50 + 10));
        assert!(allowed(size(30_000, 10), 4096) > short);
        assert!(allowed(size(300, 100), 4096) > short);
        assert_eq!(allowed(Size { prompt_bytes: 0, tokens: None }, 100), Duration::from_secs(220));
        assert_eq!(allowed(size(usize::MAX, u32::MAX), 4096), PATIENCE);
    }
}
