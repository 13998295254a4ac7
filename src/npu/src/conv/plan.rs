//! Cuts a convolution into pieces and plans each as a network of one layer.

use std::marker::PhantomData;
use std::ops::Range;
use std::time::Duration;

use crate::chip::Chip;
use crate::conv::finish::{Finish, check_bias};
use crate::conv::numbers::{Gives, Output};
use crate::conv::piece::{Piece, Span, split};
use crate::conv::{Conv, Quantised};
use crate::emit::Kind;
use crate::error::{Error, Unsupported};
use crate::layer::{self, Tensor};
use crate::layout;
use crate::network::{Network, NetworkBuilder};
use crate::ops::{Bias, Conv2d, Depthwise, Filter, Quant, Sums, Window};

/// Input channels of a slice come in whole groups. SOURCE: npu-spec 3.2.
const INPUT_GROUP: usize = 32;

/// A planned convolution: pieces, packed weights, and what the host adds. Planning does no I/O.
#[derive(Clone, Debug)]
pub struct ConvPlan<In, Out> {
    pub(crate) input: [usize; 3],
    pub(crate) output: [usize; 3],
    /// Output channels of each input channel of a depthwise convolution.
    pub(crate) repeat: usize,
    pub(crate) outside: In,
    /// None where the NPU's results are those of the convolution.
    pub(crate) finish: Option<Finish>,
    pub(crate) networks: Vec<Network>,
    /// Of each worker.
    pub(crate) parts: Vec<Part>,
    results: PhantomData<Out>,
}

/// The part of a worker: whole rows.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) rows: Range<usize>,
    /// With the index of each one's network.
    pub(crate) pieces: Vec<(Piece, usize)>,
}

impl<In, Out> ConvPlan<In, Out>
where
    In: Gives<Out>,
    Out: Output,
{
    /// Plans for `workers` workers. `input`: `[h, w, c]`.
    ///
    /// # Errors
    /// What exceeds which limit.
    pub fn new(chip: &Chip, workers: usize, input: [usize; 3], conv: &Conv<'_, In>) -> Result<Self, Unsupported> {
        let planner = Planner::<In, Out>::new(chip, input, conv)?;
        let cut = planner.cut()?;
        let needs_host = planner.wide() || cut.slices.len() > 1;
        let finish = if needs_host { Some(planner.finish()?) } else { None };
        let window_sums = finish.as_ref().is_some_and(Finish::needs_window);
        let mut networks = Networks::default();
        let mut parts = Vec::new();
        for rows in planner.rows(&cut, workers) {
            let mut pieces = Vec::new();
            for piece in planner.pieces(&cut, &rows) {
                let ones = window_sums && piece.outputs.start == 0;
                let network = networks.get(&planner, &piece, needs_host, ones)?;
                pieces.push((piece, network));
            }
            parts.push(Part { rows, pieces });
        }
        Ok(Self {
            input,
            output: planner.output,
            repeat: planner.repeat,
            outside: In::from_zero_point(conv.quantised.input.zero_point),
            finish,
            networks: networks.built,
            parts,
            results: PhantomData,
        })
    }

    /// `[h, w, c]` of the results.
    pub fn output(&self) -> [usize; 3] {
        self.output
    }

    /// Pieces that are computed apart.
    pub fn pieces(&self) -> usize {
        self.reports().count()
    }

    /// Register programs of one run.
    pub fn tasks(&self) -> usize {
        self.reports().map(|network| network.report().tasks).sum()
    }

    /// Jobs of one run.
    pub fn jobs(&self) -> usize {
        self.reports().map(|network| network.report().jobs).sum()
    }

    /// How often the kernel starts the NPU in one run. `batched`: it starts the tasks of a job at once.
    pub fn kicks(&self, batched: bool) -> usize {
        if batched { self.jobs() } else { self.tasks() }
    }

    /// Bytes that the NPU reads and writes in one run.
    pub fn bytes(&self) -> u64 {
        self.reports().map(|network| network.report().bytes_moved).sum()
    }

    /// Time of one run on the NPU by the cost model: that of the worker with most to do.
    pub fn time(&self) -> Duration {
        let part = |part: &Part| -> Duration {
            part.pieces.iter().map(|(_, network)| self.networks[*network].report().predicted).sum()
        };
        self.parts.iter().map(part).max().unwrap_or_default()
    }

    /// Whether the host adds or finishes sums.
    pub fn finishes_on_host(&self) -> bool {
        self.finish.is_some()
    }

    fn reports(&self) -> impl Iterator<Item = &Network> {
        self.parts.iter().flat_map(|part| &part.pieces).map(|(_, network)| &self.networks[*network])
    }
}

