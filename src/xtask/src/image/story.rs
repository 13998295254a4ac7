//! `cargo xtask image test`: what an image goes through in the field, in the virtual board.
//!
//! ```text
//! a version on a disk ─▶ U-Boot ─▶ kernel ─▶ verified root ─▶ services ─▶ inference by D-Bus and MQTT
//! ```
//! The first stage that fails ends it: those after it would start from something else.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::guest::{Guest, START};
use super::journal::{Journal, Origin};
use super::modules::Modules;
use super::outside::{self, Broker, REPLIES};
use super::{Layout, MACHINE, NEEDS, initramfs, root, wks};
use crate::board::{guest, qemu};
use crate::bootloader;
use crate::kernel::succeed;
use crate::need::{self, BROKER, FAKETIME, KMOD, MMDEBSTRAP, MOUNTS, MQTT_CLIENTS, Need, SYSUSERS};
use crate::step::{self, Counts};

/// What is on the disk.
const VERSION: &str = "0.1.0";
/// A console, and a shell for whoever has the machine under the fingers. The image has only the console, and talks more.
const CMDLINE: &str = "console=ttyAMA0,115200 quiet systemd.debug_shell=hvc0";
/// The bundled model.
const MODEL: &str = "ssd-oidv4";
/// A picture, and what is on it.
const PICTURE: (&str, &str) = ("tests/pictures/chelsea.jpg", "Cat");
/// TIMEOUT: a picture takes seconds on an idle machine.
const ANSWER: Duration = Duration::from_secs(30 * 60);

/// Asks for it among all tests.
const ASKED: &str = "CAIRN_IMAGE_TEST";

/// What it needs of this machine.
pub(super) fn needs() -> Vec<Need> {
    let own = [BROKER, FAKETIME, KMOD, MMDEBSTRAP, MOUNTS, MQTT_CLIENTS, SYSUSERS];
    [NEEDS, &guest::needs(), &own].concat()
}

/// Runs all of it by itself.
///
/// # Errors
/// What cannot be had or built.
pub(super) fn run() -> Result<ExitCode> {
    need::require(&needs())?;
    let mut counts = Counts::default();
    play(&mut counts)?;
    println!("{counts}");
    Ok(counts.exit_code())
}

/// As a part of all tests: for whoever asks, as it takes longer than all others together.
///
/// # Errors
/// As [`run`].
pub(crate) fn test(counts: &mut Counts) -> Result<()> {
    println!("\n== image in the virtual board");
    let what = "image in the virtual board";
    if std::env::var_os(ASKED).is_none() {
        counts.skip(what, &format!("takes an hour; `cargo xtask image test` runs it, and so does this with {ASKED}=1"));
    } else if !root::is_here()? {
        counts.skip(what, "its packages are not in the cache; `cargo xtask image test` brings them");
    } else if let Some(need) = need::provide(&needs()).first() {
        counts.skip(what, &format!("needs {}", need.name));
    } else {
        play(counts)?;
    }
    Ok(())
}

/// Goes through the stages, and counts them. One that fails is the last.
fn play(counts: &mut Counts) -> Result<()> {
    let folder = step::target().join("image");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let parts = Parts::build(&folder)?;
    let mut run = Run::start(&folder, &parts)?;
    for (sentence, stage) in STAGES {
        let begin = Instant::now();
        let outcome = stage(&mut run);
        counts.step(outcome.is_ok());
        let (verdict, text) = match &outcome {
            Ok(text) => ("ok", text.clone()),
            Err(error) => ("FAILED", format!("{error:#}")),
        };
        println!("stage {sentence} ... {verdict} in {} s{}", begin.elapsed().as_secs(), indented(&text));
        if outcome.is_err() {
            println!("the last that was heard:\n{}", run.journal.tail(60));
            break;
        }
    }
    println!("all that was heard: {}", log(&folder).display());
    Ok(())
}

fn log(folder: &Path) -> PathBuf {
    folder.join("log")
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("\n    {line}")).collect()
}

