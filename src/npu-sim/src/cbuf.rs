//! CBUF, the on-chip convolution buffer: what a task leaves there for the next one of its job.
//!
//! SOURCE: npu-spec 4.12.

use std::sync::Arc;

use crate::cna::Fetch;
use crate::fault::{Fault, Result};

/// An operand and the shape in which it was loaded.
type Snapshot = Option<([usize; 5], Arc<Vec<u8>>)>;

/// Operands of the task before.
#[derive(Debug, Default)]
pub(crate) struct Cbuf {
    features: Snapshot,
    weights: Snapshot,
}

impl Cbuf {
    /// The task's features, loaded or reused.
    pub(crate) fn features(&mut self, fetch: &Fetch, load: impl FnOnce() -> Result<Vec<u8>>) -> Result<Arc<Vec<u8>>> {
        operand("features", &mut self.features, fetch.banks.data_reuse, fetch.feature_shape(), load)
    }

    /// The task's weights, loaded or reused.
    pub(crate) fn weights(&mut self, fetch: &Fetch, load: impl FnOnce() -> Result<Vec<u8>>) -> Result<Arc<Vec<u8>>> {
        operand("weights", &mut self.weights, fetch.banks.weight_reuse, fetch.weight_shape(), load)
    }
}

/// Nobody compares addresses, so a stale operand of the same shape is taken as it is: QUIRK(Q26).
fn operand(
    name: &'static str,
    snapshot: &mut Snapshot,
    reuse: bool,
    shape: [usize; 5],
    load: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<Arc<Vec<u8>>> {
    if reuse {
        return match snapshot {
            Some((loaded, bytes)) if *loaded == shape => Ok(Arc::clone(bytes)),
            _ => Err(Fault::StaleReuse { operand: name }),
        };
    }
    let bytes = Arc::new(load()?);
    *snapshot = Some((shape, Arc::clone(&bytes)));
    Ok(bytes)
}
