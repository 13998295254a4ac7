//! The D-Bus front end: the objects of the contracts in `api`.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::dbus::{GPU_DEVICE, GPU_NAME, GPU_ROOT, MANAGE_LANGUAGE_MODELS, language_model_path};
use api::tensor::Priority;
use api::text::{Chat, ChatOptions, Message, Role};
use api::{ErrorCode, Failure, Result};
use kit::bus::{Authority, Clients, Found, JobHandle, Jobs, WireOptions, absolute, no_options};
use kit::thermal::Level;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Mutex, watch};
use tracing::Instrument as _;
use zbus::message::Header;
use zbus::object_server::SignalEmitter;
use zbus::wire::OwnedVariant;
use zbus::{Connection, OwnedObjectPath, Variant, connection};

use crate::generate::{Answer, Asked, Piece, ask, generate};
use crate::service::{Event, Model, Service};
use crate::stream::Stream;

/// What is done here.
const JOB: &str = "chat";
/// How often a job that writes says how far it is.
const PROGRESS: Duration = Duration::from_millis(500);

/// The daemon on a bus.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    connection: Connection,
    service: Service,
    jobs: Jobs,
    authority: Authority,
    served: Arc<Mutex<BTreeMap<String, Arc<Model>>>>,
}

impl Server {
    /// Connects, serves all objects, and then owns the name, so that nobody sees half of them.
    pub(crate) async fn start(service: Service, bus: connection::Builder<'_>) -> anyhow::Result<Self> {
        let connection = bus.build().await.context("connect to the bus")?;
        let clients = Clients::watch(&connection).await?;
        let authority = Authority::new(&connection).await?;
        let jobs = Jobs::new(connection.clone(), GPU_ROOT, clients, authority.clone());
        let server = Self { connection, service, jobs, authority, served: Arc::default() };
        let objects = server.connection.object_server();
        objects.at(GPU_ROOT, zbus::fdo::ObjectManager).await?;
        objects.at(GPU_ROOT, Models { server: server.clone() }).await?;
        objects.at(GPU_DEVICE, Device { service: server.service.clone() }).await?;
        server.sync().await?;
        let name = kit::bus::own(&server.connection, GPU_NAME).await;
        name.with_context(|| format!("own the bus name {GPU_NAME}"))?;
        Ok(server)
    }

    /// The connection to the bus.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Follows the service until the bus goes away, which is an error.
    pub(crate) async fn run(&self) -> anyhow::Result<()> {
        let mut events = self.service.events();
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                () = self.connection.closed() => anyhow::bail!("the bus closed the connection"),
            };
            match event {
                Ok(Event::Changed(model)) => self.announce(&model).await?,
                Ok(Event::Lost { model, reason }) => {
                    let emitter = SignalEmitter::new(&self.connection, GPU_DEVICE)?;
                    emitter.context_replaced(0, &model, JOB, &reason, "").await?;
                }
                Ok(Event::Models) | Err(RecvError::Lagged(_)) => self.sync().await?,
                // The service lives as long as this server.
                Err(RecvError::Closed) => return Ok(()),
            }
        }
    }

    /// Tells clients how hot the machine is.
    pub(crate) async fn set_level(&self, level: Level) -> zbus::Result<()> {
        self.service.set_level(level);
        let device = self.connection.object_server().interface::<_, Device>(GPU_DEVICE).await?;
        device.get().await.thermal_level_changed(device.signal_emitter()).await
    }

    /// Makes the objects those of the service's models. A replaced model gets a new object.
    async fn sync(&self) -> zbus::Result<()> {
        let mut served = self.served.lock().await;
        let known: BTreeMap<_, _> =
            self.service.models().into_iter().map(|model| (model.name.clone(), model)).collect();
        let objects = self.connection.object_server();
        for (name, model) in served.clone() {
            if known.get(&name).is_none_or(|known| !Arc::ptr_eq(known, &model)) {
                let path = language_model_path(&name);
                objects.remove::<TextGeneration, _>(&path).await?;
                objects.remove::<LanguageModel, _>(&path).await?;
                served.remove(&name);
            }
        }
        for (name, model) in known {
            if served.contains_key(&name) {
                continue;
            }
            let path = language_model_path(&name);
            objects.at(&path, LanguageModel { model: Arc::clone(&model) }).await?;
            objects.at(&path, TextGeneration { server: self.clone(), model: Arc::clone(&model) }).await?;
            served.insert(name, model);
        }
        Ok(())
    }

    async fn announce(&self, name: &str) -> zbus::Result<()> {
        let objects = self.connection.object_server();
        // A model that was just unloaded has no object any more.
        let Ok(object) = objects.interface::<_, LanguageModel>(language_model_path(name)).await else { return Ok(()) };
        let (model, emitter) = (object.get().await, object.signal_emitter());
        model.placement_changed(emitter).await?;
        model.context_changed(emitter).await?;
        model.memory_bytes_changed(emitter).await?;
        model.reason_changed(emitter).await?;
        model.state_changed(emitter).await
    }
}

