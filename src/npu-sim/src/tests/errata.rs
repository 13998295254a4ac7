//! Every modelled erratum, by ID.

use half::f16;
use npu_regs::{BlockMask, Precision, Register, Word, cna, core, dpu, dpu_rdma as rdma};

use crate::testbed::{Bed, Conv, Stream, flying, fuse, open, set};
use crate::{Fault, Options, Quirk};

const INT8: Conv = Conv::pointwise(Precision::Int8, Precision::Int8);

fn bed() -> Bed {
    Bed::new(Options::default())
}

/// Features and weights all of these numbers.
fn fill(bed: &mut Bed, feature: u8, weight: u8) {
    open(&mut bed.features).fill(feature);
    open(&mut bed.weights).fill(weight);
    open(&mut bed.output).fill(0x77);
}

/// Runs a spoiled program and expects a hang of this kind with an untouched output.
#[track_caller]
fn hangs(quirk: Quirk, conv: &Conv, spoil: impl FnOnce(&Bed, &mut Stream)) {
    let mut bed = bed();
    fill(&mut bed, 1, 1);
    let mut stream = conv.program(&bed);
    spoil(&bed, &mut stream);
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), Some(Fault::Quirk { quirk }));
    assert!(output.iter().all(|byte| *byte == 0x77), "the output is untouched");
    assert_eq!(bed.device.now().as_millis(), 500, "the watchdog retired it");
}

/// Runs a spoiled program that completes.
fn runs(conv: &Conv, feature: u8, weight: u8, spoil: impl FnOnce(&Bed, &mut Stream)) -> Vec<u8> {
    let mut bed = bed();
    fill(&mut bed, feature, weight);
    let mut stream = conv.program(&bed);
    spoil(&bed, &mut stream);
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), None);
    output
}

#[test]
fn q1_planes_of_fewer_than_four_rows_are_read_from_wrong_places() {
    let conv = Conv { input: [1, 8], output: [1, 8], ..INT8 };
    let mut bed = bed();
    fill(&mut bed, 0, 1);
    // As a driver would pack one row: planes one row apart.
    open(&mut bed.features)[..8 * 32].fill(1);
    let stream = conv.program(&bed);
    let output = bed.run(&[&stream]);
    assert_eq!(output[0], 16, "the second plane is read beyond the cube");
}

#[test]
fn q1_does_not_concern_a_driver_that_programs_a_negative_stride() {
    let conv = Conv { input: [1, 8], output: [1, 8], ..INT8 };
    let mut bed = bed();
    fill(&mut bed, 0, 1);
    open(&mut bed.features)[..8 * 32].fill(1);
    let mut stream = conv.program(&bed);
    // Eight pixels of one row, less the four rows that planes are apart by themselves.
    set(&mut stream, cna::DmaCon2::INFO, (8_u32.wrapping_sub(4 * 8)) & 0x0fff_ffff);
    let output = bed.run(&[&stream]);
    assert_eq!(output[..32], [32; 32]);
}

#[test]
fn q2_a_main_reader_without_a_use_hangs() {
    hangs(Quirk::Q2, &INT8, |_, stream| set(stream, rdma::FeatureModeCfg::INFO, 0x7800));
}

#[test]
fn q3_an_element_reader_without_a_use_hangs() {
    hangs(Quirk::Q3, &INT8, |_, stream| set(stream, rdma::Ecfg::INFO, 0x4000_0004));
}

#[test]
fn q4_an_operand_without_its_reader_hangs() {
    let mask = |stream: &mut Stream| *stream.last_mut().unwrap() = Word::enable(BlockMask::new(0x0d).unwrap());
    hangs(Quirk::Q4, &Conv { bias: true, ..INT8 }, |_, stream| mask(stream));
    let output = runs(&INT8, 1, 1, |_, stream| mask(stream));
    assert_eq!(output[0], 32, "without operands the mask is enough");
}

#[test]
fn q5_a_task_without_a_marker_does_not_start() {
    hangs(Quirk::Q5, &INT8, |_, stream| {
        let marker = stream.len() - 2;
        stream[marker] = Word::NOP;
    });
}

#[test]
fn q6_a_stream_must_not_write_the_kernels_pointers() {
    for register in [cna::SPointer::INFO, core::SPointer::INFO] {
        hangs(Quirk::Q6, &INT8, |_, stream| stream.insert(0, Word::write(register, 0xe)));
    }
}

#[test]
fn q7_a_partial_group_hangs_after_the_whole_ones() {
    let conv = Conv { kernels: 48, ..INT8 };
    let mut bed = bed();
    fill(&mut bed, 1, 1);
    let stream = conv.program(&bed);
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), Some(Fault::Quirk { quirk: Quirk::Q7 }));
    assert_eq!(output[conv.output_at(7, 7, 31)], 32);
    assert_eq!(output[conv.output_at(0, 0, 32)], 0x77);
}

