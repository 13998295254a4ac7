//! `cairnctl provision`: for people at their desk. Needs no device.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use provision::Fault;
use serde::Serialize;

use crate::Printer;

/// Where time zones are, if this machine has any.
const ZONES: &str = "/usr/share/zoneinfo";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Provision {
    /// Say what is wrong with a cairn.toml before a device has to
    Check {
        /// The file
        file: PathBuf,
    },
}

#[derive(Debug, Serialize)]
struct Report {
    file: PathBuf,
    faults: Vec<Place>,
}

#[derive(Debug, Serialize)]
struct Place {
    line: usize,
    column: usize,
    message: String,
}

pub(crate) fn run<W: Write>(command: &Provision, printer: &mut Printer<'_, W>) -> Result<()> {
    let Provision::Check { file } = command;
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let found = faults(&text);
    let place = |fault: Fault| Place { line: fault.line, column: fault.column, message: fault.message };
    let report = Report { file: file.clone(), faults: found.into_iter().map(place).collect() };
    printer.print(&report, lines)?;
    match report.faults.len() {
        0 => Ok(()),
        faults => bail!("a device would refuse {}: {faults} faults", file.display()),
    }
}

fn faults(text: &str) -> Vec<Fault> {
    let provision = match provision::read(text) {
        Ok(provision) => provision,
        Err(faults) => return faults,
    };
    let zones = Path::new(ZONES);
    match provision.time_zone {
        Some((zone, span)) if zones.is_dir() && !zones.join(&zone).is_file() => {
            vec![Fault::at(text, span.start, format!("time-zone: there is no {zone:?}"))]
        }
        _ => Vec::new(),
    }
}

fn lines(report: &Report) -> String {
    let file = report.file.display();
    match report.faults.is_empty() {
        true => format!("{file}: nothing is wrong with it"),
        false => report.faults.iter().map(|at| format!("{file}:{}:{}: {}\n", at.line, at.column, at.message)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> (Result<()>, String) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cairn.toml");
        std::fs::write(&file, text).unwrap();
        let mut out = Vec::new();
        let result = run(&Provision::Check { file }, &mut Printer { json: false, out: &mut out });
        (result, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_right_file_passes() {
        let (result, text) = check("hostname = \"a\"\n");
        result.unwrap();
        assert!(text.contains("nothing is wrong"), "{text}");
    }

    #[test]
    fn every_fault_is_a_line_and_the_command_fails() {
        let (result, text) = check("hostnmae = \"a\"\nchannel = 3\n");
        assert!(result.unwrap_err().to_string().ends_with("2 faults"));
        assert!(text.contains("cairn.toml:1:1: unknown key \"hostnmae\"; did you mean \"hostname\"?\n"), "{text}");
        assert!(text.contains("cairn.toml:2:11: channel: is of type integer, not a text"), "{text}");
    }
}
