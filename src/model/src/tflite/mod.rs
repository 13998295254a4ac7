//! TFLite files, schema version 3.
//!
//! ```text
//! Model ─ operator_codes ┐
//!       ├ buffers ───────┤
//!       └ subgraphs[0] ──┴▶ tensors ─▶ operators ─▶ checked Graph
//! ```
//!
//! What a file says of a tensor or an operator is a [`TensorDescription`] or an [`OperatorDescription`], whose `check`
//! is the only way to a [`Tensor`] or a [`Node`]. A running interpreter describes its graph with the same two types.
//!
//! Refused by name: more than one subgraph, custom operators, sparse tensors, variables, element types other than
//! [`DType`], and shapes that are only known at run time. A batch size that the file calls unknown is taken as the one
//! that its shapes are written for. `DEQUANTIZE` of a half-precision constant is done while reading.
//!
//! SOURCE: TensorFlow Lite's `schema.fbs`, version 3; field numbers below are positions in its tables.

mod description;
mod operators;
mod options;
mod wire;

use std::sync::Arc;

use crate::{DType, Error, Graph, Node, Op, Result, Tensor, TensorId};
pub use description::{OperatorDescription, Options, QuantizationDescription, TensorDescription, WindowOptions};
use wire::{File, Table};

/// Tensors and operators of one file; real models have hundreds.
const MAX_ITEMS: usize = 1 << 16;
/// Bytes of all tensors together.
const MAX_BYTES: usize = 1 << 32;

/// Reads a model.
///
/// # Errors
/// [`Error`] names what is malformed or not supported, and where.
pub fn read(bytes: &[u8]) -> Result<Graph> {
    // Buffers are read once and small vectors a few times; a file that needs more overlaps on purpose.
    let file = File::new(bytes, bytes.len().saturating_mul(8).saturating_add(1 << 20));
    if file.identifier() != Some(b"TFL3") {
        return Err(Error::file("not a TFLite file: the identifier is not TFL3"));
    }
    let parts = Parts::read(&file).map_err(Error::file)?;
    let mut tensors = read_tensors(&file, &parts)?;
    let mut nodes = Vec::with_capacity(parts.operators.len());
    let inputs = parts.ids(1, "input").map_err(Error::file)?;
    let outputs = parts.ids(2, "output").map_err(Error::file)?;
    for (index, operator) in parts.operators.iter().enumerate() {
        let described =
            read_operator(&parts.codes, operator).map_err(|(kind, reason)| Error::Operator { index, kind, reason })?;
        let fault = |reason| Error::Operator { index, kind: described.name(), reason };
        let node = described.check(&tensors).map_err(fault)?;
        match fold(&file, &tensors, &node).map_err(fault)? {
            Some(data) => tensors[node.outputs[0].0].data = Some(data),
            None => nodes.push(node),
        }
    }
    Graph::assemble(tensors, nodes, inputs, outputs)
}

/// What the file says of an operator. An error is the operator's name and what is wrong with it.
fn read_operator(codes: &[Code], table: &Table<'_>) -> Result<OperatorDescription, (String, String)> {
    let nameless = |reason| ("?".to_owned(), reason);
    let code = table.scalar::<u32>(0, 0).map_err(|fault| nameless(fault.into()))?;
    // CAST: usize has at least 32 bits on every target of ours.
    let code = codes.get(code as usize).ok_or_else(|| nameless(format!("operator code {code} does not exist")))?;
    let mut described =
        OperatorDescription { builtin: code.builtin, custom: code.custom.clone(), ..OperatorDescription::default() };
    let name = described.name();
    let parts = || Ok::<_, String>((table.scalars(1)?, table.scalars(2)?, options::read(&name, table)?));
    (described.inputs, described.outputs, described.options) = parts().map_err(|reason| (name.clone(), reason))?;
    Ok(described)
}

/// What [`read`] needs of the file's tables.
struct Parts<'a> {
    codes: Vec<Code>,
    buffers: Vec<&'a [u8]>,
    subgraph: Table<'a>,
    tensors: Vec<Table<'a>>,
    operators: Vec<Table<'a>>,
}

/// An entry of the model's operator table.
struct Code {
    builtin: i32,
    custom: String,
}

impl<'a> Parts<'a> {
    fn read(file: &'a File<'a>) -> Result<Self, String> {
        let model = file.root()?;
        let version = model.scalar::<u32>(0, 0)?;
        if version != 3 {
            return Err(format!("schema version {version} is not supported, only 3"));
        }
        let subgraphs = model.tables(2)?;
        let &[subgraph] = subgraphs.as_slice() else {
            return Err(format!("{} subgraphs are not supported, only one", subgraphs.len()));
        };
        let codes = model.tables(1)?.iter().map(Code::read).collect::<Result<_, String>>()?;
        let buffers = model.tables(4)?;
        let (tensors, operators) = (subgraph.tables(0)?, subgraph.tables(3)?);
        for (what, count) in [("tensors", tensors.len()), ("operators", operators.len()), ("buffers", buffers.len())] {
            if count > MAX_ITEMS {
                return Err(format!("{count} {what} are more than the {MAX_ITEMS} that are supported"));
            }
        }
        let buffers = buffers.iter().enumerate();
        let buffers = buffers.map(|(i, b)| read_buffer(file, b).map_err(|reason| format!("buffer {i}: {reason}")));
        Ok(Self { codes, buffers: buffers.collect::<Result<_, _>>()?, subgraph, tensors, operators })
    }

    /// The subgraph's inputs or outputs.
    fn ids(&self, field: usize, what: &str) -> Result<Vec<TensorId>, String> {
        let ids = self.subgraph.scalars::<i32>(field)?;
        if ids.is_empty() {
            return Err(format!("the graph has no {what}"));
        }
        let id = |&id| tensor_id(id, self.tensors.len()).ok_or_else(|| format!("{what} {id} is not a tensor"));
        ids.iter().map(id).collect()
    }
}

