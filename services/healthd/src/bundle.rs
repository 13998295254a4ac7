//! The support bundle: one archive with what support needs to know, and nothing that identifies or betrays.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::redact::redact;

/// Bundles that are kept.
const KEPT: usize = 3;
/// Files of the machine that are taken along, below its root.
const FILES: &[&str] = &[
    "etc/os-release",
    "proc/version",
    "proc/cmdline",
    "proc/uptime",
    "proc/loadavg",
    "proc/meminfo",
    "proc/interrupts",
    "proc/mounts",
    "proc/pressure/cpu",
    "proc/pressure/io",
    "proc/pressure/memory",
    "sys/firmware/devicetree/base/model",
    "sys/class/watchdog/watchdog0/bootstatus",
];
/// The most that is taken of a file.
const FILE_BYTES: usize = 1 << 20;

/// A part of the archive: its name and text.
pub(crate) type Part = (String, String);

/// Writes an archive of `parts` and of the machine's files below `folder`. Returns its name and size.
pub(crate) fn write(folder: &Path, root: &Path, name: &str, mut parts: Vec<Part>) -> Result<(String, u64)> {
    let files = FILES.iter().filter_map(|file| Some(((*file).to_owned(), read(&root.join(file))?)));
    parts.extend(files);
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let name = format!("{name}.tar.gz");
    let target = folder.join(&name);
    let bytes = archive(&target, &parts).with_context(|| format!("write {}", target.display()))?;
    retire(folder)?;
    Ok((name, bytes))
}

fn read(file: &Path) -> Option<String> {
    let mut bytes = fs::read(file).ok()?;
    bytes.truncate(FILE_BYTES);
    Some(String::from_utf8_lossy(&bytes).replace('\0', ""))
}

fn archive(target: &Path, parts: &[Part]) -> Result<u64> {
    let beside = target.with_extension("new");
    let mut archive = tar::Builder::new(GzEncoder::new(File::create(&beside)?, Compression::default()));
    for (name, text) in parts {
        let text = redact(text);
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(u64::try_from(text.len())?);
        archive.append_data(&mut header, format!("cairn/{name}"), text.as_bytes())?;
    }
    let mut file = archive.into_inner()?.finish()?;
    file.flush()?;
    file.sync_all()?;
    fs::rename(&beside, target)?;
    Ok(file.metadata()?.len())
}

/// Removes all but the newest. Names begin with a number that grows.
fn retire(folder: &Path) -> Result<()> {
    let mut bundles: Vec<PathBuf> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    bundles.sort();
    let surplus = bundles.len().saturating_sub(KEPT);
    for bundle in bundles.into_iter().take(surplus) {
        fs::remove_file(bundle)?;
    }
    Ok(())
}

/// Opens a bundle by its name.
pub(crate) fn open(folder: &Path, name: &str) -> Result<File> {
    let plain = !name.is_empty() && !name.starts_with('.') && !name.contains('/') && name.ends_with(".tar.gz");
    ensure!(plain, "{name:?} is no name of a support bundle");
    File::open(folder.join(name)).with_context(|| format!("open support bundle {name}"))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn an_archive_has_its_parts_without_secrets_and_only_the_newest_stay() {
        let (folder, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/cmdline"), "quiet wifi.psk=hunter2\n").unwrap();
        let mut last = String::new();
        for number in 0..5 {
            let parts = vec![("log.txt".to_owned(), "token: abc".to_owned())];
            last = write(folder.path(), root.path(), &format!("{number:04}"), parts).unwrap().0;
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), KEPT);
        let file = open(folder.path(), &last).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
        let mut texts = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = entry.path().unwrap().display().to_string() + ": ";
            entry.read_to_string(&mut text).unwrap();
            texts.push(text);
        }
        assert_eq!(texts, ["cairn/log.txt: token: [secret]", "cairn/proc/cmdline: quiet wifi.psk=[secret]\n"]);
        for name in ["", "../state.json", ".tar.gz", "x", "/etc/x.tar.gz"] {
            open(folder.path(), name).unwrap_err();
        }
    }
}
