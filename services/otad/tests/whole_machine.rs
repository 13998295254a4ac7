//! An update from its offer to its end on a machine whose daemons are the real ones, as everybody sees it who looks: D-Bus,
//! MQTT, hawkBit and the bootloader.

#![allow(clippy::unwrap_used, reason = "functions beside the tests unwrap as the tests themselves do")]

mod system;

use std::fs;

use system::bundles::{Bundle, Recipe};
use system::hawkbit::Server;
use system::whole::Whole;
use system::{reported, until, until_connected};
use testkit::{Broker, BrokerOptions};

/// Tries that the bootloader gives a new system. SOURCE: rauc-system.conf.in, boot.cmd.
const TRIES: u32 = 3;

/// A machine that is off, its broker and its hawkBit.
async fn machine() -> (Whole, Broker, Server) {
    let (broker, server) = (Broker::start(BrokerOptions::default()).unwrap(), Server::start());
    let more = format!(
        "[rules]\nidle-seconds = 0\n[mqtt]\nurl = \"{}\"\nfirst-wait-ms = 50\n[hawkbit]\nurl = \"{}\"\npoll-seconds = 1\n",
        broker.url(),
        server.url()
    );
    let machine = Whole::new(&more).await;
    fs::write(machine.system.path("channel"), "beta\n").unwrap();
    (machine, broker, server)
}

fn bundle(version: &'static str) -> Bundle {
    Bundle::new(Recipe { version, compatible: "cairn-test", boot: true, ..Recipe::default() })
}

fn told(execution: &str, finished: &str) -> (String, String) {
    (execution.to_owned(), finished.to_owned())
}

