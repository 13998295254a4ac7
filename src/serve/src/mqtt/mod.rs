//! The MQTT front end.
//!
//! ```text
//! delivery ─▶ address, envelope ─▶ seen before? ─▶ frame ─▶ engine ─▶ reply ─▶ acknowledgement
//!                                      └▶ its reply once more
//! ```
//! Every request that says where its reply goes is answered, errors too. A request is acknowledged to the broker when
//! its reply is out, so that a fleet's broker gives it to another device if this one dies; and the broker may send only
//! as many ahead as the queue has room for. Nothing here waits for the broker: a reply that the link cannot take is
//! offered again a little later where its request is to be acknowledged, and otherwise counted and dropped.

mod window;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::mqtt::{
    Address, ERROR, Envelope, FINAL, Form, Frame, FrameBody, HEADER_LENGTH, InferReply, JSON, Metrics, ModelMeta,
    OCTET_STREAM, OFFLINE, ONLINE, OutputTensor, SEQ, TensorMeta, Topics, decode_request, discovery, encode_failure,
    envelope, is_segment,
};
use api::tensor::Options;
use api::{ErrorCode, Failure};
use bytes::Bytes;
use engine::{Engine, ModelInfo, Pending, TensorInfo};
use kit::mqtt::{Delivery, Event, GOODBYE, LinkError, MqttLink, Publication, goodbye};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::MissedTickBehavior;
use tracing::{Instrument as _, debug, info, warn};

use crate::dbus::thermal_name;
use crate::request::{self, Answer, Body};
use crate::{Error, Result};
use window::{Key, Seen, Window};

/// Answers whose time counts for the median.
const LATENCIES: usize = 64;
/// How long a reply waits before it is offered to a full link again.
// TIMEOUT: a link sends its whole queue in less; nothing is lost where it does not.
const OFFER_AGAIN: Duration = Duration::from_millis(100);

/// How the front end works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The group of devices that share the fleet's requests; without it this device takes none of them.
    pub pool_group: Option<String>,
    /// The largest payload that is processed.
    pub max_payload_bytes: usize,
    /// Whether Home Assistant is told about this device.
    pub home_assistant: bool,
    /// Time between metrics.
    pub metrics_period: Duration,
    /// Version of the daemon.
    pub version: String,
}

/// Serves requests from a broker until `stop` completes.
///
/// `link` and `events` come from [`kit::mqtt::open`].
///
/// # Errors
/// [`Error::Link`] where the link ends by itself.
pub async fn run(
    engine: Engine,
    topics: Topics,
    link: Arc<dyn MqttLink>,
    mut events: mpsc::Receiver<Event>,
    settings: Settings,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let mut engine_events = engine.events();
    let mut metrics = tokio::time::interval(settings.metrics_period);
    let mut offer_again = tokio::time::interval(OFFER_AGAIN);
    offer_again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut front = FrontEnd::new(engine, topics, link, settings);
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            event = events.recv() => front.link_event(event.ok_or(Error::Link)?),
            // What happened does not matter: the engine is asked what it holds.
            _ = engine_events.recv() => front.sync_models(),
            Some(done) = front.running.join_next() => front.finish_joined(done),
            _ = metrics.tick() => front.publish_metrics(),
            _ = offer_again.tick(), if !front.unsent.is_empty() => front.send_unsent(),
            () = &mut stop => break,
        }
    }
    // What was admitted is still answered, as far as that is soon.
    let _ = tokio::time::timeout(GOODBYE, front.finish_running()).await;
    front.leave();
    goodbye(&*front.link, &mut events).await;
    Ok(())
}

#[derive(Debug)]
struct FrontEnd {
    engine: Engine,
    topics: Topics,
    link: Arc<dyn MqttLink>,
    settings: Settings,
    online: bool,
    /// Models that subscribers know of.
    announced: BTreeMap<String, Arc<ModelInfo>>,
    running: JoinSet<Done>,
    window: Window,
    /// Replies that a full link did not take, with the requests that they acknowledge: at most as many as the broker
    /// sends ahead. Without their acknowledgement it would in the end send nothing more.
    unsent: Vec<(Publication, Vec<Delivery>)>,
    latencies: VecDeque<Duration>,
    dropped: u64,
}

/// A request on its way, and what its reply needs.
#[derive(Debug)]
struct Ticket {
    delivery: Delivery,
    reply_topic: String,
    id: Option<String>,
    key: Option<Key>,
    with_outputs: bool,
    binary_reply: bool,
}

#[derive(Debug)]
struct Done {
    ticket: Ticket,
    result: api::Result<Answer>,
}

