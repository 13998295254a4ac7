//! Whole tasks against a scalar reference, and what concerns several modules at once.

mod convolution;
mod elementwise;
mod errata;
mod faults;
mod kernel;
pub(crate) mod pooling;
mod product;
