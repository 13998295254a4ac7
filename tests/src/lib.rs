//! Tests that need more than one crate; see the files beside this one.

#![forbid(unsafe_code)]

pub mod numbers;
pub mod python;
pub mod requester;
pub mod timed;
