//! A client of request and response over MQTT 5, as a customer would write it.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use rumqttc::NetworkOptions;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, Publish, PublishProperties};
use rumqttc::v5::{AsyncClient, Event, EventLoop, MqttOptions};
use tokio::sync::mpsc;

/// Messages that may wait in a client.
const QUEUE: usize = 64;
/// The largest packet that a client takes; the library's own limit of 10 KiB would end the connection.
const LARGEST_PACKET: u32 = 64 << 20;
/// TIMEOUT: far longer than any answer of a simulated NPU on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sends requests one at a time and waits for their replies.
#[derive(Debug)]
pub struct Requester {
    client: AsyncClient,
    messages: mpsc::Receiver<Publish>,
    reply_topic: String,
    requests: u64,
}

impl Requester {
    /// Connects as `name` to the broker at `port` of this machine.
    ///
    /// # Errors
    /// A broker that refuses.
    pub async fn connect(port: u16, name: &str) -> Result<Self> {
        let reply_topic = format!("{name}/replies");
        let (client, messages) = listen(port, name, &reply_topic).await?;
        Ok(Self { client, messages, reply_topic, requests: 0 })
    }

    /// Publishes a request and returns the payload of its reply.
    ///
    /// # Errors
    /// A connection that ended, or no reply in time.
    pub async fn request(&mut self, topic: &str, content_type: &str, payload: Bytes) -> Result<Bytes> {
        self.requests += 1;
        let correlation = Bytes::copy_from_slice(&self.requests.to_be_bytes());
        let properties = PublishProperties {
            response_topic: Some(self.reply_topic.clone()),
            correlation_data: Some(correlation.clone()),
            content_type: Some(content_type.to_owned()),
            ..PublishProperties::default()
        };
        self.client.publish_with_properties(topic, QoS::AtLeastOnce, false, payload, properties).await?;
        loop {
            let reply = tokio::time::timeout(PATIENCE, self.messages.recv()).await;
            let reply = reply.with_context(|| format!("no reply to {topic}"))?.context("the connection ended")?;
            let properties = reply.properties.unwrap_or_default();
            if properties.correlation_data.as_ref() == Some(&correlation) {
                return Ok(reply.payload);
            }
        }
    }
}

/// Answers every message on `topic` with its own payload, until the connection ends.
///
/// # Errors
/// A broker that refuses.
pub async fn echo(port: u16, topic: &str) -> Result<()> {
    let (client, mut messages) = listen(port, "echo", topic).await?;
    tokio::spawn(async move {
        while let Some(message) = messages.recv().await {
            let asked = message.properties.unwrap_or_default();
            let Some(to) = asked.response_topic else { continue };
            let properties =
                PublishProperties { correlation_data: asked.correlation_data, ..PublishProperties::default() };
            let sent = client.publish_with_properties(to, QoS::AtLeastOnce, false, message.payload, properties).await;
            if sent.is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// A connection that listens to one topic.
async fn listen(port: u16, name: &str, topic: &str) -> Result<(AsyncClient, mpsc::Receiver<Publish>)> {
    let mut network = NetworkOptions::new();
    network.set_tcp_nodelay(true);
    let mut options = MqttOptions::new(name, "127.0.0.1", port);
    options.set_max_packet_size(Some(LARGEST_PACKET)).set_network_options(network);
    let (client, mut connection) = AsyncClient::new(options, QUEUE);
    client.subscribe(topic, QoS::AtLeastOnce).await?;
    loop {
        match connection.poll().await.context("the broker refuses")? {
            Event::Incoming(Packet::SubAck(_)) => break,
            Event::Incoming(Packet::Disconnect(reason)) => bail!("the broker disconnects: {reason:?}"),
            _ => {}
        }
    }
    let (sender, messages) = mpsc::channel(QUEUE);
    tokio::spawn(forward(connection, sender));
    Ok((client, messages))
}

/// Hands on what arrives, until the connection or the receiver ends.
async fn forward(mut connection: EventLoop, sender: mpsc::Sender<Publish>) {
    while let Ok(event) = connection.poll().await {
        if let Event::Incoming(Packet::Publish(message)) = event
            && sender.send(message).await.is_err()
        {
            return;
        }
    }
}
