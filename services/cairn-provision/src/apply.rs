//! From `cairn.toml` to the files that follow from it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result};
use provision::{Fault, MAX_BYTES, PATHS, Provision};
use tracing::{error, info, warn};

use crate::status::{self, Outcome};
use crate::vault::Vault;
use crate::{Places, disk};

/// Where the machine's time zone is, below the root.
const LOCAL_TIME: &str = "run/cairn/localtime";
/// Where everybody looks for it: a link to it, which the image brings.
const LINK: &str = "etc/localtime";
/// Where time zones are.
const ZONES: &str = "/usr/share/zoneinfo";

/// Reads the card's `cairn.toml`, takes what is new and right, and writes the files that follow from what was taken.
///
/// # Errors
/// A file system that refuses. A `cairn.toml` with faults is none: it is reported on the card and in the log.
pub fn apply(places: &Places) -> Result<()> {
    let vault = Vault::open(places)?;
    let mut problems = Vec::new();
    let before = taken(places)?;
    let (outcome, provision) = match disk::read(&places.wish(), MAX_BYTES)? {
        None => (Outcome::Absent, before.map(|(_, provision)| provision)),
        Some(wish) => decide(places, &vault, wish, before, &mut problems)?,
    };
    let provision = provision.unwrap_or_default();
    let secrets = secrets(&vault, &provision, &mut problems);
    write_files(places, &provision, |name| secrets.iter().find(|(known, _)| *known == name).map(|(_, s)| s.clone()))?;
    let linked = fs::read_link(places.root.join(LINK)).is_ok_and(|link| link.ends_with(LOCAL_TIME));
    if provision.time_zone.is_some() && !linked {
        problems.push(format!("time-zone has no effect: /{LINK} is no link to /{LOCAL_TIME}"));
    }
    for problem in &problems {
        warn!(problem, "provisioning");
    }
    // A card that is full or broken must not keep the device from working.
    if let Err(error) = status::write(places, &status::text(&outcome, &provision, &problems)) {
        warn!(error = format!("{error:#}"), "the status cannot be written");
    }
    Ok(())
}

/// What was taken before.
fn taken(places: &Places) -> Result<Option<(String, Provision)>> {
    let Some(bytes) = disk::read(&places.taken(), MAX_BYTES)? else { return Ok(None) };
    let read = String::from_utf8(bytes).ok().and_then(|text| provision::read(&text).ok().map(|read| (text, read)));
    if read.is_none() {
        // It was right when it was written: the disk lost it, or the image knows less than the one before.
        error!(path = %places.taken().display(), "what was taken before cannot be read any more");
    }
    Ok(read)
}

/// Compares what the card wishes with what was taken, and takes what is new.
fn decide(
    places: &Places,
    vault: &Vault,
    wish: Vec<u8>,
    before: Option<(String, Provision)>,
    problems: &mut Vec<String>,
) -> Result<(Outcome, Option<Provision>)> {
    let checked = String::from_utf8(wish).map_err(|error| vec![not_text(&error)]).and_then(|text| {
        let provision = provision::read(&text)?;
        let faults = faults_here(places, vault, &text, &provision);
        if faults.is_empty() { Ok((text, provision)) } else { Err(faults) }
    });
    let (text, provision) = match checked {
        Ok(checked) => checked,
        Err(faults) => {
            for fault in &faults {
                error!(%fault, "cairn.toml is refused");
            }
            return Ok((Outcome::Refused(faults), before.map(|(_, provision)| provision)));
        }
    };
    if before.is_none_or(|(taken, _)| taken != text) {
        take(places, vault, &text, &provision, problems)?;
    }
    Ok((Outcome::Applied, Some(provision)))
}

/// What is wrong with it on this machine, although the text itself is right.
fn faults_here(places: &Places, vault: &Vault, text: &str, provision: &Provision) -> Vec<Fault> {
    let mut faults = Vec::new();
    if let Some((zone, span)) = &provision.time_zone
        && !zone_file(places, zone).is_file()
    {
        faults.push(Fault::at(text, span.start, format!("time-zone: this device does not know {zone:?}")));
    }
    for (name, secret) in provision.secrets().filter(|(name, secret)| secret.given.is_none() && !vault.has(name)) {
        faults.push(Fault::at(text, secret.span.start, format!("the device holds no {name}; write it here")));
    }
    faults.sort();
    faults
}

fn zone_file(places: &Places, zone: &str) -> std::path::PathBuf {
    places.root.join(ZONES.trim_start_matches('/')).join(zone)
}

/// Moves the secrets from the card to the vault. The card's file comes last, so that all of it is repeated until then.
fn take(places: &Places, vault: &Vault, text: &str, provision: &Provision, problems: &mut Vec<String>) -> Result<()> {
    let mut moved = false;
    for (name, secret) in provision.secrets() {
        let Some(given) = &secret.given else { continue };
        moved = true;
        if !vault.put(name, given)? {
            problems.push(format!("{name} is not encrypted on the device: systemd-creds does not work here"));
        }
    }
    let scrubbed = provision.scrubbed(text);
    disk::write(&places.taken(), 0o600, scrubbed.as_bytes())?;
    let names: Vec<&str> = provision.secrets().map(|(name, _)| name).collect();
    vault.keep_only(&names)?;
    if moved && let Err(error) = disk::scrub(&places.wish(), scrubbed.as_bytes()) {
        problems.push(format!("the card still has the secrets: {error:#}"));
    }
    info!("cairn.toml was taken");
    Ok(())
}

fn secrets(vault: &Vault, provision: &Provision, problems: &mut Vec<String>) -> Vec<(&'static str, String)> {
    let mut secrets = Vec::new();
    for (name, _) in provision.secrets() {
        match vault.get(name) {
            Ok(Some(secret)) => secrets.push((name, secret)),
            Ok(None) => problems.push(format!("{name} is gone from the device; write it into cairn.toml again")),
            Err(error) => problems.push(format!("{error:#}; write it into cairn.toml again")),
        }
    }
    secrets
}

fn write_files(places: &Places, provision: &Provision, secret: impl Fn(&str) -> Option<String>) -> Result<()> {
    let files = provision::files(provision, secret);
    for path in PATHS.iter().filter(|path| !files.iter().any(|file| file.path == **path)) {
        disk::remove(&places.root.join(path))?;
    }
    for file in files {
        disk::write(&places.root.join(file.path), file.mode, file.content.as_bytes())?;
    }
    let local_time = places.root.join(LOCAL_TIME);
    disk::remove(&local_time)?;
    // An image without a choice of its own means UTC.
    let zone = provision.time_zone.as_ref().map_or("UTC", |(name, _)| name);
    let link = || format!("link {}", local_time.display());
    fs::create_dir_all(local_time.parent().with_context(link)?).with_context(link)?;
    symlink(Path::new(ZONES).join(zone), &local_time).with_context(link)
}

fn not_text(error: &std::string::FromUtf8Error) -> Fault {
    let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
    let valid = String::from_utf8_lossy(valid);
    Fault::at(&valid, valid.len(), "the file is not UTF-8 text from here on")
}
