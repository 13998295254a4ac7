//! A machine of processes: npud on the simulator and healthd, on a bus with a service manager and logind that only take
//! notes.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use api::dbus::{Blob, HEALTH_NAME, HEALTH_ROOT, Health1Proxy, Incident1Proxy, Inference1Proxy, model_path};
use tempfile::TempDir;
use testkit::{Broker, Bus, Daemon, build, model, workspace};
use zbus::fdo::ObjectManagerProxy;
use zbus::proxy::CacheProperties;
use zbus::{Connection, OwnedObjectPath, connection};

use crate::service::{PATIENCE, digit, until};

/// Owns the names of the service manager and of logind, as root does on a machine.
const STUB_POLICY: &str = r#"<busconfig><policy user="stub">
  <allow own="org.freedesktop.systemd1"/><allow own="org.freedesktop.login1"/>
  <allow own="org.freedesktop.PolicyKit1"/></policy>
  <policy user="healthd"><allow send_destination="org.freedesktop.PolicyKit1"/><allow send_destination="org.freedesktop.systemd1"/>
  <allow send_destination="org.freedesktop.login1"/></policy></busconfig>"#;

/// The kernel's name of a boot.
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// What was asked of the service manager and of logind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked(Arc<Mutex<Vec<String>>>);

impl Asked {
    pub(crate) fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    pub(crate) fn all(&self) -> Vec<String> {
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

    fn load_unit(&self, name: &str) -> OwnedObjectPath {
        OwnedObjectPath::try_from(if name == "shutdown.target" { "/shutdown" } else { "/unit" }).unwrap()
    }
}

/// A unit, and whether it has a job.
struct Unit(Arc<AtomicBool>);

#[zbus::interface(name = "org.freedesktop.systemd1.Unit")]
impl Unit {
    #[zbus(property)]
    fn active_state(&self) -> &str {
        "active"
    }

    #[zbus(property)]
    fn job(&self) -> (u32, OwnedObjectPath) {
        (self.0.load(Ordering::SeqCst).into(), OwnedObjectPath::try_from("/job").unwrap())
    }
}

struct Login(Asked);

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Login {
    fn reboot(&self, _interactive: bool) {
        self.0.note("reboot".into());
    }
}

/// What differs from one machine to another.
#[derive(Debug, Default)]
pub(crate) struct Setup {
    /// More of healthd's configuration.
    pub(crate) healthd: String,
    /// More of npud's.
    pub(crate) npud: String,
    /// Where healthd keeps its state, if not beside everything else.
    pub(crate) state: Option<PathBuf>,
    /// The period of healthd's watchdog, in microseconds. What it sends is to be read.
    pub(crate) watchdog: Option<&'static str>,
}

impl Setup {
    pub(crate) fn healthd(more: &str) -> Self {
        Self { healthd: more.into(), ..Self::default() }
    }
}

/// A machine.
pub(crate) struct Machine {
    pub(crate) bus: Bus,
    pub(crate) asked: Asked,
    pub(crate) shutting_down: Arc<AtomicBool>,
    pub(crate) folder: TempDir,
    pub(crate) client: Connection,
    pub(crate) healthd: Daemon,
    pub(crate) npud: Daemon,
    setup: Setup,
    _stub: Connection,
}

impl Machine {
    pub(crate) async fn start(setup: Setup) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stub_policy = folder.path().join("stub.conf");
        fs::write(&stub_policy, STUB_POLICY).unwrap();
        let dist = |file: &str| workspace().join("services").join(file);
        let (npud, healthd) = (dist("npud/dist/org.cairn.Npu1.conf"), dist("healthd/dist/org.cairn.Health1.conf"));
        let policies = [npud.as_path(), &healthd, &stub_policy];
        let bus = Bus::with_policies(&policies, &["npud", "healthd", "stub"], &["cairn-infer"]).unwrap();
        let (asked, shutting_down) = (Asked::default(), Arc::default());
        let stub = stub(&bus, &asked, &shutting_down).await;
        make_root(folder.path());
        let npud = start_npud(&bus, folder.path(), &setup);
        let healthd = start_healthd(&bus, folder.path(), &setup);
        let client = connection::Builder::address(bus.address()).build().await.unwrap();
        Self { bus, asked, shutting_down, folder, client, healthd, npud, setup, _stub: stub }
    }