/// Has hawkBit offer a bundle to the system in slot A, and waits until the machine wants to start anew.
async fn install(machine: &mut Whole, server: &Server, action: u32, bundle: &Bundle, version: &str) {
    until_connected(&machine.system).await;
    let before = machine.system.machine().reboots;
    server.assign(action, &bundle.file);
    machine.system.until_state("installed").await;
    machine.check_slot("B", bundle, version);
    until("a reboot", || machine.system.machine().reboots == before + 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_is_well_is_healthy_for_everybody_when_the_gate_has_said_so() {
    let (mut machine, broker, server) = machine().await;
    let good = bundle("1.1.0");
    assert_eq!(machine.start(["1.0.0", ""]).await, "A");
    assert!(machine.system.gate().await, "{}", machine.system.gate_log());
    install(&mut machine, &server, 7, &good, "1.1.0").await;
    assert_eq!(server.attributes()["channel"], "beta");

    let versions = ["1.0.0", "1.1.0"];
    assert_eq!(machine.start(versions).await, "B");
    let report = reported(&broker, |report| report.state == "booted").await;
    assert_eq!((report.installed_version.as_str(), report.slot.as_str()), ("1.1.0", "B"));
    until_connected(&machine.system).await;
    until("hawkBit knows of the trial", || server.details(7).contains("booted")).await;
    assert_eq!(server.told(7), [told("proceeding", "none")], "the action was closed before the gate");
    assert_eq!(machine.boot_state("BOOT_B_LEFT"), "2");

    assert!(machine.system.gate().await, "{}", machine.system.gate_log());
    machine.system.until_state("healthy").await;
    reported(&broker, |report| report.state == "healthy").await;
    until("hawkBit knows of the end", || server.told(7).len() > 1).await;
    assert_eq!(server.told(7), [told("proceeding", "none"), told("closed", "success")]);
    assert_eq!(server.attributes()["version"], "1.1.0");
    assert_eq!((machine.boot_state("BOOT_B_LEFT"), machine.boot_state("BOOT_ORDER")), ("3".into(), "B A".into()));
    assert_eq!(machine.start(versions).await, "B", "it is what starts from now on");
}

/// Lets the system in slot B fail its tries, until A is back.
async fn fails(machine: &mut Whole, server: &Server, action: u32, versions: [&str; 2], why: &str) {
    for attempt in 1..=TRIES {
        assert_eq!(machine.start(versions).await, "B", "{why}, try {attempt}");
        machine.system.until_state("booted").await;
        assert!(!machine.system.gate().await, "{why}: passed");
        assert!(machine.system.gate_log().contains(why), "{why}: {}", machine.system.gate_log());
    }
    assert_eq!(machine.boot_state("BOOT_B_LEFT"), "0");
    assert_eq!(server.told(action), [told("proceeding", "none")], "{why}: the action was closed during the trial");
    let panic = format!("<0>[   12.5] Kernel panic - not syncing: {versions:?}\n");
    fs::write(machine.system.path("pstore/dmesg-ramoops-0"), &panic).unwrap();
    assert_eq!(machine.start(versions).await, "A", "{why}");
    let (passed, ()) = tokio::join!(machine.system.gate(), machine.system.until_state("rolled-back"));
    assert!(passed, "{why}: the former system is not on trial: {}", machine.system.gate_log());
}

/// What everybody is told about a rollback.
async fn check_told(machine: &Whole, broker: &Broker, server: &Server, action: u32, reason: &str) {
    let update = machine.system.update().await;
    assert_eq!(update.reason().await.unwrap(), reason);
    let tail = update.kernel_tail().await.unwrap();
    assert!(tail.last().unwrap().contains("Kernel panic"), "{tail:?}");
    let report = reported(broker, |report| report.state == "rolled-back").await;
    assert_eq!((report.reason.as_str(), report.kernel_tail, report.slot.as_str()), (reason, tail, "A"));
    until("hawkBit knows of the rollback", || server.told(action).len() > 1).await;
    assert_eq!(server.told(action), [told("proceeding", "none"), told("closed", "failure")]);
    let details = server.details(action);
    assert!(details.contains(reason) && details.contains("Kernel panic"), "{details}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_is_unwell_is_given_up_after_its_tries_and_everybody_hears_why() {
    let (mut machine, mut broker, server) = machine().await;
    assert_eq!(machine.start(["1.0.0", ""]).await, "A");

    // The NPU of the new system computes something else than its package says.
    install(&mut machine, &server, 1, &bundle("1.1.1"), "1.1.1").await;
    machine.set_golden("B", false);
    fails(&mut machine, &server, 1, ["1.0.0", "1.1.1"], "self-test: other is not loaded").await;
    let reason = "slot B failed self-test: other is not loaded, tries: 3";
    check_told(&machine, &broker, &server, 1, reason).await;
    machine.set_golden("B", true);

    // A service does not come up.
    install(&mut machine, &server, 2, &bundle("1.1.2"), "1.1.2").await;
    machine.healthd_comes_up[1] = false;
    fails(&mut machine, &server, 2, ["1.0.0", "1.1.2"], "services: healthd.service not active").await;
    let reason = "slot B failed services: healthd.service not active, tries: 3";
    check_told(&machine, &broker, &server, 2, reason).await;
    machine.healthd_comes_up[1] = true;

    // The broker that was there is not found any more. It is back when the former system is.
    install(&mut machine, &server, 3, &bundle("1.1.3"), "1.1.3").await;
    broker.stop().unwrap();
    let why = "broker: not connected, as it was before the update";
    fails(&mut machine, &server, 3, ["1.0.0", "1.1.3"], why).await;
    broker.start_again().unwrap();
    check_told(&machine, &broker, &server, 3, &format!("slot B failed {why}, tries: 3")).await;

    // The machine goes on being updated.
    let better = bundle("1.2.0");
    install(&mut machine, &server, 4, &better, "1.2.0").await;
    assert_eq!(machine.start(["1.0.0", "1.2.0"]).await, "B");
    until_connected(&machine.system).await;
    assert!(machine.system.gate().await, "{}", machine.system.gate_log());
    machine.system.until_state("healthy").await;
}
