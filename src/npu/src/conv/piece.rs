//! Pieces of a convolution: which part of the output each computes, and which part of the input it reads.

use std::ops::Range;

use crate::chip::Chip;
use crate::conv::Image;
use crate::conv::numbers::Element;
use crate::ops::{Padding, Window};

/// One axis of a piece's input: part of the picture, and what is written around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Of the picture.
    pub(crate) inside: Range<usize>,
    /// Positions outside that are written before and after.
    pub(crate) written: [usize; 2],
    /// Positions outside that the hardware supplies before and after.
    pub(crate) padding: [usize; 2],
}

impl Span {
    /// The input of the output positions `outputs` along `axis` of a picture with `extent` positions.
    ///
    /// `spread`: steps from one position of the picture to the next, with zeros between them.
    pub(crate) fn new(
        chip: &Chip,
        window: &Window,
        axis: usize,
        spread: usize,
        outputs: &Range<usize>,
        extent: usize,
    ) -> Self {
        let (stride, pad) = (window.stride[axis], window.before(axis));
        let span = window.span(axis);
        // In steps of the padded picture, which starts `pad` before the picture.
        let (start, end) = (outputs.start * stride, (outputs.end - 1) * stride + span);
        let first_from = |step: usize| step.saturating_sub(pad).div_ceil(spread).min(extent);
        let inside = first_from(start)..first_from(end);
        let outside = if inside.is_empty() {
            // All before or all after the picture.
            [end - start, 0]
        } else {
            [pad + inside.start * spread - start, end - (pad + (inside.end - 1) * spread + 1)]
        };
        let supplied = !inside.is_empty() && outside[0] <= chip.max_pad && outside.iter().all(|&count| count < span);
        let (written, padding) = if supplied { ([0; 2], outside) } else { (outside, [0; 2]) };
        Self { inside, written, padding }
    }

    /// Positions of the piece's input.
    pub(crate) fn len(&self) -> usize {
        self.inside.len() + self.written[0] + self.written[1]
    }
}

/// A piece.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Output rows.
    pub(crate) rows: Range<usize>,
    /// Output columns.
    pub(crate) columns: Range<usize>,
    /// Output channels.
    pub(crate) outputs: Range<usize>,
    /// Input channels.
    pub(crate) inputs: Range<usize>,
    /// Input rows and columns.
    pub(crate) spans: [Span; 2],
}

impl Piece {
    /// `[h, w]` of its input.
    pub(crate) fn extents(&self) -> [usize; 2] {
        [self.spans[0].len(), self.spans[1].len()]
    }

    /// How the kernel moves over its input.
    pub(crate) fn window(&self, whole: &Window) -> Window {
        let [[top, bottom], [left, right]] = [self.spans[0].padding, self.spans[1].padding];
        Window { padding: Padding { top, bottom, left, right }, ..*whole }
    }

    /// Its input in memory's form. `repeat`: how often each channel comes.
    pub(crate) fn gather<T: Element>(&self, image: &Image<'_, T>, repeat: usize, outside: T) -> Vec<u8> {
        let [rows, columns] = &self.spans;
        let [_, width, channels] = image.shape;
        let pixel = self.inputs.len();
        let mut bytes = Vec::with_capacity(rows.len() * columns.len() * pixel * T::TYPE.bytes());
        let empty = vec![outside; columns.len() * pixel];
        let fill = |bytes: &mut Vec<u8>, columns: usize| T::put(&empty[..columns * pixel], bytes);
        (0..rows.written[0]).for_each(|_| fill(&mut bytes, columns.len()));
        let mut repeated = Vec::new();
        for row in rows.inside.clone() {
            fill(&mut bytes, columns.written[0]);
            let line = &image.values[row * width * channels..][..width * channels];
            let line = &line[columns.inside.start * channels..columns.inside.end * channels];
            if pixel == channels && repeat == 1 {
                T::put(line, &mut bytes);
            } else {
                for values in line.chunks_exact(channels) {
                    repeated.clear();
                    repeated.extend(self.inputs.clone().map(|channel| values[channel / repeat]));
                    T::put(&repeated, &mut bytes);
                }
            }
            fill(&mut bytes, columns.written[1]);
        }
        (0..rows.written[1]).for_each(|_| fill(&mut bytes, columns.len()));
        bytes
    }
}

/// `0..len` in `count` parts of about the same length; fewer where there is not enough for all.
pub(crate) fn split(len: usize, count: usize) -> Vec<Range<usize>> {
    let each = len.div_ceil(count.max(1)).max(1);
    (0..len).step_by(each).map(|start| start..(start + each).min(len)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every tap of every output of the piece sees what the whole convolution's sees.
        #[test]
        fn a_span_holds_what_its_outputs_read(
            extent in 1..40usize, kernel in 1..6usize, stride in 1..4usize, dilation in 1..4usize,
            before in 0..40usize, after in 0..40usize, first in 0..30usize, count in 1..10usize,
        ) {
            let padding = Padding { top: before, bottom: after, left: 0, right: 0 };
            let window = Window { kernel: [kernel, 1], stride: [stride, 1], dilation: [dilation, 1], padding };
            let outputs = window.output([extent, 1]).map_or(0, |[rows, _]| rows);
            prop_assume!(first < outputs);
            let outputs = first..(first + count).min(outputs);
            let span = Span::new(&Chip::RK3588, &window, 0, 1, &outputs, extent);
            prop_assert!(span.len() > 0 && span.padding[0] <= 15);
            for (at, output) in outputs.clone().enumerate() {
                for tap in 0..kernel {
                    let whole = (output * stride + tap * dilation).checked_sub(before).filter(|&at| at < extent);
                    let own = (at * stride + tap * dilation).checked_sub(span.padding[0] + span.written[0]);
                    let own = own.map(|at| at + span.inside.start).filter(|at| span.inside.contains(at));
                    prop_assert_eq!(own, whole);
                }
            }
            let window = Window { padding: Padding { top: span.padding[0], bottom: span.padding[1], left: 0, right: 0 }, ..window };
            prop_assert_eq!(window.output([span.len(), 1]).unwrap()[0], outputs.len());
        }
    }
}
