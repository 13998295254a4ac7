//! llama.cpp's backend for Vulkan, ggml-vulkan, as released and with our patches.
//!
//! ```text
//! mesa-patches/llama.cpp/base ─▶ cargo ─▶ source ─▶ series ─▶ tree ─▶ modules: SPIR-V of the matrix products
//!                                                                 └─▶ compare: products by Vulkan and by the CPU
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use super::chroot;
use super::mesa::inside;
use super::run::LAVAPIPE;
use crate::archive;
use crate::kernel::{printed, succeed};
use crate::need;
use crate::patches;
use crate::series::Series;
use crate::step::{self, Counts};

/// Where the patches are.
const FOLDER: &str = "mesa-patches/llama.cpp";
/// What is taken of the source.
const PARTS: &[&str] = &["CMakeLists.txt", "LICENSE", "cmake", "ggml", "include", "src", "vendor"];
/// Where the backend is in it.
const BACKEND: &str = "ggml/src/ggml-vulkan";
/// Modules whose shader our patches do not change, but which our tile specialises.
const NAMED: &[&str] = &["matmul_f32_f32_fp32", "matmul_quant_f32", "matmul_quant_f32_f16acc", "matmul_quant_f32_fp32"];
/// The program that compares.
const COMPARE: &str = "tests/gpu/compare.cpp";
/// What its ggml is built with. Without a build type, as the generator of shaders takes that over, and optimises for a
/// minute.
const OPTIONS: &str = "-DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DCMAKE_C_FLAGS=-O2 \
     -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF -DGGML_VULKAN=ON \
     -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF \
     -DLLAMA_BUILD_EXAMPLES=OFF -DVulkan_GLSLC_EXECUTABLE=/workspace/tests/gpu/products.sh";
/// Modules that only our tile loads end so.
const OURS: [&str; 2] = ["_mali.spv", "_mali_fp32.spv"];

/// As released, or with our patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Tree {
    /// As released.
    Stock,
    /// With our patches.
    Patched,
}

/// The checks that take seconds: the patches' form, and that they apply to the source that the crate packs.
///
/// # Errors
/// Patches that cannot be read.
pub(crate) fn check(counts: &mut Counts) -> Result<()> {
    patches::check(counts, "llama.cpp: headers", || patches::headers(&series()));
    match source() {
        Ok(_) => patches::check(counts, "llama.cpp: applies", || tree(Tree::Patched).map(drop)),
        Err(error) => counts.skip("llama.cpp: applies", &format!("{error:#}")),
    }
    Ok(())
}

fn series() -> Series {
    Series { folder: step::workspace().join(FOLDER) }
}

/// The source, which cargo fetches and checks.
fn source() -> Result<PathBuf> {
    let text = series().text("base")?;
    let line = text.lines().find(|line| !line.starts_with('#')).unwrap_or_default();
    let (sha256, file) =
        line.split_once("  ").with_context(|| format!("`{line}` is not `SHA256  NAME-VERSION.crate`"))?;
    let crate_name = file.strip_suffix(".crate").with_context(|| format!("{file} is not a crate"))?;
    let (name, version) = crate_name.rsplit_once('-').with_context(|| format!("{file} has no version"))?;
    let folder = need::cache()?.join("llama-source").join(archive::key(&text));
    let folder = archive::once(&folder, |folder| {
        let manifest = format!(
            "[package]\nname = \"base\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n[workspace]\n\
             [dependencies]\n{name} = \"={version}\"\n"
        );
        fs::write(folder.join("Cargo.toml"), manifest)?;
        fs::write(folder.join("lib.rs"), "")?;
        println!("fetching {file}");
        succeed(step::cargo().args(["fetch", "--quiet", "--manifest-path"]).arg(folder.join("Cargo.toml")))?;
        let lock = fs::read_to_string(folder.join("Cargo.lock"))?;
        ensure!(lock.contains(&format!("checksum = \"{sha256}\"")), "{file} has another checksum than {FOLDER}/base");
        Ok(())
    })?;
    let mut metadata = step::cargo();
    metadata.args(["metadata", "--offline", "--format-version", "1", "--manifest-path"]).arg(folder.join("Cargo.toml"));
    let said = printed(&mut metadata)?;
    let end = format!("/{crate_name}/Cargo.toml");
    let manifest =
        said.split('"').find(|text| text.ends_with(&end)).context("cargo does not say where the source is")?;
    Ok(Path::new(manifest).with_file_name("llama.cpp"))
}

