//! The connection behind [`MqttLink`].

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rand::Rng;
use rumqttc::Outgoing;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{ConnAck, Packet, Publish, PublishProperties, SubscribeReasonCode};
use rumqttc::v5::{AsyncClient, ClientError, ConnectionError, Event as ClientEvent, EventLoop, Request, StateError};
use tokio::sync::{Notify, mpsc, oneshot};

use super::{LinkError, MqttLink, Publication, Receipt, Settings};
use crate::Result;

/// Events that wait for the front end.
const EVENTS: usize = 64;
/// Bytes that a packet has beside topic and payload, generously.
const PACKET_OVERHEAD: usize = 1024;
/// Levels of a topic that brokers take. SOURCE: EMQX `max_topic_levels` is 128, mosquitto `TOPIC_HIERARCHY_LIMIT` 200.
const TOPIC_LEVELS: usize = 128;

/// How long goodbye to the broker may take.
// TIMEOUT: a service has 90 s to stop; a broker that does not read must not use them up.
pub const GOODBYE: Duration = Duration::from_secs(5);

/// Closes the link and lets out what was published before, as far as the broker reads it in time.
pub async fn goodbye(link: &dyn MqttLink, events: &mut mpsc::Receiver<Event>) {
    link.close();
    // The link ends its events when all is out; a broker that does not read ends nothing.
    let _ = tokio::time::timeout(GOODBYE, async { while events.recv().await.is_some() {} }).await;
}

/// Something that happened on the link.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The broker accepted us. Subscriptions and retained state are to be renewed.
    Connected,
    /// The broker is away; the link tries again by itself.
    Disconnected {
        /// Why.
        reason: String,
        /// When it tries again.
        retry: Duration,
    },
    /// The broker refused a subscription.
    SubscriptionRefused {
        /// Why.
        reason: String,
    },
    /// A message arrived.
    Message(Box<Delivery>),
}

/// A message that arrived.
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    /// Topic.
    pub topic: String,
    /// Payload.
    pub payload: Bytes,
    /// Whether the broker sent it before.
    pub again: bool,
    /// Whether it was kept by the broker rather than sent now.
    pub retained: bool,
    /// Content type.
    pub content_type: Option<String>,
    /// Where the reply goes.
    pub response_topic: Option<String>,
    /// What comes back in the reply.
    pub correlation: Option<Bytes>,
    /// What is left of its lifetime, as the broker says.
    pub expiry: Option<Duration>,
    /// User properties.
    pub properties: Vec<(String, String)>,
    acknowledgement: Option<Acknowledgement>,
}

impl Delivery {
    /// Whether the broker waits for [`MqttLink::acknowledge`].
    pub fn wants_acknowledgement(&self) -> bool {
        self.acknowledgement.is_some()
    }

