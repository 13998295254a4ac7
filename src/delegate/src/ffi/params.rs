//! Options of built-in operators, from TFLite's structures to the schema's numbers.

use std::ffi::{c_int, c_void};

use model::tflite::{Options, WindowOptions};

use super::abi::{
    ConcatenationParams, ConvParams, DepthwiseConvParams, FullyConnectedParams, FusedParams, PoolParams, ReducerParams,
    SoftmaxParams,
};

/// The options of an operator.
///
/// # Errors
/// An operator that needs options and has none.
///
/// # Safety
/// `data` is null or TFLite's structure for the built-in operator with this code.
pub(super) unsafe fn options(builtin: i32, data: *const c_void) -> Result<Options, String> {
    // SAFETY: as the caller promises, in each case.
    let options = unsafe {
        match builtin {
            0 | 18 => data.cast::<FusedParams>().as_ref().map(fused),
            1 | 17 => data.cast::<PoolParams>().as_ref().map(pool),
            2 => data.cast::<ConcatenationParams>().as_ref().map(concatenation),
            3 => data.cast::<ConvParams>().as_ref().map(convolution),
            4 => data.cast::<DepthwiseConvParams>().as_ref().map(depthwise),
            9 => data.cast::<FullyConnectedParams>().as_ref().map(fully_connected),
            25 => data.cast::<SoftmaxParams>().as_ref().map(|params| Options::Softmax { beta: params.beta }),
            40 => data.cast::<ReducerParams>().as_ref().map(reducer),
            _ => Some(Options::None),
        }
    };
    options.ok_or_else(|| "has no options".to_owned())
}

/// The schema counts padding rules from 0, TFLite's structures from 1.
fn padding(rule: c_int) -> i32 {
    rule.saturating_sub(1)
}

fn fused(params: &FusedParams) -> Options {
    Options::Fused { activation: params.activation }
}

fn pool(params: &PoolParams) -> Options {
    let window = WindowOptions {
        padding: padding(params.padding),
        stride: [params.stride_height, params.stride_width],
        dilation: [1, 1],
        activation: params.activation,
    };
    Options::Pool { window, kernel: [params.filter_height, params.filter_width] }
}

fn concatenation(params: &ConcatenationParams) -> Options {
    Options::Concatenation { axis: params.axis, activation: params.activation }
}

fn convolution(params: &ConvParams) -> Options {
    Options::Convolution(WindowOptions {
        padding: padding(params.padding),
        stride: [params.stride_height, params.stride_width],
        dilation: [params.dilation_height, params.dilation_width],
        activation: params.activation,
    })
}

fn depthwise(params: &DepthwiseConvParams) -> Options {
    let window = WindowOptions {
        padding: padding(params.padding),
        stride: [params.stride_height, params.stride_width],
        dilation: [params.dilation_height, params.dilation_width],
        activation: params.activation,
    };
    Options::Depthwise { window, multiplier: params.multiplier }
}

fn fully_connected(params: &FullyConnectedParams) -> Options {
    Options::FullyConnected { activation: params.activation, weights_format: params.weights_format }
}

fn reducer(params: &ReducerParams) -> Options {
    Options::Reducer { keep_dims: params.keep_dims != 0 }
}
