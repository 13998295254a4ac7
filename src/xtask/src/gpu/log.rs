//! What the log of the measuring device says: how much was mapped, and whether jobs could spoil each other's scratch.
//!
//! ```text
//! map, unmap ─▶ bytes below 4 GiB, at every mark and at most
//! run, wait ─▶ which compute jobs may run at the same time, and what their descriptors say of their scratch:
//!     thread storage: the descriptor's stride is that of the allocation that it points to
//!     workgroup storage: no two jobs that may run at the same time have the same bytes
//! ```
//!
//! A thread's storage is found by its slot in its core, which no two threads have at a time; a workgroup's by its number
//! in its job, which two jobs do have at a time. So sharing the first needs one stride, and sharing the second one job.
//!
//! SOURCE: Mesa 25.0.7, src/panfrost/lib/pan_desc.c, pan_emit_tls(), and genxml/v10.xml, "Local Storage".

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::{Context, Result, bail};

/// The window that panvk's own memory is in.
const WINDOW: u64 = 1 << 32;
/// The device's cores by their highest number: shader_present is 0x50005.
const CORES: u64 = 19;
/// Threads of all cores: 2048 each.
const SLOTS: u64 = 2048 * CORES;

/// What a log says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Most bytes that were mapped below 4 GiB.
    pub(crate) peak: u64,
    /// Bytes mapped anywhere at each mark.
    pub(crate) live: Vec<(String, u64)>,
    /// Buffers that had been asked for at each mark.
    pub(crate) buffers: Vec<(String, u64)>,
    /// Compute jobs.
    pub(crate) jobs: usize,
    /// Queues that they ran on.
    pub(crate) queues: BTreeSet<Stream>,
    /// The allocations that their scratch was in: address and bytes.
    pub(crate) scratch: BTreeMap<u64, u64>,
    /// What is wrong with them.
    pub(crate) faults: Vec<String>,
}

impl Report {
    /// Bytes mapped at the marks of this name.
    pub(crate) fn live_at(&self, mark: &str) -> Vec<u64> {
        self.live.iter().filter(|(name, _)| name == mark).map(|(_, bytes)| *bytes).collect()
    }

    /// Buffers that had been asked for at the first mark of this name, and at all.
    pub(crate) fn buffers_at(&self, mark: &str) -> Option<u64> {
        self.buffers.iter().find(|(name, _)| name == mark).map(|(_, count)| *count)
    }

    fn fault(&mut self, what: String) {
        if !self.faults.contains(&what) {
            self.faults.push(what);
        }
    }
}

/// Reads a log.
///
/// # Errors
/// A line that no device of ours writes.
pub(crate) fn read(text: &str) -> Result<Report> {
    let mut device = Device::default();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        device.event(&words).with_context(|| format!("`{line}` in the device's log"))?;
    }
    Ok(device.report)
}

/// A queue of a group; jobs of two of them may always run at the same time.
pub(crate) type Stream = (u64, u64);

#[derive(Debug, Default)]
struct Device {
    report: Report,
    maps: BTreeMap<(u64, u64), u64>,
    created: u64,
    low: u64,
    all: u64,
    /// Workgroup storage of jobs that may still run: their scoreboard slot.
    running: BTreeMap<Stream, Vec<(u64, Range<u64>)>>,
    /// Workgroup storage that a queue has used, as long as it is mapped.
    used: BTreeMap<Stream, Vec<Range<u64>>>,
}

impl Device {
    fn event(&mut self, words: &[&str]) -> Result<()> {
        match *words {
            ["create", _] => self.created += 1,
            ["map", vm, address, bytes] => self.map(number(vm)?, number(address)?, number(bytes)?),
            ["unmap", vm, address, _] => self.unmap(number(vm)?, number(address)?)?,
            ["wait", group, queue, slots] => {
                self.wait((number(group)?, number(queue)?), u64::from_str_radix(slots, 16)?)
            }
            ["run", group, queue, slot, ref descriptor @ ..] => {
                let mut descriptor_words = [0; 6];
                if descriptor.len() != descriptor_words.len() {
                    bail!("not six words");
                }
                for (word, text) in descriptor_words.iter_mut().zip(descriptor) {
                    *word = u64::from_str_radix(text, 16)?;
                }
                self.run((number(group)?, number(queue)?), number(slot)?, &descriptor_words);
            }
            ["mark", name] => {
                self.report.live.push((name.to_owned(), self.all));
                self.report.buffers.push((name.to_owned(), self.created));
            }
            ["fault", ..] => self.report.fault(words.join(" ")),
            ["group" | "submit" | "refused", ..] => {}
            _ => bail!("an unknown event"),
        }
        Ok(())
    }

