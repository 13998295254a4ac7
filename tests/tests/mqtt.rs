//! The MQTT interface as clients meet it: through a real mosquitto.

mod service;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use api::mqtt::{HEADER_LENGTH, JSON, OCTET_STREAM, OFFLINE, ONLINE, Topics};
use bytes::Bytes;
use engine::Engine;
use kit::mqtt::{Settings, Tls};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, Publish, PublishProperties};
use rumqttc::v5::{AsyncClient, Event, MqttOptions};
use serde_json::{Value, json};
use service::gate::Gate;
use service::{PATIENCE, QUEUE, digit, engine, golden_picture, until};
use testkit::{Broker, BrokerOptions};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

/// Where test clients get their replies.
const REPLIES: &str = "test/replies";

fn broker() -> Broker {
    Broker::start(BrokerOptions::default()).unwrap()
}

/// Settings for a broker, with waits that suit a test.
fn settings(broker: &Broker) -> Settings {
    Settings { first_wait_ms: 20, longest_wait_ms: 100, ..Settings::new(broker.url()) }
}

/// A front end with a runtime of its own, so that it can vanish as a killed process does.
struct Front {
    runtime: Option<Runtime>,
    stop: Option<oneshot::Sender<()>>,
    ended: Option<oneshot::Receiver<serve::Result<()>>>,
}

impl Front {
    fn start(engine: &Engine, device: &str, settings: &Settings, pool_group: Option<&str>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let topics = Topics::new(device).unwrap();
        let front = serve::mqtt::Settings {
            pool_group: pool_group.map(str::to_owned),
            max_payload_bytes: settings.max_payload_bytes,
            home_assistant: true,
            metrics_period: Duration::from_secs(3600),
            version: "1.2.3".into(),
        };
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let (engine, settings) = (engine.clone(), settings.clone());
        runtime.spawn(async move {
            let in_flight = u16::try_from(QUEUE).unwrap();
            let will = topics.state();
            let client = format!("cairn-npud-{}", topics.device());
            let (link, events) = kit::mqtt::open(&settings, &client, in_flight, (&will, OFFLINE)).unwrap();
            let stop = async { stopped.await.unwrap_or(()) };
            let _ = end.send(serve::mqtt::run(engine, topics, link, events, front, stop).await);
        });
        Self { runtime: Some(runtime), stop: Some(stop), ended: Some(ended) }
    }

    /// Ends as SIGTERM does.
    async fn terminate(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.ended.take().unwrap().await.unwrap().unwrap();
    }

