//! Records of the kernel log, in every form in which they reach us.
//!
//! ```text
//! /dev/kmsg      3,1200,5000000,-;rocket fdab0000.npu: NPU job timed out\n SUBSYSTEM=platform\n DEVICE=+platform:…
//! journal JSON   {"MESSAGE":"rocket fdab0000.npu: NPU job timed out","_KERNEL_DEVICE":"+platform:fdab0000.npu", …}
//! dmesg text     [    5.000000] rocket fdab0000.npu: NPU job timed out
//! journal text   Nov 30 06:55:15 board kernel: rocket fdab0000.npu: NPU job timed out
//! ```
//! A message of several lines is one record; in text its further lines are indented. SOURCE:
//! `Documentation/ABI/testing/dev-kmsg`; kernel-lines, "Line prefix grammar".

use std::time::Duration;

use serde::Deserialize;

/// The longest line that is read; a longer one says nothing that we know.
pub const LINE_BYTES: usize = 16 << 10;

/// A record of the kernel log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Its number within the boot, where the form has one.
    pub sequence: Option<u64>,
    /// When, since the boot, where the form says so.
    pub at: Option<Duration>,
    /// Name of the device that it is about, where the form says so.
    pub device: Option<String>,
    /// What it says; may have several lines.
    pub text: String,
    /// Whether a program wrote it into the kernel's log rather than the kernel itself.
    pub foreign: bool,
}

/// Reads a record of `/dev/kmsg`, with its dictionary.
pub fn kmsg(record: &str) -> Option<Record> {
    let (header, body) = record.split_once(';')?;
    let mut fields = header.split(',');
    let (prefix, sequence, micros) = (fields.next()?, fields.next()?, fields.next()?);
    let prefix: u32 = prefix.parse().ok()?;
    let mut lines = body.lines();
    let text = unescape(lines.next()?);
    let device = lines.find_map(|line| line.strip_prefix(" DEVICE=")).map(device_name);
    Some(Record {
        sequence: Some(sequence.parse().ok()?),
        at: Some(Duration::from_micros(micros.parse().ok()?)),
        device,
        text,
        // SOURCE: dev-kmsg: the facility is in the bits above the level; the kernel's is 0, programs cannot use it.
        foreign: prefix >> 3 != 0,
    })
}

/// What is left of a device's name without the kind of its number: `+platform:fdab0000.npu` is `fdab0000.npu`.
fn device_name(value: &str) -> String {
    value.strip_prefix('+').and_then(|value| value.split_once(':')).map_or(value, |(_, name)| name).to_owned()
}

/// Undoes the escapes of `/dev/kmsg`: `\x0a` is a new line, `\x5c` a backslash.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\\x") {
        let code = rest.get(at + 2..at + 4).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let Some(code) = code.filter(u8::is_ascii) else {
            out.push_str(&rest[..at + 2]);
            rest = &rest[at + 2..];
            continue;
        };
        out.push_str(&rest[..at]);
        out.push(char::from(code));
        rest = &rest[at + 4..];
    }
    out + rest
}

/// A line of `journalctl --output=json`.
#[derive(Deserialize)]
struct JournalLine {
    #[serde(rename = "MESSAGE")]
    message: Message,
    #[serde(rename = "_TRANSPORT")]
    transport: Option<String>,
    #[serde(rename = "_KERNEL_DEVICE")]
    device: Option<String>,
    #[serde(rename = "_SOURCE_MONOTONIC_TIMESTAMP")]
    micros: Option<String>,
}

/// The journal writes text that is not printable as an array of bytes. SOURCE: systemd, Journal JSON Format.
#[derive(Deserialize)]
#[serde(untagged)]
enum Message {
    Text(String),
    Bytes(Vec<u8>),
}

/// Reads a line of journal JSON.
pub fn journal(line: &str) -> Option<Record> {
    let line: JournalLine = serde_json::from_str(line).ok()?;
    let text = match line.message {
        Message::Text(text) => text,
        Message::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
    };
    Some(Record {
        sequence: None,
        at: line.micros.and_then(|micros| micros.parse().ok()).map(Duration::from_micros),
        device: line.device.as_deref().map(device_name),
        text,
        foreign: line.transport.is_some_and(|transport| transport != "kernel"),
    })
}

