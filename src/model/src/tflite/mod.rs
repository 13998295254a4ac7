//! TFLite files, schema version 3.
//!
//! ```text
//! Model ─ operator_codes ┐
//!       ├ buffers ───────┤
//!       └ subgraphs[0] ──┴▶ tensors ─▶ operators ─▶ checked Graph
//! ```
//!
//! Refused by name: more than one subgraph, custom operators, sparse tensors, variables, element types other than
//! [`DType`], and shapes that are only known at run time. A batch size that the file calls unknown is taken as the one
//! that its shapes are written for. `DEQUANTIZE` of a half-precision constant is done while reading.
//!
//! SOURCE: TensorFlow Lite's `schema.fbs`, version 3; field numbers below are positions in its tables.

mod operators;
mod wire;

use std::sync::Arc;

use crate::{DType, Error, Graph, Node, Op, Quantization, Result, Tensor, TensorId, check};
use wire::{File, Table};

/// Tensors and operators of one file; real models have hundreds.
const MAX_ITEMS: usize = 1 << 16;
/// Bytes of one tensor.
const MAX_TENSOR_BYTES: usize = 1 << 30;
/// Bytes of all tensors together.
const MAX_BYTES: usize = 1 << 32;
/// Axes of one tensor.
const MAX_RANK: usize = 8;

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
    let mut graph = Graph {
        tensors: read_tensors(&file, &parts)?,
        nodes: Vec::with_capacity(parts.operators.len()),
        inputs: parts.ids(1, "input").map_err(Error::file)?,
        outputs: parts.ids(2, "output").map_err(Error::file)?,
    };
    for (index, operator) in parts.operators.iter().enumerate() {
        let node = operators::read(&parts.codes, operator, &graph.tensors)
            .map_err(|(kind, reason)| Error::Operator { index, kind, reason })?;
        let fault = |reason| Error::Operator { index, kind: node.op.name().to_owned(), reason };
        check::node(&graph.tensors, &node).map_err(fault)?;
        match fold(&file, &graph.tensors, &node).map_err(fault)? {
            Some(data) => graph.tensors[node.outputs[0].0].data = Some(data),
            None => graph.nodes.push(node),
        }
    }
    check::order(&graph)?;
    Ok(graph)
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
    let dtype = dtype(table.scalar::<i8>(1, 0)?)?;
    let shape = read_shape(table, dtype)?;
    let quantization = table.table(4)?.map(|q| read_quantization(&q, &shape, dtype)).transpose()?.flatten();
    Ok(Tensor { name: name.to_owned(), shape, dtype, quantization, data: None })
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

fn read_shape(table: &Table<'_>, dtype: DType) -> Result<Vec<usize>, String> {
    let dims = table.scalars::<i32>(0)?;
    let signature = table.scalars::<i32>(7)?;
    if dims.len() > MAX_RANK {
        return Err(format!("{} axes are more than the {MAX_RANK} that are supported", dims.len()));
    }
    if !signature.is_empty() && signature.len() != dims.len() {
        return Err(format!("shape signature {signature:?} and shape {dims:?} differ in rank"));
    }
    if signature.iter().skip(1).any(|&dim| dim < 0) {
        return Err(format!("the shape {signature:?} is only known at run time, which is not supported"));
    }
    let extent = |&dim| usize::try_from(dim).ok().filter(|&dim| dim > 0);
    let shape: Vec<usize> = dims
        .iter()
        .map(extent)
        .collect::<Option<_>>()
        .ok_or_else(|| format!("the shape {dims:?} has an extent below 1"))?;
    let bytes = shape.iter().try_fold(dtype.bytes(), |bytes, &dim| bytes.checked_mul(dim));
    match bytes {
        Some(bytes) if bytes <= MAX_TENSOR_BYTES => Ok(shape),
        _ => Err(format!("the shape {dims:?} needs more than {MAX_TENSOR_BYTES} bytes")),
    }
}

fn read_quantization(table: &Table<'_>, shape: &[usize], dtype: DType) -> Result<Option<Quantization>, String> {
    if table.scalar::<u8>(4, 0)? != 0 {
        return Err("custom and block-wise quantisation are not supported".to_owned());
    }
    let scales = table.scalars::<f32>(2)?;
    if scales.is_empty() || matches!(dtype, DType::F16 | DType::F32 | DType::Bool) {
        return Ok(None);
    }
    if let Some(scale) = scales.iter().find(|s| !(s.is_finite() && **s > 0.0)) {
        return Err(format!("scale {scale} is not a positive number"));
    }
    let axis = table.scalar::<i32>(6, 0)?;
    let axis = match usize::try_from(axis) {
        Ok(axis) if scales.len() == 1 && axis >= shape.len() => 0,
        Ok(axis) if scales.len() == 1 || shape.get(axis) == Some(&scales.len()) => axis,
        _ => return Err(format!("{} scales do not fit axis {axis} of {shape:?}", scales.len())),
    };
    let zero_points = read_zero_points(&table.scalars::<i64>(3)?, scales.len(), dtype)?;
    Ok(Some(Quantization { scales, zero_points, axis }))
}

/// Zero points, one per scale. Absent ones are 0 and a single one is for all scales.
fn read_zero_points(stored: &[i64], count: usize, dtype: DType) -> Result<Vec<i32>, String> {
    let range = match dtype {
        DType::I8 => -128..=127,
        DType::U8 => 0..=255,
        _ => 0..=0,
    };
    let checked = |&zero_point: &i64| {
        let checked = i32::try_from(zero_point).ok().filter(|z| range.contains(z));
        checked.ok_or_else(|| format!("zero point {zero_point} does not fit {dtype:?}"))
    };
    match stored {
        [] => Ok(vec![0; count]),
        [single] => Ok(vec![checked(single)?; count]),
        many if many.len() == count => many.iter().map(checked).collect(),
        many => Err(format!("{} zero points for {count} scales", many.len())),
    }
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
