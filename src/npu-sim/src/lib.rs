//! A software NPU.
