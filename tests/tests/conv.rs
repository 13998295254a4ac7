//! Operations of the NPU library on the simulator, against exact arithmetic.

#![allow(clippy::unwrap_used, reason = "everything in this file is a test")]

mod quantised;

use npu::{
    Activation, Add, Bias, Chip, Conv2d, Depthwise, ElementType, Filter, NetworkBuilder, Padding, Quant, Window,
};
use npu_device::Deadline;
use npu_sim::Options;
use quantised::{
    Agreement, Conv, Scales, Tensor, device, from_bytes, kernels, quant, rng, run, same_padding, sum, window,
};
use rand::Rng;
use rand::rngs::StdRng;

/// Runs one convolution and returns its results.
fn convolve(options: Options, input: &Tensor, conv: &Conv) -> Vec<i32> {
    let mut builder = NetworkBuilder::new(&Chip::RK3588);
    let tensor = builder.input(input.shape, input.element, input.quant).unwrap();
    let output = conv.add_to(&mut builder, tensor).unwrap();
    builder.output(output);
    let network = builder.build().unwrap();
    let (simulator, device) = device(options);
    let mut resident = network.load(&device).unwrap();
    let outputs = run(&simulator, &mut resident, &[input], 1);
    from_bytes(input.element, &outputs[0])
}

fn check(agreement: &mut Agreement, input: &Tensor, conv: &Conv) {
    let exact = conv.oracle(input);
    for options in kernels() {
        let found = convolve(options, input, conv);
        agreement.add(&found, &exact.data);
        assert!(agreement.worst <= 1, "{:?} {:?} depthwise {}", input.shape, conv.window, conv.depthwise);
    }
}

fn random_window(rng: &mut StdRng) -> Window {
    let kernel = [rng.random_range(1..=5), rng.random_range(1..=5)];
    let dilation = [rng.random_range(1..=2), rng.random_range(1..=2)];
    let mut pads = [0; 4];
    for (index, pad) in pads.iter_mut().enumerate() {
        *pad = rng.random_range(0..=(kernel[index / 2] - 1) * dilation[index / 2]);
    }
    let padding = Padding { top: pads[0], bottom: pads[1], left: pads[2], right: pads[3] };
    Window { kernel, stride: [rng.random_range(1..=2), rng.random_range(1..=2)], dilation, padding }
}

fn random_case(seed: u64, element: ElementType, depthwise: bool, spread: Scales) -> (Tensor, Conv) {
    let mut rng = rng(seed);
    let window = random_window(&mut rng);
    let span = |axis: usize| (window.kernel[axis] - 1) * window.dilation[axis] + 1;
    let extents = [span(0) + rng.random_range(0..8), span(1) + rng.random_range(0..8)];
    let channels = rng.random_range(1..=70);
    let quant = quant(&mut rng, element);
    let input = Tensor::random(&mut rng, [extents[0], extents[1], channels], element, quant);
    let outputs = if depthwise { channels } else { rng.random_range(1..=100) };
    let conv = Conv::random(&mut rng, &input, window, outputs, depthwise, spread);
    (input, conv)
}

fn check_random(element: ElementType, depthwise: bool, spread: Scales) {
    let mut agreement = Agreement::default();
    for seed in 0..40 {
        let (input, conv) = random_case(seed, element, depthwise, spread);
        check(&mut agreement, &input, &conv);
    }
    agreement.check();
}

#[test]
fn a_signed_convolution_agrees_with_exact_arithmetic() {
    check_random(ElementType::I8, false, Scales::Tensor);
}

#[test]
fn a_convolution_with_scales_a_thousand_apart_agrees_with_exact_arithmetic() {
    check_random(ElementType::I8, false, Scales::PerChannel(1000.0));
}

#[test]
fn an_unsigned_convolution_agrees_with_exact_arithmetic() {
    check_random(ElementType::U8, false, Scales::Tensor);
}

#[test]
fn an_unsigned_convolution_with_a_zero_point_per_channel_agrees_with_exact_arithmetic() {
    check_random(ElementType::U8, false, Scales::PerChannel(50.0));
}

#[test]
fn a_depthwise_convolution_agrees_with_exact_arithmetic() {
    check_random(ElementType::I8, true, Scales::Tensor);
}

#[test]
fn a_depthwise_convolution_with_scales_a_thousand_apart_agrees_with_exact_arithmetic() {
    check_random(ElementType::I8, true, Scales::PerChannel(1000.0));
}

