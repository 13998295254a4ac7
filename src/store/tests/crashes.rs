//! An update that is killed at any step, or runs out of space at any step, leaves a store that serves and can try again.

#![allow(clippy::unwrap_used, reason = "functions beside the tests may unwrap as the tests themselves do")]

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::{env, fs};

use store::{Candidate, Error, Keys, Offer, Store, models};
use testkit::Signer;

/// Set for a child: where its bench is.
const BENCH: &str = "STORE_BENCH";
/// The system calls that change a file system. Opening a new file is left out: each is followed by one of these.
const CALLS: &[&str] = &[
    "write",
    "fsync",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "rmdir",
    "mkdir",
    "chmod",
    "fchmod",
    "flock",
];

/// Keys, bundles, and a store in which "1" serves and "0" is what an update removes.
fn prepare(bench: &Path) {
    let vendor = Signer::new().unwrap();
    fs::create_dir(bench.join("keys")).unwrap();
    vendor.trust(&bench.join("keys"), "vendor").unwrap();
    for version in ["0", "1", "2"] {
        let bundle = vendor.bundle(&testkit::model("mnist"), version).unwrap();
        fs::write(bench.join(version), bundle).unwrap();
    }
    update(bench, "0").unwrap();
    update(bench, "1").unwrap();
}

/// The whole way of one version.
fn update(bench: &Path, version: &str) -> store::Result<Candidate> {
    let mut store = Store::open(&bench.join("store"))?;
    let mut incoming = store.receive()?;
    for chunk in fs::read(bench.join(version)).unwrap().chunks(16 << 10) {
        incoming.write(chunk)?;
    }
    let candidate = store.add(incoming, &Keys::read(&bench.join("keys"))?, &Offer::default())?;
    store.accept(&candidate)?;
    Ok(candidate)
}

/// The version that serves, whose package must be complete.
fn serving(bench: &Path) -> String {
    let [model] = &models(&bench.join("store")).unwrap()[..] else { panic!("there is one model") };
    for file in ["model.tflite", "golden.png", "golden_scores.bin", "labels.txt"] {
        let kept = fs::read(model.folders[0].join(file)).unwrap();
        assert_eq!(kept, fs::read(testkit::model("mnist").join(file)).unwrap(), "{file}");
    }
    let version = model.current.clone().unwrap().version;
    let manifest = fs::read_to_string(model.folders[0].join("model.toml")).unwrap();
    assert!(manifest.contains(&format!("version = {version:?}")), "{manifest}");
    version
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("--archive").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

/// Starts a test of this file as a process of its own, which does one update where [`BENCH`] says.
fn child(program: &[&str], test: &str, bench: &Path) -> ExitStatus {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg(env::current_exe().unwrap()).env(BENCH, bench);
    command.args(["--exact", test, "--test-threads=1"]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() != Some(101), "{text}{}", String::from_utf8_lossy(&output.stderr));
    output.status
}

#[test]
fn an_update_that_is_killed_at_any_step() {
    if let Some(bench) = env::var_os(BENCH) {
        update(bench.as_ref(), "2").unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let original = folder.path().join("original");
    fs::create_dir(&original).unwrap();
    prepare(&original);
    let mut seen = Vec::new();
    for call in CALLS {
        for step in 1.. {
            let bench = folder.path().join(format!("{call}-{step}"));
            copy(&original, &bench);
            let (trace, inject) = (format!("trace={call}"), format!("inject={call}:signal=KILL:when={step}"));
            let strace = ["strace", "--follow-forks", "--output=/dev/null", "-e", &trace, "-e", &inject];
            if child(&strace, "an_update_that_is_killed_at_any_step", &bench).success() {
                break;
            }
            seen.push(serving(&bench));
            update(&bench, "2").unwrap();
            assert_eq!(serving(&bench), "2");
            assert_eq!(fs::read_dir(bench.join("store/incoming")).unwrap().count(), 0);
            assert_eq!(fs::read_dir(bench.join("store/packages")).unwrap().count(), 2);
            fs::remove_dir_all(bench).unwrap();
        }
    }
    let before = seen.iter().filter(|version| *version == "1").count();
    let after = seen.iter().filter(|version| *version == "2").count();
    assert_eq!(before + after, seen.len());
    // The package's eight files are written and synced before the switch; after it, those of the oldest are removed.
    assert!(before > 16 && after > 8, "killed {before} times before the switch, {after} times after it");
}

/// In a file system of its own, which is full at first.
fn updates_with_ever_more_space(bench: &Path) {
    prepare(bench);
    let filler = bench.join("filler");
    fs::write(&filler, vec![1; 1 << 20]).unwrap_err();
    let mut failures = 0;
    loop {
        let error = match update(bench, "2") {
            Ok(_) => break,
            Err(error) => error,
        };
        assert!(matches!(&error, Error::Io { source, .. } if source.kind() == ErrorKind::StorageFull), "{error:?}");
        assert!(!error.is_final());
        assert_eq!(serving(bench), "1");
        failures += 1;
        let space = fs::metadata(&filler).unwrap().len();
        fs::OpenOptions::new().write(true).open(&filler).unwrap().set_len(space.checked_sub(4096).unwrap()).unwrap();
    }
    assert_eq!(serving(bench), "2");
    // Bundle and package are some 35 KB each.
    assert!(failures > 15, "{failures}");
}

#[test]
fn an_update_that_runs_out_of_space_at_any_step() {
    if let Some(bench) = env::var_os(BENCH) {
        return updates_with_ever_more_space(bench.as_ref());
    }
    let folder = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=384k none \"$STORE_BENCH\" && exec \"$0\" \"$@\"";
    let program = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount];
    let status = child(&program, "an_update_that_runs_out_of_space_at_any_step", folder.path());
    assert!(status.success(), "{status}");
}
