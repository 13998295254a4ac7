//! Which operator runs where.
//!
//! Operators get a level: those that need nothing from the CPU have level 0 and are one NPU network; operators of the
//! CPU that need only these have level 1, and so on, so that a graph becomes as few networks as possible.
//!
//! ```text
//! level 0            level 1        level 2
//! [conv conv add] ─▶ [reshape …] ─▶ [conv …]        each even level one network, run in level order
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};

use model::{Activation, DType, Graph, Node, Op, Tensor, TensorId, Window};
use npu::{Chip, ElementType, Filter, Network, NetworkBuilder, Quant, TensorRef};

use crate::info::{OperatorReport, Place, Report};
use crate::{Error, Result, chain};

/// A graph's networks and the order of its steps.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) networks: Vec<Network>,
    pub(crate) steps: Vec<Step>,
    pub(crate) report: Report,
}

/// One step of a run.
#[derive(Debug)]
pub(crate) enum Step {
    /// A network, with the tensors that cross its border.
    Npu { network: usize, inputs: Vec<TensorId>, outputs: Vec<TensorId> },
    /// An operator on the CPU, by its index in the graph.
    Cpu { node: usize },
}

/// An NPU network under construction.
struct Segment {
    builder: NetworkBuilder,
    refs: HashMap<TensorId, TensorRef>,
    inputs: Vec<TensorId>,
    nodes: Vec<usize>,
}

/// Where each operator goes.
struct Partition<'g> {
    graph: &'g Graph,
    chip: &'g Chip,
    segments: BTreeMap<usize, Segment>,
    /// Level of the operator that makes a tensor; others have level 0.
    levels: HashMap<TensorId, usize>,
    cpu: BTreeMap<usize, Vec<usize>>,
    reasons: HashMap<usize, String>,
}

/// Plans a graph. `origins` tells the index in the model file of each node.
///
/// # Errors
/// [`Error::Unsupported`] where a network cannot be planned after all.
pub(crate) fn plan(graph: &Graph, origins: &[usize], chip: &Chip) -> Result<Plan> {
    let first = Partition::new(graph, chip, &HashSet::new());
    let too_small = first.without_convolution();
    let partition = if too_small.is_empty() { first } else { Partition::new(graph, chip, &too_small) };
    partition.finish(origins)
}

impl<'g> Partition<'g> {
    fn new(graph: &'g Graph, chip: &'g Chip, keep_on_cpu: &HashSet<usize>) -> Self {
        let mut partition = Self {
            graph,
            chip,
            segments: BTreeMap::new(),
            levels: HashMap::new(),
            cpu: BTreeMap::new(),
            reasons: HashMap::new(),
        };
        for (index, node) in graph.nodes.iter().enumerate() {
            let tried = if keep_on_cpu.contains(&index) {
                Err("too little work for a job of its own".into())
            } else {
                partition.try_npu(index, node)
            };
            if let Err(reason) = tried {
                partition.reasons.insert(index, reason);
                let level = partition.level(node) | 1;
                partition.cpu.entry(level).or_default().push(index);
                partition.set_level(node, level);
            }
        }
        partition
    }

    /// The highest level among a node's inputs.
    fn level(&self, node: &Node) -> usize {
        node.inputs.iter().flatten().filter_map(|id| self.levels.get(id)).copied().max().unwrap_or(0)
    }

    fn set_level(&mut self, node: &Node, level: usize) {
        for output in &node.outputs {
            self.levels.insert(*output, level);
        }
    }

    fn try_npu(&mut self, index: usize, node: &Node) -> Result<(), String> {
        let graph = self.graph;
        let operands = operands(graph, node)?;
        let mut scratch = Segment::new(self.chip);
        scratch.add(graph, node, &operands)?;
        let level = self.level(node).next_multiple_of(2);
        let segment = self.segments.entry(level).or_insert_with(|| Segment::new(self.chip));
        segment.add(graph, node, &operands)?;
        segment.nodes.push(index);
        self.set_level(node, level);
        Ok(())
    }

    /// Operators of networks that would cost a job without a convolution to earn it.
    fn without_convolution(&self) -> HashSet<usize> {
        let earns =
            |index: &usize| matches!(self.graph.nodes[*index].op, Op::Conv2d { .. } | Op::DepthwiseConv2d { .. });
        let poor = self.segments.values().filter(|segment| !segment.nodes.iter().any(earns));
        poor.flat_map(|segment| segment.nodes.iter().copied()).collect()
    }