impl FrontEnd {
    fn new(engine: Engine, topics: Topics, link: Arc<dyn MqttLink>, settings: Settings) -> Self {
        Self {
            engine,
            topics,
            link,
            settings,
            online: false,
            announced: BTreeMap::new(),
            running: JoinSet::new(),
            window: Window::default(),
            unsent: Vec::new(),
            latencies: VecDeque::with_capacity(LATENCIES),
            dropped: 0,
        }
    }

    fn link_event(&mut self, event: Event) {
        match event {
            Event::Connected => {
                info!("connected to the broker");
                self.online = true;
                self.arrive();
            }
            Event::Disconnected { reason, retry } => {
                self.online = false;
                // Their requests come again with the next connection.
                self.unsent.clear();
                warn!(message_id = kit::log::BROKER_LOST, reason, ?retry, "the broker is away");
            }
            Event::SubscriptionRefused { reason } => warn!(reason, "the broker refuses a subscription"),
            Event::Message(delivery) => self.receive(*delivery),
            _ => {}
        }
    }

    /// Renews what a broker that forgot us does not know.
    fn arrive(&mut self) {
        self.subscribe(&self.topics.infer_request("+"));
        if self.settings.home_assistant {
            self.subscribe(Topics::HOME_ASSISTANT);
            self.publish_discovery();
        }
        self.announced.clear();
        self.sync_models();
        self.publish_retained(self.topics.state(), ONLINE.into());
        self.publish_metrics();
    }

    async fn finish_running(&mut self) {
        while let Some(done) = self.running.join_next().await {
            self.finish_joined(done);
        }
    }

    fn finish_joined(&mut self, done: std::result::Result<Done, JoinError>) {
        let done = done.expect("a waiting request neither panics nor is aborted");
        self.finish(done.ticket, done.result);
    }

    fn leave(&self) {
        self.publish_retained(self.topics.state(), OFFLINE.into());
    }

    /// Tells subscribers which models there are, and takes the fleet's requests for them.
    fn sync_models(&mut self) {
        if !self.online {
            return;
        }
        let loaded = self.engine.models();
        let names: Vec<_> = loaded.iter().map(|model| model.name.clone()).collect();
        let gone: Vec<_> = self.announced.keys().filter(|name| !names.contains(name)).cloned().collect();
        for name in gone {
            self.announced.remove(&name);
            self.publish_retained(self.topics.model_meta(&name), Bytes::new());
            if let Some(group) = &self.settings.pool_group {
                self.log_refusal(self.link.unsubscribe(&Topics::pool_subscription(group, &name)));
            }
        }
        for model in loaded {
            // A name that is no topic level can be reached over D-Bus only.
            let known = self.announced.get(&model.name).is_some_and(|known| Arc::ptr_eq(known, &model));
            if known || !is_segment(&model.name) {
                continue;
            }
            let meta = serde_json::to_vec(&meta(&model)).expect("text and numbers serialise");
            self.publish_retained(self.topics.model_meta(&model.name), meta.into());
            if let Some(group) = &self.settings.pool_group {
                self.subscribe(&Topics::pool_subscription(group, &model.name));
            }
            self.announced.insert(model.name.clone(), model);
        }
    }

    fn receive(&mut self, delivery: Delivery) {
        let received = Instant::now();
        let Some(model) = self.addressed_model(&delivery) else {
            self.link.acknowledge(&delivery);
            return;
        };
        let (form, envelope) = self.open(&delivery);
        let Some(reply_topic) = delivery.response_topic.clone().or(envelope.reply_to) else {
            debug!(model, "a request that does not say where its reply goes is ignored");
            self.link.acknowledge(&delivery);
            return;
        };
        let key = self.window.key(&delivery, &reply_topic, envelope.id.as_deref());
        match key.as_ref().map_or(Seen::Never, |key| self.window.look(key, &delivery)) {
            Seen::Never => {}
            Seen::Running => return,
            Seen::Answered(reply) => return self.send(reply, vec![delivery]),
        }
        let ticket = Ticket { delivery, reply_topic, id: envelope.id, key, with_outputs: false, binary_reply: false };
        self.start(&model, form, ticket, received);
    }

    /// The model that a delivery asks, if it is a request. What else it says is done at once.
    fn addressed_model(&self, delivery: &Delivery) -> Option<String> {
        match self.topics.parse(&delivery.topic)? {
            // A retained request is one that somebody was answered long ago.
            Address::Infer(model) | Address::Pool(model) => (!delivery.retained).then(|| model.to_owned()),
            Address::HomeAssistant => {
                if delivery.payload == ONLINE {
                    self.publish_discovery();
                }
                None
            }
        }
    }

