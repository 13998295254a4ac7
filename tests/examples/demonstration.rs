//! The whole path on one machine without a board; `cargo xtask run` starts it.
//!
//! ```text
//! picture ─D-Bus──────────▶ npud ─▶ engine ─▶ simulated NPU
//!         └MQTT▶ mosquitto ─┘
//! ```
//! Bus, broker and daemon are private to it and end with it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::dbus::{Blob, Device1Proxy, Inference1Proxy, Model1Proxy, Seen, model_path};
use api::mqtt::Topics;
use bytes::Bytes;
use serde_json::Value;
use testkit::{Broker, BrokerOptions, Bus, Daemon, workspace};
use tests::numbers::millis;
use tests::requester::Requester;
use zbus::{Connection, connection};

const MODEL: &str = "ssd-oidv4";
const DEVICE: &str = "demonstration";
const PICTURES: [&str; 3] = ["astronaut.jpg", "chelsea.jpg", "coffee.jpg"];
/// TIMEOUT: loading verifies a golden output, seconds on a fast machine; far more than a slow one needs.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a transport brought back.
struct Answer {
    /// Label and score, best first.
    seen: Vec<(String, f64)>,
    verdict: String,
    /// Microseconds by name.
    times: HashMap<&'static str, u64>,
}

/// The times that every transport reports.
const TIMES: [(&str, &str); 4] =
    [("queued-us", "queued_us"), ("prepare-us", "prepare_us"), ("npu-us", "npu_us"), ("total-us", "total_us")];

#[tokio::main]
async fn main() -> Result<()> {
    let npud = testkit::build("npud")?;
    let cairnctl = testkit::build("cairnctl")?;
    let policy = workspace().join("services/npud/dist/org.cairn.Npu1.conf");
    let bus = Bus::start(&policy, &["npud"], &["cairn-infer"])?;
    let broker = Broker::start(BrokerOptions::default())?;
    let mut daemon = Daemon::start(&npud, &configuration(&bus, &broker), &["--simulate"], &[])?;
    println!("bus and broker are up; npud plans its models and verifies their golden outputs");
    let begin = Instant::now();
    daemon.wait_for("READY=1", PATIENCE)?;
    println!("npud is ready after {:.1} s", begin.elapsed().as_secs_f64());

    let client = connection::Builder::address(bus.address()).build().await.context("connect to the bus")?;
    describe(&client).await.with_context(|| format!("{MODEL} was not loaded; npud says:\n{}", daemon.log()))?;
    let mut requester = Requester::connect(broker.port(), "camera").await?;
    let folder = workspace().join("target/demonstration");
    std::fs::create_dir_all(&folder)?;
    for name in PICTURES {
        let path = testkit::picture(name);
        let picture = Bytes::from(std::fs::read(&path)?);
        println!("\n{name}");
        let begin = Instant::now();
        print("D-Bus", &by_bus(&client, &picture).await?, begin.elapsed());
        let begin = Instant::now();
        print("MQTT", &by_broker(&mut requester, &picture).await?, begin.elapsed());
        let target = folder.join(Path::new(name).with_extension("png"));
        annotate(&cairnctl, bus.address(), &path, &target)?;
        println!("  boxes drawn by cairnctl: {}", target.strip_prefix(workspace()).unwrap_or(&target).display());
    }
    daemon.terminate()
}

fn configuration(bus: &Bus, broker: &Broker) -> String {
    let (models, address, url) = (workspace().join("tests/models"), bus.address(), broker.url());
    format!(
        "device-name = {DEVICE:?}\nmodels = [{models:?}]\nbus = {{ address = {address:?} }}\n[mqtt]\nurl = {url:?}\n"
    )
}

async fn describe(client: &Connection) -> Result<()> {
    let device = Device1Proxy::new(client).await?;
    println!("device: {}, {} contexts", device.description().await?, device.contexts().await?);
    let model = Model1Proxy::new(client, model_path(MODEL)).await?;
    println!(
        "model: {MODEL} {}, {} of {} operators on the NPU in {} jobs; {} by the cost model",
        model.version().await?,
        model.operators_on_npu().await?,
        model.operators().await?,
        model.npu_jobs().await?,
        millis(Duration::from_micros(model.predicted_microseconds().await?)),
    );
    Ok(())
}

async fn by_bus(client: &Connection, picture: &Bytes) -> Result<Answer> {
    let infer = Inference1Proxy::new(client, model_path(MODEL)).await?;
    let picture = Blob::new(picture.clone())?.into_variant();
    let (_, seen, details) = infer.infer_picture(&picture, HashMap::new()).await.context("the call failed")?;
    let seen = seen.into_iter().map(|(label, _, score, _): Seen| (label, score)).collect();
    let detail = |key: &str| details.get(key).with_context(|| format!("the answer has no {key}"));
    let mut times = HashMap::new();
    for (key, _) in TIMES {
        times.insert(key, u64::try_from(detail(key)?.try_clone()?)?);
    }
    Ok(Answer { seen, verdict: String::try_from(detail("verdict")?.try_clone()?)?, times })
}

async fn by_broker(requester: &mut Requester, picture: &Bytes) -> Result<Answer> {
    let topic = Topics::new(DEVICE)?.infer_request(MODEL);
    let reply = requester.request(&topic, "image/jpeg", picture.clone()).await?;
    let reply: Value = serde_json::from_slice(&reply).context("the reply is not JSON")?;
    ensure!(reply["error"].is_null(), "the reply is an error: {}", reply["error"]);
    let text = |value: &Value| value.as_str().map(String::from).context("the reply lacks a text");
    let mut seen = Vec::new();
    for object in reply["seen"].as_array().context("the reply lacks what was seen")? {
        seen.push((text(&object["label"])?, object["score"].as_f64().context("the reply lacks a score")?));
    }
    let mut times = HashMap::new();
    for (key, field) in TIMES {
        times.insert(key, reply["timing"][field].as_u64().with_context(|| format!("the reply lacks {field}"))?);
    }
    Ok(Answer { seen, verdict: text(&reply["verdict"])?, times })
}

fn print(transport: &str, answer: &Answer, round_trip: Duration) {
    let seen: Vec<String> = answer.seen.iter().map(|(label, score)| format!("{label} {score:.2}")).collect();
    let seen = if seen.is_empty() { "nothing".into() } else { seen.join(", ") };
    println!("  {transport:5} {seen}; {}", answer.verdict);
    let time = |key| millis(Duration::from_micros(answer.times[key]));
    println!(
        "        round trip {}, of it in npud {} (queued {}, prepared {}); NPU by the cost model {}",
        millis(round_trip),
        time("total-us"),
        time("queued-us"),
        time("prepare-us"),
        time("npu-us"),
    );
}

fn annotate(cairnctl: &PathBuf, bus: &str, picture: &Path, target: &Path) -> Result<()> {
    let mut command = Command::new(cairnctl);
    command.args(["--bus", bus, "--json", "infer", "--model", MODEL, "--annotate"]).arg(target).arg(picture);
    let output = command.output().context("cairnctl cannot be started")?;
    ensure!(output.status.success(), "cairnctl: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
