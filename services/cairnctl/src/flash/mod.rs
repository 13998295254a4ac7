//! `cairnctl flash`: an image onto a card or disk, at your desk. It asks no daemon.
//!
//! ```text
//! image ─▶ unpacked ─▶ what its block map names, each range held against its checksum ─▶ disk
//!                                                    disk, read again ─▶ the same checksums
//! ```

mod map;
mod target;

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use ring::digest::{Context as Digest, SHA256};
use serde::Serialize;

pub use map::{Map, Range};
use target::Target;

use crate::Printer;

/// What is read or written at once.
const CHUNK: usize = 4 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Flash {
    /// The image: FILE.wic, or packed as FILE.wic.zst or FILE.wic.gz
    image: PathBuf,
    /// The disk, such as /dev/sdb; everything on it is lost
    disk: PathBuf,
    /// The image's block map, instead of FILE.wic.bmap if that exists
    #[arg(long, value_name = "FILE")]
    bmap: Option<PathBuf>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    disk: PathBuf,
    image_bytes: u64,
    written_bytes: u64,
    checksums: &'static str,
}

pub(crate) fn run<W: Write>(arguments: &Flash, printer: &mut Printer<'_, W>) -> Result<()> {
    let map = block_map(arguments)?;
    let mut target = Target::open(&arguments.disk)?;
    let map = match map {
        Some(map) => map,
        None => Map::whole(unpacked_bytes(&arguments.image)?),
    };
    ensure!(
        map.bytes <= target.bytes,
        "the image needs {} bytes, and {} has {}",
        map.bytes,
        arguments.disk.display(),
        target.bytes
    );
    if !arguments.yes {
        ask(arguments, &target)?;
    }
    let mapped = map.mapped();
    let written =
        write(&mut unpacked(&arguments.image)?, &mut target.file, &map, &mut Progress::new("writing", mapped))
            .with_context(|| format!("write to {}; what is on it now is no image", arguments.disk.display()))?;
    target.file.sync_all().context("the disk does not keep what was written")?;
    // Otherwise the answer would come from memory.
    rustix::fs::fadvise(&target.file, 0, None, rustix::fs::Advice::DontNeed).context("forget what was written")?;
    verify(&mut target.file, &written, &mut Progress::new("reading again", mapped))
        .with_context(|| format!("{} does not hold the image", arguments.disk.display()))?;
    let checksums = if map.ranges.iter().all(|range| range.sha256.is_some()) { "of the map" } else { "of the image" };
    let report = Report { disk: arguments.disk.clone(), image_bytes: map.bytes, written_bytes: mapped, checksums };
    printer.print(&report, |report| {
        format!(
            "{}: {} MiB written and read again, equal to the checksums {}",
            report.disk.display(),
            report.written_bytes.div_ceil(1 << 20),
            report.checksums
        )
    })
}

/// The map that was named, or the one beside the image.
fn block_map(arguments: &Flash) -> Result<Option<Map>> {
    let beside = |image: &Path| match image.extension().and_then(|ending| ending.to_str()) {
        Some("zst" | "gz") => image.with_extension("bmap"),
        _ => PathBuf::from(format!("{}.bmap", image.display())),
    };
    let file = match &arguments.bmap {
        Some(file) => file.clone(),
        None => {
            let file = beside(&arguments.image);
            if !file.exists() {
                return Ok(None);
            }
            file
        }
    };
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    Map::parse(&text).with_context(|| file.display().to_string()).map(Some)
}

/// The image as it will be on the disk, whatever packed it.
fn unpacked(image: &Path) -> Result<Box<dyn Read>> {
    let file = File::open(image).with_context(|| format!("read {}", image.display()))?;
    let file = io::BufReader::with_capacity(1 << 20, file);
    Ok(match image.extension().and_then(|ending| ending.to_str()) {
        Some("zst") => {
            let reader = ruzstd::decoding::StreamingDecoder::new(file);
            Box::new(reader.with_context(|| format!("{} is not packed by zstd", image.display()))?)
        }
        Some("gz") => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
        _ => Box::new(file),
    })
}

fn unpacked_bytes(image: &Path) -> Result<u64> {
    if matches!(image.extension().and_then(|ending| ending.to_str()), Some("zst" | "gz")) {
        return io::copy(&mut unpacked(image)?, &mut io::sink()).with_context(|| format!("unpack {}", image.display()));
    }
    Ok(fs::metadata(image).with_context(|| format!("look at {}", image.display()))?.len())
}

fn ask(arguments: &Flash, target: &Target) -> Result<()> {
    let disk = arguments.disk.display();
    ensure!(io::stdin().is_terminal(), "everything on {disk} would be lost: --yes, if that is meant");
    let gigabytes = target.bytes as f64 / 1e9;
    eprint!("Everything on {disk} ({}, {gigabytes:.1} GB) will be lost. Its name once more: ", target.model);
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if Path::new(answer.trim()) != arguments.disk {
        bail!("nothing was written");
    }
    Ok(())
}