    /// Starts the health daemon again.
    pub(crate) fn start_healthd(&mut self) {
        self.healthd = start_healthd(&self.bus, self.folder.path(), &self.setup);
    }

    /// Ends the health daemon, and starts it again in another boot.
    pub(crate) fn boot(&mut self) {
        self.healthd.terminate().unwrap();
        let file = self.folder.path().join("root").join(BOOT_ID);
        let boot = fs::read_to_string(&file).unwrap();
        fs::write(&file, boot.replacen(|digit: char| digit.is_ascii_digit(), "f", 1)).unwrap();
        self.start_healthd();
    }

    /// Spoils the next job.
    pub(crate) fn inject(&self, fault: &str) {
        let mut levers = UnixStream::connect(self.folder.path().join("levers")).unwrap();
        levers.write_all(format!("{fault}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(levers).read_line(&mut answer).unwrap();
        assert_eq!(answer, "ok\n");
    }

    /// What npud answers about a digit: its output's bytes, and the verdict.
    pub(crate) async fn infer(&self, number: usize) -> zbus::Result<(Vec<u8>, String)> {
        self.ask(number, "interactive").await
    }

    /// As [`Self::infer`], with a priority.
    pub(crate) async fn infer_as(&self, priority: &str) -> zbus::Result<(Vec<u8>, String)> {
        self.ask(1, priority).await
    }

    async fn ask(&self, number: usize, priority: &str) -> zbus::Result<(Vec<u8>, String)> {
        let proxy = Inference1Proxy::new(&self.client, model_path("mnist")).await?;
        let input = (String::new(), "UINT8".into(), vec![1, 28, 28, 1], Blob::Inline(digit(number)).into_variant());
        let (mut outputs, _, details) = proxy.infer(&[input], HashMap::from([("priority", priority.into())])).await?;
        let bytes = api::dbus::unseal(&outputs.remove(0).3, 1 << 16).unwrap().to_vec();
        Ok((bytes, String::try_from(details["verdict"].try_clone().unwrap()).unwrap()))
    }

    /// One request whose first attempt hangs; its verdict.
    pub(crate) async fn hang(&self) -> String {
        self.inject("hang 0");
        self.infer(1).await.unwrap().1
    }

    /// Heats the zone. As in sysfs, nobody ever reads an empty file.
    pub(crate) fn zone(&self, millis: u32) {
        let zone = self.folder.path().join("root/sys/class/thermal/thermal_zone0/temp");
        let new = zone.with_extension("new");
        fs::write(&new, format!("{millis}\n")).unwrap();
        fs::rename(new, zone).unwrap();
    }

    pub(crate) async fn incidents(&self) -> Vec<Incident1Proxy<'static>> {
        let objects = ObjectManagerProxy::builder(&self.client).destination(HEALTH_NAME).path(HEALTH_ROOT);
        let objects = objects.build().await.unwrap().get_managed_objects().await.unwrap();
        let paths = objects.into_keys().filter(|path| path.as_str().contains("/incident/"));
        let mut incidents = Vec::new();
        for path in paths {
            let proxy = Incident1Proxy::builder(&self.client).path(path);
            incidents.push(proxy.cache_properties(CacheProperties::No).build().await.unwrap());
        }
        incidents
    }

    /// Waits until `count` incidents are settled, and returns them all.
    pub(crate) async fn settled(&self, count: usize) -> Vec<Incident1Proxy<'static>> {
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
    pub(crate) async fn asks(&self, expected: &[&str]) {
        let wait = until("an action", || self.asked.all() == expected);
        let gave_up = tokio::time::sleep(PATIENCE / 2);
        tokio::select! {
            () = wait => {}
            () = gave_up => panic!("{:?} instead of {expected:?}; {}", self.asked.all(), self.healthd.log()),
        }
    }

    pub(crate) async fn health(&self) -> Health1Proxy<'static> {
        let proxy = Health1Proxy::builder(&self.client).cache_properties(CacheProperties::No);
        proxy.build().await.unwrap()
    }
}

