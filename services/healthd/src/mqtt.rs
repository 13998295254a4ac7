//! The MQTT front end: a retained summary, and incidents that wait on disk until the broker has them.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use api::mqtt::{HealthIncident, HealthSummary, JSON, OFFLINE, ONLINE, Topics, health_discovery};
use kit::mqtt::{Event, MqttLink, Publication, Sender, Spool};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::config::Config;

/// The link to the broker and what waits for it. Without a broker nothing waits.
#[derive(Debug)]
pub(crate) struct Front {
    link: Option<(Arc<dyn MqttLink>, mpsc::Receiver<Event>, Topics)>,
    sender: Option<Sender>,
    home_assistant: bool,
    online: bool,
    /// Connections so far.
    pub(crate) connections: u64,
    summary: Option<HealthSummary>,
}

impl Front {
    pub(crate) fn open(config: &Config) -> Result<Self> {
        let mut front = Self {
            link: None,
            sender: None,
            home_assistant: config.home_assistant.enabled,
            online: false,
            connections: 0,
            summary: None,
        };
        let Some(settings) = &config.mqtt else { return Ok(front) };
        let device = kit::identity::device(config.device_name.as_deref())?;
        let topics = Topics::new(&device)?;
        let will = (topics.health_state(), OFFLINE);
        let (link, events) = kit::mqtt::open(settings, &format!("cairn-healthd-{device}"), 16, (&will.0, will.1))?;
        let spool = Spool::open(&config.state.join("spool"), config.spool).context("open the spool")?;
        front.link = Some((link, events, topics));
        front.sender = Some(Sender::new(spool));
        Ok(front)
    }

    /// Whether the broker is there; nothing where none is configured.
    pub(crate) fn connected(&self) -> Option<bool> {
        self.link.as_ref().map(|_| self.online)
    }

    /// Messages that wait, and that were dropped.
    pub(crate) fn waiting(&self) -> (u64, u64) {
        let spool = self.sender.as_ref().map(Sender::spool);
        spool.map_or((0, 0), |spool| (u64::try_from(spool.len()).unwrap_or(u64::MAX), spool.dropped()))
    }

    /// Waits for the next thing that happens on the link and deals with it. May be dropped at any time.
    pub(crate) async fn step(&mut self) -> Result<()> {
        let (Some((_, events, _)), Some(sender)) = (&mut self.link, &mut self.sender) else {
            return std::future::pending().await;
        };
        let event = tokio::select! {
            event = events.recv() => Some(event.context("the link to the broker ended")?),
            () = sender.confirmed() => None,
        };
        match event {
            Some(Event::Connected) => {
                info!("connected to the broker");
                self.online = true;
                self.connections += 1;
                self.arrive();
            }
            Some(Event::Disconnected { reason, retry }) => {
                self.online = false;
                warn!(message_id = kit::log::BROKER_LOST, reason, ?retry, "the broker is away");
            }
            Some(Event::Message(delivery)) => {
                let asks = delivery.topic == Topics::HOME_ASSISTANT && delivery.payload == ONLINE;
                if let Some((link, ..)) = &self.link {
                    link.acknowledge(&delivery);
                }
                if asks {
                    self.publish_discovery();
                }
            }
            _ => {}
        }
        self.offer();
        Ok(())
    }

    /// Renews what a broker that forgot us does not know.
    fn arrive(&mut self) {
        if self.home_assistant {
            if let Some((link, ..)) = &self.link
                && let Err(error) = link.subscribe(Topics::HOME_ASSISTANT)
            {
                warn!(%error, "Home Assistant is not listened to");
            }
            self.publish_discovery();
        }
        if let Some(summary) = self.summary.take() {
            self.summarise(summary);
        }
        self.publish_retained(Topics::health_state, ONLINE.into());
    }

    /// Publishes a summary, unless the broker has the same.
    pub(crate) fn summarise(&mut self, summary: HealthSummary) {
        let same = self.summary.as_ref() == Some(&summary);
        if self.online && !same {
            let payload = serde_json::to_string(&summary).expect("text and numbers serialise");
            self.publish_retained(Topics::health_summary, payload);
        }
        self.summary = Some(summary);
    }

    /// Reports an incident, now or when the broker is there again.
    pub(crate) fn report(&mut self, incident: &HealthIncident) {
        let (Some((.., topics)), Some(sender)) = (&self.link, &mut self.sender) else { return };
        let payload = serde_json::to_vec(incident).expect("text and numbers serialise").into();
        sender.push(Publication {
            topic: topics.health_incident(),
            payload,
            content_type: Some(JSON.into()),
            properties: vec![("id".into(), incident.id.clone())],
            ..Publication::default()
        });
        self.offer();
    }

    fn offer(&mut self) {
        if let (Some((link, ..)), Some(sender), true) = (&self.link, &mut self.sender, self.online) {
            sender.offer(&**link);
        }
    }

    fn publish_discovery(&self) {
        let discovery = |topics: &Topics| health_discovery(topics, env!("CARGO_PKG_VERSION")).to_string();
        if let Some((.., topics)) = &self.link {
            self.publish_retained(Topics::home_assistant_health, discovery(topics));
        }
    }

    fn publish_retained(&self, topic: impl Fn(&Topics) -> String, payload: String) {
        let Some((link, _, topics)) = &self.link else { return };
        let publication = Publication {
            topic: topic(topics),
            payload: payload.into(),
            retain: true,
            acknowledged: true,
            ..Publication::default()
        };
        // What the link does not take now is renewed with the next connection.
        if let Err(error) = link.publish(publication) {
            warn!(%error, "the link to the broker refuses a message");
        }
    }

    /// Says goodbye, as far as the broker listens.
    pub(crate) async fn leave(&mut self) {
        self.publish_retained(Topics::health_state, OFFLINE.into());
        let Some((link, events, _)) = &mut self.link else { return };
        kit::mqtt::goodbye(&**link, events).await;
    }
}
