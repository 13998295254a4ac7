//! The MQTT front end.
//!
//! ```text
//! delivery ─▶ chat ─▶ answer, piece by piece ─▶ replies, at most one in 50 ms ─▶ the last one ─▶ acknowledgement
//! ```
//! Every request that says where its replies go is answered, errors too, in the order in which they come. Nothing here
//! waits for the broker: text that the link does not take goes with the next reply. A request that comes again while it is
//! answered is answered once: a broker sends it again after each lost connection.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use api::mqtt::{
    ChatModelMeta, ChatReply, ERROR, Envelope, FINAL, JSON, OFFLINE, ONLINE, SEQ, Topics, chat_envelope, decode_chat,
    is_segment, llm_discovery,
};
use api::{ErrorCode, Failure};
use bytes::Bytes;
use kit::mqtt::{Delivery, Event, GOODBYE, LinkError, MqttLink, Publication, goodbye};
use tokio::sync::{broadcast, mpsc};
use tokio::task::{JoinError, JoinSet};
use tracing::{Instrument as _, debug, info, warn};

use crate::generate::{Answer, Asked, Piece, ask, generate};
use crate::service::{Model, Service};

/// The shortest time between two replies to one request.
const COALESCE: Duration = Duration::from_millis(50);

/// Requests at the same time, with those that wait for the link to take their refusal. More are refused without waiting;
/// the broker does not send so many that it wants acknowledged.
const REQUESTS: usize = 64;

/// What makes two requests the same: where the replies go, what the client calls it, and a hash of what it asks.
type Key = (String, Bytes, u64);

/// Serves requests from a broker until `stop` completes.
///
/// # Errors
/// Where the link ends by itself.
pub(crate) async fn run(
    service: Service,
    topics: Topics,
    link: Arc<dyn MqttLink>,
    mut events: mpsc::Receiver<Event>,
    max_payload_bytes: usize,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let mut changes = service.events();
    let mut front = Front {
        service,
        topics,
        link,
        max_payload_bytes,
        announced: BTreeMap::new(),
        running: JoinSet::new(),
        again: HashMap::new(),
        hasher: RandomState::new(),
    };
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            event = events.recv() => front.link_event(event.context("the link to the broker ended")?),
            change = changes.recv() => match change {
                Err(broadcast::error::RecvError::Closed) => break,
                // What happened does not matter: the service is asked what it holds.
                _ => front.announce(),
            },
            Some(ended) = front.running.join_next() => front.ended(ended),
            () = &mut stop => break,
        }
    }
    // What runs is cut off, and says so.
    front.running.shutdown().await;
    front.retain(front.topics.llm_state(), OFFLINE.into());
    goodbye(&*front.link, &mut events).await;
    Ok(())
}

#[derive(Debug)]
struct Front {
    service: Service,
    topics: Topics,
    link: Arc<dyn MqttLink>,
    max_payload_bytes: usize,
    /// What subscribers know of each model.
    announced: BTreeMap<String, ChatModelMeta>,
    running: JoinSet<Option<Key>>,
    /// Named requests that run, with deliveries of the same.
    again: HashMap<Key, Vec<Delivery>>,
    hasher: RandomState,
}

impl Front {
    fn link_event(&mut self, event: Event) {
        match event {
            Event::Connected => {
                info!("connected to the broker");
                self.arrive();
            }
            Event::Disconnected { reason, retry } => {
                warn!(message_id = kit::log::BROKER_LOST, reason, ?retry, "the broker is away");
            }
            Event::SubscriptionRefused { reason } => warn!(reason, "the broker refuses a subscription"),
            Event::Message(delivery) => self.receive(*delivery),
            _ => {}
        }
    }

    /// Renews what a broker that forgot us does not know.
    fn arrive(&mut self) {
        self.log_refusal(self.link.subscribe(&self.topics.llm_request("+")));
        if self.service.config().home_assistant.enabled {
            self.log_refusal(self.link.subscribe(Topics::HOME_ASSISTANT));
            self.discover();
        }
        self.announced.clear();
        self.announce();
        self.retain(self.topics.llm_state(), ONLINE.into());
    }

    fn discover(&self) {
        let payload = llm_discovery(&self.topics, env!("CARGO_PKG_VERSION")).to_string();
        self.retain(self.topics.home_assistant_llm(), payload.into());
    }