/// Copies the ranges of the map, and returns them with the checksums of what was written.
///
/// # Errors
/// An image that ends early, or whose range has not the checksum of the map; what input and output say.
fn write(
    image: &mut impl Read,
    disk: &mut (impl Write + io::Seek),
    map: &Map,
    progress: &mut Progress,
) -> Result<Vec<Range>> {
    let mut buffer = vec![0; CHUNK];
    let (mut written, mut position) = (Vec::new(), 0);
    for range in &map.ranges {
        let gap = range.start - position;
        let skipped = io::copy(&mut image.by_ref().take(gap), &mut io::sink()).context("read the image")?;
        ensure!(skipped == gap, "the image ends at byte {}, before what its map names", position + skipped);
        disk.seek(SeekFrom::Start(range.start))?;
        let hash = chunks(image, range, &mut buffer, progress, |bytes| Ok(disk.write_all(bytes)?))?;
        ensure!(
            range.sha256.is_none_or(|wanted| wanted == hash),
            "the image is damaged between the bytes {} and {}",
            range.start,
            range.end
        );
        written.push(Range { sha256: Some(hash), ..range.clone() });
        position = range.end;
    }
    Ok(written)
}

/// Reads the ranges again.
fn verify(disk: &mut (impl Read + io::Seek), ranges: &[Range], progress: &mut Progress) -> Result<()> {
    let mut buffer = vec![0; CHUNK];
    for range in ranges {
        disk.seek(SeekFrom::Start(range.start))?;
        let hash = chunks(disk, range, &mut buffer, progress, |_| Ok(()))?;
        ensure!(range.sha256 == Some(hash), "the bytes {} to {} are not what was written", range.start, range.end);
    }
    Ok(())
}

/// Hands on the bytes of a range piece by piece, and returns their SHA-256.
fn chunks(
    input: &mut impl Read,
    range: &Range,
    buffer: &mut [u8],
    progress: &mut Progress,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<[u8; 32]> {
    let mut digest = Digest::new(&SHA256);
    let mut left = range.end - range.start;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(CHUNK).min(buffer.len());
        let piece = &mut buffer[..most];
        input.read_exact(piece).with_context(|| format!("read {most} bytes at {}", range.end - left))?;
        digest.update(piece);
        take(piece)?;
        left -= most as u64;
        progress.add(most as u64);
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(digest.finish().as_ref());
    Ok(hash)
}

/// Percent on a terminal.
struct Progress {
    what: &'static str,
    total: u64,
    done: u64,
    shown: Option<u64>,
}

impl Progress {
    fn new(what: &'static str, total: u64) -> Self {
        Self { what, total, done: 0, shown: None }
    }

    fn add(&mut self, bytes: u64) {
        self.done += bytes;
        let percent = self.done * 100 / self.total.max(1);
        if self.shown != Some(percent) && io::stderr().is_terminal() {
            self.shown = Some(percent);
            eprint!("\r{} {percent} % of {} MiB", self.what, self.total.div_ceil(1 << 20));
            if percent == 100 {
                eprintln!();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::map::tests::map_of;
    use super::{Map, Progress, verify, write};

    fn image() -> Vec<u8> {
        (0..5 * 4096_u32 + 100).map(|byte| (byte % 251) as u8).collect()
    }

    fn silent() -> Progress {
        Progress::new("testing", 1)
    }

    #[test]
    fn what_the_map_names_is_written_and_nothing_else() {
        let image = image();
        let map = Map::parse(&map_of(&image, &[(1, 2), (5, 5)])).unwrap();
        let mut disk = Cursor::new(vec![0xee; 8 * 4096]);
        let written = write(&mut image.as_slice(), &mut disk, &map, &mut silent()).unwrap();
        let disk_bytes = disk.get_ref();
        assert_eq!(disk_bytes[4096..3 * 4096], image[4096..3 * 4096]);
        assert_eq!(disk_bytes[5 * 4096..image.len()], image[5 * 4096..]);
        assert!(disk_bytes[..4096].iter().chain(&disk_bytes[3 * 4096..5 * 4096]).all(|byte| *byte == 0xee));
        verify(&mut disk, &written, &mut silent()).unwrap();
    }

    #[test]
    fn a_disk_that_keeps_something_else_is_found_out() {
        let image = image();
        let mut disk = Cursor::new(vec![0; 8 * 4096]);
        let written = write(&mut image.as_slice(), &mut disk, &Map::whole(image.len() as u64), &mut silent()).unwrap();
        disk.get_mut()[4097] ^= 1;
        let error = verify(&mut disk, &written, &mut silent()).unwrap_err();
        assert!(format!("{error:#}").contains("are not what was written"));
    }

    #[test]
    fn an_image_that_is_damaged_or_short_is_found_out() {
        let image = image();
        let map = Map::parse(&map_of(&image, &[(1, 2), (5, 5)])).unwrap();
        let mut damaged = image.clone();
        damaged[4096] ^= 1;
        for (bytes, words) in
            [(&damaged[..], "damaged between the bytes 4096 and 12288"), (&image[..9000], "read 8192")]
        {
            let mut disk = Cursor::new(vec![0; 8 * 4096]);
            let error = write(&mut { bytes }, &mut disk, &map, &mut silent()).unwrap_err();
            assert!(format!("{error:#}").contains(words), "{error:#}");
        }
    }
}
