//! PPU and PPU_RDMA, planar pooling. Not simulated yet: a pooling task never completes, with a fault that says so.

use crate::fault::{Fault, Result};

/// Runs a pooling task.
pub(crate) fn run() -> Result<crate::controller::Effect> {
    Err(Fault::Unimplemented("planar pooling"))
}
