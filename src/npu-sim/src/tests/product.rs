//! Matrix products in the precisions that have nothing else, against scalar references.

use half::bf16;
use npu_regs::{Precision, Register, core, dpu};

use crate::testbed::{Bed, Conv, Stream, open, set};
use crate::{Options, Quirk};

/// A product of `rows` rows, `depth` columns and `kernels` kernels.
fn product(precision: Precision, out: Precision, rows: usize, depth: usize, kernels: usize) -> Conv {
    let (input, output) = ([rows, 1], [rows, 1]);
    Conv { input, output, channels: depth, kernels, ..Conv::pointwise(precision, out) }
}

/// A number from a position, the same on every run.
fn noise(seed: u64, row: usize, column: usize) -> u64 {
    let mut x = seed ^ ((row << 20 | column) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn bed(conv: &Conv, put: impl Fn(u64, usize, usize) -> Vec<u8>) -> Bed {
    let mut bed = Bed::new(Options::default());
    let fill = |bytes: &mut [u8], at: usize, column: usize, element: Vec<u8>| match conv.precision {
        Precision::Int4 => bytes[at] |= element[0] << (column % 2 * 4),
        _ => bytes[at..at + element.len()].copy_from_slice(&element),
    };
    for column in 0..conv.channels {
        for row in 0..conv.input[0] {
            fill(&mut open(&mut bed.features), conv.feature_at(row, 0, column), column, put(1, row, column));
        }
        for kernel in 0..conv.kernels {
            fill(&mut open(&mut bed.weights), conv.weight_at(kernel, column, 0, 0), column, put(2, kernel, column));
        }
    }
    bed
}

/// Checks all outputs as bits: `expected(row, kernel)`.
fn check(conv: &Conv, put: impl Fn(u64, usize, usize) -> Vec<u8>, expected: impl Fn(usize, usize) -> Vec<u8>) {
    let mut bed = bed(conv, put);
    let output = bed.run(&[&conv.program(&bed)]);
    assert_eq!(bed.fault(), None, "{conv:?}");
    for row in 0..conv.output[0] {
        for kernel in 0..conv.kernels {
            let expected = expected(row, kernel);
            let found = &output[conv.output_at(row, 0, kernel)..][..expected.len()];
            assert_eq!(found, expected, "{:?} row {row} kernel {kernel}", conv.precision);
        }
    }
}

fn code(seed: u64, row: usize, column: usize) -> i64 {
    (noise(seed, row, column) % 16) as i64 - 8
}

#[test]
fn products_of_4_bit_numbers_are_exact_and_saturate_at_16_bits() {
    let conv = product(Precision::Int4, Precision::Int16, 8, 128, 128);
    let sum = |row, kernel| (0..128).map(|k| code(1, row, k) * code(2, kernel, k)).sum::<i64>();
    let low = |seed, row, column| vec![code(seed, row, column) as u8 & 15];
    check(&conv, low, |row, kernel| (sum(row, kernel) as i16).to_le_bytes().to_vec());
    let conv = product(Precision::Int4, Precision::Int16, 4, 1024, 64);
    check(&conv, |_, _, _| vec![8], |_, _| i16::MAX.to_le_bytes().to_vec());
}

fn short(seed: u64, row: usize, column: usize) -> i64 {
    i64::from(noise(seed, row, column) as i16)
}

#[test]
fn q27_products_of_16_bit_numbers_saturate_at_32_bits() {
    let conv = product(Precision::Int16, Precision::Int32, 8, 64, 48);
    let sum = |row, kernel| (0..64).map(|k| short(1, row, k) * short(2, kernel, k)).sum::<i64>();
    assert!((0..8).any(|row| i32::try_from(sum(row, 0)).is_err()), "some sums must saturate");
    let put = |seed, row, column| (short(seed, row, column) as i16).to_le_bytes().to_vec();
    let clamped = |sum: i64| sum.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    check(&conv, put, |row, kernel| clamped(sum(row, kernel)).to_le_bytes().to_vec());
}

/// The scheme of npu-spec 5.3: groups are exact, here in double precision, and rounded once.
fn grouped(a: impl Fn(usize) -> f64, b: impl Fn(usize) -> f64, depth: usize, group: usize) -> f32 {
    (0..depth).step_by(group).fold(0f32, |sum, k| sum + (k..k + group).map(|k| a(k) * b(k)).sum::<f64>() as f32)
}

fn real(seed: u64, row: usize, column: usize) -> f32 {
    (noise(seed, row, column) % 65536) as f32 / 32768.0 - 1.0
}

#[test]
fn products_of_brain_floats_add_groups_of_32() {
    let conv = product(Precision::Bf16, Precision::Fp32, 8, 96, 32);
    let value = |seed, row, column| bf16::from_f32(real(seed, row, column));
    let sum = |row, n| grouped(|k| value(1, row, k).to_f64(), |k| value(2, n, k).to_f64(), 96, 32);
    let put = |seed, row, column| value(seed, row, column).to_le_bytes().to_vec();
    check(&conv, put, |row, kernel| sum(row, kernel).to_le_bytes().to_vec());
}

#[test]
fn products_in_tf32_round_their_factors_and_add_groups_of_16() {
    let conv = product(Precision::Tf32, Precision::Fp32, 8, 48, 32);
    let value = |seed, row, column| real(seed, row, column) * 1.000_123;
    // Eleven significant bits.
    let rounded = |x: f32| {
        let step = 2f64.powi(x.abs().log2().floor() as i32 - 10);
        (f64::from(x) / step).round_ties_even() * step
    };
    let sum = |row, n| grouped(|k| rounded(value(1, row, k)), |k| rounded(value(2, n, k)), 48, 16);
    let put = |seed, row, column| value(seed, row, column).to_le_bytes().to_vec();
    check(&conv, put, |row, kernel| sum(row, kernel).to_le_bytes().to_vec());
}

#[test]
fn q9_without_qd_en_16_bit_integers_give_16_channels() {
    let conv = product(Precision::Int16, Precision::Int32, 4, 32, 48);
    let mut bed = bed(&conv, |_, _, _| vec![1, 0]);
    open(&mut bed.output).fill(0x77);
    let mut program = conv.program(&bed);
    let config = core::MiscCfg { proc_precision: Precision::Int16, ..Default::default() };
    set(&mut program, core::MiscCfg::INFO, config.encode().unwrap());
    let output = bed.run(&[&program]);
    assert_eq!(bed.fault(), None);
    assert_eq!([output[conv.output_at(0, 0, 15)], output[conv.output_at(0, 0, 16)]], [32, 0x77]);
}

fn spoiled(conv: &Conv, spoil: impl FnOnce(&mut Stream)) -> String {
    let mut bed = bed(conv, |_, _, _| vec![0]);
    let mut program = conv.program(&bed);
    spoil(&mut program);
    bed.run(&[&program]);
    bed.fault().unwrap().to_string()
}

#[test]
fn q8_16_bit_integers_with_eight_atoms_hang() {
    let conv = product(Precision::Int16, Precision::Int32, 4, 32, 16);
    let size = dpu::BsOwCfg { size_e_2: 7, size_e_1: 7, size_e_0: 7, od_bypass: true, ..Default::default() };
    let fault = spoiled(&conv, |program| set(program, dpu::BsOwCfg::INFO, size.encode().unwrap()));
    assert!(fault.starts_with(&format!("{:?}", Quirk::Q8)), "{fault}");
}

#[test]
fn a_window_over_brain_floats_is_refused() {
    let conv = Conv { kernel: [3, 1], output: [6, 1], ..product(Precision::Bf16, Precision::Fp32, 8, 32, 16) };
    assert!(spoiled(&conv, |_| {}).contains("a window over elements of this precision"));
}
