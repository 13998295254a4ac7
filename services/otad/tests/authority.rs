//! Who may do what: a real bus with our policies, a real polkit with our actions and rules, callers of other users, and the
//! update daemon as a user of its own, as on a machine. Needs root.

#![allow(clippy::unwrap_used, reason = "functions beside the tests unwrap as the tests themselves do")]

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::dbus::AuthorityProxy;
use tempfile::TempDir;
use testkit::{Bus, Process, Signer, build, model, workspace};
use zbus::fdo::DBusProxy;
use zbus::{Connection, Variant, connection};

/// TIMEOUT: far longer than anything here takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The update daemon's user: `daemon`, which every machine has, by a name that only polkit sees. SOURCE: base-passwd.
const OTAD: u32 = 1;
/// Somebody without any right.
const NOBODY: u32 = 65_534;
const POLKITD: &str = "/usr/lib/polkit-1/polkitd";

/// What the machine's own services may, which are not ours.
const OTHERS: &str = r#"<busconfig>
<policy user="0"><allow own="org.freedesktop.login1"/></policy>
<policy context="default"><allow send_destination="org.freedesktop.login1"/></policy></busconfig>"#;

/// Has polkit find our actions and rules, and a user that this machine lacks, in the places where it looks.
const POLKIT: &str = r#"
mount --bind "$0/actions" /usr/share/polkit-1/actions
mount --bind "$0/rules" /usr/share/polkit-1/rules.d
mount --bind "$0/none" /etc/polkit-1/rules.d
mount --bind "$0/passwd" /etc/passwd
exec "$1" --no-debug
"#;

struct Logind(Arc<AtomicUsize>);

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Logind {
    fn reboot(&self, _interactive: bool) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// RAUC, which here knows what it was asked for and does nothing.
struct Rauc;

#[zbus::interface(name = "de.pengutronix.rauc.Installer")]
impl Rauc {
    fn mark(&self, state: String, slot: String) -> zbus::fdo::Result<(String, String)> {
        Err(zbus::fdo::Error::NotSupported(format!("asked to mark {slot} as {state}")))
    }
}

struct Machine {
    folder: TempDir,
    bus: Bus,
    /// Root's connection, which is logind as well.
    root: Connection,
    _rauc: Connection,
    reboots: Arc<AtomicUsize>,
    cairnctl: PathBuf,
    _daemons: Vec<Process>,
}

impl Machine {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Other users run what is in here.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["actions", "rules", "none", "state", "models", "keys"] {
            fs::create_dir(path(name)).unwrap();
        }
        let bus = start_bus(folder.path());
        let reboots = Arc::new(AtomicUsize::new(0));
        let root = connection::Builder::address(bus.address())
            .name("org.freedesktop.login1")
            .serve_at("/org/freedesktop/login1", Logind(Arc::clone(&reboots)))
            .build()
            .await
            .unwrap();
        // A connection of its own: who may send to one name of a connection may send to all of them.
        let rauc = connection::Builder::address(bus.address()).name("de.pengutronix.rauc").serve_at("/", Rauc);
        let rauc = rauc.build().await.unwrap();
        let polkit = start_polkit(folder.path(), &bus);
        let otad = start_otad(folder.path(), &bus);
        let cairnctl = path("cairnctl");
        fs::copy(build("cairnctl").unwrap(), &cairnctl).unwrap();
        let machine = Self { folder, bus, root, _rauc: rauc, reboots, cairnctl, _daemons: vec![polkit, otad] };
        for name in ["org.freedesktop.PolicyKit1", "org.cairn.Update1"] {
            machine.until_owned(name).await;
        }
        machine
    }

    async fn until_owned(&self, name: &str) {
        let bus = DBusProxy::new(&self.root).await.unwrap();
        let wait = async {
            let mut look = tokio::time::interval(Duration::from_millis(20));
            while !bus.name_has_owner(name.try_into().unwrap()).await.unwrap() {
                look.tick().await;
            }
        };
        let logs = ["polkit.log", "otad.log"].map(|log| fs::read_to_string(self.path(log)).unwrap_or_default());
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("nobody is {name}: {logs:?}"));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What a command of a user gives.
    fn run(&self, user: u32, program: &Path, arguments: &[&str]) -> Output {
        as_user(user).arg(program).args(arguments).output().unwrap()
    }

    /// `cairnctl`, by a user. Its exit status, what it says, and what it complains of.
    fn cairnctl(&self, user: u32, arguments: &[&str]) -> (Option<i32>, String, String) {
        let arguments = [&["--bus", self.bus.address()], arguments].concat();
        let Output { status, stdout, stderr } = self.run(user, &self.cairnctl, &arguments);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    }

    /// Whether polkit lets the owner of a bus name do something, by itself.
    async fn allows(&self, name: &str, action: &str) -> bool {
        let polkit = AuthorityProxy::new(&self.root).await.unwrap();
        let bus = DBusProxy::new(&self.root).await.unwrap();
        let name = bus.get_name_owner(name.try_into().unwrap()).await.unwrap();
        let subject = ("system-bus-name", HashMap::from([("name", Variant::from(name.as_str()))]));
        polkit.check_authorization(&subject, action, HashMap::new(), 0, "").await.unwrap().0
    }
}

