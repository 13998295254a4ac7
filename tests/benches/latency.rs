//! What the transports add: one engine, called directly, by D-Bus and by MQTT, beside a bare echo by the same broker.
//!
//! All of it runs in this process but for the bus and the broker, and the NPU is simulated on the same machine: the
//! difference between two lines is real, a line alone is not what a board would show.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use api::dbus::{Blob, Inference1Proxy, model_path};
use api::mqtt::{OFFLINE, Topics};
use bytes::Bytes;
use engine::{Engine, Input, Priority, Request};
use npu_sim::Simulator;
use testkit::{Broker, BrokerOptions, Bus};
use tests::numbers::{Summary, millis};
use tests::requester::{Requester, echo};
use zbus::connection;

/// What is measured: a model, a picture of its package or of the workspace, and how often.
const CASES: [(&str, &str, usize); 2] =
    [("mnist", "tests/models/mnist/golden.png", 1000), ("ssd-oidv4", "tests/pictures/astronaut.jpg", 30)];
/// Runs before the measured ones.
const WARM_UP: usize = 5;
/// Messages that the broker may send ahead.
const IN_FLIGHT: u16 = 16;
const CONTENT_TYPES: [(&str, &str); 2] = [("png", "image/png"), ("jpg", "image/jpeg")];

/// An engine with its front ends, and clients of each.
struct Stand {
    engine: Engine,
    topics: Topics,
    bus: zbus::Connection,
    requester: Requester,
    _server: serve::dbus::Server,
    _bus: Bus,
    _broker: Broker,
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut stand = Stand::new().await?;
    for (model, picture, runs) in CASES {
        stand.measure(model, picture, runs).await?;
    }
    Ok(())
}

impl Stand {
    async fn new() -> Result<Self> {
        let simulator = Simulator::new(npu_sim::Options::batched());
        let monitor = simulator.fault_monitor();
        let engine = Engine::start(Arc::new(simulator), Some(monitor), engine::Options::default())?;
        for (model, _, _) in CASES {
            engine.load(&testkit::model(model)).await?;
        }
        let policy = testkit::workspace().join("services/npud/dist/org.cairn.Npu1.conf");
        let bus = Bus::start(&policy, &["npud"], &["cairn-infer"])?;
        let server = serve::dbus::Server::start(engine.clone(), connection::Builder::address(bus.address())).await?;
        let broker = Broker::start(BrokerOptions::default())?;
        let topics = Topics::new("bench")?;
        serve_mqtt(&engine, &broker, &topics)?;
        echo(broker.port(), "echo").await?;
        let client = connection::Builder::address(bus.address()).build().await?;
        let requester = Requester::connect(broker.port(), "client").await?;
        Ok(Self { engine, topics, bus: client, requester, _server: server, _bus: bus, _broker: broker })
    }

    async fn measure(&mut self, model: &str, picture: &str, runs: usize) -> Result<()> {
        let bytes = Bytes::from(std::fs::read(testkit::workspace().join(picture))?);
        println!("\n{model}, {picture} ({} bytes), {runs} requests one after another", bytes.len());
        let mut direct = Vec::new();
        let mut npu = Duration::ZERO;
        for _ in 0..WARM_UP + runs {
            let begin = Instant::now();
            npu = self.direct(model, bytes.clone()).await?;
            direct.push(begin.elapsed());
        }
        let direct = report("direct call of the engine", direct, None);
        let infer = self.infer_proxy(model).await?;
        let mut by_bus = Vec::new();
        for _ in 0..WARM_UP + runs {
            let begin = Instant::now();
            let picture = Blob::new(bytes.clone())?.into_variant();
            infer.infer_picture(&picture, Default::default()).await?;
            by_bus.push(begin.elapsed());
        }
        report("by D-Bus", by_bus, Some(direct));
        let by_broker = self.by_broker(&self.topics.infer_request(model), picture, &bytes, runs).await?;
        report("by MQTT", by_broker, Some(direct));
        let echoed = self.by_broker("echo", picture, &bytes, runs).await?;
        report("echo of the same bytes by the broker", echoed, None);
        println!("  NPU, by the simulator's cost model: {}", millis(npu));
        Ok(())
    }

    /// Returns the time on the NPU, by the cost model.
    async fn direct(&self, model: &str, picture: Bytes) -> Result<Duration> {
        let input = Input::Picture(picture);
        let request = Request { model: model.into(), input, priority: Priority::Interactive, deadline: None };
        Ok(self.engine.submit(request)?.await?.timing.npu)
    }

    async fn infer_proxy(&self, model: &str) -> Result<Inference1Proxy<'static>> {
        Ok(Inference1Proxy::builder(&self.bus).path(model_path(model)).build().await?)
    }

    async fn by_broker(&mut self, topic: &str, picture: &str, bytes: &Bytes, runs: usize) -> Result<Vec<Duration>> {
        let content_type = CONTENT_TYPES.iter().find(|(ending, _)| picture.ends_with(ending));
        let (_, content_type) = content_type.context("a picture of a known kind")?;
        let mut durations = Vec::new();
        for _ in 0..WARM_UP + runs {
            let begin = Instant::now();
            let reply = self.requester.request(topic, content_type, bytes.clone()).await?;
            durations.push(begin.elapsed());
            anyhow::ensure!(topic == "echo" || is_answer(&reply), "{topic}: {}", String::from_utf8_lossy(&reply));
        }
        Ok(durations)
    }
}

fn serve_mqtt(engine: &Engine, broker: &Broker, topics: &Topics) -> Result<()> {
    let settings = serve::mqtt::Settings {
        pool_group: None,
        max_payload_bytes: 8 << 20,
        home_assistant: false,
        metrics_period: Duration::from_secs(3600),
        version: "bench".into(),
    };
    let link = kit::mqtt::Settings::new(broker.url());
    let (link, events) = kit::mqtt::open(&link, "npud", IN_FLIGHT, (&topics.state(), OFFLINE))?;
    let (engine, topics) = (engine.clone(), topics.clone());
    tokio::spawn(serve::mqtt::run(engine, topics, link, events, settings, std::future::pending()));
    Ok(())
}

fn is_answer(reply: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(reply).is_ok_and(|reply| reply.get("error").is_none())
}

/// Prints a measurement, and what it adds to another.
fn report(what: &str, mut durations: Vec<Duration>, base: Option<Summary>) -> Summary {
    let summary = Summary::new(durations.split_off(WARM_UP));
    match base {
        None => println!("  {what}: {summary}"),
        Some(base) => {
            let added = summary.median.saturating_sub(base.median);
            println!("  {what}: {summary}; adds {} to the median", millis(added));
        }
    }
    summary
}