/// The source with or without the series, in the cache.
fn tree(which: Tree) -> Result<PathBuf> {
    let series = series();
    let patches = if which == Tree::Patched { series.patches()? } else { Vec::new() };
    let texts: Result<Vec<String>> = patches.iter().map(|patch| series.text(patch)).collect();
    let key = archive::key(&(series.text("base")?, PARTS, texts?));
    let source = source()?;
    archive::once(&need::cache()?.join("llama-source").join(format!("tree-{key}")), |folder| {
        succeed(
            Command::new("cp").current_dir(&source).args(["--recursive", "--target-directory"]).arg(folder).args(PARTS),
        )?;
        Series::commit_base(folder)?;
        series.apply(folder, &patches)
    })
}

/// The SPIR-V of a tree's matrix products, in the cache, as `modules/NAME.spv`: those named [`NAMED`], and all whose shader
/// our patches change. Beside it is how each module of the backend is made, as `recipes/NAME.spv`.
///
/// # Errors
/// A shader that does not compile.
pub(crate) fn modules(which: Tree) -> Result<PathBuf> {
    let tree = tree(which)?;
    let changed = changed_shaders()?;
    let recipe = fs::read_to_string(step::workspace().join("tests/gpu/recipe.sh"))?;
    let key = archive::key(&(tree.file_name(), &changed, NAMED, recipe, chroot::key()));
    archive::once(&need::cache()?.join("llama-source").join(format!("modules-{key}")), |folder| {
        println!("compiling the shaders of matrix products, {which:?}");
        let changed: String = changed.iter().map(|source| format!(" -e {source}")).collect();
        succeed(&mut chroot::command(&format!(
            "set -e
            cd {tree}/{BACKEND}/vulkan-shaders
            folder={folder}
            g++ -O0 -std=c++17 -DGGML_VULKAN_INTEGER_DOT_GLSLC_SUPPORT -pthread vulkan-shaders-gen.cpp -o $folder/generator
            for source in *.comp; do
                $folder/generator --glslc /workspace/tests/gpu/recipe.sh --source ./$source --output-dir $folder/recipes \
                    --target-hpp $folder/shaders.hpp --target-cpp $folder/shaders.cpp
            done
            mkdir $folder/modules
            (echo {named} | tr ' ' '\n'; grep --word-regexp --files-with-matches{changed} $folder/recipes/*) |
                xargs --max-procs=$(nproc) --max-args=1 sh -c \
                    'name=$(basename $1 .spv); glslc $(cat $0/recipes/$name.spv) -o $0/modules/$name.spv' $folder",
            tree = inside(&tree)?,
            folder = inside(folder)?,
            named = NAMED.join(" "),
        ))?)
    })
}

/// That our patches leave every module of the release as it is: the same shaders, compiled in the same way, and where a
/// shader's source was changed, the same bytes.
///
/// # Errors
/// A module that differs, or is neither the release's nor ours.
pub(crate) fn leaves_modules_alone() -> Result<()> {
    let (stock, patched) = (modules(Tree::Stock)?, modules(Tree::Patched)?);
    let changed = changed_shaders()?;
    let (before, after) = (files(&stock.join("recipes"))?, files(&patched.join("recipes"))?);
    for (name, recipe) in &before {
        ensure!(after.get(name) == Some(recipe), "{name} is made otherwise");
    }
    for name in after.keys().filter(|name| !before.contains_key(*name)) {
        ensure!(OURS.iter().any(|end| name.ends_with(end)), "{name} is new");
    }
    let (stock, patched) = (files(&stock.join("modules"))?, files(&patched.join("modules"))?);
    let mut same = 0;
    for (name, recipe) in &before {
        let text = String::from_utf8_lossy(recipe);
        if text.split_whitespace().any(|word| changed.iter().any(|source| source == word)) {
            ensure!(stock.contains_key(name) && stock.get(name) == patched.get(name), "{name} differs");
            same += 1;
        }
    }
    ensure!(same > 0, "no module of {changed:?} was compared");
    println!(
        "{} modules of the release are made as before; of these {same} come from {}, and their bytes are the same; {} more",
        before.len(),
        changed.join(", "),
        after.len() - before.len()
    );
    Ok(())
}

/// Shaders that the series touches. A file that shaders include must not be among them: it would be in all of them.
fn changed_shaders() -> Result<Vec<String>> {
    let series = series();
    let mut changed = Vec::new();
    for patch in series.patches()? {
        for line in series.text(&patch)?.lines() {
            let Some(file) = line.strip_prefix("+++ b/ggml/src/ggml-vulkan/vulkan-shaders/") else { continue };
            match Path::new(file).extension().and_then(|end| end.to_str()) {
                Some("comp") => changed.push(file.to_owned()),
                Some("cpp") => {}
                _ => bail!("{patch} changes {file}, which shaders include"),
            }
        }
    }
    Ok(changed)
}

fn files(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in folder.read_dir().with_context(|| format!("{} cannot be read", folder.display()))? {
        let path = entry?.path();
        if let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|name| name.ends_with(".spv")) {
            files.insert(name.to_owned(), fs::read(&path)?);
        }
    }
    Ok(files)
}

/// Compares products by Vulkan on lavapipe, whose warps are as wide as Mali's then, with those by the CPU: with products
/// of bytes and without them. The release's large tile is not tried: lavapipe compiles it for hours.
///
/// # Errors
/// A build that fails, a program that cannot be started.
pub(crate) fn compare(names: &[String]) -> Result<ExitCode> {
    let program = inside(&compare_program()?.join("compare"))?;
    // The large tile aligned and not, the small one, and the large one of mixtures; others take minutes each.
    let usual = ["128x128x256", "96x70", "32x96", "mixture 130x150", "97x101"];
    let names: Vec<&str> = if names.is_empty() { usual.to_vec() } else { names.iter().map(String::as_str).collect() };
    let only: String = names.iter().map(|name| format!(" --only '{name}'")).collect();
    let mut all_same = true;
    for bytes in ["--bytes", ""] {
        let status = chroot::command(&format!(
            "{LAVAPIPE} \
             GGML_VK_VISIBLE_DEVICES=0 GGML_VK_DISABLE_DOT2=1 GGML_VK_MALI_TILE=1 exec {program} {bytes}{only}"
        ))?
        .status()?;
        all_same &= status.success();
    }
    Ok(if all_same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The program, with ggml inside, in the cache.
fn compare_program() -> Result<PathBuf> {
    let tree = tree(Tree::Patched)?;
    let text = fs::read_to_string(step::workspace().join(COMPARE))?;
    let compiler = fs::read_to_string(step::workspace().join("tests/gpu/products.sh"))?;
    let key = archive::key(&(tree.file_name(), text, compiler, OPTIONS, chroot::key()));
    archive::once(&need::cache()?.join("llama-source").join(format!("compare-{key}")), |folder| {
        println!("building ggml with Vulkan");
        let (tree, folder) = (inside(&tree)?, inside(folder)?);
        succeed(&mut chroot::command(&format!(
            "set -e
            cmake -G Ninja -S {tree} -B {folder}/build {OPTIONS}
            ninja -C {folder}/build ggml-base ggml-cpu ggml-vulkan
            cd {folder}/build/ggml/src
            g++ -O1 -std=c++17 -Wall -Wextra -Werror -I{tree}/ggml/include /workspace/{COMPARE} \
                ggml-vulkan/libggml-vulkan.a libggml-cpu.a libggml-base.a -lvulkan -ldl -pthread -o {folder}/compare
            rm -r {folder}/build"
        ))?)
    })
}
