//! Where records come from: the kernel's device, a file of text, and what the kernel saved when it died.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::{mpsc, oneshot};

use crate::record::{LINE_BYTES, Reader, Record, kmsg, records};

/// The largest record that `/dev/kmsg` returns. SOURCE: `PRINTK_MESSAGE_MAX`, kernel/printk/internal.h.
const RECORD_BYTES: usize = 8192;
/// How often a file of text is looked at.
// TIMEOUT: an incident is to be told within a second.
const LOOK: Duration = Duration::from_millis(100);
/// The largest saved log that is read; ramoops has far less.
const SAVED_BYTES: u64 = 4 << 20;

/// A record, its number, and how many before it were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) number: u64,
    pub(crate) record: Record,
    pub(crate) lost: u64,
}

/// Tells numbers that were heard before from new ones, and counts gaps.
#[derive(Debug)]
struct Numbers {
    last: Option<u64>,
}

impl Numbers {
    /// How many were lost before `number`; `None` where it was heard before.
    fn take(&mut self, number: u64) -> Option<u64> {
        let lost = match self.last {
            Some(last) if number <= last => return None,
            Some(last) => number - last - 1,
            // The boot's first record is number 0, but what an early boot overwrote nobody could have heard.
            None => 0,
        };
        self.last = Some(number);
        Some(lost)
    }
}

/// Sends all records after number `last` to `heard`, for ever.
pub(crate) async fn follow(path: PathBuf, is_text: bool, last: Option<u64>, heard: mpsc::Sender<Heard>) -> Result<()> {
    let numbers = Numbers { last };
    if is_text { follow_text(&path, numbers, &heard).await } else { follow_device(&path, numbers, &heard).await }
}

/// A thread of its own reads, because a read waits for the next record. It ends with the process, or with the first
/// record that nobody takes.
async fn follow_device(path: &Path, numbers: Numbers, heard: &mpsc::Sender<Heard>) -> Result<()> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let (end, ended) = oneshot::channel();
    let heard = heard.clone();
    let thread = std::thread::Builder::new().name("kernel-log".into());
    thread.spawn(move || {
        // Nobody may be waiting any more.
        let _ = end.send(read_device(&file, numbers, &heard));
    })?;
    let result = ended.await.context("the thread that reads the kernel's log is gone")?;
    result.with_context(|| format!("read {}", path.display()))
}

fn read_device(mut file: &File, mut numbers: Numbers, heard: &mpsc::Sender<Heard>) -> io::Result<()> {
    let mut buffer = vec![0; RECORD_BYTES];
    loop {
        let length = match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            // Records were overwritten before they were read; the next number shows how many.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => continue,
            Err(error) => return Err(error),
        };
        let record = kmsg(&String::from_utf8_lossy(&buffer[..length]));
        let Some((record, number)) = record.and_then(|record| record.sequence.map(|number| (record, number))) else {
            continue;
        };
        if let Some(lost) = numbers.take(number)
            && heard.blocking_send(Heard { number, record, lost }).is_err()
        {
            return Ok(());
        }
    }
}