    fn map(&mut self, vm: u64, address: u64, bytes: u64) {
        self.maps.insert((vm, address), bytes);
        self.all += bytes;
        if address < WINDOW {
            self.low += bytes;
            self.report.peak = self.report.peak.max(self.low);
        }
    }

    fn unmap(&mut self, vm: u64, address: u64) -> Result<()> {
        let bytes = self.maps.remove(&(vm, address)).context("nothing is mapped there")?;
        self.all -= bytes;
        if address < WINDOW {
            self.low -= bytes;
        }
        for ranges in self.used.values_mut() {
            ranges.retain(|range| !overlap(range, &(address..address + bytes)));
        }
        Ok(())
    }

    fn wait(&mut self, stream: Stream, slots: u64) {
        self.running.entry(stream).or_default().retain(|(slot, _)| slots >> slot & 1 == 0);
    }

    fn run(&mut self, stream: Stream, slot: u64, descriptor: &[u64; 6]) {
        self.report.jobs += 1;
        self.report.queues.insert(stream);
        self.check_threads(descriptor);
        if let Some(range) = workgroups(descriptor) {
            self.check_workgroups(stream, &range);
            self.running.entry(stream).or_default().push((slot, range.clone()));
            self.used.entry(stream).or_default().push(range);
        }
    }

    fn check_threads(&mut self, descriptor: &[u64; 6]) {
        let base = (descriptor[3] & 0xffff) << 40 | descriptor[2] << 8;
        let stride = 16 << (descriptor[0] & 0x1f);
        if base == 0 {
            return;
        }
        let Some((start, bytes)) = self.mapping(base).filter(|(start, _)| *start == base) else {
            return self.report.fault("thread storage: not the start of an allocation".into());
        };
        self.report.scratch.insert(start, bytes);
        if bytes != stride * SLOTS {
            let slot = bytes / SLOTS;
            self.report.fault(format!("thread storage: a stride of {stride} bytes in an allocation with {slot}"));
        }
    }

    fn check_workgroups(&mut self, stream: Stream, range: &Range<u64>) {
        match self.mapping(range.start).filter(|(start, bytes)| range.end <= start + bytes) {
            Some((start, bytes)) => _ = self.report.scratch.insert(start, bytes),
            None => self.report.fault("workgroup storage: beyond its allocation".into()),
        }
        let here = self.running.get(&stream).into_iter().flatten().any(|(_, other)| overlap(range, other));
        if here {
            self.report.fault("workgroup storage: the same bytes as a job that has not been waited for".into());
        }
        let elsewhere = self.used.iter().filter(|(other, _)| **other != stream);
        if elsewhere.flat_map(|(_, ranges)| ranges).any(|other| overlap(range, other)) {
            self.report.fault("workgroup storage: the same bytes as a job of another queue".into());
        }
    }

    /// The mapping that an address is in.
    fn mapping(&self, address: u64) -> Option<(u64, u64)> {
        self.maps
            .iter()
            .find(|((_, start), bytes)| (*start..*start + **bytes).contains(&address))
            .map(|((_, start), bytes)| (*start, *bytes))
    }
}

/// The workgroup storage of all cores that a descriptor gives.
fn workgroups(descriptor: &[u64; 6]) -> Option<Range<u64>> {
    let (instances, scale) = (descriptor[1] & 0x1f, descriptor[1] >> 8 & 0x1f);
    // 2³¹ instances stand for none.
    if instances == 31 || scale == 0 {
        return None;
    }
    let base = descriptor[5] << 32 | descriptor[4];
    Some(base..base + (CORES << instances << (scale - 1)))
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn number(text: &str) -> Result<u64> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.with_context(|| format!("`{text}` is no number"))
}

