//! A model package: a folder with a model file and a `model.toml` that says what it is for.
//!
//! ```text
//! model.toml ─▶ Manifest ┬─ model file ─▶ Graph
//!                        ├─ labels, golden input and outputs
//!                        ├─ [picture]  ─▶ Preprocessing
//!                        └─ [decoder.…] ─▶ Decoder
//! ```
//!
//! An unknown key is an error, and so is a file name that leaves the folder.

use std::io::Read;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use model::{DType, Graph, tflite};
use serde::Deserialize;
use toml::Spanned;

use crate::decode::Decoder;
use crate::loaded::Golden;
use crate::picture::{Preprocessing, extents};
use crate::{Decoded, Error, Input, Result, Tensor, TensorInfo};

/// Largest `model.toml`, label file and other file of a package.
const MAX_MANIFEST_BYTES: u64 = 64 << 10;
const MAX_LABEL_BYTES: u64 = 1 << 20;
const MAX_MODEL_BYTES: u64 = 1 << 30;
/// Longest name: it is an element of an object path and of a topic.
const MAX_NAME: usize = 64;

/// A package whose manifest and labels are read.
#[derive(Debug)]
pub(crate) struct Package {
    folder: PathBuf,
    manifest: Manifest,
    labels: Vec<String>,
}

/// `model.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    /// Lower-case letters, digits and inner hyphens.
    name: Spanned<String>,
    version: Spanned<String>,
    task: Task,
    /// SPDX expression.
    license: String,
    /// Text that must be kept with the model.
    notice: Option<PathBuf>,
    model: PathBuf,
    /// One class name per line.
    labels: Option<PathBuf>,
    picture: Option<Preprocessing>,
    decoder: Option<Decoder>,
    golden: Option<GoldenFiles>,
}

/// What the model is for.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Task {
    Detect,
    Classify,
    Tensor,
}

/// A known input and the outputs that it must lead to.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GoldenFiles {
    /// A picture, or a `.bin` file with the bytes of every input, one after the other.
    input: PathBuf,
    /// The bytes of each output.
    outputs: Vec<PathBuf>,
    /// Largest difference of an element.
    tolerance: u8,
}

impl Package {
    /// Reads the manifest and the labels of the package in `folder`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with file, line and reason.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let bytes = read_file(folder, Path::new("model.toml"), MAX_MANIFEST_BYTES)?;
        let manifest = parse(&text(bytes, "model.toml")?)?;
        let labels = match &manifest.labels {
            Some(file) => text(read_file(folder, file, MAX_LABEL_BYTES)?, &file.display().to_string())?,
            None => String::new(),
        };
        if let Some(notice) = &manifest.notice {
            read_file(folder, notice, MAX_LABEL_BYTES)?;
        }
        Ok(Self { folder: folder.to_owned(), manifest, labels: labels.lines().map(str::to_owned).collect() })
    }

    /// Name, unique among the loaded models.
    pub(crate) fn name(&self) -> &str {
        self.manifest.name.get_ref()
    }

    /// Version of the package.
    pub(crate) fn version(&self) -> &str {
        self.manifest.version.get_ref()
    }

    /// What the model is for.
    pub(crate) fn task(&self) -> &'static str {
        match self.manifest.task {
            Task::Detect => "detect",
            Task::Classify => "classify",
            Task::Tensor => "tensor",
        }
    }

    /// Licence of the model.
    pub(crate) fn license(&self) -> &str {
        &self.manifest.license
    }

    /// Class names, by index.
    pub(crate) fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Whether the package says how a picture becomes the input.
    pub(crate) fn takes_pictures(&self) -> bool {
        self.manifest.picture.is_some()
    }

    /// Reads the model file.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the operator or tensor at fault.
    pub(crate) fn graph(&self) -> Result<Graph> {
        let file = &self.manifest.model;
        let bytes = read_file(&self.folder, file, MAX_MODEL_BYTES)?;
        tflite::read(&bytes).map_err(|error| unsupported(&file.display().to_string(), &error))
    }

    /// Checks the manifest against the model.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with what does not fit.
    pub(crate) fn check(&self, inputs: &[TensorInfo], outputs: &[TensorInfo]) -> Result<()> {
        if let Some(preprocessing) = &self.manifest.picture {
            let checked = match inputs {
                [input] => preprocessing.check(input),
                _ => Err(format!("the model has {} inputs, not one", inputs.len())),
            };
            checked.map_err(|reason| unsupported("model.toml: picture", &reason))?;
        }
        let Some(decoder) = &self.manifest.decoder else { return Ok(()) };
        let checked = decoder.check(picture_extents(inputs), outputs);
        checked.map_err(|reason| unsupported("model.toml: decoder", &reason))
    }

    /// The bytes of the model's one input, from an encoded picture.
    ///
    /// # Errors
    /// [`Error::InvalidTensor`] with what is wrong with the picture.
    pub(crate) fn prepare(&self, picture: &Bytes, input: &TensorInfo) -> Result<Bytes> {
        match &self.manifest.picture {
            Some(preprocessing) => preprocessing.prepare(picture, input),
            None => Err(Error::InvalidTensor(format!("model {:?} takes tensors, not pictures", self.name()))),
        }
    }

    /// What the outputs mean.
    ///
    /// # Errors
    /// [`Error::Internal`] for outputs that [`Self::check`] did not see.
    pub(crate) fn decode(&self, inputs: &[TensorInfo], outputs: &[Tensor], infos: &[TensorInfo]) -> Result<Decoded> {
        match &self.manifest.decoder {
            Some(decoder) => decoder.decode(picture_extents(inputs), &self.labels, outputs, infos),
            None => Ok(Decoded::None),
        }
    }

    /// The known input and outputs.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a file that cannot be read or has another length than its tensor.
    pub(crate) fn golden(&self, inputs: &[TensorInfo], outputs: &[TensorInfo]) -> Result<Option<Golden>> {
        let Some(files) = &self.manifest.golden else { return Ok(None) };
        let bytes = read_file(&self.folder, &files.input, MAX_MODEL_BYTES)?;
        let input = match files.input.extension().is_some_and(|extension| extension == "bin") {
            true => Input::Tensors(split(&files.input, bytes.into(), inputs)?),
            false => Input::Picture(bytes.into()),
        };
        if files.outputs.len() != outputs.len() {
            let reason = format!("{} outputs given, the model has {}", files.outputs.len(), outputs.len());
            return Err(unsupported("model.toml: golden", &reason));
        }
        let of_bytes = |info: &TensorInfo| matches!(info.dtype, DType::I8 | DType::U8);
        if let Some(info) = outputs.iter().find(|info| files.tolerance > 0 && !of_bytes(info)) {
            let reason = format!("output {:?} is {:?}, a tolerance is for 8-bit elements", info.name, info.dtype);
            return Err(unsupported("model.toml: golden", &reason));
        }
        let output = |(file, info): (&PathBuf, &TensorInfo)| {
            let bytes = read_file(&self.folder, file, MAX_MODEL_BYTES)?;
            match bytes.len() == info.bytes() {
                true => Ok(bytes.into()),
                false => Err(wrong_length(file, bytes.len(), info.bytes())),
            }
        };
        let outputs = files.outputs.iter().zip(outputs).map(output).collect::<Result<_>>()?;
        Ok(Some(Golden { input, outputs, tolerance: files.tolerance }))
    }
}

