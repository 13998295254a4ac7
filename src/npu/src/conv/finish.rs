//! From sums to results on the host, where the NPU does not do that.

use crate::conv::Conv;
use crate::conv::numbers::{Element, Output};
use crate::error::Unsupported;
use crate::layer::{IntConv, LayerArithmetic, Tensor, ZeroPoints, prepare_fp16, signed_weights};
use crate::ops::{Activation, Bias, ElementType, Filter};
use crate::quantize::{Channel, Limits};

/// What becomes of the sums of the products.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Finish {
    /// Exact integers: result = sum − zero point × sum of the window + addend, and what follows.
    Integer {
        /// Of each channel: bias − input zero point × sum of the weights.
        addends: Vec<i64>,
        /// Weight zero point of each channel; none where all are 0.
        zero_points: Option<Vec<i32>>,
        requantised: Option<Requantised>,
    },
    /// Real numbers.
    Real { bias: Option<Vec<f32>>, limits: [f64; 2] },
}

/// From 32-bit sums to 8 bits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Requantised {
    channels: Vec<Channel>,
    offset: i32,
    limits: Limits,
    /// What the element type adds to what the signed datapath sees.
    centre: i32,
}

impl Finish {
    /// Checks and prepares. `wide`: results are the sums themselves.
    pub(crate) fn new<T: Element>(
        conv: &Conv<'_, T>,
        input: &Tensor,
        output: &Tensor,
        wide: bool,
    ) -> Result<Self, Unsupported> {
        if !T::TYPE.is_integer() {
            return Self::real(conv, wide);
        }
        let mut data = Vec::with_capacity(conv.filter.len());
        T::put(conv.filter, &mut data);
        let quantised = &conv.quantised;
        let (scales, zero_points) = (quantised.filter_scales, quantised.filter_zero_points);
        let ones = vec![1.0; zero_points.len().max(1)];
        let filter = Filter { data: &data, scales: if wide { &ones } else { scales }, zero_points };
        let (bias, taps) = (&conv.bias, conv.window.kernel[0] * conv.window.kernel[1]);
        let activation = conv.activation;
        let int = IntConv { kind: conv.kind, input, output, taps, filter: &filter, bias, activation };
        let (ranges, given) = int.ranges(&signed_weights(&data, T::TYPE))?;
        if wide {
            if activation != Activation::None {
                return Err(Unsupported::new("an activation of sums, which have no scale"));
            }
            if let Some(channel) = ranges.iter().position(|range| !range.fits()) {
                return Err(Unsupported::new(format!("the sums of channel {channel} exceed 32 bits")));
            }
        }
        let zero_points = match given {
            ZeroPoints::Tensor(0) => None,
            ZeroPoints::Tensor(zero_point) => Some(vec![zero_point; conv.channels]),
            ZeroPoints::PerChannel(zero_points) => Some(zero_points),
        };
        let addends = ranges.iter().map(|range| range.addend).collect();
        let requantised = (!wide).then(|| int.prepare()).transpose()?.map(|(_, prepared)| Requantised {
            channels: prepared.channels,
            offset: prepared.offset,
            limits: prepared.limits,
            centre: T::TYPE.centre(),
        });
        Ok(Self::Integer { addends, zero_points, requantised })
    }

    fn real<T: Element>(conv: &Conv<'_, T>, wide: bool) -> Result<Self, Unsupported> {
        // Results in half precision have the limits that the hardware gives them.
        let activation = if wide { Activation::None } else { conv.activation };
        let LayerArithmetic::Fp16 { bias, .. } = prepare_fp16(&conv.bias, activation, conv.channels)? else {
            return Err(Unsupported::new("real numbers without real arithmetic"));
        };
        let limits = match conv.activation {
            Activation::None => [f64::NEG_INFINITY, f64::INFINITY],
            Activation::Relu => [0.0, f64::INFINITY],
            Activation::ReluN1To1 => [-1.0, 1.0],
            Activation::Relu6 => [0.0, 6.0],
        };
        Ok(Self::Real { bias, limits })
    }

    /// Whether the sum of each window is needed.
    pub(crate) fn needs_window(&self) -> bool {
        matches!(self, Self::Integer { zero_points: Some(_), .. })
    }

    /// The result of a channel. `window`: the sum of the inputs that it saw.
    pub(crate) fn result<Out: Output>(&self, channel: usize, total: f64, window: f64) -> Out {
        match self {
            Self::Integer { addends, zero_points, requantised } => {
                let zero_point = zero_points.as_ref().map_or(0, |list| list[channel]);
                // Integers far below 2^53, which a double holds.
                let sum = total - f64::from(zero_point) * window + addends[channel] as f64;
                let Some(requantised) = requantised else { return Out::from_real(sum) };
                let Requantised { channels, offset, limits, centre } = requantised;
                // CAST: as above.
                let result = channels[channel].result(sum as i64, *offset, *limits) + centre;
                Out::from_real(result.into())
            }
            Self::Real { bias, limits: [low, high] } => {
                let sum = total + bias.as_ref().map_or(0.0, |bias| bias[channel].into());
                // Not `clamp`, so that NaN stays what it is.
                Out::from_real(if sum < *low {
                    *low
                } else if sum > *high {
                    *high
                } else {
                    sum
                })
            }
        }
    }
}

/// Refuses a bias of the wrong kind or length before anything is packed.
pub(crate) fn check_bias(bias: &Bias<'_>, element: ElementType, channels: usize) -> Result<(), Unsupported> {
    let found = match *bias {
        Bias::None => channels,
        Bias::I32(bias) if element.is_integer() => bias.len(),
        Bias::F32(bias) if !element.is_integer() => bias.len(),
        Bias::I32(_) => return Err(Unsupported::new("a quantised bias for real numbers")),
        Bias::F32(_) => return Err(Unsupported::new("a real bias for quantised numbers")),
    };
    match found == channels {
        true => Ok(()),
        false => Err(Unsupported::new(format!("{found} biases for {channels} channels"))),
    }
}
