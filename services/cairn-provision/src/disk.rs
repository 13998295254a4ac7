//! Files that are there as a whole or not at all.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Seek as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use tempfile::NamedTempFile;

/// The content of a file that may be missing, at most `limit` bytes and one more.
pub(crate) fn read(path: &Path, limit: usize) -> Result<Option<Vec<u8>>> {
    use std::io::Read as _;
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.with_context(|| format!("read {}", path.display()))?,
    };
    let mut content = Vec::new();
    let limit = u64::try_from(limit)?.saturating_add(1);
    file.take(limit).read_to_end(&mut content).with_context(|| format!("read {}", path.display()))?;
    Ok(Some(content))
}

/// Replaces a file, so that after a power loss it has the old or the new content.
pub(crate) fn write(path: &Path, mode: u32, content: &[u8]) -> Result<()> {
    let error = || format!("write {}", path.display());
    let folder = path.parent().with_context(error)?;
    fs::create_dir_all(folder).with_context(error)?;
    let mut file = NamedTempFile::new_in(folder).with_context(error)?;
    file.write_all(content).with_context(error)?;
    // FAT has no modes, and says so.
    match file.as_file().set_permissions(Permissions::from_mode(mode)) {
        Err(refusal) if refusal.kind() == ErrorKind::PermissionDenied => {}
        set => set.with_context(error)?,
    }
    file.as_file().sync_all().with_context(error)?;
    file.persist(path).with_context(error)?;
    sync(folder)
}

/// Replaces a file and overwrites what it was before.
pub(crate) fn scrub(path: &Path, content: &[u8]) -> Result<()> {
    let error = || format!("scrub {}", path.display());
    let mut old = OpenOptions::new().write(true).open(path).with_context(error)?;
    let bytes = old.metadata().with_context(error)?.len();
    write(path, 0o600, content)?;
    // The old blocks belong to the old file for as long as it is open.
    old.rewind().with_context(error)?;
    old.write_all(&vec![0; usize::try_from(bytes)?]).with_context(error)?;
    old.sync_all().with_context(error)
}

/// Removes a file that may be missing.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("remove {}", path.display())),
    }
}

/// Makes a folder's entries durable.
pub(crate) fn sync(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|file| file.sync_all()).with_context(|| format!("sync {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_scrubbed_is_nowhere_on_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let (path, same_blocks) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&path, "key = \"secret\"").unwrap();
        fs::hard_link(&path, &same_blocks).unwrap();
        scrub(&path, b"key = true").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"key = true");
        assert_eq!(fs::read(&same_blocks).unwrap(), [0; 14]);
    }
}
