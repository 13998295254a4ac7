//! A machine whose daemons are the real ones: npud on the simulator, healthd and otad; RAUC with the configuration that the
//! image brings, and the boot state that the bootloader counts in.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use testkit::{Daemon, build, model};
use zbus::Connection;
use zbus::fdo::DBusProxy;

use super::{PATIENCE, Slot, System, Unit, bundles};

/// What the image's configuration of RAUC is.
const CONFIG: &str = include_str!("../../dist/rauc-system.conf.in");
/// What the image's configuration of `fw_setenv` is.
const BOOT_STATE: &str = include_str!("../../../../yocto/meta-cairn/recipes-bsp/u-boot/files/fw_env.config");
/// Bytes of the boot state. SOURCE: fw_env.config.
const BOOT_STATE_BYTES: usize = 0x4000;

/// A service manager for which a unit is active while its name is owned.
pub(super) struct Systemd;

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Systemd {
    async fn list_units_by_names(&self, names: Vec<String>, #[zbus(connection)] bus: &Connection) -> Vec<Unit> {
        let bus = DBusProxy::new(bus).await.unwrap();
        let mut units = Vec::new();
        for name in names {
            let owner = match name.as_str() {
                "npud.service" => "org.cairn.Npu1",
                "healthd.service" => "org.cairn.Health1",
                "otad.service" => "org.cairn.Update1",
                name => panic!("nobody knows {name}"),
            };
            let active = bus.name_has_owner(owner.try_into().unwrap()).await.unwrap();
            units.push(super::unit(name, active));
        }
        units
    }
}

static NPUD: LazyLock<PathBuf> = LazyLock::new(|| build("npud").unwrap());
static HEALTHD: LazyLock<PathBuf> = LazyLock::new(|| build("healthd").unwrap());

/// The machine.
pub(crate) struct Whole {
    pub(crate) system: System,
    /// Whether healthd comes up in a slot, A and B.
    pub(crate) healthd_comes_up: [bool; 2],
    kernels: [Slot; 2],
    daemons: Vec<Daemon>,
}

impl Whole {
    /// A machine that is off. Both slots have two models.
    pub(crate) async fn new(more: &str) -> Self {
        let mut system = System::bare(more, false).await;
        system.units = &["npud.service", "healthd.service", "otad.service"];
        let kernels = ["boot-a", "boot-b"].map(|name| Slot::new(system.path(name)));
        let folder = system.folder.path().display().to_string();
        let devices = [("rootfs_a", &system.slots[0]), ("rootfs_b", &system.slots[1])];
        let mut config = CONFIG
            .replace("@MACHINE@", "test")
            .replace("/var/lib/rauc", &format!("{folder}/rauc"))
            .replace("/run/rauc", &format!("{folder}/mounts"))
            .replace("/etc/rauc/keyring.pem", &bundles::keys().join("ca.pem").display().to_string())
            // A kernel without a device mapper takes no others.
            .replace("bundle-formats=-plain", "bundle-formats=plain");
        for (label, slot) in devices.into_iter().chain([("boot_a", &kernels[0]), ("boot_b", &kernels[1])]) {
            config = config.replace(&format!("/dev/disk/by-partlabel/{label}\n"), &format!("{}\n", slot.device));
        }
        assert!(!config.contains("/dev/disk") && !config.contains('@'), "{config}");
        fs::write(system.path("system.conf"), config).unwrap();
        fs::create_dir(system.path("rauc")).unwrap();
        let whole = Self { system, healthd_comes_up: [true; 2], kernels, daemons: Vec::new() };
        whole.install_boot_state();
        for slot in ["A", "B"] {
            whole.set_golden(slot, true);
        }
        whole
    }

