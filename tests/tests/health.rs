//! The health daemon as it stands in the machine: beside npud on a bus, a broker, and a log of the kernel.

mod machine;
mod service;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::time::{Duration, Instant};

use api::dbus::{CONTRACTS, Check, Device1Proxy, HEALTH_NAME, HEALTH_ROOT, Health1Proxy, Job1Proxy};
use futures_util::StreamExt as _;
use machine::{Asked, Machine, Setup, messages, reader};
use rustix::process::{Pid, Signal, kill_process};
use service::PATIENCE;
use testkit::{Broker, BrokerOptions};
use zbus::fdo::IntrospectableProxy;
use zbus::{Connection, OwnedObjectPath, connection};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hang_is_one_incident_that_names_core_model_and_line() {
    let broker = Broker::start(BrokerOptions::default()).unwrap();
    assert!(reader(&broker).arg("-E").status().unwrap().success());
    let machine = Machine::start(Setup::healthd(&format!("[mqtt]\nurl = \"{}\"\n", broker.url()))).await;
    assert_eq!(machine.hang().await, "trusted-after-retry");
    let answered = Instant::now();
    let incidents = machine.settled(1).await;
    println!("the incident is settled {} ms after its client was answered", answered.elapsed().as_millis());
    assert_eq!(incidents.len(), 1);
    let incident = &incidents[0];
    assert_eq!(incident.class().await.unwrap(), "npu-job-timeout");
    assert_eq!((incident.core().await.unwrap(), incident.model().await.unwrap()), (0, "mnist".into()));
    assert_eq!(incident.lines().await.unwrap(), ["rocket fdab0000.npu: NPU job timed out"]);
    assert_eq!(incident.taken_action().await.unwrap(), "fresh-context");

    let messages = messages(&broker, 1);
    assert_eq!(messages.len(), 1);
    let message = &messages[0];
    assert_eq!((&message["core"], &message["model"]), (&0.into(), &"mnist".into()), "{message}");
    assert_eq!(message["lines"][0], "rocket fdab0000.npu: NPU job timed out");
    assert_eq!(message["id"], incident.id().await.unwrap());
    assert!(machine.asked.all().is_empty(), "one fault needs nobody");
    assert_eq!(machine.health().await.counters().await.unwrap()["incidents"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_in_a_row_climb_the_ladder_and_a_reboot_is_requested_once() {
    let mut machine = Machine::start(Setup::healthd("[budgets]\nrestarts = 1\nrebinds = 0\n")).await;
    for fault in 1..=3 {
        machine.hang().await;
        machine.settled(fault).await;
    }
    machine.asks(&["restart npud.service"]).await;
    for fault in 4..=6 {
        machine.hang().await;
        machine.settled(fault).await;
    }
    let expected = ["restart npud.service", "reboot"];
    machine.asks(&expected).await;
    // Neither more faults nor a new start of the daemon ask again.
    machine.hang().await;
    machine.settled(7).await;
    machine.healthd.terminate().unwrap();
    machine.start_healthd();
    assert!(machine.incidents().await.is_empty(), "what was heard before is not heard again");
    machine.hang().await;
    machine.settled(1).await;
    assert_eq!(machine.asked.all(), expected);
    let counters = machine.health().await.counters().await.unwrap();
    assert_eq!((counters["reboots-requested"], counters["incidents"], counters["records"]), (1, 8, 8));
    assert_eq!(counters["records-lost"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_level_follows_the_heat_and_the_metrics_show_it() {
    let machine = Machine::start(Setup::default()).await;
    // Who hears that the daemon is ready finds the metrics.
    let socket = machine.folder.path().join("metrics");
    let metrics = ask(tokio::net::UnixStream::connect(&socket).await.unwrap()).await;
    assert!(metrics.contains("cairn_celsius{of=\"npu-thermal\"} 61.25\n"), "{metrics}");
    let health = machine.health().await;
    assert_eq!(health.thermal_level().await.unwrap(), "normal");
    let mut levels = Health1Proxy::new(&machine.client).await.unwrap().receive_thermal_level_changed().await;
    for (millis, level) in [(86_000, "throttled"), (96_000, "critical"), (70_000, "normal")] {
        machine.zone(millis);
        let wait = async {
            while health.thermal_level().await.unwrap() != level {
                levels.next().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }
    let metrics = ask(tokio::net::UnixStream::connect(&socket).await.unwrap()).await;
    assert!(metrics.contains("cairn_celsius{of=\"npu-thermal\"} 70\n"), "{metrics}");
}

/// Waits until healthd has measured a temperature and npud has the level that follows.
async fn heat(machine: &Machine, millis: u32, level: &str) {
    machine.zone(millis);
    let (health, device) = (machine.health().await, Device1Proxy::new(&machine.client).await.unwrap());
    let mut look = tokio::time::interval(Duration::from_millis(50));
    let wait = async {
        loop {
            look.tick().await;
            let measured = health.gauges().await.unwrap()["celsius.npu-thermal"] * 1e3;
            if measured == f64::from(millis) && device.thermal_level().await.unwrap() == level {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("npud is not {level} at {millis} m°C"));
    assert_eq!(health.thermal_level().await.unwrap(), level);
}

/// What npud answers to an ordinary request and to one that can wait: its verdict, or the error's name.
async fn admitted(machine: &Machine) -> [String; 2] {
    let mut answers = Vec::new();
    for priority in ["interactive", "batch"] {
        answers.push(match machine.infer_as(priority).await {
            Ok((_, verdict)) => verdict,
            Err(zbus::Error::MethodError(name, ..)) => name.to_string(),
            Err(other) => other.to_string(),
        });
    }
    answers.try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn npud_admits_what_the_health_daemons_level_allows_with_hysteresis() {
    let machine = Machine::start(Setup::default()).await;
    let (yes, no) = ("trusted", "org.cairn.Error.ThermalLimit");
    for (millis, level, expected) in [
        (61_000, "normal", [yes, yes]),
        (86_000, "throttled", [yes, no]),
        (81_000, "throttled", [yes, no]),
        (96_000, "critical", [no, no]),
        (91_000, "critical", [no, no]),
        (89_000, "throttled", [yes, no]),
        (79_000, "normal", [yes, yes]),
        (84_000, "normal", [yes, yes]),
    ] {
        heat(&machine, millis, level).await;
        assert_eq!(admitted(&machine).await, expected, "at {millis} m°C");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_that_nobody_confirms_any_more_refuses_nothing() {
    let mut machine = Machine::start(Setup::default()).await;
    heat(&machine, 96_000, "critical").await;
    // One that hangs is no better than one that is away.
    let pid = Pid::from_raw(machine.healthd.pid().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    npud_becomes_normal(&machine).await;
    kill_process(pid, Signal::CONT).unwrap();
    heat(&machine, 96_000, "critical").await;
    machine.healthd.kill().unwrap();
    npud_becomes_normal(&machine).await;
    assert_eq!(admitted(&machine).await, ["trusted", "trusted"]);
    machine.start_healthd();
    heat(&machine, 96_000, "critical").await;
}

async fn npud_becomes_normal(machine: &Machine) {
    let device = Device1Proxy::new(&machine.client).await.unwrap();
    let mut levels = device.receive_thermal_level_changed().await;
    let wait = async {
        while device.thermal_level().await.unwrap() != "normal" {
            levels.next().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("npud is normal without a health daemon");
}

/// A polkit that allows nothing, and notes what it was asked.
struct Polkit(Asked);

#[zbus::interface(name = "org.freedesktop.PolicyKit1.Authority")]
impl Polkit {
    fn check_authorization(
        &self,
        _subject: (String, HashMap<String, zbus::wire::OwnedVariant>),
        action: &str,
        _details: HashMap<String, String>,
        _flags: u32,
        _cancellation: &str,
    ) -> (bool, bool, HashMap<String, String>) {
        self.0.note(action.to_owned());
        (false, false, HashMap::new())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_polkit_reserves_is_refused() {
    let machine = Machine::start(Setup::default()).await;
    let stub = connection::Builder::address(machine.bus.address())
        .serve_at("/org/freedesktop/PolicyKit1/Authority", Polkit(machine.asked.clone()))
        .build()
        .await
        .unwrap();
    stub.request_name("org.freedesktop.PolicyKit1").await.unwrap();
    let health = machine.health().await;
    let denied = |error: zbus::Error| error.to_string().contains("org.freedesktop.DBus.Error.AccessDenied");
    assert!(denied(health.run_self_test(HashMap::new()).await.unwrap_err()));
    assert!(denied(health.create_support_bundle(HashMap::new()).await.unwrap_err()));
    assert!(denied(health.open_support_bundle("x.tar.gz", HashMap::new()).await.unwrap_err()));
    let bundle = "org.cairn.health1.create-support-bundle";
    assert_eq!(machine.asked.all(), ["org.cairn.health1.run-self-test", bundle, bundle]);
    // Looking is free.
    assert_eq!(health.reset_reason().await.unwrap(), "first");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_start_after_an_orderly_end_is_clean() {
    let mut machine = Machine::start(Setup::default()).await;
    for (orderly, reason) in [(false, "unclean"), (true, "clean")] {
        machine.shutting_down.store(orderly, std::sync::atomic::Ordering::SeqCst);
        machine.boot();
        assert_eq!(machine.health().await.reset_reason().await.unwrap(), reason);
    }
}

async fn ask(mut socket: tokio::net::UnixStream) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).await.unwrap();
    text
}

async fn finished(client: &Connection, path: OwnedObjectPath) -> Job1Proxy<'static> {
    let job = Job1Proxy::builder(client).destination(HEALTH_NAME).path(path).build().await.unwrap();
    let mut states = job.receive_state_changed().await;
    while job.state().await.unwrap() == "running" {
        tokio::time::timeout(PATIENCE, states.next()).await.unwrap().unwrap();
    }
    job
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watchdog_is_fed_until_the_daemon_says_goodbye() {
    let mut machine = Machine::start(Setup { watchdog: Some("200000"), ..Setup::default() }).await;
    machine.healthd.wait_for("WATCHDOG=1", PATIENCE).unwrap();
    machine.healthd.wait_for("WATCHDOG=1", PATIENCE).unwrap();
    machine.healthd.terminate().unwrap();
    machine.healthd.wait_for("STOPPING=1", PATIENCE).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_option_that_nobody_knows_is_refused_by_its_name() {
    let machine = Machine::start(Setup::default()).await;
    let health = machine.health().await;
    let unknown = || HashMap::from([("colour", zbus::Variant::from("red"))]);
    let wrong = HashMap::from([("models", zbus::Variant::from("all"))]);
    for (refused, named) in [
        (health.run_self_test(unknown()).await.map(drop), "unknown option \"colour\""),
        (health.run_self_test(wrong).await.map(drop), "option \"models\" is true or false"),
        (health.create_support_bundle(unknown()).await.map(drop), "unknown option \"colour\""),
        (health.open_support_bundle("x.tar.gz", unknown()).await.map(drop), "unknown option \"colour\""),
    ] {
        let error = refused.unwrap_err().to_string();
        assert_eq!(error, format!("org.freedesktop.DBus.Error.InvalidArgs: {named}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_self_test_proves_the_models_and_a_bundle_can_be_read() {
    let machine = Machine::start(Setup::default()).await;
    let health = machine.health().await;
    let job = finished(&machine.client, health.run_self_test(HashMap::new()).await.unwrap()).await;
    let mut details = job.details().await.unwrap();
    let checks: Vec<Check> = details.remove("checks").unwrap().try_into().unwrap();
    let passed: BTreeMap<&str, bool> = checks.iter().map(|check| (check.0.as_str(), check.1)).collect();
    assert_eq!(passed, [("npu cores", true), ("unit npud.service", true), ("model mnist", true)].into(), "{checks:?}");
    assert!(bool::try_from(details.remove("passed").unwrap()).unwrap());

    machine.hang().await;
    machine.settled(1).await;
    let job = finished(&machine.client, health.create_support_bundle(HashMap::new()).await.unwrap()).await;
    let name: String = job.details().await.unwrap().remove("name").unwrap().try_into().unwrap();
    let bundle = health.open_support_bundle(&name, HashMap::new()).await.unwrap();
    let bytes = fs::read(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&bundle))).unwrap();
    assert!(bytes.starts_with(&[0x1f, 0x8b]), "an archive is gzipped");
    health.open_support_bundle("../state.json", HashMap::new()).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_live_object_is_as_its_contract_says() {
    let machine = Machine::start(Setup::default()).await;
    machine.hang().await;
    let incidents = machine.settled(1).await;
    let mut compared = BTreeSet::new();
    for path in [HEALTH_ROOT, incidents[0].inner().path().as_str()] {
        let proxy = IntrospectableProxy::builder(&machine.client).destination(HEALTH_NAME).path(path);
        let live = testkit::interfaces(&proxy.build().await.unwrap().introspect().await.unwrap());
        for &(name, contract) in CONTRACTS {
            if let Some(live) = live.get(name) {
                assert_eq!(live, &testkit::interfaces(contract)[name], "{name} at {path}");
                compared.insert(name);
            }
        }
    }
    assert_eq!(compared, ["org.cairn.Health1", "org.cairn.Incident1"].into());
}
