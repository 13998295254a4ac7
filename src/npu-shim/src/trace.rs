//! The trace: one line for each job, its programs in words.
//!
//! A line is appended with one write, so that several processes may share the file.

use std::ffi::c_int;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use npu_device::{Errno, Job};
use npu_regs::Word;
use npu_sim::Receipt;

use crate::device::Device;
use crate::files::OpenFile;
use crate::lock;

/// Words of a task that are printed; a wild count is not followed to the end of memory.
const MOST_WORDS: u32 = 4096;

/// Writes the line of a job that was queued, or of one that was dropped.
pub(crate) fn job(file: &OpenFile, fd: c_int, job: &Job<'_>, result: &Result<Receipt, Errno>) {
    let Some(path) = &file.device.settings.trace else { return };
    let mut line = format!(
        "process {} file {} job {} tasks {} in {:?} out {:?}: ",
        std::process::id(),
        file.number,
        Device::next(&file.device.jobs),
        job.tasks.len(),
        job.inputs,
        job.outputs
    );
    match result {
        Err(errno) => line.push_str(&format!("dropped, {errno}")),
        Ok(Receipt { core, time, fault: None, .. }) => {
            line.push_str(&format!("core {core}, {time:?} by the cost model"))
        }
        Ok(Receipt { core, fault: Some(fault), .. }) => {
            line.push_str(&format!("core {core}, hung in task {}: {}", fault.task, fault.fault));
        }
    }
    for task in job.tasks {
        // Writing to a string cannot fail.
        let _ = write!(line, " | {:#x}", task.dma);
        match words(file, fd, task.dma, task.words.min(MOST_WORDS)) {
            Some(words) => words.iter().for_each(|word| line.push_str(&format!("; {word}"))),
            None => line.push_str("; not mapped"),
        }
    }
    line.push('\n');
    if let Err(error) = append(path, &line) {
        eprintln!("npu-shim: {}: {error}", path.display());
    }
}

/// Command words at a DMA address, where they lie in one buffer object.
fn words(file: &OpenFile, fd: c_int, dma: u32, words: u32) -> Option<Vec<Word>> {
    let objects = lock(&file.objects);
    let inside = |object: &&npu_device::BoInfo| dma >= object.dma && dma - object.dma < object.bytes;
    let object = objects.values().find(inside)?;
    let start = dma - object.dma;
    let len = (u64::from(words) * 8).min(u64::from(object.bytes - start));
    // CAST: at most what an object has.
    let mut bytes = vec![0; len as usize];
    let at = libc::off_t::try_from(object.map_offset + u64::from(start)).ok()?;
    // SAFETY: the buffer has this length.
    let read = unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), bytes.len(), at) };
    // CAST: not negative.
    (read >= 0 && read as usize == bytes.len()).then_some(())?;
    Some(bytes.as_chunks::<8>().0.iter().map(|word| Word(u64::from_le_bytes(*word))).collect())
}

/// Appends to a file.
pub(crate) fn append(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).open(path)?.write_all(text.as_bytes())
}
