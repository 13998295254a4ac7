//! What every transport turns a frame into, and what it gets back.

use std::time::{Duration, Instant};

use bytes::Bytes;
pub use model::DType;

/// One inference.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name of a loaded model.
    pub model: String,
    /// What it sees.
    pub input: Input,
    /// Who goes first.
    pub priority: Priority,
    /// When the answer loses its worth. Waiting in the queue counts.
    pub deadline: Option<Instant>,
}

/// Input of an inference.
#[derive(Clone, Debug)]
pub enum Input {
    /// One tensor per input of the model, by name or, where all names are empty, in order.
    Tensors(Vec<Tensor>),
    /// An encoded picture, JPEG or PNG; the model package says how it becomes the input tensor.
    Picture(Bytes),
}

/// A tensor as a caller sees it: row-major, little-endian.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Name in the model.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// The elements.
    pub data: Bytes,
}

/// Order in the queue; requests of one priority are served in arrival order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Somebody waits.
    #[default]
    Interactive,
    /// A camera; the next frame comes soon.
    Stream,
    /// Whenever there is time.
    Batch,
}

/// A verified answer. An answer that cannot be verified is [`crate::Error::ResultUntrusted`] instead.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The model that answered.
    pub model: String,
    /// Its version.
    pub version: String,
    /// Raw outputs.
    pub outputs: Vec<Tensor>,
    /// The outputs as the model package's decoder understands them.
    pub decoded: Decoded,
    /// How the answer was verified.
    pub verdict: Verdict,
    /// Where the time went.
    pub timing: Timing,
}

/// What a model saw, for people.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded {
    /// The package names no decoder.
    None,
    /// Objects with boxes, best first.
    Detections(Vec<Detection>),
    /// Classes, best first.
    Classes(Vec<Class>),
}

/// An object in a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Detection {
    /// Name of the class.
    pub label: String,
    /// Index of the class.
    pub class: usize,
    /// Probability, 0 to 1.
    pub score: f32,
    /// Box as fractions of the picture's extents: left, top, right, bottom. Clipped to the picture.
    pub bounds: [f32; 4],
}

/// A class of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Name of the class.
    pub label: String,
    /// Index of the class.
    pub class: usize,
    /// Probability, 0 to 1.
    pub score: f32,
}

/// How an answer was verified.
///
/// Every wait stayed under the slow mark, the kernel reported no fault meanwhile, and every sentinel was overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// At the first attempt.
    Trusted,
    /// At the second attempt, on a fresh context; the first one could not be trusted.
    TrustedAfterRetry,
    /// Nothing ran on the NPU.
    CpuOnly,
}

/// Where the time of a request went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Between admission and execution.
    pub queued: Duration,
    /// Decoding and quantising the input.
    pub prepare: Duration,
    /// Jobs on the NPU, on the device's own clock.
    pub npu: Duration,
    /// Everything on this machine from admission to answer.
    pub total: Duration,
}