#[test]
fn an_unsigned_depthwise_convolution_agrees_with_exact_arithmetic() {
    check_random(ElementType::U8, true, Scales::Tensor);
    check_random(ElementType::U8, true, Scales::PerChannel(50.0));
}

/// Random picture of a fixed shape and a convolution over it.
fn fixed(seed: u64, shape: [usize; 3], window: Window, outputs: usize, depthwise: bool) -> (Tensor, Conv) {
    let mut rng = rng(seed);
    let quant = quant(&mut rng, ElementType::I8);
    let input = Tensor::random(&mut rng, shape, ElementType::I8, quant);
    let conv = Conv::random(&mut rng, &input, window, outputs, depthwise, Scales::PerChannel(8.0));
    (input, conv)
}

#[test]
fn tiny_planes_are_right_on_every_plane() {
    let mut agreement = Agreement::default();
    for extent in 1..=3 {
        for depthwise in [false, true] {
            let (input, conv) = fixed(7, [extent, extent, 96], window(3, 1, 1, same_padding(3)), 96, depthwise);
            check(&mut agreement, &input, &conv);
        }
        let (input, conv) = fixed(8, [extent, 5, 128], window(1, 1, 1, Padding::default()), 64, false);
        check(&mut agreement, &input, &conv);
    }
    agreement.check();
}

#[test]
fn a_layer_that_exceeds_the_buffer_is_cut_into_bands() {
    let mut agreement = Agreement::default();
    for (shape, kernel, stride, outputs, depthwise) in [
        ([90, 80, 64], 3, 1, 40, false),
        ([61, 90, 96], 3, 2, 96, true),
        ([130, 75, 3], 5, 2, 24, false),
        ([40, 64, 192], 1, 1, 33, false),
        ([70, 64, 192], 5, 1, 192, true),
    ] {
        let window = window(kernel, stride, 1, same_padding(kernel));
        let (input, conv) = fixed(9, shape, window, outputs, depthwise);
        check(&mut agreement, &input, &conv);
    }
    agreement.check();
}

#[test]
fn activations_limit_the_output_as_tflite_does() {
    let mut agreement = Agreement::default();
    for (activation, output) in [
        (Activation::Relu, Quant { scale: 0.05, zero_point: -128 }),
        (Activation::Relu, Quant { scale: 0.05, zero_point: -20 }),
        (Activation::Relu6, Quant { scale: 6.0 / 255.0, zero_point: -128 }),
        (Activation::Relu6, Quant { scale: 0.05, zero_point: -128 }),
        (Activation::Relu6, Quant { scale: 0.06, zero_point: -30 }),
    ] {
        let (input, mut conv) = fixed(10, [6, 7, 20], window(3, 1, 1, same_padding(3)), 40, false);
        let ratio = output.scale / conv.output.scale;
        conv.scales.iter_mut().for_each(|scale| *scale *= ratio);
        (conv.activation, conv.output) = (activation, output);
        check(&mut agreement, &input, &conv);
    }
    agreement.check();
}

#[test]
fn channels_that_cannot_move_the_result_are_constant() {
    let (input, mut conv) = fixed(11, [5, 5, 16], window(1, 1, 1, Padding::default()), 64, false);
    for channel in (0..64).step_by(3) {
        conv.scales[channel] *= 1e-10;
        conv.bias[channel] *= 5;
    }
    for channel in (1..64).step_by(3) {
        conv.weights[channel * 16..][..16].fill(0);
    }
    let exact = conv.oracle(&input);
    let found = convolve(Options::default(), &input, &conv);
    let mut agreement = Agreement::default();
    agreement.add(&found, &exact.data);
    agreement.check();
    for (index, (found, exact)) in found.iter().zip(&exact.data).enumerate() {
        if index % 64 % 3 < 2 {
            assert_eq!(found, exact, "constant channel {}", index % 64);
        }
    }
}

fn add_case(seed: u64, shape: [usize; 3], element: ElementType, activation: Activation) -> (Vec<i32>, Tensor) {
    let mut rng = rng(seed);
    let quants = [quant(&mut rng, element), quant(&mut rng, element)];
    let [a, b] = quants.map(|quant| Tensor::random(&mut rng, shape, element, quant));
    let zero_point = if element == ElementType::U8 { 128 } else { rng.random_range(-100..100) };
    let output = Quant { scale: (a.quant.scale + b.quant.scale) * rng.random_range(0.4..1.0), zero_point };
    let mut builder = NetworkBuilder::new(&Chip::RK3588);
    let first = builder.input(shape, element, a.quant).unwrap();
    let second = builder.input(shape, element, b.quant).unwrap();
    let result = builder.add(first, second, &Add { output, activation }).unwrap();
    builder.output(result);
    let network = builder.build().unwrap();
    let (simulator, device) = device(Options::default());
    let mut resident = network.load(&device).unwrap();
    let outputs = run(&simulator, &mut resident, &[&a, &b], 1);
    (from_bytes(element, &outputs[0]), sum(&a, &b, output, activation))
}

