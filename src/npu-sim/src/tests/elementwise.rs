//! Element-wise operations, flying and fused.

use half::f16;
use npu_regs::{AluAlgo, Precision, Register, dpu};

use crate::Options;
use crate::testbed::{Bed, Conv, flying, fuse, open, set};

fn write<const N: usize>(bo: &mut npu_device::Bo, values: impl Iterator<Item = [u8; N]>) {
    let mut access = open(bo);
    for (to, value) in access.chunks_exact_mut(N).zip(values) {
        to.copy_from_slice(&value);
    }
}

fn halves(bytes: &[u8]) -> Vec<f16> {
    bytes.chunks_exact(2).map(|pair| f16::from_le_bytes([pair[0], pair[1]])).collect()
}

fn integers(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|word| i32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn number(i: usize) -> f16 {
    f16::from_f32(i as f32 * 0.37 - 40.0)
}

#[test]
fn halves_are_added_multiplied_and_compared() {
    let other = |i: usize| f16::from_f32(3.5 - i as f32 * 0.11);
    let add = |a: f32, b: f32| a + b;
    type Case = (AluAlgo, bool, fn(f32, f32) -> f32);
    let cases: [Case; 5] = [
        (AluAlgo::Add, false, add),
        (AluAlgo::Minus, false, |a, b| a - b),
        (AluAlgo::Max, false, f32::max),
        (AluAlgo::Min, false, f32::min),
        (AluAlgo::Add, true, |a, b| a * b),
    ];
    for (algo, mul, expected) in cases {
        let mut bed = Bed::new(Options::default());
        write(&mut bed.features, (0..80).map(|i| number(i).to_le_bytes()));
        write(&mut bed.operands, (0..80).map(|i| other(i).to_le_bytes()));
        let mut stream = flying(&bed, 10, Precision::Fp16, mul);
        patch_algo(&mut stream, algo);
        let output = bed.run(&[&stream]);
        assert_eq!(bed.fault(), None);
        for (i, got) in halves(&output).into_iter().take(80).enumerate() {
            assert_eq!(got, f16::from_f32(expected(number(i).to_f32(), other(i).to_f32())), "{algo:?} {mul} at {i}");
        }
        assert_eq!(halves(&output)[80], f16::ZERO, "nothing behind the end");
    }
}

fn patch_algo(stream: &mut crate::testbed::Stream, algo: AluAlgo) {
    let value = stream
        .iter()
        .find_map(|word| match word.decode() {
            Ok(npu_regs::Op::Write { register, value }) if register.name == dpu::EwCfg::INFO.name => Some(value),
            _ => None,
        })
        .unwrap();
    let config = dpu::EwCfg { ew_alu_algo: algo, ..dpu::EwCfg::decode(value).unwrap() };
    set(stream, dpu::EwCfg::INFO, config.encode().unwrap());
}

#[test]
fn eight_bit_sums_saturate() {
    let mut bed = Bed::new(Options::default());
    write(&mut bed.features, (0..32).map(|_| [100]));
    write(&mut bed.operands, (0..32u8).map(|i| [i * 8]));
    let stream = flying(&bed, 2, Precision::Int8, false);
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), None);
    assert_eq!(output[..5].iter().map(|byte| *byte as i8).collect::<Vec<_>>(), [100, 108, 116, 124, 127]);
    assert_eq!(output[16] as i8, -28);
}

#[test]
fn thirty_two_bit_products_take_sixteen_bits_of_the_second_factor() {
    let mut bed = Bed::new(Options::default());
    write(&mut bed.features, [3i32, 3, 1 << 20, -5].map(i32::to_le_bytes).into_iter());
    write(&mut bed.operands, [70_000i32, 0x8000, 1 << 14, 7].map(i32::to_le_bytes).into_iter());
    let stream = flying(&bed, 1, Precision::Int32, true);
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), None);
    assert_eq!(integers(&output)[..4], [3 * (70_000 - 65_536), 3 * -0x8000, i32::MAX, -35]);
}

/// A half-precision convolution with weights of zero, so that only the operand is left.
fn fused(height: usize, sliced: Option<usize>) -> (Vec<f16>, Conv) {
    let mut conv = Conv::pointwise(Precision::Fp16, Precision::Fp16);
    (conv.input, conv.output) = ([height, 4], [height, 4]);
    let mut bed = Bed::new(Options::default());
    let pixels = height * 4;
    write(&mut bed.operands, (0..conv.kernels * pixels).map(|i| number(i).to_le_bytes()));
    let mut stream = conv.program(&bed);
    fuse(&mut stream, &conv, bed.operands.dma(), 0x1082_02c0, 0x4000_0008);
    if let Some(rows) = sliced {
        return (slices(&mut bed, &conv, rows), conv);
    }
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), None);
    (halves(&output), conv)
}

