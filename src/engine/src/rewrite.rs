//! Changes a graph into an equal one that suits the NPU better.

use model::{Graph, Op, TensorId};

/// Requantises before reshaping instead of after it, so that arithmetic stays on the NPU and only moving data is left
/// to the CPU. Both orders give the same bytes: requantising works on each element alone.
///
/// Returns, for each node of the changed graph, its index before.
pub(crate) fn requantize_first(graph: &mut Graph) -> Vec<usize> {
    let mut origins: Vec<usize> = (0..graph.nodes.len()).collect();
    for later in 0..graph.nodes.len() {
        if graph.nodes[later].op != Op::Quantize {
            continue;
        }
        let Some(between) = graph.nodes[later].inputs.first().copied().flatten() else { continue };
        let reshape = graph.nodes.iter().position(|node| node.op == Op::Reshape && node.outputs == [between]);
        let Some((earlier, source)) = reshape.and_then(|at| Some((at, graph.nodes[at].inputs.first().copied()??)))
        else {
            continue;
        };
        if is_shared(graph, between) || graph[source].data.is_some() {
            continue;
        }
        swap(graph, earlier, later, source, between);
        origins.swap(earlier, later);
    }
    origins
}

/// Whether more than one node, or the caller, sees a tensor.
fn is_shared(graph: &Graph, tensor: TensorId) -> bool {
    let users = graph.nodes.iter().filter(|node| node.inputs.contains(&Some(tensor)));
    users.count() != 1 || graph.outputs.contains(&tensor)
}

/// `source ─reshape─▶ between ─quantize─▶ end` becomes `source ─quantize─▶ between ─reshape─▶ end`.
fn swap(graph: &mut Graph, earlier: usize, later: usize, source: TensorId, between: TensorId) {
    let end = graph.nodes[later].outputs[0];
    graph.tensors[between.0].shape = graph[source].shape.clone();
    graph.tensors[between.0].dtype = graph[end].dtype;
    graph.tensors[between.0].quantization = graph[end].quantization.clone();
    graph.nodes.swap(earlier, later);
    let quantize = &mut graph.nodes[earlier];
    quantize.inputs[0] = Some(source);
    quantize.outputs[0] = between;
    let reshape = &mut graph.nodes[later];
    reshape.inputs[0] = Some(between);
    reshape.outputs[0] = end;
}

#[cfg(test)]
mod tests {
    use model::{DType, Node, Quantization, Tensor};

    use super::*;

    fn tensor(name: &str, shape: &[usize], scale: f32) -> Tensor {
        Tensor {
            name: name.into(),
            shape: shape.into(),
            dtype: DType::I8,
            quantization: Some(Quantization { scales: vec![scale], zero_points: vec![0], axis: 0 }),
            data: None,
        }
    }

    fn graph(outputs: Vec<TensorId>) -> Graph {
        let node =
            |op, input, output| Node { op, inputs: vec![Some(TensorId(input))], outputs: vec![TensorId(output)] };
        Graph {
            tensors: vec![tensor("a", &[1, 2, 2, 4], 0.5), tensor("b", &[1, 16], 0.5), tensor("c", &[1, 16], 0.25)],
            nodes: vec![node(Op::Reshape, 0, 1), node(Op::Quantize, 1, 2)],
            inputs: vec![TensorId(0)],
            outputs,
        }
    }

    #[test]
    fn a_quantize_after_a_reshape_comes_first() {
        let mut graph = graph(vec![TensorId(2)]);
        assert_eq!(requantize_first(&mut graph), [1, 0]);
        assert_eq!(graph.nodes[0].op, Op::Quantize);
        assert_eq!(graph.nodes[1].op, Op::Reshape);
        let between = &graph.tensors[1];
        assert_eq!(
            (between.shape.as_slice(), between.quantization.as_ref().unwrap().scales[0]),
            (&[1, 2, 2, 4][..], 0.25)
        );
    }

    #[test]
    fn a_reshaped_tensor_that_others_see_stays() {
        let mut graph = graph(vec![TensorId(1), TensorId(2)]);
        assert_eq!(requantize_first(&mut graph), [0, 1]);
        assert_eq!(graph.nodes[0].op, Op::Reshape);
    }
}
