//! The health daemon as it stands in the machine: beside npud on a bus, a broker, and a log of the kernel.

mod service;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use api::dbus::{
    Blob, CONTRACTS, Check, Device1Proxy, HEALTH_NAME, HEALTH_ROOT, Health1Proxy, Incident1Proxy, Inference1Proxy,
    Job1Proxy, model_path,
};
use engine::Engine;
use futures_util::StreamExt as _;
use npu_sim::{Lever, Simulator};
use serve::dbus::Server;
use service::{PATIENCE, digit, until};
use tempfile::TempDir;
use testkit::{Broker, BrokerOptions, Bus, Daemon, build, model, workspace};
use zbus::fdo::{IntrospectableProxy, ObjectManagerProxy};
use zbus::{Connection, OwnedObjectPath, connection};

/// Owns the names of the service manager and of logind, as root does on a machine.
const STUB_POLICY: &str = r#"<busconfig><policy user="stub">
  <allow own="org.freedesktop.systemd1"/><allow own="org.freedesktop.login1"/>
  <allow own="org.freedesktop.PolicyKit1"/></policy>
  <policy user="healthd"><allow send_destination="org.freedesktop.PolicyKit1"/><allow send_destination="org.freedesktop.systemd1"/>
  <allow send_destination="org.freedesktop.login1"/></policy></busconfig>"#;

/// What was asked of the service manager and of logind.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<String>>>);

impl Asked {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

struct Systemd(Asked);

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Systemd {
    fn restart_unit(&self, name: &str, _mode: &str) -> OwnedObjectPath {
        self.0.note(format!("restart {name}"));
        OwnedObjectPath::try_from("/job").unwrap()
    }

    fn start_unit(&self, name: &str, _mode: &str) -> OwnedObjectPath {
        self.0.note(format!("start {name}"));
        OwnedObjectPath::try_from("/job").unwrap()
    }

    fn load_unit(&self, _name: &str) -> OwnedObjectPath {
        OwnedObjectPath::try_from("/unit").unwrap()
    }

    #[zbus(property)]
    fn system_state(&self) -> &str {
        "running"
    }
}

struct Unit;

#[zbus::interface(name = "org.freedesktop.systemd1.Unit")]
impl Unit {
    #[zbus(property)]
    fn active_state(&self) -> &str {
        "active"
    }
}

struct Login(Asked);

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Login {
    fn reboot(&self, _interactive: bool) {
        self.0.note("reboot".into());
    }
}

/// A machine: a bus with its service manager, npud's inside on the simulator, its kernel's log as a file, healthd.
struct Machine {
    bus: Bus,
    asked: Asked,
    simulator: Simulator,
    folder: TempDir,
    client: Connection,
    healthd: Daemon,
    _stub: Connection,
    _engine: Engine,
}

impl Machine {
    async fn start(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stub_policy = folder.path().join("stub.conf");
        fs::write(&stub_policy, STUB_POLICY).unwrap();
        let dist = |file: &str| workspace().join("services").join(file);
        let (npud, healthd) = (dist("npud/dist/org.cairn.Npu1.conf"), dist("healthd/dist/org.cairn.Health1.conf"));
        let policies = [npud.as_path(), &healthd, &stub_policy];
        let bus = Bus::with_policies(&policies, &["npud", "healthd", "stub"], &["cairn-infer"]).unwrap();
        let asked = Asked::default();
        let stub = stub(&bus, &asked).await;
        let simulator = Simulator::new(npu_sim::Options::default());
        let engine = npud_inside(&bus, &simulator).await;
        let kernel_log = folder.path().join("kmsg");
        fs::write(&kernel_log, "").unwrap();
        tokio::spawn(print_kernel_log(simulator.clone(), kernel_log));
        make_root(folder.path());
        let healthd = start_healthd(&bus, folder.path(), more);
        let client = connection::Builder::address(bus.address()).build().await.unwrap();
        Self { bus, asked, simulator, folder, client, healthd, _stub: stub, _engine: engine }
    }

    /// One request whose first attempt hangs.
    async fn hang(&self) -> String {
        self.simulator.inject(Lever::Hang { task: 0 });
        let proxy = Inference1Proxy::new(&self.client, model_path("mnist")).await.unwrap();
        let input = (String::new(), "UINT8".into(), vec![1, 28, 28, 1], Blob::Inline(digit(1)).into_variant());
        let (.., details) = proxy.infer(&[input], HashMap::new()).await.unwrap();
        String::try_from(details["verdict"].try_clone().unwrap()).unwrap()
    }

