//! The link to an MQTT 5 broker.
//!
//! [`MqttLink`] and [`Event`] are all that a front end sees; the client library stays behind them. One task owns the
//! connection and does nothing else, so that neither a slow front end nor a full queue stops keep-alives.
//!
//! ```text
//!            ┌──────── connect ─────────┐ CONNACK
//!   waiting ─┤                          ├──────────▶ connected ── close ──▶ closed
//!      ▲     └──── refused, no route ───┤               │
//!      └── jittered exponential wait ◀──┴─── lost ◀─────┘
//! ```

mod link;
mod settings;
mod spool;

use bytes::Bytes;
use tokio::sync::oneshot;

pub use link::{Delivery, Event, GOODBYE, goodbye, open};
pub use settings::{HomeAssistant, Settings, Tls, or_provisioned};
pub use spool::{Limits, Sender, Spool};

/// A message to be published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publication {
    /// Topic.
    pub topic: String,
    /// Payload.
    pub payload: Bytes,
    /// Whether the broker keeps it for later subscribers.
    pub retain: bool,
    /// Whether it is sent until the broker has acknowledged it; otherwise at most once.
    pub acknowledged: bool,
    /// Content type.
    pub content_type: Option<String>,
    /// Correlation data.
    pub correlation: Option<Bytes>,
    /// User properties.
    pub properties: Vec<(String, String)>,
}

/// Why a message was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The queue is full: the broker is away or slow.
    #[error("the queue to the broker is full")]
    Full,
    /// The broker refuses packets of this size.
    #[error("a packet of about {bytes} bytes exceeds the broker's limit of {limit}")]
    TooLarge {
        /// Bytes of topic and payload.
        bytes: usize,
        /// The broker's limit.
        limit: usize,
    },
    /// A topic that cannot be published to or subscribed.
    #[error("{0:?} is no valid topic")]
    Topic(String),
    /// The link is closed.
    #[error("the link is closed")]
    Closed,
}

/// Completes when the broker has acknowledged a message.
pub type Receipt = oneshot::Receiver<()>;

/// A link to a broker. Nothing here waits.
pub trait MqttLink: Send + Sync + std::fmt::Debug {
    /// Queues a message.
    ///
    /// # Errors
    /// [`LinkError`].
    fn publish(&self, publication: Publication) -> Result<(), LinkError>;

    /// Queues a message, sent until the broker has acknowledged it. The receipt completes then; it fails where the message
    /// was lost with its session.
    ///
    /// # Errors
    /// [`LinkError`].
    fn publish_confirmed(&self, publication: Publication) -> Result<Receipt, LinkError>;

    /// Queues a subscription. To be repeated after each [`Event::Connected`].
    ///
    /// # Errors
    /// [`LinkError`].
    fn subscribe(&self, filter: &str) -> Result<(), LinkError>;

    /// Queues the end of a subscription.
    ///
    /// # Errors
    /// [`LinkError`].
    fn unsubscribe(&self, filter: &str) -> Result<(), LinkError>;

    /// Acknowledges a message that was received, after what was published before. A message of a connection that is
    /// lost meanwhile is left to the broker, which sends it again.
    fn acknowledge(&self, delivery: &Delivery);

    /// Says goodbye to the broker, after all that was published before. The event channel ends then.
    fn close(&self);
}
