//! Programs that mean nothing: each hangs with the name of what is wrong.

use expect_test::{Expect, expect};
use npu_device::{Deadline, Job, JobFlags, Task};
use npu_regs::{BlockMask, Precision, Register, Word, cna, core, dpu, pc};

use crate::Options;
use crate::testbed::{Bed, Conv, Stream, open, set};

#[expect(clippy::needless_pass_by_value, reason = "that is how expect! is used")]
fn check(spoil: impl FnOnce(&mut Stream), expected: Expect) {
    let mut bed = Bed::new(Options::default());
    let mut stream = Conv::pointwise(Precision::Int8, Precision::Int8).program(&bed);
    spoil(&mut stream);
    bed.run(&[&stream]);
    expected.assert_eq(&bed.fault().map_or("no fault".into(), |fault| fault.to_string()));
}

#[test]
fn words_without_meaning_are_refused() {
    check(|stream| stream[2] = Word(0x0301_0000_0001_1010), expect!["word 0x0301000000011010: unknown target 0x0301"]);
    check(
        |stream| stream[2] = Word(0x0201_0000_0001_4010),
        expect!["word 0x0201000000014010: no register at 0x4010 of Cna"],
    );
    check(
        |stream| stream.insert(0, Word::write(cna::ConvCon1::INFO, 1 << 31)),
        expect!["CNA_CONV_CON1: reserved bits 0x80000000 are set"],
    );
    check(|stream| set(stream, cna::ConvCon1::INFO, 5), expect!["CNA_CONV_CON1.conv_mode: 0x5 has no meaning"]);
}

#[test]
fn registers_of_the_kernel_are_refused() {
    check(|stream| stream.insert(0, Word::write(pc::TaskCon::INFO, 1)), expect!["a command stream writes PC_TASK_CON"]);
    check(
        |stream| stream.insert(0, Word::write(dpu::OperationEnable::INFO, 1)),
        expect!["a command stream writes DPU_OPERATION_ENABLE"],
    );
    check(
        |stream| set(stream, dpu::SPointer::INFO, 1),
        expect!["unproven on hardware: a pointer mode other than ping-pong"],
    );
}

#[test]
fn a_task_must_start_one_known_datapath() {
    let enable = |mask| move |stream: &mut Stream| *stream.last_mut().unwrap() = Word::enable(mask);
    check(
        |stream| {
            stream.pop();
        },
        expect!["the task ends without an enable word"],
    );
    check(enable(BlockMask::new(0x05).unwrap()), expect!["no datapath has the enable mask 0x5"]);
    check(enable(BlockMask::POOLING), expect!["unproven on hardware: pooling that the reader does not feed"]);
    check(enable(BlockMask::FLYING), expect!["not simulated: flying operations of more than one plane"]);
}

#[test]
fn registers_that_disagree_are_refused() {
    check(|stream| set(stream, cna::DataSize2::INFO, 7), expect!["widths of CNA and DPU: 7 and 8 disagree"]);
    check(
        |stream| set(stream, core::MiscCfg::INFO, 2 << 8 | 1),
        expect!["precisions of CNA and CORE: 0 and 2 disagree"],
    );
    check(|stream| set(stream, cna::WeightSize1::INFO, 31), expect!["bytes of a kernel: 31 and 32 disagree"]);
    check(|stream| set(stream, core::MiscCfg::INFO, 0), expect!["unproven on hardware: this QD_EN"]);
}

#[test]
fn modes_that_nobody_uses_are_refused() {
    check(|stream| set(stream, cna::FcCon1::INFO, 1), expect!["unproven on hardware: CNA_FC_CON1"]);
    check(|stream| set(stream, dpu::OffsetPend::INFO, 1), expect!["unproven on hardware: DPU_OFFSET_PEND"]);
    check(|stream| set(stream, cna::CvtCon5::INFO, 1), expect!["unproven on hardware: CNA_CVT_CON5"]);
}

#[test]
fn what_does_not_fit_the_buffer_is_refused() {
    let banks = cna::CbufCon0 { weight_bank: 12, ..Default::default() };
    let value = banks.encode().unwrap();
    check(|stream| set(stream, cna::CbufCon0::INFO, value), expect!["2048 bytes of features do not fit 0 banks"]);
    let banks = cna::CbufCon0 { weight_bank: 4, data_bank: 9, ..Default::default() };
    let value = banks.encode().unwrap();
    check(
        |stream| set(stream, cna::CbufCon0::INFO, value),
        expect!["unproven on hardware: more CBUF banks than there are"],
    );
}

#[test]
fn other_precisions_are_named() {
    let int32 =
        cna::ConvCon1 { proc_precision: Precision::Int32, in_precision: Precision::Int32, ..Default::default() };
    let value = int32.encode().unwrap();
    check(
        |stream| set(stream, cna::ConvCon1::INFO, value),
        expect!["unproven on hardware: a convolution of 32-bit elements"],
    );
}

#[test]
fn an_odd_count_reads_one_word_beyond() {
    let mut bed = Bed::new(Options::default());
    let mut stream = Conv::pointwise(Precision::Int8, Precision::Int8).program(&bed);
    if stream.len().is_multiple_of(2) {
        stream.insert(0, Word::NOP);
    }
    let words = stream.len() as u32;
    // What lies behind the program.
    stream.push(Word(0x0301_0000_0000_0000));
    {
        let bytes: Vec<u8> = stream.iter().flat_map(|word| word.0.to_le_bytes()).collect();
        open(&mut bed.commands)[..bytes.len()].copy_from_slice(&bytes);
    }
    for (words, expected) in [(words, true), (words - 1, false)] {
        let tasks = [Task { dma: bed.commands.dma(), words }];
        let job = Job { tasks: &tasks, inputs: &[], outputs: &[bed.output.handle()], flags: JobFlags::default() };
        bed.device.submit(&[job]).unwrap();
        bed.device.prep_bo(bed.output.handle(), Deadline::Never).unwrap();
        let text = bed.fault().unwrap().to_string();
        assert_eq!(text.contains("unknown target"), expected, "{text}");
    }
}
