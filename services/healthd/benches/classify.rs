//! Lines per second of the classifier on one core, of CPU time: the corpus of faults among lines of a healthy machine.
//! Beside it the `RegexSet` of the crate `regex` with the same formats, and what reading the lines costs alone.

use std::hint::black_box;
use std::path::Path;

use anyhow::Result;
use healthd::class::formats;
use healthd::classify::classify;
use healthd::record::{Record, records};
use regex::RegexSet;
use rustix::time::{ClockId, clock_gettime};

/// Lines that are measured.
const LINES: usize = 500_000;
/// Lines of a healthy machine, each as often as all lines of faults together.
const HEALTHY: &[&str] = &[
    "[   12.000001] usb 2-1: new high-speed USB device number 2 using xhci-hcd",
    "[   12.000002] EXT4-fs (mmcblk0p3): mounted filesystem with ordered data mode. Quota mode: none.",
    "[   12.000003] systemd[1]: Started Journal Service.",
    "[   12.000004] rocket fdab0000.npu: Rockchip NPU core 0 version: 1179210309",
    "[   12.000005] audit: type=1400 audit(1700000000.123:45): apparmor=\"STATUS\" operation=\"profile_load\"",
];

fn main() -> Result<()> {
    let text = input()?;
    println!(
        "{LINES} lines of dmesg, {:.1} MB, 1 of {} from the corpus of faults; {} formats",
        text.len() as f64 / 1e6,
        HEALTHY.len() + 1,
        formats().count()
    );
    let (found, seconds) = measure(|| classified(&records(&text)));
    report("healthd: read and classified", seconds, Some(found));
    let set = RegexSet::new(formats().map(as_regex))?;
    let matched = |record: &&Record| set.is_match(&record.text);
    let (found, peer) = measure(|| records(&text).iter().filter(matched).count());
    report("regex::RegexSet: read and matched", peer, Some(found));
    let (_, floor) = measure(|| records(&text).len());
    report("read alone", floor, None);
    println!("healthd takes {:.2} of the RegexSet's time", seconds / peer);
    Ok(())
}

fn input() -> Result<String> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus.txt");
    let corpus = std::fs::read_to_string(corpus)?;
    let faults = corpus.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '=']));
    let faults: Vec<String> = faults.map(|line| format!("[   12.000000] {}", line.replace(['{', '}'], ""))).collect();
    let lines = (0..LINES).map(|number| match number % (HEALTHY.len() + 1) {
        0 => faults[number / (HEALTHY.len() + 1) % faults.len()].as_str(),
        place => HEALTHY[place - 1],
    });
    Ok(lines.flat_map(|line| [line, "\n"]).collect())
}

fn classified(records: &[Record]) -> usize {
    records.iter().filter(|record| classify(record).is_some()).count()
}

/// What `work` yields, and the seconds that this thread computed.
fn measure(work: impl Fn() -> usize) -> (usize, f64) {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    // Once for tables that are made at their first use.
    black_box(work());
    let begin = now();
    (black_box(work()), now() - begin)
}

fn report(what: &str, seconds: f64, found: Option<usize>) {
    let known = found.map_or(String::new(), |found| format!(", {found} are known"));
    println!("{what:34} {seconds:.3} s of CPU time: {:>9.0} lines/s on one core{known}", LINES as f64 / seconds);
}

/// A format as a regular expression for a whole line, whatever device it begins with.
fn as_regex(format: &str) -> String {
    let mut regex = String::from("^(?:[^:]* )?(?:[^: ]+: )?(?:\\[drm\\] )?(?:\\*ERROR\\* )?");
    let mut rest = format;
    while let Some((literal, tail)) = rest.split_once('{') {
        let (name, tail) = tail.split_once('}').expect("a placeholder is closed");
        regex += &regex::escape(literal);
        regex += match name {
            "d" | "pid" => "-?[0-9]+",
            "x" => "(?:0[xX])?[0-9a-fA-F]+",
            "*" => "(?s:.*)",
            _ => "[^\n]+",
        };
        rest = tail;
    }
    regex + &regex::escape(rest) + "$"
}
