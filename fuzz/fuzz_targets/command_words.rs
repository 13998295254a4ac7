//! Any command words over any buffer contents: the simulator of either chip must neither panic nor hang.
//!
//! The input is a list of edits, six bytes each: a place and a value. Each appends a word to the program of a working
//! convolution, mostly a write to a known register, before the words that start it. Pure noise would end at the first word.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use npu_device::{Bo, Deadline, Device, Driver, Job, JobFlags, Task};
use npu_regs::rk3576::{Path, VERBATIM, cna, core, dpu, dpu_rdma};
use npu_regs::{BlockMask, Layout, Register, RegisterInfo, Word};
use npu_sim::{Options, Simulator};

/// Largest work of a job, so that a run stays short.
const WORK: u64 = 1 << 20;
/// Bytes of the buffer that everything lies in.
const BYTES: u32 = 1 << 17;
/// Bytes of the program, at the start of the buffer.
const PROGRAM: usize = 0x4000;
/// Bytes of an edit: two of place, four of value.
const EDIT: usize = 6;

/// Registers that streams write.
fn registers(chip: Layout) -> Vec<&'static RegisterInfo> {
    let all = chip.registers().iter().copied().flatten().copied();
    all.filter(|register| register.block.target() != 0).collect()
}

/// A 1×1 convolution of 4×4 pixels, 32 channels each way, all in one buffer.
const CONVOLUTION: &[(u16, u32)] = &[
    (0x1010, 5 << 4),
    (0x1014, 9),
    (0x1020, 4 << 16 | 4),
    (0x1024, 31 << 16 | 32),
    (0x1028, 4),
    (0x102c, 16),
    (0x1030, 1024),
    (0x1034, 32),
    (0x1038, 1 << 24 | 1 << 16 | 32),
    (0x1040, 0x39),
    (0x104c, 0xb),
    (0x1070, 0x4000),
    (0x107c, 16),
    (0x1084, 4 << 16 | 4),
    (0x1088, 32),
    (0x1110, 0x8000),
    (0x3010, 1),
    (0x3014, 3 << 16 | 3),
    (0x3018, 31),
    (0x400c, 0x1e4),
    (0x4020, 0xc000),
    (0x4024, 16 << 4),
    (0x4030, 3),
    (0x4034, 3),
    (0x403c, 31 << 16 | 31),
    (0x4040, 0x20150),
    (0x4050, 0x126),
    (0x4058, 31),
    (0x405c, 3 << 16 | 3),
    (0x4060, 0x53),
    (0x4070, 0x383),
    (0x4084, 1),
    (0x40c0, 32 << 4),
    (0x500c, 3),
    (0x5010, 3),
    (0x5014, 31),
    (0x501c, 2),
    (0x5020, 0x6000),
    (0x5034, 1),
    (0x5044, 0x7810),
];

