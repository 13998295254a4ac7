//! Quantised operations as TFLite defines them, in exact integers and doubles: what the NPU's results are compared with.

#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::Arc;
use std::time::Duration;

use npu::{Activation, Bias, Conv2d, Depthwise, ElementType, Filter, NetworkBuilder, Padding, Quant, Resident, Window};
use npu_device::{Deadline, Device, Driver};
use npu_sim::{Options, Simulator};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A tensor `[h, w, c]` of quantised numbers in its element type's own range.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) shape: [usize; 3],
    pub(crate) element: ElementType,
    pub(crate) quant: Quant,
    pub(crate) data: Vec<i32>,
}

impl Tensor {
    pub(crate) fn random(rng: &mut StdRng, shape: [usize; 3], element: ElementType, quant: Quant) -> Self {
        let (low, high) = range(element);
        let data = (0..shape.iter().product()).map(|_| rng.random_range(low..=high)).collect();
        Self { shape, element, quant, data }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        // The low byte of either element type.
        self.data.iter().map(|&value| value as u8).collect()
    }

    /// The value, or the zero point outside.
    fn at(&self, y: isize, x: isize, c: usize) -> i64 {
        let [h, w, channels] = self.shape;
        let inside = (0..h as isize).contains(&y) && (0..w as isize).contains(&x);
        if !inside {
            return self.quant.zero_point.into();
        }
        self.data[(y as usize * w + x as usize) * channels + c].into()
    }
}

pub(crate) fn range(element: ElementType) -> (i32, i32) {
    match element {
        ElementType::U8 => (0, 255),
        _ => (-128, 127),
    }
}

pub(crate) fn from_bytes(element: ElementType, bytes: &[u8]) -> Vec<i32> {
    let value = |&byte: &u8| if element == ElementType::U8 { byte.into() } else { byte.cast_signed().into() };
    bytes.iter().map(value).collect()
}

/// A convolution with everything that it owns.
#[derive(Clone, Debug)]
pub(crate) struct Conv {
    pub(crate) window: Window,
    pub(crate) depthwise: bool,
    pub(crate) channels: usize,
    pub(crate) weights: Vec<i32>,
    pub(crate) scales: Vec<f32>,
    pub(crate) zero_points: Vec<i32>,
    pub(crate) bias: Vec<i32>,
    pub(crate) output: Quant,
    pub(crate) activation: Activation,
}

/// How the scales of a random convolution's channels are spread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scales {
    Tensor,
    /// The largest is this many times the smallest, about.
    PerChannel(f64),
}

impl Conv {
    /// Random weights, and scales with which the results of the channel with the largest scale fill 8 bits.
    pub(crate) fn random(
        rng: &mut StdRng,
        input: &Tensor,
        window: Window,
        channels: usize,
        depthwise: bool,
        spread: Scales,
    ) -> Self {
        let (low, high) = range(input.element);
        let taps = window.kernel[0] * window.kernel[1];
        let per_channel = if depthwise { taps } else { taps * input.shape[2] };
        let weights = (0..per_channel * channels).map(|_| rng.random_range(low..=high)).collect();
        let output = Quant { scale: rng.random_range(0.01..0.3), zero_point: rng.random_range(low..=high) };
        let largest = 60.0 / (5500.0 * (per_channel as f64).sqrt());
        let scales: Vec<f32> = match spread {
            Scales::Tensor => vec![1.0],
            Scales::PerChannel(ratio) => (0..channels).map(|_| ratio.powf(-rng.random::<f64>()) as f32).collect(),
        };
        let unit = largest as f32 * output.scale / input.quant.scale;
        let scales: Vec<f32> = scales.iter().map(|scale| scale * unit).collect();
        let zero_points = match input.element {
            ElementType::U8 => scales.iter().map(|_| rng.random_range(100..156)).collect(),
            _ => vec![0; scales.len()],
        };
        let bias = (0..channels).map(|_| rng.random_range(-20_000..20_000)).collect();
        Self { window, depthwise, channels, weights, scales, zero_points, bias, output, activation: Activation::None }
    }

    fn of<T: Copy>(list: &[T], channel: usize) -> T {
        list[if list.len() == 1 { 0 } else { channel }]
    }

    /// The exact result.
    pub(crate) fn oracle(&self, input: &Tensor) -> Tensor {
        let [oh, ow] = self.window.output([input.shape[0], input.shape[1]]).unwrap();
        let mut data = Vec::with_capacity(oh * ow * self.channels);
        for y in 0..oh {
            for x in 0..ow {
                data.extend((0..self.channels).map(|channel| self.result(input, y, x, channel)));
            }
        }
        Tensor { shape: [oh, ow, self.channels], element: input.element, quant: self.output, data }
    }

    fn result(&self, input: &Tensor, y: usize, x: usize, channel: usize) -> i32 {
        let Window { kernel: [kh, kw], stride, dilation, padding } = self.window;
        let inputs = if self.depthwise { 1 } else { input.shape[2] };
        let zero = i64::from(Self::of(&self.zero_points, channel));
        let mut sum = i64::from(self.bias[channel]);
        for ky in 0..kh {
            for kx in 0..kw {
                let row = (y * stride[0] + ky * dilation[0]) as isize - padding.top as isize;
                let column = (x * stride[1] + kx * dilation[1]) as isize - padding.left as isize;
                for ic in 0..inputs {
                    let (from, weight) = match self.depthwise {
                        true => (channel, (ky * kw + kx) * self.channels + channel),
                        false => (ic, ((channel * kh + ky) * kw + kx) * inputs + ic),
                    };
                    let value = input.at(row, column, from) - i64::from(input.quant.zero_point);
                    sum += value * (i64::from(self.weights[weight]) - zero);
                }
            }
        }
        let multiplier = f64::from(input.quant.scale) * f64::from(Self::of(&self.scales, channel));
        requantised(sum as f64 * multiplier / f64::from(self.output.scale), self.output, input.element, self.activation)
    }