/// SIZE_E in all three fields, compensation off.
fn size_e(value: u32) -> u32 {
    value << 8 | value << 5 | value << 2 | 2
}

#[test]
fn q8_too_many_atoms_write_one_row_and_hang() {
    let mut bed = bed();
    fill(&mut bed, 1, 1);
    let mut stream = INT8.program(&bed);
    set(&mut stream, dpu::BsOwCfg::INFO, size_e(3));
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), Some(Fault::Quirk { quirk: Quirk::Q8 }));
    assert_eq!(output[INT8.output_at(0, 7, 31)], 32);
    assert_eq!(output[INT8.output_at(1, 0, 0)], 0x77);
}

#[test]
fn q10_too_few_atoms_leave_channels_unwritten() {
    let output = runs(&INT8, 1, 1, |_, stream| set(stream, dpu::BsOwCfg::INFO, size_e(0)));
    assert_eq!([output[INT8.output_at(3, 3, 15)], output[INT8.output_at(3, 3, 16)]], [32, 0x77]);
}

#[test]
fn q11_banks_of_the_fully_connected_mode_spoil_features() {
    let output = runs(&INT8, 1, 1, |_, stream| {
        let banks = cna::CbufCon0 { fc_data_bank: 1, weight_bank: 3, data_bank: 9, ..Default::default() };
        set(stream, cna::CbufCon0::INFO, banks.encode().unwrap());
    });
    assert_ne!(output[0], 32);
}

#[test]
fn q12_the_last_row_of_nearly_full_banks_is_wrong() {
    let conv = Conv { input: [1020, 1], output: [1020, 1], ..INT8 };
    let banks = |data_bank| {
        move |_: &Bed, stream: &mut Stream| {
            let banks = cna::CbufCon0 { weight_bank: 3, data_bank, ..Default::default() };
            set(stream, cna::CbufCon0::INFO, banks.encode().unwrap());
        }
    };
    let (exact, slack) = (runs(&conv, 1, 1, banks(1)), runs(&conv, 1, 1, banks(2)));
    let last = conv.output_at(1019, 0, 0);
    assert_eq!([slack[last], exact[last - 16]], [32, 32]);
    assert_ne!(exact[last], 32);
}

#[test]
fn q14_the_dpu_writes_nothing_in_tf32() {
    let output = runs(&INT8, 1, 1, |_, stream| {
        let format = dpu::DataFormat { out_precision: Precision::Tf32, ..Default::default() };
        set(stream, dpu::DataFormat::INFO, format.encode().unwrap());
        set(stream, dpu::BsOwCfg::INFO, size_e(7));
    });
    assert!(output.iter().all(|byte| *byte == 0x77));
}

#[test]
fn q18_the_end_of_a_very_wide_operation_is_wrong() {
    let mut bed = bed();
    fill(&mut bed, 0, 0);
    let stream = flying(&bed, 8191, Precision::Fp16, false);
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), None);
    let end = 8191 * 16;
    assert_eq!([output[end - 109], output[end - 108], output[end - 1]], [0, 0x77, 0x77]);
}

#[test]
fn q19_the_operand_converter_matters_in_half_precision() {
    let converter = |stream: &mut Stream, bypass: bool, mul: u32| {
        set(stream, dpu::EwCfg::INFO, 0x1082_02c0 | u32::from(bypass) << 8 | mul);
    };
    let run = |bypass, mul| {
        let mut bed = bed();
        open(&mut bed.operands)[..2].copy_from_slice(&f16::ONE.to_le_bytes());
        let mut stream = flying(&bed, 1, Precision::Fp16, false);
        converter(&mut stream, bypass, mul);
        let output = bed.run(&[&stream]);
        (bed.fault(), f16::from_le_bytes([output[0], output[1]]))
    };
    assert_eq!(run(false, 0), (None, f16::ONE));
    assert_ne!(run(true, 0).1, f16::ONE);
    assert_eq!(run(false, 4).0, Some(Fault::Quirk { quirk: Quirk::Q19 }));
}

#[test]
fn q20_an_odd_combination_hangs_in_flying_mode() {
    for combination in [1, 5] {
        let mut bed = bed();
        let mut stream = flying(&bed, 4, Precision::Fp16, false);
        set(&mut stream, rdma::FeatureModeCfg::INFO, 0x17849 | combination << 8);
        bed.run(&[&stream]);
        assert_eq!(bed.fault(), Some(Fault::Quirk { quirk: Quirk::Q20 }));
    }
}

#[test]
fn q23_a_scale_with_its_highest_bit_set_is_negative() {
    let output = runs(&INT8, 1, 1, |_, stream| {
        set(stream, dpu::OutCvtScale::INFO, 0x8000);
        set(stream, dpu::OutCvtShift::INFO, 15);
    });
    assert_eq!(output[0] as i8, -32);
}

