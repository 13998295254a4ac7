//! What the store takes, what it refuses, and what it keeps.

#![allow(clippy::unwrap_used, reason = "functions beside the tests may unwrap as the tests themselves do")]

use std::fs;
use std::path::{Path, PathBuf};

use store::{Candidate, Error, Keys, Model, Offer, Store, models};
use tempfile::TempDir;
use testkit::Signer;

/// A store, a vendor whose key is trusted, and a small package.
struct Bench {
    folder: TempDir,
    vendor: Signer,
    keys: Keys,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (vendor, trusted) = (Signer::new().unwrap(), folder.path().join("keys"));
        fs::create_dir(&trusted).unwrap();
        vendor.trust(&trusted, "vendor").unwrap();
        Self { vendor, keys: Keys::read(&trusted).unwrap(), folder }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn store(&self) -> Store {
        Store::open(&self.root()).unwrap()
    }

    fn bundle(&self, version: &str) -> Vec<u8> {
        self.vendor.bundle(&testkit::model("mnist"), version).unwrap()
    }

    fn add(&self, store: &mut Store, bundle: &[u8], offer: &Offer) -> store::Result<Candidate> {
        let mut incoming = store.receive()?;
        incoming.write(bundle)?;
        store.add(incoming, &self.keys, offer)
    }

    fn serve(&self, store: &mut Store, version: &str) -> Candidate {
        let candidate = self.add(store, &self.bundle(version), &Offer::default()).unwrap();
        store.accept(&candidate).unwrap();
        candidate
    }

    fn model(&self) -> Model {
        let [model] = &models(&self.root()).unwrap()[..] else { panic!("there is one model") };
        model.clone()
    }

    /// Names of the files in a folder of the store.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root().join(folder)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn refused(&self, bundle: &[u8]) -> String {
        let mut store = self.store();
        let error = self.add(&mut store, bundle, &Offer::default()).unwrap_err();
        assert!(error.is_final(), "{error}");
        drop(store);
        drop(self.store());
        assert!(self.names("incoming").is_empty() && self.names("packages").is_empty(), "something was left behind");
        error.to_string()
    }
}

fn versions(model: &Model) -> [Option<&str>; 3] {
    [&model.current, &model.previous, &model.candidate].map(|release| release.as_ref().map(|r| r.version.as_str()))
}

