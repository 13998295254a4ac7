//! What must hold in a graph, whatever file it came from: the tensors of a node fit its operator, and every tensor has
//! its value before a node reads it.

use crate::{Activation, DType, Error, Graph, Node, Op, Quantization, Result, Tensor, Window};

/// Checks that each node comes after what it reads, and that nothing is written twice.
pub(crate) fn order(graph: &Graph) -> Result<()> {
    let mut known: Vec<bool> = graph.tensors.iter().map(|tensor| tensor.data.is_some()).collect();
    for &id in &graph.inputs {
        if std::mem::replace(&mut known[id.0], true) {
            let reason = "is an input of the graph and has its value already";
            return Err(tensor_error(graph, id.0, reason));
        }
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let fault = |reason| Error::Operator { index, kind: node.op.name().to_owned(), reason };
        if let Some(id) = node.inputs.iter().flatten().find(|id| !known[id.0]) {
            return Err(fault(format!("reads tensor {} {:?} before it has a value", id.0, graph[*id].name)));
        }
        for id in &node.outputs {
            if std::mem::replace(&mut known[id.0], true) {
                return Err(fault(format!(
                    "writes tensor {} {:?}, which has its value already",
                    id.0, graph[*id].name
                )));
            }
        }
    }
    match graph.outputs.iter().find(|id| !known[id.0]) {
        Some(id) => Err(tensor_error(graph, id.0, "is an output of the graph and nothing writes it")),
        None => Ok(()),
    }
}

fn tensor_error(graph: &Graph, index: usize, reason: &str) -> Error {
    Error::Tensor { index, name: graph.tensors[index].name.clone(), reason: reason.to_owned() }
}

type Verdict = Result<(), String>;

/// Checks a node against its tensors.
pub(crate) fn node(tensors: &[Tensor], node: &Node) -> Verdict {
    let inputs: Vec<Option<&Tensor>> = node.inputs.iter().map(|id| id.map(|id| &tensors[id.0])).collect();
    let &[output] = node.outputs.as_slice() else {
        return Err(format!("has {} outputs instead of one", node.outputs.len()));
    };
    let output = &tensors[output.0];
    if output.data.is_some() {
        return Err(format!("its output {output:?} is a constant"));
    }
    match &node.op {
        Op::Conv2d { window, .. } => conv(&inputs, output, window),
        Op::DepthwiseConv2d { window, multiplier, .. } => depthwise(&inputs, output, window, *multiplier),
        Op::FullyConnected { .. } => fully_connected(&inputs, output),
        Op::Add { .. } | Op::Mul { .. } => elementwise(&inputs, output),
        Op::AveragePool2d { kernel, window, .. } | Op::MaxPool2d { kernel, window, .. } => {
            pool(&inputs, output, *kernel, window)
        }
        Op::Reshape => reshape(&inputs, output),
        Op::Concatenation { axis, activation } => concatenation(&inputs, output, *axis, *activation),
        Op::Pad { amounts } => pad(&inputs, output, amounts),
        Op::Softmax { .. } | Op::Logistic | Op::Relu | Op::Relu6 => unary(&inputs, output),
        Op::Quantize => quantize(&inputs, output),
        Op::Dequantize => dequantize(&inputs, output),
        Op::Mean { axes, keep_dims } => mean(&inputs, output, axes, *keep_dims),
    }
}

fn required<'a>(inputs: &[Option<&'a Tensor>], index: usize) -> Result<&'a Tensor, String> {
    inputs.get(index).copied().flatten().ok_or_else(|| format!("input {index} is missing"))
}

/// The one tensor that the operator computes on; what follows it are parameters.
fn only<'a>(inputs: &[Option<&'a Tensor>], most: usize) -> Result<&'a Tensor, String> {
    if inputs.len() > most {
        return Err(format!("has {} inputs, at most {most} are expected", inputs.len()));
    }
    required(inputs, 0)
}

fn shape4(tensor: &Tensor) -> Result<[usize; 4], String> {
    tensor.shape.as_slice().try_into().map_err(|_| format!("{tensor:?} has not four axes"))
}

fn expect_shape(output: &Tensor, shape: &[usize]) -> Verdict {
    if output.shape == shape { Ok(()) } else { Err(format!("its output {output:?} should have the shape {shape:?}")) }
}

fn expect_dtype(tensor: &Tensor, dtype: DType) -> Verdict {
    if tensor.dtype == dtype { Ok(()) } else { Err(format!("{tensor:?} should be {dtype:?}")) }
}

/// Real numbers, or integers with one scale.
fn expect_values(tensor: &Tensor) -> Verdict {
    match tensor.dtype {
        DType::F32 => Ok(()),
        DType::I8 | DType::U8 | DType::I16 => match tensor.quantization.as_ref().and_then(Quantization::per_tensor) {
            Some(_) => Ok(()),
            None => Err(format!("{tensor:?} should have one scale")),
        },
        _ => Err(format!("{tensor:?} should be real or quantised numbers")),
    }
}

