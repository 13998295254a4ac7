//! The units of all services, as the service manager reads them, and what they expose; and what an image becomes with the
//! files beside them, and what the journal explains.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::workspace;

/// The most that a unit may expose, of 10. SOURCE: systemd-analyze(1), security.
const EXPOSURE: f64 = 3.0;
/// Keys that older service managers do not know and ignore.
const NEWER_KEYS: &[&str] = &["RestartSteps", "RestartMaxDelaySec"];

/// The groups that the service manager brings itself. SOURCE: its basic.conf and systemd-journal.conf.
const SYSTEMD_GROUPS: &[&str] = &["root", "systemd-journal"];

/// The files beside the services with one ending.
fn files(ending: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for service in fs::read_dir(workspace().join("services")).unwrap() {
        let dist = service.unwrap().path().join("dist");
        let all = fs::read_dir(dist).into_iter().flatten().map(|entry| entry.unwrap().path());
        files.extend(all.filter(|file| file.extension().is_some_and(|extension| extension == ending)));
    }
    files.sort();
    assert!(!files.is_empty(), "no .{ending} was found");
    files
}

/// Every unit of a service, by its file.
fn units() -> Vec<PathBuf> {
    let mut units = files("service");
    units.retain(|unit| fs::read_to_string(unit).unwrap().contains("[Service]\n"));
    units
}

/// Copies the files with one ending into a folder of an image, under another ending.
fn install(image: &Path, folder: &str, from: &str, to: &str) {
    let folder = image.join(folder);
    fs::create_dir_all(&folder).unwrap();
    for file in files(from) {
        fs::copy(&file, folder.join(file.with_extension(to).file_name().unwrap())).unwrap();
    }
}

/// Runs one of the service manager's programs over an image.
fn over(image: &Path, program: &str, arguments: &[&str]) {
    let output = Command::new(program).arg("--root").arg(image).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The names in a file of the form of passwd and group.
fn names(file: &Path) -> BTreeSet<String> {
    fs::read_to_string(file).unwrap().lines().map(|line| line.split(':').next().unwrap().to_owned()).collect()
}

/// What stands between `before` and `after`, wherever `before` is.
fn between<'a>(text: &'a str, before: &str, after: char) -> Vec<&'a str> {
    text.split(before).skip(1).map(|rest| rest.split(after).next().unwrap()).collect()
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
    let units = [units(), files("timer")].concat();
    for unit in &units {
        let text = fs::read_to_string(unit).unwrap().replace("=/usr/bin/", "=/bin/true /usr/bin/");
        fs::write(folder.path().join(unit.file_name().unwrap()), text).unwrap();
    }
    for unit in units {
        let text = analyze(&["verify", "--man=no"], &folder.path().join(unit.file_name().unwrap()));
        let newer = |line: &&str| NEWER_KEYS.iter().any(|key| line.contains(&format!("Unknown key '{key}'")));
        let ours = |line: &&str| line.contains(&*unit.file_name().unwrap().to_string_lossy());
        let complaints: Vec<&str> = text.lines().filter(ours).filter(|line| !newer(line)).collect();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}

#[test]
fn an_image_has_every_user_and_group_that_is_named() {
    let image = tempfile::tempdir().unwrap();
    fs::create_dir(image.path().join("etc")).unwrap();
    install(image.path(), "usr/lib/sysusers.d", "sysusers", "conf");
    install(image.path(), "usr/lib/tmpfiles.d", "tmpfiles", "conf");
    over(image.path(), "systemd-sysusers", &[]);
    let users = names(&image.path().join("etc/passwd"));
    let mut groups = names(&image.path().join("etc/group"));
    groups.extend(SYSTEMD_GROUPS.iter().map(|group| (*group).to_owned()));
    let mut named = 0;
    for unit in units() {
        let text = fs::read_to_string(&unit).unwrap();
        for user in between(&text, "\nUser=", '\n') {
            assert!(users.contains(user), "{}: {user}", unit.display());
            named += 1;
        }
        let lists = [between(&text, "\nGroup=", '\n'), between(&text, "\nSupplementaryGroups=", '\n')].concat();
        for group in lists.iter().flat_map(|list| list.split_whitespace()) {
            assert!(groups.contains(group), "{}: {group}", unit.display());
            named += 1;
        }
    }
    for policy in files("conf") {
        let text = fs::read_to_string(&policy).unwrap();
        for user in between(&text, "<policy user=\"", '"') {
            assert!(user == "root" || users.contains(user), "{}: {user}", policy.display());
            named += 1;
        }
        for group in between(&text, "<policy group=\"", '"') {
            assert!(groups.contains(group), "{}: {group}", policy.display());
            named += 1;
        }
    }
    assert!(named >= 12, "only {named} names were found");

    over(image.path(), "systemd-tmpfiles", &["--create"]);
    let local_time = fs::read_link(image.path().join("etc/localtime")).unwrap();
    assert_eq!(local_time, Path::new("/run/cairn/localtime"));
    let mode = fs::metadata(image.path().join("run/cairn/mqtt")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o2750, "what is written there gets the group of those who talk to the broker");
}

