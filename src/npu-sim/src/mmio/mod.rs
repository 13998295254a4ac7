//! The cores behind their registers and IOMMUs, for a real kernel driver in a virtual machine.
//!
//! ```text
//! guest's driver ─▶ access ─▶ Window (PC, interrupts, IOMMU banks, resets) ── kick ─▶ Engine (one thread per core)
//!                              ▲                                                     │ page tables, the guest's memory
//!                              └────────────── when its time has come ── Done ◀──────┘
//! ```
//!
//! Time is the guest's: a kick takes what the [cost model](crate::CostModel) says, however long it computes. Who drives the
//! machine tells the time with every call, and calls [`Machine::settle`] by [`Machine::due`] at the latest.
//!
//! Known differences from a board: translations are not cached, so a ZAP that was forgotten is not noticed; power domains
//! and clocks do nothing; a batched kick interrupts once, after its last task, unless a lever says otherwise: npu-spec 2.3 and
//! virtual-board.md disagree, and only a board can tell.

mod engine;
mod iommu;
mod lever;
mod window;

use std::fmt;
use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use npu_device::Mapping;

use engine::{Done, End, Engine, Kick};
pub use lever::{Effect, Pull, PullError};
use window::Window;

/// Cores of an RK3588.
const CORES: usize = 3;
/// Where the window lies. SOURCE: rk3588-base.dtsi, the first core.
pub const WINDOW_BASE: u64 = 0xfdab_0000;
/// Bytes of the window.
pub const WINDOW_BYTES: u64 = 0x4_0000;
/// Where the memory of the virtual machine starts. SOURCE: QEMU, hw/arm/virt.c.
pub const RAM_BASE: u64 = 0x4000_0000;
/// The least time that a kick takes: while it passes, the driver may start the other cores.
const LATENCY: Duration = Duration::from_micros(50);

/// An access to the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Offset in the window.
    pub offset: u32,
    /// Width.
    pub bytes: u32,
}

/// What happened so far, since the machine was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Starts of each core.
    pub kicks: [u64; CORES],
    /// Completion interrupts that reached a line.
    pub interrupts: u64,
    /// Tasks that completed.
    pub tasks: u64,
    /// Kicks that never complete, page faults left out.
    pub hangs: u64,
    /// Kicks that ended in a page fault.
    pub page_faults: u64,
    /// Resets of cores.
    pub resets: u64,
    /// Results that came after a reset.
    pub dropped: u64,
    /// Accesses and values that the hardware does not have.
    pub refused: u64,
    /// Reads and writes of the IOMMUs' registers.
    pub iommu_accesses: u64,
    /// How often a core was stopped that was computing.
    pub stops: u64,
}

impl Counters {
    fn values(&self) -> [(&'static str, u64); 12] {
        let [first, second, third] = self.kicks;
        [
            ("kicks-0", first),
            ("kicks-1", second),
            ("kicks-2", third),
            ("interrupts", self.interrupts),
            ("tasks", self.tasks),
            ("hangs", self.hangs),
            ("page-faults", self.page_faults),
            ("resets", self.resets),
            ("dropped", self.dropped),
            ("refused", self.refused),
            ("iommu-accesses", self.iommu_accesses),
            ("stops", self.stops),
        ]
    }

    /// The counter at an offset of the test port: in the order of the fields, from 8.
    fn value(&self, offset: u32) -> Option<u64> {
        let index = (offset / 8).checked_sub(1).filter(|_| offset.is_multiple_of(8))?;
        // CAST: an index of a page.
        self.values().get(index as usize).map(|(_, value)| *value)
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.values() {
            writeln!(f, "{name} {value}")?;
        }
        Ok(())
    }
}

/// Three cores, their IOMMUs and the memory of a virtual machine.
pub struct Machine {
    window: Window,
    engines: Vec<(Sender<Kick>, Receiver<Done>)>,
    flights: [Option<Flight>; CORES],
    trace: Option<Box<dyn Write + Send>>,
}

/// A kick on its way.
struct Flight {
    id: u64,
    start: Duration,
    due: Duration,
    done: Option<Done>,
}

impl Machine {
    /// A machine with this memory. `work_limit`: multiplications, or elements where there are none, that one kick may need;
    /// a larger one hangs. `trace` gets a line for every access and every end of a kick.
    pub fn new(ram: &Mapping, work_limit: u64, trace: Option<Box<dyn Write + Send>>) -> Self {
        let engines = (0..CORES).map(|_| start(Engine::new(ram.clone(), work_limit))).collect();
        Self { window: Window::default(), engines, flights: [None, None, None], trace }
    }

