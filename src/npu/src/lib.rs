//! The NPU library.
