//! The MQTT front end: what is desired comes in, where the update stands goes out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::mqtt::{
    DesiredModel, DesiredUpdate, INSTALL, ModelReport, OFFLINE, ONLINE, Topics, UpdateReport, update_discovery,
};
use bytes::Bytes;
use kit::mqtt::{Delivery, Event, LinkError, MqttLink, Publication, goodbye};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::agent::{Handle, Status};
use crate::models::Models;
use crate::offer::{Offer, Source};
use crate::state::State;

/// The shortest time between two reports of progress alone.
// TIMEOUT: RAUC says more than anybody reads over a network that may be paid by the byte.
const REPORTS: Duration = Duration::from_secs(1);

/// Listens to a broker until `stop` completes. `link` and `events` come from [`kit::mqtt::open`].
///
/// # Errors
/// A link that ends by itself.
pub(crate) async fn run(
    (handle, models): (Handle, Models),
    topics: Topics,
    link: Arc<dyn MqttLink>,
    mut events: mpsc::Receiver<Event>,
    home_assistant: bool,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let mut status = handle.status();
    let mut reports = models.reports();
    let mut front = FrontEnd {
        handle,
        models,
        topics,
        link,
        home_assistant,
        online: false,
        told: None,
        told_models: BTreeMap::new(),
    };
    let mut report = tokio::time::interval(REPORTS);
    report.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            event = events.recv() => front.link_event(event.context("the link to the broker ended")?).await,
            changed = status.changed() => {
                changed.context("the agent ended")?;
                front.report(false);
            }
            changed = reports.changed() => {
                changed.context("the models ended")?;
                front.report_models();
            }
            _ = report.tick() => front.report(true),
            () = &mut stop => break,
        }
    }
    front.publish(front.topics.update_availability(), OFFLINE.into());
    goodbye(&*front.link, &mut events).await;
    Ok(())
}

struct FrontEnd {
    handle: Handle,
    models: Models,
    topics: Topics,
    link: Arc<dyn MqttLink>,
    home_assistant: bool,
    online: bool,
    /// What subscribers know.
    told: Option<UpdateReport>,
    told_models: BTreeMap<String, ModelReport>,
}

impl FrontEnd {
    async fn link_event(&mut self, event: Event) {
        match event {
            Event::Connected => {
                self.online = true;
                self.arrive();
                self.handle.broker(true).await;
            }
            Event::Disconnected { reason, retry } => {
                if std::mem::replace(&mut self.online, false) {
                    warn!(message_id = kit::log::BROKER_LOST, reason, ?retry, "the broker is away");
                }
                self.handle.broker(false).await;
            }
            Event::SubscriptionRefused { reason } => warn!(reason, "the broker refuses a subscription"),
            Event::Message(delivery) => {
                self.receive(&delivery).await;
                self.link.acknowledge(&delivery);
            }
            _ => {}
        }
    }

    /// Renews what a broker that forgot us does not know.
    fn arrive(&mut self) {
        info!("connected to the broker");
        for filter in [self.topics.update_desired(), self.topics.update_command(), self.topics.model_desired("+")] {
            log_refusal(self.link.subscribe(&filter));
        }
        if self.home_assistant {
            log_refusal(self.link.subscribe(Topics::HOME_ASSISTANT));
            self.publish_discovery();
        }
        self.publish(self.topics.update_availability(), ONLINE.into());
        self.told = None;
        self.report(true);
        self.told_models.clear();
        self.report_models();
    }

    async fn receive(&mut self, delivery: &Delivery) {
        if delivery.topic == Topics::HOME_ASSISTANT {
            if delivery.payload == ONLINE {
                self.publish_discovery();
            }
        } else if delivery.topic == self.topics.update_command() {
            // A retained order is one that was obeyed long ago.
            if delivery.payload == INSTALL && !delivery.retained {
                self.log_answer(self.handle.proceed().await);
            }
        } else if let Some(model) = self.topics.desired_model(&delivery.topic) {
            let desired = DesiredModel::decode(&delivery.payload);
            self.log_answer(desired.map(|desired| self.models.desire(model, desired)));
        } else if delivery.topic == self.topics.update_desired() {
            let answer = self.desire(&delivery.payload).await;
            self.log_answer(answer);
        }
    }

    async fn desire(&self, payload: &[u8]) -> api::Result<()> {
        match DesiredUpdate::decode(payload)? {
            None => self.handle.withdraw(Source::Mqtt).await,
            Some(desired) => {
                let offer = Offer::desired(desired).map_err(|failure| api::Failure::invalid_args(failure.message))?;
                self.handle.offer(offer).await
            }
        }
    }

    fn log_answer(&self, answer: api::Result<()>) {
        if let Err(failure) = answer {
            warn!(%failure, "what is desired over MQTT is not done");
        }
    }

    /// Reports where the update stands, if that is news; the percentage alone only where `percentage` says so.
    fn report(&mut self, percentage: bool) {
        if !self.online {
            return;
        }
        let report = report(&self.handle.status().borrow());
        let without_progress =
            |report: &UpdateReport| UpdateReport { update_percentage: None, message: String::new(), ..report.clone() };
        let news = match &self.told {
            None => true,
            Some(told) if percentage => *told != report,
            Some(told) => without_progress(told) != without_progress(&report),
        };
        if news {
            let payload = serde_json::to_vec(&report).expect("text and numbers serialise");
            self.publish(self.topics.update_state(), payload.into());
            self.told = Some(report);
        }
    }

    /// Reports where each model stands, if that is news.
    fn report_models(&mut self) {
        if !self.online {
            return;
        }
        let now = self.models.reports().borrow().clone();
        for (model, report) in now.iter().filter(|(model, report)| self.told_models.get(*model) != Some(report)) {
            let payload = serde_json::to_vec(report).expect("text serialises");
            self.publish(self.topics.model_report(model), payload.into());
        }
        self.told_models = now;
    }

    fn publish_discovery(&self) {
        let payload = update_discovery(&self.topics, env!("CARGO_PKG_VERSION")).to_string();
        self.publish(self.topics.home_assistant_update(), payload.into());
    }

    fn publish(&self, topic: String, payload: Bytes) {
        let publication = Publication { topic, payload, retain: true, acknowledged: true, ..Publication::default() };
        log_refusal(self.link.publish(publication));
    }
}

/// What the link does not take now is renewed with the next connection.
fn log_refusal(result: Result<(), LinkError>) {
    if let Err(error) = result {
        warn!(%error, "the link to the broker refuses a message");
    }
}

/// Where the update stands, as subscribers see it.
fn report(status: &Status) -> UpdateReport {
    let (percent, message, _) = status.progress.clone();
    let installing = matches!(status.state, State::Installing { .. });
    let kernel_tail = match &status.state {
        State::RolledBack { rollback, .. } => rollback.kernel_tail.clone(),
        _ => Vec::new(),
    };
    UpdateReport {
        state: status.state.name().to_owned(),
        channel: status.channel.clone().unwrap_or_default(),
        installed_version: status.version.clone(),
        latest_version: status.target_version(),
        in_progress: matches!(status.state, State::Checking { .. } | State::Installing { .. }),
        update_percentage: installing.then_some(percent),
        message,
        reason: status.state.reason(),
        waiting: status.waiting.clone(),
        slot: status.slot.clone(),
        kernel_tail,
    }
}
