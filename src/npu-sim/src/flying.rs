//! The flying datapath: the DPU fed from memory, for element-wise operations of one plane.
//!
//! SOURCE: npu-spec 4.10.

use npu_regs::{Precision, dpu};

use crate::controller::{Core, Effect};
use crate::conv::{MOST_ELEMENTS, allow};
use crate::cost::Work;
use crate::dpu::{Post, Source, extents};
use crate::fault::{Fault, Result, proven, simulated};
use crate::memory::{ATOM, Space};
use crate::rdma::{Cube, Extents, read_main};

/// QUIRK(Q18): the width that goes wrong, and how many elements at the end.
const WRONG_WIDTH: usize = 8191;
const WRONG_ELEMENTS: usize = 54;

/// Computes a task. `left`: the largest work that is allowed.
pub(crate) fn run(task: &Core, space: &Space, left: u64) -> Result<Effect> {
    let registers = &task.registers;
    let extents = extents(registers)?;
    let element = match registers.get::<dpu::DataFormat>()?.proc_precision {
        Precision::Int8 => 1,
        Precision::Int16 | Precision::Fp16 => 2,
        Precision::Int32 => 4,
        _ => return Err(Fault::Unimplemented("a flying operation of this precision")),
    };
    allow((extents.pixels() * extents.channels) as u64, left.min(MOST_ELEMENTS))?;
    simulated(extents.channels * element == ATOM, "flying operations of more than one plane")?;
    let format = registers.get::<dpu::DataFormat>()?;
    proven(format.in_precision == format.out_precision, "a flying operation that converts")?;
    let post = Post::decode(registers, space, Source::Flying, true)?;
    let main = read_main(registers, space, extents, element)?;
    let mut writes = match format.proc_precision {
        Precision::Fp16 => post.emit(
            0,
            0..extents.height,
            &values(&main, &extents, |bits| {
                // CAST: the low half.
                half::f16::from_bits(bits as u16).to_f32()
            }),
        ),
        _ => post.emit(0, 0..extents.height, &values(&main, &extents, |bits| bits)),
    };
    if extents.width == WRONG_WIDTH {
        writes.truncate(writes.bytes().saturating_sub(WRONG_ELEMENTS * element));
    }
    let work = Work {
        macs: 0,
        macs_per_cycle: 1,
        bytes_read: main.bytes() + post.bytes_read,
        bytes_written: writes.bytes() as u64,
    };
    Ok(Effect { writes: vec![writes], work, hangs: post.writer.hangs.as_ref().map(Fault::from), ..Effect::default() })
}

/// The main data, `[row, column, channel]`.
fn values<T>(main: &Cube, extents: &Extents, convert: impl Fn(i32) -> T) -> Vec<T> {
    (0..extents.pixels())
        .flat_map(|pixel| (0..extents.channels).map(move |channel| (channel, pixel)))
        .map(|(channel, pixel)| convert(main.bits(channel, pixel)))
        .collect()
}
