//! The machine as a driver sees it: kicks through page tables, and recorded logs of a real driver.

use npu_regs::{PoolingMethod, Precision};

use super::engine::Written;
use super::*;
use crate::Options;
use crate::testbed::{Bed, Conv, Stream, open};
use crate::tests::pooling::Pool;

/// Where in the memory the page that the NPU sees at 0 lies; what is before are page tables.
const MAPPED: usize = 1 << 20;
/// The pages that the NPU sees; the test's five buffers are below.
const PAGES: usize = 6 << 8;
/// A core's registers.
const CORE: u32 = 0x1_0000;
const DIRECTORY: u32 = 0x4000_0000;

/// A machine whose IOMMUs translate.
struct Board {
    machine: Machine,
    ram: Mapping,
    now: Duration,
}

impl Board {
    fn new() -> Self {
        let ram = Mapping::anonymous(8 << 20).unwrap();
        let word = |offset: usize, value: usize| ram.write(offset, &u32::try_from(value).unwrap().to_le_bytes());
        for page in 0..PAGES {
            let (table, base) = (page >> 10, DIRECTORY as usize);
            word(table * 4, base + (1 + table) * 4096 + 1);
            word((1 + table) * 4096 + page % 1024 * 4, base + MAPPED + page * 4096 + 7);
        }
        let mut board = Self { machine: Machine::new(&ram, 1 << 30, None), ram, now: Duration::ZERO };
        for bank in [0x9000, 0xa000, CORE + 0xa000, 2 * CORE + 0xa000] {
            board.write(bank, DIRECTORY);
            board.write(bank + 0x1c, 3);
            board.write(bank + 8, 0);
        }
        board
    }

    /// A board with a convolution in memory, its first word's address, and what the simulator makes of it.
    fn with_convolution() -> (Self, u32, u32, Vec<u8>) {
        let conv = Conv { requantise: (20_000, 20, 3), ..Conv::pointwise(Precision::Int8, Precision::Int8) };
        Self::with(|bed| conv.program(bed))
    }

    fn with(program: impl FnOnce(&Bed) -> Stream) -> (Self, u32, u32, Vec<u8>) {
        let mut bed = Bed::new(Options::default());
        let fill = |bo: &mut npu_device::Bo, factor: usize| {
            open(bo).iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * factor / 8) as u8);
        };
        fill(&mut bed.features, 37);
        fill(&mut bed.weights, 11);
        let program = program(&bed);
        let board = Self::new();
        let expected = bed.run(&[&program]);
        for bo in [&mut bed.features, &mut bed.weights, &mut bed.operands, &mut bed.commands] {
            let at = MAPPED + bo.dma() as usize;
            board.ram.write(at, &open(bo));
        }
        (board, bed.commands.dma(), bed.output.dma(), expected)
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.machine.write(self.now, Access { offset, bytes: 4 }, value.into());
    }

    fn read(&mut self, offset: u32) -> u32 {
        self.machine.read(self.now, Access { offset, bytes: 4 }) as u32
    }

    /// What the driver writes to start `tasks` programs of 126 words. SOURCE: npu-spec 2.2.
    fn kick(&mut self, core: u32, base: u32, tasks: u32) {
        let at = core * CORE;
        let pointer = 0xe | core << 28;
        let writes = [
            (0x10, 1),
            (0x1004, pointer),
            (0x3004, pointer),
            (0x10, base),
            (0x14, 62),
            (0x20, 0x300),
            (0x24, 0x300),
            (0x30, 0x7000 | tasks),
            (0x34, 0),
            (0x08, 1),
        ];
        writes.into_iter().for_each(|(offset, value)| self.write(at + offset, value));
    }

    /// Lets time pass until nothing is under way.
    fn settle(&mut self) {
        while let Some(due) = self.machine.due() {
            self.now = due;
            self.machine.settle(due);
        }
    }
}

#[test]
fn a_kick_computes_what_the_simulator_computes() {
    let (mut board, commands, output, expected) = Board::with_convolution();
    board.kick(1, commands, 1);
    board.settle();
    assert_eq!(board.machine.lines(), 0b010);
    assert_eq!(board.read(CORE + 0x2c) & 0x300, 0x100);
    let mut found = vec![0; expected.len()];
    board.ram.read(MAPPED + output as usize, &mut found);
    assert!(expected.iter().any(|byte| *byte != 0) && found == expected);
    board.write(CORE + 0x24, 0x1_ffff);
    assert_eq!(board.machine.lines(), 0);
    assert_eq!(board.machine.counters().refused, 0);
}