/// The same in bands of `rows` rows, with the notches of npu-spec 4.7.
fn slices(bed: &mut Bed, conv: &Conv, rows: usize) -> Vec<f16> {
    use npu_regs::dpu_rdma as rdma;
    let [height, width] = conv.output;
    let mut streams = Vec::new();
    for first in (0..height).step_by(rows) {
        let band = Conv { input: [rows, width], output: [rows, width], ..conv.clone() };
        let mut stream = band.program(bed);
        let operand = bed.operands.dma() + (first * width * 16) as u32;
        fuse(&mut stream, &band, operand, 0x1082_02c0, 0x4000_0008);
        let full = (height * width) as u32;
        let notch = (full.max(12) + (width * (height - rows)) as u32) << 4;
        for (register, value) in [
            (rdma::EwBaseAddr::INFO, operand + full * 16),
            (rdma::SurfNotch::INFO, notch),
            (rdma::EwSurfNotch::INFO, notch),
            (dpu::DstBaseAddr::INFO, bed.output.dma() + (first * width * 16) as u32),
            (dpu::DstSurfStride::INFO, full << 4),
            (dpu::SurfaceAdd::INFO, (2 * full) << 4),
        ] {
            set(&mut stream, register, value);
        }
        streams.push(stream);
    }
    let output = bed.run(&streams.iter().collect::<Vec<_>>());
    assert_eq!(bed.fault(), None);
    halves(&output)
}

#[test]
fn a_fused_operand_is_read_by_alternate_planes() {
    let (output, conv) = fused(4, None);
    let all = conv.kernels * 16;
    assert_eq!(output[..all], (0..all).map(number).collect::<Vec<_>>());
}

/// The modes of npu-spec 4.7, on a convolution whose every sum is 32.
#[test]
fn a_fused_operand_is_added_compared_and_multiplied() {
    type Case = (u32, u32, Precision, fn(f32) -> f32);
    let cases: [Case; 5] = [
        (0x1082_02c0, 0x4000_0008, Precision::Fp16, |x| 32.0 + x),
        (0x1080_02c0, 0x4000_0008, Precision::Fp16, |x| x.max(32.0)),
        (0x1081_02c0, 0x4000_0008, Precision::Fp16, |x| x.min(32.0)),
        (0x1080_03c4, 0x4000_0008, Precision::Fp16, |x| x * 32.0),
        (0x10c2_02c0, 0x4000_000c, Precision::Fp32, |x| 32.0 + x),
    ];
    for (mode, reader, out, expected) in cases {
        let conv = Conv::pointwise(Precision::Fp16, out);
        let mut bed = Bed::new(Options::default());
        for bo in [&mut bed.features, &mut bed.weights] {
            write(bo, (0..8 * 8 * 32).map(|_| f16::ONE.to_le_bytes()));
        }
        match out {
            Precision::Fp16 => write(&mut bed.operands, (0..2048).map(|i| number(i).to_le_bytes())),
            _ => write(&mut bed.operands, (0..2048).map(|i| number(i).to_f32().to_le_bytes())),
        }
        let mut stream = conv.program(&bed);
        fuse(&mut stream, &conv, bed.operands.dma(), mode, reader);
        let output = bed.run(&[&stream]);
        assert_eq!(bed.fault(), None);
        for i in 0..2048 {
            let expected = expected(number(i).to_f32());
            match out {
                Precision::Fp16 => assert_eq!(halves(&output)[i], f16::from_f32(expected), "{mode:#x} at {i}"),
                _ => assert_eq!(f32::from_bits(integers(&output)[i].cast_unsigned()), expected, "{mode:#x} at {i}"),
            }
        }
    }
}

#[test]
fn a_fused_operand_is_read_by_bands_of_rows() {
    let (output, conv) = fused(8, Some(4));
    let all = conv.kernels * 32;
    assert_eq!(output[..all], (0..all).map(number).collect::<Vec<_>>());
}

#[test]
fn a_fused_operand_of_fewer_than_twelve_pixels_is_read_at_wrong_strides() {
    let (output, conv) = fused(2, None);
    let right: Vec<f16> = (0..conv.kernels * 8).map(number).collect();
    assert_eq!(output[..2 * 64], right[..2 * 64], "the first two planes have no notch before them");
    assert_ne!(output[2 * 64..3 * 64], right[2 * 64..3 * 64], "Q22");
}
