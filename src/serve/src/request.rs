//! Between what transports carry and what the engine takes: the same for all of them.

use std::time::{Duration, Instant};

use api::mqtt::{SeenObject, TimingMicros};
use api::tensor::{Datatype, Options, Priority, Tensor};
use api::{ErrorCode, Failure, Result};
use bytes::Bytes;
use engine::{DType, Decoded, Input, Reply, Request, Timing, Verdict};

/// What a request brings, whatever carried it.
#[derive(Debug)]
pub(crate) enum Body {
    /// An encoded picture.
    Picture(Bytes),
    /// One tensor per input.
    Tensors(Vec<Tensor>),
}

impl Body {
    /// Whether raw outputs are returned where the request does not say: tensors answer tensors.
    pub(crate) fn wants_outputs(&self, options: &Options) -> bool {
        options.outputs.unwrap_or(matches!(self, Self::Tensors(_)))
    }
}

/// A request for the engine. `expiry` is the lifetime that the transport gives it, from `received` on.
pub(crate) fn request(
    model: &str,
    body: Body,
    options: &Options,
    expiry: Option<Duration>,
    received: Instant,
) -> Result<Request> {
    let asked = options.deadline_ms.map(Duration::from_millis);
    let lifetime = [asked, expiry].into_iter().flatten().min();
    let deadline = lifetime
        .map(|lifetime| {
            received
                .checked_add(lifetime)
                .ok_or_else(|| Failure::invalid_args(format!("a deadline of {lifetime:?} is beyond the clock")))
        })
        .transpose()?;
    let input = match body {
        Body::Picture(picture) => Input::Picture(picture),
        Body::Tensors(tensors) => Input::Tensors(tensors.into_iter().map(engine_tensor).collect()),
    };
    let priority = match options.priority {
        Priority::Interactive => engine::Priority::Interactive,
        Priority::Stream => engine::Priority::Stream,
        Priority::Batch => engine::Priority::Batch,
    };
    Ok(Request { model: model.to_owned(), input, priority, deadline })
}

fn engine_tensor(tensor: Tensor) -> engine::Tensor {
    engine::Tensor {
        name: tensor.name().to_owned(),
        dtype: match tensor.datatype() {
            Datatype::Bool => DType::Bool,
            Datatype::Int8 => DType::I8,
            Datatype::Uint8 => DType::U8,
            Datatype::Int16 => DType::I16,
            Datatype::Int32 => DType::I32,
            Datatype::Int64 => DType::I64,
            Datatype::Fp16 => DType::F16,
            Datatype::Fp32 => DType::F32,
        },
        shape: tensor.shape().to_vec(),
        data: tensor.data().clone(),
    }
}

/// The interface's name of an element type.
pub(crate) fn datatype(dtype: DType) -> Datatype {
    match dtype {
        DType::Bool => Datatype::Bool,
        DType::I8 => Datatype::Int8,
        DType::U8 => Datatype::Uint8,
        DType::I16 => Datatype::Int16,
        DType::I32 => Datatype::Int32,
        DType::I64 => Datatype::Int64,
        DType::F16 => Datatype::Fp16,
        DType::F32 => Datatype::Fp32,
    }
}

/// An answer, ready for any transport.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) verdict: &'static str,
    pub(crate) timing: TimingMicros,
    pub(crate) seen: Vec<SeenObject>,
    pub(crate) outputs: Vec<Tensor>,
}

/// Turns a verified reply into an answer, with or without raw outputs.
pub(crate) fn answer(reply: Reply, with_outputs: bool) -> Result<Answer> {
    let outputs = if with_outputs { reply.outputs } else { Vec::new() };
    Ok(Answer {
        model: reply.model,
        version: reply.version,
        verdict: verdict(reply.verdict),
        timing: timing(reply.timing),
        seen: seen(reply.decoded),
        outputs: outputs.into_iter().map(output).collect::<Result<_>>()?,
    })
}

/// A verdict as interfaces name it.
pub(crate) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Trusted => "trusted",
        Verdict::TrustedAfterRetry => "trusted-after-retry",
        Verdict::CpuOnly => "cpu-only",
    }
}