/// Same element type, and both hold values.
fn expect_alike(a: &Tensor, b: &Tensor) -> Verdict {
    expect_values(a)?;
    expect_values(b)?;
    expect_dtype(b, a.dtype)
}

/// Weights with `channels` outputs along `axis`, and the bias, if any.
fn weights(inputs: &[Option<&Tensor>], output: &Tensor, axis: usize, channels: usize) -> Verdict {
    if inputs.len() > 3 {
        return Err(format!("has {} inputs, at most 3 are expected", inputs.len()));
    }
    let (input, filter) = (required(inputs, 0)?, required(inputs, 1)?);
    expect_alike(input, output)?;
    let (filter_dtype, bias_dtypes): (_, &[DType]) = match input.dtype {
        DType::I8 => (DType::I8, &[DType::I32]),
        DType::U8 => (DType::U8, &[DType::I32]),
        DType::I16 => (DType::I8, &[DType::I64, DType::I32]),
        _ => (DType::F32, &[DType::F32]),
    };
    expect_dtype(filter, filter_dtype)?;
    if filter_dtype != DType::F32 {
        let scales = filter.quantization.as_ref().ok_or_else(|| format!("{filter:?} has no scale"))?;
        if scales.scales.len() > 1 && (scales.axis != axis || scales.scales.len() != channels) {
            return Err(format!("the scales of {filter:?} do not follow its outputs"));
        }
        if filter_dtype == DType::I8 && scales.zero_points.iter().any(|&zero_point| zero_point != 0) {
            return Err(format!("signed weights {filter:?} with a zero point are not supported"));
        }
        if filter_dtype == DType::U8 && scales.scales.len() > 1 {
            return Err(format!("unsigned weights {filter:?} with more than one scale are not supported"));
        }
    }
    let Some(bias) = inputs.get(2).copied().flatten() else { return Ok(()) };
    if !bias_dtypes.contains(&bias.dtype) {
        return Err(format!("the bias {bias:?} should be {:?}", bias_dtypes[0]));
    }
    if bias.elements() != channels {
        return Err(format!("the bias {bias:?} should have {channels} elements"));
    }
    Ok(())
}

/// Steps of a window along one axis.
fn steps(input: usize, kernel: usize, axis: usize, window: &Window) -> Result<usize, String> {
    let padding = match axis {
        0 => window.padding.top + window.padding.bottom,
        _ => window.padding.left + window.padding.right,
    };
    let extent = (kernel - 1) * window.dilation[axis] + 1;
    let room = (input + padding).checked_sub(extent);
    let room = room.ok_or_else(|| format!("a window of {extent} does not fit in {input} and padding {padding}"))?;
    Ok(room / window.stride[axis] + 1)
}

fn conv(inputs: &[Option<&Tensor>], output: &Tensor, window: &Window) -> Verdict {
    let (input, filter) = (required(inputs, 0)?, required(inputs, 1)?);
    let ([n, h, w, c], [k, kh, kw, kc]) = (shape4(input)?, shape4(filter)?);
    if kc != c {
        return Err(format!("grouped convolution of {c} channels by filters of {kc} is not supported"));
    }
    weights(inputs, output, 0, k)?;
    expect_shape(output, &[n, steps(h, kh, 0, window)?, steps(w, kw, 1, window)?, k])
}

fn depthwise(inputs: &[Option<&Tensor>], output: &Tensor, window: &Window, multiplier: usize) -> Verdict {
    let (input, filter) = (required(inputs, 0)?, required(inputs, 1)?);
    let ([n, h, w, c], [one, kh, kw, k]) = (shape4(input)?, shape4(filter)?);
    if one != 1 || c.checked_mul(multiplier) != Some(k) {
        return Err(format!("filters {filter:?} do not fit {c} channels times {multiplier}"));
    }
    weights(inputs, output, 3, k)?;
    expect_shape(output, &[n, steps(h, kh, 0, window)?, steps(w, kw, 1, window)?, k])
}

fn fully_connected(inputs: &[Option<&Tensor>], output: &Tensor) -> Verdict {
    let (input, filter) = (required(inputs, 0)?, required(inputs, 1)?);
    let &[m, k] = filter.shape.as_slice() else { return Err(format!("weights {filter:?} have not two axes")) };
    weights(inputs, output, 0, m)?;
    if !input.elements().is_multiple_of(k) {
        return Err(format!("{input:?} does not divide into rows of {k}"));
    }
    let fits = output.shape.last() == Some(&m) && output.elements() / m == input.elements() / k;
    if fits { Ok(()) } else { Err(format!("its output {output:?} should be {} rows of {m}", input.elements() / k)) }
}