fn as_user(user: u32) -> Command {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into(), "--".into()]);
    command
}

fn start_bus(folder: &Path) -> Bus {
    let dist = workspace().join("services/otad/dist");
    let polkit = Path::new("/usr/share/dbus-1/system.d/org.freedesktop.PolicyKit1.conf");
    let mut policies = vec![polkit.to_owned(), folder.join("others.conf")];
    fs::write(&policies[1], OTHERS).unwrap();
    for name in ["org.cairn.Update1.conf", "de.pengutronix.rauc.conf"] {
        let text = fs::read_to_string(dist.join(name)).unwrap();
        policies.push(folder.join(name));
        fs::write(folder.join(name), text.replace("user=\"otad\"", &format!("user=\"{OTAD}\""))).unwrap();
    }
    let policies: Vec<&Path> = policies.iter().map(PathBuf::as_path).collect();
    Bus::with_policies(&policies, &[], &[]).unwrap()
}

fn start_polkit(folder: &Path, bus: &Bus) -> Process {
    // The machine's own actions, such as logind's, and those of all our services; our rules alone.
    let mut files: Vec<_> = fs::read_dir("/usr/share/polkit-1/actions").unwrap().map(|it| it.unwrap().path()).collect();
    for service in fs::read_dir(workspace().join("services")).unwrap() {
        let dist = fs::read_dir(service.unwrap().path().join("dist")).into_iter().flatten();
        files.extend(dist.map(|it| it.unwrap().path()));
    }
    for file in files {
        let name = file.file_name().unwrap();
        match fs::read_to_string(&file) {
            Ok(text) if name.to_string_lossy().ends_with(".policy") => {
                fs::write(folder.join("actions").join(name), text).unwrap();
            }
            Ok(text) if text.contains("polkit.addRule") => fs::write(folder.join("rules").join(name), text).unwrap(),
            _ => {}
        }
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let named = passwd.replace("daemon:x:1:1:daemon", "otad:x:1:1:otad");
    assert_ne!(named, passwd, "there is no user daemon");
    fs::write(folder.join("passwd"), named).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-e", "-c", POLKIT]).arg(folder).arg(POLKITD);
    command.env("DBUS_SYSTEM_BUS_ADDRESS", bus.address());
    let log = fs::File::create(folder.join("polkit.log")).unwrap();
    command.stdout(log.try_clone().unwrap()).stderr(log);
    Process::start(&mut command, "polkitd").unwrap()
}

fn start_otad(folder: &Path, bus: &Bus) -> Process {
    let (address, shown) = (bus.address(), folder.display());
    let config = format!(
        "device-name = \"d\"\nbus = {{ address = \"{address}\" }}\n\
         [model-store]\nfolder = \"{shown}/models\"\nkeys = \"{shown}/keys\"\n\
         [places]\nstate = \"{shown}/state\"\nos-release = \"{shown}/os-release\"\nboot-id = \"{shown}/boot-id\"\n\
         sysfs = \"{shown}/none\"\n"
    );
    for (name, text) in [("otad.toml", config.as_str()), ("os-release", "VERSION_ID=1.0.0\n"), ("boot-id", "1\n")] {
        fs::write(folder.join(name), text).unwrap();
    }
    for name in ["state", "models"] {
        chown(folder.join(name), Some(OTAD), Some(OTAD)).unwrap();
    }
    let program = folder.join("otad");
    fs::copy(env!("CARGO_BIN_EXE_otad"), &program).unwrap();
    let mut command = as_user(OTAD);
    command
        .arg(program)
        .arg("--config")
        .arg(folder.join("otad.toml"))
        .env_remove("JOURNAL_STREAM")
        .env("RUST_BACKTRACE", "0");
    command.stderr(fs::File::create(folder.join("otad.log")).unwrap());
    Process::start(&mut command, "of this workspace").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn whom_polkit_does_not_know_may_look_and_change_nothing() {
    let machine = Machine::start().await;
    let bundle = machine.path("bundle");
    fs::write(&bundle, Signer::new().unwrap().bundle(&model("mnist"), "2.0.0").unwrap()).unwrap();
    let bundle = bundle.to_str().unwrap();
    let (code, text, complaint) = machine.cairnctl(NOBODY, &["update", "status"]);
    assert_eq!((code, complaint.as_str()), (Some(0), ""), "{text}");
    assert!(text.starts_with("1.0.0 runs from slot"), "{text}");
    for arguments in [
        &["update", "install", "/b.raucb"][..],
        &["update", "offer", "http://127.0.0.1:1/b.raucb"],
        &["update", "proceed"],
        &["update", "dismiss"],
        &["reset", "--yes"],
        &["model", "add", bundle],
        &["model", "add", "http://127.0.0.1:1/m.model"],
    ] {
        let (code, text, complaint) = machine.cairnctl(NOBODY, arguments);
        assert!(code == Some(1) && text.is_empty() && complaint.contains("AccessDenied"), "{arguments:?}: {complaint}");
        assert!(complaint.contains("polkit does not allow org.cairn.update1."), "{arguments:?}: {complaint}");
    }
    assert_eq!(machine.reboots.load(Ordering::Relaxed), 0);
    assert!(!machine.path("state/factory-reset").exists() && !machine.path("state/update.json").exists());

    // RAUC itself listens to the daemon, and to nobody else.
    let mark = ["--address", machine.bus.address(), "call", "de.pengutronix.rauc", "/"];
    let mark = [&mark[..], &["de.pengutronix.rauc.Installer", "Mark", "ss", "good", "booted"]].concat();
    let complaint = |user| {
        let output = machine.run(user, Path::new("busctl"), &mark);
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(complaint(NOBODY).contains("Access denied"), "{}", complaint(NOBODY));
    assert!(complaint(OTAD).contains("asked to mark booted as good"), "{}", complaint(OTAD));
}

#[tokio::test(flavor = "multi_thread")]
async fn whom_polkit_knows_may_and_the_daemon_may_what_its_rules_say() {
    let machine = Machine::start().await;
    let (code, _, complaint) = machine.cairnctl(0, &["update", "dismiss"]);
    assert_eq!(code, Some(0), "{complaint}");
    let (code, _, complaint) = machine.cairnctl(0, &["reset"]);
    assert!(code == Some(1) && complaint.contains("say --yes"), "{complaint}");
    assert_eq!(machine.reboots.load(Ordering::Relaxed), 0);
    let (code, text, complaint) = machine.cairnctl(0, &["reset", "--yes"]);
    assert_eq!(code, Some(0), "{complaint}");
    assert!(text.contains("emptied"), "{text}");
    assert_eq!(machine.reboots.load(Ordering::Relaxed), 1);
    assert!(machine.path("state/factory-reset").exists());

    let otad = "org.cairn.Update1";
    for action in ["org.freedesktop.login1.reboot", "org.cairn.npu1.manage-models"] {
        assert!(machine.allows(otad, action).await, "{action}");
    }
    for action in ["org.freedesktop.login1.power-off", "org.cairn.update1.install", "org.cairn.update1.factory-reset"] {
        assert!(!machine.allows(otad, action).await, "{action}");
    }
    // polkit says of a rule that it cannot read only in its log.
    let log = fs::read_to_string(machine.path("polkit.log")).unwrap();
    assert!(!log.contains("Error"), "{log}");
}
