//! A safe view of a runtime's graph, for the length of one call.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use bytes::Bytes;
use model::tflite::{OperatorDescription, QuantizationDescription, TensorDescription};
use model::{DType, Tensor};

use super::{abi, params};

/// A runtime that calls us.
#[derive(Debug)]
pub(crate) struct Runtime<'call> {
    context: NonNull<abi::Context>,
    /// Ours, where the call is about it.
    delegate: *const abi::Delegate,
    call: PhantomData<&'call abi::Context>,
}

/// Nodes of the runtime that become one, and the tensors that cross their border, constants included.
#[derive(Debug)]
pub(crate) struct Subset {
    pub(crate) nodes: Vec<i32>,
    pub(crate) inputs: Vec<i32>,
    pub(crate) outputs: Vec<i32>,
}

impl Subset {
    /// # Safety
    /// The lists of `params` are null or lists of TFLite.
    pub(super) unsafe fn of(params: &abi::DelegateParams) -> Self {
        Self {
            // SAFETY: as the caller promises.
            nodes: unsafe { integers(params.nodes_to_replace) },
            // SAFETY: as above.
            inputs: unsafe { integers(params.input_tensors) },
            // SAFETY: as above.
            outputs: unsafe { integers(params.output_tensors) },
        }
    }
}