/// A text's records without numbers get their place in the file: it is the same whenever the file is read again.
async fn follow_text(path: &Path, mut numbers: Numbers, heard: &mpsc::Sender<Heard>) -> Result<()> {
    let (mut offset, mut rest, mut reader) = (0_u64, Vec::new(), Reader::default());
    let mut place = 0;
    let mut tick = tokio::time::interval(LOOK);
    loop {
        tick.tick().await;
        let Ok(mut file) = File::open(path) else { continue };
        if file.metadata().is_ok_and(|metadata| metadata.len() < offset) {
            (offset, rest, reader) = (0, Vec::new(), Reader::default());
        }
        file.seek(SeekFrom::Start(offset)).with_context(|| format!("read {}", path.display()))?;
        let read = file.read_to_end(&mut rest).with_context(|| format!("read {}", path.display()))?;
        offset += u64::try_from(read)?;
        let mut found = Vec::new();
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let begin = offset - u64::try_from(rest.len() + line.len())?;
            let before = reader.line(String::from_utf8_lossy(&line[..line.len() - 1]).trim_end_matches('\r'));
            found.extend(before.map(|record| (place, record)));
            if !line.starts_with(b" ") {
                place = begin;
            }
        }
        // A line without an end that is too long is none.
        rest.truncate(LINE_BYTES + 1);
        found.extend(reader.flush().map(|record| (place, record)));
        for (place, record) in found {
            let counted = record.sequence.is_some();
            let number = record.sequence.unwrap_or(place);
            let Some(lost) = numbers.take(number) else { continue };
            let lost = if counted { lost } else { 0 };
            if heard.send(Heard { number, record, lost }).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// A log that the kernel saved when it died.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    /// Its name, with its time: the same while it is the same log.
    pub(crate) name: String,
    pub(crate) records: Vec<Record>,
}

/// All saved logs below `folders`.
pub(crate) fn saved(folders: &[PathBuf]) -> Vec<Saved> {
    let mut files = Vec::new();
    for folder in folders {
        collect(folder, 0, &mut files);
    }
    files.sort();
    files.into_iter().filter_map(|file| read_saved(&file)).collect()
}

/// systemd-pstore moves logs into a folder per event.
fn collect(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() && depth < 3 {
            collect(&path, depth + 1, files);
        } else if name.starts_with("dmesg") || name.starts_with("console-ramoops") {
            files.push(path);
        }
    }
}

fn read_saved(path: &Path) -> Option<Saved> {
    let metadata = fs::metadata(path).ok()?;
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(SAVED_BYTES).read_to_end(&mut bytes).ok()?;
    let time = metadata.modified().ok()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let name = format!("{}-{time}", path.file_name()?.to_string_lossy());
    Some(Saved { name, records: records(&String::from_utf8_lossy(&bytes)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "rocket fdab0000.npu: NPU job timed out";

    #[test]
    fn gaps_are_counted_and_what_was_heard_is_not_heard_again() {
        let mut numbers = Numbers { last: Some(4) };
        assert_eq!([4, 5, 9, 9].map(|number| numbers.take(number)), [None, Some(0), Some(3), None]);
        assert_eq!(Numbers { last: None }.take(100), Some(0));
    }

    #[tokio::test]
    async fn a_text_is_followed_from_where_it_was_left() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("log");
        fs::write(&file, format!("3,10,1,-;{LINE}\n DEVICE=+platform:fdab0000.npu\n3,12,2,-;x\n")).unwrap();
        let (send, mut heard) = mpsc::channel(9);
        let following = tokio::spawn(follow(file.clone(), true, Some(9), send));
        let first = heard.recv().await.unwrap();
        assert_eq!((first.number, first.lost, first.record.device.as_deref()), (10, 0, Some("fdab0000.npu")));
        assert_eq!(heard.recv().await.map(|heard| (heard.number, heard.lost)), Some((12, 1)));
        following.abort();
        let (send, mut heard) = mpsc::channel(9);
        tokio::spawn(follow(file.clone(), true, Some(12), send));
        let more = format!("{}3,13,3,-;y\n", fs::read_to_string(&file).unwrap());
        fs::write(&file, more).unwrap();
        assert_eq!(heard.recv().await.map(|heard| heard.record.text), Some("y".into()));
    }

    #[test]
    fn what_the_kernel_saved_is_found_wherever_it_was_moved() {
        let folder = tempfile::tempdir().unwrap();
        let moved = folder.path().join("1700000000");
        fs::create_dir(&moved).unwrap();
        fs::write(moved.join("dmesg-ramoops-0"), "Panic#1 Part1\n<0>[   12.000001] Kernel panic - not syncing: x\n")
            .unwrap();
        fs::write(folder.path().join("other"), "x").unwrap();
        let saved = saved(&[folder.path().into()]);
        assert_eq!(saved.len(), 1);
        assert_eq!(saved[0].records[1].text, "Kernel panic - not syncing: x");
    }
}