/// `org.cairn.Models1`.
#[derive(Debug)]
struct Models {
    server: Server,
}

#[zbus::interface(name = "org.cairn.Models1", introspection_docs = false)]
impl Models {
    #[zbus(out_args("job"))]
    async fn load_model(
        &self,
        path: String,
        options: WireOptions,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<OwnedObjectPath> {
        no_options(&options)?;
        let file = absolute(path)?;
        self.server.authority.check(&call, MANAGE_LANGUAGE_MODELS).await?;
        let client = call.sender().map(|name| name.as_str().to_owned());
        let job = self.server.jobs.create("load-model", MANAGE_LANGUAGE_MODELS, client).await?;
        let path = job.path();
        let server = self.server.clone();
        tokio::spawn(async move {
            let result = server.service.load(file).await;
            if let Ok(model) = &result
                && job.is_cancelled()
            {
                // Somebody else may have unloaded it meanwhile; then it is gone as well.
                let _ = server.service.unload(&model.name).await;
            }
            let served = server.sync().await;
            let result = result.and_then(|model| {
                served?;
                Ok(Found { object: Some(language_model_path(&model.name)), ..Found::default() })
            });
            job.finish(result).await;
        });
        Ok(path)
    }

    async fn unload_model(&self, name: String, options: WireOptions, #[zbus(header)] call: Header<'_>) -> Result<()> {
        no_options(&options)?;
        self.server.authority.check(&call, MANAGE_LANGUAGE_MODELS).await?;
        self.server.service.unload(&name).await?;
        Ok(self.server.sync().await?)
    }

    #[zbus(out_args("models"))]
    fn list_models(&self, options: WireOptions) -> Result<Vec<OwnedObjectPath>> {
        no_options(&options)?;
        Ok(self.server.service.models().iter().map(|model| language_model_path(&model.name)).collect())
    }
}

/// `org.cairn.Device1`.
#[derive(Debug)]
struct Device {
    service: Service,
}

#[zbus::interface(name = "org.cairn.Device1", introspection_docs = false)]
impl Device {
    #[zbus(property(emits_changed_signal = "const"))]
    fn description(&self) -> String {
        self.service.device()
    }

