//! One graph on NPU and CPU: partition, sessions, queue, deadlines, trust verdict.

#![forbid(unsafe_code)]

mod error;
mod request;

pub use error::{Error, Result};
pub use request::{
    Class, DType, Decoded, Detection, Input, Priority, Reply, Request, Tensor, Timing, Verdict,
};