    fn install_boot_state(&self) {
        let state = self.system.path("bootstate");
        fs::write(&state, vec![0; BOOT_STATE_BYTES]).unwrap();
        let config = BOOT_STATE.replace("/dev/disk/by-partlabel/bootstate", &state.display().to_string());
        fs::write(self.system.path("fw_env.config"), config).unwrap();
        fs::write(self.system.path("defaults"), "BOOT_ORDER=A B\nBOOT_A_LEFT=3\nBOOT_B_LEFT=3\n").unwrap();
        fs::create_dir(self.system.path("bin")).unwrap();
        let folder = self.system.folder.path().display();
        for program in ["fw_setenv", "fw_printenv"] {
            let options = format!("-c {folder}/fw_env.config -f {folder}/defaults");
            let script = format!("#!/bin/sh\nPATH=${{PATH#*:}} exec {program} {options} \"$@\"\n");
            let file = self.system.path("bin").join(program);
            fs::write(&file, script).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    /// Gives the system in a slot its models; without `right`, one of them has a golden output that no NPU computes.
    pub(crate) fn set_golden(&self, slot: &str, right: bool) {
        let image = self.system.path(&format!("image-{slot}"));
        let _ = fs::remove_dir_all(&image);
        fs::create_dir(&image).unwrap();
        symlink(model("mnist"), image.join("mnist")).unwrap();
        let other = image.join("other");
        fs::create_dir(&other).unwrap();
        for file in fs::read_dir(model("mnist")).unwrap() {
            let file = file.unwrap();
            let mut bytes = fs::read(file.path()).unwrap();
            match file.file_name().to_str().unwrap() {
                "model.toml" => bytes = String::from_utf8(bytes).unwrap().replace("\"mnist\"", "\"other\"").into(),
                "golden_scores.bin" if !right => bytes.iter_mut().for_each(|byte| *byte ^= 0x80),
                _ => {}
            }
            fs::write(other.join(file.file_name()), bytes).unwrap();
        }
    }

    /// Starts the machine: the bootloader chooses, and takes a try. Returns the slot. Versions of A and B.
    pub(crate) async fn start(&mut self, versions: [&str; 2]) -> String {
        self.daemons.clear();
        self.system.power_off();
        let slot = self.bootloader();
        let number = usize::from(slot == "B");
        self.system.kernel_starts(versions[number]);
        self.system.start_rauc(&slot).await;
        self.start_npud(&slot);
        if self.healthd_comes_up[number] {
            self.start_healthd();
        }
        self.system.start_otad();
        slot
    }

    /// As boot.cmd does, which has tests of its own in U-Boot.
    fn bootloader(&self) -> String {
        for slot in self.boot_state("BOOT_ORDER").split_whitespace() {
            let name = format!("BOOT_{slot}_LEFT");
            let left: u32 = self.boot_state(&name).parse().unwrap();
            if left > 0 {
                let status = self.tool("fw_setenv").args([&name, &(left - 1).to_string()]).status().unwrap();
                assert!(status.success());
                return slot.to_owned();
            }
        }
        panic!("both systems are bad");
    }

    /// What the bootloader remembers.
    pub(crate) fn boot_state(&self, name: &str) -> String {
        let output = self.tool("fw_printenv").args(["-n", name]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn tool(&self, program: &str) -> Command {
        let bin = self.system.path("bin");
        let mut command = Command::new(bin.join(program));
        command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
        command
    }

    fn start_npud(&mut self, slot: &str) {
        let (address, folder) = (self.system.bus.address(), self.system.folder.path().display());
        let config = format!(
            "device-name = \"d\"\nmodels = [\"{folder}/image-{slot}\"]\nstore = \"{folder}/models\"\ncontexts = 1\n\
             bus = {{ address = \"{address}\" }}\n"
        );
        self.daemons.push(ready(&NPUD, &config, &["--simulate"]));
    }

    fn start_healthd(&mut self) {
        let (address, folder) = (self.system.bus.address(), self.system.folder.path().display());
        fs::write(self.system.path("kmsg"), "").unwrap();
        let boot_id = self.system.path("root/proc/sys/kernel/random/boot_id");
        fs::create_dir_all(boot_id.parent().unwrap()).unwrap();
        fs::copy(self.system.path("boot-id"), boot_id).unwrap();
        let config = format!(
            "device-name = \"d\"\nbus = {{ address = \"{address}\" }}\nkernel-log = \"{folder}/kmsg\"\n\
             kernel-log-is-text = true\nroot = \"{folder}/root\"\nstate = \"{folder}/health\"\n\
             metrics-socket = \"{folder}/metrics\"\npstore = [\"{folder}/pstore\"]\ngpu = false\n"
        );
        self.daemons.push(ready(&HEALTHD, &config, &[]));
    }

    /// Checks that a slot has what the bundle of a version brought, in both partitions.
    pub(crate) fn check_slot(&self, slot: &str, bundle: &bundles::Bundle, version: &str) {
        let number = usize::from(slot == "B");
        assert!(fs::read(&self.system.slots[number].file).unwrap().starts_with(&bundle.payload), "root of {slot}");
        assert!(
            fs::read(&self.kernels[number].file).unwrap().starts_with(&bundles::kernel(version)),
            "kernel of {slot}"
        );
    }
}

fn ready(program: &Path, config: &str, arguments: &[&str]) -> Daemon {
    let mut daemon = Daemon::start(program, config, arguments, &[]).unwrap();
    daemon.wait_for("READY=1", PATIENCE).unwrap();
    daemon
}
