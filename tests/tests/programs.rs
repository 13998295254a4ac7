//! The programs as the service manager and a person start them.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use testkit::{Broker, BrokerOptions, Bus, Daemon, build, model, workspace};

/// TIMEOUT: far longer than anything here takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// A folder of model packages that holds `mnist` alone.
fn packages() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(model("mnist"), folder.path().join("mnist")).unwrap();
    folder
}

fn bus() -> Bus {
    let policy = workspace().join("services/npud/dist/org.cairn.Npu1.conf");
    Bus::start(&policy, &["npud"], &["cairn-infer"]).unwrap()
}

fn npud() -> PathBuf {
    build("npud").unwrap()
}

fn config(bus: &Bus, models: &std::path::Path, more: &str) -> String {
    let (address, models) = (bus.address(), models.display());
    format!("device-name = \"d\"\nmodels = [\"{models}\"]\nbus = {{ address = \"{address}\" }}\n{more}")
}

fn retained_state(broker: &Broker) -> String {
    let mut command = broker.client("mosquitto_sub").unwrap();
    let output = command.args(["-W", "120", "-C", "1", "-t", "cairn/d/state"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

#[test]
fn npud_is_ready_feeds_its_watchdog_and_says_goodbye() {
    let (bus, broker, models) = (bus(), Broker::start(BrokerOptions::default()).unwrap(), packages());
    let config = config(&bus, models.path(), &format!("[mqtt]\nurl = \"{}\"\n", broker.url()));
    let watchdog = [("WATCHDOG_USEC", "200000")];
    let mut daemon = Daemon::start(&npud(), &config, &["--simulate"], &watchdog).unwrap();
    daemon.wait_for("READY=1", PATIENCE).unwrap();
    daemon.wait_for("WATCHDOG=1", PATIENCE).unwrap();
    assert_eq!(retained_state(&broker), "online");
    daemon.terminate().unwrap();
    daemon.wait_for("STOPPING=1", PATIENCE).unwrap();
    assert_eq!(retained_state(&broker), "offline");
}

#[test]
fn npud_without_a_model_that_works_does_not_claim_to_be_ready() {
    let (bus, models) = (bus(), tempfile::tempdir().unwrap());
    let mut daemon = Daemon::start(&npud(), &config(&bus, models.path(), ""), &["--simulate"], &[]).unwrap();
    let error = daemon.wait_for("READY=1", PATIENCE).unwrap_err().to_string();
    assert!(error.contains("no model package"), "{error}");
}

#[test]
fn npud_names_the_line_of_a_mistake_in_its_configuration() {
    let mut daemon = Daemon::start(&npud(), "contexts = 3\nqueue = 4\n", &["--simulate"], &[]).unwrap();
    let error = daemon.wait_for("READY=1", PATIENCE).unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("queue"), "{error}");
}

#[test]
fn npud_without_a_device_says_so_and_simulates_nothing() {
    let bus = bus();
    let config = config(&bus, &workspace().join("tests/models"), "");
    let mut daemon = Daemon::start(&npud(), &config, &["--device", "/dev/nowhere"], &[]).unwrap();
    let error = daemon.wait_for("READY=1", PATIENCE).unwrap_err().to_string();
    assert!(error.contains("open /dev/nowhere"), "{error}");
}

#[test]
fn cairnctl_shows_models_devices_and_what_is_in_a_picture() {
    let (bus, models) = (bus(), packages());
    let mut daemon = Daemon::start(&npud(), &config(&bus, models.path(), ""), &["--simulate"], &[]).unwrap();
    daemon.wait_for("READY=1", PATIENCE).unwrap();
    let program = build("cairnctl").unwrap();
    let cairnctl = |arguments: &[&str]| -> Output {
        Command::new(&program).args(["--bus", bus.address()]).args(arguments).output().unwrap()
    };
    let answer = |arguments: &[&str]| -> Value {
        let output = cairnctl(&[&["--json"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let picture = model("mnist").join("golden.png").display().to_string();
    let folder = tempfile::tempdir().unwrap();
    let boxes = folder.path().join("boxes.png");
    let seen = answer(&["infer", &picture, "--annotate", boxes.to_str().unwrap()]);
    assert_eq!(seen["verdict"], "trusted");
    assert!(["4", "9"].contains(&seen["seen"][0]["label"].as_str().unwrap()), "{seen}");
    assert!(std::fs::read(boxes).unwrap().starts_with(b"\x89PNG"));

    assert_eq!(answer(&["models"])[0]["name"], "mnist");
    assert_eq!(answer(&["devices"])["counters"]["requests"], 1);
    let second = model("mnist-v2").display().to_string();
    let loaded = answer(&["model", "load", &second])["name"].as_str().unwrap().to_owned();
    answer(&["model", "unload", &loaded]);
    let output = cairnctl(&["model", "unload", "unknown"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && message.contains("UnknownModel"), "{message}");
}
