//! A Debian 13 in a folder of the cache: Mesa 25.0.7 builds there, and ggml's Vulkan backend of its backports runs there.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::archive;
use crate::kernel;
use crate::need::{self, MMDEBSTRAP, MOUNTS};

/// What Mesa is built with, and shaders are compiled with.
const PACKAGES: &[&str] = &[
    "bison",
    "build-essential",
    "ca-certificates",
    "cmake",
    "flex",
    "git",
    "glslang-tools",
    "glslc",
    "libclang-19-dev",
    "libclang-cpp19-dev",
    "libclc-19",
    "libclc-19-dev",
    "libdrm-dev",
    "libelf-dev",
    "libexpat1-dev",
    "libllvmspirvlib-19-dev",
    "libudev-dev",
    "libvulkan-dev",
    "libvulkan1",
    "libzstd-dev",
    "llvm-19-dev",
    "meson",
    "ninja-build",
    "patch",
    "pkg-config",
    "python3-mako",
    "python3-packaging",
    "python3-yaml",
    "spirv-headers",
    "spirv-tools",
    "vulkan-tools",
    "zlib1g-dev",
];
/// What comes from the backports: newer than the release, or not in it.
const BACKPORTS: &[&str] = &["libggml-dev", "libggml0", "libggml0-backend-vulkan", "mesa-vulkan-drivers"];

/// A command line for its shell, with this repository as `/workspace` and the cache as `/cache`.
///
/// # Errors
/// No root, no archive.
pub(crate) fn command(line: &str) -> Result<Command> {
    let root = root()?;
    let cache = need::cache()?;
    std::fs::create_dir_all(&cache)?;
    let mut command = Command::new("unshare");
    // What is mounted goes away with the last process.
    command.args(["--mount", "--propagation", "private", "sh", "-e", "-c"]).arg(
        "mount --rbind /dev \"$1/dev\"; mount -t proc proc \"$1/proc\"
        mkdir -p \"$1/cache\" \"$1/workspace\"
        mount --bind \"$2\" \"$1/cache\"; mount --bind \"$3\" \"$1/workspace\"
        exec chroot \"$1\" env --ignore-environment HOME=/nonexistent LANG=C.UTF-8 \\
            PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -c \"$4\"",
    );
    command.arg("sh").arg(root).arg(cache).arg(crate::step::workspace()).arg(line);
    Ok(command)
}

/// Where it is; made once for each list of packages.
///
/// # Errors
/// As [`command`].
pub(crate) fn root() -> Result<PathBuf> {
    need::require(&[MOUNTS])?;
    archive::once(&folder()?, |folder| {
        need::require(&[MMDEBSTRAP])?;
        println!("installing Debian 13 in the cache: 2 GB, five minutes");
        let root = archive::root()?;
        let mut install = Command::new("mmdebstrap");
        install.args(["--quiet", "--mode=root", "--variant=minbase"]).arg(format!("--include={}", PACKAGES.join(",")));
        install.args(["--aptopt=APT::Install-Recommends \"false\""]).arg(format!(
            "--customize-hook=chroot \"$1\" apt-get install --yes --target-release=trixie-backports {}",
            BACKPORTS.join(" ")
        ));
        install
            .arg("trixie")
            .arg(folder)
            .args(["trixie", "trixie-backports"].map(|suite| format!("deb {root} {suite} main")));
        kernel::succeed(&mut install)
    })
}

/// Whether it has been made.
///
/// # Errors
/// No place for a cache.
pub(crate) fn is_here() -> Result<bool> {
    Ok(folder()?.exists())
}

/// Changes with what is installed there.
pub(crate) fn key() -> String {
    archive::key(&(PACKAGES, BACKPORTS))
}

fn folder() -> Result<PathBuf> {
    Ok(need::cache()?.join("chroot").join(format!("trixie-{}", key())))
}