/// How a convolution is cut, beside rows.
struct Cut {
    columns: Vec<Range<usize>>,
    /// Input channels whose sums are added on the host.
    slices: Vec<Range<usize>>,
    /// Output channels.
    blocks: Vec<Range<usize>>,
}

/// A convolution being planned.
struct Planner<'a, In, Out> {
    chip: &'a Chip,
    conv: &'a Conv<'a, In>,
    input: [usize; 3],
    output: [usize; 3],
    repeat: usize,
    results: PhantomData<Out>,
}

impl<'a, In, Out> Planner<'a, In, Out>
where
    In: Gives<Out>,
    Out: Output,
{
    fn new(chip: &'a Chip, input: [usize; 3], conv: &'a Conv<'a, In>) -> Result<Self, Unsupported> {
        if input[2] == 0 || conv.channels == 0 {
            return Err(Unsupported::new("a convolution without channels"));
        }
        let [oh, ow] = conv.window.output(layer::grid([input[0], input[1]], conv.spread))?;
        let output = [oh, ow, conv.channels];
        let repeat = match conv.kind {
            Kind::Direct => 1,
            Kind::Depthwise => conv.channels / input[2],
        };
        let planner = Self { chip, conv, input, output, repeat, results: PhantomData };
        planner.check()?;
        Ok(planner)
    }

    fn check(&self) -> Result<(), Unsupported> {
        let Self { conv, input: [.., inputs], .. } = self;
        let depthwise = conv.kind == Kind::Depthwise;
        if depthwise && !conv.channels.is_multiple_of(*inputs) {
            return Err(Unsupported::new(format!("{} depthwise channels of {inputs} input channels", conv.channels)));
        }
        if depthwise && self.wide() {
            return Err(Unsupported::new("depthwise sums: the 32-bit writer repeats lanes there"));
        }
        let per_channel = if depthwise { self.taps() } else { self.taps() * inputs };
        let expected = per_channel.checked_mul(conv.channels);
        if expected != Some(conv.filter.len()) {
            let (found, channels) = (conv.filter.len(), conv.channels);
            return Err(Unsupported::new(format!(
                "the filter has {found} weights, {channels} kernels of {per_channel} are needed"
            )));
        }
        check_bias(&conv.bias, In::TYPE, conv.channels)?;
        if conv.spread != [1, 1] && self.wide() {
            return Err(Unsupported::new("sums of a transposed convolution"));
        }
        layer::check_kernel(self.chip, &conv.window)
    }

    /// Whether results are the sums themselves.
    fn wide(&self) -> bool {
        Out::TYPE.bytes() == 4
    }

    fn taps(&self) -> usize {
        self.conv.window.kernel[0] * self.conv.window.kernel[1]
    }

    /// The fewest slices of input channels that fit, and with them the fewest columns.
    fn cut(&self) -> Result<Cut, Unsupported> {
        let [.., inputs] = self.input;
        if self.conv.spread != [1, 1] {
            // Known to be right in one piece only.
            self.fits(inputs, 1)?;
            let [columns, slices] = [self.output[1], inputs].map(|extent| split(extent, 1));
            return Ok(Cut { columns, slices, blocks: self.blocks() });
        }
        let most = match self.conv.kind {
            Kind::Direct => inputs.div_ceil(INPUT_GROUP),
            Kind::Depthwise => 1,
        };
        let mut refusal = Unsupported::new("no input channels");
        let mut tried = usize::MAX;
        for count in 1..=most {
            let slice = if count == 1 { inputs } else { inputs.div_ceil(count).next_multiple_of(INPUT_GROUP) };
            if slice == tried {
                continue;
            }
            tried = slice;
            match self.columns(slice) {
                Ok(columns) => {
                    let slices = (0..inputs).step_by(slice).map(|first| first..(first + slice).min(inputs)).collect();
                    return Ok(Cut { columns: split(self.output[1], columns), slices, blocks: self.blocks() });
                }
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    /// The fewest parts of the columns with which `slice` input channels fit.
    fn columns(&self, slice: usize) -> Result<usize, Unsupported> {
        let [_, width, _] = self.output;
        self.fits(slice, width)?;
        // Narrower parts fit where wider ones do.
        let (mut too_few, mut enough) = (0, width);
        while enough - too_few > 1 {
            let middle = too_few.midpoint(enough);
            if self.fits(slice, middle).is_ok() { enough = middle } else { too_few = middle }
        }
        Ok(enough)
    }

    /// Whether the first, a middle and the last of `count` parts of the columns fit.
    fn fits(&self, slice: usize, count: usize) -> Result<(), Unsupported> {
        let columns = split(self.output[1], count);
        let channels = match self.conv.kind {
            Kind::Direct => slice,
            Kind::Depthwise => self.blocks()[0].len(),
        };
        for index in [0, columns.len() / 2, columns.len() - 1] {
            let piece = self.piece(&(0..self.output[0]), &columns[index], &(0..1), &(0..channels));
            self.check_piece(&piece)?;
        }
        Ok(())
    }

    fn check_piece(&self, piece: &Piece) -> Result<(), Unsupported> {
        let Conv { kind, spread, quantised, .. } = *self.conv;
        let [h, w] = piece.extents();
        if spread != [1, 1] && piece.spans.iter().any(|span| span.written != [0; 2]) {
            return Err(Unsupported::new("a transposed convolution with padding that no register holds"));
        }
        let tensor = Tensor::new(self.chip, [h, w, piece.inputs.len()], In::TYPE, quantised.input)?;
        let window = piece.window(&self.conv.window);
        layer::check_spread(kind, In::TYPE, &window, spread)?;
        let output = layer::check_window(self.chip, &window, layer::grid([h, w], spread))?;
        layer::check_fit(self.chip, kind, &tensor, &window, spread, output)
    }

    /// Parts of the rows, one for each worker, or all rows where not each part can be computed apart.
    fn rows(&self, cut: &Cut, workers: usize) -> Vec<Range<usize>> {
        let rows = split(self.output[0], workers);
        let apart = |rows| self.pieces(cut, rows).iter().all(|piece| self.check_piece(piece).is_ok());
        if rows.iter().all(apart) { rows } else { split(self.output[0], 1) }
    }

    /// Output channels that are computed together: as many as the DPU can count, one of them for the window's sum.
    fn blocks(&self) -> Vec<Range<usize>> {
        let group = layout::depthwise_group(In::TYPE);
        let most = (self.chip.max_output - group) / group * group - group;
        (0..self.conv.channels).step_by(most).map(|first| first..(first + most).min(self.conv.channels)).collect()
    }

    fn piece(
        &self,
        rows: &Range<usize>,
        columns: &Range<usize>,
        outputs: &Range<usize>,
        inputs: &Range<usize>,
    ) -> Piece {
        let window = &self.conv.window;
        let [h, w, _] = self.input;
        let span = |axis, outputs, extent| Span::new(self.chip, window, axis, self.conv.spread[axis], outputs, extent);
        let spans = [span(0, rows, h), span(1, columns, w)];
        let [rows, columns, outputs, inputs] = [rows, columns, outputs, inputs].map(Range::clone);
        Piece { rows, columns, outputs, inputs, spans }
    }

    /// The pieces of some rows.
    fn pieces(&self, cut: &Cut, rows: &Range<usize>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for columns in &cut.columns {
            for outputs in &cut.blocks {
                match self.conv.kind {
                    Kind::Direct => {
                        pieces.extend(cut.slices.iter().map(|inputs| self.piece(rows, columns, outputs, inputs)))
                    }
                    Kind::Depthwise => pieces.push(self.piece(rows, columns, outputs, outputs)),
                }
            }
        }
        pieces
    }

    fn finish(&self) -> Result<Finish, Unsupported> {
        let quantised = &self.conv.quantised;
        let input = Tensor::of_any_size(self.input, In::TYPE, quantised.input)?;
        let output = match self.wide() {
            // Sums have no scale and no zero point.
            true => {
                let quant = Quant { scale: 1.0, zero_point: In::TYPE.centre() };
                Tensor::of_any_size(self.output, In::TYPE, quant)?
            }
            false => Tensor::of_any_size(self.output, In::TYPE, quantised.output)?,
        };
        Finish::new(self.conv, &input, &output, self.wide())
    }

    /// The network of a piece. `sums`: it ends with the sums; `ones`: with a kernel more, which sums up the window.
    fn network(&self, piece: &Piece, sums: bool, ones: bool) -> Result<Network, Unsupported> {
        let Conv { kind, bias, activation, quantised, .. } = *self.conv;
        let [h, w] = piece.extents();
        let window = piece.window(&self.conv.window);
        let channels = piece.outputs.len();
        let mut data = self.filter(piece);
        if ones {
            In::put(&vec![In::ONE; self.taps() * piece.inputs.len()], &mut data);
        }
        let mut builder = NetworkBuilder::new(self.chip);
        let input = builder.input([h, w, piece.inputs.len()], In::TYPE, quantised.input)?;
        let bias = match bias {
            Bias::None => Bias::None,
            Bias::I32(list) => Bias::I32(&list[piece.outputs.clone()]),
            Bias::F32(list) => Bias::F32(&list[piece.outputs.clone()]),
        };
        let Quantised { filter_scales, filter_zero_points, output, .. } = quantised;
        let filter = Filter {
            data: &data,
            scales: self.of(filter_scales, &piece.outputs),
            zero_points: self.of(filter_zero_points, &piece.outputs),
        };
        let result = match kind {
            _ if sums => {
                let channels = channels + usize::from(ones);
                builder.sums(input, &Sums { window, channels, filter: &data })?
            }
            Kind::Direct => {
                let conv = Conv2d { window, channels, filter, bias, output, activation };
                builder.spread_conv2d(input, &conv, self.conv.spread)?
            }
            Kind::Depthwise => {
                builder.depthwise(input, &Depthwise { window, multiplier: 1, filter, bias, output, activation })?
            }
        };
        builder.output(result);
        builder.build().map_err(|error| match error {
            Error::Layer { source, .. } => source,
            error => Unsupported::new(error.to_string()),
        })
    }

    /// The weights of a piece.
    fn filter(&self, piece: &Piece) -> Vec<u8> {
        let (taps, [.., inputs]) = (self.taps(), self.input);
        let mut data = Vec::new();
        match self.conv.kind {
            Kind::Direct => {
                let kernels = &self.conv.filter[piece.outputs.start * taps * inputs..piece.outputs.end * taps * inputs];
                kernels.chunks_exact(inputs).for_each(|tap| In::put(&tap[piece.inputs.clone()], &mut data));
            }
            Kind::Depthwise => {
                let taps = self.conv.filter.chunks_exact(self.conv.channels);
                taps.for_each(|tap| In::put(&tap[piece.outputs.clone()], &mut data));
            }
        }
        data
    }

    /// What belongs to some channels, of a list for all or one value for all. A list of another length is refused later.
    fn of<'b, T>(&self, list: &'b [T], channels: &Range<usize>) -> &'b [T] {
        if list.len() == self.conv.channels { &list[channels.clone()] } else { list }
    }
}

/// Networks that were built, each for all pieces that are alike.
#[derive(Default)]
struct Networks {
    built: Vec<Network>,
    keys: Vec<([usize; 2], Window, [Range<usize>; 2])>,
}

impl Networks {
    fn get<In: Gives<Out>, Out: Output>(
        &mut self,
        planner: &Planner<'_, In, Out>,
        piece: &Piece,
        sums: bool,
        ones: bool,
    ) -> Result<usize, Unsupported> {
        let channels = [piece.inputs.clone(), piece.outputs.clone()];
        let key = (piece.extents(), piece.window(&planner.conv.window), channels);
        if let Some(index) = self.keys.iter().position(|known| *known == key) {
            return Ok(index);
        }
        self.built.push(planner.network(piece, sums, ones)?);
        self.keys.push(key);
        Ok(self.built.len() - 1)
    }
}
