//! The stand-in root: Debian's packages in the place of OpenEmbedded's, and ours as the recipes install it.
//!
//! ```text
//! mmdebstrap (extract) ─▶ base, once in the cache ─┐
//! workspace ─▶ aarch64 programs ───────────────────┼─▶ root of a version
//! install.tsv, cairn-passwd, cairn-group ──────────┤
//! Debian's modules, our rocket.ko ─────────────────┘
//! ```
//! No program of a package runs while it is made: what maintainers' scripts would do for an appliance is a few lines here.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::modules::Modules;
use super::{EPOCH, table};
use crate::archive::{self, Pin};
use crate::cross::{self, Linking};
use crate::kernel::{printed, succeed};
use crate::need;
use crate::step;

/// Debian's release.
const RELEASE: &str = "trixie";
/// What the image has of other people's programs, by Debian's names.
const PACKAGES: &[&str] = &[
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "dash",
    "dbus",
    "dmsetup",
    "dosfstools",
    "e2fsprogs",
    "grep",
    "kmod",
    "libcurl3t64-gnutls",
    "libfdisk1",
    "libglib2.0-0t64",
    "libjson-glib-1.0-0",
    "libssl3t64",
    "libubootenv-tool",
    "mount",
    "netbase",
    "polkitd",
    "sed",
    "smartmontools",
    "systemd",
    "systemd-repart",
    "systemd-sysv",
    "tzdata",
    "udev",
    "util-linux",
];
/// RAUC as the layer has it, and what it is linked with: the release's own misreads dm-verity of newer kernels.
const NEWER: &str = "\
ab5228038206094ce8103a1b5cea63913a44c10e97fdad4fae335ce99bfa6910  pool/main/r/rauc/rauc_1.15.2-1_arm64.deb
e710e351d97d4585df7b0ef64f2b49cc987c8e67587fda1ea5caa702feca353f  pool/main/r/rauc/rauc-service_1.15.2-1_all.deb
325179125aded39bed3732cfd02b6949db1058354ba8ab6762fdd320788f08eb  pool/main/libn/libnl3/libnl-3-200_3.12.0-2+b1_arm64.deb
c6cdfd92029b1964482adcb37f542f18d15a3bcc5072185a1ce5c28e46849749  pool/main/libn/libnl3/libnl-genl-3-200_3.12.0-2+b1_arm64.deb
";
/// Writes what was unpacked, with its kilobytes; nothing is installed, so dpkg does not know.
const LIST: &str = r#"export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
apt-get --simulate install NAMES | sed -n 's/^Inst \([^ ]*\).*/\1/p' | xargs apt-cache show --no-all-versions |
    sed -n 's/^Package: //p; s/^Installed-Size: //p' | paste -d ' ' - - > "$1/var/packages""#;
/// What nobody reads on an appliance, and what OpenEmbedded builds without: nothing can be written into `/etc`.
const DROPPED: &[&str] = &[
    "usr/lib/systemd/system/ldconfig.service",
    "usr/lib/systemd/system/sysinit.target.wants/ldconfig.service",
    "usr/share/bash-completion",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/zsh",
];
/// Packages of the table that the stand-in is without: there is no GPU in the virtual board.
const LEFT_OUT: &[&str] = &["cairn-gpud"];
/// Users and groups whose numbers never change.
const USERS: &[(&str, &str)] =
    &[("passwd", "yocto/meta-cairn/files/cairn-passwd"), ("group", "yocto/meta-cairn/files/cairn-group")];

/// What all versions have in common, in the cache.
///
/// # Errors
/// No root, no archive.
pub(super) fn base() -> Result<PathBuf> {
    archive::once(&folder()?, |folder| {
        println!("unpacking Debian 13 for arm64 in the cache: 200 MB, a minute");
        let mut install = Command::new("mmdebstrap");
        install.args(["--quiet", "--mode=root", "--variant=extract", "--architectures=arm64", "--skip=check/qemu"]);
        install.args(["--aptopt=APT::Install-Recommends \"false\""]).arg(format!("--include={}", PACKAGES.join(",")));
        install.arg(format!("--extract-hook={}", LIST.replace("NAMES", &PACKAGES.join(" "))));
        succeed(install.arg(RELEASE).arg(folder).arg(format!("deb {} {RELEASE} main", archive::root()?)))?;
        for package in Pin::list(NEWER)? {
            let file = archive::fetch(&package)?;
            succeed(Command::new("dpkg-deb").arg("--extract").arg(file).arg(folder))?;
        }
        Ok(())
    })
}

/// Whether that has been made.
///
/// # Errors
/// No place for a cache.
pub(super) fn is_here() -> Result<bool> {
    Ok(folder()?.exists())
}

fn folder() -> Result<PathBuf> {
    let key = archive::key(&(RELEASE, PACKAGES, NEWER, LIST));
    Ok(need::cache()?.join("image-base").join(format!("{RELEASE}-{key}")))
}

/// The lines of the table that the stand-in installs.
fn entries() -> Result<Vec<table::Entry>> {
    let mut entries = table::read()?;
    entries.retain(|entry| !LEFT_OUT.contains(&entry.package.as_str()));
    Ok(entries)
}