    /// The form of a request, and what it says about its reply.
    fn open(&self, delivery: &Delivery) -> (api::Result<Form>, Envelope) {
        let (len, limit) = (delivery.payload.len(), self.settings.max_payload_bytes);
        if len > limit {
            let failure = Failure::invalid_tensor(format!("the payload has {len} bytes, the limit is {limit}"));
            return (Err(failure), Envelope::default());
        }
        let form = Form::of(delivery.content_type.as_deref(), delivery.property(HEADER_LENGTH), &delivery.payload);
        let envelope = form.as_ref().map_or_else(|_| Envelope::default(), |form| envelope(*form, &delivery.payload));
        (form, envelope)
    }

    fn start(&mut self, model: &str, form: api::Result<Form>, mut ticket: Ticket, received: Instant) {
        let id = ticket.id.clone().unwrap_or_default();
        let span = tracing::info_span!("request", id, model, transport = "mqtt");
        let pending = span.in_scope(|| self.submit(model, form, &mut ticket, received));
        let pending = match pending {
            Ok(pending) => pending,
            Err(failure) => {
                span.in_scope(|| debug!(%failure, "refused"));
                return self.finish(ticket, Err(failure));
            }
        };
        let answer = async move {
            let reply = pending.await.map_err(|error| request::failure(&error));
            let result = reply.and_then(|reply| request::answer(reply, ticket.with_outputs));
            match &result {
                Ok(answer) => debug!(verdict = answer.verdict, total_us = answer.timing.total_us, "answered"),
                Err(failure) => debug!(%failure, "refused"),
            }
            Done { ticket, result }
        };
        self.running.spawn(answer.instrument(span));
    }

    fn submit(
        &self,
        model: &str,
        form: api::Result<Form>,
        ticket: &mut Ticket,
        received: Instant,
    ) -> api::Result<Pending> {
        let Frame { body, mut options, binary_reply } = decode_request(form?, &ticket.delivery.payload)?;
        for (key, text) in ticket.delivery.properties.iter().filter(|(key, _)| Options::knows(key)) {
            options.set_text(key, text)?;
        }
        let body = match body {
            FrameBody::Picture(picture) => Body::Picture(picture),
            FrameBody::Tensors(tensors) => Body::Tensors(tensors),
        };
        ticket.binary_reply = binary_reply;
        ticket.with_outputs = body.wants_outputs(&options);
        let request = request::request(model, body, &options, ticket.delivery.expiry, received)?;
        self.engine.submit(request).map_err(|error| request::failure(&error))
    }

    /// Answers a request and acknowledges it, together with its duplicates.
    fn finish(&mut self, ticket: Ticket, result: api::Result<Answer>) {
        let encoded = result.and_then(|answer| {
            self.count_latency(answer.timing.total_us);
            encode(answer, &ticket)
        });
        let answered = encoded.is_ok();
        let reply = encoded.unwrap_or_else(|failure| ticket.failure(&failure));
        let mut deliveries = vec![ticket.delivery];
        if let Some(key) = ticket.key {
            // A refused request may well be repeated with better luck.
            deliveries.extend(self.window.answer(key, answered.then_some(&reply)));
        }
        self.send(reply, deliveries);
    }

    fn send_unsent(&mut self) {
        for (reply, deliveries) in std::mem::take(&mut self.unsent) {
            self.send(reply, deliveries);
        }
    }

    fn send(&mut self, reply: Publication, deliveries: Vec<Delivery>) {
        let (topic, correlation) = (reply.topic.clone(), reply.correlation.clone());
        let acknowledged = reply.acknowledged;
        let sent = match self.link.publish(reply.clone()) {
            Err(error @ LinkError::TooLarge { .. }) => {
                let failure = Failure::new(ErrorCode::Unsupported, format!("the reply cannot be sent: {error}"));
                self.link.publish(failure_reply(topic, correlation, acknowledged, None, &failure))
            }
            sent => sent,
        };
        match sent {
            Ok(()) => {}
            Err(LinkError::Topic(topic)) => debug!(topic, "the reply's topic is malformed"),
            Err(LinkError::Full) if self.online && deliveries.iter().any(Delivery::wants_acknowledgement) => {
                self.unsent.push((reply, deliveries));
                return;
            }
            Err(error) => {
                self.dropped += 1;
                debug!(%error, "a reply is dropped");
                return;
            }
        }
        deliveries.iter().for_each(|delivery| self.link.acknowledge(delivery));
    }

    fn count_latency(&mut self, micros: u64) {
        if self.latencies.len() == LATENCIES {
            self.latencies.pop_front();
        }
        self.latencies.push_back(Duration::from_micros(micros));
    }

