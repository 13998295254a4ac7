//! Any bytes as lines of the kernel's log: the reader and the classifier must not panic, and what a program wrote into
//! the log must be nothing.
#![no_main]

use std::time::Duration;

use healthd::classify::classify;
use healthd::incident::Tracker;
use healthd::record::records;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut tracker = Tracker::default();
    for (number, record) in records(&String::from_utf8_lossy(bytes)).into_iter().enumerate() {
        let Some(finding) = classify(&record) else { continue };
        assert!(!record.foreign);
        let at = record.at.unwrap_or_default();
        tracker.observe(&finding, number as u64, &record.text, at, at);
        tracker.tick(at);
    }
    tracker.tick(Duration::MAX);
    assert!(tracker.is_quiet());
});
