//! The bundled detector's convolutions and sums as a network of the NPU library.

use std::collections::HashMap;
use std::path::Path;

use model::{Graph, Node, Op, TensorId};
use npu::{
    Activation, Add, Bias, Chip, Conv2d, Depthwise, ElementType, Filter, NetworkBuilder, Padding, Quant, TensorRef,
    Window,
};

/// The bundled detector.
pub(crate) fn graph() -> Graph {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/ssd-oidv4/model.tflite");
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    model::tflite::read(&bytes).unwrap()
}

/// The part of a graph that the NPU computes.
pub(crate) struct Part {
    pub(crate) builder: NetworkBuilder,
    /// Tensors that leave the part, in the network's order.
    pub(crate) outputs: Vec<TensorId>,
    /// Nodes of the graph that are in the part.
    pub(crate) nodes: Vec<usize>,
    known: HashMap<TensorId, TensorRef>,
}

impl Part {
    /// Makes the outputs of all nodes outputs of the network.
    pub(crate) fn with_all_outputs(mut self, graph: &Graph) -> Self {
        let all = self.nodes.iter().map(|&node| graph.nodes[node].outputs[0]);
        let inner: Vec<TensorId> = all.filter(|id| !self.outputs.contains(id)).collect();
        inner.iter().for_each(|id| self.builder.output(self.known[id]));
        self.outputs.extend(inner);
        self
    }
}

fn quant(graph: &Graph, id: TensorId) -> Option<Quant> {
    let (scale, zero_point) = graph[id].quantization.as_ref()?.per_tensor()?;
    Some(Quant { scale, zero_point })
}

fn window(graph: &Graph, node: &Node, window: &model::Window) -> Window {
    let filter = &graph[node.inputs[1].unwrap()].shape;
    let model::Padding { top, bottom, left, right } = window.padding;
    Window {
        kernel: [filter[1], filter[2]],
        stride: window.stride,
        dilation: window.dilation,
        padding: Padding { top, bottom, left, right },
    }
}

fn activation(activation: model::Activation) -> Activation {
    match activation {
        model::Activation::None => Activation::None,
        model::Activation::Relu => Activation::Relu,
        model::Activation::ReluN1To1 => Activation::ReluN1To1,
        model::Activation::Relu6 => Activation::Relu6,
    }
}

/// Adds a node, or says that it is none for the NPU.
fn add(
    builder: &mut NetworkBuilder,
    graph: &Graph,
    node: &Node,
    known: &HashMap<TensorId, TensorRef>,
) -> Option<TensorRef> {
    let input = *known.get(&node.inputs[0]?)?;
    let output = quant(graph, node.outputs[0])?;
    let weighted = |id: usize| -> Option<TensorId> { *node.inputs.get(id)? };
    let bias: Option<Vec<i32>> = weighted(2)
        .and_then(|id| graph[id].data.as_ref())
        .map(|data| data.chunks_exact(4).map(|word| i32::from_le_bytes(word.try_into().unwrap())).collect());
    let bias = bias.as_deref().map_or(Bias::None, Bias::I32);
    let filter = weighted(1).and_then(|id| {
        let quant = graph[id].quantization.as_ref()?;
        Some(Filter { data: graph[id].data.as_ref()?, scales: &quant.scales, zero_points: &quant.zero_points })
    });
    Some(match &node.op {
        Op::Conv2d { window: moves, activation: fused } => {
            let (window, activation) = (window(graph, node, moves), activation(*fused));
            let channels = graph[node.outputs[0]].shape[3];
            builder.conv2d(input, &Conv2d { window, channels, filter: filter?, bias, output, activation }).unwrap()
        }
        Op::DepthwiseConv2d { window: moves, multiplier, activation: fused } => {
            let (window, activation) = (window(graph, node, moves), activation(*fused));
            let multiplier = *multiplier;
            builder
                .depthwise(input, &Depthwise { window, multiplier, filter: filter?, bias, output, activation })
                .unwrap()
        }
        Op::Add { activation: fused } => {
            let second = *known.get(&node.inputs[1]?)?;
            builder.add(input, second, &Add { output, activation: activation(*fused) }).unwrap()
        }
        _ => return None,
    })
}

/// Convolutions and sums of two computed tensors; their outputs that other nodes or nobody read leave the part.
pub(crate) fn part(graph: &Graph, chip: &Chip) -> Part {
    let mut builder = NetworkBuilder::new(chip);
    let input = graph.inputs[0];
    let shape = &graph[input].shape;
    let tensor = builder.input([shape[1], shape[2], shape[3]], ElementType::I8, quant(graph, input).unwrap()).unwrap();
    let mut known = HashMap::from([(input, tensor)]);
    let mut outputs = Vec::new();
    let mut nodes = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        match add(&mut builder, graph, node, &known) {
            Some(tensor) => {
                known.insert(node.outputs[0], tensor);
                nodes.push(index);
            }
            None => outputs.extend(node.inputs.iter().flatten().filter(|id| known.contains_key(id))),
        }
    }
    outputs.iter().for_each(|id| builder.output(known[id]));
    Part { builder, outputs, nodes, known }
}
