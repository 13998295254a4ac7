//! A machine in a folder: a real RAUC with two slots on loop devices, a bootloader that is a text file, a private bus, and
//! stand-ins for what else the daemon asks. Needs root.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod bundles;
pub(crate) mod hawkbit;
pub(crate) mod whole;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::dbus::{Job1Proxy, Update1Proxy};
use api::mqtt::UpdateReport;
use testkit::{Broker, Bus, Daemon, Process};
use zbus::fdo::DBusProxy;
use zbus::{Connection, OwnedObjectPath, Variant, connection};

/// TIMEOUT: far longer than anything here takes on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of a slot.
const SLOT_BYTES: u64 = 8 << 20;
/// What a slot contains before an update.
const FACTORY: u8 = 0x5a;

/// The bus lets everybody do everything: who may what is tested apart.
const OPEN: &str = r#"<busconfig><policy context="default">
<allow own="*"/><allow send_destination="*"/></policy></busconfig>"#;

/// The bootloader: chooses the preferred slot unless it is bad, then the other one.
const BOOTLOADER: &str = r#"#!/bin/sh
. @DIR@/point.sh
S=@DIR@/bootloader
get() { sed -n "s/^$1=//p" $S; }
put() { sed "s/^$1=.*/$1=$2/" $S > $S.new && mv $S.new $S; }
other() { if [ "$1" = A ]; then echo B; else echo A; fi; }
point
case "$1" in
 get-primary) get primary;;
 set-primary) put primary "$2"; put "$2" good;;
 get-state) get "$2";;
 set-state) put "$2" "$3"; if [ "$3" = bad ] && [ "$(get primary)" = "$2" ]; then put primary "$(other "$2")"; fi;;
 get-current) get current;;
 *) exit 1;;
esac
point
"#;

/// RAUC passes these points twice in each script that it calls: before the script does anything, and after. At the point
/// that the file `point` names, either RAUC is killed or it waits until the file `reached` is removed.
const POINT: &str = r#"
point() {
 [ -e @DIR@/point ] || return 0
 read -r number what < @DIR@/point
 calls=$(( $(cat @DIR@/calls) + 1 ))
 echo $calls > @DIR@/calls
 [ $calls = "$number" ] || return 0
 : > @DIR@/reached
 case $what in
  kill) kill -KILL $PPID; exit 1;;
  hold) while [ -e @DIR@/reached ]; do sleep 0.02; done;;
 esac
}
"#;

/// What RAUC calls before and after it writes.
const HANDLER: &str = "#!/bin/sh
. @DIR@/point.sh
point
point
";

const SYSTEM: &str = "[system]
compatible=test-board
bootloader=custom
statusfile=@DIR@/status.raucs
mountprefix=@DIR@/mounts
activate-installed=true
[keyring]
path=@KEYS@/ca.pem
check-purpose=codesign
[handlers]
bootloader-custom-backend=@DIR@/bootloader.sh
pre-install=@DIR@/handler.sh
post-install=@DIR@/handler.sh
[slot.rootfs.0]
device=@A@
type=raw
bootname=A
[slot.rootfs.1]
device=@B@
type=raw
bootname=B
";

/// A loop device over a file.
#[derive(Debug)]
struct Slot {
    device: String,
    file: PathBuf,
}

impl Slot {
    fn new(file: PathBuf) -> Self {
        let bytes = usize::try_from(SLOT_BYTES).unwrap();
        fs::write(&file, vec![FACTORY; bytes]).unwrap();
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().unwrap();
        assert!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
        Self { device: String::from_utf8(output.stdout).unwrap().trim().to_owned(), file }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // A device that is still held goes with its holder.
        let _ = Command::new("losetup").args(["--detach", &self.device]).status();
    }
}

/// What the stand-ins say and were asked.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Units that are active.
    pub(crate) units: Vec<String>,
    /// Models that gave their golden output.
    pub(crate) models: usize,
    /// Starts of the machine that were asked for.
    pub(crate) reboots: usize,
    /// Whether logind refuses them.
    pub(crate) stays: bool,
    /// What the thermal level is.
    pub(crate) thermal: &'static str,
    /// Whether polkit allows.
    pub(crate) allowed: bool,
}

