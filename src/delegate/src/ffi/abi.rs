//! The C structures of TFLite, as far as a delegate needs them.
//!
//! "Semi-ABI stable", the header says: fields are only ever added at the end. Of structures that the runtime owns, what
//! follows the last field that is read here is left out.
//!
//! SOURCE: LiteRT's `tflite/core/c/common.h`, `c_api_types.h` and `builtin_op_data.h`.

use std::ffi::{c_char, c_int, c_void};

/// `TfLiteStatus`: success.
pub(super) const OK: c_int = 0;
/// `TfLiteStatus`: an error.
pub(super) const ERROR: c_int = 1;
/// `kTfLiteBuiltinDelegate`, the code of a delegate's nodes.
pub(super) const BUILTIN_DELEGATE: i32 = 51;
/// `kTfLiteAffineQuantization`.
pub(super) const AFFINE: c_int = 1;

/// `TfLiteAllocationType`: constants of the model file.
pub(super) const MMAP_RO: c_int = 1;
/// Memory whose size is only known at run time.
pub(super) const DYNAMIC: c_int = 4;
/// The last type with bytes that the CPU reads: memory that the host provides.
pub(super) const CUSTOM: c_int = 6;

/// `TfLiteIntArray`; `size` numbers follow.
#[repr(C)]
pub(super) struct IntArray {
    pub(super) size: c_int,
    pub(super) data: [c_int; 0],
}

/// `TfLiteFloatArray`; `size` numbers follow.
#[repr(C)]
pub(super) struct FloatArray {
    pub(super) size: c_int,
    pub(super) data: [f32; 0],
}

/// `TfLiteAffineQuantization`.
#[repr(C)]
pub(super) struct AffineQuantization {
    pub(super) scale: *const FloatArray,
    pub(super) zero_point: *const IntArray,
    pub(super) quantized_dimension: i32,
}

/// `TfLiteTensor`.
#[repr(C)]
pub(super) struct Tensor {
    pub(super) kind: c_int,
    pub(super) data: *mut u8,
    pub(super) dims: *const IntArray,
    pub(super) legacy_scale: f32,
    pub(super) legacy_zero_point: i32,
    pub(super) allocation_type: c_int,
    pub(super) bytes: usize,
    pub(super) allocation: *const c_void,
    pub(super) name: *const c_char,
    pub(super) delegate: *mut Delegate,
    pub(super) buffer_handle: c_int,
    pub(super) data_is_stale: u8,
    pub(super) is_variable: u8,
    pub(super) quantization_type: c_int,
    pub(super) quantization: *const c_void,
    pub(super) sparsity: *const c_void,
    pub(super) dims_signature: *const IntArray,
}

/// `TfLiteNode`, up to the delegate.
#[repr(C)]
pub(super) struct Node {
    pub(super) inputs: *const IntArray,
    pub(super) outputs: *const IntArray,
    pub(super) intermediates: *const IntArray,
    pub(super) temporaries: *const IntArray,
    pub(super) user_data: *mut c_void,
    pub(super) builtin_data: *const c_void,
}

/// `TfLiteRegistration`; passed by value, so it is whole. Older runtimes read a prefix.
#[repr(C)]
pub(super) struct Registration {
    pub(super) init: Option<unsafe extern "C" fn(*mut Context, *const c_char, usize) -> *mut c_void>,
    pub(super) free: Option<unsafe extern "C" fn(*mut Context, *mut c_void)>,
    pub(super) prepare: Option<unsafe extern "C" fn(*mut Context, *mut Node) -> c_int>,
    pub(super) invoke: Option<unsafe extern "C" fn(*mut Context, *mut Node) -> c_int>,
    pub(super) profiling_string: *const c_void,
    pub(super) builtin_code: i32,
    pub(super) custom_name: *const c_char,
    pub(super) version: c_int,
    pub(super) registration_external: *mut c_void,
    pub(super) async_kernel: *const c_void,
    pub(super) inplace_operator: u64,
}

/// `TfLiteDelegateParams`: a claimed subset, given to `init`.
#[repr(C)]
pub(super) struct DelegateParams {
    pub(super) delegate: *mut Delegate,
    pub(super) nodes_to_replace: *const IntArray,
    pub(super) input_tensors: *const IntArray,
    pub(super) output_tensors: *const IntArray,
}

