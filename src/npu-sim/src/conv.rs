//! The convolution datapath: CNA, CORE and DPU. A matrix product is a convolution of one pixel.

use std::ops::Range;

use npu_regs::{Precision, core, dpu};
use rayon::prelude::*;

use crate::cna::{Fetch, check_poison};
use crate::controller::{Core, Effect};
use crate::cost::{Work, macs_per_cycle};
use crate::dpu::{Post, Source, extents, poisons};
use crate::fault::{Fault, Result, proven};
use crate::mac::{self, Integer, Real, padded_elements};
use crate::memory::{Space, Writes};
use crate::rdma::Extents;

/// Pixels that are computed in one piece.
const PIECE: usize = 64;
/// Padding that a field of the CNA can ask for; as much is allowed at the other end.
const MOST_PAD: usize = 15;
/// Elements of padded input, weights or output that the simulator holds. CBUF has room for 393216 bytes.
pub(crate) const MOST_ELEMENTS: u64 = 1 << 26;

/// Computes a task. `readers`: whether DPU_RDMA takes part. `left`: the largest work that is allowed.
pub(crate) fn run(task: &mut Core, space: &Space, readers: bool, left: u64) -> Result<Effect> {
    let registers = &task.registers;
    let fetch = Fetch::decode(registers)?;
    check_poison(&fetch, task.poisoned)?;
    let extents = extents(registers)?;
    check_window(&fetch, extents)?;
    let out = registers.get::<dpu::DataFormat>()?.out_precision;
    mac::check(registers, &fetch, extents, matches!(out, Precision::Int32 | Precision::Fp32))?;
    let macs = macs(&fetch, extents);
    allow(macs, left)?;
    let weights = (fetch.taps() * fetch.channels * fetch.kernels) as u64;
    let outputs = (extents.pixels() * extents.channels) as u64;
    for elements in [padded_elements(&fetch, extents), weights, outputs] {
        allow(elements, left.min(MOST_ELEMENTS))?;
    }
    let source = Source::Convolution { precision: fetch.precision, depthwise: fetch.depthwise };
    let post = Post::decode(registers, space, source, readers)?;
    let truncate = registers.get::<core::ClipTruncate>()?.clip_truncate;
    task.poisoned |= poisons(registers)?;
    let group = post.writer.group;
    let features = fetch.spread_out(task.cbuf.features(&fetch, || fetch.read_features(space))?);
    let weights = task.cbuf.weights(&fetch, || match fetch.depthwise {
        true => fetch.read_depthwise_weights(space, group),
        false => fetch.read_direct_weights(space, group),
    })?;
    let writes = match fetch.precision {
        Precision::Int4 | Precision::Int8 | Precision::Int16 => {
            let array = Integer::new(&fetch, extents, &features, &weights, group, truncate);
            let groups = mac::groups(registers, &fetch, post.writer.groups)?;
            pieces(&post, groups, |group, rows| {
                post.emit(group, rows.clone(), &array.accumulate(group, rows, &post.stages))
            })
        }
        _ => {
            let array = Real::new(&fetch, extents, &features, &weights, group);
            pieces(&post, post.writer.groups, |group, rows| {
                post.emit(group, rows.clone(), &array.accumulate(group, rows))
            })
        }
    };
    let written = writes.iter().map(|writes| writes.bytes() as u64).sum();
    let work = Work {
        macs,
        macs_per_cycle: macs_per_cycle(fetch.precision),
        bytes_read: fetch.bytes() + post.bytes_read,
        bytes_written: written,
    };
    Ok(Effect { writes, work, hangs: post.writer.hangs.as_ref().map(Fault::from), ..Effect::default() })
}

/// Refuses work beyond a limit.
pub(crate) fn allow(work: u64, left: u64) -> Result<()> {
    if work <= left { Ok(()) } else { Err(Fault::TooMuchWork { work, left }) }
}

/// Multiplications, padding included.
fn macs(fetch: &Fetch, extents: Extents) -> u64 {
    // Extents have 13 bits each, kernels 14, kernel positions 10 and channels 16: together 66.
    let kernels = if fetch.depthwise { 1 } else { fetch.kernels.max(extents.channels) };
    let per_pixel = (fetch.taps() * fetch.channels * kernels) as u64;
    (extents.pixels() as u64).saturating_mul(per_pixel)
}

/// Windows that start far beyond the input make no sense, and would make padding as large as a program likes.
fn check_window(fetch: &Fetch, extents: Extents) -> Result<()> {
    let window = &fetch.window;
    let [rows, columns] = fetch.grid();
    for (axis, outputs, inputs) in [(0, extents.height, rows), (1, extents.width, columns)] {
        let last = (outputs - 1) * window.stride[axis];
        proven(last <= inputs + window.pad[axis] + MOST_PAD, "windows that start far beyond the input")?;
    }
    Ok(())
}

/// Computes the output in pieces, in the order of the writer: group by group, row by row.
fn pieces(post: &Post, groups: usize, compute: impl Fn(usize, Range<usize>) -> Writes + Sync) -> Vec<Writes> {
    if post.silent {
        return Vec::new();
    }
    if let Some(rows) = post.writer.only_rows() {
        return vec![compute(0, rows)];
    }
    let height = post.extents.height;
    let rows = PIECE.div_ceil(post.extents.width);
    let starts: Vec<(usize, usize)> =
        (0..groups).flat_map(|group| (0..height).step_by(rows).map(move |row| (group, row))).collect();
    starts.into_par_iter().map(|(group, row)| compute(group, row..(row + rows).min(height))).collect()
}
