//! Convolutions of random shapes against a scalar reference.

use half::f16;
use npu_regs::{Precision, Register, cna};
use proptest::prelude::*;

use crate::testbed::{Bed, Conv, Stream, open, set};
use crate::{Fault, Options};

/// A number from a position, the same on every run.
fn noise(seed: u64, position: usize) -> u64 {
    let mut x = seed ^ (position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn byte(seed: u64, position: usize) -> i8 {
    noise(seed, position) as i8
}

/// Half precision between -4 and 4, some of it small.
fn half(seed: u64, position: usize) -> f16 {
    let bits = noise(seed, position);
    let scale = [1.0, 1e-3, 4.0, 0.25][(bits >> 60) as usize % 4];
    f16::from_f64(((bits & 0xffff) as f64 / 32768.0 - 1.0) * scale)
}

/// The input pixel under a kernel position, or `None` in the padding.
fn under(conv: &Conv, axis: usize, output: usize, tap: usize) -> Option<usize> {
    let position = output * conv.stride[axis] + tap * conv.dilation[axis];
    position.checked_sub(conv.pad[axis]).filter(|position| *position < conv.input[axis])
}

/// A position, `(y, x)`.
type At = (usize, usize);

/// Kernel positions of an output pixel: position, and input pixel where it is inside.
fn window(conv: &Conv, h: usize, w: usize) -> Vec<(At, Option<At>)> {
    let [rows, columns] = conv.kernel;
    let taps = (0..rows).flat_map(|kh| (0..columns).map(move |kw| (kh, kw)));
    taps.map(|(kh, kw)| ((kh, kw), under(conv, 0, h, kh).zip(under(conv, 1, w, kw)))).collect()
}

/// Input channels that an output channel sees.
fn seen(conv: &Conv, oc: usize) -> std::ops::Range<usize> {
    if conv.depthwise { oc..oc + 1 } else { 0..conv.channels }
}

/// Fills features and weights with `element` of seed and position.
fn fill<const N: usize>(bed: &mut Bed, conv: &Conv, element: impl Fn(u64, usize) -> [u8; N]) {
    {
        let mut features = open(&mut bed.features);
        for h in 0..conv.input[0] {
            for w in 0..conv.input[1] {
                for c in 0..conv.channels {
                    let at = conv.feature_at(h, w, c);
                    features[at..at + N].copy_from_slice(&element(1, position(conv, h, w, c)));
                }
            }
        }
    }
    let mut weights = open(&mut bed.weights);
    for oc in 0..conv.kernels {
        for ic in seen(conv, oc) {
            for kh in 0..conv.kernel[0] {
                for kw in 0..conv.kernel[1] {
                    let at = conv.weight_at(oc, ic, kh, kw);
                    weights[at..at + N].copy_from_slice(&element(2, tap(conv, oc, ic, kh, kw)));
                }
            }
        }
    }
}

fn position(conv: &Conv, h: usize, w: usize, c: usize) -> usize {
    (h * conv.input[1] + w) * conv.channels + c
}

fn tap(conv: &Conv, oc: usize, ic: usize, kh: usize, kw: usize) -> usize {
    ((oc * conv.channels + ic) * conv.kernel[0] + kh) * conv.kernel[1] + kw
}

/// The accumulator of one output of an integer convolution.
fn integer_sum(conv: &Conv, h: usize, w: usize, oc: usize) -> i64 {
    let mut sum = 0;
    for ((kh, kw), pixel) in window(conv, h, w) {
        for ic in seen(conv, oc) {
            let x = match pixel {
                Some((h, w)) => byte(1, position(conv, h, w, ic)),
                None => conv.pad_value as i8,
            };
            let weight = i64::from(byte(2, tap(conv, oc, ic, kh, kw))) + i64::from(conv.compensation);
            sum += i64::from(x) * weight;
        }
    }
    sum
}

fn bias(oc: usize) -> i32 {
    (noise(3, oc) % 20001) as i32 - 10000
}

fn check_integers(conv: &Conv) {
    let mut bed = Bed::new(Options::default());
    fill(&mut bed, conv, |seed, at| byte(seed, at).to_le_bytes());
    for oc in 0..conv.kernels {
        open(&mut bed.operands)[4 * oc..4 * oc + 4].copy_from_slice(&bias(oc).to_le_bytes());
    }
    let stream = conv.program(&bed);
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), None, "{conv:?}");
    for h in 0..conv.output[0] {
        for w in 0..conv.output[1] {
            for oc in 0..conv.kernels {
                let sum = integer_sum(conv, h, w, oc) + if conv.bias { bias(oc).into() } else { 0 };
                let at = conv.output_at(h, w, oc);
                if conv.out == Precision::Int8 {
                    let (scale, shift, offset) = conv.requantise;
                    let real = sum as f64 * f64::from(scale) / 2f64.powi(shift as i32);
                    let expected = (real.round_ties_even() + f64::from(offset)).clamp(-128.0, 127.0);
                    assert_eq!(f64::from(output[at] as i8), expected, "{conv:?} at {h} {w} {oc}");
                } else {
                    let got = i32::from_le_bytes(output[at..at + 4].try_into().unwrap());
                    assert_eq!(i64::from(got), sum, "{conv:?} at {h} {w} {oc}");
                }
            }
        }
    }
}

