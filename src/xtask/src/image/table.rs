//! What goes where in the root file system: `install.tsv`, which the recipes of the layer read as well.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use crate::step;

/// The table.
pub(crate) const FILE: &str = "yocto/meta-cairn/recipes-cairn/cairn-services/install.tsv";

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) package: String,
    /// Of the file, or of every file of the folder.
    pub(crate) mode: u32,
    /// A program of the workspace below `bin/`, else a file or folder of this repository.
    pub(crate) source: String,
    pub(crate) destination: String,
}

/// All lines.
///
/// # Errors
/// A line of another form.
pub(crate) fn read() -> Result<Vec<Entry>> {
    let text = fs::read_to_string(step::workspace().join(FILE)).with_context(|| format!("read {FILE}"))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<Entry>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| entry(line).with_context(|| format!("{FILE}: in the line {line:?}"))).collect()
}

fn entry(line: &str) -> Result<Entry> {
    let [package, mode, source, destination] = line.split('\t').collect::<Vec<_>>()[..] else {
        bail!("there are not four columns");
    };
    let mode = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777).context("the mode is none")?;
    ensure!(destination.starts_with('/') && !destination.contains("/../"), "the destination is no path of a root");
    Ok(Entry { package: package.into(), mode, source: source.into(), destination: destination.into() })
}

/// The programs of the workspace that the table installs.
pub(crate) fn programs(entries: &[Entry]) -> BTreeSet<&str> {
    entries.iter().filter_map(|entry| entry.source.strip_prefix("bin/")).collect()
}

/// Installs everything below `root`. `built`: the folder with the programs.
///
/// # Errors
/// A file that is missing or cannot be written.
pub(super) fn install(entries: &[Entry], built: &Path, machine: &str, root: &Path) -> Result<()> {
    for entry in entries {
        let source = match entry.source.strip_prefix("bin/") {
            Some(program) => built.join(program),
            None => step::workspace().join(&entry.source),
        };
        let target = root.join(entry.destination.trim_start_matches('/'));
        let error = || format!("install {} as {}", source.display(), entry.destination);
        if source.is_dir() {
            for file in source.read_dir().with_context(error)? {
                let file = file?;
                copy(&file.path(), &target.join(file.file_name()), entry.mode).with_context(error)?;
            }
        } else if entry.source.ends_with(".in") {
            let text = fs::read_to_string(&source).with_context(error)?;
            write(&target, text.replace("@MACHINE@", machine).as_bytes(), entry.mode).with_context(error)?;
        } else {
            copy(&source, &target, entry.mode).with_context(error)?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    write(to, &fs::read(from)?, mode)
}

/// Writes a file with its folders, in the place of what was there, be it a link.
fn write(file: &Path, content: &[u8], mode: u32) -> Result<()> {
    fs::create_dir_all(file.parent().context("a file lies in a folder")?)?;
    if file.is_symlink() {
        fs::remove_file(file)?;
    }
    fs::write(file, content)?;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(mode))?)
}

#[cfg(test)]
mod tests {
    use super::{Entry, install, parse, programs, read};

    #[test]
    fn the_layers_table_is_read() {
        let entries = read().unwrap();
        assert!(programs(&entries).is_superset(&["cairnctl", "healthd", "npud", "otad"].into()));
        assert!(entries.iter().any(|entry| entry.destination == "/etc/rauc/system.conf"));
    }

    #[test]
    fn a_line_of_another_form_is_refused_with_its_text() {
        for (line, words) in [
            ("a\t0644\tb", "not four columns"),
            ("a\t0648\tb\t/c", "the mode is none"),
            ("a\t77777\tb\t/c", "the mode is none"),
            ("a\t0644\tb\tc", "no path of a root"),
            ("a\t0644\tb\t/c/../../d", "no path of a root"),
        ] {
            let error = format!("{:#}", parse(line).unwrap_err());
            assert!(error.contains(words) && error.contains("in the line"), "{line}: {error}");
        }
    }

    #[test]
    fn programs_folders_and_templates_are_installed() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = std::env::temp_dir().join(format!("xtask-table-{}", std::process::id()));
        let (built, root) = (folder.join("built"), folder.join("root"));
        std::fs::create_dir_all(&built).unwrap();
        std::fs::write(built.join("npud"), "program").unwrap();
        let entry = |mode, source: &str, destination: &str| Entry {
            package: "p".into(),
            mode,
            source: source.into(),
            destination: destination.into(),
        };
        let entries = [
            entry(0o755, "bin/npud", "/usr/bin/npud"),
            entry(0o644, "services/otad/dist/rauc-system.conf.in", "/etc/rauc/system.conf"),
            entry(0o644, "tests/models/ssd-oidv4", "/usr/share/models/m"),
        ];
        install(&entries, &built, "board", &root).unwrap();
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        assert_eq!(read("usr/bin/npud"), "program");
        assert_eq!(std::fs::metadata(root.join("usr/bin/npud")).unwrap().permissions().mode() & 0o7777, 0o755);
        assert!(read("etc/rauc/system.conf").contains("compatible=cairn-board\n"));
        assert!(read("usr/share/models/m/model.toml").contains("[golden]"));
        let missing = install(&[entry(0o644, "no/such", "/x")], &built, "board", &root).unwrap_err();
        assert!(format!("{missing:#}").contains("no/such"), "{missing:#}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
