//! Everything that is heard of a machine, in one order: its console, its shell, its broker. Whoever waits, waits for a line.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Who said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Console,
    Shell,
    Broker,
    Server,
}

/// What was heard so far; its copies are the same.
#[derive(Clone, Debug)]
pub(super) struct Journal(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    heard: Mutex<Heard>,
    more: Condvar,
    begin: Instant,
}

#[derive(Debug)]
struct Heard {
    lines: Vec<(Origin, String)>,
    /// Whose lines have ended.
    ended: Vec<Origin>,
    file: File,
}

impl Journal {
    /// A journal that is also written to a file, as it grows.
    ///
    /// # Errors
    /// A file that cannot be made.
    pub(super) fn new(file: &Path) -> Result<Self> {
        let file = File::create(file).with_context(|| format!("make {}", file.display()))?;
        let heard = Mutex::new(Heard { lines: Vec::new(), ended: Vec::new(), file });
        Ok(Self(Arc::new(Shared { heard, more: Condvar::new(), begin: Instant::now() })))
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line.
    pub(super) fn add(&self, origin: Origin, line: &str) {
        let mut heard = self.heard();
        // A file that is full must not end the run that it tells of.
        let _ = writeln!(heard.file, "{:5} {origin:?}: {line}", self.0.begin.elapsed().as_secs());
        heard.lines.push((origin, line.to_owned()));
        self.0.more.notify_all();
    }

    /// Adds every line of `source`, by a thread of its own.
    pub(super) fn follow(&self, origin: Origin, source: impl Read + Send + 'static) {
        let journal = self.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(source).split(b'\n') {
                let Ok(line) = line else { break };
                journal.add(origin, String::from_utf8_lossy(&line).trim_end_matches('\r'));
            }
            journal.heard().ended.push(origin);
            journal.0.more.notify_all();
        });
    }

    /// How many lines there are: what is said from now on has this number or a higher one.
    pub(super) fn now(&self) -> usize {
        self.heard().lines.len()
    }

    /// The first line from `from` on that `found` makes something of.
    ///
    /// # Errors
    /// None within `limit`, or none any more.
    pub(super) fn wait<T>(
        &self,
        origin: Origin,
        from: usize,
        limit: Duration,
        found: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + limit;
        let (mut heard, mut next) = (self.heard(), from);
        loop {
            let new = heard.lines.iter().skip(next).filter(|(of, _)| *of == origin);
            if let Some(what) = new.filter_map(|(_, line)| found(line)).next() {
                return Ok(what);
            }
            next = next.max(heard.lines.len());
            let left = deadline.saturating_duration_since(Instant::now());
            // Without its console the machine is off, whatever else was to be heard.
            if heard.ended.iter().any(|ended| [origin, Origin::Console].contains(ended)) {
                bail!("it has ended");
            }
            if left.is_zero() {
                bail!("not within {} s", limit.as_secs());
            }
            heard = self.0.more.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The lines of one origin from `from` on.
    pub(super) fn since(&self, origin: Origin, from: usize) -> Vec<String> {
        let heard = self.heard();
        heard.lines.iter().skip(from).filter(|(of, _)| *of == origin).map(|(_, line)| line.clone()).collect()
    }

    /// The last lines, whoever said them.
    pub(super) fn tail(&self, count: usize) -> String {
        let heard = self.heard();
        let lines = &heard.lines[heard.lines.len().saturating_sub(count)..];
        lines.iter().map(|(origin, line)| format!("  {origin:?}: {line}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Journal, Origin};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_line_is_found_from_where_one_looks() {
        let file = std::env::temp_dir().join(format!("xtask-journal-{}", std::process::id()));
        let journal = Journal::new(&file).unwrap();
        journal.add(Origin::Console, "boot 1");
        journal.add(Origin::Broker, "boot 2");
        let from = journal.now();
        journal.follow(Origin::Shell, &b"boot 3\r\nboot 4"[..]);
        let number = |line: &str| line.strip_prefix("boot ").map(str::to_owned);
        assert_eq!(journal.wait(Origin::Console, 0, LONG, number).unwrap(), "1");
        assert_eq!(journal.wait(Origin::Shell, from, LONG, number).unwrap(), "3");
        let ended = journal.wait(Origin::Shell, from, LONG, |line| (line == "5").then_some(())).unwrap_err();
        assert_eq!(ended.to_string(), "it has ended");
        let late = journal.wait(Origin::Broker, from, Duration::ZERO, number).unwrap_err();
        assert_eq!(late.to_string(), "not within 0 s");
        assert_eq!(journal.since(Origin::Shell, 0), ["boot 3", "boot 4"]);
        assert!(std::fs::read_to_string(&file).unwrap().contains("Shell: boot 4\n"));
        std::fs::remove_file(&file).unwrap();
    }
}
