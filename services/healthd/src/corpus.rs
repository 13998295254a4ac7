//! The corpus: every format of the kernel, in every form, becomes the incident that it is.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use crate::class::{CLASSES, ROWS};
use crate::classify::classify;
use crate::incident::{Change, Hurt, Incident, Tracker};
use crate::pattern::Pattern;
use crate::record::{Record, records};

/// What a block of the corpus must become: class, core, subject; `.` is nothing.
type Block<'a> = (&'a str, Option<u32>, &'a str, Vec<String>);

fn blocks() -> Vec<Block<'static>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for line in include_str!("../tests/corpus.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(head) = line.strip_prefix("= ") {
            let mut words = head.splitn(3, ' ');
            let (class, core, subject) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            blocks.push((class, core.parse().ok(), if subject == "-" { "" } else { subject }, Vec::new()));
        } else {
            blocks.last_mut().unwrap().3.push(line.replace(['{', '}'], "").replace("\\n", "\n"));
        }
    }
    blocks
}

/// Driver and device where a message begins with them.
fn device(line: &str) -> Option<&str> {
    let (prefix, _) = line.split_once(": ")?;
    let (driver, device) = prefix.split_once(' ')?;
    ["rocket", "rk_iommu", "panthor", "nvme", "RKNPU"].contains(&driver).then_some(device)
}

fn as_kmsg(lines: &[String]) -> String {
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        writeln!(text, "3,{number},{},-;{}", 1_000_000 + number, line.replace('\n', "\\x0a")).unwrap();
        if let Some(device) = device(line) {
            writeln!(text, " SUBSYSTEM=platform\n DEVICE=+platform:{device}").unwrap();
        }
    }
    text
}

fn as_dmesg(lines: &[String]) -> String {
    let indented = |line: &String| line.replace('\n', "\n                ");
    lines.iter().map(|line| format!("[    1.000000] {}\n", indented(line))).collect()
}

/// As a serial console shows it: each line of a message with the time of all.
fn as_console(lines: &[String]) -> String {
    lines.iter().flat_map(|line| line.split('\n')).map(|line| format!("[    1.000000] {line}\n")).collect()
}

fn as_journal(lines: &[String]) -> String {
    let line = |line: &String| {
        let device = device(line).map(|device| format!("+platform:{device}"));
        serde_json::json!({"MESSAGE": line, "_TRANSPORT": "kernel", "_KERNEL_DEVICE": device,
            "_SOURCE_MONOTONIC_TIMESTAMP": "1000000"})
        .to_string()
    };
    lines.iter().map(|text| line(text) + "\n").collect()
}

fn incidents(records: &[Record]) -> Vec<Incident> {
    let mut tracker = Tracker::default();
    let now = Duration::from_secs(1);
    let mut settled = Vec::new();
    for (number, record) in records.iter().enumerate() {
        let Some(finding) = classify(record) else { continue };
        tracker.observe(&finding, number as u64, &record.text, record.at.unwrap_or(now), now);
        if finding.class.name == "npu-job-timeout" {
            let (model, kernel_line) = ("m".to_owned(), record.text.clone());
            tracker.hurt(Hurt { model, unheard: false, reason: String::new(), kernel_line }, now);
        }
    }
    for change in tracker.tick(now + Duration::from_secs(60)) {
        if let Change::Settled(incident) = change {
            settled.push(incident);
        }
    }
    settled
}

#[test]
fn every_fault_is_one_incident_in_every_form() {
    for (class, core, subject, lines) in blocks() {
        for text in [as_kmsg(&lines), as_dmesg(&lines), as_console(&lines), as_journal(&lines)] {
            let found = incidents(&records(&text));
            if class == "." {
                assert!(found.is_empty(), "{text}{found:#?}");
                continue;
            }
            assert_eq!(found.len(), 1, "{text}{found:#?}");
            assert_eq!((found[0].class.name, found[0].core), (class, core), "{text}");
            // A block device is named as the device where the line names it nowhere else.
            let named = if found[0].subject.is_empty() { &found[0].device } else { &found[0].subject };
            assert!(subject.is_empty() || named == subject, "{text}{found:#?}");
        }
    }
}

#[test]
fn every_row_and_every_class_is_in_the_corpus() {
    let messages: Vec<String> = blocks().into_iter().flat_map(|block| block.3).collect();
    let lines = messages.iter().flat_map(|message| message.split('\n').chain([message.as_str()]));
    let tails: Vec<&str> = lines
        .flat_map(|line| {
            let after = line.split_once(": ").map_or("", |(_, rest)| rest);
            let after = after.strip_prefix("[drm] ").unwrap_or(after);
            [line, after, after.strip_prefix("*ERROR* ").unwrap_or(after)]
        })
        .collect();
    for (_, text, class, _) in ROWS {
        let pattern = Pattern::new(text);
        assert!(tails.iter().any(|tail| pattern.match_whole(tail).is_some()), "{class}: {text}");
    }
    // What no line says by itself.
    let derived = ["npu-result-untrusted", "npu-foreign-timeout", "npu-pooling-unheard"];
    let rows: BTreeSet<&str> = ROWS.iter().map(|row| row.2).chain(derived).collect();
    for class in CLASSES {
        assert!(rows.contains(class.name), "{} has no line", class.name);
    }
}
