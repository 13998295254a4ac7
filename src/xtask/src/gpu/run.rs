//! Programs on the measuring device, and what its log says of them.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};

use super::chroot;
use super::log::{self, Report};
use super::mesa::{self, Variant};
use crate::archive;
use crate::kernel::{printed, succeed};
use crate::need;
use crate::step;

/// Where the sources are.
pub(crate) const FOLDER: &str = "tests/gpu";
/// The files that are built.
const SOURCES: &[&str] =
    &["panthor.c", "panthor.h", "prefill.cpp", "scratch.c", "scratch.comp", "shader.c", "stream.c"];
/// Shaders by name: words of each thread, of which this Mesa rounds each up to 16 bytes and all to a power of two, and
/// words of each workgroup.
const SHADERS: &[(&str, u32, u32)] =
    &[("thread", 400, 0), ("small-thread", 24, 0), ("group", 0, 8192), ("small-group", 0, 2048), ("both", 400, 8192)];
/// How the C programs are compiled.
const CC: &str = "-O1 -g -Wall -Wextra -Werror";
/// The GPU: Mali-G610.
pub(crate) const GPU: &str = "a867";

/// How a program finds lavapipe. Compilation is most of a run, so nothing is optimised.
pub(crate) const LAVAPIPE: &str = "VK_DRIVER_FILES=/usr/share/vulkan/icd.d/lvp_icd.json VK_LOADER_LAYERS_DISABLE='*' \
     LP_NATIVE_VECTOR_WIDTH=512 GALLIVM_PERF=no_opt MESA_SHADER_CACHE_DIR=/cache/mesa/shaders";

/// A program's end.
#[derive(Debug)]
pub(crate) struct Run {
    /// What it printed.
    pub(crate) text: String,
    /// Its status; none after a signal.
    pub(crate) status: Option<i32>,
    /// What the device saw.
    pub(crate) report: Report,
}

/// Runs a program of [`build`] with this driver; `environment` are further `NAME=VALUE`s.
///
/// # Errors
/// A build that fails, a log that cannot be read.
pub(crate) fn run(variant: &Variant, environment: &str, line: &str) -> Result<Run> {
    let programs = build()?;
    let driver = mesa::build(variant)?;
    let shim = format!("{}/libpanfrost_noop_drm_shim.so", mesa::build(&mesa::STOCK)?);
    let log = new_log()?;
    let inside = mesa::inside(&log)?;
    let output = chroot::command(&format!(
        "cd {programs} && LD_PRELOAD='{programs}/panthor.so {shim}' PAN_GPU_ID={GPU} PANTHOR_LOG={inside} \
         PAN_I_WANT_A_BROKEN_VULKAN_DRIVER=1 VK_DRIVER_FILES={driver}/icd.json VK_LOADER_LAYERS_DISABLE='*' \
         {environment} exec {line}"
    ))?
    .output()?;
    let events = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(!events.is_empty(), "`{line}` did not reach the device: {text}");
    Ok(Run { text, status: output.status.code(), report: log::read(&events)? })
}

/// Runs a program of [`build`] on Mesa's lavapipe, which computes, with warps as wide as the GPU's; what it printed.
///
/// # Errors
/// A build or a program that fails.
pub(crate) fn lavapipe(line: &str) -> Result<String> {
    let programs = build()?;
    printed(&mut chroot::command(&format!("cd {programs} && {LAVAPIPE} exec {line}"))?)
}

/// A name for a log, in the cache.
///
/// # Errors
/// A folder that cannot be made.
pub(crate) fn new_log() -> Result<PathBuf> {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let logs = need::cache()?.join("mesa").join("logs");
    fs::create_dir_all(&logs)?;
    Ok(logs.join(format!("{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed))))
}

/// How many command buffers were recorded, of how many, and the first error, in the last round of `scratch`.
///
/// # Errors
/// A program that did not say it.
pub(crate) fn recorded(run: &Run) -> Result<(u64, u64, i64)> {
    let line = run.text.lines().rfind(|line| line.starts_with("recorded ")).with_context(|| run.text.clone())?;
    let numbers: Vec<i64> = line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    let [done, wanted, error] = numbers.as_slice() else { bail!("`{line}` has not three numbers") };
    Ok((u64::try_from(*done)?, u64::try_from(*wanted)?, *error))
}

/// Builds the programs and shaders, once for each content; where they are, as the Debian sees it.
fn build() -> Result<String> {
    let sources = step::workspace().join(FOLDER);
    let texts: Result<Vec<String>> = SOURCES
        .iter()
        .map(|name| fs::read_to_string(sources.join(name)).with_context(|| format!("{name} cannot be read")))
        .collect();
    let key = archive::key(&(texts?, SHADERS, CC, chroot::key()));
    let folder: PathBuf = need::cache()?.join("mesa").join(format!("programs-{key}"));
    let made = archive::once(&folder, |folder| {
        let to = mesa::inside(folder)?;
        let mut script = format!(
            "cd /workspace/{FOLDER}
            gcc {CC} -shared -fPIC -I/usr/include/libdrm panthor.c stream.c -o {to}/panthor.so
            gcc {CC} scratch.c -o {to}/scratch -lvulkan
            gcc {CC} shader.c -o {to}/shader -lvulkan
            g++ {CC} prefill.cpp -o {to}/prefill -lggml -lggml-base\n"
        );
        for (name, thread, group) in SHADERS {
            script += &format!("glslc -O -DTHREAD={thread} -DGROUP={group} scratch.comp -o {to}/{name}.spv\n");
        }
        succeed(&mut chroot::command(&format!("set -e\n{script}"))?)
    })?;
    mesa::inside(&made)
}
