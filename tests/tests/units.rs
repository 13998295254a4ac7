//! The units of all services, as the service manager reads them, and what they expose.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use testkit::workspace;

/// The most that a unit may expose, of 10. SOURCE: systemd-analyze(1), security.
const EXPOSURE: f64 = 3.0;
/// Keys that older service managers do not know and ignore.
const NEWER_KEYS: &[&str] = &["RestartSteps", "RestartMaxDelaySec"];

/// Every unit of a service, by its file.
fn units() -> Vec<PathBuf> {
    let mut units = Vec::new();
    for service in fs::read_dir(workspace().join("services")).unwrap() {
        let dist = service.unwrap().path().join("dist");
        let files = fs::read_dir(dist).into_iter().flatten().map(|entry| entry.unwrap().path());
        let is_unit = |file: &PathBuf| {
            let text = fs::read_to_string(file).unwrap_or_default();
            file.extension().is_some_and(|extension| extension == "service") && text.contains("[Service]\n")
        };
        units.extend(files.filter(is_unit));
    }
    units.sort();
    assert!(units.len() >= 2, "only {units:?} were found");
    units
}

fn analyze(arguments: &[&str], file: &PathBuf) -> String {
    let output = Command::new("systemd-analyze").args(arguments).arg(file).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn no_unit_exposes_more_than_it_must() {
    for unit in units() {
        let text = analyze(&["security", "--offline=true", "--no-pager"], &unit);
        let overall =
            text.lines().find_map(|line| line.split_once("exposure level for ")).unwrap_or_else(|| panic!("{text}"));
        let (_, level) = overall.1.split_once(": ").unwrap();
        let level: f64 = level.split_whitespace().next().unwrap().parse().unwrap();
        assert!(level <= EXPOSURE, "{} exposes {level}:\n{text}", unit.display());
    }
}

#[test]
fn every_unit_is_read_without_a_complaint() {
    let folder = tempfile::tempdir().unwrap();
    // The programs are not installed here; everything else is as in the image.
    for unit in units() {
        let text = fs::read_to_string(&unit).unwrap().replace("=/usr/bin/", "=/bin/true /usr/bin/");
        fs::write(folder.path().join(unit.file_name().unwrap()), text).unwrap();
    }
    for unit in units() {
        let text = analyze(&["verify", "--man=no"], &folder.path().join(unit.file_name().unwrap()));
        let newer = |line: &&str| NEWER_KEYS.iter().any(|key| line.contains(&format!("Unknown key '{key}'")));
        let ours = |line: &&str| line.contains(&*unit.file_name().unwrap().to_string_lossy());
        let complaints: Vec<&str> = text.lines().filter(ours).filter(|line| !newer(line)).collect();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}