    /// Tells subscribers which models there are.
    fn announce(&mut self) {
        // A name that is no topic level can be reached over D-Bus and HTTP only.
        let models = self.service.models().into_iter().filter(|model| is_segment(&model.name));
        let known: BTreeMap<_, _> = models.map(|model| (model.name.clone(), meta(&model))).collect();
        for name in self.announced.keys().filter(|name| !known.contains_key(*name)) {
            self.retain(self.topics.llm_meta(name), Bytes::new());
        }
        for (name, meta) in known.iter().filter(|(name, meta)| self.announced.get(*name) != Some(*meta)) {
            let payload = serde_json::to_vec(meta).expect("text and numbers serialise");
            self.retain(self.topics.llm_meta(name), payload.into());
        }
        self.announced = known;
    }

    fn receive(&mut self, mut delivery: Delivery) {
        if delivery.topic == Topics::HOME_ASSISTANT {
            if delivery.payload == ONLINE {
                self.discover();
            }
            return self.link.acknowledge(&delivery);
        }
        // A retained request is one that somebody was answered long ago.
        let model = self.topics.llm_model(&delivery.topic).filter(|_| !delivery.retained).map(str::to_owned);
        let Some(model) = model else { return self.link.acknowledge(&delivery) };
        let (len, limit) = (delivery.payload.len(), self.max_payload_bytes);
        let (envelope, chat) = if len > limit {
            let failure = Failure::invalid_args(format!("the payload has {len} bytes, the limit is {limit}"));
            (Envelope::default(), Err(failure))
        } else {
            (chat_envelope(&delivery.payload), decode_chat(&delivery.payload))
        };
        let Some(topic) = delivery.response_topic.clone().or(envelope.reply_to) else {
            debug!(model, "a request that does not say where its replies go is ignored");
            return self.link.acknowledge(&delivery);
        };
        let name = delivery.correlation.clone().or_else(|| envelope.id.clone().map(Bytes::from));
        let asked = self.hasher.hash_one((&delivery.topic, &delivery.payload));
        let key = name.map(|name| (topic.clone(), name, asked));
        if let Some(others) = key.as_ref().and_then(|key| self.again.get_mut(key)) {
            // Acknowledged together with the first one.
            return others.extend(delivery.wants_acknowledgement().then_some(delivery));
        }
        // Nothing needs it any more, and a request may wait for long.
        delivery.payload = Bytes::new();
        let mut replies = Replies { link: Arc::clone(&self.link), delivery, topic, id: envelope.id, seq: 0 };
        while let Some(ended) = self.running.try_join_next() {
            self.ended(ended);
        }
        if self.running.len() >= REQUESTS {
            let failure = Failure::new(ErrorCode::QueueFull, format!("{REQUESTS} requests are being answered"));
            replies.send(ChatReply { r#final: true, error: Some(failure), ..ChatReply::default() });
            return self.link.acknowledge(&replies.delivery);
        }
        self.again.extend(key.clone().map(|key| (key, Vec::new())));
        let span = tracing::info_span!("request", id = replies.id, model, transport = "mqtt");
        let service = self.service.clone();
        let expiry = replies.delivery.expiry.and_then(|expiry| Instant::now().checked_add(expiry));
        // Here, not where it is answered: requests are answered in the order in which they came.
        let asked = chat.and_then(|chat| {
            let deadline = crate::dbus::deadline(&chat.options, Instant::now())?;
            let deadline = [deadline, expiry].into_iter().flatten().min();
            Ok((ask(&service, &model, chat)?, deadline))
        });
        let answer = async move {
            serve(service, asked, replies).await;
            key
        };
        self.running.spawn(answer.instrument(span));
    }

    /// A request is answered, and so are those that were the same.
    fn ended(&mut self, ended: Result<Option<Key>, JoinError>) {
        let others = ended.ok().flatten().and_then(|key| self.again.remove(&key)).unwrap_or_default();
        others.iter().for_each(|delivery| self.link.acknowledge(delivery));
    }

    fn retain(&self, topic: String, payload: Bytes) {
        let publication = Publication { topic, payload, retain: true, acknowledged: true, ..Publication::default() };
        self.log_refusal(self.link.publish(publication));
    }

    /// What the link does not take now is renewed with the next connection.
    fn log_refusal(&self, result: Result<(), LinkError>) {
        if let Err(error) = result {
            warn!(%error, "the link to the broker refuses a message");
        }
    }
}

/// The replies to one request.
#[derive(Debug)]
struct Replies {
    link: Arc<dyn MqttLink>,
    delivery: Delivery,
    topic: String,
    id: Option<String>,
    seq: u64,
}

impl Replies {
    /// Sends one reply. Returns whether the link took it.
    fn send(&mut self, reply: ChatReply) -> bool {
        let (last, error) = (reply.r#final, reply.error.as_ref().map(|failure| failure.code.name().to_owned()));
        let reply = ChatReply { id: self.id.clone(), seq: self.seq, ..reply };
        let mut properties = vec![(SEQ.to_owned(), self.seq.to_string())];
        properties.push((FINAL.to_owned(), u8::from(last).to_string()));
        properties.extend(error.map(|code| (ERROR.to_owned(), code)));
        let sent = self.link.publish(Publication {
            topic: self.topic.clone(),
            payload: serde_json::to_vec(&reply).expect("text and numbers serialise").into(),
            retain: false,
            acknowledged: self.delivery.wants_acknowledgement(),
            content_type: Some(JSON.to_owned()),
            correlation: self.delivery.correlation.clone(),
            properties,
        });
        match sent {
            Ok(()) => self.seq += 1,
            Err(LinkError::Full) => return false,
            // It can never be sent.
            Err(error) => debug!(%error, "a reply is dropped"),
        }
        true
    }
}

async fn serve(service: Service, asked: api::Result<(Asked, Option<Instant>)>, mut replies: Replies) {
    let (pieces, received) = mpsc::unbounded_channel();
    let answer = async {
        let (asked, deadline) = asked?;
        // The last reply is out when all pieces are; the channel ends with this future.
        let give = move |piece| {
            // Whoever receives them lives as long.
            let _ = pieces.send(piece);
            Ok(())
        };
        generate(&service, asked, deadline, give).await
    };
    let (result, text) = tokio::join!(answer, relay(&mut replies, received));
    service.count(&result);
    match &result {
        Ok(answer) => debug!(tokens = answer.usage.completion_tokens, "answered"),
        Err(failure) => debug!(%failure, "not answered"),
    }
    finish(&mut replies, result, text).await;
    replies.link.acknowledge(&replies.delivery);
}

/// Sends pieces as they come, not too often. Returns the text that was not sent yet when they end.
async fn relay(replies: &mut Replies, mut pieces: mpsc::UnboundedReceiver<Piece>) -> String {
    let mut text = String::new();
    let mut reading = None;
    while let Some(piece) = pieces.recv().await {
        let next = tokio::time::Instant::now() + COALESCE;
        take(piece, &mut text, &mut reading);
        let gathered = tokio::time::timeout_at(next, async {
            while let Some(piece) = pieces.recv().await {
                take(piece, &mut text, &mut reading);
            }
        });
        if gathered.await.is_ok() {
            return text;
        }
        let said = !text.is_empty() || reading.is_some();
        if said && replies.send(ChatReply { text: text.clone(), reading, ..ChatReply::default() }) {
            text.clear();
            reading = None;
        }
    }
    text
}

fn take(piece: Piece, text: &mut String, reading: &mut Option<(u64, u64)>) {
    match piece {
        Piece::Waiting(_) => {}
        Piece::Reading(read, all) => *reading = Some((read, all)),
        Piece::Text(more) => text.push_str(&more),
    }
}

/// Sends the last reply, as soon as the link takes it.
async fn finish(replies: &mut Replies, result: api::Result<Answer>, text: String) {
    let reply = match result {
        Ok(answer) => ChatReply {
            text,
            r#final: true,
            finish_reason: Some(answer.finish_reason),
            usage: Some(answer.usage),
            ..ChatReply::default()
        },
        Err(failure) => ChatReply { text, r#final: true, error: Some(failure), ..ChatReply::default() },
    };
    let sent = async {
        while !replies.send(reply.clone()) {
            tokio::time::sleep(COALESCE).await;
        }
    };
    if tokio::time::timeout(GOODBYE, sent).await.is_err() {
        let failure = Failure::new(ErrorCode::Internal, "the link to the broker is full");
        debug!(%failure, "the last reply is dropped");
    }
}

fn meta(model: &Model) -> ChatModelMeta {
    let (header, shown) = (&model.header, model.shown());
    ChatModelMeta {
        name: model.name.clone(),
        architecture: header.architecture.clone(),
        quantization: header.quantization.to_owned(),
        parameters: header.parameters,
        context_length: header.context_length,
        state: shown.state.to_owned(),
        placement: shown.placement.map(|placement| placement.name()).unwrap_or_default(),
    }
}
