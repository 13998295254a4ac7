//! Clients that we did not write, each as the README shows it.

mod service;

use std::fs;
use std::process::{Command, Output};

use api::mqtt::{OFFLINE, ONLINE, Topics};
use serde_json::{Value, json};
use service::{OnBus, engine, golden_picture};
use testkit::{Broker, BrokerOptions, model, workspace};

/// Runs a command to its end, while the service goes on.
async fn run(mut command: Command) -> Output {
    let shown = format!("{command:?}");
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
    let output = output.unwrap_or_else(|error| panic!("{shown}: {error}"));
    assert!(output.status.success(), "{shown}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The first block of the README that is marked as `language`.
fn readme(language: &str) -> String {
    let readme = fs::read_to_string(workspace().join("README.md")).unwrap();
    let (_, rest) = readme.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_script_of_the_readme_sees_the_digits() {
    let script = readme("python");
    assert!(script.lines().filter(|line| !line.trim().is_empty()).count() <= 15, "the README says how short it is");
    let service = OnBus::start(&["mnist"]).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("infer.py");
    fs::write(&file, script).unwrap();
    let mut python = Command::new(tests::python::interpreter().unwrap());
    python.env("DBUS_SYSTEM_BUS_ADDRESS", service.bus.address()).arg(file).arg(model("mnist").join("golden.png"));
    python.args(["org.cairn.Npu1", "/org/cairn/Npu1/model/mnist"]);
    let printed = text(&run(python).await);
    let lines: Vec<_> = printed.lines().collect();
    assert!(lines[0].contains("'4'") || lines[0].contains("'9'"), "{printed}");
    assert_eq!(lines.last(), Some(&"trusted"), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busctl_calls_with_the_bytes_of_a_picture() {
    let service = OnBus::start(&["mnist"]).await;
    let busctl = |arguments: &[&str]| {
        let mut command = Command::new("busctl");
        command.arg(format!("--address={}", service.bus.address())).args(arguments);
        command
    };
    let (name, object) = ("org.cairn.Npu1", "/org/cairn/Npu1/model/mnist");
    let tree = text(&run(busctl(&["tree", "--list", name])).await);
    assert!(tree.contains(object) && tree.contains("/org/cairn/Npu1/device/npu0"), "{tree}");
    let version = text(&run(busctl(&["get-property", name, object, "org.cairn.Model1", "Version"])).await);
    assert_eq!(version, "s \"1.0.0\"\n");

    let picture = golden_picture();
    let mut call =
        busctl(&["--json=short", "call", name, object, "org.cairn.Inference1", "InferPicture", "va{sv}", "ay"]);
    call.arg(picture.len().to_string()).args(picture.iter().map(u8::to_string)).arg("0");
    let answer: Value = serde_json::from_str(&text(&run(call).await)).unwrap();
    let label = answer["data"][1][0][0].as_str().unwrap();
    assert!(["4", "9"].contains(&label), "{answer}");
    assert_eq!(answer["data"][2]["verdict"]["data"], "trusted");

    let mut bad = busctl(&["call", name, object, "org.cairn.Inference1", "InferPicture", "va{sv}", "ay", "1", "0"]);
    let output = bad.args(["1", "colour", "s", "red"]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && message.contains("unknown option \"colour\""), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mosquittos_clients_send_a_picture_and_a_tensor() {
    let broker = Broker::start(BrokerOptions::default()).unwrap();
    let (engine, _gate) = engine(&["mnist"]).await;
    let topics = Topics::new("d").unwrap();
    let settings = kit::mqtt::Settings::new(broker.url());
    let will = topics.state();
    let (link, events) = kit::mqtt::open(&settings, "cairn-npud-d", 2, (&will, OFFLINE)).unwrap();
    let front = serve::mqtt::Settings {
        pool_group: None,
        max_payload_bytes: settings.max_payload_bytes,
        home_assistant: false,
        metrics_period: std::time::Duration::from_secs(3600),
        version: "1".into(),
    };
    tokio::spawn(serve::mqtt::run(engine, topics, link, events, front, std::future::pending()));
    let mut state = broker.client("mosquitto_sub").unwrap();
    state.args(["-W", "120", "-C", "1", "-t", &will]);
    assert_eq!(text(&run(state).await).trim_end(), ONLINE);

    // mosquitto_rr of Debian 12 sends nothing for `-f`, so the picture goes by mosquitto_pub.
    let mut listener = broker.client("mosquitto_sub").unwrap();
    listener.args(["-W", "120", "-C", "1", "-q", "1", "-i", "listener", "-c", "-t", "my/replies"]);
    let mut register = broker.client("mosquitto_sub").unwrap();
    register.args(["-E", "-q", "1", "-i", "listener", "-c", "-t", "my/replies"]);
    run(register).await;
    let mut publisher = broker.client("mosquitto_pub").unwrap();
    publisher.args(["-V", "5", "-q", "1", "-t", "cairn/d/infer/mnist/request", "-f"]);
    publisher.arg(model("mnist").join("golden.png")).args(["-D", "publish", "content-type", "image/png"]);
    publisher.args(["-D", "publish", "response-topic", "my/replies"]);
    run(publisher).await;
    let answer: Value = serde_json::from_str(&text(&run(listener).await)).unwrap();
    assert_eq!((&answer["verdict"], &answer["seen"][0]["label"]), (&"trusted".into(), &"4".into()), "{answer}");

    let data: Vec<u8> = service::digit(7).into();
    let inputs = json!([{"datatype": "UINT8", "shape": [1, 28, 28, 1], "data": data}]);
    let mut request = broker.client("mosquitto_rr").unwrap();
    request.args(["-W", "120", "-t", "cairn/d/infer/mnist/request", "-e", "my/replies"]);
    request.args(["-m", &json!({"inputs": inputs}).to_string()]);
    let answer: Value = serde_json::from_str(&text(&run(request).await)).unwrap();
    assert_eq!((&answer["verdict"], &answer["seen"][0]["label"]), (&"trusted".into(), &"7".into()), "{answer}");
}
