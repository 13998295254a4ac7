//! A graph of ours, drawn operator by operator from what a runtime says of its own.
//!
//! Whatever a runtime says is checked by the same code as a model file; an operator that does not pass is left out, with
//! the reason.

use std::collections::{BTreeSet, HashMap};

use model::{Graph, Node, Tensor, TensorId};

use crate::ffi::Runtime;
use crate::survey::describe;

/// A graph under construction.
#[derive(Debug, Default)]
pub(crate) struct Sketch {
    tensors: Vec<Tensor>,
    /// Our index of a runtime's tensor.
    ids: HashMap<i32, TensorId>,
    nodes: Vec<Node>,
}

/// An operator that is not drawn.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// Its name in the schema.
    pub(crate) kind: String,
    /// Why.
    pub(crate) reason: String,
    /// The runtime's tensors that it reads.
    pub(crate) reads: Vec<i32>,
}

impl Sketch {
    /// Draws a runtime's operator and returns its name in the schema and its output in words.
    ///
    /// # Errors
    /// What is malformed or not supported.
    pub(crate) fn add(&mut self, runtime: &Runtime<'_>, node: i32) -> Result<(String, String), Refusal> {
        let refuse = |kind, reason, reads| Refusal { kind, reason, reads };
        let mut described = runtime.operator(node).map_err(|reason| refuse("?".to_owned(), reason, Vec::new()))?;
        let (kind, reads) = (described.name(), described.inputs.clone());
        let checked = (|| {
            described.outputs.iter().try_for_each(|output| runtime.check_owner(*output))?;
            for id in described.inputs.iter_mut().filter(|id| **id >= 0).chain(&mut described.outputs) {
                *id = self.id(runtime, *id)?;
            }
            described.check(&self.tensors)
        })();
        let node = checked.map_err(|reason| refuse(kind.clone(), reason, reads))?;
        let output = describe(&self.tensors[node.outputs[0].0]);
        self.nodes.push(node);
        Ok((kind, output))
    }

    /// Our index of a runtime's tensor.
    fn id(&mut self, runtime: &Runtime<'_>, index: i32) -> Result<i32, String> {
        let id = match self.ids.get(&index) {
            Some(id) => *id,
            None => {
                let tensor = runtime.tensor(index).map_err(|reason| format!("tensor {index}: {reason}"))?;
                let id = TensorId(self.tensors.len());
                self.tensors.push(tensor);
                self.ids.insert(index, id);
                id
            }
        };
        i32::try_from(id.0).map_err(|_| "the graph has too many tensors".to_owned())
    }

    /// The graph between two lists of a runtime's tensors. Inputs that are constants or that nothing reads are left out.
    ///
    /// Returns the inputs and outputs that the graph has, as the runtime's tensors in the graph's order.
    ///
    /// # Errors
    /// What is not in order.
    pub(crate) fn between(self, inputs: &[i32], outputs: &[i32]) -> Result<(Graph, Vec<i32>, Vec<i32>), String> {
        let needed = |index: &&i32| self.ids.get(*index).is_some_and(|id| self.tensors[id.0].data.is_none());
        let inputs: Vec<i32> = inputs.iter().filter(needed).copied().collect();
        let known = |index: &i32| {
            let id = self.ids.get(index).copied();
            id.ok_or_else(|| format!("tensor {index} belongs to no operator of its subset"))
        };
        let from = inputs.iter().map(known).collect::<Result<_, _>>()?;
        let to = outputs.iter().map(known).collect::<Result<_, _>>()?;
        let graph = Graph::assemble(self.tensors, self.nodes, from, to).map_err(|error| error.to_string())?;
        Ok((graph, inputs, outputs.to_vec()))
    }

    /// The graph of everything that was drawn. Its outputs are what nothing reads and what is in `read_elsewhere`.
    ///
    /// # Errors
    /// What is not in order.
    pub(crate) fn whole(self, read_elsewhere: &BTreeSet<i32>) -> Result<Graph, String> {
        let elsewhere: BTreeSet<TensorId> = read_elsewhere.iter().filter_map(|id| self.ids.get(id).copied()).collect();
        let read: BTreeSet<TensorId> = self.nodes.iter().flat_map(|node| &node.inputs).flatten().copied().collect();
        let written: BTreeSet<TensorId> = self.nodes.iter().flat_map(|node| &node.outputs).copied().collect();
        let given = |id: &&TensorId| !written.contains(id) && self.tensors[id.0].data.is_none();
        let inputs = read.iter().filter(given).copied().collect();
        let outputs = written.iter().filter(|id| !read.contains(id) || elsewhere.contains(id)).copied().collect();
        Graph::assemble(self.tensors, self.nodes, inputs, outputs).map_err(|error| error.to_string())
    }
}