    async fn incidents(&self) -> Vec<Incident1Proxy<'static>> {
        let objects = ObjectManagerProxy::builder(&self.client).destination(HEALTH_NAME).path(HEALTH_ROOT);
        let objects = objects.build().await.unwrap().get_managed_objects().await.unwrap();
        let paths = objects.into_keys().filter(|path| path.as_str().contains("/incident/"));
        let mut incidents = Vec::new();
        for path in paths {
            let proxy = Incident1Proxy::builder(&self.client).path(path);
            incidents.push(proxy.cache_properties(zbus::proxy::CacheProperties::No).build().await.unwrap());
        }
        incidents
    }

    /// Waits until `count` incidents are settled, and returns them all.
    async fn settled(&self, count: usize) -> Vec<Incident1Proxy<'static>> {
        let wait = async {
            let mut look = tokio::time::interval(Duration::from_millis(50));
            loop {
                look.tick().await;
                let incidents = self.incidents().await;
                let mut settled = 0;
                for incident in &incidents {
                    settled += usize::from(incident.state().await.unwrap() == "settled");
                }
                if settled >= count && settled == incidents.len() {
                    return incidents;
                }
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("an incident does not settle")
    }

    /// Waits until exactly this was asked of the service manager and of logind.
    async fn asks(&self, expected: &[&str]) {
        let wait = until("an action", || self.asked.all() == expected);
        let gave_up = tokio::time::sleep(PATIENCE / 2);
        tokio::select! {
            () = wait => {}
            () = gave_up => panic!("{:?} instead of {expected:?}; {}", self.asked.all(), self.healthd.log()),
        }
    }

    async fn health(&self) -> Health1Proxy<'static> {
        let proxy = Health1Proxy::builder(&self.client).cache_properties(zbus::proxy::CacheProperties::No);
        proxy.build().await.unwrap()
    }
}

async fn stub(bus: &Bus, asked: &Asked) -> Connection {
    let stub = connection::Builder::address(bus.address())
        .serve_at("/org/freedesktop/systemd1", Systemd(asked.clone()))
        .serve_at("/unit", Unit)
        .serve_at("/org/freedesktop/login1", Login(asked.clone()))
        .build()
        .await
        .unwrap();
    stub.request_name("org.freedesktop.systemd1").await.unwrap();
    stub.request_name("org.freedesktop.login1").await.unwrap();
    stub
}

async fn npud_inside(bus: &Bus, simulator: &Simulator) -> Engine {
    let options = engine::Options { contexts: 1, ..engine::Options::default() };
    let engine = Engine::start(Arc::new(simulator.clone()), Some(simulator.fault_monitor()), options).unwrap();
    engine.load(&model("mnist")).await.unwrap();
    let server = Server::start(engine.clone(), connection::Builder::address(bus.address())).await.unwrap();
    tokio::spawn(async move { server.run().await });
    engine
}

/// Writes what the simulated kernel says as the kernel's device shows it.
async fn print_kernel_log(simulator: Simulator, file: PathBuf) {
    let mut written = 0;
    let mut look = tokio::time::interval(Duration::from_millis(5));
    loop {
        look.tick().await;
        let lines = simulator.kernel_log();
        let mut file = OpenOptions::new().append(true).open(&file).unwrap();
        for line in &lines[written..] {
            let device = line.split([' ', ':']).nth(1).unwrap();
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
            let record = format!("3,{written},{micros},-;{line}\n SUBSYSTEM=platform\n DEVICE=+platform:{device}\n");
            file.write_all(record.as_bytes()).unwrap();
            written += 1;
        }
    }
}

/// What the daemon reads of `/sys` and `/proc`.
fn make_root(folder: &Path) {
    let write = |path: &str, text: &str| {
        let path = folder.join("root").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("proc/sys/kernel/random/boot_id", "0a1b2c3d-0000-4000-8000-000000000001\n");
    write("sys/class/thermal/thermal_zone0/type", "npu-thermal\n");
    write("sys/class/thermal/thermal_zone0/temp", "61250\n");
    for core in ["fdab0000.npu", "fdac0000.npu", "fdad0000.npu"] {
        write(&format!("sys/bus/platform/drivers/rocket/{core}/power/runtime_status"), "suspended\n");
    }
}

fn start_healthd(bus: &Bus, folder: &Path, more: &str) -> Daemon {
    let path = |name: &str| folder.join(name).display().to_string();
    let config = format!(
        "device-name = \"d\"\nbus = {{ address = \"{}\" }}\nkernel-log = \"{}\"\nkernel-log-is-text = true\nroot = \"{}\"\n\
         state = \"{}\"\nmetrics-socket = \"{}\"\npstore = [\"{}\"]\ngpu = false\ngauge-seconds = 1\n{more}",
        bus.address(),
        path("kmsg"),
        path("root"),
        path("state"),
        path("metrics"),
        path("pstore"),
    );
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| build("healthd").unwrap());
    let mut daemon = Daemon::start(&PROGRAM, &config, &[], &[]).unwrap();
    daemon.wait_for("READY=1", PATIENCE).unwrap();
    daemon
}

