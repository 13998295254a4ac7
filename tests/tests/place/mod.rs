//! Where a matrix runs: on a simulator, or on the NPU whose node the variable `CAIRN_DEVICE` names.
//!
//! On a board the kernel is the one that runs there, whatever a row says of its driver; the row's options count all the same.
//! Rows of another chip are left out there, and tests that pull levers or count what the simulator counts stay with it.

use npu::{Chip, Context, Options};
use npu_device::Driver;
use npu_device::kernel::Rocket;
use npu_sim::{FaultRecord, Options as Sim, Simulator};

/// What can be told of a context beside its results.
pub(crate) struct Place(Option<Simulator>);

impl Place {
    /// Why jobs did not complete; a board does not say.
    pub(crate) fn faults(&self) -> Vec<FaultRecord> {
        self.0.as_ref().map(Simulator::faults).unwrap_or_default()
    }
}

fn board() -> Option<Rocket> {
    std::env::var_os("CAIRN_DEVICE").map(Rocket::at)
}

fn chip(driver: &dyn Driver) -> Chip {
    Chip::of(driver.open().unwrap().info()).unwrap()
}

/// Whether what such a simulator runs can run here.
pub(crate) fn has(sim: Sim) -> bool {
    board().is_none_or(|board| chip(&board) == chip(&Simulator::new(sim)))
}

/// A context on the board, or on such a simulator.
pub(crate) fn open(sim: Sim, options: Options) -> (Place, Context) {
    if let Some(board) = board() {
        return (Place(None), Context::open(&board, &chip(&board), options).unwrap());
    }
    let (simulator, context) = simulated(sim, options);
    (Place(Some(simulator)), context)
}

/// A context on such a simulator, wherever the others run.
pub(crate) fn simulated(sim: Sim, options: Options) -> (Simulator, Context) {
    let simulator = Simulator::new(sim);
    let context = Context::open(&simulator, &chip(&simulator), options).unwrap();
    (simulator, context)
}