/// The sum that npu-spec 5.3 describes, with every group of 32 as one integer.
fn half_sum(conv: &Conv, h: usize, w: usize, oc: usize) -> f32 {
    let mut sum = 0f32;
    let exact = |ics: &mut dyn Iterator<Item = usize>, kh, kw, (h, w)| {
        let fixed = |x: f16| (x.to_f64() * 2f64.powi(24)) as i128;
        let product = |ic| fixed(half(1, position(conv, h, w, ic))) * fixed(half(2, tap(conv, oc, ic, kh, kw)));
        ics.map(product).sum::<i128>() as f32 / 2f32.powi(48)
    };
    for group in seen(conv, oc).step_by(32) {
        let lanes = if conv.depthwise { 1 } else { 32 };
        for ((kh, kw), pixel) in window(conv, h, w) {
            sum += pixel.map_or(0.0, |pixel| exact(&mut (group..group + lanes), kh, kw, pixel));
        }
    }
    sum
}

fn check_halves(conv: &Conv) {
    let mut bed = Bed::new(Options::default());
    fill(&mut bed, conv, |seed, at| half(seed, at).to_le_bytes());
    let stream = conv.program(&bed);
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), None, "{conv:?}");
    for h in 0..conv.output[0] {
        for w in 0..conv.output[1] {
            for oc in 0..conv.kernels {
                let (at, expected) = (conv.output_at(h, w, oc), half_sum(conv, h, w, oc));
                if conv.out == Precision::Fp16 {
                    let got = f16::from_le_bytes(output[at..at + 2].try_into().unwrap());
                    assert_eq!(got, f16::from_f32(expected), "{conv:?} at {h} {w} {oc}");
                } else {
                    let got = f32::from_le_bytes(output[at..at + 4].try_into().unwrap());
                    assert_eq!(got, expected, "{conv:?} at {h} {w} {oc}");
                }
            }
        }
    }
}

