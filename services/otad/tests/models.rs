//! Model updates as a device sees them: npud on the simulator, a real bus and broker, and bundles over HTTP and by hand.

#![allow(clippy::unwrap_used, reason = "functions beside the tests unwrap as the tests themselves do")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use api::dbus::{Model1Proxy, ModelStore1Proxy, model_path};
use api::mqtt::{DesiredModel, ModelReport, Topics};
use tempfile::TempDir;
use testkit::{Broker, BrokerOptions, Bus, Daemon, Process, Signer, build, model};

/// TIMEOUT: far longer than anything here takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(300);
const OPEN: &str = r#"<busconfig><policy context="default">
<allow own="*"/><allow send_destination="*"/></policy></busconfig>"#;

struct Device {
    folder: TempDir,
    bus: Bus,
    broker: Broker,
    vendor: Signer,
    npud: Option<Daemon>,
    otad: Option<Daemon>,
}

impl Device {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("policy.conf"), OPEN).unwrap();
        for name in ["image", "keys"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::os::unix::fs::symlink(model("mnist"), folder.path().join("image/mnist")).unwrap();
        let vendor = Signer::new().unwrap();
        vendor.trust(&folder.path().join("keys"), "vendor").unwrap();
        let bus = Bus::start(&folder.path().join("policy.conf"), &[], &[]).unwrap();
        let broker = Broker::start(BrokerOptions::default()).unwrap();
        let mut device = Self { folder, bus, broker, vendor, npud: None, otad: None };
        device.start_npud();
        device.start_otad();
        device
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn start_npud(&mut self) {
        let (address, folder) = (self.bus.address(), self.folder.path().display());
        let config = format!(
            "device-name = \"d\"\nmodels = [\"{folder}/image\"]\nstore = \"{folder}/models\"\ncontexts = 1\n\
             bus = {{ address = \"{address}\" }}\n"
        );
        self.npud = None;
        let mut npud = Daemon::start(&build("npud").unwrap(), &config, &["--simulate"], &[]).unwrap();
        npud.wait_for("READY=1", PATIENCE).unwrap();
        self.npud = Some(npud);
    }

    fn start_otad(&mut self) {
        let (address, folder, url) = (self.bus.address(), self.folder.path().display(), self.broker.url());
        fs::write(self.path("os-release"), "VERSION_ID=1.0.0\n").unwrap();
        fs::write(self.path("boot-id"), "3f1f\n").unwrap();
        let config = format!(
            "device-name = \"d\"\nbus = {{ address = \"{address}\" }}\n[model-store]\nfolder = \"{folder}/models\"\n\
             keys = \"{folder}/keys\"\n[places]\nstate = \"{folder}/state\"\ngate = \"{folder}/gate\"\n\
             os-release = \"{folder}/os-release\"\nboot-id = \"{folder}/boot-id\"\n[mqtt]\nurl = \"{url}\"\n"
        );
        self.otad = None;
        let mut otad = Daemon::start(Path::new(env!("CARGO_BIN_EXE_otad")), &config, &[], &[]).unwrap();
        otad.wait_for("READY=1", PATIENCE).unwrap();
        self.otad = Some(otad);
    }

    fn bundle(&self, version: &str) -> Vec<u8> {
        self.vendor.bundle(&model("mnist"), version).unwrap()
    }

    /// A bundle whose golden output is not what the model computes.
    fn wrong_bundle(&self, version: &str) -> Vec<u8> {
        let package = self.path("wrong");
        let status = Command::new("cp").arg("--recursive").arg(model("mnist")).arg(&package).status().unwrap();
        assert!(status.success());
        let scores = package.join("golden_scores.bin");
        let flipped: Vec<u8> = fs::read(&scores).unwrap().iter().map(|byte| byte ^ 0x80).collect();
        fs::write(scores, flipped).unwrap();
        self.vendor.bundle(&package, version).unwrap()
    }

    /// Says over MQTT what the model shall be.
    fn desire(&self, version: &str, bundle: Vec<u8>) {
        let sha256 = sha256(&bundle);
        let desired = DesiredModel { version: version.into(), url: serve(bundle), sha256 };
        let mut publish = self.broker.client("mosquitto_pub").unwrap();
        publish.args(["-r", "-q", "1", "-t", &Topics::new("d").unwrap().model_desired("mnist")]);
        let status = publish.arg("-m").arg(serde_json::to_string(&desired).unwrap()).status().unwrap();
        assert!(status.success());
    }

    /// Waits for a report about a version in one of these states.
    fn report(&self, version: &str, states: &[&str]) -> ModelReport {
        let mut subscribe = self.broker.client("mosquitto_sub").unwrap();
        subscribe.args(["-W", "300", "-t", &Topics::new("d").unwrap().model_report("mnist")]).stdout(Stdio::piped());
        let mut subscriber = Process::start(&mut subscribe, "mosquitto-clients").unwrap();
        for line in BufReader::new(subscriber.child().stdout.take().unwrap()).lines() {
            let report: ModelReport = serde_json::from_str(&line.unwrap()).unwrap();
            if report.version == version && states.contains(&report.state.as_str()) {
                return report;
            }
        }
        panic!("no report about {version}:\n{}", self.otad.as_ref().unwrap().log());
    }

    async fn serving(&self) -> String {
        let address = self.bus.address();
        let connection = zbus::connection::Builder::address(address).build().await.unwrap();
        let model = Model1Proxy::new(&connection, model_path("mnist")).await.unwrap();
        model.version().await.unwrap()
    }

    /// `cairnctl model add FILE`.
    fn add(&self, bundle: &[u8]) -> Output {
        fs::write(self.path("bundle"), bundle).unwrap();
        self.add_from(self.path("bundle").to_str().unwrap(), &[])
    }

    /// `cairnctl model add SOURCE OPTIONS`.
    fn add_from(&self, source: &str, options: &[&str]) -> Output {
        static CAIRNCTL: LazyLock<PathBuf> = LazyLock::new(|| build("cairnctl").unwrap());
        let mut cairnctl = Command::new(&*CAIRNCTL);
        cairnctl.args(["--bus", self.bus.address(), "model", "add", source]).args(options).output().unwrap()
    }

    /// The store's record of the model: version that serves, and the one before.
    async fn versions(&self) -> (String, String) {
        let address = self.bus.address();
        let connection = zbus::connection::Builder::address(address).build().await.unwrap();
        let store = ModelStore1Proxy::new(&connection).await.unwrap();
        let [(_, current, previous, ..)] = &store.models().await.unwrap()[..] else { panic!("one model") };
        (current.clone(), previous.clone())
    }
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Serves a file by HTTP, until the test ends. Returns its address.
fn serve(file: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mnist.model", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() > 0 {
                request.push(byte[0]);
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", file.len());
            // A client that has enough closes early.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&file));
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn a_desired_version_serves_once_it_has_proved_itself() {
    let mut device = Device::start();
    assert_eq!(device.serving().await, "1.0.0");
    device.desire("2.0.0", device.bundle("2.0.0"));
    device.report("2.0.0", &["serving"]);
    assert_eq!(device.serving().await, "2.0.0");

    device.desire("3.0.0", device.wrong_bundle("3.0.0"));
    let report = device.report("3.0.0", &["refused"]);
    assert!(report.reason.contains("golden"), "{report:?}");
    assert_eq!(device.serving().await, "2.0.0");

    device.start_npud();
    assert_eq!(device.serving().await, "2.0.0", "the store outlives npud");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_could_not_be_proved_is_proved_later() {
    let mut device = Device::start();
    device.npud = None;
    device.desire("2.0.0", device.bundle("2.0.0"));
    device.report("2.0.0", &["failed"]);
    device.otad.as_mut().unwrap().kill().unwrap();
    device.start_npud();
    assert_eq!(device.serving().await, "1.0.0");
    device.start_otad();
    device.report("2.0.0", &["serving"]);
    assert_eq!(device.serving().await, "2.0.0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_adds_a_bundle_by_hand() {
    let device = Device::start();
    let output = device.add(&device.bundle("2.0.0"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("2.0.0"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(device.serving().await, "2.0.0");

    let mut changed = device.bundle("3.0.0");
    let last = changed.len() - 2000;
    changed[last] ^= 1;
    let output = device.add(&changed);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("the signature does not fit the content"), "{text}");
    assert_eq!(device.serving().await, "2.0.0");

    assert_eq!(device.versions().await, ("2.0.0".into(), String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_person_adds_from_an_address_is_what_was_asked_for_and_of_a_vendor_who_is_trusted() {
    let device = Device::start();
    let (good, old) = (device.bundle("2.0.0"), device.bundle("0.9.0"));
    let refused = |source: &str, options: &[&str], words: &str| {
        let output = device.add_from(source, options);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && output.stdout.is_empty() && text.contains(words), "{words}: {text}");
    };
    let foreign = Signer::new().unwrap().bundle(&model("mnist"), "2.0.0").unwrap();
    refused(&serve(foreign), &[], "InvalidArgs: ");
    refused(&serve(good[..good.len() / 2].to_vec()), &[], "the signature does not fit the content");
    refused(&serve(b"<html>sign in</html>".to_vec()), &[], "InvalidArgs: ");
    refused("http://127.0.0.1:1/none", &[], "get http://127.0.0.1:1/none");
    refused("ftp://127.0.0.1/none", &[], "neither http nor https");
    let url = serve(good.clone());
    refused(&url, &["--version", "3.0.0"], "3.0.0");
    refused(&url, &["--sha256", &"0".repeat(64)], "0000");
    assert_eq!(device.serving().await, "1.0.0");

    let output = device.add_from(&url, &["--version", "2.0.0", "--sha256", &sha256(&good)]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((device.serving().await, device.versions().await.0), ("2.0.0".into(), "2.0.0".into()));
    // A person may go back to what a vendor has signed; the version before is kept.
    assert!(device.add(&old).status.success());
    assert_eq!(device.versions().await, ("0.9.0".into(), "2.0.0".into()));
}