    fn finish(self, origins: &[usize]) -> Result<Plan> {
        let graph = self.graph;
        let mut needed: HashMap<TensorId, Vec<usize>> = HashMap::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            for id in node.inputs.iter().flatten() {
                needed.entry(*id).or_default().push(index);
            }
        }
        let mut report = Report { operators: operators(graph, origins, &self.reasons), ..Report::default() };
        let mut steps: BTreeMap<usize, Vec<Step>> = BTreeMap::new();
        for (level, nodes) in self.cpu {
            steps.entry(level).or_default().extend(nodes.into_iter().map(|node| Step::Cpu { node }));
        }
        let mut networks = Vec::new();
        for (level, mut segment) in self.segments {
            let members: HashSet<usize> = segment.nodes.iter().copied().collect();
            let leaves = |id: &TensorId| {
                graph.outputs.contains(id)
                    || needed.get(id).is_some_and(|users| users.iter().any(|user| !members.contains(user)))
            };
            let made = segment.nodes.iter().flat_map(|node| graph.nodes[*node].outputs.iter().copied());
            let outputs: Vec<TensorId> = made.filter(leaves).collect();
            for id in &outputs {
                segment.builder.output(segment.refs[id]);
            }
            let network = segment.builder.build().map_err(|error| unsupported(graph, &segment.nodes, &error))?;
            count(&mut report, network.report());
            let step = Step::Npu { network: networks.len(), inputs: segment.inputs, outputs };
            steps.entry(level).or_default().push(step);
            networks.push(network);
        }
        Ok(Plan { networks, steps: steps.into_values().flatten().collect(), report })
    }
}

impl Segment {
    fn new(chip: &Chip) -> Self {
        Self { builder: NetworkBuilder::new(chip), refs: HashMap::new(), inputs: Vec::new(), nodes: Vec::new() }
    }

    /// The network's tensor for a tensor of the graph, made an input where the network does not compute it.
    fn tensor(&mut self, graph: &Graph, id: TensorId) -> Result<TensorRef, String> {
        if let Some(tensor) = self.refs.get(&id) {
            return Ok(*tensor);
        }
        let described = describe(&graph[id])?;
        let tensor = self.builder.input(described.shape, described.element, described.quant).map_err(text)?;
        self.refs.insert(id, tensor);
        self.inputs.push(id);
        Ok(tensor)
    }

    fn add(&mut self, graph: &Graph, node: &Node, operands: &Operands<'_>) -> Result<(), String> {
        let input = self.tensor(graph, operands.input)?;
        let Described { element, quant: output, .. } = operands.output;
        let made = match (&node.op, &operands.weights) {
            (Op::Conv2d { window, activation }, Some(weights)) => self.builder.conv2d(
                input,
                &npu::Conv2d {
                    window: moving(window, weights.kernel),
                    channels: weights.channels,
                    filter: weights.filter,
                    bias: npu::Bias::I32(&weights.bias),
                    output,
                    activation: fused(*activation),
                },
            ),
            (Op::DepthwiseConv2d { window, multiplier, activation }, Some(weights)) => self.builder.depthwise(
                input,
                &npu::Depthwise {
                    window: moving(window, weights.kernel),
                    multiplier: *multiplier,
                    filter: weights.filter,
                    bias: npu::Bias::I32(&weights.bias),
                    output,
                    activation: fused(*activation),
                },
            ),
            (Op::Add { activation }, None) => {
                let other = operands.other.ok_or("a sum needs two operands")?;
                let other = self.tensor(graph, other)?;
                self.builder.add(input, other, &npu::Add { output, activation: fused(*activation) })
            }
            (op, None) => {
                let activation = match op {
                    Op::Relu => npu::Activation::Relu,
                    Op::Relu6 => npu::Activation::Relu6,
                    _ => npu::Activation::None,
                };
                self.builder.requantize(input, element, output, activation)
            }
            (op, Some(_)) => return Err(format!("{} takes no weights", op.name())),
        };
        self.refs.insert(node.outputs[0], made.map_err(text)?);
        Ok(())
    }
}

/// What a node of an NPU network is made of.
struct Operands<'g> {
    input: TensorId,
    other: Option<TensorId>,
    weights: Option<Weights<'g>>,
    output: Described,
}

/// Constant operands of a convolution.
struct Weights<'g> {
    kernel: [usize; 2],
    channels: usize,
    filter: Filter<'g>,
    bias: Vec<i32>,
}

/// A tensor as the NPU library sees it.
#[derive(Clone, Copy)]
struct Described {
    shape: [usize; 3],
    element: ElementType,
    quant: Quant,
}