fn elementwise(inputs: &[Option<&Tensor>], output: &Tensor) -> Verdict {
    let &[Some(a), Some(b)] = inputs else { return Err(format!("has {} inputs instead of two", inputs.len())) };
    expect_alike(a, b)?;
    expect_alike(a, output)?;
    let rank = a.shape.len().max(b.shape.len());
    let extent = |tensor: &Tensor, axis: usize| {
        let missing = rank - tensor.shape.len();
        if axis < missing { 1 } else { tensor.shape[axis - missing] }
    };
    let shape = (0..rank).map(|axis| match (extent(a, axis), extent(b, axis)) {
        (x, y) if x == y || y == 1 => Ok(x),
        (1, y) => Ok(y),
        _ => Err(format!("{a:?} and {b:?} do not broadcast")),
    });
    expect_shape(output, &shape.collect::<Result<Vec<_>, _>>()?)
}

fn pool(inputs: &[Option<&Tensor>], output: &Tensor, kernel: [usize; 2], window: &Window) -> Verdict {
    let input = only(inputs, 1)?;
    expect_alike(input, output)?;
    let [n, h, w, c] = shape4(input)?;
    let padding = window.padding;
    if padding.top.max(padding.bottom) >= kernel[0] || padding.left.max(padding.right) >= kernel[1] {
        return Err(format!("a kernel of {kernel:?} lies in the padding alone"));
    }
    expect_shape(output, &[n, steps(h, kernel[0], 0, window)?, steps(w, kernel[1], 1, window)?, c])
}

fn reshape(inputs: &[Option<&Tensor>], output: &Tensor) -> Verdict {
    let input = only(inputs, 2)?;
    expect_dtype(output, input.dtype)?;
    if input.elements() != output.elements() {
        return Err(format!("{input:?} and {output:?} differ in elements"));
    }
    Ok(())
}

fn concatenation(inputs: &[Option<&Tensor>], output: &Tensor, axis: usize, activation: Activation) -> Verdict {
    if activation != Activation::None {
        return Err(format!("a fused activation {activation:?} is not supported"));
    }
    let mut shape = required(inputs, 0)?.shape.clone();
    shape[axis] = 0;
    for index in 0..inputs.len() {
        let input = required(inputs, index)?;
        expect_dtype(input, output.dtype)?;
        let alike = input.shape.len() == shape.len()
            && input.shape.iter().zip(&shape).enumerate().all(|(i, (a, b))| i == axis || a == b);
        if !alike {
            return Err(format!("{input:?} does not join {shape:?} along axis {axis}"));
        }
        shape[axis] += input.shape[axis];
    }
    expect_shape(output, &shape)
}

fn pad(inputs: &[Option<&Tensor>], output: &Tensor, amounts: &[[usize; 2]]) -> Verdict {
    let input = only(inputs, 2)?;
    expect_alike(input, output)?;
    if amounts.len() != input.shape.len() {
        return Err(format!("{} pairs of amounts do not fit {input:?}", amounts.len()));
    }
    let shape: Vec<_> = input.shape.iter().zip(amounts).map(|(dim, [before, after])| before + dim + after).collect();
    expect_shape(output, &shape)
}

fn unary(inputs: &[Option<&Tensor>], output: &Tensor) -> Verdict {
    let input = only(inputs, 1)?;
    expect_alike(input, output)?;
    if input.shape.is_empty() {
        return Err(format!("{input:?} has no axes"));
    }
    expect_shape(output, &input.shape)
}

fn quantize(inputs: &[Option<&Tensor>], output: &Tensor) -> Verdict {
    let input = only(inputs, 1)?;
    expect_values(input)?;
    expect_values(output)?;
    if output.dtype == DType::F32 {
        return Err(format!("its output {output:?} is not quantised"));
    }
    expect_shape(output, &input.shape)
}

fn dequantize(inputs: &[Option<&Tensor>], output: &Tensor) -> Verdict {
    let input = only(inputs, 1)?;
    expect_dtype(output, DType::F32)?;
    match input.dtype {
        DType::F16 => {}
        DType::F32 => return Err(format!("its input {input:?} is not quantised")),
        _ => expect_values(input)?,
    }
    expect_shape(output, &input.shape)
}

fn mean(inputs: &[Option<&Tensor>], output: &Tensor, axes: &[usize], keep_dims: bool) -> Verdict {
    let input = only(inputs, 2)?;
    expect_alike(input, output)?;
    let kept = input.shape.iter().enumerate();
    let shape: Vec<usize> = match keep_dims {
        true => kept.map(|(axis, &dim)| if axes.contains(&axis) { 1 } else { dim }).collect(),
        false => kept.filter(|(axis, _)| !axes.contains(axis)).map(|(_, &dim)| dim).collect(),
    };
    expect_shape(output, &shape)
}
