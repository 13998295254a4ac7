//! What a model's outputs mean.
//!
//! ```text
//! output tensors ─ reals ─▶ [f32] ─ ssd, classify ─▶ Decoded
//! ```
//!
//! A decoder knows the shape of the answer, not the model: everything else is a parameter in the package.

mod classify;
mod ssd;

use model::DType;
use serde::Deserialize;

use crate::{Decoded, Error, Result, Tensor, TensorInfo};

/// A decoder and its parameters, as the package names them.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Decoder {
    /// Single-shot detector: boxes relative to anchors.
    Ssd(ssd::Ssd),
    /// One score per class.
    Classify(classify::Classify),
}

impl Decoder {
    /// Checks the parameters against the model.
    ///
    /// # Errors
    /// What does not fit.
    pub(crate) fn check(&self, picture: Option<[usize; 2]>, outputs: &[TensorInfo]) -> Result<(), String> {
        match self {
            Self::Ssd(ssd) => ssd.check(picture, outputs),
            Self::Classify(classify) => classify.check(outputs),
        }
    }

    /// Understands the outputs. `picture` is the height and width of the model's input.
    ///
    /// # Errors
    /// [`Error::Internal`] for outputs that [`Self::check`] did not see.
    pub(crate) fn decode(
        &self,
        picture: Option<[usize; 2]>,
        labels: &[String],
        outputs: &[Tensor],
        infos: &[TensorInfo],
    ) -> Result<Decoded> {
        let decoded = match self {
            Self::Ssd(ssd) => ssd.decode(picture, labels, outputs, infos).map(Decoded::Detections),
            Self::Classify(classify) => classify.decode(labels, outputs, infos).map(Decoded::Classes),
        };
        decoded.map_err(Error::Internal)
    }
}

/// Index of the output of a name.
fn find(name: &str, outputs: &[TensorInfo]) -> Result<usize, String> {
    outputs.iter().position(|info| info.name == name).ok_or_else(|| format!("the model has no output {name:?}"))
}

/// Whether [`reals`] reads the tensor.
fn check_real(info: &TensorInfo) -> Result<(), String> {
    match (info.dtype, info.quantization) {
        (DType::F32, _) | (DType::I8 | DType::U8, Some(_)) => Ok(()),
        _ => Err(format!("output {:?} is neither real nor quantised with one scale", info.name)),
    }
}

/// The numbers that a tensor stands for.
fn reals(tensor: &Tensor, info: &TensorInfo) -> Result<Vec<f32>, String> {
    if tensor.data.len() != info.bytes() {
        return Err(format!("output {:?} has {} bytes instead of {}", info.name, tensor.data.len(), info.bytes()));
    }
    let quantized = |value: fn(u8) -> i32| {
        let (scale, zero_point) = info.quantization.ok_or_else(|| format!("output {:?} has no scale", info.name))?;
        Ok(tensor.data.iter().map(|&byte| scale * (value(byte) - zero_point) as f32).collect())
    };
    match info.dtype {
        DType::I8 => quantized(|byte| byte.cast_signed().into()),
        DType::U8 => quantized(i32::from),
        DType::F32 => Ok(tensor.data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()),
        other => Err(format!("output {:?} is {other:?}", info.name)),
    }
}

/// The name of a class.
fn label(labels: &[String], class: usize) -> String {
    labels.get(class).cloned().unwrap_or_else(|| format!("class {class}"))
}

fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// Turns logits into probabilities that add up to 1.
fn softmax(logits: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    logits.iter_mut().for_each(|logit| *logit = (*logit - largest).exp());
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|term| *term /= sum);
}
