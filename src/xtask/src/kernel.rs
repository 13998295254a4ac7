//! The lines of the kernel that we carry patches for: a base tree each, and our series on top.
//!
//! ```text
//! kernel-patches/LINE/base ─▶ archive ─▶ base tree, reduced to what patches, checks and builds read
//! kernel-patches/LINE/series ─▶ git am, no fuzz ─▶ what the patches touch, patched
//! ```

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::archive::{self, Pin};
use crate::need;
use crate::series::{Series, git};
use crate::step;

/// Where the lines are.
pub(crate) const FOLDER: &str = "kernel-patches";
/// The NPU's driver in the tree.
pub(crate) const ROCKET: &str = "drivers/accel/rocket";
/// Its interface to user space.
pub(crate) const UAPI: &str = "include/uapi/drm/rocket_accel.h";

/// What is unpacked of a base tree: folders and files at their place …
const PARTS: &[&str] = &[
    "COPYING",
    "CREDITS",
    "Documentation/accel",
    "Documentation/process",
    "Kbuild",
    "Kconfig",
    "MAINTAINERS",
    "Makefile",
    "README",
    "arch/arm64",
    "arch/x86/entry/syscalls",
    "drivers/accel",
    "drivers/gpu/drm/*.[ch]",
    "drivers/iommu",
    "include",
    "kernel",
    "lib",
    "scripts",
    "tools/docs",
    "tools/include",
    "tools/lib",
];
/// … and files of these names anywhere.
const ANYWHERE: &[&str] = &["*/Kconfig*", "*/Makefile", "*/Documentation/devicetree/bindings/npu/*"];

/// What applies patches; they are applied anew when this changes.
const CODE: &str = include_str!("kernel.rs");
/// Patches that apply without an earlier one, and do not compile.
const BUILD_ON: &[(u32, u32)] = &[(1017, 1016)];

/// One line: a kernel version with patches of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// `7.3`; the name of its folder.
    pub(crate) name: String,
    /// The number of a patch that is left out.
    without: Option<u32>,
}

impl Line {
    /// The line of this name.
    pub(crate) fn named(name: &str) -> Self {
        Self { name: name.into(), without: None }
    }

    /// This line without the patch of this number.
    ///
    /// # Errors
    /// A series that cannot be read, or without such a patch.
    pub(crate) fn without(&self, number: u32) -> Result<Self> {
        if !self.series()?.iter().any(|patch| self::number(patch) == Some(number)) {
            bail!("there is no patch {number:04} for {}", self.name);
        }
        Ok(Self { without: Some(number), ..self.clone() })
    }

    /// All of them: the folders that have a file `base`.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub(crate) fn all() -> Result<Vec<Self>> {
        let mut lines = Vec::new();
        let folder = step::workspace().join(FOLDER);
        for entry in folder.read_dir().with_context(|| format!("{} cannot be read", folder.display()))? {
            let entry = entry?;
            if entry.path().join("base").is_file() {
                lines.push(Self::named(&entry.file_name().to_string_lossy()));
            }
        }
        lines.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(lines)
    }

    /// Where its patches are.
    pub(crate) fn folder(&self) -> PathBuf {
        step::workspace().join(FOLDER).join(&self.name)
    }

    /// Its patches.
    fn patches(&self) -> Series {
        Series { folder: self.folder() }
    }

    /// A file of its folder.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn text(&self, name: &str) -> Result<String> {
        self.patches().text(name)
    }

    /// Names of its patches, in the order in which they apply.
    ///
    /// # Errors
    /// As [`Line::text`].
    pub(crate) fn series(&self) -> Result<Vec<String>> {
        self.patches().patches()
    }

    /// Changes whenever the base or a patch does, or how they are applied.
    ///
    /// # Errors
    /// As [`Line::text`].
    pub(crate) fn key(&self) -> Result<String> {
        let mut hasher = DefaultHasher::new();
        (CODE, self.text("base")?, PARTS, ANYWHERE, self.without).hash(&mut hasher);
        for patch in self.series()? {
            self.text(&patch)?.hash(&mut hasher);
        }
        Ok(format!("{}-{:016x}", self.name, hasher.finish()))
    }

    /// The base tree in the cache, reduced to what we read of it.
    ///
    /// # Errors
    /// A base that cannot be fetched or unpacked.
    pub(crate) fn base_tree(&self) -> Result<PathBuf> {
        let text = self.text("base")?;
        let pins = Pin::list(&text)?;
        let [base] = pins.as_slice() else { bail!("{}/base names {} files instead of one", self.name, pins.len()) };
        let mut hasher = DefaultHasher::new();
        (&text, PARTS, ANYWHERE).hash(&mut hasher);
        let folder = need::cache()?.join("linux").join(format!("{}-{:016x}", self.name, hasher.finish()));
        archive::once(&folder, |folder| {
            println!("unpacking {}", base.name());
            unpack(&archive::fetch(base)?, folder)
        })
    }

    /// The NPU's driver and every other file that the patches touch, patched, in the cache.
    ///
    /// # Errors
    /// As [`Line::base_tree`], a patch that does not apply.
    pub(crate) fn patched_tree(&self) -> Result<PathBuf> {
        let base = self.base_tree()?;
        archive::once(&need::cache()?.join("linux-patched").join(self.key()?), |folder| {
            let mut files = vec![ROCKET.to_owned(), UAPI.to_owned()];
            for patch in self.series()? {
                files.extend(touched(&self.text(&patch)?).map(str::to_owned));
            }
            files.sort();
            files.dedup();
            copy(&base, &files, folder)?;
            Series::commit_base(folder)?;
            self.patches().apply(folder, &self.series()?)?;
            if let Some(without) = self.without {
                self.leave_out(folder, without)?;
            }
            Ok(fs::remove_dir_all(folder.join(".git"))?)
        })
    }

    /// Applies the series anew without a patch, and without those that do not apply without it. A merge of three needs what
    /// the whole series has left in the repository.
    fn leave_out(&self, folder: &Path, without: u32) -> Result<()> {
        git(folder, &["reset", "--quiet", "--hard", "base"])?;
        for patch in self.series()?.iter().filter(|patch| number(patch) != Some(without)) {
            let builds_on = BUILD_ON.iter().any(|pair| number(patch).map(|number| (number, without)) == Some(*pair));
            let file = self.folder().join(patch);
            if !builds_on && git(folder, &["am", "--quiet", "--3way", &file.to_string_lossy()]).is_ok() {
                continue;
            }
            println!("{} without {without:04}: {patch} is left out as well", self.name);
            if !builds_on {
                git(folder, &["am", "--abort"])?;
            }
        }
        Ok(())
    }
}

