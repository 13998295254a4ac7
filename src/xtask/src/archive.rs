//! Files of Debian's archive, by path and checksum, in the user's cache.
//!
//! ```text
//! "SHA256  pool/main/…" ─▶ apt's own downloader, from the archive that this machine uses ─▶ cache ─▶ unpacked folder
//! ```
//!
//! A file is named as a checksum list names it, so `sha256sum --check` reads the same lists. The archive drops old
//! versions: what is gone is said with its name, and the way out is a newer pin.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::need;

/// Names another archive than the one that apt uses, as a URI without `pool`.
const OVERRIDE: &str = "CAIRN_DEBIAN_ARCHIVE";
/// apt's downloader, which knows the machine's proxies and checks the checksum.
const DOWNLOADER: &str = "/usr/lib/apt/apt-helper";

/// A file of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pin<'a> {
    /// In hexadecimal digits.
    sha256: &'a str,
    /// Below the archive's root: `pool/main/r/rustc/rust-src_1.95.0_all.deb`.
    path: &'a str,
}

impl<'a> Pin<'a> {
    /// Reads `SHA256  pool/…`.
    ///
    /// # Errors
    /// A line of another form.
    pub(crate) fn parse(line: &'a str) -> Result<Self> {
        let (sha256, path) = line.split_once("  ").with_context(|| format!("`{line}` is not `SHA256  pool/…`"))?;
        let is_digest = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_path = path.starts_with("pool/") && !path.split('/').any(|part| matches!(part, "" | "." | ".."));
        if !is_digest || !is_path {
            bail!("`{line}` is not `SHA256  pool/…`");
        }
        Ok(Self { sha256, path })
    }

    /// Reads a list: one file a line; empty lines and lines with `#` are left out.
    ///
    /// # Errors
    /// A line of another form.
    pub(crate) fn list(text: &'a str) -> Result<Vec<Self>> {
        text.lines()
            .map(str::trim_end)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(Self::parse)
            .collect()
    }

    /// Its file name.
    pub(crate) fn name(&self) -> &'a str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }
}

/// Brings the file into the cache, if it is not there, and says where it lies.
///
/// # Errors
/// A machine without apt, an archive that cannot be reached or no longer has the file, another checksum.
pub(crate) fn fetch(pin: &Pin<'_>) -> Result<PathBuf> {
    let folder = need::cache()?.join("archive").join(&pin.sha256[..16]);
    let file = folder.join(pin.name());
    if file.exists() {
        return Ok(file);
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let uri = format!("{}/{}", root()?, pin.path);
    println!("fetching {}", pin.name());
    let part = folder.join(format!("part-{}", std::process::id()));
    let output = Command::new(DOWNLOADER)
        .args(["-q", "-oAPT::Sandbox::User=root", "download-file", &uri])
        .arg(&part)
        .arg(format!("SHA256:{}", pin.sha256))
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{DOWNLOADER} cannot be started"))?;
    if !output.status.success() {
        let _ = std::fs::remove_file(&part);
        let said = String::from_utf8_lossy(&output.stderr);
        let gone = if said.contains("404") { "; the archive no longer has this version, pin a newer one" } else { "" };
        bail!("{} cannot be fetched{gone}: {}", pin.path, said.trim());
    }
    // Whole or not at all, also when two runs fetch the same file.
    std::fs::rename(&part, &file).with_context(|| format!("{} cannot be moved into the cache", pin.name()))?;
    Ok(file)
}

/// All packages of the list, unpacked into one folder of the cache that is made once for each content of the list.
///
/// # Errors
/// As [`fetch`], a package that cannot be unpacked.
pub(crate) fn unpacked(name: &str, packages: &[Pin<'_>]) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    for package in packages {
        package.sha256.hash(&mut hasher);
    }
    once(&need::cache()?.join("unpacked").join(format!("{name}-{:016x}", hasher.finish())), |folder| {
        for package in packages {
            let file = fetch(package)?;
            let status = Command::new("dpkg-deb").arg("--extract").arg(&file).arg(folder).status();
            if !status.context("dpkg-deb cannot be started")?.success() {
                bail!("{} cannot be unpacked", file.display());
            }
        }
        Ok(())
    })
}

/// A folder that `make` fills, whole or not at all; made only where it is not there yet.
///
/// # Errors
/// What `make` returns, a folder that cannot be made.
pub(crate) fn once(folder: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    if folder.exists() {
        return Ok(folder.to_owned());
    }
    let part = folder.with_extension(format!("part-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&part);
    std::fs::create_dir_all(&part).with_context(|| format!("{} cannot be made", part.display()))?;
    let made = make(&part);
    // Another run may have been faster; its folder is as good.
    if made.is_err() || (std::fs::rename(&part, folder).is_err() && !folder.exists()) {
        let _ = std::fs::remove_dir_all(&part);
        made?;
        bail!("{} cannot be made", folder.display());
    }
    let _ = std::fs::remove_dir_all(&part);
    Ok(folder.to_owned())
}

/// A name for a folder of the cache that changes with `content`.
pub(crate) fn key(content: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The URI of Debian's archive: the user's choice, else what apt uses here.
///
/// # Errors
/// A machine without apt, or without Debian's archive in its lists.
pub(crate) fn root() -> Result<String> {
    if let Ok(root) = std::env::var(OVERRIDE) {
        return Ok(root.trim_end_matches('/').to_owned());
    }
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(LABEL) $(SITE)", "Created-By: Packages"])
        .stdin(Stdio::null())
        .output()
        .context("apt-get cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find_map(|line| line.strip_prefix("Debian ")) {
        Some(site) => Ok(site.trim_end_matches('/').to_owned()),
        None => bail!("apt knows no archive of Debian here; run `apt-get update`, or set {OVERRIDE} to one"),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::{Pin, once};

    const DIGEST: &str = "7b76db5b880a77f9e52975d2baa6209d2f76d2c9c2789515c3088cb960e2c83b";

    #[test]
    fn a_list_is_a_checksum_list_with_comments() {
        let text = format!("# compiler\n\n{DIGEST}  pool/main/r/rustc/rust-src_1_all.deb\n");
        let pins = Pin::list(&text).unwrap();
        assert_eq!(pins, [Pin { sha256: DIGEST, path: "pool/main/r/rustc/rust-src_1_all.deb" }]);
        assert_eq!(pins[0].name(), "rust-src_1_all.deb");
    }

    #[test]
    fn a_line_of_another_form_is_refused() {
        for line in ["", "x", "abc  pool/main/a", &format!("{DIGEST}  /etc/passwd"), &format!("{DIGEST}  pool/../x")] {
            assert!(Pin::parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_folder_is_made_once_and_whole() {
        let folder = std::env::temp_dir().join(format!("xtask-once-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        assert!(
            once(&folder, |part| Ok(std::fs::write(part.join("half"), "")?).and_then(|()| bail!("broken"))).is_err()
        );
        assert!(!folder.exists());
        once(&folder, |part| Ok(std::fs::write(part.join("whole"), "")?)).unwrap();
        once(&folder, |_| bail!("made twice")).unwrap();
        assert!(folder.join("whole").exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