async fn stub(bus: &Bus, asked: &Asked, shutting_down: &Arc<AtomicBool>) -> Connection {
    let stub = connection::Builder::address(bus.address())
        .serve_at("/org/freedesktop/systemd1", Systemd(asked.clone()))
        .serve_at("/unit", Unit(Arc::default()))
        .serve_at("/shutdown", Unit(shutting_down.clone()))
        .serve_at("/org/freedesktop/login1", Login(asked.clone()))
        .build()
        .await
        .unwrap();
    stub.request_name("org.freedesktop.systemd1").await.unwrap();
    stub.request_name("org.freedesktop.login1").await.unwrap();
    stub
}

fn start_npud(bus: &Bus, folder: &Path, setup: &Setup) -> Daemon {
    let models = folder.join("models");
    fs::create_dir(&models).unwrap();
    std::os::unix::fs::symlink(model("mnist"), models.join("mnist")).unwrap();
    let config = format!(
        "device-name = \"d\"\nmodels = [\"{}\"]\nbus = {{ address = \"{}\" }}\ncontexts = 1\n{}",
        models.display(),
        bus.address(),
        setup.npud
    );
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| build("npud").unwrap());
    let arguments = ["--simulate", "--simulated-kernel", folder.to_str().unwrap()];
    let mut daemon = Daemon::start(&PROGRAM, &config, &arguments, &[]).unwrap();
    daemon.wait_for("READY=1", PATIENCE).unwrap();
    daemon
}

/// What the daemon reads of `/sys` and `/proc`.
fn make_root(folder: &Path) {
    let write = |path: &str, text: &str| {
        let path = folder.join("root").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(BOOT_ID, "0a1b2c3d-0000-4000-8000-000000000001\n");
    write("sys/class/thermal/thermal_zone0/type", "npu-thermal\n");
    write("sys/class/thermal/thermal_zone0/temp", "61250\n");
    for core in ["fdab0000.npu", "fdac0000.npu", "fdad0000.npu"] {
        write(&format!("sys/bus/platform/drivers/rocket/{core}/power/runtime_status"), "suspended\n");
    }
}

fn start_healthd(bus: &Bus, folder: &Path, setup: &Setup) -> Daemon {
    let path = |name: &str| folder.join(name).display().to_string();
    let config = format!(
        "device-name = \"d\"\nbus = {{ address = \"{}\" }}\nkernel-log = \"{}\"\nkernel-log-is-text = true\nroot = \"{}\"\n\
         state = \"{}\"\nmetrics-socket = \"{}\"\npstore = [\"{}\"]\ngpu = false\ngauge-seconds = 1\n{}",
        bus.address(),
        path("kmsg"),
        path("root"),
        setup.state.clone().unwrap_or_else(|| folder.join("state")).display(),
        path("metrics"),
        path("pstore"),
        setup.healthd,
    );
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| build("healthd").unwrap());
    let environment: Vec<(&str, &str)> = setup.watchdog.iter().map(|micros| ("WATCHDOG_USEC", *micros)).collect();
    let mut daemon = Daemon::start(&PROGRAM, &config, &[], &environment).unwrap();
    daemon.wait_for("READY=1", PATIENCE).unwrap();
    daemon
}

/// A reader for whom the broker keeps the incidents while it is away.
pub(crate) fn reader(broker: &Broker) -> std::process::Command {
    let mut command = broker.client("mosquitto_sub").unwrap();
    command.args(["-V", "311", "-c", "-i", "reader", "-q", "1", "-t", "cairn/d/health/incident"]);
    command
}

/// The first `count` incidents that the reader gets.
pub(crate) fn messages(broker: &Broker, count: usize) -> Vec<serde_json::Value> {
    let output = reader(broker).args(["-W", "120", "-C", &count.to_string()]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
