//! CORE, the MAC array and its accumulator: padding, multiplication and summation.
//!
//! Integers are exact. Real numbers sum groups of products exactly, round each group once to single precision and add
//! the groups in order. SOURCE: npu-spec 5.2 to 5.4.

mod integer;
mod real;

use npu_regs::{Precision, core};

use crate::cna::{Fetch, Window};
use crate::fault::{Result, agree, proven, simulated};
use crate::rdma::Extents;
use crate::registers::RegisterFile;
pub(crate) use integer::Integer;
pub(crate) use real::Real;

/// Checks CORE's registers against the CNA's and the DPU's.
///
/// SOURCE: npu-spec 4.2 for QD_EN, whose meaning is unknown: only what was seen to work is accepted.
pub(crate) fn check(registers: &RegisterFile, fetch: &Fetch, extents: Extents, wide: bool) -> Result<()> {
    let config = registers.get::<core::MiscCfg>()?;
    agree("precisions of CNA and CORE", fetch.precision as u32, config.proc_precision as u32)?;
    agree("depthwise modes of CNA and CORE", fetch.depthwise, config.dw_en)?;
    let raw_integers = fetch.precision == Precision::Int8 && wide || fetch.precision == Precision::Int4;
    // QUIRK(Q9): 16-bit integers take either, see `groups`.
    proven(fetch.precision == Precision::Int16 || config.qd_en != raw_integers, "this QD_EN")?;
    registers.unused::<core::Unnamed3030>()?;
    let size = registers.get::<core::DataoutSize0>()?;
    agree("widths of CORE and DPU", size.dataout_width, extents.width as u64 - 1)?;
    agree("heights of CORE and DPU", size.dataout_height, extents.height as u64 - 1)?;
    let channel = registers.get::<core::DataoutSize1>()?.dataout_channel;
    agree("channels of CORE and DPU", channel, extents.channels as u64 - 1)?;
    agree("widths of CNA and DPU", fetch.output_width, extents.width as u64)?;
    agree("pixels of CNA and DPU", fetch.output_pixels, extents.pixels() as u64)?;
    let clip = registers.get::<core::ClipTruncate>()?.clip_truncate;
    simulated(clip == 0 || fetch.precision == Precision::Int8, "CLIP_TRUNCATE of floating point")
}

/// Groups of output channels that are produced, of `all`.
pub(crate) fn groups(registers: &RegisterFile, fetch: &Fetch, all: usize) -> Result<usize> {
    // QUIRK(Q9): without QD_EN only the first sixteen channels of 16-bit integers are, which is one group.
    let first_only = fetch.precision == Precision::Int16 && !registers.get::<core::MiscCfg>()?.qd_en;
    Ok(if first_only { 1 } else { all })
}

/// Features with their padding: `[row, column, channel]`, as many rows and columns as the windows cover.
#[derive(Debug)]
pub(crate) struct Padded<T> {
    pub(crate) data: Vec<T>,
    pub(crate) columns: usize,
    pub(crate) channels: usize,
}

impl<T: Copy> Padded<T> {
    /// Pads `features`, `[h, w, c]`, with a value per channel.
    pub(crate) fn new(features: &[T], fetch: &Fetch, extents: Extents, outside: &[T]) -> Self {
        let window = &fetch.window;
        let (rows, columns) = (window.span(0, extents.height), window.span(1, extents.width));
        let channels = fetch.channels;
        let [top, left] = window.pad;
        let [height, width] = fetch.grid();
        let mut data = Vec::with_capacity(rows * columns * channels);
        for row in 0..rows {
            let Some(h) = row.checked_sub(top).filter(|h| *h < height) else {
                data.extend((0..columns).flat_map(|_| outside));
                continue;
            };
            let before = left.min(columns);
            let inside = width.min(columns - before);
            data.extend((0..before).flat_map(|_| outside));
            data.extend_from_slice(&features[h * width * channels..][..inside * channels]);
            data.extend((before + inside..columns).flat_map(|_| outside));
        }
        Self { data, columns, channels }
    }

    /// Start of the window of an output pixel.
    pub(crate) fn at(&self, window: &Window, row: usize, column: usize) -> usize {
        (row * window.stride[0] * self.columns + column * window.stride[1]) * self.channels
    }

    /// Start of a kernel position in a window.
    pub(crate) fn tap(&self, window: &Window, tap: usize) -> usize {
        let (kh, kw) = (tap / window.kernel[1], tap % window.kernel[1]);
        (kh * window.dilation[0] * self.columns + kw * window.dilation[1]) * self.channels
    }
}

/// Elements that padding may make of a task's features.
pub(crate) fn padded_elements(fetch: &Fetch, extents: Extents) -> u64 {
    let rows = fetch.window.span(0, extents.height) as u64;
    rows * fetch.window.span(1, extents.width) as u64 * fetch.channels as u64
}