/// Reads a line of dmesg, of the serial console, of pstore or of `journalctl -k`.
fn text(line: &str) -> Record {
    let line = line.strip_prefix('<').and_then(|rest| rest.split_once('>')).map_or(line, |(_, rest)| rest);
    let plain = |text: &str| Record { text: text.to_owned(), ..Record::default() };
    if let Some((stamp, rest)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']'))
        && let Some(at) = timestamp(stamp)
    {
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        // Where printk shows the caller, its column follows.
        let caller = rest.strip_prefix('[').and_then(|rest| rest.split_once("] "));
        let is_caller = |column: &str| {
            column.trim_start().strip_prefix(['T', 'C']).is_some_and(|id| id.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let rest = caller.filter(|(column, _)| is_caller(column)).map_or(rest, |(_, rest)| rest);
        return Record { at: Some(at), ..plain(rest) };
    }
    // The journal's own prefix; a program's line has its name there.
    match line.split_once(" kernel: ") {
        Some((prefix, rest)) if prefix.split_whitespace().count() <= 4 => plain(rest),
        _ => plain(line),
    }
}

/// Seconds with a fraction, as printk writes them.
fn timestamp(stamp: &str) -> Option<Duration> {
    let (seconds, micros) = stamp.trim().split_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(seconds) || !is_number(micros) || micros.len() != 6 {
        return None;
    }
    // No machine runs for longer than 136 years.
    Some(Duration::from_secs(seconds.parse::<u32>().ok()?.into()) + Duration::from_micros(micros.parse().ok()?))
}

/// Puts lines of text together to records. The last record is known to be complete only when another begins, or
/// [`Reader::flush`] says that no more comes.
#[derive(Debug, Default)]
pub struct Reader {
    held: Option<Record>,
    /// Whether dictionary lines belong to what is held.
    has_dictionary: bool,
}

impl Reader {
    /// Takes a line, without its end. Returns the record before it, if that is complete now.
    pub fn line(&mut self, line: &str) -> Option<Record> {
        if line.len() > LINE_BYTES {
            return self.flush();
        }
        if line.starts_with([' ', '\t'])
            && let Some(held) = &mut self.held
        {
            continue_record(held, line, self.has_dictionary);
            return None;
        }
        let (record, has_dictionary) = match kmsg(line) {
            Some(record) if line.starts_with(|first: char| first.is_ascii_digit()) => (Some(record), true),
            _ if line.starts_with('{') => (journal(line), false),
            _ if line.trim().is_empty() => (None, false),
            _ => (Some(text(line)), false),
        };
        self.has_dictionary = has_dictionary;
        std::mem::replace(&mut self.held, record)
    }

    /// Returns the last record.
    pub fn flush(&mut self) -> Option<Record> {
        self.held.take()
    }
}

fn continue_record(held: &mut Record, line: &str, has_dictionary: bool) {
    if has_dictionary {
        if let Some(value) = line.strip_prefix(" DEVICE=") {
            held.device = Some(device_name(value));
        }
    } else if held.text.len() + line.len() <= LINE_BYTES {
        held.text.push('\n');
        held.text.push_str(line.trim_start());
    }
}

/// All records of a text.
pub fn records(text: &str) -> Vec<Record> {
    let mut reader = Reader::default();
    let mut records: Vec<Record> = text.lines().filter_map(|line| reader.line(line)).collect();
    records.extend(reader.flush());
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "rocket fdab0000.npu: NPU job timed out";

    #[test]
    fn every_form_gives_the_same_record() {
        let at = Some(Duration::from_micros(5_000_001));
        let device = Some("fdab0000.npu".to_owned());
        let kmsg = format!("3,1200,5000001,-;{TEXT}\n SUBSYSTEM=platform\n DEVICE=+platform:fdab0000.npu");
        let expected = Record { sequence: Some(1200), at, device: device.clone(), text: TEXT.into(), foreign: false };
        assert_eq!(records(&kmsg), [expected]);
        let json = format!(
            r#"{{"MESSAGE":"{TEXT}","PRIORITY":"3","_TRANSPORT":"kernel","_KERNEL_DEVICE":"+platform:fdab0000.npu","_SOURCE_MONOTONIC_TIMESTAMP":"5000001"}}"#
        );
        assert_eq!(records(&json), [Record { at, device, text: TEXT.into(), ..Record::default() }]);
        for line in ["[    5.000001] ", "<3>[    5.000001] ", "[    5.000001] [   T123] ", "[    5.000001] [    C3] "] {
            let expected = Record { at, text: TEXT.into(), ..Record::default() };
            assert_eq!(records(&format!("{line}{TEXT}")), [expected]);
        }
        let expected = Record { text: TEXT.into(), ..Record::default() };
        assert_eq!(records(&format!("Nov 30 06:55:15 board kernel: {TEXT}")), [expected]);
    }

    #[test]
    fn lines_of_one_message_are_one_record() {
        let kmsg = records(r"3,7,1,-;first\x0asecond \x5cx");
        assert_eq!(kmsg[0].text, "first\nsecond \\x");
        let dmesg = records("[    1.000000] first\n               second\n[    2.000000] third");
        assert_eq!(dmesg.iter().map(|record| record.text.as_str()).collect::<Vec<_>>(), ["first\nsecond", "third"]);
        let json = records(r#"{"MESSAGE":[102,10,103]}"#);
        assert_eq!(json[0].text, "f\ng");
    }

    #[test]
    fn what_a_program_wrote_is_foreign() {
        assert!(kmsg("11,1,2,-;rocket fdab0000.npu: NPU job timed out").unwrap().foreign);
        assert!(journal(r#"{"MESSAGE":"x","_TRANSPORT":"syslog"}"#).unwrap().foreign);
    }

    #[test]
    fn what_is_malformed_is_no_record() {
        for record in ["", ";", "x;y", "3", "3,1;a", "3,x,1,-;a", "3,1,-1,-;a"] {
            assert_eq!(kmsg(record), None, "{record}");
        }
        assert_eq!(journal("{\"MESSAGE\":3}"), None);
        assert!(records(&"x".repeat(LINE_BYTES + 1)).is_empty());
    }
}