#[test]
fn a_residual_sum_agrees_with_exact_arithmetic() {
    let mut agreement = Agreement::default();
    let shapes = [[1, 1, 24], [2, 3, 40], [3, 3, 64], [19, 19, 96], [75, 75, 24], [60, 40, 192]];
    for (seed, shape) in shapes.into_iter().enumerate() {
        for element in [ElementType::I8, ElementType::U8] {
            for activation in [Activation::None, Activation::Relu] {
                let (found, exact) = add_case(seed as u64, shape, element, activation);
                agreement.add(&found, &exact.data);
            }
        }
    }
    assert!(agreement.worst <= 1 && agreement.rate() > 0.9995, "{agreement:?}");
}

#[test]
fn requantising_between_element_types_agrees_with_tflites_arithmetic() {
    let mut agreement = Agreement::default();
    let elements = [ElementType::U8, ElementType::I8];
    for seed in 0..12 {
        let (from, to) = (elements[seed % 2], elements[1 - seed % 2]);
        let mut rng = rng(seed as u64);
        let (source, output) = (quant(&mut rng, from), quant(&mut rng, to));
        let input = Tensor::random(&mut rng, [9, 11, 50], from, source);
        let mut builder = NetworkBuilder::new(&Chip::RK3588);
        let tensor = builder.input(input.shape, from, input.quant).unwrap();
        let tensor = builder.requantize(tensor, to, output, Activation::None).unwrap();
        builder.output(tensor);
        let (simulator, device) = device(Options::default());
        let mut resident = builder.build().unwrap().load(&device).unwrap();
        let outputs = run(&simulator, &mut resident, &[&input], 1);
        let ratio = f64::from(input.quant.scale) / f64::from(output.scale);
        let (low, high) = quantised::range(to);
        let exact = |&value: &i32| {
            let scaled = quantised::twice_rounded((value - input.quant.zero_point).into(), ratio);
            (scaled as i32).saturating_add(output.zero_point).clamp(low, high)
        };
        agreement.add(&from_bytes(to, &outputs[0]), &input.data.iter().map(exact).collect::<Vec<_>>());
    }
    agreement.check();
}

/// What half precision does by npu-spec 5.3: groups of 32 input channels, summed exactly, rounded to single precision, and
/// added in the order group, row, column.
fn fp16_oracle(
    input: &[half::f16],
    shape: [usize; 3],
    weights: &[half::f16],
    bias: &[f32],
    window: &Window,
    depthwise: bool,
) -> Vec<half::f16> {
    let [h, w, c] = shape;
    let [oh, ow] = window.output([h, w]).unwrap();
    let [kh, kw] = window.kernel;
    let at = |y: usize, x: usize, channel: usize| -> f64 {
        match (y.checked_sub(window.padding.top), x.checked_sub(window.padding.left)) {
            (Some(y), Some(x)) if y < h && x < w => input[(y * w + x) * c + channel].to_f64(),
            _ => 0.0,
        }
    };
    let mut results = Vec::new();
    for y in 0..oh {
        for x in 0..ow {
            for channel in 0..bias.len() {
                let groups = if depthwise { 1 } else { c.div_ceil(32) };
                let mut total = 0.0_f32;
                for group in 0..groups {
                    for tap in 0..kh * kw {
                        let (row, column) = (y * window.stride[0] + tap / kw, x * window.stride[1] + tap % kw);
                        let members =
                            if depthwise { channel..channel + 1 } else { group * 32..(group * 32 + 32).min(c) };
                        // Products of numbers between 2^-6 and 2^6 with 11 bits each are exact in a double, and so are 32 of them.
                        let exact: f64 = members
                            .map(|ic| {
                                let weight = match depthwise {
                                    true => tap * bias.len() + channel,
                                    false => (channel * kh * kw + tap) * c + ic,
                                };
                                at(row, column, ic) * weights[weight].to_f64()
                            })
                            .sum();
                        total += exact as f32;
                    }
                }
                results.push(half::f16::from_f32(total + bias[channel]));
            }
        }
    }
    results
}