impl Code {
    fn read(table: &Table<'_>) -> Result<Self, String> {
        // Old writers know only the 8-bit field, new ones put its maximum there or leave it out.
        let builtin = table.scalar::<i32>(3, 0)?.max(i32::from(table.scalar::<i8>(0, 0)?));
        Ok(Self { builtin, custom: table.string(1)? })
    }
}

fn tensor_id(id: i32, tensors: usize) -> Option<TensorId> {
    usize::try_from(id).ok().filter(|&id| id < tensors).map(TensorId)
}

/// The bytes of a buffer, which lie in the table or, in large files, behind the FlatBuffers part.
fn read_buffer<'a>(file: &'a File<'a>, buffer: &Table<'a>) -> Result<&'a [u8], String> {
    let (offset, size) = (buffer.scalar::<u64>(1, 0)?, buffer.scalar::<u64>(2, 0)?);
    let inside = buffer.bytes(0)?;
    // An offset of 1 is what writers leave where they reserved the field and appended nothing.
    if offset <= 1 {
        return Ok(inside);
    }
    if !inside.is_empty() {
        return Err("has bytes both inside and outside the FlatBuffers part".to_owned());
    }
    Ok(file.range(offset, size)?)
}

fn read_tensors(file: &File<'_>, parts: &Parts<'_>) -> Result<Vec<Tensor>> {
    let mut shared: Vec<Option<Arc<[u8]>>> = vec![None; parts.buffers.len()];
    let mut tensors = Vec::with_capacity(parts.tensors.len());
    let mut total = 0_usize;
    for (index, table) in parts.tensors.iter().enumerate() {
        let name = table.string(3).map_err(|fault| Error::file(format!("tensor {index}: {fault}")))?;
        let fault = |reason| Error::Tensor { index, name: name.clone(), reason };
        let mut tensor = read_tensor(table, &name).map_err(fault)?;
        // A buffer in the file counts for itself, not for the tensors that share it.
        let buffer = table.scalar::<u32>(2, 0).map_err(|e| fault(e.into()))?;
        tensor.data = constant(&tensor, buffer, parts, &mut shared, file).map_err(fault)?;
        total = total.saturating_add(tensor.bytes());
        if total > MAX_BYTES {
            return Err(fault(format!("the tensors so far need {total} bytes, more than {MAX_BYTES}")));
        }
        tensors.push(tensor);
    }
    Ok(tensors)
}

/// The contents of a constant. Tensors of one buffer share them.
fn constant(
    tensor: &Tensor,
    buffer: u32,
    parts: &Parts<'_>,
    shared: &mut [Option<Arc<[u8]>>],
    file: &File<'_>,
) -> Result<Option<Arc<[u8]>>, String> {
    // CAST: usize has at least 32 bits on every target of ours.
    let buffer = buffer as usize;
    let bytes = *parts.buffers.get(buffer).ok_or_else(|| format!("buffer {buffer} does not exist"))?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() != tensor.bytes() {
        return Err(format!("buffer {buffer} has {} bytes, the shape needs {}", bytes.len(), tensor.bytes()));
    }
    if let Some(data) = &shared[buffer] {
        return Ok(Some(Arc::clone(data)));
    }
    // Appended buffers may overlap each other, so their copies are charged too.
    file.charge(0, bytes.len())?;
    let data: Arc<[u8]> = bytes.into();
    shared[buffer] = Some(Arc::clone(&data));
    Ok(Some(data))
}

fn read_tensor(table: &Table<'_>, name: &str) -> Result<Tensor, String> {
    if table.scalar::<u8>(5, 0)? != 0 {
        return Err("variables are not supported".to_owned());
    }
    if table.has(6)? {
        return Err("sparse tensors are not supported".to_owned());
    }
    if table.scalar::<u32>(10, 0)? != 0 {
        return Err("buffers in other files are not supported".to_owned());
    }
    let described = TensorDescription {
        name: name.to_owned(),
        dtype: dtype(table.scalar::<i8>(1, 0)?)?,
        shape: table.scalars(0)?,
        signature: table.scalars(7)?,
        quantization: table.table(4)?.map(|q| read_quantization(&q)).transpose()?,
    };
    described.check()
}

fn dtype(code: i8) -> Result<DType, String> {
    Ok(match code {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::I32,
        3 => DType::U8,
        4 => DType::I64,
        6 => DType::Bool,
        7 => DType::I16,
        9 => DType::I8,
        _ => return Err(format!("element type {code} is not supported")),
    })
}

fn read_quantization(table: &Table<'_>) -> Result<QuantizationDescription, String> {
    if table.scalar::<u8>(4, 0)? != 0 {
        return Err("custom and block-wise quantisation are not supported".to_owned());
    }
    Ok(QuantizationDescription { scales: table.scalars(2)?, zero_points: table.scalars(3)?, axis: table.scalar(6, 0)? })
}

/// The result of a node that widens a half-precision constant.
fn fold(file: &File<'_>, tensors: &[Tensor], node: &Node) -> Result<Option<Arc<[u8]>>, String> {
    let (Op::Dequantize, &[Some(input)]) = (&node.op, node.inputs.as_slice()) else { return Ok(None) };
    let input = &tensors[input.0];
    let (DType::F16, Some(halves)) = (input.dtype, &input.data) else { return Ok(None) };
    file.charge(0, 2 * halves.len())?;
    let (halves, _) = halves.as_chunks();
    let wide: Vec<u8> = halves.iter().flat_map(|&h| half::f16::from_le_bytes(h).to_f32().to_le_bytes()).collect();
    Ok(Some(wide.into()))
}
