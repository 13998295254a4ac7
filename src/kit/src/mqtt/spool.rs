//! Messages that must not be lost: on disk until the broker has acknowledged them.
//!
//! ```text
//! push ─▶ folder, bounded ─▶ oldest ─▶ broker ─▶ acknowledged ─▶ removed
//!             └▶ full: the oldest is dropped and counted
//! ```
//! Each message is a file of its own, written beside its place and renamed into it, so that power loss leaves it whole
//! or absent. Where the disk takes nothing at all, messages wait in memory within the same bound. The broker may see a
//! message twice where a connection is lost before its acknowledgement arrives: a message carries an identity of its
//! own, by which its reader knows it again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{LinkError, MqttLink, Publication, Receipt};
use crate::{Error, Result};

/// How much a spool holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Limits {
    /// Messages.
    pub messages: usize,
    /// Bytes of all messages.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { messages: 1024, bytes: 4 << 20 }
    }
}

/// A message on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Stored {
    topic: String,
    payload: String,
    content_type: Option<String>,
    properties: Vec<(String, String)>,
}

/// Where a message is.
#[derive(Debug)]
enum Place {
    Disk,
    Memory(Stored),
}

#[derive(Debug)]
struct Entry {
    bytes: usize,
    place: Place,
}

/// A bounded queue of messages in a folder.
#[derive(Debug)]
pub struct Spool {
    folder: PathBuf,
    limits: Limits,
    entries: BTreeMap<u64, Entry>,
    next: u64,
    bytes: usize,
    dropped: u64,
}

impl Spool {
    /// Opens the folder, makes it if need be, and finds what an earlier run left.
    ///
    /// # Errors
    /// [`Error::Read`] where the folder cannot be made or read.
    pub fn open(folder: &Path, limits: Limits) -> Result<Self> {
        let error = |source| Error::Read { path: folder.into(), source };
        fs::create_dir_all(folder).map_err(error)?;
        let mut spool = Self { folder: folder.into(), limits, entries: BTreeMap::new(), next: 0, bytes: 0, dropped: 0 };
        for entry in fs::read_dir(folder).map_err(error)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let number = name.strip_suffix(".json").and_then(|number| number.parse::<u64>().ok());
            let Some(number) = number else {
                // What a power loss left half-written.
                let _ = fs::remove_file(entry.path());
                continue;
            };
            let bytes = entry.metadata().map_or(0, |metadata| usize::try_from(metadata.len()).unwrap_or(usize::MAX));
            spool.bytes = spool.bytes.saturating_add(bytes);
            spool.entries.insert(number, Entry { bytes, place: Place::Disk });
            spool.next = spool.next.max(number + 1);
        }
        spool.shrink(0);
        Ok(spool)
    }

    /// Takes a message whose payload is text. Whatever is over the bound, the oldest first, is dropped and counted.
    pub fn push(&mut self, publication: Publication) {
        let Publication { topic, payload, content_type, properties, .. } = publication;
        let payload = String::from_utf8_lossy(&payload).into_owned();
        let stored = Stored { topic, payload, content_type, properties };
        let text = serde_json::to_vec(&stored).expect("text serialises");
        if text.len() > self.limits.bytes || self.limits.messages == 0 {
            self.dropped += 1;
            return;
        }
        self.shrink(text.len());
        let place = match self.write(&text) {
            Ok(()) => Place::Disk,
            Err(_) => self.write_instead(&text).map_or(Place::Memory(stored), |()| Place::Disk),
        };
        self.bytes += text.len();
        self.entries.insert(self.next, Entry { bytes: text.len(), place });
        self.next += 1;
    }

    /// Makes room on a full disk by dropping the oldest messages there. Memory is for when that does not help either.
    fn write_instead(&mut self, text: &[u8]) -> std::io::Result<()> {
        loop {
            let result = self.write(text);
            let full = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::StorageFull);
            let on_disk = |entry: &Entry| matches!(entry.place, Place::Disk);
            let oldest = self.entries.iter().find(|(_, entry)| on_disk(entry)).map(|(number, _)| *number);
            let Some(oldest) = oldest.filter(|_| full) else { return result };
            self.remove(oldest);
            self.dropped += 1;
        }
    }

    fn write(&self, text: &[u8]) -> std::io::Result<()> {
        let target = self.file(self.next);
        let beside = target.with_extension("new");
        let written = File::create(&beside).and_then(|mut file| {
            file.write_all(text)?;
            file.sync_all()?;
            fs::rename(&beside, &target)
        });
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        written
    }

    /// Drops the oldest messages until one of `more` bytes fits.
    fn shrink(&mut self, more: usize) {
        let room = usize::from(more > 0);
        while self.entries.len() + room > self.limits.messages || self.bytes.saturating_add(more) > self.limits.bytes {
            let Some(oldest) = self.entries.keys().next().copied() else { return };
            self.remove(oldest);
            self.dropped += 1;
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some(entry) = self.entries.remove(&number) {
            self.bytes -= entry.bytes;
            if matches!(entry.place, Place::Disk) {
                // A file that stays is sent again after the next start, and known again by its reader.
                let _ = fs::remove_file(self.file(number));
            }
        }
    }

    /// The oldest message. One that cannot be read any more is dropped and counted.
    fn oldest(&mut self) -> Option<(u64, Publication)> {
        loop {
            let (&number, entry) = self.entries.first_key_value()?;
            let stored = match &entry.place {
                Place::Memory(stored) => Some(stored.clone()),
                Place::Disk => fs::read(self.file(number)).ok().and_then(|text| serde_json::from_slice(&text).ok()),
            };
            if let Some(Stored { topic, payload, content_type, properties }) = stored {
                let payload = Bytes::from(payload);
                let publication = Publication {
                    topic,
                    payload,
                    acknowledged: true,
                    content_type,
                    properties,
                    ..Publication::default()
                };
                return Some((number, publication));
            }
            self.remove(number);
            self.dropped += 1;
        }
    }

    /// Messages that wait.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Messages that were dropped since the spool was opened.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn file(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:020}.json"))
    }
}