    /// The value of a user property.
    pub fn property(&self, key: &str) -> Option<&str> {
        self.properties.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

#[derive(Clone, Debug)]
struct Acknowledgement {
    connection: u64,
    /// Only quality of service and packet identifier matter.
    publish: Publish,
}

/// Opens a link. It connects by itself, and again when the connection is lost.
///
/// `in_flight` is how many acknowledged messages the broker may send ahead; `will` is topic and payload of the message
/// that it publishes, retained, when we vanish. Must be called inside a runtime.
///
/// # Errors
/// [`crate::Error::Setting`] or [`crate::Error::Read`] for settings that cannot work.
pub fn open(
    settings: &Settings,
    client: &str,
    in_flight: u16,
    will: (&str, &str),
) -> Result<(Arc<dyn MqttLink>, mpsc::Receiver<Event>)> {
    let options = settings.options(client, in_flight, will)?;
    let (requests, event_loop) = AsyncClient::new(options, settings.queue);
    let (acknowledge, acknowledgements) = mpsc::unbounded_channel();
    let (events, received) = mpsc::channel(EVENTS);
    let shared = Arc::new(Shared::default());
    let link = Link { requests: requests.clone(), acknowledge, shared: Arc::clone(&shared) };
    tokio::spawn(forward_acknowledgements(requests, acknowledgements, Arc::clone(&shared)));
    let connection = Connection {
        event_loop,
        events,
        shared,
        clean_start: settings.session_seconds == 0,
        backoff: Backoff::new(settings),
        unacknowledged: HashMap::new(),
        cleaned: 0,
    };
    tokio::spawn(connection.run());
    Ok((Arc::new(link), received))
}

/// What the link's tasks and its handles share.
#[derive(Debug)]
struct Shared {
    /// Connections so far; an acknowledgement belongs to one of them.
    connections: AtomicU64,
    /// The broker's limit on packets.
    packet_limit: AtomicUsize,
    closing: AtomicBool,
    /// Ends a wait between connections.
    close: Notify,
    /// Who waits for the acknowledgement of each message that the client library has not sent yet, in its order.
    unsent: Mutex<VecDeque<Confirm>>,
}

/// Whoever waits for an acknowledgement, if anybody.
type Confirm = Option<oneshot::Sender<()>>;

impl Default for Shared {
    fn default() -> Self {
        Self {
            connections: AtomicU64::new(0),
            packet_limit: AtomicUsize::new(usize::MAX),
            closing: AtomicBool::new(false),
            close: Notify::new(),
            unsent: Mutex::default(),
        }
    }
}

#[derive(Debug)]
struct Link {
    requests: AsyncClient,
    /// At most as many wait as the broker may send ahead.
    acknowledge: mpsc::UnboundedSender<Acknowledgement>,
    shared: Arc<Shared>,
}

impl Link {
    fn send(&self, publication: Publication, confirm: Confirm) -> Result<(), LinkError> {
        let Publication { topic, payload, retain, acknowledged, content_type, correlation, properties } = publication;
        // A packet over the broker's limit would cost the connection, again and again.
        let bytes = topic.len() + payload.len() + correlation.as_ref().map_or(0, Bytes::len) + PACKET_OVERHEAD;
        let limit = self.shared.packet_limit.load(Ordering::Relaxed);
        if bytes > limit {
            return Err(LinkError::TooLarge { bytes, limit });
        }
        let quality = if acknowledged { QoS::AtLeastOnce } else { QoS::AtMostOnce };
        let properties = PublishProperties {
            content_type,
            correlation_data: correlation,
            user_properties: properties,
            ..PublishProperties::default()
        };
        check_topic(&topic)?;
        let mut unsent = self.shared.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        self.requests.try_publish_with_properties(topic, quality, retain, payload, properties).map_err(link_error)?;
        unsent.push_back(confirm);
        Ok(())
    }
}

impl MqttLink for Link {
    fn publish(&self, publication: Publication) -> Result<(), LinkError> {
        self.send(publication, None)
    }

    fn publish_confirmed(&self, publication: Publication) -> Result<Receipt, LinkError> {
        let (confirm, receipt) = oneshot::channel();
        self.send(Publication { acknowledged: true, ..publication }, Some(confirm))?;
        Ok(receipt)
    }

    fn subscribe(&self, filter: &str) -> Result<(), LinkError> {
        self.requests.try_subscribe(filter, QoS::AtLeastOnce).map_err(link_error)
    }

    fn unsubscribe(&self, filter: &str) -> Result<(), LinkError> {
        self.requests.try_unsubscribe(filter).map_err(link_error)
    }

    fn acknowledge(&self, delivery: &Delivery) {
        if let Some(acknowledgement) = delivery.acknowledgement.clone() {
            // Without a receiver the link is closed, and the broker sends the message again some day.
            let _ = self.acknowledge.send(acknowledgement);
        }
    }

    fn close(&self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        // Where the queue is full the broker is away, and goodbye would not reach it.
        let _ = self.requests.try_disconnect();
        self.shared.close.notify_one();
    }
}

/// Refuses a topic that the broker would answer by closing the connection, again with each attempt to send it.
fn check_topic(topic: &str) -> Result<(), LinkError> {
    let fits = !topic.is_empty() && topic.len() <= usize::from(u16::MAX) && topic.split('/').count() <= TOPIC_LEVELS;
    let allowed = |c: char| !matches!(c, '+' | '#') && !c.is_control() && !is_noncharacter(c);
    if fits && topic.chars().all(allowed) { Ok(()) } else { Err(LinkError::Topic(topic.to_owned())) }
}

/// What Unicode never assigns. SOURCE: MQTT 5.0, 1.5.4: a receiver may take it for a malformed packet.
fn is_noncharacter(c: char) -> bool {
    matches!(c, '\u{fdd0}'..='\u{fdef}') || u32::from(c) & 0xfffe == 0xfffe
}

fn link_error(error: ClientError) -> LinkError {
    match error {
        ClientError::TryRequest(Request::Publish(publish)) if check_topic(&text(&publish.topic)).is_err() => {
            LinkError::Topic(text(&publish.topic))
        }
        _ => LinkError::Full,
    }
}

/// Sends acknowledgements in order. Not done by the connection's task, which must not wait for its own queue.
async fn forward_acknowledgements(
    requests: AsyncClient,
    mut acknowledgements: mpsc::UnboundedReceiver<Acknowledgement>,
    shared: Arc<Shared>,
) {
    while let Some(Acknowledgement { connection, publish }) = acknowledgements.recv().await {
        if connection == shared.connections.load(Ordering::Relaxed) && requests.ack(&publish).await.is_err() {
            return;
        }
    }
}

struct Connection {
    event_loop: EventLoop,
    events: mpsc::Sender<Event>,
    shared: Arc<Shared>,
    /// Whether each connection starts without the session of the one before.
    clean_start: bool,
    backoff: Backoff,
    /// Who waits for the acknowledgement of each message that is on its way, by packet identifier.
    unacknowledged: HashMap<u16, Confirm>,
    /// How many of the unsent messages would be lost with the session.
    cleaned: usize,
}

impl Connection {
    async fn run(mut self) {
        loop {
            let event = match self.event_loop.poll().await {
                Ok(ClientEvent::Incoming(Packet::ConnAck(connack))) => Some(self.connected(&connack)),
                Ok(ClientEvent::Incoming(Packet::Publish(publish))) => {
                    let connection = self.shared.connections.load(Ordering::Relaxed);
                    Some(Event::Message(Box::new(delivery(publish, connection))))
                }
                Ok(ClientEvent::Incoming(Packet::SubAck(suback))) => refusal(&suback.return_codes),
                Ok(ClientEvent::Incoming(Packet::PubAck(ack))) => {
                    self.confirm(ack.pkid);
                    None
                }
                Ok(ClientEvent::Outgoing(Outgoing::Publish(packet))) => {
                    self.sent(packet);
                    None
                }
                Ok(ClientEvent::Outgoing(Outgoing::Disconnect)) => return,
                Ok(_) => None,
                Err(error) => {
                    if !self.wait(&error).await {
                        return;
                    }
                    None
                }
            };
            let Some(event) = event else { continue };
            if self.events.send(event).await.is_err() {
                return;
            }
        }
    }

    fn connected(&mut self, connack: &ConnAck) -> Event {
        let limit = connack.properties.as_ref().and_then(|properties| properties.max_packet_size);
        // CAST: usize has at least 32 bits on every machine that runs this.
        self.shared.packet_limit.store(limit.map_or(usize::MAX, |limit| limit as usize), Ordering::Relaxed);
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        if !connack.session_present {
            self.lose_session();
        }
        self.event_loop.options.set_clean_start(self.clean_start);
        self.backoff.reset();
        Event::Connected
    }

    /// A message went out. One that goes out again, in a session that continues, keeps its packet identifier.
    fn sent(&mut self, packet: u16) {
        if self.unacknowledged.contains_key(&packet) {
            return;
        }
        let confirm = self.shared.unsent.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        self.cleaned = self.cleaned.saturating_sub(1);
        if packet != 0 {
            self.unacknowledged.insert(packet, confirm.flatten());
        }
    }

    fn confirm(&mut self, packet: u16) {
        if let Some(Some(confirm)) = self.unacknowledged.remove(&packet) {
            // Whoever waited may have given up.
            let _ = confirm.send(());
        }
    }

    /// The client library drops what was queued when the connection was lost. Dropping whoever waits tells them.
    fn lose_session(&mut self) {
        self.unacknowledged.clear();
        let mut unsent = self.shared.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = self.cleaned.min(unsent.len());
        unsent.drain(..lost);
        self.cleaned = 0;
    }

    /// Waits before the next attempt. False where there is none.
    async fn wait(&mut self, error: &ConnectionError) -> bool {
        self.cleaned = self.shared.unsent.lock().unwrap_or_else(PoisonError::into_inner).len();
        // A packet that one side cannot read would come again with the session.
        if is_protocol_error(error) {
            self.event_loop.options.set_clean_start(true);
            self.event_loop.pending.clear();
            self.lose_session();
        }
        let closing = || self.shared.closing.load(Ordering::Relaxed);
        if closing() || matches!(error, ConnectionError::RequestsDone) {
            return false;
        }
        let retry = self.backoff.next();
        let event = Event::Disconnected { reason: error.to_string(), retry };
        if self.events.send(event).await.is_err() {
            return false;
        }
        tokio::select! {
            () = tokio::time::sleep(retry) => {}
            () = self.shared.close.notified() => {}
        }
        !closing()
    }
}

fn delivery(publish: Publish, connection: u64) -> Delivery {
    let acknowledgement = (publish.qos != QoS::AtMostOnce).then(|| Acknowledgement {
        connection,
        publish: Publish { qos: publish.qos, pkid: publish.pkid, ..Publish::default() },
    });
    let properties = publish.properties.unwrap_or_default();
    Delivery {
        topic: text(&publish.topic),
        payload: publish.payload,
        again: publish.dup,
        retained: publish.retain,
        content_type: properties.content_type,
        response_topic: properties.response_topic,
        // A copy: replies are kept for a while, and the packet must not be kept with them.
        correlation: properties.correlation_data.map(|data| Bytes::copy_from_slice(&data)),
        expiry: properties.message_expiry_interval.map(|seconds| Duration::from_secs(seconds.into())),
        properties: properties.user_properties,
        acknowledgement,
    }
}

fn is_protocol_error(error: &ConnectionError) -> bool {
    matches!(
        error,
        ConnectionError::MqttState(
            StateError::Deserialization(_)
                | StateError::WrongPacket
                | StateError::Unsolicited(_)
                | StateError::CollisionTimeout
                | StateError::InvalidAlias { .. }
                | StateError::OutgoingPacketTooLarge { .. }
                | StateError::IncomingPacketTooLarge { .. }
        )
    )
}

fn refusal(codes: &[SubscribeReasonCode]) -> Option<Event> {
    let refused = codes.iter().find(|code| !matches!(code, SubscribeReasonCode::Success(_)))?;
    Some(Event::SubscriptionRefused { reason: format!("{refused:?}") })
}

fn text(topic: &[u8]) -> String {
    String::from_utf8_lossy(topic).into_owned()
}

/// Waits between attempts: doubling up to a limit, and random within the upper half, so that a fleet does not come back
/// all at once.
#[derive(Debug)]
struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    fn new(settings: &Settings) -> Self {
        let first = Duration::from_millis(settings.first_wait_ms);
        Self { first, longest: Duration::from_millis(settings.longest_wait_ms), next: first }
    }

    fn reset(&mut self) {
        self.next = self.first;
    }

    fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.longest);
        wait.mul_f64(rand::rng().random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_start_over_after_success() {
        let mut settings = Settings::new("mqtt://broker");
        (settings.first_wait_ms, settings.longest_wait_ms) = (100, 450);
        let mut backoff = Backoff::new(&settings);
        for longest in [100, 200, 400, 450, 450] {
            let wait = backoff.next();
            let longest = Duration::from_millis(longest);
            assert!(longest / 2 <= wait && wait <= longest, "{wait:?} of {longest:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(100));
    }

    #[test]
    fn a_topic_that_the_broker_would_punish_is_refused() {
        let deep = "a/".repeat(TOPIC_LEVELS);
        for topic in ["", "a/+", "a/#", "a\0b", "a\u{1}b", "a\u{85}b", "a\u{fdd0}", "a\u{1fffe}", &deep] {
            assert_eq!(check_topic(topic), Err(LinkError::Topic(topic.into())));
        }
        check_topic("a/b").unwrap();
        check_topic(deep.trim_end_matches('/')).unwrap();
    }

    #[test]
    fn correlation_data_does_not_keep_the_packet() {
        let packet = Bytes::from(vec![7; 100]);
        let correlation_data = Some(packet.slice(..4));
        let properties = Some(PublishProperties { correlation_data, ..PublishProperties::default() });
        let delivery = delivery(Publish { payload: packet.slice(4..), properties, ..Publish::default() }, 1);
        let correlation = delivery.correlation.unwrap();
        assert_eq!(correlation, packet[..4]);
        assert!(correlation.is_unique());
    }

    #[tokio::test]
    async fn a_link_without_a_broker_takes_messages_until_its_queue_is_full_and_closes() {
        // Nobody else gets the port meanwhile; whoever connects is left at once.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let mut settings = Settings::new(format!("mqtt://127.0.0.1:{port}"));
        settings.queue = 2;
        settings.first_wait_ms = 600_000;
        settings.longest_wait_ms = 600_000;
        let (link, mut events) = open(&settings, "c", 1, ("will", "offline")).unwrap();
        assert!(matches!(events.recv().await, Some(Event::Disconnected { .. })));
        let message = || Publication { topic: "t".into(), ..Publication::default() };
        assert_eq!([0; 3].map(|_| link.publish(message())), [Ok(()), Ok(()), Err(LinkError::Full)]);
        link.close();
        assert!(events.recv().await.is_none());
    }
}
