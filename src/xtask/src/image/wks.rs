//! The table of partitions, as wic reads it: `yocto/meta-cairn/files/wic`.
//!
//! Only what the layer's files use is understood, and anything else is refused: one table, two makers.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};

use crate::step;

/// Where the files are.
const FOLDER: &str = "yocto/meta-cairn/files/wic";
/// Bytes of a sector.
pub(super) const SECTOR: u64 = 512;
/// Where a partition begins that names no alignment.
const FIRST: u64 = 1 << 20;

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    pub(super) name: String,
    /// First byte.
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) content: Content,
    /// The label of the file system.
    pub(super) label: Option<String>,
    /// GPT's type, where it is not "Linux data".
    pub(super) kind: Option<String>,
    /// Whether a bootloader looks here for its script.
    pub(super) active: bool,
}

/// What is in a partition at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Nothing,
    /// A file, as it is.
    File(String),
    /// The files of the boot partition's list, in a FAT.
    BootFiles,
    /// An empty file system of this type.
    Empty(String),
}

/// The partitions of a machine, in order.
///
/// # Errors
/// A line that is not understood, a partition that does not fit behind the one before.
pub(super) fn read(machine: &str) -> Result<Vec<Partition>> {
    parse(&text(&format!("cairn-{machine}.wks"))?)
}

/// The text of a file with what it includes.
fn text(name: &str) -> Result<String> {
    let path = step::workspace().join(FOLDER).join(name);
    let mut whole = String::new();
    for line in fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?.lines() {
        match line.strip_prefix("include ") {
            Some(other) => whole += &text(other.trim())?,
            None => whole = whole + line + "\n",
        }
    }
    Ok(whole)
}

fn parse(text: &str) -> Result<Vec<Partition>> {
    let (mut partitions, mut end): (Vec<Partition>, u64) = (Vec::new(), 0);
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        if line == "bootloader --ptable gpt" {
            continue;
        }
        let partition = part(line, end).with_context(|| format!("in the line {line:?}"))?;
        end = partition.start + partition.bytes;
        partitions.push(partition);
    }
    ensure!(!partitions.is_empty(), "the table has no partition");
    Ok(partitions)
}

fn part(line: &str, after: u64) -> Result<Partition> {
    let mut words = line.split_whitespace();
    ensure!(words.next() == Some("part"), "only partitions are understood");
    let (mut source, mut file, mut kind_of_system, mut offset, mut align) = (None, None, None, None, None);
    let mut partition = Partition {
        name: String::new(),
        start: 0,
        bytes: 0,
        content: Content::Nothing,
        label: None,
        kind: None,
        active: false,
    };
    while let Some(word) = words.next() {
        let (option, mut value) = word.split_once('=').map_or((word, None), |(option, value)| (option, Some(value)));
        if option == "--active" {
            partition.active = true;
            continue;
        }
        if !option.starts_with("--") {
            // wic calls it the mount point, and the image does not use it.
            continue;
        }
        value = value.or_else(|| words.next());
        let value = value.with_context(|| format!("{option} has no value"))?;
        match option {
            "--source" => source = Some(value.to_owned()),
            "--sourceparams" => {
                let parameters = value.trim_matches('"').strip_prefix("file=").context("only file= is understood")?;
                file = Some(parameters.to_owned());
            }
            "--part-name" => partition.name = value.to_owned(),
            "--label" => partition.label = Some(value.to_owned()),
            "--fstype" => kind_of_system = Some(value.to_owned()),
            "--part-type" => partition.kind = Some(value.to_owned()),
            "--fixed-size" => partition.bytes = size(value)?,
            "--align" => align = Some(size(&format!("{value}K"))?),
            "--offset" => offset = Some(size(value)?),
            _ => bail!("{option} is not understood"),
        }
    }
    ensure!(!partition.name.is_empty() && partition.bytes > 0, "a partition needs a name and a size");
    partition.start = match (offset, align) {
        (Some(offset), _) => offset,
        (None, align) => after.max(FIRST).next_multiple_of(align.unwrap_or(FIRST)),
    };
    ensure!(partition.start >= after, "it begins before the end of the one before");
    partition.content = match (source.as_deref(), file, kind_of_system.as_deref()) {
        (Some("rawcopy"), Some(file), _) => Content::File(file),
        (Some("bootimg_partition"), None, Some("vfat")) => Content::BootFiles,
        (None, None, Some(system)) if system != "none" => Content::Empty(system.to_owned()),
        (None, None, _) => Content::Nothing,
        _ => bail!("its content is not understood"),
    };
    Ok(partition)
}

/// `64s`, `3552K` or `128M`, in bytes.
fn size(words: &str) -> Result<u64> {
    let unit = match words.chars().last() {
        Some('s') => SECTOR,
        Some('K') => 1 << 10,
        Some('M') => 1 << 20,
        _ => bail!("{words:?} is no size: s, K and M are understood"),
    };
    let number: u64 = words[..words.len() - 1].parse().with_context(|| format!("{words:?} is no size"))?;
    number.checked_mul(unit).with_context(|| format!("{words:?} is too large"))
}

#[cfg(test)]
mod tests {
    use super::{Content, parse, read};

    #[test]
    fn every_machine_has_the_same_slots() {
        for machine in ["rk3588", "qemuarm64"] {
            let names: Vec<String> = read(machine).unwrap().into_iter().map(|partition| partition.name).collect();
            let slots = ["config", "bootstate", "boot_a", "rootfs_a", "boot_b", "rootfs_b", "data"];
            assert!(names.ends_with(&slots.map(String::from)), "{machine}: {names:?}");
        }
    }

    #[test]
    fn the_loaders_are_where_the_boot_rom_looks() {
        let table = read("rk3588").unwrap();
        assert_eq!((table[0].name.as_str(), table[0].start), ("loader1", 64 * 512));
        assert_eq!((table[1].name.as_str(), table[1].start), ("loader2", 16384 * 512));
        // The state is two copies, the second at 0x8000.
        let state = table.iter().find(|partition| partition.name == "bootstate").unwrap();
        assert!(state.bytes >= 0x8000 + 0x4000);
    }

    #[test]
    fn sizes_and_contents_are_read() {
        let line = "part --source rawcopy --sourceparams=\"file=a.img\" --part-name a --align 1024 --fixed-size 3M\n\
                    part --fstype=ext4 --part-name d --label d --active --align 1024 --fixed-size 5K\n";
        let table = parse(line).unwrap();
        assert_eq!(
            (table[0].start, table[0].bytes, &table[0].content),
            (1 << 20, 3 << 20, &Content::File("a.img".into()))
        );
        assert_eq!((table[1].start, &table[1].content), (4 << 20, &Content::Empty("ext4".into())));
        assert!(table[1].active && !table[0].active);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (line, words) in [
            ("part --part-name a --fixed-size 1G", "is no size"),
            ("part --part-name a --fixed-size 1M --uuid x", "--uuid is not understood"),
            ("part --fixed-size 1M", "needs a name"),
            ("bootloader --ptable msdos", "only partitions"),
            ("part --source rootfs --part-name a --fixed-size 1M", "content is not understood"),
            (
                "part --part-name a --offset 64s --fixed-size 3M\npart --part-name b --offset 64s --fixed-size 1M",
                "before the end",
            ),
        ] {
            let error = format!("{:#}", parse(line).unwrap_err());
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