/// The workspace's programs of the table, without their symbols, as the recipe's packages have them.
///
/// # Errors
/// A build that fails.
pub(super) fn programs(folder: &Path) -> Result<()> {
    let entries = entries()?;
    let names = table::programs(&entries);
    let arguments: Vec<&str> = names.iter().flat_map(|name| ["--package", *name]).collect();
    let built = cross::build(Linking::Dynamic, &arguments)?;
    fs::create_dir_all(folder)?;
    names.iter().try_for_each(|name| {
        succeed(Command::new("aarch64-linux-gnu-strip").arg("-o").arg(folder.join(name)).arg(built.join(name)))
    })
}

/// Makes the root of a version in a new folder.
///
/// # Errors
/// A tool that fails, a file that is missing.
pub(super) fn make(base: &Path, modules: &Modules, programs: &Path, version: &str, root: &Path) -> Result<()> {
    succeed(Command::new("cp").arg("--archive").arg(base).arg(root))?;
    succeed(Command::new("rm").arg("--recursive").arg("--force").current_dir(root).args(DROPPED))?;
    // The data partition is there.
    fs::remove_dir_all(root.join("var"))?;
    fs::create_dir(root.join("var"))?;
    modules.install(root)?;
    table::install(&entries()?, programs, super::MACHINE, root)?;
    users(root)?;
    links(root)?;
    release(version, root)?;
    // As OpenEmbedded's systemd: what no preset names is not enabled.
    fs::write(root.join("usr/lib/systemd/system-preset/99-default.preset"), "disable *\n")?;
    succeed(Command::new("systemctl").arg("--root").arg(root).arg("preset-all"))
}

/// The users of Debian's packages and ours, ours with their numbers.
fn users(root: &Path) -> Result<()> {
    for (name, ours) in USERS {
        let master = root.join(format!("usr/share/base-passwd/{name}.master"));
        let mut text = fs::read_to_string(&master).with_context(|| format!("read {}", master.display()))?;
        let ours = fs::read_to_string(step::workspace().join(ours)).with_context(|| format!("read {ours}"))?;
        text.extend(ours.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")));
        fs::write(root.join("etc").join(name), text)?;
    }
    sysusers(root)?;
    // What was there before is kept beside it by name.
    for entry in root.join("etc").read_dir()? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with('-') {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Has systemd-sysusers read what the packages bring. This machine's may be older than they are: it does not know users
/// that are locked by an exclamation mark, and nobody logs in with a password.
fn sysusers(root: &Path) -> Result<()> {
    let mut files = Vec::new();
    for entry in root.join("usr/lib/sysusers.d").read_dir()? {
        files.push(entry?.path());
    }
    files.sort();
    let mut text = String::new();
    for file in files {
        text += &fs::read_to_string(&file)?;
        text += "\n";
    }
    let mut command = Command::new("systemd-sysusers");
    command.env("SOURCE_DATE_EPOCH", EPOCH).arg("--root").arg(root).arg("-").stdin(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().context("systemd-sysusers cannot be started")?;
    // PANIC: the line above asked for the pipe.
    child.stdin.take().expect("standard input is piped").write_all(text.replace("\nu! ", "\nu ").as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "systemd-sysusers: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// What the image's recipe makes of the root, and OpenEmbedded of one that cannot be written.
fn links(root: &Path) -> Result<()> {
    fs::create_dir(root.join("config"))?;
    let links =
        [("etc/localtime", "/run/cairn/localtime"), ("etc/resolv.conf", "/run/systemd/resolve/stub-resolv.conf")];
    for (link, target) in links {
        let _ = fs::remove_file(root.join(link));
        std::os::unix::fs::symlink(target, root.join(link))?;
    }
    fs::write(root.join("etc/hostname"), format!("{}\n", super::MACHINE))?;
    // The service manager mounts one over it.
    Ok(fs::write(root.join("etc/machine-id"), "")?)
}

/// What OpenEmbedded says in os-release.
fn release(version: &str, root: &Path) -> Result<()> {
    let text = format!(
        "ID=cairn\nNAME=\"Cairn\"\nVERSION=\"{version}\"\nVERSION_ID={version}\nPRETTY_NAME=\"Cairn {version}\"\n"
    );
    let _ = fs::remove_file(root.join("etc/os-release"));
    std::os::unix::fs::symlink("../usr/lib/os-release", root.join("etc/os-release"))?;
    Ok(fs::write(root.join("usr/lib/os-release"), text)?)
}

/// Kilobytes of each part of a root, the largest first: Debian's packages as their archive says, and ours by their files.
///
/// # Errors
/// A list of packages that cannot be read.
pub(super) fn sizes(base: &Path, root: &Path) -> Result<Vec<(String, u64)>> {
    let list = fs::read_to_string(base.join("var/packages")).context("the list of packages")?;
    let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
    for line in list.lines() {
        let (package, size) = line.split_once(' ').with_context(|| format!("the list of packages has {line:?}"))?;
        sizes.insert(package.into(), size.parse().with_context(|| format!("the size of {package}"))?);
    }
    for entry in entries()? {
        *sizes.entry(entry.package).or_default() += kilobytes(&root.join(entry.destination.trim_start_matches('/')))?;
    }
    sizes.insert("modules".into(), kilobytes(&root.join("usr/lib/modules"))?);
    let mut sizes: Vec<_> = sizes.into_iter().collect();
    sizes.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    Ok(sizes)
}

fn kilobytes(path: &Path) -> Result<u64> {
    let text = printed(Command::new("du").args(["--summarize", "--block-size=1024"]).arg(path))?;
    text.split('\t').next().unwrap_or_default().parse().with_context(|| format!("du says {text:?}"))
}