    /// The server is a program, not a driver, and says nothing that could be told here.
    #[zbus(property(emits_changed_signal = "const"))]
    fn driver_version(&self) -> &'static str {
        ""
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn contexts(&self) -> u32 {
        1
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn queue_capacity(&self) -> u32 {
        count(self.service.queue().capacity())
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn queue_depth(&self) -> u32 {
        count(self.service.queue().depth())
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn kernel_log_watched(&self) -> bool {
        false
    }

    #[zbus(property)]
    fn thermal_level(&self) -> &'static str {
        self.service.level().name()
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn counters(&self) -> HashMap<&'static str, u64> {
        self.service.counters().all().into()
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn in_flight(&self) -> Vec<(u32, String, &'static str, u64)> {
        let running = self.service.running().into_iter();
        running.map(|(model, micros)| (0, model, JOB, micros)).collect()
    }

    #[zbus(signal)]
    async fn context_replaced(
        emitter: &SignalEmitter<'_>,
        context: u32,
        model: &str,
        job: &str,
        reason: &str,
        kernel_line: &str,
    ) -> zbus::Result<()>;
}

/// `org.cairn.LanguageModel1`.
#[derive(Debug)]
struct LanguageModel {
    model: Arc<Model>,
}

#[zbus::interface(name = "org.cairn.LanguageModel1", introspection_docs = false)]
impl LanguageModel {
    #[zbus(property(emits_changed_signal = "const"))]
    fn name(&self) -> &str {
        &self.model.name
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn path(&self) -> String {
        self.model.path.display().to_string()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn architecture(&self) -> &str {
        &self.model.header.architecture
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn quantization(&self) -> &str {
        self.model.header.quantization
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn parameters(&self) -> u64 {
        self.model.header.parameters
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn file_bytes(&self) -> u64 {
        self.model.header.file_bytes
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn context_length(&self) -> u64 {
        self.model.header.context_length
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn warning(&self) -> &str {
        self.model.header.gpu_warning.unwrap_or_default()
    }

    #[zbus(property)]
    fn state(&self) -> &'static str {
        self.model.shown().state
    }

    #[zbus(property)]
    fn placement(&self) -> String {
        self.model.shown().placement.map(|placement| placement.name()).unwrap_or_default()
    }

    #[zbus(property)]
    fn context(&self) -> (u64, u64) {
        self.model.shown().placement.map_or((0, 0), |placement| (placement.context, placement.ubatch))
    }

    #[zbus(property)]
    fn memory_bytes(&self) -> u64 {
        self.model.shown().placement.map_or(0, |placement| placement.memory)
    }

    #[zbus(property)]
    fn reason(&self) -> String {
        self.model.shown().reason
    }
}

/// `org.cairn.TextGeneration1`.
#[derive(Debug)]
struct TextGeneration {
    server: Server,
    model: Arc<Model>,
}

#[zbus::interface(name = "org.cairn.TextGeneration1", introspection_docs = false)]
impl TextGeneration {
    #[zbus(out_args("job", "text"))]
    async fn generate(
        &self,
        messages: Vec<(String, String)>,
        options: WireOptions,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(OwnedObjectPath, zbus::wire::OwnedFd)> {
        let received = Instant::now();
        let chat = Chat { messages: parse_messages(messages)?, options: parse_options(&options)? };
        chat.check()?;
        let deadline = deadline(&chat.options, received)?;
        let client = call.sender().map(|name| name.as_str().to_owned());
        let capacity = self.server.service.config().stream_buffer_bytes;
        let unusable = |error: anyhow::Error| Failure::new(ErrorCode::Internal, format!("{error:#}"));
        let (stream, reader, fill) = Stream::new(capacity).map_err(unusable)?;
        let job = self.server.jobs.create("generate", MANAGE_LANGUAGE_MODELS, client).await?;
        let path = job.path();
        let span = tracing::info_span!("request", id = %path, model = self.model.name, transport = "dbus");
        let service = self.server.service.clone();
        // Before the client has its answer: what it asks next comes after this.
        let asked = ask(&service, &self.model.name, chat);
        let request = Request { service, asked, deadline };
        tokio::spawn(serve(request, job, stream, fill).instrument(span));
        Ok((path, reader.into()))
    }
}

/// A request that has its job.
struct Request {
    service: Service,
    asked: Result<Asked>,
    deadline: Option<Instant>,
}

/// Answers until all is said, the job is cancelled, or the client does not want it any more.
async fn serve(request: Request, job: JobHandle, stream: Stream, fill: impl Future<Output = ()> + Send + 'static) {
    let Request { service, asked, deadline } = request;
    let mut fill = tokio::spawn(fill);
    let (steps, progress) = watch::channel((0, "waiting".to_owned()));
    let mut written = 0u64;
    let give = |piece: Piece| {
        let step = match piece {
            Piece::Waiting(0) => return Ok(()),
            Piece::Waiting(before) => (0, format!("waiting, {before} before it")),
            Piece::Reading(read, all) => {
                let percent = read.saturating_mul(99).checked_div(all).unwrap_or(0);
                (i32::try_from(percent).unwrap_or(99), format!("reading, {read} of {all} tokens"))
            }
            Piece::Text(text) => {
                written += 1;
                stream.push(&text)?;
                (99, format!("writing, {written} tokens"))
            }
        };
        steps.send_replace(step);
        Ok(())
    };
    let answer = async { generate(&service, asked?, deadline, give).await };
    let result = tokio::select! {
        result = answer => result,
        () = job.ended() => Err(Failure::new(ErrorCode::Cancelled, "the job was cancelled")),
        _ = &mut fill => Err(Failure::new(ErrorCode::Cancelled, "the client closed its pipe")),
        never = report(&job, progress) => match never {},
    };
    service.count(&result);
    match &result {
        Ok(answer) => tracing::debug!(tokens = answer.usage.completion_tokens, "answered"),
        Err(failure) => tracing::debug!(%failure, "not answered"),
    }
    let complete = result.is_ok();
    // Before the pipe ends: who reads its end finds the job's.
    job.finish(result.and_then(details)).await;
    stream.finish(complete);
    // Returns also where the client never reads.
    let _ = fill.await;
}

/// Tells the job how far it is, not too often.
async fn report(job: &JobHandle, mut progress: watch::Receiver<(i32, String)>) -> Infallible {
    loop {
        if progress.changed().await.is_err() {
            return std::future::pending().await;
        }
        let (percent, doing) = progress.borrow_and_update().clone();
        job.progress(percent, doing).await;
        tokio::time::sleep(PROGRESS).await;
    }
}

fn details(answer: Answer) -> Result<Found> {
    let usage = answer.usage;
    let details = [
        ("prompt-tokens", Variant::from(usage.prompt_tokens)),
        ("cached-tokens", Variant::from(usage.cached_tokens)),
        ("completion-tokens", Variant::from(usage.completion_tokens)),
        ("queued-us", Variant::from(usage.queued_us)),
        ("prompt-us", Variant::from(usage.prompt_us)),
        ("first-token-us", Variant::from(usage.first_token_us)),
        ("total-us", Variant::from(usage.total_us)),
        ("finish-reason", Variant::from(answer.finish_reason)),
        ("placement", Variant::from(answer.placement)),
    ];
    let details = details.into_iter().map(|(key, value)| Ok((key.to_owned(), OwnedVariant::try_from(value)?)));
    Ok(Found { object: None, details: Arc::new(details.collect::<zbus::Result<_>>()?) })
}

fn parse_messages(messages: Vec<(String, String)>) -> Result<Vec<Message>> {
    let message = |(role, content): (String, String)| Ok(Message { role: Role::parse(&role)?, content });
    messages.into_iter().map(message).collect()
}

fn parse_options(wire: &WireOptions) -> Result<ChatOptions> {
    let mut options = ChatOptions::default();
    for (key, value) in wire {
        match (key.as_str(), &**value) {
            ("max-tokens", Variant::U32(number)) => options.max_tokens = Some(*number),
            ("temperature", Variant::F64(number)) => options.temperature = Some(*number),
            ("top-p", Variant::F64(number)) => options.top_p = Some(*number),
            ("top-k", Variant::U32(number)) => options.top_k = Some(*number),
            ("seed", Variant::U32(number)) => options.seed = Some(*number),
            ("deadline-ms", Variant::U32(number)) => options.deadline_ms = Some((*number).into()),
            ("deadline-ms", Variant::U64(number)) => options.deadline_ms = Some(*number),
            ("priority", Variant::Str(name)) => options.priority = parse_priority(name.as_str())?,
            ("stop", stop @ Variant::Array(_)) => {
                let texts = stop.try_clone().and_then(Vec::<String>::try_from);
                options.stop = texts.map_err(|_| Failure::invalid_args("option \"stop\" is a list of texts"))?;
            }
            ("max-tokens" | "temperature" | "top-p" | "top-k" | "seed" | "deadline-ms" | "priority" | "stop", _) => {
                return Err(Failure::invalid_args(format!("option {key:?} has the wrong type")));
            }
            _ => return Err(Failure::invalid_args(format!("unknown option {key:?}"))),
        }
    }
    Ok(options)
}

fn parse_priority(name: &str) -> Result<Priority> {
    match name {
        "interactive" => Ok(Priority::Interactive),
        "batch" => Ok(Priority::Batch),
        _ => Err(Failure::invalid_args("option \"priority\" is interactive or batch")),
    }
}

/// When the answer loses its worth.
pub(crate) fn deadline(options: &ChatOptions, received: Instant) -> Result<Option<Instant>> {
    let Some(ms) = options.deadline_ms else { return Ok(None) };
    let deadline = received.checked_add(Duration::from_millis(ms));
    deadline.map(Some).ok_or_else(|| Failure::invalid_args(format!("a deadline of {ms} ms is beyond the clock")))
}

/// A size of ours as D-Bus has it; all are far below 32 bits.
fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