/// An archive with these files, in this order.
fn archive(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, text) in files {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(text.len() as u64);
        header.set_cksum();
        archive.append(&header, text.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

#[test]
fn a_version_serves_when_it_was_accepted_and_the_one_before_is_kept() {
    let bench = Bench::new();
    let mut store = bench.store();
    bench.serve(&mut store, "1.0.0");
    let second = bench.add(&mut store, &bench.bundle("1.1.0"), &Offer::default()).unwrap();
    assert_eq!(versions(&bench.model()), [Some("1.0.0"), None, Some("1.1.0")]);
    assert_eq!(store.candidates().unwrap(), std::slice::from_ref(&second));

    store.accept(&second).unwrap();
    let model = bench.model();
    assert_eq!(versions(&model), [Some("1.1.0"), Some("1.0.0"), None]);
    assert_eq!(model.folders[0], second.folder);
    let kept = fs::read(second.folder.join("model.tflite")).unwrap();
    assert_eq!(kept, fs::read(testkit::model("mnist").join("model.tflite")).unwrap());
}

#[test]
fn a_version_that_was_wrong_leaves_the_old_one_and_a_reason() {
    let bench = Bench::new();
    let mut store = bench.store();
    bench.serve(&mut store, "1.0.0");
    let second = bench.add(&mut store, &bench.bundle("1.1.0"), &Offer::default()).unwrap();
    store.refuse(&second, "output 0 differs").unwrap();
    let model = bench.model();
    assert_eq!(versions(&model), [Some("1.0.0"), None, None]);
    assert_eq!(model.refused.unwrap().reason, "output 0 differs");
    assert_eq!(bench.names("packages").len(), 1);
    assert!(matches!(store.accept(&second), Err(Error::Absent(_))));
}

#[test]
fn what_is_neither_current_nor_previous_is_removed() {
    let bench = Bench::new();
    let mut store = bench.store();
    for version in ["1", "2", "3", "4"] {
        bench.serve(&mut store, version);
    }
    assert_eq!(versions(&bench.model()), [Some("4"), Some("3"), None]);
    assert_eq!(bench.names("packages").len(), 2);
}

#[test]
fn the_previous_version_is_taken_back_without_its_bundle() {
    let bench = Bench::new();
    let mut store = bench.store();
    let first = bench.serve(&mut store, "1");
    bench.serve(&mut store, "2");
    let again = store.propose(&first.release.sha256, &Offer::default()).unwrap();
    store.accept(&again).unwrap();
    assert_eq!(versions(&bench.model()), [Some("1"), Some("2"), None]);
}

#[test]
fn a_bundle_that_comes_again_changes_nothing() {
    let bench = Bench::new();
    let mut store = bench.store();
    bench.serve(&mut store, "1");
    let bundle = bench.bundle("2");
    for _ in 0..2 {
        let candidate = bench.add(&mut store, &bundle, &Offer::default()).unwrap();
        store.accept(&candidate).unwrap();
    }
    assert_eq!(versions(&bench.model()), [Some("2"), Some("1"), None]);
}

#[test]
fn content_that_was_changed_is_refused() {
    let bench = Bench::new();
    let bundle = bench.bundle("1");
    for at in [bundle.len() / 2, bundle.len() - 2000] {
        let mut changed = bundle.clone();
        changed[at] ^= 1;
        assert_eq!(bench.refused(&changed), "the signature does not fit the content");
    }
    assert_eq!(bench.refused(&bundle[..bundle.len() - 1]), "the signature does not fit the content");
    let comment = String::from_utf8_lossy(&bundle).find("a test").unwrap();
    let mut changed = bundle;
    changed[comment] = b'A';
    assert_eq!(bench.refused(&changed), "the signature does not fit the content");
}

#[test]
fn a_key_that_is_not_trusted_is_refused() {
    let bench = Bench::new();
    let other = Signer::new().unwrap().bundle(&testkit::model("mnist"), "1").unwrap();
    assert_eq!(bench.refused(&other), "the signature is by none of this machine's 1 keys");
}

#[test]
fn what_is_no_bundle_is_refused_with_the_place() {
    let bench = Bench::new();
    assert_eq!(bench.refused(b""), "no model bundle: line 1 of the signature has no end");
    assert_eq!(bench.refused(b"a\nb\n"), "no model bundle: line 3 of the signature has no end");
    assert_eq!(bench.refused(b"a\n\xff\n"), "no model bundle: line 2 of the signature is not text");
    let long = vec![b'a'; 100_000];
    assert_eq!(bench.refused(&long), "no model bundle: line 1 of the signature has no end");
    assert!(bench.refused(b"a\nb\nc\nd\n").starts_with("no model bundle: signature: "));
}

#[test]
fn a_signed_archive_is_not_trusted_to_be_well_formed() {
    let bench = Bench::new();
    let refused = |archive: &[u8]| bench.refused(&bench.vendor.sign(archive).unwrap());
    let toml = ("model.toml", "name = \"a\"\nversion = \"1\"\n[golden]\n");
    assert!(refused(&archive(&[toml, ("../x", "")])).contains("\"../x\" is not the name of a file"));
    assert!(refused(&archive(&[toml, ("/x", "")])).contains("\"/x\" is not the name of a file"));
    assert!(refused(&archive(&[toml, ("a/b", "")])).contains("\"a/b\" is not the name of a file"));
    assert!(refused(&archive(&[toml, ("x/", "")])).contains("is not the name of a file"));
    assert!(refused(&archive(&[toml, toml])).contains("\"model.toml\" comes twice"));
    let many: Vec<String> = (0..300).map(|number| format!("f{number}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "")).collect();
    assert!(refused(&archive(&many)).contains("has more than 256 files"));
    let cut = archive(&[toml, ("x", &"y".repeat(5000))]);
    assert!(refused(&cut[..2600]).contains("before the end of \"x\""));

    let mut link = tar::Header::new_ustar();
    link.set_entry_type(tar::EntryType::Symlink);
    link.set_size(0);
    let mut linked = tar::Builder::new(Vec::new());
    linked.append_link(&mut link, "model.toml", "/etc/passwd").unwrap();
    assert!(refused(&linked.into_inner().unwrap()).contains("is of type Symlink, not a regular file"));
}

#[test]
fn a_package_must_say_who_it_is_and_how_to_prove_it() {
    let bench = Bench::new();
    let refused = |toml: &str| bench.refused(&bench.vendor.sign(&archive(&[("model.toml", toml)])).unwrap());
    assert!(refused("name = \"../a\"\nversion = \"1\"\n[golden]\n").contains("\"../a\" is no name"));
    assert!(refused("name = \"a\"\nversion = \"\"\n[golden]\n").contains("visible ASCII"));
    assert!(refused("name = \"a\"\nversion = \"1\"\n").contains("has no [golden] table"));
    assert!(refused("name = \"a\"\nversion = 1\n").contains("line 2, column 11"));
    assert!(bench.refused(&bench.vendor.sign(&archive(&[])).unwrap()).contains("model.toml"));
}

#[test]
fn what_was_not_offered_is_refused() {
    let bench = Bench::new();
    let mut store = bench.store();
    let bundle = bench.bundle("1.0.0");
    let offer =
        |name: &str, version: &str| Offer { name: Some(name.into()), version: Some(version.into()), sha256: None };
    let mut check = |offer: Offer, wanted: &str| {
        let error = bench.add(&mut store, &bundle, &offer).unwrap_err();
        assert!(matches!(error, Error::Offer { what, .. } if what == wanted), "{error}");
    };
    check(offer("other", "1.0.0"), "name");
    check(offer("mnist", "1.0.1"), "version");
    check(Offer { sha256: Some("0".repeat(64)), ..Offer::default() }, "SHA-256");
    assert!(models(&bench.root()).unwrap().is_empty());
}

#[test]
fn two_processes_do_not_write_at_the_same_time() {
    let bench = Bench::new();
    let store = bench.store();
    assert!(matches!(Store::open(&bench.root()), Err(Error::Busy { .. })));
    drop(store);
    bench.store();
}

#[test]
fn a_damaged_record_is_reported_and_repaired_by_adding_again() {
    let bench = Bench::new();
    let mut store = bench.store();
    bench.serve(&mut store, "1");
    drop(store);
    fs::write(bench.root().join("models/mnist.toml"), "[current]\nversion = \"1\"\nsha256 = \"../x\"\n").unwrap();
    assert!(matches!(models(&bench.root()), Err(Error::Record { .. })));
    let mut store = bench.store();
    assert_eq!(bench.names("packages").len(), 1, "nothing is removed while it is not known what is needed");
    bench.serve(&mut store, "2");
    assert_eq!(versions(&bench.model()), [Some("2"), None, None]);
    assert_eq!(bench.names("packages").len(), 1);
}

#[test]
fn a_machine_without_a_store_has_no_models() {
    assert!(models(Path::new("/nowhere")).unwrap().is_empty());
}

#[test]
fn a_key_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("bad.pub"), "comment\nnonsense\n").unwrap();
    assert!(matches!(Keys::read(folder.path()), Err(Error::Key { path }) if path.ends_with("bad.pub")));
}
