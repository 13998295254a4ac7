//! Lines per second of the classifier on one core: the corpus of faults among lines of a healthy machine.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use healthd::classify::classify;
use healthd::record::records;

/// Lines that are measured.
const LINES: usize = 500_000;
/// Lines of a healthy machine, as many for each line of a fault.
const HEALTHY: &[&str] = &[
    "[   12.000001] usb 2-1: new high-speed USB device number 2 using xhci-hcd",
    "[   12.000002] EXT4-fs (mmcblk0p3): mounted filesystem with ordered data mode. Quota mode: none.",
    "[   12.000003] systemd[1]: Started Journal Service.",
    "[   12.000004] rocket fdab0000.npu: Rockchip NPU core 0 version: 1179210309",
    "[   12.000005] audit: type=1400 audit(1700000000.123:45): apparmor=\"STATUS\" operation=\"profile_load\"",
];

fn main() -> Result<()> {
    let corpus = std::fs::read_to_string(testkit::workspace().join("services/healthd/tests/corpus.txt"))?;
    let faults = corpus.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '=']));
    let faults: Vec<String> = faults.map(|line| format!("[   12.000000] {}", line.replace(['{', '}'], ""))).collect();
    let lines = (0..LINES).map(|number| match number % (HEALTHY.len() + 1) {
        0 => faults[number / (HEALTHY.len() + 1) % faults.len()].as_str(),
        place => HEALTHY[place - 1],
    });
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let begin = Instant::now();
    let found = records(&text).iter().filter(|record| black_box(classify(record)).is_some()).count();
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{LINES} lines of dmesg read and classified in {seconds:.3} s: {:.0} lines/s on one core; {found} are known",
        LINES as f64 / seconds
    );
    Ok(())
}
