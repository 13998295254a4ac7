//! `cairnctl models` and `cairnctl model`.

use std::fmt::Write as _;
use std::io::Write;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use api::dbus::{
    GPU_NAME, GPU_ROOT, Job1Proxy, LanguageModel1Proxy, Model1Proxy, ModelStore1Proxy, Models1Proxy, Options,
    UPDATE_NAME,
};
use futures_util::StreamExt as _;
use serde::Serialize;
use zbus::Connection;

use crate::{Printer, absolute, model_proxies};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Change {
    /// Load a model package, replacing a model of its name
    Load {
        /// Folder of the package
        folder: PathBuf,
    },
    /// Add a signed bundle to the store; it serves when it has computed its golden output
    Add {
        /// File, or http(s) address
        source: String,
        /// Refuse a bundle of another version
        #[arg(long)]
        version: Option<String>,
        /// Refuse another bundle: its SHA-256
        #[arg(long)]
        sha256: Option<String>,
    },
    /// Unload a model
    Unload {
        /// Its name
        name: String,
    },
}

#[derive(Debug, Serialize)]
struct Model {
    name: String,
    version: String,
    task: String,
    operators: u32,
    operators_on_npu: u32,
    memory_bytes: u64,
    predicted_us: u64,
}

pub(crate) async fn list<W: Write>(connection: &Connection, printer: &mut Printer<'_, W>) -> Result<()> {
    let mut models = Vec::new();
    let npu = model_proxies(connection).await;
    let languages = languages(connection).await;
    // One daemon is enough.
    if let (Err(error), Err(_)) = (&npu, &languages) {
        bail!("{error:#}");
    }
    for proxy in npu.unwrap_or_default() {
        models.push(Listed::Npu(describe(&proxy).await?));
    }
    models.extend(languages.unwrap_or_default().into_iter().map(Listed::Language));
    printer.print(&models, |models| models.iter().map(Listed::text).collect())
}

/// A model of either daemon.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Listed {
    Npu(Model),
    Language(Language),
}

/// A language model.
#[derive(Debug, Serialize)]
struct Language {
    name: String,
    task: &'static str,
    architecture: String,
    quantization: String,
    parameters: u64,
    state: String,
    placement: String,
    memory_bytes: u64,
    reason: String,
}

impl Listed {
    fn text(&self) -> String {
        match self {
            Self::Npu(model) => text(model),
            Self::Language(model) => model.text(),
        }
    }
}

impl Language {
    fn text(&self) -> String {
        let Self { name, architecture, quantization, parameters, state, placement, memory_bytes, reason, .. } = self;
        let (millions, mib) = (parameters / 1_000_000, *memory_bytes as f64 / 1_048_576.0);
        let mut text = format!("{name:16} {quantization:8} chat      {architecture}, {millions} M parameters, {state}");
        if !placement.is_empty() {
            write!(text, ", {placement}, {mib:.1} MiB").expect("a string takes everything");
        }
        if !reason.is_empty() {
            write!(text, " ({reason})").expect("a string takes everything");
        }
        text + "\n"
    }
}

async fn languages(connection: &Connection) -> Result<Vec<Language>> {
    let manager = Models1Proxy::builder(connection).destination(GPU_NAME).path(GPU_ROOT).build().await?;
    let mut models = Vec::new();
    for path in manager.list_models(Default::default()).await.context("list the language models")? {
        let model = LanguageModel1Proxy::new(connection, path).await?;
        models.push(Language {
            name: model.name().await?,
            task: "chat",
            architecture: model.architecture().await?,
            quantization: model.quantization().await?,
            parameters: model.parameters().await?,
            state: model.state().await?,
            placement: model.placement().await?,
            memory_bytes: model.memory_bytes().await?,
            reason: model.reason().await?,
        });
    }
    Ok(models)
}

pub(crate) async fn change<W: Write>(
    connection: &Connection,
    change: &Change,
    printer: &mut Printer<'_, W>,
) -> Result<()> {
    let models = Models1Proxy::new(connection).await?;
    match change {
        Change::Load { folder } => {
            let model = load(connection, &models, &absolute(folder)?).await?;
            printer.print(&model, text)
        }
        Change::Add { source, version, sha256 } => {
            let options = [("version", version), ("sha256", sha256)];
            let given = options.iter().filter_map(|(key, value)| Some((*key, value.as_deref()?.into()))).collect();
            let model = add(connection, source, given).await?;
            printer.print(&model, text)
        }
        Change::Unload { name } => {
            models.unload_model(name, Default::default()).await.with_context(|| format!("unload {name:?}"))?;
            printer.print(name, |name| format!("{name} is unloaded"))
        }
    }
}

async fn load(connection: &Connection, models: &Models1Proxy<'_>, folder: &std::path::Path) -> Result<Model> {
    let path = folder.to_str().context("the folder's name is not UTF-8")?;
    let job = models.load_model(path, Default::default()).await.with_context(|| format!("load {path}"))?;
    let job = Job1Proxy::new(connection, job).await?;
    finished(connection, &job).await.with_context(|| format!("load {path}"))
}

/// Adds a bundle to the store.
async fn add(connection: &Connection, source: &str, options: Options<'_>) -> Result<Model> {
    let store = ModelStore1Proxy::new(connection).await?;
    let job = if source.contains("://") {
        store.fetch(source, options).await
    } else {
        let bundle = std::fs::File::open(source).with_context(|| format!("open {source}"))?;
        store.add(bundle.as_fd().into(), options).await
    };
    let job = job.with_context(|| format!("add {source}"))?;
    let job = Job1Proxy::builder(connection).destination(UPDATE_NAME).path(job).build().await?;
    finished(connection, &job).await.with_context(|| format!("add {source}"))
}

/// Waits for a job, and describes the model that it made.
async fn finished(connection: &Connection, job: &Job1Proxy<'_>) -> Result<Model> {
    // Asked for first, so that no change falls between.
    let mut states = job.receive_state_changed().await;
    let mut state = job.state().await?;
    while state == "running" {
        let change = states.next().await.context("the daemon went away")?;
        state = change.get().await?;
    }
    if state != "done" {
        let (code, message) = job.error().await?;
        bail!("{state}: {code}: {message}");
    }
    describe(&Model1Proxy::new(connection, job.result().await?).await?).await
}

async fn describe(model: &Model1Proxy<'_>) -> Result<Model> {
    Ok(Model {
        name: model.name().await?,
        version: model.version().await?,
        task: model.task().await?,
        operators: model.operators().await?,
        operators_on_npu: model.operators_on_npu().await?,
        memory_bytes: model.memory_bytes().await?,
        predicted_us: model.predicted_microseconds().await?,
    })
}

fn text(model: &Model) -> String {
    let Model { name, version, task, operators, operators_on_npu, memory_bytes, predicted_us } = model;
    let (mib, ms) = (*memory_bytes as f64 / 1_048_576.0, *predicted_us as f64 / 1e3);
    let mut text = String::new();
    writeln!(
        text,
        "{name:16} {version:8} {task:9} {operators_on_npu}/{operators} operators on the NPU, {mib:.1} MiB, about {ms:.1} ms (predicted)"
    )
    .expect("a string takes everything");
    text
}
