//! Mesa's source with none, some or all of our patches, built.
//!
//! ```text
//! mesa-patches/25.0.7/base ─▶ archive ─▶ one tree with one build folder ─▶ a library for each choice of patches
//! ```
//!
//! Ninja builds again what a choice changes: ten minutes of a core for the first library, one or two for each other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::chroot;
use crate::archive::{self, Pin};
use crate::kernel::succeed;
use crate::need;
use crate::patches;
use crate::series::{Series, git};
use crate::step::{self, Counts};

/// Where the lines are.
const FOLDER: &str = "mesa-patches";
/// The line whose source the archive has.
const MEASURED: &str = "25.0.7";
/// Vulkan for this GPU and the library that stands for its kernel driver, nothing else.
const OPTIONS: &str = "-Dbuildtype=plain -Doptimization=1 -Ddebug=false -Db_ndebug=true -Dplatforms= -Degl=disabled \
     -Dgbm=disabled -Dglx=disabled -Dopengl=false -Dgles1=disabled -Dgles2=disabled -Dgallium-drivers= \
     -Dvulkan-drivers=panfrost -Dtools=drm-shim -Dllvm=enabled -Dmesa-clc=auto -Dvideo-codecs= -Dvalgrind=disabled \
     -Dlibunwind=disabled -Dlmsensors=disabled -Dvulkan-layers= -Dandroid-libbacktrace=disabled -Dbuild-tests=false \
     -Db_lundef=false";
/// What is built.
const LIBRARIES: [&str; 2] =
    ["src/panfrost/vulkan/libvulkan_panfrost.so", "src/panfrost/drm-shim/libpanfrost_noop_drm_shim.so"];
/// The generations of GPUs that the driver is built for; only that of the Mali-G610 is, which halves the work. What is
/// missing of the others is never called.
const GENERATIONS: (&str, &str) = ("foreach arch : [6, 7, 10]\n", "foreach arch : [10]\n");
/// What our patches touch, which is enough to see whether they apply.
const TOUCHED: &str = "src/panfrost/vulkan";

/// Text of a file of [`TOUCHED`], which is there once, and what stands there instead.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Edit {
    /// The file.
    pub(crate) file: &'static str,
    /// What is there.
    pub(crate) from: &'static str,
    /// What stands there instead.
    pub(crate) to: &'static str,
}

/// A choice of patches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    /// What tables call it.
    pub(crate) name: &'static str,
    /// Numbers of the patches.
    pub(crate) patches: &'static [&'static str],
    /// What tests change: a mistake that they must see, or what the version does not offer.
    pub(crate) edits: &'static [Edit],
}

/// As released.
pub(crate) const STOCK: Variant = Variant { name: "stock", patches: &[], edits: &[] };
/// With the whole series.
pub(crate) const PATCHED: Variant =
    Variant { name: "patched", patches: &["1001", "1002", "1003", "1004", "1005"], edits: &[] };

/// A line's patches.
fn series(line: &str) -> Series {
    Series { folder: step::workspace().join(FOLDER).join(line) }
}

/// The lines: folders of Mesa's versions.
fn lines() -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for entry in step::workspace().join(FOLDER).read_dir().context("the patches cannot be read")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(|first: char| first.is_ascii_digit()) {
            lines.push(name);
        }
    }
    lines.sort();
    Ok(lines)
}

/// Checks what can be seen without a build: headers, well-formed hunks, and whether a series applies to its base.
///
/// # Errors
/// A folder that cannot be read.
pub(crate) fn check(counts: &mut Counts) -> Result<()> {
    for line in lines()? {
        let series = series(&line);
        patches::check(counts, &format!("mesa {line}: headers"), || patches::headers(&series));
        patches::check(counts, &format!("mesa {line}: hunks"), || well_formed(&series));
        let text = series.text("base")?;
        match Pin::list(&text)?.as_slice() {
            [] => counts.skip(&format!("mesa {line}: applies"), "the archive does not have its source"),
            [base] => match archive::fetch(base) {
                Ok(file) => patches::check(counts, &format!("mesa {line}: applies"), || applies(&series, &file)),
                Err(error) => counts.skip(&format!("mesa {line}: applies"), &format!("{error:#}")),
            },
            more => bail!("{line}/base names {} files", more.len()),
        }
    }
    Ok(())
}

fn well_formed(series: &Series) -> Result<()> {
    for patch in series.patches()? {
        succeed(Command::new("git").args(["apply", "--numstat"]).arg(series.folder.join(&patch)))?;
    }
    Ok(())
}

/// Applies the series to what it touches.
fn applies(series: &Series, source: &Path) -> Result<()> {
    let texts = texts(series, &series.patches()?)?;
    let folder = need::cache()?.join("mesa").join(format!("applied-{}", archive::key(&(texts, source))));
    archive::once(&folder, |folder| {
        unpack(source, folder, Some(TOUCHED))?;
        Series::commit_base(folder)?;
        series.apply(folder, &series.patches()?)?;
        for entry in folder.read_dir()? {
            fs::remove_dir_all(entry?.path())?;
        }
        Ok(())
    })
    .map(drop)
}

fn texts(series: &Series, patches: &[String]) -> Result<Vec<String>> {
    patches.iter().map(|patch| series.text(patch)).collect()
}

fn unpack(source: &Path, folder: &Path, part: Option<&str>) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--xz", "--strip-components=1", "--wildcards", "--directory"]).arg(folder);
    tar.arg("--file").arg(source);
    succeed(tar.args(part.map(|part| format!("mesa-*/{part}"))))
}

