//! A million lines that are no fault: none leads to an action, and none makes the reader fall.

use std::time::Duration;

use healthd::classify::classify;
use healthd::incident::{Change, Hurt, Tracker};
use healthd::ladder::{Budgets, Ladder};
use healthd::record::{Reader, Record};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Lines of each of the two kinds.
const LINES: u64 = 500_000;
/// Letters that are neither digits of a hexadecimal number nor beyond a word.
const LETTERS: &[u8] = b"ghijklmnopqrstuvwyzGHIJKLMNOPQRSTUVWYZ";

/// Lines of the corpus, with braces around what is free text.
fn corpus() -> Vec<&'static str> {
    let lines = include_str!("corpus.txt").lines();
    lines.filter(|line| !line.is_empty() && !line.starts_with(['#', '='])).collect()
}

/// From records to actions, as the daemon does it; an owner that is hurt by everything.
#[derive(Default)]
struct Chain {
    tracker: Tracker,
    ladder: Ladder,
    now: Duration,
}

impl Chain {
    /// Whether the record led to an action.
    fn escalates(&mut self, record: &Record, number: u64) -> bool {
        let Some(finding) = classify(record) else { return false };
        self.now += Duration::from_secs(5);
        self.tracker.observe(&finding, number, &record.text, self.now, self.now);
        let hurt = Hurt { model: "m".into(), unheard: false, reason: String::new(), kernel_line: record.text.clone() };
        self.tracker.hurt(hurt, self.now);
        self.now += Duration::from_secs(5);
        self.tracker.tick(self.now).into_iter().any(|change| match change {
            Change::Settled(incident) => {
                let fault = |entry| self.ladder.fault(entry, self.now, "boot", &Budgets::default());
                incident.class.name != "npu-result-untrusted" && incident.class.entry.and_then(fault).is_some()
            }
            _ => false,
        })
    }
}

fn record(text: String) -> Record {
    Record { text, ..Record::default() }
}

#[test]
fn the_chain_escalates_what_is_a_fault() {
    let timeout = record("rocket fdab0000.npu: NPU job timed out".into());
    assert!(Chain::default().escalates(&timeout, 1), "the tests below could not fail");
}

#[test]
fn random_lines_never_escalate() {
    let mut rng = StdRng::seed_from_u64(1);
    let words: Vec<&str> = corpus().iter().flat_map(|line| line.split_whitespace()).collect();
    let (mut chain, mut reader) = (Chain::default(), Reader::default());
    for number in 0..LINES {
        let line = match number % 3 {
            0 => {
                let bytes: Vec<u8> = (0..rng.random_range(0..120)).map(|_| rng.random()).collect();
                String::from_utf8_lossy(&bytes).replace('\n', " ")
            }
            1 => {
                let text: Vec<&str> =
                    (0..rng.random_range(1..12)).map(|_| words[rng.random_range(0..words.len())]).collect();
                text.join(" ")
            }
            _ => {
                let device = ["rocket fdab0000.npu", "rk_iommu fdab9000.iommu", "panthor fb000000.gpu"];
                let word = |rng: &mut StdRng| words[rng.random_range(0..words.len())];
                format!("<3>[ 12.345678] {}: {} {}", device[rng.random_range(0..3)], word(&mut rng), word(&mut rng))
            }
        };
        if let Some(record) = reader.line(&line) {
            assert!(!chain.escalates(&record, number), "{record:?}");
        }
    }
}

#[test]
fn lines_with_a_wrong_letter_never_escalate() {
    let mut rng = StdRng::seed_from_u64(2);
    let lines = corpus();
    let mut chain = Chain::default();
    for number in 0..LINES {
        let line = lines[rng.random_range(0..lines.len())];
        let places = fixed(line);
        let (place, letter) = (places[rng.random_range(0..places.len())], LETTERS[rng.random_range(0..LETTERS.len())]);
        let mut bytes = line.as_bytes().to_vec();
        if bytes[place] == letter {
            continue;
        }
        match number % 3 {
            0 => bytes[place] = letter,
            1 => drop(bytes.remove(place)),
            _ => bytes.insert(place, letter),
        }
        bytes.retain(|byte| !b"{}".contains(byte));
        let text = String::from_utf8(bytes).unwrap().replace("\\n", "\n");
        assert!(!chain.escalates(&record(text.clone()), number), "{text:?} from {line:?}");
    }
}

/// Places of letters that belong to the format itself.
fn fixed(line: &str) -> Vec<usize> {
    let mut depth = 0;
    let mut places = Vec::new();
    for (place, &byte) in line.as_bytes().iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            // A letter behind a backslash is half of a new line.
            _ if depth == 0 && LETTERS.contains(&byte) && !line[..place].ends_with('\\') => places.push(place),
            _ => {}
        }
    }
    places
}
