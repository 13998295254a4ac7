//! Who may import whom: the table of the architecture, held against what the manifests say.

use std::path::Path;
use std::process::Command;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// A library crate, and what it may import of ours.
const TABLE: &[(&str, &[&str])] = &[
    ("npu-regs", &[]),
    ("npu-device", &[]),
    ("npu-sim", &["npu-regs", "npu-device"]),
    ("npu", &["npu-regs", "npu-device"]),
    ("npu-shim", &["npu-sim", "npu-device", "npu-regs"]),
    ("gpu", &[]),
    ("model", &[]),
    ("engine", &["npu", "gpu", "model", "npu-device"]),
    ("delegate", &["engine", "model", "npu-device"]),
    ("api", &[]),
    ("kit", &["api"]),
    ("store", &[]),
    ("provision", &[]),
    ("serve", &["api", "engine", "kit"]),
    ("testkit", &["api"]),
    ("xtask", &["npu-regs"]),
];
/// What a crate may import for its own tests, beside its row of the table.
const FOR_TESTS: &[&str] = &["testkit"];
/// What no program of the appliance may import.
const NEVER_IN_A_SERVICE: &[&str] = &["testkit", "xtask", "npu-shim", "delegate"];
/// The only crates with `unsafe`: the kernel's interface, the Vulkan calls, the preload shim, TFLite's interface.
const UNSAFE: &[&str] = &["npu-device", "gpu", "npu-shim", "delegate"];

/// A package of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Library,
    Service,
    /// The package of tests that need more than one crate.
    Tests,
}

/// One import of a crate of ours.
#[derive(Clone, Copy, Debug)]
struct Import<'a> {
    from: &'a str,
    place: Place,
    to: &'a str,
    kind: DependencyKind,
    optional: bool,
}

/// What is wrong with the import, if anything.
fn fault(import: Import<'_>) -> Option<String> {
    let Import { from, to, .. } = import;
    if import.place == Place::Tests {
        return None;
    }
    if import.kind == DependencyKind::Development && FOR_TESTS.contains(&to) {
        return None;
    }
    if import.place == Place::Service {
        return service_fault(import);
    }
    let Some((_, allowed)) = TABLE.iter().find(|(name, _)| *name == from) else {
        return Some(format!("{from} has no row in the table"));
    };
    (!allowed.contains(&to)).then(|| format!("{from} imports {to}, it may import {allowed:?}"))
}

/// A service imports libraries as it needs them, but no other service, and the simulator only as an option.
fn service_fault(import: Import<'_>) -> Option<String> {
    let Import { from, to, .. } = import;
    if !TABLE.iter().any(|(name, _)| *name == to) {
        return Some(format!("{from} imports {to}, which is not a library of ours"));
    }
    if NEVER_IN_A_SERVICE.contains(&to) {
        return Some(format!("{from} imports {to}, which no service may"));
    }
    (to == "npu-sim" && !import.optional).then(|| format!("{from} imports the simulator unconditionally"))
}

fn workspace() -> Metadata {
    MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec().expect("cargo reads the workspace")
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn place(package: &Package, workspace: &Metadata) -> Place {
    let folder = package.manifest_path.strip_prefix(&workspace.workspace_root).expect("a member lies in the workspace");
    if folder.starts_with("services") {
        return Place::Service;
    }
    if folder.starts_with("tests") { Place::Tests } else { Place::Library }
}

#[test]
fn every_import_is_in_the_table() {
    let workspace = workspace();
    let mut faults = Vec::new();
    let mut imports = 0;
    for package in &workspace.packages {
        let place = place(package, &workspace);
        for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
            imports += 1;
            let (from, to) = (package.name.as_str(), dependency.name.as_str());
            let import = Import { from, place, to, kind: dependency.kind, optional: dependency.optional };
            faults.extend(fault(import));
        }
    }
    assert!(imports > 0, "no crate imports another: cargo's answer was misread");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_library_has_a_row_in_the_table() {
    let workspace = workspace();
    for package in workspace.packages.iter().filter(|package| place(package, &workspace) == Place::Library) {
        assert!(TABLE.iter().any(|(name, _)| *name == package.name.as_str()), "{} has no row", package.name);
    }
}

#[test]
fn forbidden_imports_are_found() {
    let normal = |from, place, to| Import { from, place, to, kind: DependencyKind::Normal, optional: false };
    for import in [
        normal("npu", Place::Library, "npu-sim"),
        normal("npu-sim", Place::Library, "npu"),
        normal("engine", Place::Library, "api"),
        normal("engine", Place::Library, "testkit"),
        normal("new-crate", Place::Library, "npu"),
        normal("npud", Place::Service, "npu-sim"),
        normal("npud", Place::Service, "testkit"),
        normal("cairnctl", Place::Service, "npud"),
        Import { kind: DependencyKind::Development, ..normal("npu", Place::Library, "npu-sim") },
    ] {
        assert!(fault(import).is_some(), "{import:?} was allowed");
    }
}

#[test]
fn allowed_imports_are_let_through() {
    let normal = |from, place, to| Import { from, place, to, kind: DependencyKind::Normal, optional: false };
    for import in [
        normal("npu", Place::Library, "npu-regs"),
        normal("npud", Place::Service, "serve"),
        normal("tests", Place::Tests, "npu-sim"),
        Import { optional: true, ..normal("npud", Place::Service, "npu-sim") },
        Import { kind: DependencyKind::Development, ..normal("engine", Place::Library, "testkit") },
    ] {
        assert_eq!(fault(import), None, "{import:?}");
    }
}

/// The crates that `npud` is made of, by name.
fn crates_of_npud(features: &[&str]) -> Vec<String> {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root()).args(["tree", "--package", "npud", "--edges", "normal", "--prefix", "none"]);
    command.args(["--format", "{p}"]);
    let output = command.args(features).output().expect("cargo can be started");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo prints UTF-8");
    text.lines().filter_map(|line| line.split_whitespace().next()).map(String::from).collect()
}

#[test]
fn npud_is_built_without_the_simulator_unless_asked() {
    let plain = crates_of_npud(&[]);
    assert!(plain.iter().any(|name| name == "engine"), "{plain:?}");
    assert!(!plain.iter().any(|name| name == "npu-sim"), "the image's npud would contain the simulator");
    let asked = crates_of_npud(&["--features", "simulator"]);
    assert!(asked.iter().any(|name| name == "npu-sim"), "{asked:?}");
}

#[test]
fn unsafe_code_is_forbidden_where_it_is_not_needed() {
    let mut lacking = Vec::new();
    let workspace = workspace();
    for package in workspace.packages.iter().filter(|package| !UNSAFE.contains(&package.name.as_str())) {
        for target in package.targets.iter().filter(|target| target.is_lib() || target.is_bin()) {
            let text = std::fs::read_to_string(&target.src_path).expect("a target's source can be read");
            if !text.contains("#![forbid(unsafe_code)]") {
                lacking.push(target.src_path.as_str());
            }
        }
    }
    assert!(lacking.is_empty(), "without #![forbid(unsafe_code)]: {lacking:?}");
}
