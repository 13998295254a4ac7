//! The NPU library: what a program uses to run products and networks on an NPU behind [`npu_device::Device`].
//!
//! [`Context`] runs [matrix products](matmul) in every datatype, [convolutions](conv), [pooling](pool), sums and element-wise
//! operations on all cores; [`Options`] says how.
//! [`NetworkBuilder`] takes a network layer by layer, [`Network`] is its plan, [`Resident`] the plan on a device.
//! Planning does no I/O. Nothing here knows which device it drives.

#![forbid(unsafe_code)]

mod affinity;
mod chip;
mod context;
pub mod conv;
mod elementwise;
mod emit;
mod error;
mod job;
mod layer;
pub mod layout;
mod lower;
pub mod matmul;
mod network;
mod ops;
mod options;
pub mod pool;
pub mod quantize;
pub mod quirks;
mod reduce;
mod rk3576;
mod rows;
mod run;
mod sentinel;
pub mod slots;
mod tile;
mod trace;

pub use affinity::Affinity;
pub use chip::Chip;
pub use context::Context;
pub use elementwise::{ElementNumber, ElementOp};
pub use error::{Distrust, Error, MissingSentinel, Result, RunError, RunReport, Unsupported, Waits};
pub use network::{LayerReport, Network, NetworkBuilder, NetworkReport, TensorRef};
pub use ops::{Activation, Add, Bias, Conv2d, Depthwise, ElementType, Filter, Padding, Quant, Sums, Window};
pub use options::{OperandReuse, Options};
pub use pool::PoolKind;
pub use reduce::CumulativeSum;
pub use run::Resident;
pub use trace::{Counters, Event, Trace};
