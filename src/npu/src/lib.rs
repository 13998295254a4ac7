//! The NPU library: what a program uses to run networks on an NPU behind [`npu_device::Device`].
//!
//! [`NetworkBuilder`] takes a network layer by layer, [`Network`] is its plan, [`Resident`] the plan on a device.
//! Planning does no I/O. Nothing here knows which device it drives.

#![forbid(unsafe_code)]

mod chip;
mod emit;
mod error;
mod layer;
pub mod layout;
mod lower;
mod network;
mod ops;
pub mod quantize;
pub mod quirks;
mod run;
pub mod slots;
mod tile;

pub use chip::Chip;
pub use error::{Distrust, Error, MissingSentinel, Result, RunError, RunReport, Unsupported};
pub use network::{LayerReport, Network, NetworkBuilder, NetworkReport, TensorRef};
pub use ops::{Activation, Add, Bias, Conv2d, Depthwise, ElementType, Filter, Padding, Quant, Window};
pub use run::Resident;
