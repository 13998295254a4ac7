//! A model in one context: resident networks, host buffers, and one run through both.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::TensorId;
use npu::{Resident, RunError};
use npu_device::{Deadline, Device};

use crate::loaded::Model;
use crate::plan::Step;
use crate::{Error, Result, Tensor, chain};

/// A model in one context.
#[derive(Debug)]
pub(crate) struct Session {
    model: Arc<Model>,
    device: Arc<dyn Device>,
    networks: Vec<Resident>,
    /// Contents of the tensors that cross a border between NPU, CPU and caller; empty for all others.
    buffers: Vec<Vec<u8>>,
}

/// A run without an answer.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// There is a result, and it cannot be verified. Another context may do better.
    Untrusted {
        /// Why.
        reason: String,
        /// Whether all of it was written, as far as can be seen.
        complete: bool,
    },
    /// Another attempt would end the same way.
    Fatal(Error),
}

impl Session {
    /// Makes the model resident in the context of `device`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub(crate) fn new(model: &Arc<Model>, device: &Arc<dyn Device>) -> Result<Self> {
        let networks = model.plan.networks.iter().map(|network| network.load(device).map_err(refused));
        Ok(Self {
            networks: networks.collect::<Result<_>>()?,
            buffers: vec![Vec::new(); model.graph.tensors.len()],
            model: Arc::clone(model),
            device: Arc::clone(device),
        })
    }

    /// Runs the model once and returns its outputs and the time on the NPU.
    ///
    /// `inputs`: one per input of the model, with exactly its bytes.
    pub(crate) fn run(&mut self, inputs: &[Bytes], patience: Duration) -> Result<(Vec<Tensor>, Duration), Attempt> {
        let model = Arc::clone(&self.model);
        let mut npu = Duration::ZERO;
        for step in &model.plan.steps {
            match step {
                Step::Npu { network, inputs: from, outputs } => {
                    npu += self.run_network(*network, from, outputs, inputs, patience)?;
                }
                Step::Cpu { node } => self.run_operator(*node, inputs)?,
            }
        }
        Ok((self.outputs(inputs), npu))
    }

    fn run_network(
        &mut self,
        network: usize,
        from: &[TensorId],
        to: &[TensorId],
        inputs: &[Bytes],
        patience: Duration,
    ) -> Result<Duration, Attempt> {
        let model = Arc::clone(&self.model);
        let mut outputs: Vec<Vec<u8>> = to.iter().map(|id| std::mem::take(&mut self.buffers[id.0])).collect();
        let slices: Vec<&[u8]> = from.iter().map(|id| contents(&model, &self.buffers, *id, inputs)).collect();
        let deadline = Deadline::after(self.device.as_ref(), patience);
        let result = self.networks[network].run(&slices, &mut outputs, deadline);
        for (id, output) in to.iter().zip(outputs) {
            self.buffers[id.0] = output;
        }
        match result {
            Ok(report) => Ok(report.waits.total),
            Err(error @ (RunError::Size { .. } | RunError::Count { .. })) => {
                Err(Attempt::Fatal(Error::Internal(chain(&error))))
            }
            Err(error) => {
                let complete =
                    matches!(&error, RunError::Untrusted { report, .. } if report.missing_sentinels.is_empty());
                Err(Attempt::Untrusted { reason: chain(&error), complete })
            }
        }
    }

    fn run_operator(&mut self, node: usize, inputs: &[Bytes]) -> Result<(), Attempt> {
        let model = Arc::clone(&self.model);
        let to = model.graph.nodes[node].outputs[0];
        let mut output = std::mem::take(&mut self.buffers[to.0]);
        output.resize(model.graph[to].bytes(), 0);
        let from = model.graph.nodes[node].inputs.iter();
        let slices: Vec<&[u8]> =
            from.map(|id| id.map_or(&[][..], |id| contents(&model, &self.buffers, id, inputs))).collect();
        let result = model.operator(node).run(&slices, &mut output);
        self.buffers[to.0] = output;
        result.map_err(Attempt::Fatal)
    }

    fn outputs(&self, inputs: &[Bytes]) -> Vec<Tensor> {
        let model = &self.model;
        let outputs = model.graph.outputs.iter().zip(&model.info.outputs);
        outputs
            .map(|(id, info)| Tensor {
                name: info.name.clone(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                data: Bytes::copy_from_slice(contents(model, &self.buffers, *id, inputs)),
            })
            .collect()
    }
}

/// What a tensor holds: the caller's bytes, a constant, or what a step has written.
fn contents<'a>(model: &'a Model, buffers: &'a [Vec<u8>], id: TensorId, inputs: &'a [Bytes]) -> &'a [u8] {
    if let Some(at) = model.graph.inputs.iter().position(|input| *input == id) {
        return &inputs[at];
    }
    model.graph[id].data.as_deref().unwrap_or(&buffers[id.0])
}

fn refused(error: npu::Error) -> Error {
    use npu_device::Errno;
    match error {
        npu::Error::Device { what, source } if matches!(source.errno(), Some(Errno::NOMEM | Errno::NOSPC)) => {
            Error::OutOfMemory(format!("{what}: {}", chain(&source)))
        }
        npu::Error::Device { source, .. } => Error::DeviceLost(source),
        npu::Error::TooLarge { .. } => Error::OutOfMemory(chain(&error)),
        error => Error::Unsupported(chain(&error)),
    }
}
