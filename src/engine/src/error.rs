//! Why there is no answer.

use std::time::Duration;

/// Result of an engine operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A request or command that did not succeed. The variants are the project's stable error codes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine is shutting down.
    #[error("busy: {0}")]
    Busy(String),
    /// The queue has no room.
    #[error("the queue of {capacity} requests is full")]
    QueueFull {
        /// Its room.
        capacity: usize,
    },
    /// The answer would come too late.
    #[error("the deadline passed {late:?} ago, {stage}")]
    DeadlineExceeded {
        /// How long ago.
        late: Duration,
        /// Where the request was.
        stage: &'static str,
    },
    /// No model of that name is loaded.
    #[error("no model named {0:?} is loaded")]
    UnknownModel(String),
    /// The input does not fit the model.
    #[error("{0}")]
    InvalidTensor(String),
    /// Two attempts gave results that cannot be verified.
    #[error("the result cannot be trusted: {0}")]
    ResultUntrusted(String),
    /// The device is gone or refuses.
    #[error("the device is lost")]
    DeviceLost(#[source] npu_device::Error),
    /// Memory is used up.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// The machine is too hot.
    #[error("too hot for this request")]
    ThermalLimit,
    /// The model or the request needs what this engine does not do.
    #[error("{0}")]
    Unsupported(String),
    /// The caller went away.
    #[error("cancelled")]
    Cancelled,
    /// A fault of ours.
    #[error("internal: {0}")]
    Internal(String),
}

/// An error with its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}
