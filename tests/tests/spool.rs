//! Reports that must not be lost, while the broker is away and the disk is full.

mod machine;
mod service;

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kit::mqtt::{Event, Limits, Publication, Sender, Settings, Spool};
use machine::{Machine, Setup};
use service::PATIENCE;
use testkit::{Broker, BrokerOptions};

/// Where the small disk is, in the process that has one.
const DISK: &str = "CAIRN_TEST_SMALL_DISK";
/// Reports of an hour, one a second.
const HOUR: usize = 3600;

/// Runs one test of this file again in a process of its own, whose only disk of its own has 64 KiB.
fn with_small_disk(test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let script = "mount -t tmpfs -o size=64k none \"$0\" && exec \"$1\" --exact \"$2\" --nocapture";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(folder.path()).arg(program).arg(test);
    let output = command.env(DISK, folder.path()).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn report(number: usize) -> Publication {
    let payload = format!("{number:0400}").into();
    Publication { topic: "reports".into(), payload, ..Publication::default() }
}

#[test]
fn an_hour_without_a_broker_on_a_full_disk_costs_only_the_oldest_reports() {
    let Some(disk) = std::env::var_os(DISK) else {
        return with_small_disk("an_hour_without_a_broker_on_a_full_disk_costs_only_the_oldest_reports");
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(an_hour(Path::new(&disk)));
}

async fn an_hour(disk: &Path) {
    let mut broker = Broker::start(BrokerOptions::default()).unwrap();
    let mut settings = Settings::new(broker.url());
    (settings.first_wait_ms, settings.longest_wait_ms) = (50, 200);
    broker.stop().unwrap();
    let (link, mut events) = kit::mqtt::open(&settings, "spool", 1, ("will", "offline")).unwrap();
    // The bound is far beyond what the disk takes.
    let spool = Spool::open(&disk.join("spool"), Limits { messages: 1000, bytes: 1 << 20 }).unwrap();
    let mut sender = Sender::new(spool);
    (0..HOUR).for_each(|number| sender.push(report(number)));
    let (kept, dropped) = (sender.spool().len(), sender.spool().dropped());
    assert_eq!(kept + usize::try_from(dropped).unwrap(), HOUR);
    assert!((10..1000).contains(&kept), "{kept} reports fit a disk of 64 KiB");

    broker.start_again().unwrap();
    // The broker keeps the reports for a reader that it knows.
    assert!(reader(&broker).arg("-E").status().unwrap().success());
    let mut online = false;
    while !sender.spool().is_empty() {
        tokio::select! {
            event = events.recv() => match event.unwrap() {
                Event::Connected => online = true,
                Event::Disconnected { .. } => online = false,
                _ => {}
            },
            () = sender.confirmed() => {}
        }
        if online {
            sender.offer(&*link);
        }
    }
    let end = Publication { topic: "end".into(), payload: "end".into(), ..Publication::default() };
    let acknowledged = async { while events.recv().await.is_some() {} };
    let receipt = link.publish_confirmed(end).unwrap();
    tokio::select! {
        receipt = receipt => receipt.unwrap(),
        () = acknowledged => panic!("the link ended"),
    }
    let output = reader(&broker).args(["-W", "120", "-C", &(kept + 1).to_string()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let received: Vec<&str> = text.lines().collect();
    let kept = (HOUR - kept..HOUR).map(|number| format!("{number:0400}"));
    let expected: Vec<String> = kept.chain(["end".into()]).collect();
    assert_eq!(received, expected, "every report that was kept arrives once and in order");
}

/// A reader whose session outlives its connection.
fn reader(broker: &Broker) -> Command {
    let mut command = broker.client("mosquitto_sub").unwrap();
    command.args(["-V", "311", "-c", "-i", "reader", "-q", "1", "-t", "reports", "-t", "end"]);
    command
}

/// Faults of the storage in an hour of the kernel's time: so far apart that each is told.
const FAULTS: usize = 360;
/// Requests in each part of the test.
const REQUESTS: usize = 40;

#[test]
fn inference_goes_on_while_the_broker_is_away_and_the_disk_is_full() {
    let Some(disk) = std::env::var_os(DISK) else {
        return with_small_disk("inference_goes_on_while_the_broker_is_away_and_the_disk_is_full");
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(outage(Path::new(&disk)));
}

async fn outage(disk: &Path) {
    let mut broker = Broker::start(BrokerOptions { persistent: true, ..BrokerOptions::default() }).unwrap();
    assert!(machine::reader(&broker).arg("-E").status().unwrap().success());
    let mqtt = format!("[mqtt]\nurl = \"{}\"\nfirst-wait-ms = 50\nlongest-wait-ms = 200\n", broker.url());
    let setup = Setup { healthd: mqtt.clone(), npud: mqtt, state: Some(disk.join("state")), ..Setup::default() };
    let machine = Machine::start(setup).await;
    gauge(&machine, "mqtt-connected", 1.0).await;
    let before = infer(&machine).await;

    broker.shut_down().unwrap();
    gauge(&machine, "mqtt-connected", 0.0).await;
    let (during, ()) = tokio::join!(infer(&machine), an_hour_of_faults(&machine));
    assert_eq!(during, before, "results and verdicts do not change");
    assert!(before.iter().all(|(_, verdict)| verdict == "trusted"));
    let (kept, dropped) = reports(&machine).await;
    assert_eq!(kept + dropped, FAULTS);
    assert!((5..FAULTS / 2).contains(&kept), "{kept} reports fit a disk of 64 KiB");

    broker.start_again().unwrap();
    gauge(&machine, "reports-waiting", 0.0).await;
    let end = broker.client("mosquitto_pub").unwrap().args(["-q", "1", "-t", TOPIC, "-m", r#"{"id":"end"}"#]).status();
    assert!(end.unwrap().success());
    let received: Vec<String> =
        machine::messages(&broker, kept + 1).iter().map(|report| report["id"].as_str().unwrap().to_owned()).collect();
    let numbers = FAULTS - kept..FAULTS;
    let expected: Vec<String> = numbers.map(|number| format!("0a1b2c3d-{number}")).chain(["end".into()]).collect();
    assert_eq!(received, expected, "every report that was kept arrives once and in order");
    assert_eq!(infer(&machine).await, before);
    let device = api::dbus::Device1Proxy::new(&machine.client).await.unwrap();
    let counters = device.counters().await.unwrap();
    let all = u64::try_from(3 * REQUESTS).unwrap();
    let refused = counters["queue-full"] + counters["failed"] + counters["untrusted"] + counters["deadline-exceeded"];
    assert_eq!((counters["requests"], counters["trusted"], refused), (all, all, 0));
}

/// Where healthd reports.
const TOPIC: &str = "cairn/d/health/incident";

/// What npud answers to all requests of a part.
async fn infer(machine: &Machine) -> Vec<(Vec<u8>, String)> {
    let mut answers = Vec::new();
    for number in 0..REQUESTS {
        let answer = tokio::time::timeout(PATIENCE, machine.infer(number % 10)).await;
        answers.push(answer.expect("a request does not wait for the broker").unwrap());
    }
    answers
}

/// The kernel's log of an hour in which a file system fails again and again; until healthd has dealt with all of it.
async fn an_hour_of_faults(machine: &Machine) {
    let mut log = String::new();
    for number in 0..FAULTS {
        let micros = number * HOUR / FAULTS * 1_000_000;
        let line = "EXT4-fs (mmcblk0p2): Remounting filesystem read-only";
        writeln!(log, "3,{number},{micros},-;{line}").unwrap();
    }
    let mut file = OpenOptions::new().append(true).open(machine.folder.path().join("kmsg")).unwrap();
    file.write_all(log.as_bytes()).unwrap();
    let mut look = tokio::time::interval(Duration::from_millis(50));
    let wait = async {
        let mut before = (0, 0);
        // The two numbers are read one after the other: only where they stay do they belong together.
        loop {
            look.tick().await;
            let now = reports(machine).await;
            if std::mem::replace(&mut before, now) == now && now.0 + now.1 == FAULTS {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("healthd deals with an hour of faults");
}

/// Reports that wait, and that were dropped.
async fn reports(machine: &Machine) -> (usize, usize) {
    let health = machine.health().await;
    // The counter is taken with the gauge, so that a report is not counted as both.
    let (gauges, counters) = (health.gauges().await.unwrap(), health.counters().await.unwrap());
    // CAST: both are far below the 53 bits of a double.
    (gauges["reports-waiting"] as usize, usize::try_from(counters["reports-dropped"]).unwrap())
}

/// Waits until healthd shows a value.
async fn gauge(machine: &Machine, name: &str, value: f64) {
    let health = machine.health().await;
    let mut look = tokio::time::interval(Duration::from_millis(50));
    let wait = async {
        while health.gauges().await.unwrap().get(name) != Some(&value) {
            look.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{name} does not become {value}"));
}
