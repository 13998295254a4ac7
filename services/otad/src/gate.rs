//! The health gate: a program of its own that runs once at each boot and alone marks a slot good.
//!
//! ```text
//! write down that this boot came so far ─▶ slot on trial? ── no ──▶ mark good
//!                                              │ yes
//!                                              ▼
//!                                     checks, until all pass or the deadline ─┬─▶ mark good
//!                                                                             └─▶ end with an error: the unit's
//!                                                            FailureAction starts the machine anew, the bootloader
//!                                                            counts, and at last falls back to the other slot
//! ```
//! A slot that has passed before is not judged again: a device that breaks later is the health daemon's business, and an
//! older system would not mend it. What the update must reach is what the configuration wants or what was there before it,
//! whichever is less: an update is not to blame for a broker that was away before.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use api::dbus::Update1Proxy;
use ring::digest;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};
use zbus::Connection;

use crate::config::{Config, Gate};
use crate::machine::{self, Proofs};
use crate::rauc::Rauc;
use crate::record::{Baseline, Record, Store};
use crate::state::{Rollback, State};

/// Name of the file.
pub const FILE: &str = "gate.json";
/// Boots that are remembered.
const BOOTS: usize = 16;
/// Lines of a kernel that crashed that are kept.
const TAIL_LINES: usize = 40;
/// The longest line of them that is kept whole, in characters.
const TAIL_CHARACTERS: usize = 400;
/// Time between two rounds of checks.
// TIMEOUT: services take seconds to come up.
const ROUND: Duration = Duration::from_secs(2);
/// How long the last round of checks and the mark may take after the deadline.
// TIMEOUT: both take less than a second; RAUC may be busy for longer, and a daemon that hangs must not hold the gate open.
const LAST_ROUND: Duration = Duration::from_secs(60);

/// What the gate remembers of the last boots, the newest last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Log {
    /// The boots.
    pub boots: Vec<Boot>,
    /// SHA-256 of the last crash that was seen, so that it is attributed once.
    pub crash: String,
}

/// A boot that came as far as the gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Boot {
    /// The kernel's name of it.
    pub boot_id: String,
    /// The bootloader's name of the slot; empty while it is not known.
    pub slot: String,
    /// Whether the slot was marked good; nothing where the gate did not come to its end.
    pub good: Option<bool>,
    /// What failed, `check: what was seen`.
    pub failed: Vec<String>,
    /// What the kernel of the boot before left behind, where it crashed.
    pub kernel_tail: Vec<String>,
}

impl Log {
    /// The boot of that name.
    pub fn boot(&self, boot_id: &str) -> Option<&Boot> {
        self.boots.iter().find(|boot| boot.boot_id == boot_id)
    }

    /// What is known of the trial of `slot` that ended in the boot `now`. It was written in the boot `written`.
    pub fn rollback(&self, slot: &str, written: &str, now: &str) -> Rollback {
        let since = self.boots.iter().rposition(|boot| boot.boot_id == written).map_or(0, |index| index + 1);
        let later = self.boots[since..].iter();
        let tries: Vec<_> =
            later.filter(|boot| boot.boot_id != now && (boot.slot == slot || boot.slot.is_empty())).collect();
        let mut tails = self.boots[since..].iter().rev().map(|boot| &boot.kernel_tail);
        Rollback {
            slot: slot.to_owned(),
            // CAST: at most BOOTS.
            tries: tries.len() as u32,
            failed: tries.last().map(|boot| boot.failed.clone()).unwrap_or_default(),
            kernel_tail: tails.find(|tail| !tail.is_empty()).cloned().unwrap_or_default(),
        }
    }
}

/// A check and what it saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// Whether all is well.
    pub passed: bool,
    /// What was seen.
    pub seen: String,
}

/// What the gate sees of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Cores of the NPU that a driver is bound to.
    pub npu_cores: usize,
    /// Whether a driver is bound to the GPU, which then has its firmware.
    pub gpu: bool,
    /// Units that are active.
    pub units: Vec<String>,
    /// Whether the broker is connected; nothing where the update daemon does not answer.
    pub broker: Option<bool>,
    /// What the models answered to their golden input, or why there is no answer.
    pub models: Result<Proofs, String>,
}