/// `TfLiteContext`, up to the preview of a partition.
#[repr(C)]
pub(super) struct Context {
    pub(super) tensors_size: usize,
    pub(super) get_execution_plan: Option<unsafe extern "C" fn(*mut Context, *mut *const IntArray) -> c_int>,
    pub(super) tensors: *mut Tensor,
    pub(super) inner: *mut c_void,
    pub(super) resize_tensor: *const c_void,
    pub(super) report_error: Option<unsafe extern "C" fn(*mut Context, *const c_char, ...)>,
    pub(super) add_tensors: *const c_void,
    pub(super) get_node_and_registration:
        Option<unsafe extern "C" fn(*mut Context, c_int, *mut *const Node, *mut *const Registration) -> c_int>,
    pub(super) replace_node_subsets:
        Option<unsafe extern "C" fn(*mut Context, Registration, *const IntArray, *mut Delegate) -> c_int>,
    pub(super) recommended_num_threads: c_int,
    pub(super) get_external_context: *const c_void,
    pub(super) set_external_context: *const c_void,
    pub(super) allow_fp32_relax_to_fp16: u8,
    pub(super) profiler: *mut c_void,
    pub(super) allocate_persistent_buffer: *const c_void,
    pub(super) allocate_buffer_for_eval: *const c_void,
    pub(super) request_scratch_buffer: *const c_void,
    pub(super) get_scratch_buffer: *const c_void,
    pub(super) resize_tensor_explicit: *const c_void,
    pub(super) preview_partitioning:
        Option<unsafe extern "C" fn(*mut Context, *const IntArray, *mut *const DelegateParams, *mut c_int) -> c_int>,
}

/// `TfLiteDelegate`.
#[repr(C)]
pub(crate) struct Delegate {
    pub(super) data: *mut c_void,
    pub(super) prepare: Option<unsafe extern "C" fn(*mut Context, *mut Delegate) -> c_int>,
    pub(super) copy_from_buffer_handle: *const c_void,
    pub(super) copy_to_buffer_handle: *const c_void,
    pub(super) free_buffer_handle: *const c_void,
    pub(super) flags: i64,
    pub(super) opaque_delegate_builder: *mut c_void,
}

/// `TfLiteConvParams`, up to the dilation.
#[repr(C)]
pub(super) struct ConvParams {
    pub(super) padding: c_int,
    pub(super) stride_width: c_int,
    pub(super) stride_height: c_int,
    pub(super) activation: c_int,
    pub(super) dilation_width: c_int,
    pub(super) dilation_height: c_int,
}

/// `TfLiteDepthwiseConvParams`.
#[repr(C)]
pub(super) struct DepthwiseConvParams {
    pub(super) padding: c_int,
    pub(super) stride_width: c_int,
    pub(super) stride_height: c_int,
    pub(super) multiplier: c_int,
    pub(super) activation: c_int,
    pub(super) dilation_width: c_int,
    pub(super) dilation_height: c_int,
}

/// `TfLitePoolParams`, up to the activation.
#[repr(C)]
pub(super) struct PoolParams {
    pub(super) padding: c_int,
    pub(super) stride_width: c_int,
    pub(super) stride_height: c_int,
    pub(super) filter_width: c_int,
    pub(super) filter_height: c_int,
    pub(super) activation: c_int,
}

/// `TfLiteFullyConnectedParams`, up to the format.
#[repr(C)]
pub(super) struct FullyConnectedParams {
    pub(super) activation: c_int,
    pub(super) weights_format: c_int,
}

/// `TfLiteConcatenationParams`.
#[repr(C)]
pub(super) struct ConcatenationParams {
    pub(super) axis: c_int,
    pub(super) activation: c_int,
}

/// `TfLiteAddParams` and `TfLiteMulParams`, up to the activation.
#[repr(C)]
pub(super) struct FusedParams {
    pub(super) activation: c_int,
}

/// `TfLiteSoftmaxParams`.
#[repr(C)]
pub(super) struct SoftmaxParams {
    pub(super) beta: f32,
}

/// `TfLiteReducerParams`.
#[repr(C)]
pub(super) struct ReducerParams {
    pub(super) keep_dims: u8,
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// What a C compiler says of the header on a 64-bit machine.
    #[test]
    fn structures_have_the_headers_layout() {
        assert_eq!((size_of::<Tensor>(), size_of::<Registration>(), size_of::<Delegate>()), (112, 88, 56));
        assert_eq!((offset_of!(Tensor, allocation_type), offset_of!(Tensor, bytes)), (32, 40));
        assert_eq!((offset_of!(Tensor, is_variable), offset_of!(Tensor, quantization)), (77, 88));
        assert_eq!((offset_of!(Registration, custom_name), offset_of!(Registration, inplace_operator)), (48, 80));
        assert_eq!((offset_of!(Node, user_data), offset_of!(Node, builtin_data)), (32, 40));
        assert_eq!((offset_of!(Context, report_error), offset_of!(Context, get_node_and_registration)), (40, 56));
        assert_eq!((offset_of!(Context, profiler), offset_of!(Context, preview_partitioning)), (104, 152));
        assert_eq!((offset_of!(IntArray, data), size_of::<DelegateParams>()), (4, 32));
        assert_eq!((offset_of!(Delegate, flags), size_of::<AffineQuantization>()), (40, 24));
    }
}
