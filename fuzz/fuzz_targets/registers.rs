//! Any accesses to the registers, with any page tables: the machine must neither panic nor hang.
//!
//! The input is a list of steps, eight bytes each: what, where, a value, how much time passes. Before them the memory is filled
//! with the input, its first page with a directory whose entries lie inside.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use npu_device::Mapping;
use npu_sim::mmio::{Access, Machine, RAM_BASE};

/// Largest work of a kick, so that a run stays short.
const WORK: u64 = 1 << 20;
/// Bytes of the memory.
const BYTES: usize = 1 << 18;
/// Bytes of a step.
const STEP: usize = 8;
/// Registers that do something, in a core.
const KNOWN: &[u32] = &[
    0x00, 0x08, 0x10, 0x14, 0x20, 0x24, 0x28, 0x2c, 0x30, 0x34, 0x3c, 0x1004, 0x3004, 0x9000, 0x9004, 0x9008, 0x9018,
    0x901c, 0xa000, 0xa004, 0xa008, 0xa018, 0xa01c, 0xa020,
];

fn memory(input: &[u8]) -> Mapping {
    let ram = Mapping::anonymous(BYTES).expect("memory");
    let bytes: Vec<u8> = input.iter().copied().cycle().take(BYTES * usize::from(!input.is_empty())).collect();
    ram.write(0, &bytes);
    for entry in 0..16 {
        // Tables at the second page, pages after it.
        let word = |target: u32, flags: u32| (RAM_BASE as u32 + target * 4096 | flags).to_le_bytes();
        ram.write(entry as usize * 4, &word(1, 1));
        ram.write(4096 + entry as usize * 4, &word(2 + entry, 7));
    }
    ram
}

fuzz_target!(|input: &[u8]| {
    let mut machine = Machine::new(&memory(input), WORK, None);
    let mut now = Duration::ZERO;
    for step in input.chunks_exact(STEP) {
        let value = u32::from_le_bytes([step[2], step[3], step[4], step[5]]);
        let known = KNOWN[usize::from(step[1]) % KNOWN.len()] + u32::from(step[0] >> 6 & 3) * 0x1_0000;
        let (offset, bytes) = match step[0] & 7 {
            0 => (u32::from(step[1]) << 10 | value & 0x3ff, 4),
            1 => (0x3_f000 + u32::from(step[1] & 0x7f), 8),
            2 => (0x3_0000, 4),
            _ => (known, 4),
        };
        let access = Access { offset, bytes };
        now += Duration::from_micros(u64::from(step[6]) << (step[7] & 15));
        match step[0] >> 3 & 7 {
            0 => {
                machine.read(now, access);
            }
            1 => machine.settle(now),
            2 => machine.write(now, access, RAM_BASE | u64::from(value & 0x3_ffff)),
            3 => machine.write(now, access, u64::from(value & 0xf)),
            _ => machine.write(now, access, u64::from(value)),
        }
    }
    machine.settle(Duration::MAX);
    assert_eq!(machine.due(), None, "what is due is settled");
});