/// A reader for whom the broker keeps the incidents while it is away.
fn reader(broker: &Broker) -> std::process::Command {
    let mut command = broker.client("mosquitto_sub").unwrap();
    command.args(["-V", "311", "-c", "-i", "reader", "-q", "1", "-t", "cairn/d/health/incident"]);
    command
}

/// The first `count` incidents that the reader gets.
fn messages(broker: &Broker, count: usize) -> Vec<serde_json::Value> {
    let output = reader(broker).args(["-W", "120", "-C", &count.to_string()]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hang_is_one_incident_that_names_core_model_and_line() {
    let broker = Broker::start(BrokerOptions::default()).unwrap();
    assert!(reader(&broker).arg("-E").status().unwrap().success());
    let machine = Machine::start(&format!("[mqtt]\nurl = \"{}\"\n", broker.url())).await;
    assert_eq!(machine.hang().await, "trusted-after-retry");
    let incidents = machine.settled(1).await;
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
    let mut machine = Machine::start("[budgets]\nrestarts = 1\nrebinds = 0\n").await;
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
    machine.healthd = start_healthd(&machine.bus, machine.folder.path(), "[budgets]\nrestarts = 1\nrebinds = 0\n");
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
    let machine = Machine::start("").await;
    let health = machine.health().await;
    assert_eq!(health.thermal_level().await.unwrap(), "normal");
    let mut levels = Health1Proxy::new(&machine.client).await.unwrap().receive_thermal_level_changed().await;
    let zone = machine.folder.path().join("root/sys/class/thermal/thermal_zone0/temp");
    for (millis, level) in [("86000\n", "throttled"), ("96000\n", "critical"), ("70000\n", "normal")] {
        fs::write(&zone, millis).unwrap();
        let wait = async {
            while health.thermal_level().await.unwrap() != level {
                levels.next().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }
    let socket = tokio::net::UnixStream::connect(machine.folder.path().join("metrics")).await.unwrap();
    let metrics = ask(socket).await;
    assert!(metrics.contains("cairn_celsius{of=\"npu-thermal\"} 70\n"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn npud_follows_the_level_of_the_health_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let dist = |file: &str| workspace().join("services").join(file);
    let (npud, healthd) = (dist("npud/dist/org.cairn.Npu1.conf"), dist("healthd/dist/org.cairn.Health1.conf"));
    let bus = Bus::with_policies(&[&npud, &healthd], &["npud", "healthd"], &["cairn-infer"]).unwrap();
    make_root(folder.path());
    fs::write(folder.path().join("kmsg"), "").unwrap();
    let zone = folder.path().join("root/sys/class/thermal/thermal_zone0/temp");
    fs::write(&zone, "96000\n").unwrap();
    let _healthd = start_healthd(&bus, folder.path(), "");
    let models = folder.path().join("models");
    fs::create_dir(&models).unwrap();
    std::os::unix::fs::symlink(model("mnist"), models.join("mnist")).unwrap();
    let config = format!("models = [\"{}\"]\nbus = {{ address = \"{}\" }}\n", models.display(), bus.address());
    let mut npud = Daemon::start(&build("npud").unwrap(), &config, &["--simulate"], &[]).unwrap();
    npud.wait_for("READY=1", PATIENCE).unwrap();
    let client = connection::Builder::address(bus.address()).build().await.unwrap();
    let device = Device1Proxy::new(&client).await.unwrap();
    let mut levels = device.receive_thermal_level_changed().await;
    for (millis, level) in [("96000\n", "critical"), ("60000\n", "normal")] {
        fs::write(&zone, millis).unwrap();
        let wait = async {
            while device.thermal_level().await.unwrap() != level {
                levels.next().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }
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
    let machine = Machine::start("").await;
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
async fn a_self_test_proves_the_models_and_a_bundle_can_be_read() {
    let machine = Machine::start("").await;
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
    let machine = Machine::start("").await;
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