/// Judges what was seen.
pub fn judge(seen: &Seen, gate: &Gate, before: &Baseline) -> Vec<Check> {
    let cores = gate.npu_cores.min(before.npu_cores);
    let wants_gpu = gate.gpu && before.gpu;
    let missing: Vec<_> = before.units.iter().filter(|unit| !seen.units.contains(unit)).map(String::as_str).collect();
    vec![
        Check { name: "npu", passed: seen.npu_cores >= cores, seen: format!("{} of {cores} cores", seen.npu_cores) },
        Check { name: "gpu", passed: seen.gpu || !wants_gpu, seen: bound(seen.gpu).to_owned() },
        Check {
            name: "services",
            passed: missing.is_empty(),
            seen: if missing.is_empty() { "active".into() } else { format!("{} not active", missing.join(", ")) },
        },
        Check {
            name: "broker",
            passed: seen.broker == Some(true) || !before.broker,
            seen: match seen.broker {
                Some(true) => "connected".into(),
                Some(false) => "not connected, as it was before the update".into(),
                None => "the update daemon does not answer".into(),
            },
        },
        self_test(seen, gate, before),
    ]
}

/// Every model that gave its golden output before must give it now.
fn self_test(seen: &Seen, gate: &Gate, before: &Baseline) -> Check {
    let wanted = before.models.iter().filter(|name| !gate.dropped_models.contains(name));
    let fault = |name: &String| match &seen.models {
        Ok(proofs) => match proofs.get(name) {
            Some(Ok(())) => None,
            Some(Err(reason)) => Some(format!("{name}: {reason}")),
            None => Some(format!("{name} is not loaded")),
        },
        Err(reason) => Some(format!("{name}: the NPU's daemon: {reason}")),
    };
    let faults: Vec<_> = wanted.filter_map(fault).collect();
    let passed = faults.is_empty();
    Check { name: "self-test", passed, seen: if passed { "golden outputs".into() } else { faults.join(", ") } }
}

fn bound(gpu: bool) -> &'static str {
    if gpu { "firmware runs" } else { "no driver is bound, or its firmware does not run" }
}

/// Runs the gate.
///
/// # Errors
/// A slot on trial that fails, a RAUC that does not answer, or a file that cannot be written.
pub async fn run(config: &Config) -> Result<()> {
    let store = Store::new(&config.places.gate, FILE);
    let boot_id = machine::boot_id(&config.places.boot_id).context("the boot's name")?;
    let mut log: Log = match store.load() {
        Ok(log) => log,
        Err(error) => {
            warn!(%error, "what the gate remembered cannot be read, it is put aside");
            store.put_aside()?;
            Log::default()
        }
    };
    if log.boot(&boot_id).is_some_and(|boot| boot.good == Some(true)) {
        info!("this boot has passed before");
        return Ok(());
    }
    begin(&mut log, &boot_id, &config.places.pstore);
    store.save(&log).context("write down that this boot came so far")?;

    let deadline = Duration::from_secs(config.gate.deadline_seconds);
    let verdict =
        tokio::time::timeout(deadline + LAST_ROUND, examine(config, &boot_id, deadline, &store, &mut log)).await;
    let failed = match verdict {
        Ok(Ok(())) => Vec::new(),
        Ok(Err(error)) => vec![format!("{error:#}")],
        Err(_) => vec![format!("gate: not done after {} s", (deadline + LAST_ROUND).as_secs())],
    };
    let boot = log.boots.last_mut().expect("this boot was written down");
    boot.good = Some(failed.is_empty());
    boot.failed.clone_from(&failed);
    store.save(&log).context("write down the verdict")?;
    if !failed.is_empty() {
        bail!("slot {} is not good: {}", log.boots.last().map_or("", |boot| &boot.slot), failed.join("; "));
    }
    Ok(())
}

/// Writes down that this boot came so far, and what the one before left behind.
fn begin(log: &mut Log, boot_id: &str, pstore: &[PathBuf]) {
    let mut kernel_tail = Vec::new();
    if let Some((tail, hash)) = pstore.iter().find_map(|folder| crash(folder))
        && hash != log.crash
    {
        log.crash = hash;
        kernel_tail = tail;
    }
    // A gate that was killed begins again.
    log.boots.retain(|boot| boot.boot_id != boot_id);
    log.boots.push(Boot { boot_id: boot_id.to_owned(), kernel_tail, ..Boot::default() });
    let surplus = log.boots.len().saturating_sub(BOOTS);
    log.boots.drain(..surplus);
}

