//! Any command words over any buffer contents: the simulator must neither panic nor hang.
//!
//! The input is a list of edits, six bytes each: a place and a value. Each appends a word to the program of a working
//! convolution, mostly a write to a known register, before the words that start it. Pure noise would end at the first word.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use npu_device::{Bo, Deadline, Device, Driver, Job, JobFlags, Task};
use npu_regs::{BlockMask, REGISTERS, RegisterInfo, Word};
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
fn registers() -> Vec<&'static RegisterInfo> {
    let all = REGISTERS.iter().copied().flatten().copied();
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

/// The program after the edits.
fn program(edits: &[u8], registers: &[&'static RegisterInfo]) -> Vec<Word> {
    let find = |offset| registers.iter().find(|register| register.offset == offset).expect("a register of the table");
    let mut words: Vec<Word> = CONVOLUTION.iter().map(|(offset, value)| Word::write(find(*offset), *value)).collect();
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
    let registers = registers();
    let (head, edits) = input.split_at(input.len().min(2));
    let words = program(edits, &registers);
    let options = Options { work_limit: WORK, ..Options::batched() };
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
