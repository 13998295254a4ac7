//! The machine's test port: levers and counters, which no board has.

use std::fs::OpenOptions;

use npu_device::Mapping;

/// Where it is. SOURCE: `npu_sim::mmio`, the window's layout.
const PORT: u64 = npu_sim::mmio::WINDOW_BASE + 0x3_f000;
/// Bytes of it.
const BYTES: usize = 4096;
/// Stands for whichever core.
const ANY: u64 = 0xff;

/// What a pull does, by number. SOURCE: `npu_sim::mmio::Pull`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lever {
    Hang = 0,
    Fault = 1,
    /// The argument is microseconds.
    Slow = 2,
    Spurious = 3,
    /// The argument is how many requests to stall stay unanswered.
    Stall = 4,
    /// The argument is whether cores complete by their pooling units' interrupt.
    Pooling = 5,
    /// The argument is whether the first task of a kick interrupts as well.
    First = 6,
}

/// A counter, by its place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counter {
    Kicks0 = 1,
    Kicks1 = 2,
    Kicks2 = 3,
    Interrupts = 4,
    Tasks = 5,
    Hangs = 6,
    PageFaults = 7,
    Resets = 8,
    Refused = 10,
    IommuAccesses = 11,
    Stops = 12,
}

/// The port, mapped.
pub(crate) struct Port(Mapping);

impl Port {
    pub(crate) fn open() -> Self {
        let memory = OpenOptions::new().read(true).write(true).open("/dev/mem").unwrap();
        Self(Mapping::of_file(&memory, PORT, BYTES).unwrap())
    }

    /// Spoils the next kick.
    pub(crate) fn pull(&self, lever: Lever, argument: u32) {
        let word = u64::from(argument) << 32 | ANY << 8 | lever as u64;
        // Eight bytes at a multiple of eight are one store.
        self.0.write(0, &word.to_le_bytes());
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        let mut bytes = [0; 8];
        self.0.read(counter as usize * 8, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Kicks of all cores.
    pub(crate) fn kicks(&self) -> u64 {
        [Counter::Kicks0, Counter::Kicks1, Counter::Kicks2].map(|counter| self.count(counter)).iter().sum()
    }
}
