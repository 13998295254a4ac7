//! A Python interpreter with the packages of `tests/python/requirements.txt`.
//!
//! The packages lie in a virtual environment in the user's cache folder, which is made once and named after the
//! requirements: `~/.cache/cairn/python-<hash>`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Folder of the scripts.
pub fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python")
}

/// The interpreter, once its packages are installed. The first call on a machine takes minutes and needs a network.
///
/// # Errors
/// What is missing: `python3` with its `venv` module, or a package.
pub fn interpreter() -> Result<PathBuf> {
    let requirements = scripts().join("requirements.txt");
    let text = fs::read(&requirements).with_context(|| format!("read {}", requirements.display()))?;
    let cache = cache()?;
    fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
    let folder = cache.join(format!("python-{:016x}", hash(&text)));
    // Tests of other processes wait here until one of them has made the environment.
    let lock = File::create(folder.with_extension("lock")).context("make a lock file")?;
    lock.lock().context("lock the environment")?;
    let (python, complete) = (folder.join("bin/python"), folder.join("complete"));
    if !complete.exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))
            .context("make a virtual environment (Debian: apt-get install python3-venv)")?;
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&requirements))
            .context("install the packages of tests/python/requirements.txt")?;
        File::create(&complete).context("mark the environment as complete")?;
    }
    Ok(python)
}

/// A folder with LiteRT and NumPy for Python 3.13 of aarch64, in the versions of the requirements, as wheels bring them.
///
/// # Errors
/// Those of [`interpreter`], a package that cannot be had.
pub fn packages_for_aarch64() -> Result<PathBuf> {
    let requirements = fs::read_to_string(scripts().join("requirements.txt")).context("read the requirements")?;
    let wanted =
        requirements.lines().filter(|line| ["ai-edge-litert", "numpy"].iter().any(|name| line.starts_with(name)));
    let wanted: Vec<&str> = wanted.collect();
    let python = interpreter()?;
    let folder = cache()?.join(format!("python-aarch64-{:016x}", hash(wanted.join(" ").as_bytes())));
    let lock = File::create(folder.with_extension("lock")).context("make a lock file")?;
    lock.lock().context("lock the packages")?;
    let complete = folder.join("complete");
    if !complete.exists() {
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--no-deps", "--only-binary=:all:", "--target"]);
        pip.arg(&folder).args(["--python-version", "3.13", "--implementation", "cp", "--abi", "cp313"]);
        pip.args(["--platform", "manylinux_2_27_aarch64", "--platform", "manylinux_2_28_aarch64"]);
        run(pip.args(wanted)).context("install packages for aarch64")?;
        File::create(&complete).context("mark the packages as complete")?;
    }
    Ok(folder)
}

/// Runs a script of `tests/python`.
///
/// # Errors
/// Those of [`interpreter`], and the script's.
pub fn script(name: &str, arguments: &[&Path]) -> Result<()> {
    let mut command = Command::new(interpreter()?);
    // The scripts import each other, and the tree stays as it is.
    run(command.env("PYTHONDONTWRITEBYTECODE", "1").arg(scripts().join(name)).args(arguments))
}

fn cache() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || variable("HOME").map(|home| home.join(".cache"));
    Ok(variable("XDG_CACHE_HOME").or_else(home).context("neither XDG_CACHE_HOME nor HOME is set")?.join("cairn"))
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
