//! Operators on the CPU: what the NPU does not do, and the reference for what it does.
//!
//! ```text
//! load:  Graph, Node ─ Prepared::new ─▶ widened weights, multipliers, tables
//! run:   input bytes ─ Prepared::run ─▶ output bytes
//! ```
//!
//! Quantised results equal TFLite's reference kernels bit by bit, so a network may be cut between NPU and CPU anywhere
//! without a second opinion on rounding. Inference crates on the CPU (tract and its kin) compute quantised operators
//! with roundings of their own, so these are small kernels of ours, for two element kinds only: 16-bit differences from
//! the zero point, which signed and unsigned models share, and `f32`. Operators of one quantised input are tables of 256
//! bytes. In `f32` the terms are added in TFLite's order too, but nothing depends on the last bit.
//!
//! SOURCE: the arithmetic of TFLite's reference kernels, checked against LiteRT (`tests/tests/cpu_reference.rs`).

mod arithmetic;
mod elementwise;
mod fixed;
mod rearrange;
mod unary;
mod weighted;
mod window;

use std::fmt;

use model::{DType, Graph, Node, Op, Tensor, TensorId};

use crate::{Error, Result};

/// Computes one output from the bytes of every input.
type Kernel = Box<dyn Fn(&[&[u8]], &mut [u8]) + Send + Sync>;

/// An operator that is ready to run.
pub struct Prepared {
    kernel: Kernel,
    kind: &'static str,
    input_bytes: Vec<usize>,
    output_bytes: usize,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prepared({})", self.kind)
    }
}

/// Whether the CPU computes `node`.
///
/// # Errors
/// The reason why not.
pub fn supports(graph: &Graph, node: &Node) -> Result<(), String> {
    Prepared::new(graph, node).map(drop)
}

impl Prepared {
    /// Builds what a node needs at every run.
    ///
    /// # Errors
    /// The reason why the CPU does not compute it.
    pub fn new(graph: &Graph, node: &Node) -> Result<Self, String> {
        let operands = Operands { graph, node };
        let kernel = match &node.op {
            Op::Conv2d { window, activation } => weighted::conv(&operands, *window, *activation),
            Op::DepthwiseConv2d { window, multiplier, activation } => {
                weighted::depthwise(&operands, *window, *multiplier, *activation)
            }
            Op::FullyConnected { activation } => weighted::fully_connected(&operands, *activation),
            Op::Add { activation } => elementwise::add(&operands, *activation),
            Op::Mul { activation } => elementwise::mul(&operands, *activation),
            Op::AveragePool2d { kernel, window, activation } => {
                window::average_pool(&operands, *kernel, *window, *activation)
            }
            Op::MaxPool2d { kernel, window, activation } => window::max_pool(&operands, *kernel, *window, *activation),
            Op::Reshape => Ok(rearrange::reshape()),
            Op::Concatenation { axis, .. } => rearrange::concatenation(&operands, *axis),
            Op::Pad { amounts } => rearrange::pad(&operands, amounts),
            Op::Mean { axes, .. } => rearrange::mean(&operands, axes),
            Op::Softmax { beta } => unary::softmax(&operands, *beta),
            Op::Logistic => unary::logistic(&operands),
            Op::Relu => unary::relu(&operands, model::Activation::Relu),
            Op::Relu6 => unary::relu(&operands, model::Activation::Relu6),
            Op::Quantize => unary::quantize(&operands),
            Op::Dequantize => unary::dequantize(&operands),
        }?;
        let bytes = |id: &Option<TensorId>| id.map_or(0, |id| graph[id].bytes());
        Ok(Self {
            kernel,
            kind: node.op.name(),
            input_bytes: node.inputs.iter().map(bytes).collect(),
            output_bytes: operands.output().bytes(),
        })
    }

    /// Computes the output. `inputs` are those of the node in its order, constants too; an absent one is empty.
    ///
    /// # Errors
    /// [`Error::Internal`] where a slice has not its tensor's length.
    pub fn run(&self, inputs: &[&[u8]], output: &mut [u8]) -> Result<()> {
        let fits = inputs.len() == self.input_bytes.len()
            && inputs.iter().zip(&self.input_bytes).all(|(input, &bytes)| input.len() == bytes)
            && output.len() == self.output_bytes;
        if !fits {
            return Err(Error::Internal(format!("{} runs on slices that are not its tensors", self.kind)));
        }
        (self.kernel)(inputs, output);
        Ok(())
    }
}