#[cfg(test)]
mod tests {
    use super::read;

    /// 16-byte slots at 0x4000_0000, and 64 KiB of workgroup storage for each of 19 cores at 0x5000_0000.
    const MAPS: &str = "map 1 0x40000000 622592\nmap 1 0x50000000 1245184\n";
    /// Stride 16 there.
    const THREADS: &str = "00000000 0000001f 00400000 00000000 00000000 00000000";
    /// 16 instances of 4 KiB there.
    const GROUPS: &str = "00000000 00000d04 00000000 00000000 50000000 00000000";

    fn faults(events: &str) -> Vec<String> {
        read(&format!("{MAPS}{events}")).unwrap().faults
    }

    #[test]
    fn bytes_below_4_gib_are_counted_at_their_peak() {
        let report =
            read(&format!("{MAPS}map 1 0x100000000 4096\nmark a\nunmap 1 0x50000000 1245184\nmark b\n")).unwrap();
        assert_eq!(report.peak, 622_592 + 1_245_184);
        assert_eq!(report.live_at("a"), [622_592 + 1_245_184 + 4096]);
        assert_eq!(report.live_at("b"), [622_592 + 4096]);
    }

    #[test]
    fn a_stride_that_is_not_its_allocations_is_a_fault() {
        assert!(faults(&format!("run 1 2 3 {THREADS}\n")).is_empty());
        let wrong = THREADS.replacen("00000000", "00000001", 1);
        assert_eq!(
            faults(&format!("run 1 2 3 {wrong}\n")),
            ["thread storage: a stride of 32 bytes in an allocation with 16"]
        );
        let inside = THREADS.replace("00400000", "00400010");
        assert_eq!(faults(&format!("run 1 2 3 {inside}\n")), ["thread storage: not the start of an allocation"]);
    }

    #[test]
    fn scratch_is_what_descriptors_point_to() {
        let events = format!("{MAPS}map 1 0x60000000 4096\nrun 1 2 3 {THREADS}\nrun 2 2 3 {GROUPS}\n");
        let report = read(&events).unwrap();
        assert_eq!(report.scratch.values().sum::<u64>(), 622_592 + 1_245_184);
        assert_eq!(report.queues.len(), 2);
    }

    #[test]
    fn jobs_share_workgroup_storage_only_one_after_the_other() {
        let job = format!("run 1 2 3 {GROUPS}\n");
        assert!(faults(&format!("{job}wait 1 2 08\n{job}")).is_empty());
        for overlapping in [format!("{job}{job}"), format!("{job}wait 1 2 10\n{job}")] {
            assert_eq!(
                faults(&overlapping),
                ["workgroup storage: the same bytes as a job that has not been waited for"]
            );
        }
    }

    #[test]
    fn queues_do_not_share_workgroup_storage() {
        let job = format!("run 1 2 3 {GROUPS}\nwait 1 2 ff\n");
        let other = job.replace("run 1", "run 2");
        assert_eq!(faults(&format!("{job}{other}")), ["workgroup storage: the same bytes as a job of another queue"]);
        let moved = "unmap 1 0x50000000 1245184\nmap 1 0x50000000 1245184\n";
        assert!(faults(&format!("{job}{moved}{other}")).is_empty());
    }

    #[test]
    fn workgroup_storage_ends_where_its_allocation_does() {
        let larger = GROUPS.replace("00000d04", "00000d05");
        assert_eq!(faults(&format!("run 1 2 3 {larger}\n")), ["workgroup storage: beyond its allocation"]);
    }

    #[test]
    fn a_line_of_another_kind_is_refused() {
        for line in ["", "map 1 2", "run 1 2 3 00", "unmap 1 0x1 1", "map 1 x 1"] {
            assert!(read(&format!("{line}\n")).is_err(), "{line}");
        }
    }
}
