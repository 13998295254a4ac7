//! Updates as a device sees them: a real RAUC writes real slots, and each way to fail is broken on purpose. After each, a
//! slot is bootable, the state is true, and the next attempt succeeds.

#![allow(clippy::unwrap_used, reason = "functions beside the tests unwrap as the tests themselves do")]

mod system;

use std::fs;
use std::process::Command;
use std::time::Duration;

use api::dbus::CONTRACTS;
use api::mqtt::UpdateReport;
use system::bundles::{Bundle, Recipe};
use system::{PATIENCE, System, reported, until, until_connected};
use testkit::{Broker, BrokerOptions};
use zbus::Variant;
use zbus::fdo::IntrospectableProxy;

/// Points of an installation at which something is killed, at least.
const POINTS: usize = 20;
/// Bytes of which a slot has some by chance only if RAUC writes it.
const BLOCK: usize = 4096;

#[zbus::proxy(interface = "de.pengutronix.rauc.Installer", default_service = "de.pengutronix.rauc", default_path = "/")]
trait Installer {
    #[zbus(property(emits_changed_signal = "false"))]
    fn operation(&self) -> zbus::Result<String>;
}

/// Takes the machine from `installed` to `healthy`.
async fn pass(system: &mut System, version: &str) {
    assert_eq!(system.preferred(), "B");
    system.boot("B", version).await;
    system.until_state("booted").await;
    assert!(system.gate().await, "{}", system.gate_log());
    system.until_state("healthy").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_update_is_healthy_when_the_gate_says_so_and_not_before() {
    let mut system = System::start("").await;
    let bundle = Bundle::new(Recipe::default());
    assert!(system.gate().await, "a slot that is not on trial passes");
    let job = system.install(&bundle.file, &[]).await.unwrap();
    assert_eq!(system.end(&job).await, ("done".into(), String::new()));
    let update = system.update().await;
    assert_eq!((update.state().await.unwrap(), update.version().await.unwrap()), ("installed".into(), "1.0.0".into()));
    assert_eq!(update.target_version().await.unwrap(), "1.1.0");
    system.check_bootable(&bundle.payload);
    // Whoever asked for it now is asked before the machine starts anew.
    assert_eq!(system.machine().reboots, 0);
    update.proceed(Default::default()).await.unwrap();
    let reboots = || system.machine().reboots;
    until("a reboot", || reboots() == 1).await;
    // A daemon that was restarted within the same boot knows that nothing was tried yet.
    system.kill_otad();
    system.start_otad();
    system.until_state("installed").await;

    system.boot("B", "1.1.0").await;
    system.until_state("booted").await;
    assert_eq!(system.update().await.slot().await.unwrap(), "B");
    assert!(system.gate().await, "{}", system.gate_log());
    system.until_state("healthy").await;
    assert_eq!((system.bootloader("B"), system.preferred()), ("good".into(), "B".into()));
    assert!(system.gate().await, "the gate may run twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_must_not_be_installed_is_refused_with_a_reason_and_the_next_good_bundle_is_taken() {
    let mut system = System::start("").await;
    let tampered = Bundle::new(Recipe::default());
    tampered.tamper();
    let truncated = Bundle::new(Recipe::default());
    truncated.truncate();
    let of = |recipe| Bundle::new(recipe);
    let good = of(Recipe::default());
    let old = of(Recipe { version: "0.9.0", ..Recipe::default() });
    // RAUC before 1.9 does not say why it refuses to look into a bundle.
    const UNTRUSTED: &[&str] = &["signature:", "bundle: rauc refuses the bundle"];
    const DAMAGED: &[&str] = &["bundle:"];
    type Case<'a> = (&'a str, &'a Bundle, &'a [(&'a str, Variant<'a>)], &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        ("tampered", &tampered, &[], UNTRUSTED),
        ("truncated", &truncated, &[], DAMAGED),
        ("foreign key", &of(Recipe { signer: "foreign", ..Recipe::default() }), &[], UNTRUSTED),
        ("wrong compatible", &of(Recipe { compatible: "other-board", ..Recipe::default() }), &[], &["compatible:"]),
        ("downgrade", &old, &[], &["downgrade: 0.9.0 is older than 1.0.0"]),
        ("odd version", &of(Recipe { version: "tuesday", ..Recipe::default() }), &[], &["bundle: version \"tuesday\""]),
        (
            "another version",
            &good,
            &[("version", "1.2.0".into())],
            &["version: 1.2.0 was offered, the bundle has 1.1.0"],
        ),
        ("too large", &of(Recipe { bytes: 9 << 20, ..Recipe::default() }), &[], &["space:"]),
    ];
    for (name, bundle, options, reasons) in cases {
        let job = system.install(&bundle.file, options).await.unwrap();
        let (state, error) = system.end(&job).await;
        assert!(
            state == "failed" && reasons.iter().any(|reason| error.starts_with(reason)),
            "{name}: {state}: {error}"
        );
        assert_eq!(system.update().await.state().await.unwrap(), "failed", "{name}");
        assert_eq!(system.preferred(), "A", "{name}");
        system.check_bootable(&bundle.payload);
    }
    let missing = system.install(&system.path("none.raucb"), &[]).await.unwrap();
    assert_eq!(system.end(&missing).await.0, "failed");
    let job = system.install(&good.file, &[("version", "1.1.0".into())]).await.unwrap();
    assert_eq!(system.end(&job).await.0, "done", "{}", system.log());
    system.check_bootable(&good.payload);
    pass(&mut system, "1.1.0").await;
    let back = system.install(&old.file, &[("allow-downgrade", true.into())]).await.unwrap();
    assert_eq!(system.end(&back).await.0, "done", "a person may go back");
}

/// Whether this RAUC tells a bundle's manifest hash.
async fn tells_manifest_hash(system: &System) -> bool {
    let rauc = IntrospectableProxy::builder(&system.client).destination("de.pengutronix.rauc");
    rauc.path("/").build().await.unwrap().introspect().await.unwrap().contains("InspectBundle")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_with_another_manifest_than_was_offered_is_refused_before_anything_is_written() {
    let system = System::start("").await;
    let bundle = Bundle::new(Recipe::default());
    let other = "0".repeat(64);
    let job = system.install(&bundle.file, &[("manifest-hash", other.as_str().into())]).await.unwrap();
    let (state, error) = system.end(&job).await;
    let hash = bundle.manifest_hash();
    let reason = if tells_manifest_hash(&system).await {
        format!("manifest: {other} was offered, the bundle has {hash:?}")
    } else {
        // Before 1.9: what cannot be checked is not installed.
        "unsupported: this RAUC does not tell a bundle's manifest hash".to_owned()
    };
    assert!(state == "failed" && error.starts_with(&reason), "{error}");
    assert_eq!((system.preferred(), system.bootloader("B")), ("A".into(), "good".into()));
    system.check_untouched();
    if tells_manifest_hash(&system).await {
        let job = system.install(&bundle.file, &[("manifest-hash", hash.as_str().into())]).await.unwrap();
        let (state, error) = system.end(&job).await;
        // From 1.14 on, RAUC is held to the hash itself, and refuses for it what is not of the format verity.
        let is_plain = error.contains("Refusing to install plain bundle when using require-manifest-hash");
        assert!(state == "done" || is_plain, "{error}\n{}", system.log());
        system.check_bootable(&bundle.payload);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_an_update_before_it_begins_and_room_lets_it_go_on() {
    let mut system = System::new("[rules]\nfree-mib = 0\n").await;
    let bundle = Bundle::new(Recipe::default());
    // The daemon's folder is a small file system in the daemon's own mount namespace.
    let program = system.path("otad.sh");
    let state = system.path("state");
    let (state, otad) = (state.display(), env!("CARGO_BIN_EXE_otad"));
    let script = format!(
        "#!/bin/sh\nexec unshare --mount --propagation private sh -c 'mount -t tmpfs -o size=64k none {state} && exec {otad} \"$@\"' sh \"$@\"\n"
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    system.boot("A", "1.0.0").await;
    system.kill_otad();
    system.start_program(&program);
    let inside = format!("/proc/{}/root{state}", system.otad_pid());
    let filler = format!("{inside}/filler");
    let fill = || {
        let mut bytes = 128 << 10;
        while bytes > 0 {
            let mut all = fs::read(&filler).unwrap_or_default();
            all.resize(all.len() + bytes, 0);
            if fs::write(&filler, &all).is_err() {
                bytes /= 2;
            }
        }
    };
    fill();
    let error = system.install(&bundle.file, &[]).await.unwrap_err().to_string();
    assert!(error.contains("space:") && error.contains("No space left"), "{error}");
    assert_eq!(system.update().await.state().await.unwrap(), "idle", "what cannot be written down is not so");
    system.check_bootable(&bundle.payload);
    fs::remove_file(&filler).unwrap();
    let job = system.install(&bundle.file, &[]).await.unwrap();
    assert_eq!(system.end(&job).await.0, "done", "{}", system.log());
    system.check_bootable(&bundle.payload);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_installation_waits_for_the_first_or_is_told_that_it_is_busy() {
    let system = System::start("").await;
    let bundle = Bundle::new(Recipe { bytes: 6 << 20, ..Recipe::default() });
    // Somebody else's installation, at the same time.
    let mut theirs = Command::new(system::bundles::rauc());
    theirs.arg("install").arg(&bundle.file).env("DBUS_SYSTEM_BUS_ADDRESS", system.bus.address());
    let mut theirs = testkit::Process::start(&mut theirs, "rauc").unwrap();
    // Theirs is the first: RAUC refuses the second, and whoever is refused is not disturbed.
    let rauc = InstallerProxy::new(&system.client).await.unwrap();
    let installs = async {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        while rauc.operation().await.unwrap() != "installing" && theirs.child().try_wait().unwrap().is_none() {
            look.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, installs).await.unwrap();
    let ours = system.install(&bundle.file, &[]).await.unwrap();
    let again = system.install(&bundle.file, &[]).await;
    let state = system.update().await.state().await.unwrap();
    if let Err(error) = again {
        assert!(error.to_string().contains("Busy"), "{state}: {error}");
    }
    assert_eq!(system.end(&ours).await.0, "done", "{}", system.log());
    assert!(theirs.child().wait().unwrap().success(), "another's installation was disturbed");
    system.check_bootable(&bundle.payload);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rauc_that_hangs_holds_up_nobody_who_asks_the_daemon() {
    let mut system = System::start("").await;
    system.signal_rauc("STOP");
    let update = system.update().await;
    // The daemon may be waiting for RAUC already, and gives up by itself.
    tokio::time::timeout(PATIENCE, update.dismiss(Default::default())).await.unwrap().unwrap();
    let bundle = Bundle::new(Recipe::default());
    let job = system.install(&bundle.file, &[]).await.unwrap();
    system.signal_rauc("CONT");
    assert_eq!(system.end(&job).await.0, "done", "{}", system.log());
    system.check_bootable(&bundle.payload);
}

/// Points of one installation by RAUC.
async fn count_points(system: &System, bundle: &Bundle) -> usize {
    system.until_slot().await;
    system.set_point(0, "pass");
    let job = system.install(&bundle.file, &[]).await.unwrap();
    assert_eq!(system.end(&job).await.0, "done", "{}", system.log());
    system.points()
}

#[tokio::test(flavor = "multi_thread")]
async fn rauc_killed_at_any_point_leaves_a_bootable_slot_and_the_retry_succeeds() {
    let mut system = System::start("").await;
    let bundle = Bundle::new(Recipe::default());
    let points = count_points(&system, &bundle).await;
    assert!(points >= POINTS, "RAUC passes only {points} points");
    for point in 1..=points {
        system.set_point(point, "kill");
        let job = system.install(&bundle.file, &[]).await.unwrap();
        until("the point", || system.path("reached").exists()).await;
        system.until_rauc(false).await;
        system.check_bootable(&bundle.payload);
        let state = system.update().await.state().await.unwrap();
        assert!(state != "installed" || system.preferred() == "B", "point {point}: {state}");
        fs::remove_file(system.path("reached")).unwrap();
        system.start_rauc("A").await;
        assert_eq!(system.end(&job).await, ("done".into(), String::new()), "point {point}: {}", system.log());
        assert_eq!(system.update().await.state().await.unwrap(), "installed", "point {point}");
        assert_eq!(system.preferred(), "B", "point {point}");
        system.check_bootable(&bundle.payload);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rauc_killed_while_it_writes_leaves_a_bootable_slot_and_the_retry_succeeds() {
    let mut system = System::start("").await;
    let bundle = Bundle::new(Recipe { bytes: 7 << 20, ..Recipe::default() });
    let job = system.install(&bundle.file, &[]).await.unwrap();
    // Not what RAUC says: its progress leaves out steps that are soon followed by others.
    until("the first block", || system.written(&bundle.payload) >= BLOCK).await;
    system.stop_rauc();
    println!("RAUC was killed with {} of {} bytes written", system.written(&bundle.payload), bundle.payload.len());
    system.check_bootable(&bundle.payload);
    system.start_rauc("A").await;
    assert_eq!(system.end(&job).await, ("done".into(), String::new()), "{}", system.log());
    system.check_bootable(&bundle.payload);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_killed_at_any_point_finds_out_how_it_stands_and_the_update_succeeds() {
    let mut system = System::start("").await;
    let bundle = Bundle::new(Recipe::default());
    let points = count_points(&system, &bundle).await;
    assert!(points >= POINTS, "RAUC passes only {points} points");
    for point in 1..=points {
        // The points are counted from nothing: no other work of RAUC may be left over.
        system.until_slot().await;
        system.set_point(point, "hold");
        system.install(&bundle.file, &[]).await.unwrap();
        until("the point", || system.path("reached").exists()).await;
        system.kill_otad();
        system.check_bootable(&bundle.payload);
        system.start_otad();
        fs::remove_file(system.path("reached")).unwrap();
        system.until_state("installed").await;
        assert_eq!(system.preferred(), "B", "point {point}");
        system.check_bootable(&bundle.payload);
    }
    pass(&mut system, "1.1.0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_fails_its_trial_is_reported_with_check_tries_and_kernel_tail() {
    let mut system = System::start("").await;
    let bundle = Bundle::new(Recipe::default());
    let job = system.install(&bundle.file, &[]).await.unwrap();
    assert_eq!(system.end(&job).await.0, "done");
    let core = system.path("sys/bus/platform/drivers/rocket/2.npu");
    fs::remove_dir(&core).unwrap();
    for _ in 0..3 {
        system.boot("B", "1.1.0").await;
        system.until_state("booted").await;
        assert!(!system.gate().await, "a slot with two cores passed");
        assert_eq!(system.update().await.state().await.unwrap(), "booted");
    }
    fs::create_dir(&core).unwrap();
    fs::write(system.path("pstore/dmesg-ramoops-0"), "Panic#1\n<0>[   12.5] Kernel panic - not syncing: test\n")
        .unwrap();
    system.boot("A", "1.0.0").await;
    let (passed, ()) = tokio::join!(system.gate(), system.until_state("rolled-back"));
    assert!(passed, "the former slot is not on trial");
    let update = system.update().await;
    assert_eq!(update.reason().await.unwrap(), "slot B failed npu: 2 of 3 cores, tries: 3");
    let tail = update.kernel_tail().await.unwrap();
    assert!(tail.last().unwrap().contains("Kernel panic - not syncing: test"), "{tail:?}");
    // The former system goes on being updated.
    let better = Bundle::new(Recipe { version: "1.1.1", ..Recipe::default() });
    let job = system.install(&better.file, &[]).await.unwrap();
    assert_eq!(system.end(&job).await.0, "done", "{}", system.log());
    pass(&mut system, "1.1.1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_without_authorisation_changes_anything() {
    let system = System::start("").await;
    let bundle = Bundle::new(Recipe::default());
    system.machine().allowed = false;
    let update = system.update().await;
    for error in [
        system.install(&bundle.file, &[]).await.unwrap_err(),
        update.proceed(Default::default()).await.unwrap_err(),
        update.dismiss(Default::default()).await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("AccessDenied"), "{error}");
    }
    assert_eq!(update.state().await.unwrap(), "idle");
    system.machine().allowed = true;
    for (source, options) in
        [("relative", vec![]), ("/b", vec![("unknown", true.into())]), ("/b", vec![("wait", 1.into())])]
    {
        let error = system.install(source.as_ref(), &options).await.unwrap_err().to_string();
        assert!(error.contains("InvalidArgs"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_factory_reset_is_asked_for_and_begins_at_once_or_not_at_all() {
    let system = System::start("").await;
    let update = system.update().await;
    let marker = system.path("state/factory-reset");
    let refused = async |words: &str| {
        let error = update.factory_reset(Default::default()).await.unwrap_err().to_string();
        assert!(error.contains(words) && !marker.exists(), "{error}");
        assert_eq!(system.machine().reboots, 0);
    };
    system.machine().allowed = false;
    refused("AccessDenied").await;
    system.machine().allowed = true;
    let options = [("at", "once".into())].into();
    assert!(update.factory_reset(options).await.unwrap_err().to_string().contains("InvalidArgs"));
    system.machine().stays = true;
    refused("somebody inhibits it").await;
    system.machine().stays = false;

    // The trial that follows needs what would be removed.
    let bundle = Bundle::new(Recipe::default());
    let job = system.install(&bundle.file, &[]).await.unwrap();
    assert_eq!(system.end(&job).await.0, "done");
    refused("an update is installed").await;

    let system = System::start("").await;
    system.update().await.factory_reset(Default::default()).await.unwrap();
    assert!(system.path("state/factory-reset").exists());
    assert_eq!(system.machine().reboots, 1);
}

#[test]
fn the_program_that_resets_looks_where_the_daemon_leaves_its_wish() {
    let unit = include_str!("../../cairn-provision/dist/cairn-factory-reset.service");
    let wish = otad::Places::default().state.join(otad::RESET);
    for words in [format!("ConditionPathExists=|{}\n", wish.display()), format!(" --marker {} ", wish.display())] {
        assert!(unit.contains(&words), "{words}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_live_object_is_as_its_contract_says() {
    let system = System::start("").await;
    let builder = IntrospectableProxy::builder(&system.client).destination("org.cairn.Update1");
    let live = builder.path("/org/cairn/Update1").build().await.unwrap().introspect().await.unwrap();
    for wanted in ["org.cairn.Update1", "org.cairn.ModelStore1"] {
        let (name, contract) = CONTRACTS.iter().find(|(name, _)| *name == wanted).unwrap();
        assert_eq!(testkit::interfaces(&live)[*name], testkit::interfaces(contract)[*name]);
    }
}

fn desired(broker: &Broker, payload: &str) {
    let mut command = broker.client("mosquitto_pub").unwrap();
    let status = command.args(["-q", "1", "-r", "-t", "cairn/d/update/desired", "-m", payload]).status().unwrap();
    assert!(status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_desired_state_over_mqtt_waits_for_its_conditions_and_then_does_all_by_itself() {
    let broker = Broker::start(BrokerOptions::default()).unwrap();
    let more = format!(
        "[rules]\nidle-seconds = 0\n[home-assistant]\nenabled = true\n[mqtt]\nurl = \"{}\"\nfirst-wait-ms = 50\n",
        broker.url()
    );
    let server = system::hawkbit::Server::start();
    let bundle = Bundle::new(Recipe::default());
    server.assign(0, &bundle.file);
    let mut system = System::new(&more).await;
    system.machine().thermal = "throttled";
    system.boot("A", "1.0.0").await;
    let url = format!("{}/download/update.raucb", server.url());
    desired(&broker, &format!(r#"{{"version":"1.1.0","url":"{url}","wave":{{"seed":"s","percent":0}}}}"#));
    let report = reported(&broker, |report| report.state == "offered" && !report.waiting.is_empty()).await;
    assert_eq!((report.installed_version.as_str(), report.latest_version.as_str()), ("1.0.0", "1.1.0"));
    assert_eq!(report.waiting, ["wave: other devices go first", "heat: the machine is too hot"]);
    // The wave grows, and the machine cools.
    system.machine().thermal = "normal";
    desired(&broker, &format!(r#"{{"version":"1.1.0","url":"{url}","wave":{{"seed":"s","percent":100}}}}"#));
    reported(&broker, |report| report.state == "installed").await;
    system.check_bootable(&bundle.payload);
    let reboots = || system.machine().reboots;
    until("a reboot", || reboots() == 1).await;
    system.boot("B", "1.1.0").await;
    let report = reported(&broker, |report| report.state == "booted").await;
    assert_eq!((report.installed_version.as_str(), report.slot.as_str()), ("1.1.0", "B"));
    until_connected(&system).await;
    assert!(system.gate().await, "{}", system.gate_log());
    reported(&broker, |report| report.state == "healthy").await;
    // The desired state is still there, and is what runs.
    system.kill_otad();
    system.start_otad();
    until_connected(&system).await;
    assert_eq!(system.update().await.state().await.unwrap(), "healthy");
    let mut entity = broker.client("mosquitto_sub").unwrap();
    let entity =
        entity.args(["-W", "60", "-C", "1", "-t", "homeassistant/device/cairn_d_update/config"]).output().unwrap();
    let entity: serde_json::Value = serde_json::from_slice(&entity.stdout).unwrap();
    assert_eq!(entity["cmps"]["update"]["state_topic"], "cairn/d/update/state");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_desired_for_another_channel_is_not_taken_and_takes_back_what_was() {
    let broker = Broker::start(BrokerOptions::default()).unwrap();
    let more = format!("[rules]\nautomatic = false\n[mqtt]\nurl = \"{}\"\nfirst-wait-ms = 50\n", broker.url());
    let mut system = System::new(&more).await;
    let channel = |name: &str, version: &str| {
        let url = "http://127.0.0.1:1/update.raucb";
        desired(&broker, &format!(r#"{{"version":"{version}","url":"{url}","channel":"{name}"}}"#));
    };
    let version = |report: &UpdateReport| report.latest_version.clone();
    // As cairn.toml's channel arrives.
    fs::write(system.path("channel"), "stable\n").unwrap();
    channel("stable", "1.1.0");
    system.boot("A", "1.0.0").await;
    let report = reported(&broker, |report| report.state == "offered").await;
    assert_eq!((version(&report).as_str(), report.channel.as_str()), ("1.1.0", "stable"));
    assert_eq!(system.update().await.channel().await.unwrap(), "stable");
    channel("beta", "2.0.0");
    let report = reported(&broker, |report| report.state == "idle").await;
    assert_eq!(version(&report), "1.0.0");
    // Who changes to it with the next start takes it.
    fs::write(system.path("channel"), "beta\n").unwrap();
    system.boot("A", "1.0.0").await;
    let report = reported(&broker, |report| report.state == "offered" && report.channel == "beta").await;
    assert_eq!(version(&report), "2.0.0");
    // Who follows none takes only what is for all.
    fs::remove_file(system.path("channel")).unwrap();
    system.boot("A", "1.0.0").await;
    reported(&broker, |report| report.state == "idle" && report.channel.is_empty()).await;
    desired(&broker, r#"{"version":"1.2.0","url":"http://127.0.0.1:1/update.raucb"}"#);
    let report = reported(&broker, |report| report.state == "offered").await;
    assert_eq!(version(&report), "1.2.0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_without_the_broker_fails_only_where_the_broker_was_there_before() {
    let mut broker = Broker::start(BrokerOptions::default()).unwrap();
    let more = format!("[mqtt]\nurl = \"{}\"\nfirst-wait-ms = 50\n", broker.url());
    let mut system = System::start(&more).await;
    until_connected(&system).await;
    let bundle = Bundle::new(Recipe::default());
    let job = system.install(&bundle.file, &[]).await.unwrap();
    assert_eq!(system.end(&job).await.0, "done");
    broker.stop().unwrap();
    system.boot("B", "1.1.0").await;
    system.until_state("booted").await;
    assert!(!system.gate().await, "the broker is away since the update");
    let log = system.gate_log();
    assert!(log.contains("broker: not connected, as it was before the update"), "{log}");
    broker.start_again().unwrap();
    system.boot("B", "1.1.0").await;
    until_connected(&system).await;
    assert!(system.gate().await);
    system.until_state("healthy").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hawkbit_hears_of_success_only_after_the_slot_is_good_and_of_failure_with_the_reason() {
    let server = system::hawkbit::Server::start();
    let bundle = Bundle::new(Recipe::default());
    server.assign(7, &bundle.file);
    let mut system = System::new("").await;
    fs::write(system.path("token"), "secret\n").unwrap();
    let token = system.path("token");
    system.configure(&format!(
        "[rules]\nidle-seconds = 0\n[hawkbit]\nurl = \"{}\"\ntoken-file = {token:?}\npoll-seconds = 1\n",
        server.url()
    ));
    system.boot("A", "1.0.0").await;
    system.until_state("installed").await;
    let reboots = || system.machine().reboots;
    until("a reboot", || reboots() == 1).await;
    let proceeding = ("proceeding".to_owned(), "none".to_owned());
    system.boot("B", "1.1.0").await;
    system.until_state("booted").await;
    until("hawkBit knows of the trial", || server.details(7).contains("booted")).await;
    assert_eq!(server.told(7), std::slice::from_ref(&proceeding), "the action was closed before the gate");
    assert!(system.gate().await);
    until("hawkBit knows of the end", || server.told(7).len() > 1).await;
    assert_eq!(server.told(7), [proceeding.clone(), ("closed".into(), "success".into())]);
    assert_eq!(server.authorization("/deploymentBase/7").unwrap(), "TargetToken secret");

    // The next one does not survive: its only NPU is dead.
    let next = Bundle::new(Recipe { version: "1.2.0", ..Recipe::default() });
    server.assign(8, &next.file);
    system.until_state("installed").await;
    system.machine().models = 0;
    system.boot("A", "1.2.0").await;
    system.until_state("booted").await;
    assert!(!system.gate().await);
    system.boot("B", "1.1.0").await;
    system.machine().models = 1;
    let (passed, ()) = tokio::join!(system.gate(), system.until_state("rolled-back"));
    assert!(passed);
    until("hawkBit knows of the rollback", || server.told(8).len() > 1).await;
    assert_eq!(server.told(8), [proceeding, ("closed".into(), "failure".into())]);
    let details = server.details(8);
    assert!(details.contains("slot A failed self-test: mnist is not loaded, tries: 1"), "{details}");
}