#[test]
fn q24_depthwise_padding_takes_two_bytes() {
    let conv =
        Conv { depthwise: true, channels: 64, kernels: 64, kernel: [3, 3], pad: [1, 1], pad_value: 0x0201, ..INT8 };
    let output = runs(&conv, 0, 1, |_, _| {});
    // Five of nine positions of a corner are outside.
    let corner = |channel| output[conv.output_at(0, 0, channel)];
    assert_eq!([corner(0), corner(1), corner(31), corner(32), corner(33)], [5, 10, 10, 5, 5]);
}

#[test]
fn q25_operands_for_a_bypassed_stage_poison_the_core() {
    let mut bed = bed();
    let conv = Conv { out: Precision::Int32, ..INT8 };
    let mut stream = conv.program(&bed);
    set(&mut stream, rdma::Bcfg::INFO, 0xe);
    bed.run(&[&stream]);
    assert_eq!(bed.fault(), None);
    let half = Conv { precision: Precision::Fp16, out: Precision::Fp16, ..INT8 }.program(&bed);
    bed.run(&[&half]);
    assert_eq!(bed.fault(), Some(Fault::Quirk { quirk: Quirk::Q25 }));
    bed.simulator.power_cycle();
    bed.run(&[&half]);
    assert_eq!(bed.simulator.faults().len(), 1, "a power cycle heals");
}

fn reuse(stream: &mut Stream) {
    let banks = cna::CbufCon0 { weight_reuse: true, weight_bank: 3, data_bank: 9, ..Default::default() };
    set(stream, cna::CbufCon0::INFO, banks.encode().unwrap());
}

#[test]
fn q26_a_reused_operand_is_the_one_that_was_there() {
    let mut bed = bed();
    fill(&mut bed, 1, 1);
    let first = INT8.program(&bed);
    let mut second = first.clone();
    reuse(&mut second);
    // The second task names other weights and does not look at them.
    set(&mut second, cna::DcompAddr0::INFO, bed.operands.dma());
    let output = bed.run(&[&first, &second]);
    assert_eq!(bed.fault(), None);
    assert_eq!(output[0], 32);
    bed.run(&[&second]);
    assert_eq!(bed.fault(), Some(Fault::StaleReuse { operand: "weights" }));
}

#[test]
fn q28_half_precision_saturates() {
    let conv = Conv { precision: Precision::Fp16, out: Precision::Fp16, ..INT8 };
    let mut bed = bed();
    for bo in [&mut bed.features, &mut bed.weights] {
        open(bo).chunks_exact_mut(2).for_each(|pair| pair.copy_from_slice(&f16::from_f32(200.0).to_le_bytes()));
    }
    let stream = conv.program(&bed);
    let output = bed.run(&[&stream]);
    assert_eq!(f16::from_le_bytes([output[0], output[1]]), f16::MAX);
}

#[test]
fn a_fused_sum_is_taken_before_the_output_converter() {
    let mut bed = bed();
    fill(&mut bed, 1, 1);
    open(&mut bed.operands).fill(10);
    let mut stream = Conv { requantise: (1, 1, 0), ..INT8 }.program(&bed);
    let operand = bed.operands.dma();
    fuse(&mut stream, &INT8, operand, 0x9042_02c0, 0x4000_0004);
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), None);
    assert_eq!(output[0], 21, "(32 + 10) / 2");
}

#[test]
fn a_per_channel_multiplier_shifts_both_signs_by_their_own_field() {
    let mut bed = bed();
    fill(&mut bed, 1, 1);
    {
        let mut operands = open(&mut bed.operands);
        for (channel, factor) in (0..32i16).map(|c| (c as usize, if c % 2 == 0 { 3 } else { -3 })) {
            let group = channel / 8 * 64;
            let addend: i32 = if channel < 16 { 0 } else { -64 };
            operands[group + channel % 8 * 4..][..4].copy_from_slice(&addend.to_le_bytes());
            operands[group + 48 + channel % 8 * 2..][..2].copy_from_slice(&i16::to_le_bytes(factor));
        }
    }
    let mut stream = Conv { bias: true, ..INT8 }.program(&bed);
    set(&mut stream, dpu::BsCfg::INFO, 0x2_0140);
    set(&mut stream, dpu::BsMulCfg::INFO, 2 << 8 | 1);
    set(&mut stream, dpu::DataFormat::INFO, 3 << 4);
    set(&mut stream, rdma::Bcfg::INFO, 0xe);
    let output = bed.run(&[&stream]);
    assert_eq!(bed.fault(), None);
    let at = |channel| output[INT8.output_at(0, 0, channel)] as i8;
    assert_eq!([at(0), at(1), at(16), at(17)], [24, -24, -12, 12], "32 × ±3 / 4 and -32 × ±3 / 8");
}
