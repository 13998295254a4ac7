//! What scripts go by: exit status 0 where all is well, 1 where something is not, 2 for a command line that is none; what
//! was asked for on standard output, complaints on standard error.

#![allow(clippy::unwrap_used, reason = "everything in this file is a test")]

use std::fs;
use std::path::Path;
use std::process::Command;

const COMPLETE: &str = include_str!("../../../src/provision/tests/complete.toml");

fn cairnctl(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_cairnctl"))
        .args(arguments)
        // It would stand below the complaint.
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn check(file: &Path, text: &str, more: &[&str]) -> (i32, String, String) {
    fs::write(file, text).unwrap();
    cairnctl(&[&["provision", "check", file.to_str().unwrap()], more].concat())
}

#[test]
fn a_cairn_toml_is_judged_without_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cairn.toml");
    let (code, text, complaint) = check(&file, COMPLETE, &[]);
    assert_eq!((code, complaint.as_str()), (0, ""));
    assert!(text.ends_with("cairn.toml: nothing is wrong with it\n"), "{text}");

    let (code, text, complaint) = check(&file, "channel = \"Stable!\"\nhostnmae = \"a\"\n", &[]);
    assert_eq!(code, 1);
    let [first, second] = *text.lines().collect::<Vec<_>>() else { panic!("{text}") };
    assert!(first.contains("cairn.toml:1:11: channel:"), "{text}");
    assert!(second.contains("cairn.toml:2:1: unknown key \"hostnmae\"; did you mean \"hostname\"?"), "{text}");
    assert!(complaint.ends_with("2 faults\n"), "{complaint}");

    let (code, text, _) = check(&file, "colour = \"red\"\n", &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &report["faults"][0]["line"], &report["faults"][0]["column"]), (1, &1.into(), &1.into()));

    let (code, text, complaint) = cairnctl(&["provision", "check", "/no/such/file"]);
    assert!(code == 1 && text.is_empty() && complaint.contains("read /no/such/file"), "{complaint}");
}

#[test]
fn a_command_line_that_is_none_is_told_from_a_machine_that_does_not_answer() {
    for arguments in [&["updaet"][..], &["update"], &["update", "install"], &["model", "add"], &["provision", "check"]]
    {
        let (code, text, complaint) = cairnctl(arguments);
        assert!(code == 2 && text.is_empty() && complaint.contains("Usage:"), "{arguments:?}: {complaint}");
    }
    for arguments in [&["update", "status"][..], &["model", "add", "m"], &["reset", "--yes"]] {
        let (code, text, complaint) = cairnctl(&[arguments, &["--bus", "unix:path=/no/such/bus"]].concat());
        assert!(code == 1 && text.is_empty() && complaint.contains("connect to the bus"), "{arguments:?}: {complaint}");
    }
}
