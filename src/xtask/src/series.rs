//! A folder of patches: `base` says what they are for, `series` lists them in order.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::kernel::succeed;

/// One folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    /// Where it is.
    pub(crate) folder: PathBuf,
}

impl Series {
    /// A file of the folder.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn text(&self, name: &str) -> Result<String> {
        let file = self.folder.join(name);
        fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))
    }

    /// Names of the patches, in the order in which they apply.
    ///
    /// # Errors
    /// As [`Series::text`].
    pub(crate) fn patches(&self) -> Result<Vec<String>> {
        let text = self.text("series")?;
        let names = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Ok(names.map(str::to_owned).collect())
    }

    /// Makes `tree` a repository with one commit, which has the tag `base`.
    ///
    /// # Errors
    /// A git that fails.
    pub(crate) fn commit_base(tree: &Path) -> Result<()> {
        git(tree, &["init", "--quiet"])?;
        git(tree, &["add", "--all", "--force"])?;
        git(tree, &["commit", "--quiet", "--message", "base"])?;
        git(tree, &["tag", "base"])
    }

    /// Applies patches to a repository.
    ///
    /// # Errors
    /// A patch that does not apply.
    pub(crate) fn apply(&self, tree: &Path, patches: &[String]) -> Result<()> {
        for patch in patches {
            let file = self.folder.join(patch);
            // git am has no fuzz: context must match to the letter, only line numbers may differ.
            git(tree, &["am", "--quiet", &file.to_string_lossy()])
                .with_context(|| format!("{} does not apply", file.display()))?;
        }
        Ok(())
    }
}

/// git, in a repository of ours.
///
/// # Errors
/// A git that fails.
pub(crate) fn git(folder: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("git");
    command.current_dir(folder).args(["-c", "user.name=Cairn developers", "-c", "user.email=cairn@invalid"]);
    // Neither the user's settings nor a repository around this one may change what applies.
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null").env_remove("GIT_DIR");
    succeed(command.args(arguments))
}