/// Takes a node apart, or says why the NPU cannot do it.
fn operands<'g>(graph: &'g Graph, node: &Node) -> Result<Operands<'g>, String> {
    let takes_weights = match node.op {
        Op::Conv2d { .. } | Op::DepthwiseConv2d { .. } => true,
        Op::Add { .. } | Op::Quantize | Op::Relu | Op::Relu6 => false,
        Op::Reshape | Op::Concatenation { .. } => return Err("moves data only".into()),
        _ => return Err(format!("{} has no NPU program yet", node.op.name())),
    };
    let input = node.inputs.first().copied().flatten().ok_or("has no input")?;
    let second = node.inputs.get(1).copied().flatten();
    let output = describe(&graph[node.outputs[0]])?;
    describe(&graph[input])?;
    if graph[input].data.is_some() {
        return Err(format!("input {:?} is a constant", graph[input].name));
    }
    if !takes_weights {
        if let Some(other) = second.map(|id| &graph[id])
            && (other.shape != graph[input].shape || other.data.is_some())
        {
            return Err(format!("operand {:?} is a constant or is broadcast", other.name));
        }
        return Ok(Operands { input, other: second, weights: None, output });
    }
    let filter = &graph[second.ok_or("has no filter")?];
    let &[_, kernel_height, kernel_width, _] = filter.shape.as_slice() else {
        return Err(format!("filter {:?} has shape {:?}", filter.name, filter.shape));
    };
    if filter.dtype != graph[input].dtype {
        return Err(format!("filter {:?} is {:?}, the input {:?}", filter.name, filter.dtype, graph[input].dtype));
    }
    let data = filter.data.as_deref().ok_or_else(|| format!("filter {:?} is not a constant", filter.name))?;
    let quantization = filter.quantization.as_ref().ok_or_else(|| format!("filter {:?} has no scale", filter.name))?;
    let channels = output.shape[2];
    let bias = match node.inputs.get(2).copied().flatten() {
        Some(id) => integers(&graph[id])?,
        None => vec![0; channels],
    };
    let filter = Filter { data, scales: &quantization.scales, zero_points: &quantization.zero_points };
    let weights = Weights { kernel: [kernel_height, kernel_width], channels, filter, bias };
    Ok(Operands { input, other: None, weights: Some(weights), output })
}

/// A tensor of one picture with one scale.
fn describe(tensor: &Tensor) -> Result<Described, String> {
    let &[1, height, width, channels] = tensor.shape.as_slice() else {
        return Err(format!("tensor {:?} of shape {:?} is not one picture", tensor.name, tensor.shape));
    };
    let element = match tensor.dtype {
        DType::I8 => ElementType::I8,
        DType::U8 => ElementType::U8,
        other => return Err(format!("tensor {:?} is {other:?}", tensor.name)),
    };
    let (scale, zero_point) = tensor
        .quantization
        .as_ref()
        .and_then(model::Quantization::per_tensor)
        .ok_or_else(|| format!("tensor {:?} has no single scale", tensor.name))?;
    Ok(Described { shape: [height, width, channels], element, quant: Quant { scale, zero_point } })
}

/// The values of a constant of 32-bit integers.
fn integers(tensor: &Tensor) -> Result<Vec<i32>, String> {
    let data = tensor.data.as_deref().filter(|_| tensor.dtype == DType::I32);
    let data = data.ok_or_else(|| format!("bias {:?} is not a 32-bit constant", tensor.name))?;
    let values = data.chunks_exact(4).map(|bytes| i32::from_le_bytes(bytes.try_into().expect("chunks of four")));
    Ok(values.collect())
}

fn moving(window: &Window, kernel: [usize; 2]) -> npu::Window {
    let model::Padding { top, bottom, left, right } = window.padding;
    npu::Window {
        kernel,
        stride: window.stride,
        dilation: window.dilation,
        padding: npu::Padding { top, bottom, left, right },
    }
}

fn fused(activation: Activation) -> npu::Activation {
    match activation {
        Activation::None => npu::Activation::None,
        Activation::Relu => npu::Activation::Relu,
        Activation::ReluN1To1 => npu::Activation::ReluN1To1,
        Activation::Relu6 => npu::Activation::Relu6,
    }
}

fn text(error: npu::Unsupported) -> String {
    error.what
}

/// Names the operator behind a network's error.
fn unsupported(graph: &Graph, nodes: &[usize], error: &npu::Error) -> Error {
    let place = match error {
        npu::Error::Layer { layer, .. } => nodes.get(*layer).map(|node| &graph.nodes[*node]),
        _ => None,
    };
    let mut message = chain(error);
    if let Some(node) = place {
        message = format!("{} {:?}: {message}", node.op.name(), graph[node.outputs[0]].name);
    }
    Error::Unsupported(message)
}

fn operators(graph: &Graph, origins: &[usize], reasons: &HashMap<usize, String>) -> Vec<OperatorReport> {
    let nodes = graph.nodes.iter().enumerate().zip(origins);
    let mut operators: Vec<_> = nodes
        .map(|((index, node), origin)| OperatorReport {
            index: *origin,
            kind: node.op.name(),
            name: graph[node.outputs[0]].name.clone(),
            place: if reasons.contains_key(&index) { Place::Cpu } else { Place::Npu },
            reason: reasons.get(&index).cloned(),
        })
        .collect();
    operators.sort_by_key(|operator| operator.index);
    operators
}

fn count(report: &mut Report, network: &npu::NetworkReport) {
    report.npu_jobs += network.jobs;
    report.npu_tasks += network.tasks;
    report.npu_macs += network.macs;
    report.weight_bytes += network.weight_bytes;
    report.memory_bytes += network.weight_bytes + network.activation_bytes + network.regcmd_bytes;
    report.bytes_moved += network.bytes_moved;
    report.predicted += network.predicted;
}