impl Runtime<'_> {
    /// # Safety
    /// `context` is TFLite's, lives as long as the value, and nobody else uses it meanwhile.
    ///
    /// # Panics
    /// For null, which TFLite never gives.
    pub(super) unsafe fn new(context: *mut abi::Context, delegate: *const abi::Delegate) -> Self {
        // PANIC: every call of TFLite has a context.
        Self { context: NonNull::new(context).expect("a call has a context"), delegate, call: PhantomData }
    }

    fn fields(&self) -> &abi::Context {
        // SAFETY: the context lives as long as `self`; it is read, and changes only in calls that borrow `self`.
        unsafe { self.context.as_ref() }
    }

    /// The nodes in the order in which they run.
    pub(crate) fn execution_plan(&self) -> Result<Vec<i32>, String> {
        let call = self.fields().get_execution_plan.ok_or("the runtime has no execution plan")?;
        let mut plan = null();
        // SAFETY: the function is the context's own.
        let status = unsafe { call(self.context.as_ptr(), &raw mut plan) };
        expect_ok(status, "its execution plan")?;
        // SAFETY: the list belongs to the runtime and lives until the next such call.
        Ok(unsafe { integers(plan) })
    }

    /// Gives back the tensors that were ours before a resize: the runtime does not, and would refuse them to others.
    pub(super) fn release_tensors(&mut self) {
        let abi::Context { tensors, tensors_size, .. } = *self.fields();
        if tensors.is_null() {
            return;
        }
        // SAFETY: the runtime's array has as many tensors, and nobody else uses it during the call.
        for tensor in unsafe { std::slice::from_raw_parts_mut(tensors, tensors_size) } {
            if std::ptr::eq(tensor.delegate, self.delegate) {
                tensor.delegate = null_mut();
            }
        }
    }

    /// What the runtime says of a node.
    pub(crate) fn operator(&self, node: i32) -> Result<OperatorDescription, String> {
        let call = self.fields().get_node_and_registration.ok_or("the runtime does not show its nodes")?;
        let (mut found, mut registration) = (null(), null());
        // SAFETY: the function is the context's own.
        let status = unsafe { call(self.context.as_ptr(), node, &raw mut found, &raw mut registration) };
        expect_ok(status, "a node")?;
        // SAFETY: the node belongs to the runtime and lives through the call that we are in.
        let found = unsafe { found.as_ref() }.ok_or("the node is missing")?;
        // SAFETY: as above.
        let registration = unsafe { registration.as_ref() }.ok_or("the node's registration is missing")?;
        let builtin = registration.builtin_code;
        Ok(OperatorDescription {
            builtin,
            // SAFETY: the name is null or a string of the runtime.
            custom: unsafe { string(registration.custom_name) },
            // SAFETY: the lists belong to the node.
            inputs: unsafe { integers(found.inputs) },
            // SAFETY: as above.
            outputs: unsafe { integers(found.outputs) },
            // SAFETY: the data of a built-in operator's node has the type that belongs to its code.
            options: unsafe { params::options(builtin, found.builtin_data) }?,
        })
    }

    fn raw_tensor(&self, index: i32) -> Result<&abi::Tensor, String> {
        let context = self.fields();
        let at = usize::try_from(index).ok().filter(|at| *at < context.tensors_size && !context.tensors.is_null());
        let at = at.ok_or_else(|| format!("tensor {index} does not exist"))?;
        // SAFETY: the index is within the runtime's array, which changes only in calls that borrow `self`.
        Ok(unsafe { &*context.tensors.add(at) })
    }

    /// Whether the runtime would let us write a tensor.
    ///
    /// It refuses a second delegate for a tensor, and remembers the first beyond a resize.
    pub(crate) fn check_owner(&self, index: i32) -> Result<(), String> {
        let owner = self.raw_tensor(index)?.delegate;
        match owner.is_null() || std::ptr::eq(owner, self.delegate) {
            true => Ok(()),
            false => Err(format!("tensor {index} belongs to another delegate")),
        }
    }

    /// A tensor, checked, with its contents where it is a constant.
    pub(crate) fn tensor(&self, index: i32) -> Result<Tensor, String> {
        let raw = self.raw_tensor(index)?;
        if raw.is_variable != 0 {
            return Err("variables are not supported".into());
        }
        if !raw.sparsity.is_null() {
            return Err("sparse tensors are not supported".into());
        }
        if raw.allocation_type == abi::DYNAMIC {
            return Err("its shape is only known at run time, which is not supported".into());
        }
        if !(0..=abi::CUSTOM).contains(&raw.allocation_type) {
            return Err(format!("memory of kind {} is not supported", raw.allocation_type));
        }
        if raw.dims.is_null() {
            return Err("has no shape".into());
        }
        let described = TensorDescription {
            // SAFETY: the name is null or a string of the runtime.
            name: unsafe { string(raw.name) },
            dtype: dtype(raw.kind)?,
            // SAFETY: the shape belongs to the tensor.
            shape: unsafe { integers(raw.dims) },
            // The runtime has resolved what was unknown in the file.
            signature: Vec::new(),
            // SAFETY: the quantisation belongs to the tensor.
            quantization: unsafe { quantization(raw) }?,
        };
        let mut tensor = described.check()?;
        if raw.bytes != tensor.bytes() {
            return Err(format!("has {} bytes, the shape needs {}", raw.bytes, tensor.bytes()));
        }
        tensor.data = constant(raw, &tensor)?;
        Ok(tensor)
    }

    /// A copy of a tensor's bytes, of which there must be `bytes`.
    pub(crate) fn contents(&self, index: i32, bytes: usize) -> Result<Bytes, String> {
        let raw = self.raw_tensor(index)?;
        check_memory(index, raw, bytes)?;
        // SAFETY: the runtime's memory has as many bytes as the tensor says, and nobody writes it during the call.
        Ok(Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(raw.data, bytes) }))
    }

    /// Writes the bytes of a tensor, all of them.
    pub(crate) fn fill(&mut self, index: i32, data: &[u8]) -> Result<(), String> {
        let raw = self.raw_tensor(index)?;
        check_memory(index, raw, data.len())?;
        // SAFETY: the runtime's memory has as many bytes as the tensor says, is ours to write during the call, and is
        // not the engine's.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), raw.data, data.len()) };
        Ok(())
    }

    /// The parts that the runtime would make of some nodes.
    pub(crate) fn preview(&self, nodes: &[i32]) -> Result<Vec<Subset>, String> {
        let call = self.fields().preview_partitioning.ok_or("the runtime previews no partition")?;
        let nodes = List::of(nodes)?;
        let (mut parts, mut count) = (null::<abi::DelegateParams>(), 0);
        // SAFETY: the function is the context's own, and the list lives through the call.
        let status = unsafe { call(self.context.as_ptr(), nodes.as_ptr(), &raw mut parts, &raw mut count) };
        expect_ok(status, "a partition")?;
        if parts.is_null() {
            return Ok(Vec::new());
        }
        let part = |at| {
            // SAFETY: the runtime has given `count` parts, which live until the next such call.
            let params = unsafe { &*parts.add(at) };
            // SAFETY: their lists live as long.
            unsafe { Subset::of(params) }
        };
        Ok((0..usize::try_from(count).unwrap_or(0)).map(part).collect())
    }

    /// Makes the runtime replace nodes by ours.
    pub(super) fn replace(
        &mut self,
        nodes: &[i32],
        registration: abi::Registration,
        delegate: *mut abi::Delegate,
    ) -> Result<(), String> {
        let call = self.fields().replace_node_subsets.ok_or("the runtime replaces no nodes")?;
        let nodes = List::of(nodes)?;
        // SAFETY: the function is the context's own, the list lives through the call, and the delegate longer.
        let status = unsafe { call(self.context.as_ptr(), registration, nodes.as_ptr(), delegate) };
        expect_ok(status, "the replacement of nodes")
    }

    /// Tells the runtime why the call fails.
    pub(super) fn report_error(&mut self, line: &CStr) {
        if let Some(report) = self.fields().report_error {
            // SAFETY: the function is the context's own, and the format takes one string.
            unsafe { report(self.context.as_ptr(), c"%s".as_ptr(), line.as_ptr()) };
        }
    }
}

