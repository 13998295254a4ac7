//! `cargo xtask image test`: what an image goes through in the field, in the virtual board.
//!
//! ```text
//! version 1 on a disk ─▶ U-Boot ─▶ kernel ─▶ verified root ─▶ services ─▶ inference by D-Bus and MQTT
//!   ─▶ version 2 is offered ─▶ installed ─▶ restarted ─▶ the gate marks it good
//!   ─▶ version 3, whose model is damaged, is offered ─▶ three tries ─▶ version 2 again, and a report that says why
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
use super::{Layout, MACHINE, NEEDS, bundle, initramfs, root, wks};
use crate::board::{guest, qemu};
use crate::bootloader;
use crate::kernel::succeed;
use crate::need::{self, BROKER, FAKETIME, KMOD, MMDEBSTRAP, MOUNTS, MQTT_CLIENTS, Need, RAUC, SQUASHFS, SYSUSERS};
use crate::step::{self, Counts};

/// What is installed on the disk, what is well, and what is not.
const VERSIONS: [&str; 3] = ["0.1.0", "0.2.0", "0.3.0"];
/// A console, and a shell for whoever has the machine under the fingers; a login on the same line would hang it up. The image
/// has only the console, and talks more.
const CMDLINE: &str = "console=ttyAMA0,115200 quiet systemd.debug_shell=hvc0 systemd.mask=serial-getty@hvc0.service";
/// The bundled model, and one of its files that a damaged image damages.
const MODEL: &str = "ssd-oidv4";
const GOLDEN: &str = "usr/share/cairn/models/ssd-oidv4/golden_scores.bin";
/// How long the gate of the damaged image waits. What is wrong does not pass, and three tries are long enough.
const DEADLINE: (&str, &str) = ("deadline-seconds = 300", "deadline-seconds = 60");
/// A picture, and what is on it.
const PICTURE: (&str, &str) = ("tests/pictures/chelsea.jpg", "Cat");
/// TIMEOUT: 200 MB are fetched, hashed and written by an emulated processor; three tries of five minutes and their starts.
const UPDATE: Duration = Duration::from_secs(3 * 60 * 60);
/// TIMEOUT: a picture takes seconds on an idle machine.
const ANSWER: Duration = Duration::from_secs(30 * 60);

/// Asks for it among all tests.
const ASKED: &str = "CAIRN_IMAGE_TEST";