/// The machine.
pub(crate) struct System {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) bus: Bus,
    pub(crate) client: Connection,
    pub(crate) machine: Arc<Mutex<Machine>>,
    slots: [Slot; 2],
    rauc: Option<Process>,
    otad: Option<Daemon>,
    boots: u32,
    more: String,
    /// What the gate wants to be active.
    units: &'static [&'static str],
    _stand_ins: Connection,
}

impl System {
    /// A machine that runs version 1.0.0 from slot A. `more` is added to the daemon's configuration.
    pub(crate) async fn start(more: &str) -> Self {
        let mut system = Self::new(more).await;
        system.boot("A", "1.0.0").await;
        system
    }

    /// A machine that is off.
    pub(crate) async fn new(more: &str) -> Self {
        let system = Self::bare(more, true).await;
        let config = SYSTEM
            .replace("@DIR@", &system.folder.path().display().to_string())
            .replace("@KEYS@", &bundles::keys().display().to_string())
            .replace("@A@", &system.slots[0].device)
            .replace("@B@", &system.slots[1].device);
        fs::write(system.path("system.conf"), config).unwrap();
        system
    }

    /// A machine without RAUC's configuration. `npu`: whether something stands in for the NPU's daemon as well.
    async fn bare(more: &str, npu: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("open.conf");
        fs::write(&policy, OPEN).unwrap();
        let bus = Bus::start(&policy, &[], &[]).unwrap();
        let slots = ["a", "b"].map(|name| Slot::new(folder.path().join(name)));
        for (name, text) in [("bootloader.sh", BOOTLOADER), ("handler.sh", HANDLER), ("point.sh", POINT)] {
            let script = folder.path().join(name);
            fs::write(&script, text.replace("@DIR@", &folder.path().display().to_string())).unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(folder.path().join("bootloader"), "primary=A\nA=good\nB=good\ncurrent=A\n").unwrap();
        for name in ["mounts", "state", "gate", "pstore"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        for device in ["rocket/1.npu", "rocket/2.npu", "rocket/3.npu", "panthor/1.gpu"] {
            fs::create_dir_all(folder.path().join("sys/bus/platform/drivers").join(device)).unwrap();
        }
        let units = ["npud.service", "otad.service"].map(String::from).into();
        let machine = Machine { units, models: 1, reboots: 0, stays: false, thermal: "normal", allowed: true };
        let machine = Arc::new(Mutex::new(machine));
        let stand_ins = stand_ins(&bus, &machine, npu).await;
        let client = connection::Builder::address(bus.address()).build().await.unwrap();
        Self {
            folder,
            bus,
            client,
            machine,
            slots,
            rauc: None,
            otad: None,
            boots: 0,
            more: more.to_owned(),
            units: &["npud.service", "otad.service"],
            _stand_ins: stand_ins,
        }
    }

    /// Has RAUC killed, or held, at a point of its next work.
    pub(crate) fn set_point(&self, number: usize, what: &str) {
        fs::write(self.path("calls"), "0\n").unwrap();
        fs::write(self.path("point"), format!("{number} {what}\n")).unwrap();
    }

    /// Points that RAUC passed since.
    pub(crate) fn points(&self) -> usize {
        fs::read_to_string(self.path("calls")).unwrap().trim().parse().unwrap()
    }

    /// Adds to the daemon's configuration, from its next start on.
    pub(crate) fn configure(&mut self, more: &str) {
        self.more.push_str(more);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the machine anew, from a slot with a version in it.
    pub(crate) async fn boot(&mut self, slot: &str, version: &str) {
        // First of all: what runs may write there as well.
        self.power_off();
        let text = fs::read_to_string(self.path("bootloader")).unwrap();
        let (before, _) = text.rsplit_once("current=").unwrap();
        fs::write(self.path("bootloader"), format!("{before}current={slot}\n")).unwrap();
        self.kernel_starts(version);
        self.start_rauc(slot).await;
        self.start_otad();
    }

    fn power_off(&mut self) {
        self.otad = None;
        self.stop_rauc();
    }

    /// A boot that has a name of its own.
    fn kernel_starts(&mut self, version: &str) {
        self.boots += 1;
        fs::write(self.path("boot-id"), format!("boot-{}\n", self.boots)).unwrap();
        fs::write(self.path("os-release"), format!("ID=test\nVERSION_ID={version}\n")).unwrap();
    }

    pub(crate) async fn start_rauc(&mut self, slot: &str) {
        // In a mount namespace of its own: what a killed RAUC leaves mounted goes with it.
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]).arg(bundles::rauc());
        command.arg(format!("--conf={}", self.path("system.conf").display()));
        command.arg(format!("--override-boot-slot={slot}")).arg("service");
        command.env("DBUS_SYSTEM_BUS_ADDRESS", self.bus.address());
        // Programs that a machine has and this one may have otherwise.
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.path("bin").display()));
        command.stderr(fs::File::create(self.path("rauc.log")).unwrap());
        command.stdout(fs::File::create(self.path("rauc.out")).unwrap());
        self.rauc = Some(Process::start(&mut command, "rauc").unwrap());
        self.until_owned("de.pengutronix.rauc", true).await;
    }

    /// Ends RAUC at once, as a crash would.
    pub(crate) fn stop_rauc(&mut self) {
        if let Some(mut rauc) = self.rauc.take() {
            rauc.kill().unwrap();
        }
    }

    /// Sends RAUC a signal.
    pub(crate) fn signal_rauc(&mut self, signal: &str) {
        let process = self.rauc.as_mut().unwrap().child().id();
        let status = Command::new("kill").args(["-s", signal, &process.to_string()]).status().unwrap();
        assert!(status.success());
    }

    pub(crate) fn config(&self) -> String {
        let (address, folder) = (self.bus.address(), self.folder.path().display());
        format!(
            "device-name = \"d\"\nbus = {{ address = \"{address}\" }}\nlook-ms = 50\n\
             [gate]\nunits = {:?}\ndeadline-seconds = 1\n\
             [retry]\nfirst-seconds = 0\nattempts = 3\n\
             [model-store]\nfolder = \"{folder}/models\"\nkeys = \"{folder}/keys\"\n\
             [places]\nstate = \"{folder}/state\"\ngate = \"{folder}/gate\"\nos-release = \"{folder}/os-release\"\n\
             boot-id = \"{folder}/boot-id\"\nsysfs = \"{folder}/sys\"\npstore = [\"{folder}/pstore\"]\n\
             channel = \"{folder}/channel\"\n{}",
            self.units, self.more
        )
    }

    pub(crate) fn start_otad(&mut self) {
        self.start_program(Path::new(env!("CARGO_BIN_EXE_otad")));
    }

    pub(crate) fn start_program(&mut self, program: &Path) {
        let mut otad = Daemon::start(program, &self.config(), &[], &[]).unwrap();
        otad.wait_for("READY=1", PATIENCE).unwrap();
        self.otad = Some(otad);
    }

    /// Ends the daemon at once, as a crash would.
    pub(crate) fn kill_otad(&mut self) {
        if let Some(mut otad) = self.otad.take() {
            otad.kill().unwrap();
        }
    }

    /// The daemon's process.
    pub(crate) fn otad_pid(&mut self) -> u32 {
        self.otad.as_mut().unwrap().pid()
    }

    pub(crate) fn log(&self) -> String {
        let rauc = fs::read_to_string(self.path("rauc.log")).unwrap_or_default();
        format!("otad:\n{}rauc:\n{rauc}", self.otad.as_ref().map(Daemon::log).unwrap_or_default())
    }

    /// Runs the health gate. Returns whether it let the slot pass.
    pub(crate) async fn gate(&self) -> bool {
        let config = self.path("gate.toml");
        fs::write(&config, self.config()).unwrap();
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_otad"));
        let log = fs::File::create(self.path("gate.log")).unwrap();
        command.arg("--config").arg(config).arg("gate").stderr(log).env_remove("JOURNAL_STREAM");
        tokio::time::timeout(PATIENCE, command.status()).await.unwrap().unwrap().success()
    }

    /// What the gate said last.
    pub(crate) fn gate_log(&self) -> String {
        fs::read_to_string(self.path("gate.log")).unwrap()
    }

    pub(crate) async fn update(&self) -> Update1Proxy<'static> {
        let builder = Update1Proxy::builder(&self.client).cache_properties(zbus::proxy::CacheProperties::No);
        builder.build().await.unwrap()
    }

    /// Waits for a state.
    pub(crate) async fn until_state(&self, state: &str) {
        let update = self.update().await;
        let wait = async {
            let mut look = tokio::time::interval(Duration::from_millis(10));
            while update.state().await.ok().as_deref() != Some(state) {
                look.tick().await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            panic!("{:?}, not {state}: {:?}\n{}", update.state().await, update.reason().await, self.log());
        }
    }

    /// Waits until the daemon knows which slot runs, and asks no more.
    pub(crate) async fn until_slot(&self) {
        let update = self.update().await;
        let wait = async {
            let mut look = tokio::time::interval(Duration::from_millis(10));
            while update.slot().await.unwrap().is_empty() {
                look.tick().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{}", self.log()));
    }

    /// Waits until RAUC is there, or is not.
    pub(crate) async fn until_rauc(&self, there: bool) {
        self.until_owned("de.pengutronix.rauc", there).await;
    }

    async fn until_owned(&self, name: &str, owned: bool) {
        let bus = DBusProxy::new(&self.client).await.unwrap();
        let wait = async {
            let mut look = tokio::time::interval(Duration::from_millis(10));
            while bus.name_has_owner(name.try_into().unwrap()).await.unwrap() != owned {
                look.tick().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{name}: {}", self.log()));
    }

    /// Begins an update, now.
    pub(crate) async fn install(
        &self,
        source: &Path,
        options: &[(&str, Variant<'_>)],
    ) -> zbus::Result<Job1Proxy<'static>> {
        let options: HashMap<_, _> = options.iter().map(|(key, value)| (*key, value.try_clone().unwrap())).collect();
        let job: OwnedObjectPath = self.update().await.install(source.to_str().unwrap(), options).await?;
        let builder = Job1Proxy::builder(&self.client).destination("org.cairn.Update1").path(job);
        builder.cache_properties(zbus::proxy::CacheProperties::No).build().await
    }

    /// How a job ends: its state and its error's text.
    pub(crate) async fn end(&self, job: &Job1Proxy<'_>) -> (String, String) {
        let wait = async {
            let mut look = tokio::time::interval(Duration::from_millis(10));
            while job.state().await.unwrap() == "running" {
                look.tick().await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            panic!("the job runs for ever: {:?}\n{}", job.progress().await, self.log());
        }
        (job.state().await.unwrap(), job.error().await.unwrap().1)
    }

    /// The slot that the bootloader prefers.
    pub(crate) fn preferred(&self) -> String {
        self.bootloader("primary")
    }

    /// What the bootloader remembers.
    pub(crate) fn bootloader(&self, key: &str) -> String {
        let text = fs::read_to_string(self.path("bootloader")).unwrap();
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap().to_owned()
    }

    /// How many bytes of a payload slot B has.
    pub(crate) fn written(&self, payload: &[u8]) -> usize {
        let slot = fs::read(&self.slots[1].device).unwrap();
        slot.iter().zip(payload).take_while(|(one, other)| one == other).count()
    }

    /// Checks that no slot was written since the machine was made.
    pub(crate) fn check_untouched(&self) {
        for slot in &self.slots {
            assert!(fs::read(&slot.file).unwrap().iter().all(|byte| *byte == FACTORY), "{slot:?} was written");
        }
    }

    /// Checks that the machine would come up: what the bootloader prefers is good, and whole.
    pub(crate) fn check_bootable(&self, payload: &[u8]) {
        let slot = self.preferred();
        assert_eq!(self.bootloader(&slot), "good", "the bootloader prefers a bad slot");
        let content = fs::read(&self.slots[usize::from(slot == "B")].file).unwrap();
        let factory = content.iter().all(|byte| *byte == FACTORY);
        assert!(factory || content.starts_with(payload), "slot {slot} is half-written\n{}", self.log());
        assert!(slot == "B" || factory, "slot A runs, and was changed");
    }
}

/// Waits until something has come to pass.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        while !condition() {
            look.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{what} did not come to pass"));
}

/// Waits until the daemon has a broker.
pub(crate) async fn until_connected(system: &System) {
    let update = system.update().await;
    let wait = async {
        let mut look = tokio::time::interval(Duration::from_millis(20));
        while !update.broker_connected().await.unwrap() {
            look.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}

/// Waits for a retained report that satisfies `condition`.
pub(crate) async fn reported(broker: &Broker, condition: impl Fn(&UpdateReport) -> bool) -> UpdateReport {
    let mut command = tokio::process::Command::from(broker.client("mosquitto_sub").unwrap());
    command.args(["-t", "cairn/d/update/state"]).stdout(std::process::Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(child.stdout.take().unwrap()));
    let mut last = String::new();
    let wait = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            let report: UpdateReport = serde_json::from_str(&line).unwrap();
            if condition(&report) {
                return report;
            }
            last = line;
        }
        panic!("mosquitto_sub ended");
    };
    match tokio::time::timeout(PATIENCE, wait).await {
        Ok(report) => report,
        Err(_) => panic!("the last report was {last}"),
    }
}

/// Serves what the daemon asks beside RAUC.
async fn stand_ins(bus: &Bus, machine: &Arc<Mutex<Machine>>, npu: bool) -> Connection {
    let state = || Arc::clone(machine);
    let mut builder = connection::Builder::address(bus.address())
        .name("org.freedesktop.systemd1")
        .name("org.freedesktop.login1")
        .name("org.freedesktop.PolicyKit1")
        .serve_at("/org/freedesktop/login1", Logind(state()))
        .serve_at("/org/freedesktop/PolicyKit1/Authority", Polkit(state()));
    if npu {
        builder = builder
            .name("org.cairn.Npu1")
            .serve_at("/org/freedesktop/systemd1", Systemd(state()))
            .serve_at("/org/cairn/Npu1", Models(state()))
            .serve_at("/model/0", Model)
            .serve_at("/org/cairn/Npu1/device/npu0", Device(state()));
    } else {
        builder = builder.serve_at("/org/freedesktop/systemd1", whole::Systemd);
    }
    builder.build().await.unwrap()
}

struct Systemd(Arc<Mutex<Machine>>);
struct Model;
struct Logind(Arc<Mutex<Machine>>);
struct Polkit(Arc<Mutex<Machine>>);
struct Models(Arc<Mutex<Machine>>);
struct Device(Arc<Mutex<Machine>>);

type Unit = (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

fn unit(name: String, active: bool) -> Unit {
    let root = || OwnedObjectPath::try_from("/").unwrap();
    let state = if active { "active" } else { "failed" }.into();
    let text = String::new;
    (name, text(), "loaded".into(), state, text(), text(), root(), 0, text(), root())
}

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Systemd {
    fn list_units_by_names(&self, names: Vec<String>) -> Vec<Unit> {
        let machine = self.0.lock().unwrap();
        let units = names.into_iter().map(|name| {
            let active = machine.units.contains(&name);
            unit(name, active)
        });
        units.collect()
    }
}

#[zbus::interface(name = "org.cairn.Model1")]
impl Model {
    fn verify(&self, _options: HashMap<String, zbus::wire::OwnedVariant>) -> &'static str {
        "trusted"
    }

    #[zbus(property)]
    fn name(&self) -> &'static str {
        "mnist"
    }
}

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Logind {
    fn reboot(&self, _interactive: bool) -> zbus::fdo::Result<()> {
        let mut machine = self.0.lock().unwrap();
        if machine.stays {
            return Err(zbus::fdo::Error::AccessDenied("somebody inhibits it".into()));
        }
        machine.reboots += 1;
        Ok(())
    }
}

#[zbus::interface(name = "org.freedesktop.PolicyKit1.Authority")]
impl Polkit {
    fn check_authorization(
        &self,
        _subject: (String, HashMap<String, zbus::wire::OwnedVariant>),
        action: String,
        _details: HashMap<String, String>,
        _flags: u32,
        _cancellation: String,
    ) -> (bool, bool, HashMap<String, String>) {
        assert!(action.starts_with("org.cairn.update1."), "{action}");
        (self.0.lock().unwrap().allowed, false, HashMap::new())
    }
}

#[zbus::interface(name = "org.cairn.Models1")]
impl Models {
    fn list_models(&self, _options: HashMap<String, zbus::wire::OwnedVariant>) -> Vec<OwnedObjectPath> {
        let models = self.0.lock().unwrap().models;
        (0..models).map(|model| OwnedObjectPath::try_from(format!("/model/{model}")).unwrap()).collect()
    }
}

#[zbus::interface(name = "org.cairn.Device1")]
impl Device {
    #[zbus(property)]
    fn thermal_level(&self) -> &'static str {
        self.0.lock().unwrap().thermal
    }

    #[zbus(property)]
    fn counters(&self) -> HashMap<String, u64> {
        HashMap::from([("requests".into(), 1)])
    }
}
