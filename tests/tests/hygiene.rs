//! What a repository must not contain, and what each crate must.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What may lie at the top, beside dot files that tools insist on.
const TOP: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "clippy.toml",
    "fuzz",
    "kernel-patches",
    "mesa-patches",
    "overlays",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "services",
    "src",
    "tests",
    "yocto",
];
/// Paths that exist on one person's machine only. Written in two parts, so that this file does not contain them.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/tm", "p/")];
/// Hosts of package registries and mirrors, in two parts.
const REGISTRIES: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("npmjs", ".org"),
    concat!("deb.debian", ".org"),
    concat!("docker", ".io"),
    concat!("huggingface", ".co"),
];
/// What a merge leaves behind, in two parts.
const MERGE_MARKERS: &[&str] = &[concat!("<<<<", "<<< "), concat!(">>>>", ">>> ")];
/// Files whose content a tool writes.
const GENERATED: &[&str] =
    &["Cargo.lock", "fuzz/Cargo.lock", "yocto/meta-cairn/recipes-cairn/cairn-services/cairn-services-crates.inc"];
/// The largest file; the bundled detector is just below.
const LARGEST_BYTES: u64 = 6 << 20;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Every file of the repository that git does not ignore, relative to its top.
fn files() -> Vec<PathBuf> {
    let mut command = Command::new("git");
    command.current_dir(root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = command.output().expect("git can be started");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).expect("every file's name is UTF-8");
    let files: Vec<PathBuf> = names.split_terminator('\0').map(PathBuf::from).collect();
    assert!(!files.is_empty(), "git lists no file");
    files.into_iter().filter(|file| root().join(file).is_file()).collect()
}

/// The text files and their content.
fn texts() -> impl Iterator<Item = (PathBuf, String)> {
    files()
        .into_iter()
        .filter(|file| !GENERATED.iter().any(|generated| file == Path::new(generated)))
        .filter_map(|file| std::fs::read_to_string(root().join(&file)).ok().map(|text| (file, text)))
}

/// The lines of `text` that contain one of `words`, as `line number: word`.
fn lines_with(text: &str, words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for word in words.iter().filter(|word| line.contains(**word)) {
            found.push(format!("{}: {word}", index + 1));
        }
    }
    found
}

/// Fails where a text file contains one of `words`.
fn check_absent(words: &[&str]) {
    let mut found = Vec::new();
    for (file, text) in texts() {
        found.extend(lines_with(&text, words).into_iter().map(|line| format!("{}:{line}", file.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn words_are_found_with_their_lines() {
    assert_eq!(lines_with("a\nb c\nd", &["c", "d"]), ["2: c", "3: d"]);
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    check_absent(MACHINE_PATHS);
}

#[test]
fn no_file_names_a_registry_host() {
    check_absent(REGISTRIES);
}

#[test]
fn no_file_has_merge_markers() {
    check_absent(MERGE_MARKERS);
}

#[test]
fn nothing_lies_at_the_top_but_what_the_architecture_names() {
    for file in files() {
        let top = file.iter().next().expect("a file has a name").to_string_lossy().into_owned();
        assert!(top.starts_with('.') || TOP.contains(&top.as_str()), "{top} does not belong at the top");
    }
}

#[test]
fn no_file_is_larger_than_the_bundled_detector() {
    for file in files() {
        let bytes = std::fs::metadata(root().join(&file)).expect("a listed file exists").len();
        assert!(bytes <= LARGEST_BYTES, "{} has {bytes} bytes", file.display());
    }
}

#[test]
fn every_rust_file_opens_with_its_purpose() {
    let mut without = Vec::new();
    for (file, text) in texts().filter(|(file, _)| file.extension().is_some_and(|extension| extension == "rs")) {
        let first = text.lines().find(|line| !line.trim().is_empty() && !line.starts_with("#!["));
        if !first.is_some_and(|line| line.starts_with("//! ")) {
            without.push(file);
        }
    }
    assert!(without.is_empty(), "these do not open with //!: {without:?}");
}

/// The targets of `[text](target)` in Markdown that are files of the repository.
fn links(markdown: &str) -> Vec<&str> {
    let targets = markdown.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let files = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    files.map(|target| target.split('#').next().unwrap_or(target)).collect()
}

#[test]
fn links_are_found_in_markdown() {
    let text = "[a](b.md) and [c](https://example.org) or [d](e/f.md#part) and [g](#here)";
    assert_eq!(links(text), ["b.md", "e/f.md"]);
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    for (file, text) in texts().filter(|(file, _)| file.extension().is_some_and(|extension| extension == "md")) {
        let folder = root().join(&file);
        let folder = folder.parent().expect("a file lies in a folder");
        for target in links(&text) {
            assert!(folder.join(target).exists(), "{} links to {target}, which does not exist", file.display());
        }
    }
}
