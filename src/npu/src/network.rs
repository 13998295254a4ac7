//! A whole network: described layer by layer, planned without I/O, loaded once, run many times.
//!
//! ```text
//! NetworkBuilder ─build─▶ Network (tasks, packed weights) ─load─▶ Resident (buffers) ─run─▶ outputs
//! ```

use std::sync::Arc;
use std::time::Duration;

use npu_device::{Deadline, Device};

use crate::chip::Chip;
use crate::error::{Error, Result, RunError, RunReport, Unsupported};
use crate::ops::{Activation, Add, Conv2d, Depthwise, ElementType, Quant};

/// A tensor of a network under construction. Only valid with the builder that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorRef(usize);

/// Collects a network. Each call checks at once whether the NPU can do the operation.
#[derive(Debug)]
pub struct NetworkBuilder {
    chip: Chip,
}

impl NetworkBuilder {
    /// A network without layers.
    pub fn new(chip: &Chip) -> Self {
        Self { chip: chip.clone() }
    }

    /// A tensor that the caller provides, `[h, w, c]`, NHWC.
    ///
    /// # Errors
    /// Extents that the hardware's fields cannot hold.
    pub fn input(&mut self, shape: [usize; 3], element: ElementType, quant: Quant) -> Result<TensorRef, Unsupported> {
        let _ = (shape, element, quant);
        Err(Unsupported::new(format!("planning for {} is not written yet", self.chip.name)))
    }

    /// Shape `[h, w, c]`, element type and quantisation of a tensor.
    pub fn tensor(&self, _tensor: TensorRef) -> ([usize; 3], ElementType, Quant) {
        ([0; 3], ElementType::I8, Quant::NONE)
    }

    /// A convolution.
    ///
    /// # Errors
    /// What exceeds which limit.
    pub fn conv2d(&mut self, _input: TensorRef, _conv: &Conv2d<'_>) -> Result<TensorRef, Unsupported> {
        Err(Unsupported::new("not written yet"))
    }

    /// A depthwise convolution.
    ///
    /// # Errors
    /// What exceeds which limit.
    pub fn depthwise(&mut self, _input: TensorRef, _conv: &Depthwise<'_>) -> Result<TensorRef, Unsupported> {
        Err(Unsupported::new("not written yet"))
    }

    /// The sum of two tensors of one shape.
    ///
    /// # Errors
    /// What exceeds which limit.
    pub fn add(&mut self, _a: TensorRef, _b: TensorRef, _add: &Add) -> Result<TensorRef, Unsupported> {
        Err(Unsupported::new("not written yet"))
    }

    /// The same numbers in another quantisation or 8-bit element type, or clamped.
    ///
    /// # Errors
    /// What exceeds which limit.
    pub fn requantize(
        &mut self,
        _input: TensorRef,
        _element: ElementType,
        _output: Quant,
        _activation: Activation,
    ) -> Result<TensorRef, Unsupported> {
        Err(Unsupported::new("not written yet"))
    }

    /// Makes a tensor an output of the network. Outputs come in the order of these calls.
    pub fn output(&mut self, _tensor: TensorRef) {}

    /// Plans the network.
    ///
    /// # Errors
    /// [`Error::Layer`] where a layer does not fit after all, [`Error::Empty`] without layers or outputs.
    pub fn build(self) -> Result<Network> {
        Err(Error::Empty("layers"))
    }
}

/// A planned network: tasks, packed weights and layouts.
#[derive(Clone, Debug)]
pub struct Network {
    report: NetworkReport,
}

impl Network {
    /// What the plan costs.
    pub fn report(&self) -> &NetworkReport {
        &self.report
    }

    /// Allocates buffers on `device`, and writes weights, operands and register programs there.
    ///
    /// # Errors
    /// [`Error::Device`] where the device refuses, [`Error::TooLarge`].
    pub fn load(&self, _device: &Arc<dyn Device>) -> Result<Resident> {
        Err(Error::Empty("layers"))
    }
}

/// What a planned network costs. Times are of a model, not measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkReport {
    /// Layers on the NPU.
    pub layers: usize,
    /// Jobs of one run.
    pub jobs: usize,
    /// Tasks of one run.
    pub tasks: usize,
    /// Multiply-accumulates, padding included.
    pub macs: u64,
    /// Bytes of packed weights and operands.
    pub weight_bytes: u64,
    /// Bytes of inputs, intermediates and outputs on the device.
    pub activation_bytes: u64,
    /// Bytes of register programs.
    pub regcmd_bytes: u64,
    /// Bytes that the NPU reads and writes in one run.
    pub bytes_moved: u64,
    /// Modelled time of the jobs of one run.
    pub predicted: Duration,
    /// One entry per layer.
    pub per_layer: Vec<LayerReport>,
}

/// What a layer costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerReport {
    /// Kind and shapes, for people.
    pub what: String,
    /// Tasks.
    pub tasks: usize,
    /// Row bands.
    pub bands: usize,
    /// Channel blocks.
    pub blocks: usize,
    /// Multiply-accumulates, padding included.
    pub macs: u64,
    /// Bytes that the NPU reads and writes.
    pub bytes_moved: u64,
    /// Modelled time.
    pub predicted: Duration,
    /// Output channels that are constant and were computed by the planner.
    pub dead_channels: usize,
}

/// A network on a device.
#[derive(Debug)]
pub struct Resident {
    device: Arc<dyn Device>,
}

impl Resident {
    /// Runs the network once.
    ///
    /// `inputs`: one slice per input, `[h, w, c]`, NHWC, in the input's element type, little-endian.
    /// `outputs`: one vector per output, filled in the same form. After an error they are empty: an unverified result
    /// is never handed out.
    ///
    /// # Errors
    /// [`RunError::Untrusted`] where the jobs ended and the result cannot be verified, [`RunError::Deadline`] where the
    /// deadline passed first, [`RunError::Device`] where the device refuses, [`RunError::Size`] and [`RunError::Count`]
    /// for buffers that do not fit.
    pub fn run(
        &mut self,
        _inputs: &[&[u8]],
        _outputs: &mut [Vec<u8>],
        _deadline: Deadline,
    ) -> Result<RunReport, RunError> {
        let _ = self.device.now();
        Err(RunError::Count { what: "inputs", found: 0, expected: 0 })
    }
}