/// Shapes whose planes have at least four rows, and windows that start inside.
fn geometry() -> impl Strategy<Value = Conv> {
    let pair = |range: std::ops::Range<usize>| [range.clone(), range];
    (pair(4..10), pair(1..4), pair(1..4), pair(1..3), pair(0..2), pair(0..2)).prop_map(
        |(input, kernel, stride, dilation, pad, after)| {
            let mut conv = Conv::pointwise(Precision::Int8, Precision::Int32);
            let output = std::array::from_fn(|axis| {
                let covered = dilation[axis] * (kernel[axis] - 1) + 1;
                (input[axis] + pad[axis] + after[axis]).saturating_sub(covered) / stride[axis] + 1
            });
            (conv.input, conv.kernel, conv.stride, conv.dilation, conv.pad) = (input, kernel, stride, dilation, pad);
            conv.output = output;
            conv
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn raw_integers_equal_the_reference(conv in geometry(), c in 1usize..6, groups in 1usize..3, pad in any::<i8>()) {
        let pad_value = i32::from(pad).cast_unsigned();
        check_integers(&Conv { channels: 16 * c, kernels: 32 * groups, pad_value, bias: true, ..conv });
    }

    #[test]
    fn requantised_integers_equal_the_reference(
        conv in geometry(), c in 1usize..4, groups in 1usize..3, compensation in -128i32..128, scale in 1i32..32768,
        shift in 18u32..26, offset in -128i32..128,
    ) {
        let requantise = (scale, shift, offset);
        let out = Precision::Int8;
        check_integers(&Conv { channels: 16 * c, kernels: 32 * groups, compensation, requantise, out, bias: true, ..conv });
    }

    #[test]
    fn depthwise_integers_equal_the_reference(conv in geometry(), c in 1usize..3, compensation in -128i32..128) {
        let requantise = (20000, 20, 3);
        // Both bytes that Q24 reads.
        let pad_value = 0x0505;
        let (out, depthwise) = (Precision::Int8, true);
        check_integers(&Conv {
            channels: 64 * c, kernels: 64 * c, compensation, requantise, out, depthwise, pad_value, ..conv
        });
    }

    #[test]
    fn halves_equal_the_reference(conv in geometry(), c in 1usize..4, groups in 1usize..4, wide in any::<bool>()) {
        let out = if wide { Precision::Fp32 } else { Precision::Fp16 };
        check_halves(&Conv { precision: Precision::Fp16, out, channels: 32 * c, kernels: 16 * groups, ..conv });
    }

    #[test]
    fn depthwise_halves_equal_the_reference(conv in geometry(), c in 1usize..3) {
        let (precision, out) = (Precision::Fp16, Precision::Fp16);
        check_halves(&Conv { precision, out, channels: 32 * c, kernels: 32 * c, depthwise: true, ..conv });
    }
}

#[test]
fn an_integer_sum_leaves_as_single_precision() {
    let conv = Conv::pointwise(Precision::Int8, Precision::Fp32);
    let mut bed = Bed::new(Options::default());
    fill(&mut bed, &conv, |seed, at| byte(seed, at).to_le_bytes());
    let stream = conv.program(&bed);
    let output = bed.run(&[&stream]);
    let at = conv.output_at(2, 3, 7);
    let got = f32::from_le_bytes(output[at..at + 4].try_into().unwrap());
    assert_eq!(f64::from(got), integer_sum(&conv, 2, 3, 7) as f64);
}

/// A matrix product is a convolution one pixel wide; its operands may lie row by row.
#[test]
fn a_matrix_product_reads_and_writes_rows() {
    use npu_regs::{Register, cna, dpu};
    let (m, k, n) = (12, 64, 64);
    let conv = Conv {
        input: [m, 1],
        output: [m, 1],
        channels: k,
        kernels: n,
        ..Conv::pointwise(Precision::Int8, Precision::Int32)
    };
    let mut bed = Bed::new(Options::default());
    fill(&mut bed, &conv, |seed, at| byte(seed, at).to_le_bytes());
    let rows: Vec<u8> = (0..m * k).map(|at| byte(1, at).cast_unsigned()).collect();
    open(&mut bed.features)[..rows.len()].copy_from_slice(&rows);
    let mut stream = conv.program(&bed);
    let notch = (n * 4 / 16 - 1) as u32;
    for (register, value) in [
        (cna::ConvCon1::INFO, 1 << 29),
        (cna::DmaCon1::INFO, (k / 16) as u32),
        (cna::DmaCon2::INFO, 0),
        (dpu::DstSurfStride::INFO, 1 << 4),
        (dpu::DataCubeNotchAddr::INFO, notch << 16 | notch),
        (dpu::SurfaceAdd::INFO, 8 << 4),
    ] {
        set(&mut stream, register, value);
    }
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), None);
    for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
        let at = 4 * (row * n + column);
        let got = i32::from_le_bytes(output[at..at + 4].try_into().unwrap());
        assert_eq!(i64::from(got), integer_sum(&conv, row, 0, column), "row {row}, column {column}");
    }
}

