//! A claimed subset in the runtime's plan: from its tensors to the engine and back.

use std::sync::Arc;

use bytes::Bytes;

use crate::accelerator::{Accelerator, Part};
use crate::ffi::{Runtime, Subset};
use crate::survey::part_graph;

/// A claimed subset.
#[derive(Debug)]
pub(crate) struct Kernel {
    part: Part,
    /// The runtime's tensors, in the part's order.
    inputs: Vec<i32>,
    outputs: Vec<i32>,
}

impl Kernel {
    /// Makes a subset resident.
    ///
    /// # Errors
    /// What cannot be drawn, planned, loaded or trusted.
    pub(crate) fn new(accelerator: &Arc<Accelerator>, runtime: &Runtime<'_>, subset: &Subset) -> Result<Self, String> {
        let (graph, inputs, outputs) = part_graph(runtime, subset)?;
        Ok(Self { part: accelerator.load(graph)?, inputs, outputs })
    }

    /// Runs one inference on the runtime's tensors. Where there is no trusted result, the outputs stay as they were.
    ///
    /// # Errors
    /// Those of the engine, and a tensor that is not what was claimed.
    pub(crate) fn invoke(&self, runtime: &mut Runtime<'_>) -> Result<(), String> {
        let expected = self.inputs.iter().zip(&self.part.info().inputs);
        let inputs: Vec<Bytes> =
            expected.map(|(index, info)| runtime.contents(*index, info.bytes())).collect::<Result<_, _>>()?;
        let outputs = self.part.run(inputs)?;
        for (index, output) in self.outputs.iter().zip(&outputs) {
            runtime.fill(*index, &output.data)?;
        }
        Ok(())
    }
}
