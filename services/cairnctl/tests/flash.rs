//! `cairnctl flash` as a person uses it: an image of wic's form, its map by bmaptool, a disk that is a loop device.

#![allow(clippy::unwrap_used, reason = "functions beside the tests unwrap as the tests themselves do")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Bytes of the disk, and of the image.
const DISK: u64 = 12 << 20;
const IMAGE: u64 = 8 << 20;

/// A loop device over a file of old data; it goes with the value.
struct Disk {
    device: PathBuf,
    file: PathBuf,
}

impl Disk {
    fn new(file: PathBuf, bytes: u64) -> Self {
        fs::write(&file, vec![0xee; usize::try_from(bytes).unwrap()]).unwrap();
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().unwrap();
        assert!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
        Self { device: String::from_utf8(output.stdout).unwrap().trim().into(), file }
    }

    fn content(&self) -> Vec<u8> {
        fs::read(&self.file).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

/// A sparse image with data at its beginning and near its end, packed, with its map beside it.
fn image(folder: &Path) -> (PathBuf, Vec<u8>) {
    let wic = folder.join("cairn.wic");
    let file = File::create(&wic).unwrap();
    file.set_len(IMAGE).unwrap();
    let data: Vec<u8> = (0..100_000_u32).map(|byte| (byte % 249) as u8).collect();
    file.write_all_at(&data, 0).unwrap();
    file.write_all_at(&data, IMAGE - (1 << 20)).unwrap();
    file.sync_all().unwrap();
    succeed(Command::new("bmaptool").args(["create", "--output"]).arg(folder.join("cairn.wic.bmap")).arg(&wic));
    let content = fs::read(&wic).unwrap();
    succeed(Command::new("zstd").args(["--quiet", "--rm"]).arg(&wic));
    (folder.join("cairn.wic.zst"), content)
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn flash(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cairnctl"));
    command.arg("flash").args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn refusal(arguments: &[&str]) -> String {
    let output = flash(arguments);
    assert!(!output.status.success(), "{arguments:?} was done");
    String::from_utf8(output.stderr).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn what_the_image_holds_is_on_the_disk_and_nothing_else_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let (image, content) = image(folder.path());
    let disk = Disk::new(folder.path().join("disk"), DISK);
    let output = flash(&["--yes", text(&image), text(&disk.device)]);
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    assert!(said.contains("equal to the checksums of the map"), "{said}");
    let on_disk = disk.content();
    assert_eq!(on_disk[..100_000], content[..100_000]);
    let late = usize::try_from(IMAGE - (1 << 20)).unwrap();
    assert_eq!(on_disk[late..late + 100_000], content[late..late + 100_000]);
    // A hole of the image, and what is behind it.
    assert!(on_disk[4 << 20..5 << 20].iter().chain(&on_disk[8 << 20..]).all(|byte| *byte == 0xee));
}

#[test]
fn without_a_map_everything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (image, content) = image(folder.path());
    fs::remove_file(folder.path().join("cairn.wic.bmap")).unwrap();
    let disk = Disk::new(folder.path().join("disk"), DISK);
    let output = flash(&["--yes", text(&image), text(&disk.device)]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("checksums of the image"));
    assert_eq!(disk.content()[..content.len()], content);
}

#[test]
fn a_disk_that_somebody_may_miss_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (image, _) = image(folder.path());
    let disk = Disk::new(folder.path().join("disk"), DISK);
    let small = Disk::new(folder.path().join("small"), 1 << 20);
    assert!(refusal(&[text(&image), text(&disk.device)]).contains("would be lost: --yes"));
    let words = refusal(&["--yes", text(&image), text(&small.device)]);
    assert!(words.contains(&format!("needs {IMAGE} bytes")) && words.contains(&format!("has {}", 1 << 20)), "{words}");
    assert!(refusal(&["--yes", text(&image), text(&image)]).contains("is no disk"));
    assert!(disk.content().iter().chain(&small.content()).all(|byte| *byte == 0xee));

    succeed(Command::new("mkfs.ext4").arg("-q").arg(&disk.device));
    let mount = folder.path().join("mount");
    fs::create_dir(&mount).unwrap();
    // In a place of its own, so that a test that dies leaves nothing mounted.
    let script = format!(
        "mount {0} {1} && exec {2} flash --yes {3} {0}",
        text(&disk.device),
        text(&mount),
        env!("CARGO_BIN_EXE_cairnctl"),
        text(&image)
    );
    let mut command = Command::new("unshare");
    let output = command.args(["--mount", "--propagation", "private", "sh", "-c", &script]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && words.contains(&format!("in use: mounted at {}", text(&mount))), "{words}");
}

#[test]
fn a_damaged_image_is_found_out() {
    let folder = tempfile::tempdir().unwrap();
    let (image, mut content) = image(folder.path());
    content[5000] ^= 1;
    let wic = folder.path().join("cairn.wic");
    fs::write(&wic, &content).unwrap();
    succeed(Command::new("zstd").args(["--quiet", "--force"]).arg(&wic));
    let disk = Disk::new(folder.path().join("disk"), DISK);
    let words = refusal(&["--yes", text(&image), text(&disk.device)]);
    assert!(words.contains("what is on it now is no image") && words.contains("damaged between"), "{words}");
}
