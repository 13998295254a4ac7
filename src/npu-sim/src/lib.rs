//! A software NPU behind the device seam, so low that what drives it cannot tell.
//!
//! ```text
//! Simulator (Driver) ─▶ kernel: files, buffer objects, queues, watchdog, log
//!                          └─▶ controller: command words ─▶ register groups ─▶ datapath
//!                                 conv   = cna ─▶ mac ─▶ dpu ─▶ memory
//!                                 flying = rdma ─▶ dpu ─▶ memory
//!                                 ppu    = reader ─▶ windows ─▶ memory
//! ```
//!
//! It fails closed: a word, register, address or mode that means nothing, or that nobody has seen hardware do, makes the
//! job hang as a hung job does on a board, and [`Simulator::faults`] says why. Time is virtual and comes from a
//! [cost model](CostModel), which ranks plans and measures nothing. Errata are in [`quirks`], test levers in [`levers`].
//!
//! Known differences from a board: a job reads its inputs while SUBMIT runs and writes its outputs all at once when it
//! ends; a buffer closed while a job runs stays mapped; caches are coherent, so a forgotten FINI is not noticed.
//!
//! Jobs compute on rayon's threads inside SUBMIT, so SUBMIT must not be called from one of them.
//!
//! SOURCE: npu-spec; where the code says nothing else, its sections are the reference.

#![forbid(unsafe_code)]

// CAST: casts without a label go from 32 bits to `usize`, or from `usize` to 64 bits, and this makes them lossless.
const _: () = assert!(usize::BITS == u64::BITS);

mod cbuf;
mod cna;
mod controller;
mod conv;
mod cost;
mod counters;
mod dpu;
mod fault;
mod flying;
mod kernel;
pub mod levers;
mod mac;
mod memory;
pub mod mmio;
mod ppu;
pub mod quirks;
mod rdma;
mod registers;
mod rk3576;
#[cfg(test)]
mod testbed;
#[cfg(test)]
mod tests;

pub use cost::{CostModel, Work};
pub use counters::Counters;
pub use fault::{Direction, Fault};
pub use kernel::{FaultRecord, File, Options, Receipt, Simulator};
pub use levers::{Lever, Levers, Rates};
pub use quirks::Quirk;