/// Finds out which slot runs, judges it where it is on trial, and marks it good.
async fn examine(config: &Config, boot_id: &str, patience: Duration, store: &Store, log: &mut Log) -> Result<()> {
    let connection = config.bus.connect().build().await.context("connect to the bus")?;
    let rauc = Rauc::new(&connection).await?;
    let deadline = Instant::now() + patience;
    let slot = loop {
        match rauc.booted().await {
            Ok(slot) => break slot.bootname,
            Err(failure) if Instant::now() >= deadline => return Err(failure).context("which slot runs"),
            Err(_) => tokio::time::sleep(ROUND).await,
        }
    };
    log.boots.last_mut().expect("this boot was written down").slot.clone_from(&slot);
    store.save(log).context("write down the slot")?;

    let record: Record = Store::new(&config.places.state, crate::FILE).load().unwrap_or_else(|error| {
        warn!(%error, "what the update daemon remembers cannot be read, so no slot is on trial");
        Record::default()
    });
    if is_on_trial(&record.state, &slot, boot_id) {
        let failed = checks(config, &connection, &record.baseline, deadline).await;
        if !failed.is_empty() {
            bail!("{}", failed.join("; "));
        }
    }
    let message = rauc.mark_good().await.context("mark the slot good")?;
    info!(message_id = kit::log::SLOT_GOOD, slot, message, "the slot is good");
    Ok(())
}

/// Whether the slot that runs was written by an update and has not passed yet.
fn is_on_trial(state: &State, running: &str, boot_id: &str) -> bool {
    match state {
        State::Installed { slot, boot_id: written, .. } | State::Booted { slot, boot_id: written, .. } => {
            slot.bootname == running && written != boot_id
        }
        State::Installing { attempt, .. } => attempt.boot_id != boot_id,
        _ => false,
    }
}

/// Checks until everything is well or the deadline is over. Returns what failed at last.
async fn checks(config: &Config, connection: &Connection, before: &Baseline, deadline: Instant) -> Vec<String> {
    loop {
        let seen = look(config, connection).await;
        let failed: Vec<_> = judge(&seen, &config.gate, before).into_iter().filter(|check| !check.passed).collect();
        let failed: Vec<_> = failed.iter().map(|check| format!("{}: {}", check.name, check.seen)).collect();
        if failed.is_empty() || Instant::now() >= deadline {
            return failed;
        }
        info!(?failed, "not yet");
        tokio::time::sleep(ROUND.min(deadline.saturating_duration_since(Instant::now()))).await;
    }
}

async fn look(config: &Config, connection: &Connection) -> Seen {
    let (npu_cores, gpu) = machine::devices(&config.places.sysfs);
    let units = machine::soon(machine::active_units(connection, &config.gate.units)).await;
    let models = machine::models(connection).await;
    let broker = async { Update1Proxy::new(connection).await?.broker_connected().await };
    Seen { npu_cores, gpu, units: units.unwrap_or_default(), broker: machine::soon(broker).await, models }
}

/// The last lines that a kernel left in `folder`, and what tells them from others.
///
/// SOURCE: Documentation/admin-guide/ramoops.rst: `dmesg-ramoops-N` is a crash, `console-ramoops-0` what was on the
/// console; systemd-pstore(8) moves them into folders named by time.
fn crash(folder: &Path) -> Option<(Vec<String>, String)> {
    let mut files = Vec::new();
    collect(folder, 0, &mut files);
    let (_, file) = files.into_iter().max_by(|one, two| {
        let rank = |(time, path): &(SystemTime, PathBuf)| (name(path).starts_with("dmesg"), *time);
        rank(one).cmp(&rank(two))
    })?;
    let bytes = fs::read(file).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(TAIL_LINES)..].iter();
    let tail: Vec<String> = last.map(|line| line.chars().take(TAIL_CHARACTERS).collect()).collect();
    let hash = digest::digest(&digest::SHA256, &bytes);
    let hash = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    (!tail.is_empty()).then_some((tail, hash))
}