fn picture_extents(inputs: &[TensorInfo]) -> Option<[usize; 2]> {
    match inputs {
        [input] => extents(input),
        _ => None,
    }
}

/// Cuts a file into the inputs of a model.
fn split(file: &Path, mut bytes: Bytes, inputs: &[TensorInfo]) -> Result<Vec<Tensor>> {
    let total = inputs.iter().map(TensorInfo::bytes).sum();
    if bytes.len() != total {
        return Err(wrong_length(file, bytes.len(), total));
    }
    let tensor = |info: &TensorInfo| Tensor {
        name: info.name.clone(),
        dtype: info.dtype,
        shape: info.shape.clone(),
        data: bytes.split_to(info.bytes()),
    };
    Ok(inputs.iter().map(tensor).collect())
}

fn wrong_length(file: &Path, bytes: usize, wanted: usize) -> Error {
    unsupported(&file.display().to_string(), &format!("has {bytes} bytes instead of {wanted}"))
}

fn unsupported(place: &str, reason: &dyn std::fmt::Display) -> Error {
    Error::Unsupported(format!("{place}: {reason}"))
}

fn text(bytes: Vec<u8>, file: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| unsupported(file, &error))
}

/// Reads a file of the package, at most `limit` bytes.
fn read_file(folder: &Path, file: &Path, limit: u64) -> Result<Vec<u8>> {
    let fault = |reason: &dyn std::fmt::Display| unsupported(&file.display().to_string(), reason);
    let mut parts = file.components();
    if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
        return Err(fault(&"is not the name of a file in the package's folder"));
    }
    let path = folder.join(file);
    // A link may lead out of the folder, and opening a pipe would wait for its writer.
    if path.symlink_metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return Err(fault(&"is not a regular file"));
    }
    let open = std::fs::File::open(&path).map_err(|error| unsupported(&path.display().to_string(), &error))?;
    let mut bytes = Vec::new();
    open.take(limit + 1).read_to_end(&mut bytes).map_err(|error| fault(&error))?;
    match u64::try_from(bytes.len()).is_ok_and(|length| length <= limit) {
        true => Ok(bytes),
        false => Err(fault(&format!("is larger than {limit} bytes"))),
    }
}

/// Parses `model.toml`.
fn parse(text: &str) -> Result<Manifest> {
    let fault = |span: Option<Range<usize>>, reason: &str| {
        let (line, column) = position(text, span.map_or(0, |span| span.start));
        unsupported(&format!("model.toml line {line} column {column}"), &reason)
    };
    let manifest: Manifest = toml::from_str(text).map_err(|error| fault(error.span(), error.message()))?;
    if !valid_name(manifest.name.get_ref()) {
        let reason = format!("a name is 1 to {MAX_NAME} lower-case letters, digits and inner hyphens");
        return Err(fault(Some(manifest.name.span()), &reason));
    }
    if manifest.version.get_ref().is_empty() || !manifest.version.get_ref().chars().all(|c| c.is_ascii_graphic()) {
        return Err(fault(Some(manifest.version.span()), "a version is visible ASCII characters"));
    }
    Ok(manifest)
}

fn valid_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

/// Line and column of a byte, both from 1.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..text.floor_char_boundary(at)];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests;
