//! One graph on NPU and CPU: partition, sessions, queue, deadlines, trust verdict.
//!
//! ```text
//! Engine::load ─▶ package ─▶ graph ─▶ plan ─▶ a session in every context ─▶ golden output met
//! Engine::load_graph ────────┘
//! Engine::submit ─▶ queue ─▶ worker ─▶ prepare ─▶ session (NPU and CPU steps) ─▶ verdict ─▶ decode ─▶ Reply
//! ```

#![forbid(unsafe_code)]

pub mod cpu;
mod decode;
mod engine;
mod error;
mod info;
mod loaded;
mod package;
mod picture;
mod plan;
mod queue;
mod request;
mod rewrite;
mod session;
mod worker;

pub use engine::{Engine, Pending};
pub use error::{Error, Result, chain};
pub use info::{
    Counters, Event, InFlight, JobKind, ModelInfo, OperatorReport, Options, Place, Report, Status, TensorInfo,
    ThermalLevel,
};
pub use loaded::report;
pub use request::{Class, DType, Decoded, Detection, Input, Priority, Reply, Request, Tensor, Timing, Verdict};