    /// Adds it to a network.
    pub(crate) fn add_to(
        &self,
        builder: &mut NetworkBuilder,
        input: npu::TensorRef,
    ) -> Result<npu::TensorRef, npu::Unsupported> {
        let data: Vec<u8> = self.weights.iter().map(|&weight| weight as u8).collect();
        let filter = Filter { data: &data, scales: &self.scales, zero_points: &self.zero_points };
        let (window, output, activation) = (self.window, self.output, self.activation);
        let bias = Bias::I32(&self.bias);
        if self.depthwise {
            return builder.depthwise(input, &Depthwise { window, multiplier: 1, filter, bias, output, activation });
        }
        builder.conv2d(input, &Conv2d { window, channels: self.channels, filter, bias, output, activation })
    }
}

/// A real result, in units of the output scale, as a quantised number.
pub(crate) fn requantised(real: f64, output: Quant, element: ElementType, activation: Activation) -> i32 {
    let (low, high) = range(element);
    let quantised = |real: f64| (real / f64::from(output.scale)).round() as i32 + output.zero_point;
    let (low, high) = match activation {
        Activation::None => (low, high),
        Activation::Relu => (low.max(quantised(0.0)), high),
        Activation::Relu6 => (low.max(quantised(0.0)), high.min(quantised(6.0))),
        Activation::ReluN1To1 => (low.max(quantised(-1.0)), high.min(quantised(1.0))),
    };
    (real.round() as i32 + output.zero_point).clamp(low, high)
}

/// `value` times `multiplier` as TFLite computes it: a fraction of 31 bits, rounded, and a shift, rounded again; a shift to
/// the left comes first.
pub(crate) fn twice_rounded(value: i64, multiplier: f64) -> i64 {
    let exponent = multiplier.log2().floor() as i32 + 1;
    let fraction = (multiplier * f64::from(31 - exponent).exp2()).round() as i64;
    let product = (value << exponent.max(0)) * fraction;
    let high = (product + if product >= 0 { 1 << 30 } else { 1 - (1 << 30) }) / (1 << 31);
    let shift = (-exponent).max(0);
    let rest = high & ((1 << shift) - 1);
    let half = ((1 << shift) - 1) >> 1;
    (high >> shift) + i64::from(rest > half + i64::from(high < 0))
}

/// The exact sum of two tensors.
pub(crate) fn sum(a: &Tensor, b: &Tensor, output: Quant, activation: Activation) -> Tensor {
    let real = |tensor: &Tensor, value: i32| f64::from(value - tensor.quant.zero_point) * f64::from(tensor.quant.scale);
    let add = |(&x, &y): (&i32, &i32)| (real(a, x) + real(b, y)) / f64::from(output.scale);
    let data = a.data.iter().zip(&b.data).map(|pair| requantised(add(pair), output, a.element, activation)).collect();
    Tensor { shape: a.shape, element: a.element, quant: output, data }
}

/// A device of a fresh simulator.
pub(crate) fn device(options: Options) -> (Simulator, Arc<dyn Device>) {
    let simulator = Simulator::new(options);
    let device = simulator.open().unwrap();
    (simulator, device)
}

/// Both kinds of kernel.
pub(crate) fn kernels() -> [Options; 2] {
    [Options::default(), Options::batched()]
}

/// Runs once, with what the simulator has to say where that fails.
pub(crate) fn run(simulator: &Simulator, resident: &mut Resident, inputs: &[&Tensor], outputs: usize) -> Vec<Vec<u8>> {
    let inputs: Vec<Vec<u8>> = inputs.iter().map(|input| input.bytes()).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let mut bytes = vec![Vec::new(); outputs];
    if let Err(error) = resident.run(&inputs, &mut bytes, Deadline::Never) {
        panic!("{error}; {:?}", simulator.faults());
    }
    bytes
}

/// How results compare with exact ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Agreement {
    pub(crate) elements: usize,
    pub(crate) equal: usize,
    pub(crate) worst: i32,
}

impl Agreement {
    pub(crate) fn add(&mut self, found: &[i32], exact: &[i32]) {
        assert_eq!(found.len(), exact.len());
        self.elements += found.len();
        for (found, exact) in found.iter().zip(exact) {
            self.equal += usize::from(found == exact);
            self.worst = self.worst.max((found - exact).abs());
        }
    }

    pub(crate) fn rate(&self) -> f64 {
        self.equal as f64 / self.elements as f64
    }

    /// Every result within one step, and 99.5 % equal.
    pub(crate) fn check(&self) {
        assert!(self.worst <= 1 && self.rate() >= 0.995, "{self:?}, {:.4} equal", self.rate());
    }
}

pub(crate) fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

pub(crate) fn quant(rng: &mut StdRng, element: ElementType) -> Quant {
    let (low, high) = range(element);
    Quant { scale: rng.random_range(0.005..0.2), zero_point: rng.random_range(low..=high) }
}

pub(crate) fn same_padding(kernel: usize) -> Padding {
    let before = (kernel - 1) / 2;
    Padding { top: before, bottom: kernel - 1 - before, left: before, right: kernel - 1 - before }
}

pub(crate) fn window(kernel: usize, stride: usize, dilation: usize, padding: Padding) -> Window {
    Window { kernel: [kernel; 2], stride: [stride; 2], dilation: [dilation; 2], padding }
}

/// TIMEOUT: far above any modelled job of these tests, on the virtual clock.
pub(crate) fn soon(device: &dyn Device) -> Deadline {
    Deadline::after(device, Duration::from_secs(10))
}