/// A list as TFLite has it: the count, then the numbers.
struct List(Vec<c_int>);

impl List {
    fn of(numbers: &[i32]) -> Result<Self, String> {
        let count = c_int::try_from(numbers.len()).map_err(|_| "the list is too long".to_owned())?;
        Ok(Self(std::iter::once(count).chain(numbers.iter().copied()).collect()))
    }

    fn as_ptr(&self) -> *const abi::IntArray {
        self.0.as_ptr().cast()
    }
}

fn expect_ok(status: c_int, what: &str) -> Result<(), String> {
    if status == abi::OK { Ok(()) } else { Err(format!("the runtime refuses {what}: status {status}")) }
}

fn check_memory(index: i32, raw: &abi::Tensor, bytes: usize) -> Result<(), String> {
    if raw.data.is_null() || raw.bytes != bytes {
        return Err(format!("tensor {index} has {} bytes instead of {bytes}, or no memory", raw.bytes));
    }
    Ok(())
}

/// The contents of a constant. Those of real numbers may be large and are of no use to the NPU.
fn constant(raw: &abi::Tensor, tensor: &Tensor) -> Result<Option<Arc<[u8]>>, String> {
    if raw.allocation_type != abi::MMAP_RO {
        return Ok(None);
    }
    if matches!(tensor.dtype, DType::F16 | DType::F32) {
        return Err("constants of real numbers are left to the runtime".into());
    }
    if raw.data.is_null() {
        return Err("a constant without contents".into());
    }
    // SAFETY: a constant has as many bytes as its tensor says, which are never written.
    Ok(Some(unsafe { std::slice::from_raw_parts(raw.data, raw.bytes) }.into()))
}

/// SOURCE: `TfLiteType`.
fn dtype(kind: c_int) -> Result<DType, String> {
    Ok(match kind {
        1 => DType::F32,
        2 => DType::I32,
        3 => DType::U8,
        4 => DType::I64,
        6 => DType::Bool,
        7 => DType::I16,
        9 => DType::I8,
        10 => DType::F16,
        _ => return Err(format!("element type {kind} is not supported")),
    })
}

/// # Safety
/// `raw` is a tensor of the runtime.
unsafe fn quantization(raw: &abi::Tensor) -> Result<Option<QuantizationDescription>, String> {
    if raw.quantization.is_null() {
        return Ok(None);
    }
    if raw.quantization_type != abi::AFFINE {
        return Err("custom and block-wise quantisation are not supported".into());
    }
    // SAFETY: affine parameters have this type.
    let affine = unsafe { &*raw.quantization.cast::<abi::AffineQuantization>() };
    Ok(Some(QuantizationDescription {
        // SAFETY: the list belongs to the parameters.
        scales: unsafe { reals(affine.scale) },
        // SAFETY: as above.
        zero_points: unsafe { integers(affine.zero_point) }.into_iter().map(i64::from).collect(),
        axis: affine.quantized_dimension,
    }))
}

/// The numbers of a list; none for null.
///
/// # Safety
/// `list` is null or a list of TFLite.
unsafe fn integers(list: *const abi::IntArray) -> Vec<i32> {
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: as the caller promises.
    let count = usize::try_from(unsafe { (*list).size }).unwrap_or(0);
    // SAFETY: the numbers follow the count.
    unsafe { std::slice::from_raw_parts((&raw const (*list).data).cast::<c_int>(), count) }.to_vec()
}

/// As [`integers`], of real numbers.
///
/// # Safety
/// `list` is null or a list of TFLite.
unsafe fn reals(list: *const abi::FloatArray) -> Vec<f32> {
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: as the caller promises.
    let count = usize::try_from(unsafe { (*list).size }).unwrap_or(0);
    // SAFETY: the numbers follow the count.
    unsafe { std::slice::from_raw_parts((&raw const (*list).data).cast::<f32>(), count) }.to_vec()
}

/// A string, with a replacement character for what is not UTF-8; empty for null.
///
/// # Safety
/// `string` is null or ends with a NUL.
pub(super) unsafe fn string(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}