    fn publish_metrics(&self) {
        if !self.online {
            return;
        }
        let status = self.engine.status();
        let metrics = Metrics {
            inferences: status.counters.requests,
            retried: status.counters.retried,
            untrusted: status.counters.untrusted,
            queue_full: status.counters.queue_full,
            queue_depth: status.queue_depth,
            queue_capacity: status.queue_capacity,
            latency_ms: median(&self.latencies).map(|latency| latency.as_secs_f64() * 1e3),
            thermal_level: thermal_name(status.thermal_level).to_owned(),
            replies_dropped: self.dropped,
        };
        let payload = serde_json::to_vec(&metrics).expect("numbers serialise").into();
        let content_type = Some(JSON.to_owned());
        let topic = self.topics.metrics();
        self.log_refusal(self.link.publish(Publication { topic, payload, content_type, ..Publication::default() }));
    }

    fn publish_discovery(&self) {
        let payload = discovery(&self.topics, &self.settings.version).to_string();
        self.publish_retained(self.topics.home_assistant(), payload.into());
    }

    fn publish_retained(&self, topic: String, payload: Bytes) {
        let publication = Publication { topic, payload, retain: true, acknowledged: true, ..Publication::default() };
        self.log_refusal(self.link.publish(publication));
    }

    fn subscribe(&self, filter: &str) {
        self.log_refusal(self.link.subscribe(filter));
    }

    /// What the link does not take now is renewed with the next connection.
    fn log_refusal(&self, result: std::result::Result<(), LinkError>) {
        if let Err(error) = result {
            warn!(%error, "the link to the broker refuses a message");
        }
    }
}

impl Ticket {
    fn failure(&self, failure: &Failure) -> Publication {
        let acknowledged = self.delivery.wants_acknowledgement();
        failure_reply(
            self.reply_topic.clone(),
            self.delivery.correlation.clone(),
            acknowledged,
            self.id.as_deref(),
            failure,
        )
    }
}

fn encode(answer: Answer, ticket: &Ticket) -> api::Result<Publication> {
    let binary = ticket.binary_reply;
    let outputs = answer.outputs.into_iter().map(|tensor| OutputTensor { tensor, binary }).collect();
    let reply = InferReply {
        id: ticket.id.clone(),
        model_name: answer.model,
        model_version: answer.version,
        verdict: answer.verdict.to_owned(),
        timing: answer.timing,
        seen: answer.seen,
        outputs,
    };
    let (payload, header_bytes) = reply.encode()?;
    let mut properties = only_reply();
    properties.extend(header_bytes.map(|bytes| (HEADER_LENGTH.to_owned(), bytes.to_string())));
    let content_type = if header_bytes.is_some() { OCTET_STREAM } else { JSON };
    Ok(Publication {
        topic: ticket.reply_topic.clone(),
        payload,
        retain: false,
        acknowledged: ticket.delivery.wants_acknowledgement(),
        content_type: Some(content_type.to_owned()),
        correlation: ticket.delivery.correlation.clone(),
        properties,
    })
}

fn failure_reply(
    topic: String,
    correlation: Option<Bytes>,
    acknowledged: bool,
    id: Option<&str>,
    failure: &Failure,
) -> Publication {
    let mut properties = only_reply();
    properties.push((ERROR.to_owned(), failure.code.name().to_owned()));
    Publication {
        topic,
        payload: encode_failure(id, failure),
        retain: false,
        acknowledged,
        content_type: Some(JSON.to_owned()),
        correlation,
        properties,
    }
}

/// The place of a reply that is the only one.
fn only_reply() -> Vec<(String, String)> {
    vec![(SEQ.to_owned(), "0".to_owned()), (FINAL.to_owned(), "1".to_owned())]
}

fn median(latencies: &VecDeque<Duration>) -> Option<Duration> {
    let mut sorted: Vec<_> = latencies.iter().copied().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

fn meta(model: &ModelInfo) -> ModelMeta {
    let tensor = |tensor: &TensorInfo| TensorMeta {
        name: tensor.name.clone(),
        datatype: request::datatype(tensor.dtype),
        // CAST: usize has at most 64 bits.
        shape: tensor.shape.iter().map(|&extent| extent as u64).collect(),
        scale: tensor.quantization.map(|(scale, _)| scale),
        zero_point: tensor.quantization.map(|(_, zero_point)| zero_point),
    };
    ModelMeta {
        name: model.name.clone(),
        version: model.version.clone(),
        task: model.task.clone(),
        license: model.license.clone(),
        takes_pictures: model.takes_pictures,
        labels: model.labels.clone(),
        inputs: model.inputs.iter().map(tensor).collect(),
        outputs: model.outputs.iter().map(tensor).collect(),
    }
}