/// What it needs of this machine.
pub(super) fn needs() -> Vec<Need> {
    let own = [BROKER, FAKETIME, KMOD, MMDEBSTRAP, MOUNTS, MQTT_CLIENTS, RAUC, SQUASHFS, SYSUSERS];
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
        let outcome = stage(&mut run, &parts);
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
type Stage = (&'static str, fn(&mut Run, &Parts) -> Result<String>);

const STAGES: &[Stage] = &[
    ("U-Boot starts slot A and systemd runs on the verified root", starts),
    ("the services are up and the slot is marked good", serves),
    ("a picture by D-Bus", asks_by_dbus),
    ("a picture by MQTT, from outside", asks_by_mqtt),
    ("version 2 is offered, installed, judged and marked good", updates),
    ("version 3 fails its three tries, and version 2 is back", rolls_back),
];

/// What is built before the machine starts.
struct Parts {
    disk: PathBuf,
    flash: PathBuf,
    bundles: [PathBuf; 2],
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
        let layout = |version: &str| -> Result<Layout> {
            let root = folder.join(format!("root-{version}"));
            root::make(&base, &modules, &programs, version, &root)?;
            Ok(Layout {
                root,
                kernel: guest::kernel()?.0,
                load: String::from("0x40400000"),
                tree: tree.clone(),
                initramfs: Some(initramfs.clone()),
                cmdline: CMDLINE.into(),
                version: version.into(),
                machine: MACHINE.trim_start_matches("cairn-").into(),
                output: folder.join("disk"),
            })
        };
        let [first, second, third] = VERSIONS;
        let first = layout(first)?;
        first.make()?;
        println!("kilobytes of the root, by package:");
        for (package, size) in root::sizes(&base, &first.root)?.iter().take(12) {
            println!("    {package} {size}");
        }
        let second = layout(second)?;
        let third = layout(third)?;
        damage(&third.root)?;
        let flash = folder.join("flash");
        bootloader::make_flash(&flash)?;
        let bundles = [bundle::make(&second, folder)?, bundle::make(&third, folder)?];
        Ok(Self { disk: first.output, flash, bundles })
    }
}

/// Changes every byte of what the model is held against, and has the gate give up sooner.
fn damage(root: &Path) -> Result<()> {
    let (golden, settings) = (root.join(GOLDEN), root.join("etc/cairn/otad.toml"));
    let bytes = fs::read(&golden).with_context(|| format!("read {}", golden.display()))?;
    fs::write(&golden, bytes.iter().map(|byte| !byte).collect::<Vec<u8>>())?;
    let text = fs::read_to_string(&settings).with_context(|| format!("read {}", settings.display()))?;
    ensure!(text.contains(DEADLINE.0), "{} has no {:?}", settings.display(), DEADLINE.0);
    Ok(fs::write(&settings, text.replace(DEADLINE.0, DEADLINE.1))?)
}

/// A machine and what is around it.
struct Run {
    journal: Journal,
    broker: Broker,
    /// Port of the server of bundles.
    server: u16,
    guest: Guest,
    /// Its name in topics.
    device: String,
}

impl Run {
    fn start(folder: &Path, parts: &Parts) -> Result<Self> {
        let journal = Journal::new(&log(folder))?;
        let broker = Broker::start(folder, &journal)?;
        let server = outside::serve(folder, &journal)?;
        provision(folder, &parts.disk, broker.port)?;
        let guest = Guest::start(&parts.disk, &parts.flash, &journal)?;
        Ok(Self { journal, broker, server, guest, device: String::new() })
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

    /// Waits for a report about the update that says `words`.
    fn report(&self, from: usize, words: &str) -> Result<String> {
        let topic = format!("cairn/{}/update/state ", self.device);
        let said = |line: &str| {
            let report = line.strip_prefix(&topic)?;
            report.contains(words).then(|| report.to_owned())
        };
        self.journal.wait(Origin::Broker, from, UPDATE, said).with_context(|| format!("{words} over MQTT"))
    }

    /// Says over MQTT what the device shall run, as whoever keeps a fleet does.
    fn offer(&self, version: &str, bundle: &Path) -> Result<()> {
        let url = outside::url(self.server, bundle)?;
        let desired = format!("{{\"version\":\"{version}\",\"url\":\"{url}\"}}");
        self.broker.retain(&format!("cairn/{}/update/desired", self.device), &desired)
    }

    /// The slot that runs.
    fn slot(&mut self) -> Result<String> {
        self.guest.run("sed 's/.*rauc.slot=\\([AB]\\).*/\\1/' /proc/cmdline")
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

fn starts(run: &mut Run, _: &Parts) -> Result<String> {
    run.console(0, &starting("A", 2, 3))?;
    let system = run.await_system()?;
    let table = run.guest.run("dmsetup table cairn-root")?;
    ensure!(table.contains(" verity 1 "), "the root is not verified: {table}");
    let mounted = run.guest.run("findmnt --noheadings --output FSTYPE,OPTIONS /")?;
    ensure!(mounted.starts_with("erofs") && mounted.contains("ro,"), "the root is {mounted}");
    let analysis = run.guest.run("systemd-analyze time; systemd-analyze --no-pager blame | head -n 16")?;
    Ok(format!("{system}\n{analysis}"))
}

fn serves(run: &mut Run, _: &Parts) -> Result<String> {
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

fn asks_by_dbus(run: &mut Run, _: &Parts) -> Result<String> {
    let answer = run.guest.run(&format!("cairnctl infer /usr/share/cairn/models/{MODEL}/golden.png"))?;
    ensure!(answer.contains(": trusted,") && answer.contains('%'), "{answer}");
    Ok(answer)
}

fn asks_by_mqtt(run: &mut Run, _: &Parts) -> Result<String> {
    let (from, (picture, label)) = (run.journal.now(), PICTURE);
    run.broker.ask(&format!("cairn/{}/infer/{MODEL}/request", run.device), &step::workspace().join(picture))?;
    let reply = |line: &str| line.strip_prefix(REPLIES)?.strip_prefix(' ').map(str::to_owned);
    let answer = run.journal.wait(Origin::Broker, from, ANSWER, reply).context("an answer over MQTT")?;
    ensure!(answer.contains("\"verdict\":\"trusted\""), "{answer}");
    ensure!(answer.contains(&format!("\"label\":\"{label}\"")), "{answer}");
    Ok(answer)
}

fn updates(run: &mut Run, parts: &Parts) -> Result<String> {
    let (from, before) = (run.journal.now(), run.guest.run("dmsetup table cairn-root")?);
    run.offer(VERSIONS[1], &parts.bundles[0])?;
    run.report(from, "\"state\":\"installed\"")?;
    run.console(from, &starting("B", 2, 3))?;
    let report = run.report(from, "\"state\":\"healthy\"")?;
    let version = format!("\"installed_version\":\"{}\"", VERSIONS[1]);
    ensure!(report.contains(&version) && report.contains("\"slot\":\"B\""), "{report}");
    run.await_system()?;
    ensure!(run.guest.run("dmsetup table cairn-root")? != before, "the root is the one before");
    let starts = run.guest.run("journalctl --quiet --no-pager --list-boots")?;
    ensure!(starts.lines().count() == 2, "both starts shall be in the journal on the disk: {starts}");
    let state = run.boot_state()?;
    ensure!(state.contains("BOOT_ORDER=B A") && state.contains("BOOT_B_LEFT=3"), "slot B is not marked good: {state}");
    Ok(report)
}

fn rolls_back(run: &mut Run, parts: &Parts) -> Result<String> {
    let begin = run.journal.now();
    let (version, slot) = (run.guest.run("sed -n s/^VERSION_ID=//p /etc/os-release")?, run.slot()?);
    let other = if slot == "A" { "B" } else { "A" };
    run.offer(VERSIONS[2], &parts.bundles[1])?;
    run.report(begin, "\"state\":\"installed\"")?;
    let mut from = begin;
    for left in (0..3).rev() {
        run.console(from, &starting(other, left, 3))?;
        from = run.journal.now();
    }
    run.console(from, &starting(&slot, 2, 0))?;
    let report = run.report(begin, "\"state\":\"rolled-back\"")?;
    let (version, why) = (format!("\"installed_version\":\"{version}\""), format!("self-test: {MODEL}"));
    ensure!(report.contains(&version) && report.contains(&why) && report.contains("tries: 3"), "{report}");
    run.await_system()?;
    let state = run.boot_state()?;
    ensure!(state.contains(&format!("BOOT_{slot}_LEFT=3")), "the former system is not marked good: {state}");
    Ok(report)
}