/// Channels beyond the stored kernels are written, with the sum of nothing. SOURCE: npu-spec 4.8.
#[test]
fn a_dense_partial_group_of_kernels_is_read() {
    use npu_regs::{Register, core, dpu, dpu_rdma as rdma};
    let stored = Conv {
        kernel: [3, 3],
        pad: [1, 1],
        channels: 48,
        kernels: 40,
        compensation: 9,
        requantise: (300, 16, 0),
        ..Conv::pointwise(Precision::Int8, Precision::Int8)
    };
    let mut bed = Bed::new(Options::default());
    fill(&mut bed, &stored, |seed, at| byte(seed, at).to_le_bytes());
    let mut stream = stored.program(&bed);
    for register in [core::DataoutSize1::INFO, dpu::WdmaSize0::INFO, rdma::DataCubeChannel::INFO] {
        set(&mut stream, register, 63);
    }
    set(&mut stream, dpu::DataCubeChannel::INFO, 39 << 16 | 63);
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), None);
    for (h, w, oc) in [(0, 0, 0), (3, 4, 31), (7, 7, 32), (5, 0, 39)] {
        let real = integer_sum(&stored, h, w, oc) as f64 * 300.0 / 65536.0;
        let expected = real.round_ties_even().clamp(-128.0, 127.0);
        assert_eq!(f64::from(output[stored.output_at(h, w, oc)] as i8), expected, "{h} {w} {oc}");
    }
}

/// 96 channels are a group of 64 and a dense one of 32; the writer wants whole groups.
#[test]
fn a_dense_partial_group_of_filters_is_read() {
    let conv = Conv {
        depthwise: true,
        kernel: [3, 3],
        pad: [1, 1],
        channels: 96,
        kernels: 128,
        compensation: -7,
        requantise: (500, 12, 1),
        ..Conv::pointwise(Precision::Int8, Precision::Int8)
    };
    let real = Conv { kernels: 96, ..conv.clone() };
    let mut bed = Bed::new(Options::default());
    fill(&mut bed, &real, |seed, at| byte(seed, at).to_le_bytes());
    let stream = conv.program(&bed);
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), None);
    for oc in 0..96 {
        let real = integer_sum(&conv, 4, 5, oc) as f64 * 500.0 / 4096.0;
        let expected = (real.round_ties_even() + 1.0).clamp(-128.0, 127.0);
        assert_eq!(f64::from(output[conv.output_at(4, 5, oc)] as i8), expected, "{oc}");
    }
}

/// Every word in turn, and every bit of it: whatever a program says, a job ends and nothing panics.
#[test]
fn a_program_with_any_bit_wrong_ends() {
    let conv = Conv { bias: true, ..Conv::pointwise(Precision::Int8, Precision::Int8) };
    let mut bed = Bed::new(Options { work_limit: 1 << 20, ..Options::default() });
    let stream = conv.program(&bed);
    for word in 0..stream.len() {
        for bit in 0..64 {
            let mut spoiled = stream.clone();
            spoiled[word].0 ^= 1 << bit;
            bed.submit(&[&spoiled], false);
        }
    }
    assert_eq!(bed.simulator.counters().jobs, 64 * stream.len() as u64);
}

/// The program of a transposed convolution: that of a plain one with steps between its inputs.
fn transposed(conv: &Conv, bed: &Bed, spread: [usize; 2]) -> Stream {
    let mut stream = conv.program(bed);
    let (precision, [y, x]) = (conv.precision, spread.map(|steps| steps as u32 - 1));
    let kind = cna::ConvCon1 { deconv: true, proc_precision: precision, in_precision: precision, ..Default::default() };
    let step = cna::ConvCon3 {
        deconv_y_stride: y,
        deconv_x_stride: x,
        conv_y_stride: conv.stride[0] as u32,
        conv_x_stride: conv.stride[1] as u32,
        ..Default::default()
    };
    set(&mut stream, cna::ConvCon1::INFO, kind.encode().unwrap());
    set(&mut stream, cna::ConvCon3::INFO, step.encode().unwrap());
    stream
}