/// Records of crashes in `folder` and two levels below.
fn collect(folder: &Path, depth: usize, files: &mut Vec<(SystemTime, PathBuf)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() && depth < 2 {
            collect(&path, depth + 1, files);
        } else if metadata.is_file() && ["dmesg", "console"].iter().any(|kind| name(&path).starts_with(kind)) {
            files.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), path));
        }
    }
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn before() -> Baseline {
        let units = vec!["npud.service".to_owned(), "otad.service".to_owned()];
        Baseline { broker: true, npu_cores: 3, gpu: true, units, models: vec!["cat".into(), "dog".into()] }
    }

    fn proofs(cat: Result<(), String>) -> Result<Proofs, String> {
        // One that is new may fail: it did not work before.
        let new = ("new".into(), Err("ResultUntrusted".into()));
        Ok([("cat".into(), cat), ("dog".into(), Ok(())), new].into())
    }

    fn well() -> Seen {
        let units = ["healthd.service", "npud.service", "otad.service"].map(String::from).into();
        Seen { npu_cores: 3, gpu: true, units, broker: Some(true), models: proofs(Ok(())) }
    }

    fn failed(seen: &Seen, before: &Baseline) -> Vec<String> {
        let failed = judge(seen, &Gate::default(), before).into_iter().filter(|check| !check.passed);
        failed.map(|check| format!("{}: {}", check.name, check.seen)).collect()
    }

    #[test]
    fn each_check_fails_by_itself_and_says_what_it_saw() {
        assert!(failed(&well(), &before()).is_empty());
        for (seen, words) in [
            (Seen { npu_cores: 2, ..well() }, "npu: 2 of 3 cores"),
            (Seen { gpu: false, ..well() }, "gpu: no driver is bound, or its firmware does not run"),
            (Seen { units: vec!["otad.service".into()], ..well() }, "services: npud.service not active"),
            (Seen { broker: Some(false), ..well() }, "broker: not connected, as it was before the update"),
            (Seen { broker: None, ..well() }, "broker: the update daemon does not answer"),
            (Seen { models: proofs(Err("other bytes".into())), ..well() }, "self-test: cat: other bytes"),
            (Seen { models: Ok(Proofs::new()), ..well() }, "self-test: cat is not loaded, dog is not loaded"),
            (
                Seen { models: Err("gone".into()), ..well() },
                "self-test: cat: the NPU's daemon: gone, dog: the NPU's daemon: gone",
            ),
        ] {
            assert_eq!(failed(&seen, &before()), [words]);
        }
    }

    #[test]
    fn a_model_that_the_new_system_leaves_out_on_purpose_is_not_missed() {
        let seen = Seen { models: Ok([("dog".into(), Ok(()))].into()), ..well() };
        let gate = Gate { dropped_models: vec!["cat".into()], ..Gate::default() };
        assert!(judge(&seen, &gate, &before()).iter().all(|check| check.passed));
        assert_eq!(failed(&seen, &before()), ["self-test: cat is not loaded"]);
    }

    #[test]
    fn an_update_is_not_to_blame_for_what_was_missing_before() {
        let poor = Baseline { npu_cores: 1, ..Baseline::default() };
        let seen = Seen { npu_cores: 1, gpu: false, units: Vec::new(), broker: None, models: Err("gone".into()) };
        assert!(failed(&seen, &poor).is_empty());
        assert_eq!(failed(&Seen { npu_cores: 0, ..seen }, &poor), ["npu: 0 of 1 cores"]);
    }

    #[test]
    fn a_rollback_counts_the_boots_of_the_slot_since_it_was_written() {
        let boot = |boot_id: &str, slot: &str, failed: &[&str]| Boot {
            boot_id: boot_id.into(),
            slot: slot.into(),
            failed: failed.iter().map(|it| (*it).into()).collect(),
            ..Boot::default()
        };
        let mut log = Log::default();
        assert_eq!(log.rollback("B", "1", "2").text(), "slot B never reached the health gate");
        log.boots = vec![boot("0", "B", &["npu: old"]), boot("1", "A", &[]), boot("2", "B", &["npu: 0 of 3 cores"])];
        log.boots.extend([boot("3", "", &["which slot runs"]), boot("4", "A", &[])]);
        log.boots[4].kernel_tail = vec!["Kernel panic".into()];
        let rollback = log.rollback("B", "1", "4");
        assert_eq!((rollback.tries, rollback.failed), (2, vec!["which slot runs".to_owned()]));
        assert_eq!(rollback.kernel_tail, ["Kernel panic"]);
    }

    #[test]
    fn the_newest_crash_is_kept_once() {
        let folder = tempfile::tempdir().unwrap();
        let pstore = [folder.path().to_path_buf()];
        let mut log = Log::default();
        begin(&mut log, "1", &pstore);
        assert!(log.boots[0].kernel_tail.is_empty());
        fs::create_dir_all(folder.path().join("1690000000")).unwrap();
        fs::write(folder.path().join("console-ramoops-0"), "booting\n").unwrap();
        let lines: Vec<_> = (0..100).map(|line| format!("<1>[ {line}.0] Oops\n")).collect();
        fs::write(folder.path().join("1690000000/dmesg-ramoops-0"), lines.concat()).unwrap();
        begin(&mut log, "2", &pstore);
        let tail = &log.boots[1].kernel_tail;
        assert_eq!((tail.len(), tail.last().unwrap().as_str()), (TAIL_LINES, "<1>[ 99.0] Oops"));
        begin(&mut log, "3", &pstore);
        assert!(log.boots[2].kernel_tail.is_empty(), "the crash was of an earlier boot");
    }
}