#[test]
fn neighbouring_kicks_alternate_between_the_interrupts_of_both_groups() {
    let (mut board, commands, ..) = Board::with_convolution();
    let mut seen = Vec::new();
    for _ in 0..3 {
        board.kick(0, commands, 1);
        board.settle();
        seen.push(board.read(0x2c));
        board.write(0x24, 0x1_ffff);
    }
    assert_eq!(seen, [0x100, 0x200, 0x100]);
}

#[test]
fn pooling_interrupts_by_its_own_unit() {
    let pool = Pool::new(Precision::Int8, PoolingMethod::Max);
    let (mut board, commands, output, expected) = Board::with(|bed| pool.program(bed));
    for (raw, mask, line) in [(0x400, 0x300, 0), (0x800, 0xc00, 1)] {
        board.kick(0, commands, 1);
        board.write(0x20, mask);
        board.settle();
        assert_eq!((board.read(0x2c), board.machine.lines()), (raw, line));
        board.write(0x24, 0x1_ffff);
    }
    let mut found = vec![0; expected.len()];
    board.ram.read(MAPPED + output as usize, &mut found);
    assert!(expected.iter().any(|byte| *byte != 0) && found == expected);
    assert_eq!(board.machine.counters().interrupts, 1);
}

#[test]
fn nothing_is_seen_before_its_time() {
    let (mut board, commands, output, _) = Board::with_convolution();
    board.machine.pull("slow any 300000".parse().unwrap());
    board.kick(0, commands, 1);
    board.now = Duration::from_millis(299);
    board.machine.settle(board.now);
    assert_eq!((board.machine.lines(), board.read(0x2c)), (0, 0));
    let mut bytes = vec![0; 2048];
    board.ram.read(MAPPED + output as usize, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 0), "the output is in memory before the interrupt");
    assert!(board.machine.due().unwrap() >= Duration::from_millis(300));
    board.settle();
    assert_eq!(board.machine.lines(), 1);
}

#[test]
fn a_result_that_comes_after_a_reset_is_dropped() {
    let (mut board, commands, ..) = Board::with_convolution();
    board.kick(2, commands, 1);
    board.write(0x3_0000, 0b11 << 4);
    board.write(0x3_0000, 0);
    board.settle();
    assert_eq!((board.machine.lines(), board.machine.counters().dropped), (0, 1));
    board.kick(2, commands, 1);
    board.settle();
    assert_eq!(board.machine.lines(), 0b100);
}

#[test]
fn a_program_at_an_unmapped_address_is_a_page_fault_and_the_core_hangs() {
    let mut board = Board::new();
    board.kick(0, 0xf000_0000, 1);
    board.settle();
    assert_eq!(board.machine.lines(), 1);
    assert_eq!((board.read(0x9020), board.read(0x900c)), (1, 0xf000_0000));
    assert_eq!(board.read(0x2c), 1 << 12);
    assert_eq!(board.machine.counters().page_faults, 1);
}

#[test]
fn a_chain_that_ends_early_hangs() {
    let (mut board, commands, ..) = Board::with_convolution();
    board.kick(0, commands, 2);
    board.settle();
    assert_eq!((board.machine.lines(), board.read(0x3c), board.machine.counters().hangs), (0, 1, 1));
}

#[test]
fn levers_hang_fault_and_interrupt() {
    let (mut board, commands, ..) = Board::with_convolution();
    for line in ["hang 0", "fault any"] {
        board.machine.pull(line.parse().unwrap());
        board.kick(0, commands, 1);
        board.settle();
    }
    board.machine.pull("spurious 2".parse().unwrap());
    board.write(2 * CORE + 0x20, 0x300);
    let counters = board.machine.counters();
    assert_eq!((counters.hangs, counters.page_faults, counters.kicks), (1, 1, [2, 0, 0]));
    assert_eq!(board.machine.lines(), 0b101);
}

#[test]
fn what_the_hardware_does_not_have_is_counted() {
    let mut board = Board::new();
    let refused = |board: &Board| board.machine.counters().refused;
    assert_eq!(refused(&board), 0);
    board.read(0x1000);
    board.write(CORE + 0x9000, 0);
    board.write(0x1004, 0xf);
    board.machine.read(board.now, Access { offset: 0, bytes: 2 });
    board.machine.write(board.now, Access { offset: 0x3_f000, bytes: 8 }, 99);
    board.machine.read(board.now, Access { offset: 0xffff_fff8, bytes: 8 });
    assert_eq!(refused(&board), 6);
}