/// A kernel over inputs with steps between them, `pad` before the first and after the last.
fn stepped(input: [usize; 2], spread: [usize; 2], kernel: usize, pad: usize) -> Conv {
    let grid = [0, 1].map(|axis| (input[axis] - 1) * spread[axis] + 1);
    Conv {
        input,
        kernel: [kernel; 2],
        pad: [pad; 2],
        output: grid.map(|extent| extent + 2 * pad + 1 - kernel),
        kernels: 16,
        ..Conv::pointwise(Precision::Fp16, Precision::Fp16)
    }
}

/// The output of a transposed convolution, and of a plain one whose features have the zeros in memory.
fn both(conv: &Conv, spread: [usize; 2]) -> [Vec<u8>; 2] {
    let mut bed = Bed::new(Options::default());
    fill(&mut bed, conv, |seed, at| half(seed, at).to_le_bytes());
    let stream = transposed(conv, &bed, spread);
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), None, "{conv:?}");
    let grid = [0, 1].map(|axis| (conv.input[axis] - 1) * spread[axis] + 1);
    let plain = Conv { input: grid, ..conv.clone() };
    let mut bed = Bed::new(Options::default());
    fill(&mut bed, &plain, |seed, at| half(seed, at).to_le_bytes());
    open(&mut bed.features).fill(0);
    for (h, w, c) in (0..conv.input[0])
        .flat_map(|h| (0..conv.input[1]).map(move |w| (h, w)))
        .flat_map(|(h, w)| (0..conv.channels).map(move |c| (h, w, c)))
    {
        let at = plain.feature_at(h * spread[0], w * spread[1], c);
        open(&mut bed.features)[at..at + 2].copy_from_slice(&half(1, position(conv, h, w, c)).to_le_bytes());
    }
    let stream = plain.program(&bed);
    let expected = bed.run(&[&stream]);
    assert_eq!(bed.fault(), None, "{plain:?}");
    let bytes = conv.output[0] * conv.output[1] * 32;
    [output, expected].map(|output| output[..bytes].to_vec())
}

#[test]
fn a_transposed_convolution_sees_zeros_between_its_inputs() {
    for (spread, kernel, pad) in [([2, 2], 4, 2), ([4, 4], 4, 3), ([8, 8], 9, 7), ([2, 1], 3, 1)] {
        let [found, expected] = both(&stepped([4, 5], spread, kernel, pad), spread);
        assert!(found == expected && found.iter().any(|byte| *byte != 0), "{spread:?}");
    }
}

#[test]
fn q32_stride_two_with_padding_from_twelve_is_wrong() {
    for (spread, pad, right) in [([2, 2], 11, true), ([2, 2], 12, false), ([2, 2], 15, false), ([4, 4], 12, true)] {
        let [found, expected] = both(&stepped([4, 4], spread, pad + 1, pad), spread);
        assert_eq!(found == expected, right, "{spread:?}, padding {pad}");
    }
}

#[test]
fn what_nobody_saw_of_transposed_convolutions_is_refused() {
    let refused = |conv: &Conv, spread: [usize; 2]| {
        let mut bed = Bed::new(Options::default());
        let stream = transposed(conv, &bed, spread);
        bed.run(&[&stream]);
        bed.fault()
    };
    let plain = stepped([4, 4], [2, 2], 3, 1);
    let strides = Some(Fault::Unproven("these transposed strides"));
    assert_eq!(refused(&plain, [3, 3]), strides);
    assert_eq!(refused(&plain, [1, 2]), strides);
    assert_eq!(refused(&plain, [2, 4]), strides);
    let kind = Some(Fault::Unproven("a transposed convolution with steps, dilation or one filter per channel"));
    assert_eq!(refused(&Conv { stride: [2, 2], ..plain.clone() }, [2, 2]), kind);
    let out = Precision::Int8;
    let integers = Conv { precision: Precision::Int8, out, kernels: 32, ..plain };
    let other = Some(Fault::Unproven("a transposed convolution of other than half precision"));
    assert_eq!(refused(&integers, [2, 2]), other);
}
