//! The disk that an image goes to: what it is, and whether anybody uses it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{major, minor};

/// A whole disk that nobody uses, open for this program alone.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) file: File,
    /// Bytes of the disk.
    pub(crate) bytes: u64,
    /// What its maker calls it.
    pub(crate) model: String,
}

/// Where the kernel says what it knows.
pub(crate) struct Places {
    pub(crate) sysfs: PathBuf,
    pub(crate) mounts: PathBuf,
    pub(crate) swaps: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        Self { sysfs: "/sys".into(), mounts: "/proc/self/mountinfo".into(), swaps: "/proc/swaps".into() }
    }
}

impl Target {
    /// Opens a disk, unless somebody may miss what is on it.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let metadata = fs::metadata(path).with_context(|| format!("look at {}", path.display()))?;
        ensure!(metadata.file_type().is_block_device(), "{} is no disk (block device)", path.display());
        let number = format!("{}:{}", major(metadata.rdev()), minor(metadata.rdev()));
        let disk = Disk::look(&Places::default(), &number)?;
        // The kernel refuses as well, and at any later time: exclusive use of a block device.
        let mut options = OpenOptions::new();
        let exclusive = options.read(true).write(true).custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed());
        let file = exclusive.open(path).with_context(|| format!("{} cannot be had for this alone", path.display()))?;
        Ok(Self { file, bytes: disk.bytes, model: disk.model })
    }
}

/// What sysfs knows of a disk.
#[derive(Debug)]
pub(crate) struct Disk {
    bytes: u64,
    model: String,
}

impl Disk {
    /// Looks at the disk with this number.
    ///
    /// # Errors
    /// A part of a disk, one that cannot be written, one that is in use: by whom.
    pub(crate) fn look(places: &Places, number: &str) -> Result<Self> {
        let folder = places.sysfs.join("dev/block").join(number);
        ensure!(folder.is_dir(), "the kernel does not know the device {number}");
        if folder.join("partition").exists() {
            bail!("it is one partition, and an image is for the whole disk");
        }
        ensure!(text(&folder.join("ro"))? == "0", "the disk cannot be written (is there a switch on the card?)");
        let users = users(places, &folder, number)?;
        ensure!(users.is_empty(), "the disk is in use: {}", users.join(", "));
        let sectors: u64 = text(&folder.join("size"))?.parse().context("the disk's size is no number")?;
        let model = text(&folder.join("device/model")).or_else(|_| text(&folder.join("device/name")));
        // The kernel counts in sectors of 512 bytes, whatever the disk's are.
        Ok(Self { bytes: sectors * 512, model: model.unwrap_or_else(|_| String::from("unknown")) })
    }
}

/// Who uses the disk or a part of it, in words.
fn users(places: &Places, folder: &Path, number: &str) -> Result<Vec<String>> {
    let mut users = Vec::new();
    let mut parts = vec![(number.to_owned(), folder.to_owned())];
    for entry in folder.read_dir().with_context(|| format!("read {}", folder.display()))? {
        let entry = entry?.path();
        if entry.join("partition").exists() {
            parts.push((text(&entry.join("dev"))?, entry));
        }
    }
    let mounts = fs::read_to_string(&places.mounts).with_context(|| format!("read {}", places.mounts.display()))?;
    let swaps = fs::read_to_string(&places.swaps).unwrap_or_default();
    for (number, folder) in parts {
        let lines = mounts.lines().filter(|line| line.split(' ').nth(2) == Some(&number));
        users.extend(lines.map(|line| format!("mounted at {}", line.split(' ').nth(4).unwrap_or_default())));
        if let Ok(holders) = folder.join("holders").read_dir() {
            users.extend(holders.flatten().map(|holder| format!("held by {}", holder.file_name().to_string_lossy())));
        }
        let name = fs::canonicalize(&folder)?.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let swap = swaps.lines().any(|line| line.split_whitespace().next() == Some(&format!("/dev/{name}")));
        users.extend(swap.then(|| format!("/dev/{name} is swap")));
    }
    Ok(users)
}

fn text(file: &Path) -> Result<String> {
    Ok(fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Disk, Places};

    /// A kernel with a disk of 1 MiB, 8:0, and its partition, 8:1.
    fn kernel() -> (tempfile::TempDir, Places) {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("sys/dev/block/8:0");
        fs::create_dir_all(disk.join("sda1/holders")).unwrap();
        fs::create_dir_all(disk.join("device")).unwrap();
        for (file, text) in [
            ("ro", "0\n"),
            ("size", "2048\n"),
            ("device/model", "Card\n"),
            ("sda1/partition", "1\n"),
            ("sda1/dev", "8:1\n"),
        ] {
            fs::write(disk.join(file), text).unwrap();
        }
        let places = Places {
            sysfs: folder.path().join("sys"),
            mounts: folder.path().join("mountinfo"),
            swaps: folder.path().join("swaps"),
        };
        fs::write(&places.mounts, "25 1 259:2 / / rw - ext4 /dev/root rw\n").unwrap();
        (folder, places)
    }

    fn refusal(places: &Places, number: &str) -> String {
        format!("{:#}", Disk::look(places, number).unwrap_err())
    }

    #[test]
    fn a_disk_that_nobody_uses_is_taken() {
        let (_folder, places) = kernel();
        let disk = Disk::look(&places, "8:0").unwrap();
        assert_eq!((disk.bytes, disk.model.as_str()), (1 << 20, "Card"));
    }

    #[test]
    fn whoever_uses_a_disk_is_named() {
        let (folder, places) = kernel();
        fs::write(&places.mounts, "30 1 8:1 / /media/card rw - vfat /dev/sda1 rw\n").unwrap();
        assert_eq!(refusal(&places, "8:0"), "the disk is in use: mounted at /media/card");
        fs::write(&places.mounts, "").unwrap();
        fs::write(folder.path().join("sys/dev/block/8:0/sda1/holders/dm-0"), "").unwrap();
        assert_eq!(refusal(&places, "8:0"), "the disk is in use: held by dm-0");
        fs::remove_file(folder.path().join("sys/dev/block/8:0/sda1/holders/dm-0")).unwrap();
        fs::write(&places.swaps, "Filename Type\n/dev/sda1 partition\n").unwrap();
        assert_eq!(refusal(&places, "8:0"), "the disk is in use: /dev/sda1 is swap");
    }

    #[test]
    fn what_is_no_whole_disk_or_cannot_be_written_is_refused() {
        let (folder, places) = kernel();
        assert!(refusal(&places, "9:9").contains("does not know"));
        fs::write(folder.path().join("sys/dev/block/8:0/ro"), "1\n").unwrap();
        assert!(refusal(&places, "8:0").contains("cannot be written"));
        fs::write(folder.path().join("sys/dev/block/8:0/partition"), "1\n").unwrap();
        assert!(refusal(&places, "8:0").contains("one partition"));
    }
}