/// Sends a spool's messages, one after the other.
#[derive(Debug)]
pub struct Sender {
    spool: Spool,
    in_flight: Option<(u64, Receipt)>,
}

impl Sender {
    /// Sends what `spool` holds.
    pub fn new(spool: Spool) -> Self {
        Self { spool, in_flight: None }
    }

    /// Takes a message, to be sent after all before it.
    pub fn push(&mut self, publication: Publication) {
        self.spool.push(publication);
    }

    /// Offers the oldest message to the link, unless one is on its way. To be called when the link is connected, and
    /// after each [`Sender::confirmed`]. A link that is full is offered it again with the next call.
    pub fn offer(&mut self, link: &dyn MqttLink) {
        while self.in_flight.is_none() {
            let Some((number, publication)) = self.spool.oldest() else { return };
            match link.publish_confirmed(publication) {
                Ok(receipt) => self.in_flight = Some((number, receipt)),
                Err(LinkError::Full | LinkError::Closed) => return,
                // It will never be taken.
                Err(_) => {
                    self.spool.remove(number);
                    self.spool.dropped += 1;
                }
            }
        }
    }

    /// Returns when the message on its way was acknowledged, and is removed, or was lost and is to be offered again.
    /// Never while none is on its way. May be dropped at any time.
    pub async fn confirmed(&mut self) {
        let Some((number, receipt)) = &mut self.in_flight else { return std::future::pending().await };
        let acknowledged = receipt.await.is_ok();
        let number = *number;
        self.in_flight = None;
        if acknowledged {
            self.spool.remove(number);
        }
    }

    /// The messages that wait.
    pub fn spool(&self) -> &Spool {
        &self.spool
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: usize) -> Publication {
        Publication { topic: "t".into(), payload: format!("{number}").into(), ..Publication::default() }
    }

    fn drain(spool: &mut Spool) -> Vec<String> {
        let mut payloads = Vec::new();
        while let Some((number, publication)) = spool.oldest() {
            payloads.push(String::from_utf8(publication.payload.to_vec()).unwrap());
            spool.remove(number);
        }
        payloads
    }

    #[test]
    fn what_waits_survives_a_restart_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(folder.path(), Limits::default()).unwrap();
        (0..3).for_each(|number| spool.push(message(number)));
        drop(spool);
        fs::write(folder.path().join("00000000000000000003.new"), "half").unwrap();
        let mut spool = Spool::open(folder.path(), Limits::default()).unwrap();
        spool.push(message(3));
        assert_eq!(drain(&mut spool), ["0", "1", "2", "3"]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_oldest_are_dropped_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(folder.path(), Limits { messages: 10, bytes: 1 << 20 }).unwrap();
        (0..25).for_each(|number| spool.push(message(number)));
        assert_eq!((spool.len(), spool.dropped()), (10, 15));
        let kept: Vec<String> = (15..25).map(|number| number.to_string()).collect();
        assert_eq!(drain(&mut spool), kept);
        let mut spool = Spool::open(folder.path(), Limits { messages: 10, bytes: 300 }).unwrap();
        (0..25).for_each(|number| spool.push(message(number)));
        assert!(spool.bytes <= 300 && !spool.is_empty());
        spool.push(Publication { payload: vec![b'x'; 1000].into(), ..message(0) });
        assert!(spool.bytes <= 300 && !spool.is_empty(), "one message that never fits drops no other");
    }

    #[test]
    fn a_file_that_was_damaged_is_dropped_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(folder.path(), Limits::default()).unwrap();
        (0..3).for_each(|number| spool.push(message(number)));
        fs::write(spool.file(0), "{").unwrap();
        assert_eq!(drain(&mut spool), ["1", "2"]);
        assert_eq!(spool.dropped(), 1);
    }

    #[test]
    fn a_disk_that_takes_nothing_leaves_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(&folder.path().join("spool"), Limits { messages: 5, bytes: 1 << 20 }).unwrap();
        fs::remove_dir(folder.path().join("spool")).unwrap();
        (0..8).for_each(|number| spool.push(message(number)));
        assert_eq!(drain(&mut spool), ["3", "4", "5", "6", "7"]);
        assert_eq!(spool.dropped(), 3);
    }
}