fn check_fp16(seed: u64, shape: [usize; 3], outputs: usize, window: Window, depthwise: bool, with_bias: bool) {
    let mut rng = rng(seed);
    let mut numbers = |count: usize| -> Vec<half::f16> {
        (0..count).map(|_| half::f16::from_f32(f32::from(rng.random_range(-64i8..64)) / 16.0)).collect()
    };
    let input = numbers(shape.iter().product());
    let taps = window.kernel[0] * window.kernel[1];
    let weights = numbers(if depthwise { taps * outputs } else { taps * outputs * shape[2] });
    let bias: Vec<f32> = (0..outputs).map(|i| if with_bias { i as f32 / 8.0 - 3.0 } else { 0.0 }).collect();
    let bytes = |list: &[half::f16]| -> Vec<u8> { list.iter().flat_map(|value| value.to_le_bytes()).collect() };
    let data = bytes(&weights);
    let filter = Filter { data: &data, scales: &[], zero_points: &[] };
    let stated = if with_bias { Bias::F32(&bias) } else { Bias::None };
    let (output, activation) = (Quant::NONE, Activation::None);
    let mut builder = NetworkBuilder::new(&Chip::RK3588);
    let tensor = builder.input(shape, ElementType::F16, Quant::NONE).unwrap();
    let tensor = match depthwise {
        true => {
            builder.depthwise(tensor, &Depthwise { window, multiplier: 1, filter, bias: stated, output, activation })
        }
        false => {
            builder.conv2d(tensor, &Conv2d { window, channels: outputs, filter, bias: stated, output, activation })
        }
    };
    builder.output(tensor.unwrap());
    let (simulator, device) = device(Options::default());
    let mut resident = builder.build().unwrap().load(&device).unwrap();
    let mut found = vec![Vec::new()];
    if let Err(error) = resident.run(&[&bytes(&input)], &mut found, Deadline::Never) {
        panic!("{error}: {:?}", simulator.faults());
    }
    let exact = bytes(&fp16_oracle(&input, shape, &weights, &bias, &window, depthwise));
    assert!(found[0] == exact, "{shape:?} -> {outputs} {window:?} depthwise {depthwise}");
}

#[test]
fn half_precision_is_what_the_model_of_the_accumulator_says() {
    check_fp16(1, [5, 6, 40], 24, window(1, 1, 1, Padding::default()), false, false);
    check_fp16(2, [7, 5, 64], 70, window(3, 1, 1, same_padding(3)), false, true);
    check_fp16(3, [9, 9, 3], 16, window(3, 2, 1, same_padding(3)), false, true);
    check_fp16(4, [1, 1, 96], 33, window(1, 1, 1, Padding::default()), false, false);
    check_fp16(5, [8, 8, 70], 70, window(3, 1, 1, same_padding(3)), true, false);
    check_fp16(6, [2, 2, 32], 32, window(3, 1, 1, same_padding(3)), true, true);
    check_fp16(7, [60, 64, 64], 32, window(3, 1, 1, same_padding(3)), false, true);
}

#[test]
fn a_half_precision_sum_is_exact() {
    let shape = [5, 5, 40];
    let mut builder = NetworkBuilder::new(&Chip::RK3588);
    let a = builder.input(shape, ElementType::F16, Quant::NONE).unwrap();
    let b = builder.input(shape, ElementType::F16, Quant::NONE).unwrap();
    let tensor = builder.add(a, b, &Add { output: Quant::NONE, activation: Activation::Relu6 }).unwrap();
    builder.output(tensor);
    let (_, device) = device(Options::default());
    let mut resident = builder.build().unwrap().load(&device).unwrap();
    let number = |i: usize, step: f32| half::f16::from_f32((i % 97) as f32 * step - 7.0);
    let list = |step| (0..1000).map(|i| number(i, step)).collect::<Vec<_>>();
    let (a, b) = (list(0.25), list(0.0625));
    let bytes = |list: &[half::f16]| -> Vec<u8> { list.iter().flat_map(|value| value.to_le_bytes()).collect() };
    let mut found = vec![Vec::new()];
    resident.run(&[&bytes(&a), &bytes(&b)], &mut found, Deadline::Never).unwrap();
    let exact: Vec<half::f16> =
        a.iter().zip(&b).map(|(a, b)| half::f16::from_f32((a.to_f32() + b.to_f32()).clamp(0.0, 6.0))).collect();
    assert_eq!(found[0], bytes(&exact));
}