/// The number that a patch's name begins with.
pub(crate) fn number(patch: &str) -> Option<u32> {
    patch.split('-').next()?.parse().ok()
}

/// The files that a patch changes and that were there before.
fn touched(patch: &str) -> impl Iterator<Item = &str> {
    patch.lines().filter_map(|line| line.strip_prefix("--- a/"))
}

/// Unpacks what we read of a source archive: Debian's package of a kernel source, or the archive itself.
fn unpack(file: &Path, folder: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--xz", "--strip-components=1", "--wildcards", "--no-wildcards-match-slash"]);
    tar.arg("--directory").arg(folder).arg("--file");
    if file.extension().is_none_or(|extension| extension != "deb") {
        return succeed(select(tar.arg(file)));
    }
    let mut package = Command::new("dpkg-deb").arg("--fsys-tarfile").arg(file).stdout(Stdio::piped()).spawn()?;
    let mut inner = Command::new("tar")
        .args(["--extract", "--to-stdout", "--wildcards", "./usr/src/*.tar.xz"])
        .stdin(output_of(&mut package))
        .stdout(Stdio::piped())
        .spawn()?;
    let unpacked = succeed(select(tar.arg("-").stdin(output_of(&mut inner))));
    let (inner, package) = (inner.wait()?, package.wait()?);
    if unpacked.is_ok() && !(inner.success() && package.success()) {
        bail!("{} cannot be read: {package}, {inner}", file.display());
    }
    unpacked
}

fn output_of(child: &mut std::process::Child) -> Stdio {
    // PANIC: both callers ask for the pipe, and take it once.
    child.stdout.take().expect("standard output is piped").into()
}

/// Adds the names of what is wanted.
fn select(tar: &mut Command) -> &mut Command {
    tar.args(PARTS.iter().map(|part| format!("linux-*/{part}"))).arg("--wildcards-match-slash").args(ANYWHERE)
}

/// Copies files and folders from one tree into another.
fn copy(from: &Path, names: &[String], to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    command.current_dir(from).args(["--recursive", "--parents", "--target-directory"]).arg(to).args(names);
    succeed(&mut command)
}

/// Runs a command that must succeed; what it prints is part of the error.
///
/// # Errors
/// A command that cannot be started, or that fails.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    printed(command).map(drop)
}

/// As [`succeed`]; returns both its outputs.
///
/// # Errors
/// As [`succeed`].
pub(crate) fn printed(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    // A child that is fed by another one has its input already.
    let output = command.output().with_context(|| format!("{name} cannot be started"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{name} ended with {}: {}", output.status, text.trim());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::touched;

    #[test]
    fn a_new_file_is_not_looked_for_in_the_base() {
        let patch = "diff --git a/b b/b\n--- a/b\n+++ b/b\n--- /dev/null\n+++ b/c\n";
        assert_eq!(touched(patch).collect::<Vec<_>>(), ["b"]);
    }
}