/// A sentence, and how it comes true. Returns what is worth saying.
type Stage = (&'static str, fn(&mut Run) -> Result<String>);

const STAGES: &[Stage] = &[
    ("U-Boot starts slot A and systemd runs on the verified root", starts),
    ("the services are up and the slot is marked good", serves),
    ("a picture by D-Bus", asks_by_dbus),
    ("a picture by MQTT, from outside", asks_by_mqtt),
];

/// What is built before the machine starts.
struct Parts {
    disk: PathBuf,
    flash: PathBuf,
}

impl Parts {
    fn build(folder: &Path) -> Result<Self> {
        let base = root::base()?;
        let programs = folder.join("programs");
        root::programs(&programs)?;
        guest::build_for_host(&[])?;
        let modules = Modules::find()?;
        let initramfs = initramfs::make(&base, &modules, folder)?;
        File::create(folder.join("ram"))?.set_len(u64::from(qemu::MEMORY) << 20)?;
        let tree = qemu::device_tree(&qemu::program()?, folder, qemu::MEMORY)?;
        let root = folder.join("root");
        root::make(&base, &modules, &programs, VERSION, &root)?;
        let layout = Layout {
            root,
            kernel: guest::kernel()?.0,
            load: String::from("0x40400000"),
            tree,
            initramfs: Some(initramfs),
            cmdline: CMDLINE.into(),
            version: VERSION.into(),
            machine: MACHINE.trim_start_matches("cairn-").into(),
            output: folder.join("disk"),
        };
        layout.make()?;
        println!("kilobytes of the root, by package:");
        for (package, size) in root::sizes(&base, &layout.root)?.iter().take(12) {
            println!("    {package} {size}");
        }
        let flash = folder.join("flash");
        bootloader::make_flash(&flash)?;
        Ok(Self { disk: layout.output, flash })
    }
}

/// A machine and what is around it.
struct Run {
    journal: Journal,
    broker: Broker,
    guest: Guest,
    /// Its name in topics.
    device: String,
}

impl Run {
    fn start(folder: &Path, parts: &Parts) -> Result<Self> {
        let journal = Journal::new(&log(folder))?;
        let broker = Broker::start(folder, &journal)?;
        provision(folder, &parts.disk, broker.port)?;
        let guest = Guest::start(&parts.disk, &parts.flash, &journal)?;
        Ok(Self { journal, broker, guest, device: String::new() })
    }

    /// Waits for a line of the console with these words, from the line `from` on.
    fn console(&self, from: usize, words: &str) -> Result<()> {
        let found = self.journal.wait(Origin::Console, from, START, |line| line.contains(words).then_some(()));
        found.with_context(|| format!("{words:?} on the console"))
    }

    /// Waits until the machine has started, and says how.
    fn await_system(&mut self) -> Result<String> {
        self.guest.await_shell()?;
        // Its own option to wait is deaf where it begins before the message bus.
        self.guest.run(
            "while systemctl is-system-running | grep -qE 'initializing|starting'; do sleep 5; done; \
             systemctl is-system-running || systemctl --failed --no-legend --plain",
        )
    }

    fn boot_state(&mut self) -> Result<String> {
        self.guest.run("fw_printenv BOOT_ORDER BOOT_A_LEFT BOOT_B_LEFT")
    }
}

/// Puts the owner's file onto the partition of the disk that is for it.
fn provision(folder: &Path, disk: &Path, port: u16) -> Result<()> {
    let file = folder.join("cairn.toml");
    let text = format!("hostname = \"virtual-board\"\n\n[mqtt]\nurl = \"mqtt://{}:{port}\"\n", outside::ADDRESS);
    fs::write(&file, text)?;
    let table = wks::read(MACHINE.trim_start_matches("cairn-"))?;
    let config = table.iter().find(|part| part.name == "config").context("there is a partition for the owner")?;
    let mut place = disk.as_os_str().to_owned();
    place.push(format!("@@{}", config.start));
    succeed(Command::new("mcopy").arg("-i").arg(place).arg(&file).arg("::"))
}

/// What the boot script says: which system, and how many tries it and the other one have left.
fn starting(slot: &str, left: u32, others: u32) -> String {
    let (a, b) = if slot == "A" { (left, others) } else { (others, left) };
    format!("cairn: starting {slot}, tries left A={a} B={b}")
}

fn starts(run: &mut Run) -> Result<String> {
    run.console(0, &starting("A", 2, 3))?;
    let system = run.await_system()?;
    let table = run.guest.run("dmsetup table cairn-root")?;
    ensure!(table.contains(" verity 1 "), "the root is not verified: {table}");
    let mounted = run.guest.run("findmnt --noheadings --output FSTYPE,OPTIONS /")?;
    ensure!(mounted.starts_with("erofs") && mounted.contains("ro,"), "the root is {mounted}");
    let analysis = run.guest.run("systemd-analyze time")?;
    Ok(format!("{system}\n{analysis}"))
}

fn serves(run: &mut Run) -> Result<String> {
    let online = |line: &str| {
        let device = line.strip_prefix("cairn/")?.strip_suffix("/state online")?;
        // Parts of a device have states as well.
        (!device.contains('/')).then(|| device.to_owned())
    };
    run.device = run.journal.wait(Origin::Broker, 0, START, online).context("npud over MQTT")?;
    for (topic, payload) in [("update/availability", "online"), ("health/state", "online")] {
        let line = format!("cairn/{}/{topic} {payload}", run.device);
        run.journal
            .wait(Origin::Broker, 0, START, |said| (said == line).then_some(()))
            .with_context(|| line.clone())?;
    }
    run.guest.run("systemctl is-active npud.service healthd.service otad.service cairn-gate.service")?;
    let state = run.boot_state()?;
    ensure!(state.contains("BOOT_A_LEFT=3"), "the slot is not marked good: {state}");
    Ok(format!("device {}", run.device))
}

fn asks_by_dbus(run: &mut Run) -> Result<String> {
    let answer = run.guest.run(&format!("cairnctl infer /usr/share/cairn/models/{MODEL}/golden.png"))?;
    ensure!(answer.contains(": trusted,") && answer.contains('%'), "{answer}");
    Ok(answer)
}

fn asks_by_mqtt(run: &mut Run) -> Result<String> {
    let (from, (picture, label)) = (run.journal.now(), PICTURE);
    run.broker.ask(&format!("cairn/{}/infer/{MODEL}/request", run.device), &step::workspace().join(picture))?;
    let reply = |line: &str| line.strip_prefix(REPLIES)?.strip_prefix(' ').map(str::to_owned);
    let answer = run.journal.wait(Origin::Broker, from, ANSWER, reply).context("an answer over MQTT")?;
    ensure!(answer.contains("\"verdict\":\"trusted\""), "{answer}");
    ensure!(answer.contains(&format!("\"label\":\"{label}\"")), "{answer}");
    Ok(answer)
}
