//! The program on a card, a data partition and a root of its own.

#![allow(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

const COMPLETE: &str = include_str!("../../../src/provision/tests/complete.toml");

struct Device {
    folder: TempDir,
    systemd_creds: &'static str,
}

impl Device {
    fn new() -> Self {
        let device = Self { folder: tempfile::tempdir().unwrap(), systemd_creds: "no-such-program" };
        for folder in ["card", "root/usr/share/zoneinfo/Europe", "data"] {
            fs::create_dir_all(device.path(folder)).unwrap();
        }
        fs::write(device.path("root/usr/share/zoneinfo/Europe/Berlin"), "").unwrap();
        fs::create_dir(device.path("root/etc")).unwrap();
        symlink("/run/cairn/localtime", device.path("root/etc/localtime")).unwrap();
        device
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn status(&self) -> String {
        self.text("card/cairn-status.txt")
    }

    fn wish(&self, text: &str) {
        fs::write(self.path("card/cairn.toml"), text).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cairn-provision"));
        command.arg("--card").arg(self.path("card")).arg("--state").arg(self.path("data/provision"));
        command.arg("--root").arg(self.path("root")).args(["--systemd-creds", self.systemd_creds]);
        // Its own key: this machine's stays alone.
        command.env("SYSTEMD_CREDENTIAL_SECRET", self.path("data/host-key")).args(arguments);
        command.output().unwrap()
    }

    fn apply(&self) {
        let output = self.run(&["apply"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn reset(&self) -> Output {
        let (wipe, host_keys) = (self.path("data"), self.path("data/ssh"));
        let marker = self.path("data/update/factory-reset");
        let [wipe, host_keys, marker] = [&wipe, &host_keys, &marker].map(|path| path.to_str().unwrap());
        self.run(&["reset", "--wipe", wipe, "--keep", host_keys, "--marker", marker])
    }

    /// All text below a folder.
    fn everything(&self, folder: &str) -> String {
        let output = Command::new("grep").args(["--recursive", "--text", ""]).arg(self.path(folder)).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

#[test]
fn a_device_becomes_what_the_card_says() {
    let device = Device::new();
    device.wish(COMPLETE);
    device.apply();
    assert_eq!(device.text("root/run/sysctl.d/50-cairn-hostname.conf"), "kernel.hostname = workshop-3\n");
    assert_eq!(device.text("root/run/cairn/authorized_keys").lines().count(), 2);
    assert!(device.text("root/run/cairn/wpa_supplicant.conf").contains("psk=\"correct horse battery\""));
    assert_eq!(device.text("root/run/cairn/mqtt/password"), "hunter2");
    let zone = fs::read_link(device.path("root/run/cairn/localtime")).unwrap();
    assert_eq!(zone, PathBuf::from("/usr/share/zoneinfo/Europe/Berlin"));
    let settings: kit::mqtt::Settings = toml::from_str(&device.text("root/run/cairn/mqtt/mqtt.toml")).unwrap();
    assert_eq!(settings.url, "mqtts://broker.example:8883");
    assert!(settings.tls.unwrap().key.is_some());
    let status = device.status();
    assert!(status.contains("cairn.toml: applied") && status.contains("host name: workshop-3"), "{status}");
}

#[test]
fn secrets_leave_the_card_and_nobody_else_reads_them() {
    let device = Device::new();
    device.wish(COMPLETE);
    device.apply();
    let card = device.everything("card");
    for secret in ["correct horse", "hunter2", "BEGIN PRIVATE KEY"] {
        assert!(!card.contains(secret), "{card}");
    }
    assert!(card.contains("passphrase = true") && card.contains("wifi-passphrase is not encrypted"), "{card}");
    let mode = |path: &str| fs::metadata(device.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("data/provision/secrets"), mode("data/provision/secrets/mqtt-key")), (0o700, 0o600));
    assert_eq!((mode("root/run/cairn/wpa_supplicant.conf"), mode("root/run/cairn/mqtt/key.pem")), (0o600, 0o640));

    fs::remove_dir_all(device.path("root/run")).unwrap();
    device.apply();
    assert_eq!(device.text("root/run/cairn/mqtt/password"), "hunter2", "the next start has them as well");
    assert!(device.status().contains("cairn.toml: applied"));
}

#[test]
fn systemd_encrypts_secrets() {
    let device = Device { systemd_creds: "systemd-creds", ..Device::new() };
    device.wish(COMPLETE);
    device.apply();
    assert!(!device.everything("data").contains("hunter2"), "a secret is on the data partition as it is");
    assert!(device.path("data/provision/secrets/mqtt-password.cred").is_file());
    assert_eq!(device.text("root/run/cairn/mqtt/password"), "hunter2");
    assert!(!device.status().contains("problem"), "{}", device.status());

    fs::remove_file(device.path("data/host-key")).unwrap();
    device.apply();
    assert!(!device.path("root/run/cairn/mqtt/password").exists());
    assert!(device.status().contains("write it into cairn.toml again"), "{}", device.status());
}

#[test]
fn a_file_with_faults_changes_nothing_and_says_where() {
    let device = Device::new();
    device.wish("hostname = \"first\"\n");
    device.apply();
    let faulty = "hostnmae = \"second\"\ntime-zone = \"Europe/Atlantis\"\n";
    device.wish(faulty);
    device.apply();
    assert_eq!(device.text("root/run/sysctl.d/50-cairn-hostname.conf"), "kernel.hostname = first\n");
    let status = device.status();
    assert!(status.contains("REFUSED") && status.contains("line 1 column 1: unknown key \"hostnmae\""), "{status}");
    assert_eq!(device.text("card/cairn.toml"), faulty);

    device.wish("time-zone = \"Europe/Atlantis\"\n[wifi]\nssid = \"a\"\ncountry = \"DE\"\npassphrase = true\n");
    device.apply();
    let status = device.status();
    assert!(status.contains("line 1 column 13: time-zone: this device does not know"), "{status}");
    assert!(status.contains("line 5 column 14: the device holds no wifi-passphrase"), "{status}");
}

#[test]
fn an_image_that_goes_by_another_clock_says_so() {
    let device = Device::new();
    fs::remove_file(device.path("root/etc/localtime")).unwrap();
    symlink("/usr/share/zoneinfo/UTC", device.path("root/etc/localtime")).unwrap();
    device.wish("time-zone = \"Europe/Berlin\"\n");
    device.apply();
    assert!(
        device.status().contains("problem: time-zone has no effect: /etc/localtime is no link"),
        "{}",
        device.status()
    );
}

#[test]
fn what_is_no_text_is_refused_with_the_place() {
    let device = Device::new();
    fs::write(device.path("card/cairn.toml"), b"# caf\xe9\n").unwrap();
    device.apply();
    assert!(device.status().contains("line 1 column 6: the file is not UTF-8"), "{}", device.status());
}

#[test]
fn what_is_not_said_any_more_is_not_done_any_more() {
    let device = Device::new();
    device.wish(COMPLETE);
    device.apply();
    device.wish("hostname = \"a\"\n");
    device.apply();
    assert!(!device.path("root/run/cairn/wpa_supplicant.conf").exists());
    assert_eq!(fs::read_dir(device.path("data/provision/secrets")).unwrap().count(), 0);
}

#[test]
fn a_device_without_a_card_does_what_it_did() {
    let device = Device::new();
    device.wish(COMPLETE);
    device.apply();
    fs::remove_dir_all(device.path("card")).unwrap();
    fs::remove_dir_all(device.path("root/run")).unwrap();
    device.apply();
    assert_eq!(device.text("root/run/cairn/mqtt/password"), "hunter2");
}

#[test]
fn a_start_that_was_interrupted_before_the_card_was_scrubbed_is_repeated() {
    let device = Device::new();
    device.wish(COMPLETE);
    device.apply();
    let scrubbed = device.text("card/cairn.toml");
    device.wish(COMPLETE);
    device.apply();
    assert_eq!(device.text("card/cairn.toml"), scrubbed);
}

/// A device that was told everything and has data of its own.
fn used() -> Device {
    let device = Device::new();
    for (path, text) in [("models/a/b", "model"), ("ssh/host_key", "key"), ("update/x", "state")] {
        let path = device.path("data").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    device.wish(COMPLETE);
    device.apply();
    device
}

#[test]
fn nothing_is_reset_unless_someone_asks() {
    let device = used();
    assert!(device.reset().status.success());
    assert_eq!(device.text("data/models/a/b"), "model");
}

#[test]
fn a_factory_reset_keeps_the_keys_if_the_card_says_so() {
    let device = used();
    fs::write(device.path("card/factory-reset.txt"), "").unwrap();
    assert!(device.reset().status.success());
    assert!(!device.path("data/models").exists() && !device.path("data/update").exists());
    assert_eq!(device.text("data/ssh/host_key"), "key");
    let left: Vec<_> = fs::read_dir(device.path("card")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    device.apply();
    assert!(device.status().contains("cairn.toml: applied"), "{}", device.status());
    assert_eq!(device.text("root/run/cairn/mqtt/password"), "hunter2");
}

#[test]
fn a_factory_reset_takes_the_keys_otherwise() {
    let device = used();
    device.wish(&device.text("card/cairn.toml").replace("keep-keys = true", "keep-keys = false"));
    device.apply();
    fs::write(device.path("data/update/factory-reset"), "").unwrap();
    assert!(device.reset().status.success());
    assert_eq!(fs::read_dir(device.path("data")).unwrap().count(), 0);
    device.apply();
    assert!(device.status().contains("the device holds no mqtt-password; write it here"), "{}", device.status());
}

/// What the image's unit starts, with everything below a folder.
fn arguments_of_the_unit(root: &std::path::Path) -> Vec<String> {
    let unit = include_str!("../dist/cairn-factory-reset.service").replace("\\\n", " ");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/cairn-provision ")).unwrap();
    let below = |word: &str| match word.starts_with('/') {
        true => format!("{}{word}", root.display()),
        false => word.to_owned(),
    };
    line.split_whitespace().map(below).collect()
}

#[test]
fn what_the_unit_resets_is_everything_that_is_not_of_the_image() {
    for keeps in [true, false] {
        let device = Device::new();
        let root = device.path("machine");
        let state = "var/lib/cairn-provision";
        for path in [
            "config/cairn.toml",
            "etc/os-release",
            "var/lib/cairn/update/update.json",
            "var/lib/cairn/update/factory-reset",
            "var/lib/cairn/gate/gate.json",
            "var/lib/cairn-models/models/mnist.json",
            "var/lib/cairn-health/state.json",
            "var/lib/rauc/central.raucs",
            "var/lib/ssh/ssh_host_ed25519_key",
            "var/lib/systemd/credential.secret",
            "var/lib/systemd/random-seed",
            "var/lib/cairn-provision/secrets/mqtt-password",
            "var/log/journal/1/system.journal",
        ] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), "content").unwrap();
        }
        let taken = format!("[factory-reset]\nkeep-keys = {keeps}\n");
        fs::write(root.join(state).join("cairn.toml"), taken).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_cairn-provision"));
        command.arg("--card").arg(root.join("config")).arg("--state").arg(root.join(state));
        let output = command.args(arguments_of_the_unit(&root)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut left: Vec<_> = device.everything("machine").lines().map(|line| line.to_owned()).collect();
        left.sort();
        let left: Vec<_> =
            left.iter().map(|line| line.split_once("machine/").unwrap().1.split(':').next().unwrap()).collect();
        let kept: &[&str] = match keeps {
            true => &[
                "var/lib/cairn-provision/cairn.toml",
                "var/lib/cairn-provision/cairn.toml",
                "var/lib/cairn-provision/secrets/mqtt-password",
                "var/lib/ssh/ssh_host_ed25519_key",
                "var/lib/systemd/credential.secret",
            ],
            false => &[],
        };
        assert_eq!(left, [&["config/cairn.toml", "etc/os-release"], kept].concat(), "keep-keys = {keeps}");
    }
}

#[test]
fn a_factory_reset_that_was_interrupted_goes_on() {
    let device = used();
    fs::write(device.path("card/factory-reset.running"), "").unwrap();
    assert!(device.reset().status.success());
    assert!(!device.path("data/models").exists() && !device.path("card/factory-reset.running").exists());
}

#[test]
fn a_card_that_cannot_be_written_resets_nothing() {
    let device = used();
    fs::write(device.path("data/update/factory-reset"), "").unwrap();
    fs::remove_dir_all(device.path("card")).unwrap();
    fs::write(device.path("card"), "no folder").unwrap();
    assert!(!device.reset().status.success());
    assert_eq!(device.text("data/models/a/b"), "model");
}

#[test]
fn a_reset_does_not_follow_links_out_of_the_data() {
    let device = used();
    fs::create_dir(device.path("elsewhere")).unwrap();
    fs::write(device.path("elsewhere/file"), "mine").unwrap();
    symlink(device.path("elsewhere"), device.path("data/link")).unwrap();
    fs::write(device.path("card/factory-reset"), "").unwrap();
    assert!(device.reset().status.success());
    assert_eq!(device.text("elsewhere/file"), "mine");
    assert!(device.path("data/link").symlink_metadata().is_err());
}
