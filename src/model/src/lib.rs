//! Model files to a typed, checked graph.

#![forbid(unsafe_code)]

mod graph;

pub use graph::{Activation, DType, Graph, Node, Op, Padding, Quantization, Tensor, TensorId, Window};