#[test]
fn the_test_port_counts_and_pulls() {
    let (mut board, commands, ..) = Board::with_convolution();
    let port = |offset: u32| Access { offset: 0x3_f000 + offset, bytes: 8 };
    board.machine.write(board.now, port(0), 0xff00);
    board.kick(1, commands, 1);
    board.settle();
    let counters: Vec<u64> = (1..=12).map(|n| board.machine.read(board.now, port(8 * n))).collect();
    // Three registers of each of four banks were written to let them translate.
    assert_eq!(counters, [0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 12, 0]);
}

#[test]
fn a_core_that_pools_interrupts_as_its_pooling_unit() {
    let (mut board, commands, ..) = Board::with_convolution();
    for (line, raw) in [("pooling any 1", 0x400), ("pooling any 0", 0x200)] {
        board.machine.pull(line.parse().unwrap());
        board.kick(0, commands, 1);
        board.settle();
        assert_eq!(board.read(0x2c), raw, "{line}");
        board.write(0x24, 0x1_ffff);
    }
}

#[test]
fn a_kick_of_one_task_has_no_first_one_to_tell() {
    let (mut board, commands, ..) = Board::with_convolution();
    board.machine.pull("first any 1".parse().unwrap());
    board.machine.pull("slow any 300000".parse().unwrap());
    board.kick(0, commands, 1);
    board.now = board.machine.due().unwrap();
    board.machine.settle(board.now);
    assert_eq!((board.machine.lines(), board.read(0x3c)), (0, 0));
    board.settle();
    assert_eq!((board.machine.lines(), board.read(0x3c)), (1, 1));
}

#[test]
fn a_core_that_is_stopped_while_it_computes_is_counted() {
    let (mut board, commands, ..) = Board::with_convolution();
    board.kick(0, commands, 1);
    board.write(0x08, 0);
    board.settle();
    board.write(0x08, 0);
    assert_eq!(board.machine.counters().stops, 1);
}

/// Plays a log of the virtual board (`CAIRN_BOARD_TRACE`): what the driver read must be read again. How kicks ended is in the log.
fn replay(log: &str) -> Counters {
    let mut window = Window::default();
    let mut running = [const { None::<Kick> }; CORES];
    for (number, line) in log.lines().enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        let hex = |word: &str| u64::from_str_radix(word, 16).unwrap();
        let digit = |word: &str| word[1..].parse::<u32>().unwrap();
        match (&line[..1], &words[..]) {
            ("R", [head, offset, value]) => {
                let access = Access { offset: hex(offset) as u32, bytes: digit(head) };
                // The test port counts what came before the log as well.
                let found = window.read(access);
                assert!(found == hex(value) || access.bytes == 8, "line {}: {line}, not {found:x}", number + 1);
            }
            ("W", [head, offset, value]) => {
                let access = Access { offset: hex(offset) as u32, bytes: digit(head) };
                if let Some(kick) = window.write(access, hex(value)) {
                    let core = kick.core;
                    running[core] = Some(kick);
                }
            }
            ("E", [head, kind, tasks, rest @ ..]) => {
                let core = digit(head) as usize;
                let end = match (*kind, rest) {
                    ("complete", [event]) => End::Complete { event: event.parse().unwrap() },
                    ("read", [dma]) => End::PageFault { direction: crate::Direction::Read, dma: hex(dma) as u32 },
                    ("write", [dma]) => End::PageFault { direction: crate::Direction::Write, dma: hex(dma) as u32 },
                    _ => End::Hang(crate::Fault::Injected),
                };
                let id = running[core].take().unwrap().id;
                let (time, tasks) = (Duration::ZERO, tasks.parse().unwrap());
                window.finish(&Done { id, core, time, tasks, end, writes: Written::default() });
            }
            ("X", _) => window.reset(),
            _ => panic!("line {}: {line}", number + 1),
        }
    }
    window.counters.clone()
}

#[test]
fn the_stock_driver_reads_what_it_read() {
    let counters = replay(include_str!("recorded/stock.log"));
    assert_eq!(counters.refused, 0, "{counters}");
    assert_eq!((counters.page_faults, counters.resets), (1, 1), "{counters}");
    assert_eq!(counters.interrupts, counters.tasks, "{counters}");
}

#[test]
fn the_patched_driver_reads_what_it_read() {
    let counters = replay(include_str!("recorded/patched.log"));
    assert_eq!(counters.refused, 0, "{counters}");
    assert_eq!((counters.hangs, counters.page_faults, counters.resets), (1, 1, 2), "{counters}");
    assert!(counters.interrupts > 0 && counters.tasks > 64 * 4, "{counters}");
}