#[test]
fn an_image_starts_what_it_must_and_only_the_gate_marks_a_slot_good() {
    let image = tempfile::tempdir().unwrap();
    install(image.path(), "usr/lib/systemd/system", "service", "service");
    install(image.path(), "usr/lib/systemd/system-preset", "preset", "preset");
    let lib = image.path().join("usr/lib/systemd");
    // As an image has them: nothing starts that nobody names, and RAUC brings a unit that marks without a look.
    fs::write(lib.join("system-preset/99-default.preset"), "disable *\n").unwrap();
    let marks = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n";
    fs::write(lib.join("system/rauc-mark-good.service"), marks).unwrap();
    over(image.path(), "systemctl", &["enable", "rauc-mark-good.service"]);
    over(image.path(), "systemctl", &["preset-all"]);
    let mut enabled = BTreeSet::new();
    for target in fs::read_dir(image.path().join("etc/systemd/system")).unwrap() {
        let target = target.unwrap();
        for unit in fs::read_dir(target.path()).unwrap() {
            let unit = unit.unwrap().file_name().into_string().unwrap();
            enabled.insert(format!("{} {unit}", target.file_name().to_string_lossy()));
        }
    }
    let wanted = [
        "boot-complete.target.requires cairn-gate.service",
        "multi-user.target.wants cairn-gate.service",
        "multi-user.target.wants cairn-identity.service",
        "multi-user.target.wants healthd.service",
        "multi-user.target.wants npud.service",
        "multi-user.target.wants otad.service",
        "sysinit.target.wants cairn-factory-reset.service",
        "sysinit.target.wants cairn-provision.service",
    ];
    assert_eq!(enabled, wanted.map(str::to_owned).into());
}

/// Texts of 32 hexadecimal digits between quotation marks.
fn identities(source: &str) -> Vec<String> {
    let is_identity = |text: &&str| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    source.split('"').filter(is_identity).map(ToOwned::to_owned).collect()
}

#[test]
fn the_journal_explains_every_message() {
    let root = tempfile::tempdir().unwrap();
    let catalog = root.path().join("usr/lib/systemd/catalog");
    fs::create_dir_all(&catalog).unwrap();
    fs::create_dir_all(root.path().join("var/lib/systemd/catalog")).unwrap();
    for file in files("catalog") {
        fs::copy(&file, catalog.join(file.file_name().unwrap())).unwrap();
    }
    let journalctl = |arguments: &[&str]| {
        let mut command = Command::new("journalctl");
        command.arg(format!("--root={}", root.path().display())).args(arguments).output().unwrap()
    };
    assert!(journalctl(&["--update-catalog"]).status.success());
    let sources = ["src/kit/src/log.rs", "services/healthd/src/message.rs"];
    let sources = sources.map(|source| fs::read_to_string(workspace().join(source)).unwrap());
    let ids: Vec<String> = sources.iter().flat_map(|source| identities(source)).collect();
    assert!(ids.len() > 15, "{ids:?}");
    for id in ids {
        let output = journalctl(&["--dump-catalog", &id]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("Subject: "), "{id} is not explained");
    }
    assert!(!journalctl(&["--dump-catalog", &"f".repeat(32)]).status.success(), "what is unknown is not explained");
}