/// Folders of the source as released, in the cache.
///
/// # Errors
/// A source that cannot be fetched.
pub(crate) fn parts(parts: &[&str]) -> Result<PathBuf> {
    let text = series(MEASURED).text("base")?;
    let pins = Pin::list(&text)?;
    let [base] = pins.as_slice() else { bail!("{MEASURED}/base names {} files", pins.len()) };
    archive::once(&need::cache()?.join("mesa").join(format!("parts-{}", archive::key(&(&text, parts)))), |folder| {
        parts.iter().try_for_each(|part| unpack(&archive::fetch(base)?, folder, Some(part)))
    })
}

/// Whether this choice has been built here.
///
/// # Errors
/// Patches that cannot be read.
pub(crate) fn is_built(variant: &Variant) -> Result<bool> {
    Ok(library_folder(variant)?.exists())
}

/// Where the libraries and the loader's file of this choice are, as a folder of the Debian; built if they are not there.
///
/// # Errors
/// A build that fails.
pub(crate) fn build(variant: &Variant) -> Result<String> {
    let made = archive::once(&library_folder(variant)?, |folder| {
        let work = work()?;
        // Others wait here; the lock goes with the file.
        let lock = fs::File::create(work.join("lock"))?;
        lock.lock()?;
        println!("building Mesa {MEASURED}, {}", variant.name);
        check_out(&work.join("tree"), variant)?;
        let build = inside(&work.join("build"))?;
        succeed(&mut chroot::command(&format!("ninja -C {build} {}", LIBRARIES.join(" ")))?)?;
        for library in LIBRARIES {
            fs::copy(work.join("build").join(library), folder.join(file_name(library)))?;
        }
        set_build_id(&folder.join(file_name(LIBRARIES[0])))?;
        Ok(())
    })?;
    let folder = inside(&made)?;
    let driver = format!("{folder}/{}", file_name(LIBRARIES[0]));
    let icd =
        format!(r#"{{"file_format_version": "1.0.1", "ICD": {{"library_path": "{driver}", "api_version": "1.4.0"}}}}"#);
    fs::write(made.join("icd.json"), icd)?;
    Ok(folder)
}

fn file_name(library: &str) -> &str {
    library.rsplit('/').next().unwrap_or(library)
}

fn library_folder(variant: &Variant) -> Result<PathBuf> {
    let series = series(MEASURED);
    let texts = texts(&series, &chosen(&series, variant)?)?;
    let key = archive::key(&(series.text("base")?, OPTIONS, GENERATIONS, chroot::key(), texts, variant.edits));
    Ok(need::cache()?.join("mesa").join(format!("built-{key}")))
}

/// The patches whose numbers the choice has.
fn chosen(series: &Series, variant: &Variant) -> Result<Vec<String>> {
    let all = series.patches()?;
    let chosen: Vec<String> = variant
        .patches
        .iter()
        .filter_map(|number| all.iter().find(|name| name.starts_with(&format!("{number}-"))).cloned())
        .collect();
    ensure!(chosen.len() == variant.patches.len(), "the series lacks one of {:?}", variant.patches);
    Ok(chosen)
}

/// The tree with its build folder, configured.
fn work() -> Result<PathBuf> {
    let text = series(MEASURED).text("base")?;
    let pins = Pin::list(&text)?;
    let [base] = pins.as_slice() else { bail!("{MEASURED}/base names {} files", pins.len()) };
    let folder = need::cache()?
        .join("mesa")
        .join(format!("work-{}", archive::key(&(&text, OPTIONS, GENERATIONS, chroot::key()))));
    archive::once(&folder, |folder| {
        let tree = folder.join("tree");
        fs::create_dir_all(&tree)?;
        unpack(&archive::fetch(base)?, &tree, None)?;
        replace(&tree.join(TOUCHED).join("meson.build"), GENERATIONS.0, GENERATIONS.1)?;
        Series::commit_base(&tree)?;
        git(&tree, &["tag", "base"])?;
        let inside = inside(folder)?;
        succeed(&mut chroot::command(&format!("cd {inside} && meson setup build tree {OPTIONS}"))?)
    })
}

fn check_out(tree: &Path, variant: &Variant) -> Result<()> {
    git(tree, &["checkout", "--quiet", "--force", "--detach", "base"])?;
    git(tree, &["clean", "--quiet", "--force", "-d"])?;
    let series = series(MEASURED);
    series.apply(tree, &chosen(&series, variant)?)?;
    variant.edits.iter().try_for_each(|edit| replace(&tree.join(TOUCHED).join(edit.file), edit.from, edit.to))
}

/// Gives all drivers one build ID, which is what Mesa's cache of compiled shaders goes by: no patch is in the compiler.
fn set_build_id(library: &Path) -> Result<()> {
    // An ELF note: four bytes of name, twenty of ID, the type NT_GNU_BUILD_ID, the name.
    const NOTE: &[u8] = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    let mut bytes = fs::read(library)?;
    let note = bytes.windows(NOTE.len()).position(|window| window == NOTE).context("the driver has no build ID")?;
    bytes[note + NOTE.len()..][..20].copy_from_slice(b"cairn gpu test25.0.7");
    Ok(fs::write(library, bytes)?)
}

/// Puts one text in the place of another, which is there once.
fn replace(file: &Path, from: &str, to: &str) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    ensure!(text.matches(from).count() == 1, "{} does not have `{from}` once", file.display());
    Ok(fs::write(file, text.replace(from, to))?)
}

/// A folder of the cache as the Debian sees it.
///
/// # Errors
/// A folder elsewhere.
pub(crate) fn inside(folder: &Path) -> Result<String> {
    let below = folder.strip_prefix(need::cache()?).context("not in the cache")?;
    Ok(format!("/cache/{}", below.display()))
}