    /// Ends as SIGKILL does: the connection is cut.
    fn kill(mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A client of MQTT 5.
struct Client {
    client: AsyncClient,
    messages: mpsc::UnboundedReceiver<Publish>,
}

impl Client {
    /// Connects and listens; comes back by itself when the connection is lost.
    async fn listen(broker: &Broker, name: &str, filters: &[&str]) -> Self {
        let mut options = MqttOptions::new(name, "127.0.0.1", broker.port());
        options.set_max_packet_size(Some(1 << 20));
        let (client, mut connection) = AsyncClient::new(options, 64);
        let (sender, messages) = mpsc::unbounded_channel();
        let (subscribed, mut all_subscribed) = mpsc::unbounded_channel();
        let (subscriber, filters) = (client.clone(), filters.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>());
        let count = filters.len();
        tokio::spawn(async move {
            loop {
                match connection.poll().await {
                    Ok(Event::Incoming(Packet::ConnAck(_))) => {
                        for filter in &filters {
                            subscriber.try_subscribe(filter, QoS::AtLeastOnce).unwrap();
                        }
                    }
                    Ok(Event::Incoming(Packet::SubAck(_))) => subscribed.send(()).unwrap_or(()),
                    Ok(Event::Incoming(Packet::Publish(message))) => {
                        if sender.send(message).is_err() {
                            return;
                        }
                    }
                    Ok(_) => {}
                    Err(_) if sender.is_closed() => return,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        for _ in 0..count {
            all_subscribed.recv().await.unwrap();
        }
        Self { client, messages }
    }

    async fn publish(&self, topic: &str, payload: impl Into<Bytes>, properties: PublishProperties) {
        self.client.publish_with_properties(topic, QoS::AtLeastOnce, false, payload, properties).await.unwrap();
    }

    /// The next message on a topic; others are dropped.
    async fn next(&mut self, topic: &str) -> Publish {
        self.next_of(|it| it == topic).await.unwrap_or_else(|| panic!("nothing on {topic}"))
    }

    /// The next message on a topic that `is_wanted`, if it comes in time; others are dropped.
    async fn next_of(&mut self, is_wanted: impl Fn(&str) -> bool) -> Option<Publish> {
        let message = async {
            loop {
                let message = self.messages.recv().await.unwrap();
                if std::str::from_utf8(&message.topic).is_ok_and(&is_wanted) {
                    return message;
                }
            }
        };
        tokio::time::timeout(PATIENCE, message).await.ok()
    }

    /// The next message on a topic with this payload.
    async fn wait_for(&mut self, topic: &str, payload: &str) {
        while self.next(topic).await.payload != payload {}
    }
}

fn asking(correlation: &str, content_type: Option<&str>) -> PublishProperties {
    PublishProperties {
        response_topic: Some(REPLIES.into()),
        correlation_data: Some(Bytes::copy_from_slice(correlation.as_bytes())),
        content_type: content_type.map(str::to_owned),
        ..PublishProperties::default()
    }
}

fn body(message: &Publish) -> Value {
    serde_json::from_slice(&message.payload).unwrap()
}

fn correlation(message: &Publish) -> String {
    let data = message.properties.as_ref().and_then(|properties| properties.correlation_data.clone()).unwrap();
    String::from_utf8(data.to_vec()).unwrap()
}

fn user_property<'a>(message: &'a Publish, key: &str) -> Option<&'a str> {
    let properties = &message.properties.as_ref()?.user_properties;
    properties.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

fn digit_request(number: usize) -> String {
    let data: Vec<u8> = digit(number).into();
    json!({"inputs": [{"name": "", "datatype": "UINT8", "shape": [1, 28, 28, 1], "data": data}]}).to_string()
}

/// A broker, a front end for device `d`, and a client that saw it come online.
async fn served() -> (Broker, Engine, Gate, Front, Client) {
    let (broker, (engine, gate)) = (broker(), engine(&["mnist"]).await);
    let mut client = Client::listen(&broker, "client", &[REPLIES, "cairn/#", "homeassistant/#"]).await;
    let front = Front::start(&engine, "d", &settings(&broker), None);
    client.wait_for("cairn/d/state", ONLINE).await;
    (broker, engine, gate, front, client)
}

const REQUEST: &str = "cairn/d/infer/mnist/request";

#[tokio::test]
async fn a_request_is_answered_with_its_correlation_data() {
    let (_broker, _engine, _gate, _front, mut client) = served().await;
    client.publish(REQUEST, golden_picture(), asking("picture", Some("image/png"))).await;
    let reply = client.next(REPLIES).await;
    assert_eq!(correlation(&reply), "picture");
    assert_eq!((user_property(&reply, "seq"), user_property(&reply, "final")), (Some("0"), Some("1")));
    let answer = body(&reply);
    assert_eq!((&answer["model_name"], &answer["verdict"]), (&json!("mnist"), &json!("trusted")));
    // The mean of a 9 and a 4.
    assert_eq!(answer["seen"][0]["class"], json!(4), "{answer}");

    for number in 0..10 {
        client.publish(REQUEST, digit_request(number), asking(&number.to_string(), Some(JSON))).await;
        let reply = client.next(REPLIES).await;
        assert_eq!(correlation(&reply), number.to_string());
        assert_eq!(body(&reply)["seen"][0]["class"], json!(number));
        assert_eq!(body(&reply)["outputs"][0]["data"].as_array().unwrap().len(), 10);
    }
}

#[tokio::test]
async fn the_binary_form_is_answered_in_binary_form() {
    let (_broker, _engine, _gate, _front, mut client) = served().await;
    let header = json!({"id": "b", "inputs": [{"name": "", "datatype": "UINT8", "shape": [1, 28, 28, 1],
        "parameters": {"binary_data_size": 784}}]})
    .to_string();
    let mut properties = asking("binary", Some(OCTET_STREAM));
    properties.user_properties.push((HEADER_LENGTH.into(), header.len().to_string()));
    client.publish(REQUEST, [header.as_bytes(), &digit(5)].concat(), properties).await;
    let reply = client.next(REPLIES).await;
    let header: usize = user_property(&reply, HEADER_LENGTH).unwrap().parse().unwrap();
    let answer: Value = serde_json::from_slice(&reply.payload[..header]).unwrap();
    assert_eq!((&answer["id"], &answer["seen"][0]["class"]), (&json!("b"), &json!(5)));
    assert_eq!(reply.payload.len() - header, 10);
}

#[tokio::test]
async fn a_client_of_mqtt_3_1_1_is_answered_by_reply_to_and_id() {
    let (broker, _engine, _gate, _front, _client) = served().await;
    let mut listener = Client::listen(&broker, "listener", &["old/replies"]).await;
    let publish = |request: Value| {
        let mut command = broker.client("mosquitto_pub").unwrap();
        command.args(["-V", "311", "-q", "1", "-t", REQUEST, "-m", &request.to_string()]);
        assert!(command.status().unwrap().success());
    };
    let mut request: Value = serde_json::from_str(&digit_request(8)).unwrap();
    request["id"] = json!("seven");
    request["reply_to"] = json!("old/replies");
    publish(request);
    let answer = body(&listener.next("old/replies").await);
    assert_eq!((&answer["id"], &answer["seen"][0]["class"]), (&json!("seven"), &json!(8)));

    let picture = base64(&golden_picture());
    publish(json!({"id": "picture", "reply_to": "old/replies", "picture": picture}));
    let answer = body(&listener.next("old/replies").await);
    assert_eq!((&answer["id"], &answer["seen"][0]["class"]), (&json!("picture"), &json!(4)));

    publish(json!({"id": "bad", "reply_to": "old/replies", "inputs": "nonsense"}));
    let answer = body(&listener.next("old/replies").await);
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("bad"), &json!("InvalidTensor")));
}

/// Base64, as a client in a shell makes it.
fn base64(bytes: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let output = Command::new("base64").arg("--wrap=0").arg(file.path()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn every_error_is_a_reply_with_a_code() {
    let (_broker, _engine, _gate, _front, mut client) = served().await;
    let ask = async |client: &mut Client, topic: &str, payload: Bytes, content_type, extra: Option<(&str, &str)>| {
        let mut properties = asking("bad", content_type);
        properties.user_properties.extend(extra.map(|(key, value)| (key.to_owned(), value.to_owned())));
        client.publish(topic, payload, properties).await;
        let reply = client.next(REPLIES).await;
        let code = body(&reply)["error"]["code"].as_str().unwrap().to_owned();
        assert_eq!(user_property(&reply, "error"), Some(code.as_str()));
        assert_eq!(correlation(&reply), "bad");
        code
    };
    let json = Some(JSON);
    for (topic, payload, content_type, extra, code) in [
        ("cairn/d/infer/none/request", digit_request(1).into(), json, None, "UnknownModel"),
        (REQUEST, Bytes::from_static(b"{"), json, None, "InvalidTensor"),
        (REQUEST, Bytes::from_static(b"text"), None, None, "InvalidTensor"),
        (REQUEST, Bytes::from_static(b"text"), Some("text/plain"), None, "InvalidTensor"),
        (REQUEST, golden_picture().slice(..40), Some("image/png"), None, "InvalidTensor"),
        (REQUEST, digit_request(1).into(), json, Some(("deadline-ms", "0")), "DeadlineExceeded"),
        (REQUEST, digit_request(1).into(), json, Some(("deadline-ms", "soon")), "InvalidArgs"),
        (REQUEST, digit_request(1).into(), json, Some(("priority", "urgent")), "InvalidArgs"),
        (
            REQUEST,
            Bytes::from_static(br#"{"inputs":[{"datatype":"UINT8","shape":[1],"data":[1]}]}"#),
            json,
            None,
            "InvalidTensor",
        ),
    ] {
        assert_eq!(
            ask(&mut client, topic, payload, content_type, extra).await,
            code,
            "{topic} {content_type:?} {extra:?}"
        );
    }
}

#[tokio::test]
async fn a_payload_over_the_limit_is_answered_by_name_and_nothing_breaks() {
    let (_broker, _engine, _gate, _front, mut client) = served().await;
    client.publish(REQUEST, vec![0; 100 << 20], asking("large", Some("image/jpeg"))).await;
    let reply = client.next(REPLIES).await;
    assert_eq!((correlation(&reply), &body(&reply)["error"]["code"]), ("large".into(), &json!("InvalidTensor")));
    client.publish(REQUEST, digit_request(2), asking("after", Some(JSON))).await;
    let reply = client.next(REPLIES).await;
    assert_eq!((correlation(&reply), &body(&reply)["seen"][0]["class"]), ("after".into(), &json!(2)));
}

/// How long a request lives that grows old in the queue.
// TIMEOUT: a loaded machine may need seconds to bring it there, and the broker drops what grew old before.
const LIFETIME_SECONDS: u32 = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_went_stale_in_the_queue_is_answered_so() {
    let (_broker, engine, gate, _front, mut client) = served().await;
    gate.close();
    client.publish(REQUEST, digit_request(1), asking("first", Some(JSON))).await;
    until("the first request on the NPU", || gate.waiting() == 1).await;
    let stale = PublishProperties { message_expiry_interval: Some(LIFETIME_SECONDS), ..asking("stale", Some(JSON)) };
    client.publish(REQUEST, digit_request(2), stale).await;
    until("the second request in the queue", || engine.status().queue_depth == 1).await;
    // MQTT counts a message's lifetime in seconds; nothing but time makes it pass.
    tokio::time::sleep(Duration::from_secs(LIFETIME_SECONDS.into())).await;
    gate.open();
    let (first, second) = (client.next(REPLIES).await, client.next(REPLIES).await);
    assert_eq!((correlation(&first), &body(&first)["seen"][0]["class"]), ("first".into(), &json!(1)));
    assert_eq!((correlation(&second), &body(&second)["error"]["code"]), ("stale".into(), &json!("DeadlineExceeded")));
}

#[tokio::test]
async fn state_and_models_are_retained_and_the_will_says_offline() {
    let (broker, engine, _gate, front, mut client) = served().await;
    let mut late = Client::listen(&broker, "late", &["cairn/d/state", "cairn/d/models/+/meta"]).await;
    assert_eq!(late.next("cairn/d/state").await.payload, ONLINE);
    let mut later = Client::listen(&broker, "later", &["cairn/d/models/+/meta"]).await;
    let meta = later.next("cairn/d/models/mnist/meta").await;
    assert!(meta.retain);
    assert_eq!(body(&meta)["inputs"][0]["shape"], json!([1, 28, 28, 1]));
    engine.unload("mnist").await.unwrap();
    client.wait_for("cairn/d/models/mnist/meta", "").await;

    front.kill();
    client.wait_for("cairn/d/state", OFFLINE).await;
    let front = Front::start(&engine, "d", &settings(&broker), None);
    client.wait_for("cairn/d/state", ONLINE).await;
    front.terminate().await;
    client.wait_for("cairn/d/state", OFFLINE).await;
}

#[tokio::test]
async fn home_assistant_is_told_at_once_and_at_its_birth() {
    let (_broker, _engine, _gate, _front, mut client) = served().await;
    // The message at arrival may have passed before; the one at the birth follows it.
    client.publish(Topics::HOME_ASSISTANT, "online", PublishProperties::default()).await;
    let config = body(&client.next("homeassistant/device/cairn_d/config").await);
    assert_eq!(
        (&config["o"]["sw"], &config["cmps"]["state"]["state_topic"]),
        (&json!("1.2.3"), &json!("cairn/d/state"))
    );
}

#[tokio::test]
async fn service_goes_on_after_the_broker_came_back() {
    let (mut broker, _engine, _gate, _front, mut client) = served().await;
    broker.stop().unwrap();
    broker.start_again().unwrap();
    // The new broker knows nothing: state, models and subscriptions are renewed.
    client.wait_for("cairn/d/state", ONLINE).await;
    client.publish(REQUEST, digit_request(6), asking("again", Some(JSON))).await;
    assert_eq!(body(&client.next(REPLIES).await)["seen"][0]["class"], json!(6));
}

#[tokio::test]
async fn a_repeated_request_is_answered_again_without_a_second_inference() {
    let (_broker, engine, _gate, _front, mut client) = served().await;
    client.publish(REQUEST, digit_request(4), asking("same", Some(JSON))).await;
    let first = client.next(REPLIES).await;
    let requests = engine.status().counters.requests;
    client.publish(REQUEST, digit_request(4), asking("same", Some(JSON))).await;
    assert_eq!(client.next(REPLIES).await.payload, first.payload);
    assert_eq!(engine.status().counters.requests, requests);
}

#[tokio::test]
async fn a_name_that_is_used_again_for_another_picture_is_answered_anew() {
    let (_broker, _engine, _gate, _front, mut client) = served().await;
    for number in [4, 5] {
        client.publish(REQUEST, digit_request(number), asking("same", Some(JSON))).await;
        assert_eq!(body(&client.next(REPLIES).await)["seen"][0]["class"], json!(number));
    }
}

#[tokio::test]
async fn a_reply_topic_that_the_broker_punishes_costs_nobody_the_connection() {
    let (_broker, _engine, _gate, _front, mut client) = served().await;
    for topic in ["a\u{1}b", "a\u{fdd0}b", &"a/".repeat(300)] {
        let request = json!({"reply_to": topic, "id": "bad", "inputs": []}).to_string();
        client.publish(REQUEST, request, PublishProperties::default()).await;
    }
    client.publish(REQUEST, digit_request(7), asking("good", Some(JSON))).await;
    loop {
        let message = client.messages.recv().await.unwrap();
        assert_ne!(message.topic, "cairn/d/state", "the front end lost its connection");
        if message.topic == REPLIES {
            assert_eq!(body(&message)["seen"][0]["class"], json!(7));
            return;
        }
    }
}

#[tokio::test]
async fn a_flood_leaves_later_requests_their_place() {
    let (_broker, _engine, _gate, _front, mut client) = served().await;
    for number in 0..5000 {
        let quality = if number % 10 == 0 { QoS::AtLeastOnce } else { QoS::AtMostOnce };
        let properties = asking("flood", Some(JSON));
        client.client.publish_with_properties(REQUEST, quality, false, "{", properties).await.unwrap();
    }
    client.publish(REQUEST, digit_request(7), asking("after", Some(JSON))).await;
    loop {
        let reply = client.next(REPLIES).await;
        if correlation(&reply) == "after" {
            assert_eq!(body(&reply)["seen"][0]["class"], json!(7));
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_shares_requests_and_takes_over_from_a_device_that_dies() {
    let broker = broker();
    let mut client = Client::listen(&broker, "client", &[REPLIES, "cairn/#"]).await;
    let (alpha, beta) = (engine(&["mnist"]).await, engine(&["mnist"]).await);
    let settings = settings(&broker);
    let front_alpha = Front::start(&alpha.0, "alpha", &settings, Some("group"));
    let front_beta = Front::start(&beta.0, "beta", &settings, Some("group"));
    // Metrics are published last at arrival, after the subscriptions.
    client.next("cairn/alpha/metrics").await;
    let mut late = Client::listen(&broker, "late", &["cairn/beta/state"]).await;
    late.wait_for("cairn/beta/state", ONLINE).await;

    let pool = Topics::pool_request("mnist");
    let mut replies = BTreeSet::new();
    for number in 0..10 {
        client.publish(&pool, digit_request(number), asking(&number.to_string(), Some(JSON))).await;
        let reply = client.next(REPLIES).await;
        assert_eq!(body(&reply)["seen"][0]["class"].to_string(), correlation(&reply));
        assert!(replies.insert(correlation(&reply)), "answered twice");
    }
    let counts = [&alpha, &beta].map(|(engine, _)| engine.status().counters.requests);
    assert!(counts.iter().sum::<u64>() == 10 && counts.iter().all(|&count| count > 0), "{counts:?}");

    // Devices die with requests on their hands, one running and one that the broker holds. Each starts again.
    for (_, gate) in [&alpha, &beta] {
        gate.close();
    }
    for name in ["3", "5"] {
        client
            .publish(&pool, digit_request(name.parse().unwrap()), asking(&format!("orphan {name}"), Some(JSON)))
            .await;
    }
    until("requests on both NPUs", || alpha.1.waiting() + beta.1.waiting() == 2).await;
    front_alpha.kill();
    front_beta.kill();
    // Neither says anything any more, whichever is gone first.
    let mut alive = BTreeSet::from(["cairn/alpha/state", "cairn/beta/state"]);
    while !alive.is_empty() {
        let message = client.next_of(|topic| alive.contains(topic)).await.expect("both are missed");
        if message.payload == OFFLINE {
            alive.remove(std::str::from_utf8(&message.topic).unwrap());
        }
    }
    for (_, gate) in [&alpha, &beta] {
        gate.open();
    }
    let _fronts = [(&alpha, "alpha"), (&beta, "beta")]
        .map(|((engine, _), device)| Front::start(engine, device, &settings, Some("group")));
    let mut orphans = BTreeSet::new();
    for _ in 0..2 {
        let reply = client.next(REPLIES).await;
        assert_eq!(format!("orphan {}", body(&reply)["seen"][0]["class"]), correlation(&reply));
        orphans.insert(correlation(&reply));
    }
    assert_eq!(orphans.len(), 2);
}

/// An authority and certificates for a broker and a device, made by openssl.
fn certificates(folder: &std::path::Path) -> [PathBuf; 5] {
    let file = |name: &str| folder.join(name);
    let openssl = |args: &[&str]| {
        let output = Command::new("openssl").args(args).current_dir(folder).output().expect("apt-get install openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    std::fs::write(file("san"), "subjectAltName=DNS:localhost").unwrap();
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    openssl(
        &[
            &["req", "-x509", "-days", "2", "-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.pem"],
            &curve[..],
        ]
        .concat(),
    );
    for name in ["broker", "device"] {
        let (key, request, certificate) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.pem"));
        let subject = format!("/CN={name}");
        openssl(&[&["req", "-subj", &subject, "-keyout", &key, "-out", &request], &curve[..]].concat());
        openssl(&[
            "x509",
            "-req",
            "-days",
            "2",
            "-in",
            &request,
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-extfile",
            "san",
            "-out",
            &certificate,
        ]);
        // The broker gives up root before it reads its key.
        std::fs::set_permissions(file(&key), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    }
    std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    ["ca.pem", "broker.pem", "broker.key", "device.pem", "device.key"].map(file)
}

#[tokio::test]
async fn a_broker_that_wants_certificates_gets_one() {
    let folder = tempfile::tempdir().unwrap();
    let [ca, broker_pem, broker_key, certificate, key] = certificates(folder.path());
    let tls = Some((ca.clone(), broker_pem, broker_key));
    let broker = Broker::start(BrokerOptions { tls, ..BrokerOptions::default() }).unwrap();
    let (engine, _gate) = engine(&["mnist"]).await;
    let with = |certificate, key| Settings { tls: Some(Tls { ca: ca.clone(), certificate, key }), ..settings(&broker) };
    let _front = Front::start(&engine, "d", &with(Some(certificate.clone()), Some(key.clone())), None);
    let listen = |name: &str| {
        let mut command = broker.client("mosquitto_sub").unwrap();
        // mosquitto's clients check the name that they connect to.
        command.args(["-h", "localhost", "--cafile"]).arg(&ca).arg("--cert").arg(&certificate).arg("--key").arg(&key);
        command.args(["-W", "120", "-C", "1", "-t", name]).output().unwrap()
    };
    assert_eq!(listen("cairn/d/state").stdout, b"online\n");

    let (link, mut events) = kit::mqtt::open(&with(None, None), "without", 1, ("will", OFFLINE)).unwrap();
    let event = tokio::time::timeout(PATIENCE, events.recv()).await.unwrap();
    assert!(matches!(event, Some(kit::mqtt::Event::Disconnected { .. })), "{event:?}");
    link.close();
}