/// Runs a whole graph and returns the bytes of every tensor, by its index. What nothing writes stays empty.
///
/// # Errors
/// [`Error::InvalidTensor`] for inputs that do not fit, [`Error::Unsupported`] for an operator that the CPU does not
/// compute.
pub fn evaluate(graph: &Graph, inputs: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
    let constant = |tensor: &Tensor| tensor.data.as_deref().unwrap_or_default().to_vec();
    let mut values: Vec<Vec<u8>> = graph.tensors.iter().map(constant).collect();
    if inputs.len() != graph.inputs.len() {
        return Err(Error::InvalidTensor(format!("{} inputs instead of {}", inputs.len(), graph.inputs.len())));
    }
    for (&id, &input) in graph.inputs.iter().zip(inputs) {
        if input.len() != graph[id].bytes() {
            return Err(Error::InvalidTensor(format!("{} bytes do not fit {:?}", input.len(), graph[id])));
        }
        values[id.0] = input.to_vec();
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let fault = |reason| Error::Unsupported(format!("operator {index} ({}): {reason}", node.op.name()));
        let prepared = Prepared::new(graph, node).map_err(fault)?;
        let mut output = vec![0; prepared.output_bytes];
        let slices: Vec<&[u8]> =
            node.inputs.iter().map(|id| id.map_or(&[][..], |id| values[id.0].as_slice())).collect();
        prepared.run(&slices, &mut output)?;
        values[node.outputs[0].0] = output;
    }
    Ok(values)
}

/// The tensors of a node. The graph is checked, so what the operator requires is there.
struct Operands<'a> {
    graph: &'a Graph,
    node: &'a Node,
}

impl<'a> Operands<'a> {
    fn input(&self, index: usize) -> &'a Tensor {
        self.optional(index).expect("a checked graph has the inputs that an operator requires")
    }

    fn optional(&self, index: usize) -> Option<&'a Tensor> {
        self.node.inputs.get(index).copied().flatten().map(|id| &self.graph[id])
    }

    fn output(&self) -> &'a Tensor {
        &self.graph[self.node.outputs[0]]
    }

    /// The element kind of the node: that of its first input.
    fn kind(&self) -> Result<Kind, String> {
        match self.input(0).dtype {
            DType::I8 => Ok(Kind::Quantized(Byte::Signed)),
            DType::U8 => Ok(Kind::Quantized(Byte::Unsigned)),
            DType::F32 => Ok(Kind::Real),
            other => Err(format!("{other:?} is not computed on the CPU")),
        }
    }
}

/// What a node computes with.
enum Kind {
    /// 8-bit integers.
    Quantized(Byte),
    /// `f32`.
    Real,
}

/// How a byte is a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Byte {
    Signed,
    Unsigned,
}

impl Byte {
    fn of(tensor: &Tensor) -> Result<Self, String> {
        match tensor.dtype {
            DType::I8 => Ok(Self::Signed),
            DType::U8 => Ok(Self::Unsigned),
            other => Err(format!("{other:?} is not computed on the CPU")),
        }
    }

    const fn range(self) -> [i32; 2] {
        match self {
            Self::Signed => [-128, 127],
            Self::Unsigned => [0, 255],
        }
    }

    fn decode(self, byte: u8) -> i32 {
        match self {
            Self::Signed => i32::from(byte.cast_signed()),
            Self::Unsigned => i32::from(byte),
        }
    }

    /// The nearest byte.
    fn encode(self, value: i32) -> u8 {
        let [min, max] = self.range();
        // CAST: the value is in range, and the low byte is its two's complement.
        value.clamp(min, max) as u8
    }
}

/// Scale and zero point of a quantised tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Quant {
    byte: Byte,
    scale: f32,
    zero_point: i32,
}

impl Quant {
    fn of(tensor: &Tensor) -> Result<Self, String> {
        let byte = Byte::of(tensor)?;
        let (scale, zero_point) = (tensor.quantization.as_ref().and_then(model::Quantization::per_tensor))
            .ok_or_else(|| format!("{tensor:?} has not one scale"))?;
        Ok(Self { byte, scale, zero_point })
    }

    fn decode(&self, byte: u8) -> i32 {
        self.byte.decode(byte) - self.zero_point
    }
}

/// Decodes real numbers.
fn reals(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// Puts a real number at an index of a tensor.
fn put(output: &mut [u8], index: usize, value: f32) {
    output[4 * index..4 * index + 4].copy_from_slice(&value.to_le_bytes());
}

/// `[n, h, w, c]` of a tensor that a checked graph has four axes for.
fn shape4(tensor: &Tensor) -> [usize; 4] {
    tensor.shape.as_slice().try_into().expect("a checked graph has four axes here")
}
