//! Model files to a typed, checked graph.
//!
//! ```text
//! bytes ─ tflite::read ─▶ tensors, nodes ─ check ─▶ Graph
//! bytes ─ gguf::read ───▶ Header: what a language model is, and what it costs
//! ```
//!
//! A file comes from anywhere, so a reader takes nothing for granted: it returns a [`Graph`] whose every index, shape
//! and constant is checked, or an [`Error`] that names the tensor or operator at fault. It does not panic.

#![forbid(unsafe_code)]

mod check;
mod error;
pub mod gguf;
mod graph;
pub mod tflite;

pub use error::{Error, Result};
pub use graph::{Activation, DType, Graph, Node, Op, Padding, Quantization, Tensor, TensorId, Window};