fn timing(timing: Timing) -> TimingMicros {
    let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    TimingMicros {
        queued_us: micros(timing.queued),
        prepare_us: micros(timing.prepare),
        npu_us: micros(timing.npu),
        total_us: micros(timing.total),
    }
}

fn seen(decoded: Decoded) -> Vec<SeenObject> {
    match decoded {
        Decoded::None => Vec::new(),
        Decoded::Detections(detections) => detections
            .into_iter()
            .map(|found| SeenObject {
                label: found.label,
                class: found.class,
                score: found.score,
                bounds: Some(found.bounds),
            })
            .collect(),
        Decoded::Classes(classes) => classes
            .into_iter()
            .map(|class| SeenObject { label: class.label, class: class.class, score: class.score, bounds: None })
            .collect(),
    }
}

fn output(tensor: engine::Tensor) -> Result<Tensor> {
    // CAST: usize has at most 64 bits.
    let shape: Vec<u64> = tensor.shape.iter().map(|&extent| extent as u64).collect();
    Tensor::new(tensor.name, datatype(tensor.dtype), &shape, tensor.data)
        .map_err(|failure| Failure::new(ErrorCode::Internal, format!("output: {}", failure.message)))
}

/// An engine error with its causes, as a client sees it.
pub(crate) fn failure(error: &engine::Error) -> Failure {
    use engine::Error;
    let code = match error {
        Error::Busy(_) => ErrorCode::Busy,
        Error::QueueFull { .. } => ErrorCode::QueueFull,
        Error::DeadlineExceeded { .. } => ErrorCode::DeadlineExceeded,
        Error::UnknownModel(_) => ErrorCode::UnknownModel,
        Error::InvalidTensor(_) => ErrorCode::InvalidTensor,
        Error::ResultUntrusted(_) => ErrorCode::ResultUntrusted,
        Error::DeviceLost(_) => ErrorCode::DeviceLost,
        Error::OutOfMemory(_) => ErrorCode::OutOfMemory,
        Error::ThermalLimit => ErrorCode::ThermalLimit,
        Error::Unsupported(_) => ErrorCode::Unsupported,
        Error::Cancelled => ErrorCode::Cancelled,
        _ => ErrorCode::Internal,
    };
    let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    let message = causes.fold(error.to_string(), |message, cause| format!("{message}: {cause}"));
    Failure::new(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadline(options: &Options, expiry: Option<Duration>) -> Option<Duration> {
        let received = Instant::now();
        let request = request("m", Body::Tensors(Vec::new()), options, expiry, received).unwrap();
        request.deadline.map(|deadline| deadline - received)
    }

    #[test]
    fn the_earlier_of_deadline_and_expiry_counts() {
        let asked = Options { deadline_ms: Some(500), ..Options::default() };
        let (second, short) = (Duration::from_secs(1), Duration::from_millis(500));
        assert_eq!(deadline(&Options::default(), None), None);
        assert_eq!(deadline(&asked, None), Some(short));
        assert_eq!(deadline(&asked, Some(second)), Some(short));
        assert_eq!(deadline(&Options::default(), Some(second)), Some(second));
        assert_eq!(deadline(&asked, Some(Duration::ZERO)), Some(Duration::ZERO));
    }

    #[test]
    fn a_deadline_beyond_the_clock_is_refused() {
        let options = Options { deadline_ms: Some(u64::MAX), ..Options::default() };
        // Linux counts seconds in 64 bits, so this one still fits; one more factor of a thousand does not.
        request("m", Body::Tensors(Vec::new()), &options, None, Instant::now()).unwrap();
        let never = Some(Duration::MAX);
        let failure = request("m", Body::Tensors(Vec::new()), &Options::default(), never, Instant::now()).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidArgs);
    }

    #[test]
    fn an_engine_error_keeps_its_code_and_words() {
        let failure = failure(&engine::Error::QueueFull { capacity: 3 });
        assert_eq!(failure, Failure::new(ErrorCode::QueueFull, "the queue of 3 requests is full"));
    }
}