/// The same convolution for an RK3576, which must be told of every register of its blocks.
fn complete_convolution(path: &Path, registers: &[&'static RegisterInfo]) -> Vec<Word> {
    let own = |register: &&RegisterInfo| {
        BlockMask::CONVOLUTION.contains(register.block) && !matches!(register.offset & 0xfff, 0 | 8)
    };
    let pointer = |register: &RegisterInfo| if register.offset & 0xfff == 4 { 0xe } else { 0 };
    let all = registers.iter().copied().filter(own).map(|register| (register, pointer(register)));
    let shape = [
        (cna::Mode::INFO, path.mode),
        (cna::Stride::INFO, 9),
        (cna::CbufMode::INFO, 0x4000_0404),
        (cna::WeightBytes::INFO, 1024),
        (cna::KernelBytes::INFO, 32),
        (cna::Kernel::INFO, 31),
        (cna::Feature::INFO, 8 << 16 | 31),
        (cna::Rows::INFO, 3 << 16 | 3),
        (cna::Step::INFO, 64 << 16 | 3),
        (cna::OutputPixels::INFO, 15),
        (cna::Chain::INFO, 7),
        (cna::Window::INFO, 2 << 16),
        (cna::Fetch::INFO, 0x1000_0000),
        (cna::Line::INFO, 4 << 16 | 2),
        (cna::FetchRows::INFO, 3 << 16 | 3),
        (cna::FetchChannels::INFO, 31),
        (cna::FeatureAddress::INFO, 0x4000),
        (cna::LineStride::INFO, 16),
        (cna::GroupStride::INFO, 16),
        (cna::FetchAtoms::INFO, 16),
        (cna::WeightAddress::INFO, 0x8000),
        (cna::Width::INFO, 3 << 16 | 3),
        (core::Mode::INFO, path.core),
        (core::Extents::INFO, 3 << 16 | 3),
        (core::Channels::INFO, 31),
        (dpu::FeatureMode::INFO, path.feature_mode),
        (dpu::Format::INFO, path.format),
        (dpu::Destination::INFO, 0xc000),
        (dpu::PlaneStride::INFO, 16),
        (dpu::Width::INFO, 3),
        (dpu::Height::INFO, 3),
        (dpu::Channels::INFO, 31),
        (dpu::Writer::INFO, 31 << 16 | path.writer),
        (dpu::WriterExtents::INFO, 3 << 16 | 3),
        (dpu::WriterMode::INFO, path.writer_mode),
        (dpu::Unnamed4044::INFO, path.unnamed_4044),
        (dpu::Bias::INFO, path.bias),
        (dpu::OutCvtScale::INFO, 1),
        (dpu::GroupStep::INFO, 16),
        (dpu_rdma::Width::INFO, 3),
        (dpu_rdma::Height::INFO, 3),
        (dpu_rdma::Channels::INFO, 31),
        (dpu_rdma::Operands::INFO, path.operands),
        (dpu_rdma::OperandAddress::INFO, 0x6000),
        (dpu_rdma::ShiftAddress::INFO, 0x6100),
        (dpu_rdma::Element::INFO, 0x41),
        (dpu_rdma::Mode::INFO, path.reader),
    ];
    all.chain(VERBATIM.iter().copied()).chain(shape).map(|(register, value)| Word::write(register, value)).collect()
}

/// The program after the edits. Those of an RK3576 begin with the byte of its path.
fn program(chip: Layout, edits: &[u8], registers: &[&'static RegisterInfo]) -> Vec<Word> {
    let find = |offset| registers.iter().find(|register| register.offset == offset).expect("a register of the table");
    let path = edits.first().map_or(0, |byte| usize::from(*byte));
    let mut words: Vec<Word> = match chip {
        Layout::Rk3588 => CONVOLUTION.iter().map(|(offset, value)| Word::write(find(*offset), *value)).collect(),
        Layout::Rk3576 => complete_convolution(&Path::ALL[path % Path::ALL.len()], registers),
    };
    for edit in edits.chunks_exact(EDIT) {
        let place = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
        let value = u32::from_le_bytes([edit[2], edit[3], edit[4], edit[5]]);
        match place {
            // One word of a known register.
            0..0x8000 => words.push(Word::write(registers[place % registers.len()], value)),
            // Low bits of a register, as small numbers are the interesting ones.
            0x8000..0xf000 => words.push(Word::write(registers[place % registers.len()], value & 0xff)),
            0xf000..0xf800 => words.push(Word(u64::from(value) << 32 | u64::from(value))),
            0xf800..0xfc00 => words.push(Word::enable(BlockMask::FLYING)),
            _ => words.push(Word::MARKER),
        }
    }
    words.extend([Word::NOP, Word::NOP, Word::MARKER]);
    let flying = edits.first().is_some_and(|byte| byte % 4 == 3);
    words.push(Word::enable(if flying { BlockMask::FLYING } else { BlockMask::CONVOLUTION }));
    words
}

fuzz_target!(|input: &[u8]| {
    let (head, edits) = input.split_at(input.len().min(2));
    let second = head.first().is_some_and(|byte| byte & 0x80 != 0);
    let chip = if second { Layout::Rk3576 } else { Layout::Rk3588 };
    let words = program(chip, edits, &registers(chip));
    let base = if second { Options::rk3576() } else { Options::batched() };
    // As mainline, which says of no job that it failed: whether each one ends is the question here.
    let options = Options { work_limit: WORK, reports_failed_jobs: false, reports_dropped_jobs: false, ..base };
    let device: Arc<dyn Device> = Simulator::new(options).open().expect("a simulated file");
    let mut bo = Bo::new(&device, BYTES).expect("a buffer");
    {
        let mut access = bo.access(Deadline::POLL).expect("an idle buffer");
        for (i, byte) in access.iter_mut().enumerate() {
            *byte = input.get(i % input.len().max(1)).copied().unwrap_or(0).wrapping_mul(i as u8 | 1);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.0.to_le_bytes()).take(PROGRAM).collect();
        access[..bytes.len()].copy_from_slice(&bytes);
    }
    let flags = head.iter().map(|byte| usize::from(*byte)).sum::<usize>();
    let count = words.len().min(PROGRAM / 8) as u32;
    let tasks = vec![Task { dma: bo.dma(), words: count }; 1 + flags % 3];
    let flags = JobFlags { batched: flags % 2 == 1, ..JobFlags::default() };
    device
        .submit(&[Job { tasks: &tasks, inputs: &[], outputs: &[bo.handle()], flags }])
        .expect("mainline answers success");
    device.prep_bo(bo.handle(), Deadline::Never).expect("every job ends");
});
