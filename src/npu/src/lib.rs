//! The NPU library: what a program uses to run networks on an NPU behind [`npu_device::Device`].
//!
//! [`NetworkBuilder`] takes a network layer by layer, [`Network`] is its plan, [`Resident`] the plan on a device.
//! Planning does no I/O. Nothing here knows which device it drives.

#![forbid(unsafe_code)]

mod chip;
mod error;
pub mod layout;
mod network;
mod ops;
pub mod quantize;
pub mod quirks;
pub mod slots;

pub use chip::Chip;
pub use error::{Distrust, Error, MissingSentinel, Result, RunError, RunReport, Unsupported};
pub use network::{LayerReport, Network, NetworkBuilder, NetworkReport, Resident, TensorRef};
pub use ops::{Activation, Add, Bias, Conv2d, Depthwise, ElementType, Filter, Padding, Quant, Window};
