//! `cairnctl infer`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use api::dbus::{Blob, Details, Inference1Proxy, Seen, model_path};
use serde::Serialize;
use zbus::{Connection, Variant};

use crate::{Printer, annotate, model_proxies};

#[derive(Debug, clap::Args)]
pub(crate) struct Infer {
    /// The picture, JPEG or PNG
    picture: PathBuf,
    /// The model; not needed where only one takes pictures
    #[arg(long)]
    model: Option<String>,
    /// Write the picture with boxes around what was seen
    #[arg(long, value_name = "FILE.png")]
    annotate: Option<PathBuf>,
    /// Give up after so many milliseconds
    #[arg(long, value_name = "MS")]
    deadline_ms: Option<u32>,
}

#[derive(Debug, Serialize)]
struct Answer {
    model: String,
    model_version: String,
    verdict: String,
    npu_us: u64,
    total_us: u64,
    seen: Vec<SeenObject>,
}

#[derive(Debug, Serialize)]
struct SeenObject {
    label: String,
    class: u32,
    score: f64,
    /// Left, top, right, bottom as fractions of the picture.
    #[serde(rename = "box")]
    bounds: (f64, f64, f64, f64),
}

pub(crate) async fn run<W: Write>(
    connection: &Connection,
    arguments: &Infer,
    printer: &mut Printer<'_, W>,
) -> Result<()> {
    let file = &arguments.picture;
    let encoded = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    let model = match &arguments.model {
        Some(model) => model.clone(),
        None => only_picture_model(connection).await?,
    };
    let proxy = Inference1Proxy::new(connection, model_path(&model)).await?;
    let options: HashMap<_, _> =
        arguments.deadline_ms.map(|ms| ("deadline-ms", Variant::from(ms))).into_iter().collect();
    let picture = Blob::new(encoded.clone().into())?.into_variant();
    let (_, seen, details) =
        proxy.infer_picture(&picture, options).await.with_context(|| format!("ask model {model:?}"))?;
    if let Some(target) = &arguments.annotate {
        annotate::write(&encoded, &seen, target)?;
    }
    printer.print(&answer(model, seen, &details)?, text)
}

async fn only_picture_model(connection: &Connection) -> Result<String> {
    let mut names = Vec::new();
    for model in model_proxies(connection).await? {
        if model.takes_pictures().await? {
            names.push(model.name().await?);
        }
    }
    match names.as_slice() {
        [name] => Ok(name.clone()),
        [] => bail!("no loaded model takes pictures"),
        names => bail!("which --model? {} take pictures", names.join(", ")),
    }
}

fn answer(model: String, seen: Vec<Seen>, details: &Details) -> Result<Answer> {
    let detail = |key| details.get(key).with_context(|| format!("the answer has no {key}"));
    let text = |key| -> Result<String> { Ok(detail(key)?.try_clone()?.try_into()?) };
    let number = |key| -> Result<u64> { Ok(detail(key)?.try_clone()?.try_into()?) };
    let seen = seen.into_iter().map(|(label, class, score, bounds)| SeenObject { label, class, score, bounds });
    Ok(Answer {
        model,
        model_version: text("model-version")?,
        verdict: text("verdict")?,
        npu_us: number("npu-us")?,
        total_us: number("total-us")?,
        seen: seen.collect(),
    })
}

fn text(answer: &Answer) -> String {
    let mut text = String::new();
    for SeenObject { label, score, bounds: (left, top, right, bottom), .. } in &answer.seen {
        let percent = score * 100.0;
        writeln!(text, "{percent:5.1} %  {label:20} box {left:.3} {top:.3} {right:.3} {bottom:.3}")
            .expect("a string takes everything");
    }
    if answer.seen.is_empty() {
        text.push_str("nothing\n");
    }
    let Answer { model, model_version, verdict, npu_us, total_us, .. } = answer;
    let (npu_ms, total_ms) = (*npu_us as f64 / 1e3, *total_us as f64 / 1e3);
    text + &format!("{model} {model_version}: {verdict}, {npu_ms:.1} ms on the NPU, {total_ms:.1} ms in all")
}