    /// Reads a register at `now`, on the guest's clock.
    pub fn read(&mut self, now: Duration, access: Access) -> u64 {
        self.settle(now);
        let value = self.window.read(access);
        self.note(format_args!("R{} {:05x} {value:x}", access.bytes, access.offset));
        value
    }

    /// Writes a register at `now`, on the guest's clock.
    pub fn write(&mut self, now: Duration, access: Access, value: u64) {
        self.settle(now);
        self.note(format_args!("W{} {:05x} {value:x}", access.bytes, access.offset));
        let Some(kick) = self.window.write(access, value) else { return };
        self.flights[kick.core] =
            Some(Flight { id: kick.id, start: now, due: now.saturating_add(LATENCY), done: None });
        // The thread lives as long as the machine.
        let _ = self.engines[kick.core].0.send(kick);
    }

    /// Shows what ended by `now`; waits for what is still computing and should have ended.
    pub fn settle(&mut self, now: Duration) {
        for core in 0..CORES {
            while let Some(flight) = self.flights[core].take_if(|flight| flight.due <= now) {
                self.flights[core] = self.land(core, flight);
            }
        }
    }

    /// One step of a flight that is due; it is returned where it takes longer.
    fn land(&mut self, core: usize, flight: Flight) -> Option<Flight> {
        if let Some(done) = flight.done {
            self.finish(&done);
            return None;
        }
        loop {
            // An engine ends only by a bug, and then its core hangs.
            let done = self.engines[core].1.recv().ok()?;
            if done.id == flight.id {
                self.window.progress(&done);
                let due = flight.due.max(flight.start.saturating_add(done.time));
                return Some(Flight { due, done: Some(done), ..flight });
            }
            self.finish(&done);
        }
    }

    fn finish(&mut self, done: &Done) {
        match &done.end {
            End::Complete { event } => self.note(format_args!("E{} complete {} {event}", done.core, done.tasks)),
            End::PageFault { direction, dma } => {
                self.note(format_args!("E{} {} {} {dma:x}", done.core, direction.name(), done.tasks));
            }
            End::Hang(fault) => self.note(format_args!("E{} hang {} {fault}", done.core, done.tasks)),
        }
        self.window.finish(done);
    }

    /// When [`Machine::settle`] wants to be called, at the latest.
    pub fn due(&self) -> Option<Duration> {
        self.flights.iter().flatten().map(|flight| flight.due).min()
    }

    /// Levels of the interrupt lines, from bit 0.
    pub fn lines(&self) -> u64 {
        self.window.lines()
    }

    /// What the machine's reset button does.
    pub fn reset(&mut self) {
        self.note(format_args!("X"));
        self.window.reset();
        self.flights = [None, None, None];
    }

    /// Pulls a lever.
    pub fn pull(&mut self, pull: Pull) {
        self.window.pull(pull);
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.window.counters
    }

    fn note(&mut self, line: fmt::Arguments<'_>) {
        // A trace that cannot be written stops nothing.
        let _ = self.trace.as_mut().map(|trace| writeln!(trace, "{line}"));
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("window", &self.window).finish_non_exhaustive()
    }
}

/// Starts a core's thread, which ends with the machine.
fn start(mut engine: Engine) -> (Sender<Kick>, Receiver<Done>) {
    let (kicks, next) = channel::<Kick>();
    let (results, done) = channel();
    thread::spawn(move || {
        for kick in next {
            if results.send(engine.run(&kick)).is_err() {
                return;
            }
        }
    });
    (kicks, done)
}

#[cfg(test)]
mod tests;
