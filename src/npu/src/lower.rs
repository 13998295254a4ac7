//! From layers to tasks: slot maps for all tensors, packed weights and operands, one task per channel block and row band.
//!
//! ```text
//! layers ─▶ classes of tensors with one slot map ─▶ cubes in the activation buffer
//!        └▶ per layer: cut into channel blocks ─▶ row bands ─▶ tasks, in dependency order ─▶ jobs
//! ```

use std::ops::Range;
use std::time::Duration;

use npu_regs::Layout;

use crate::chip::Chip;
use crate::emit::{
    Addend, Arithmetic, Clamp, Compensation, ConvTask, Feature, Kernel, Kind, Output, Place, Region, Reuse,
};
use crate::error::{Error, Result, Unsupported};
use crate::layer::{IntChannels, Layer, LayerArithmetic, Tensor, Weights, ZeroPoints, clamp};
use crate::layout::{self, ATOM, Cube, Operand, WeightShape};
use crate::ops::ElementType;
use crate::quantize::{self, Limits, Requant};
use crate::slots::{self, Slots};
use crate::tile::{Band, Geometry};
use crate::{quirks, rk3576};

/// Alignment of everything in a buffer: a cache line.
const ALIGN: usize = 64;

/// A task and what it writes.
#[derive(Clone, Debug)]
pub(crate) struct PlannedTask {
    pub(crate) task: ConvTask,
    pub(crate) layer: usize,
    /// Tensor that it writes.
    pub(crate) tensor: usize,
    /// Planes of the tensor.
    pub(crate) planes: Range<usize>,
    /// Pixels of each plane.
    pub(crate) pixels: Range<usize>,
    pub(crate) cost: Cost,
}

/// Work of a task.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) macs: u64,
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
}

/// Tensors in memory.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    pub(crate) cubes: Vec<Cube>,
    /// Where each cube starts.
    pub(crate) offsets: Vec<usize>,
    pub(crate) bytes: usize,
}

impl Arena {
    /// Gives every tensor its slots and its place. No two tensors share memory, so that a sentinel in each can be checked
    /// at the end of a run.
    pub(crate) fn new(chip: &Chip, tensors: &[Tensor], layers: &[Layer]) -> Self {
        let classes = Classes::new(tensors.len(), layers);
        let mut maps: Vec<Option<Slots>> = vec![None; tensors.len()];
        let mut cubes = Vec::with_capacity(tensors.len());
        let mut offsets = Vec::with_capacity(tensors.len());
        let mut bytes = 0;
        for (index, tensor) in tensors.iter().enumerate() {
            let class = classes.root[index];
            let slots = maps[class].get_or_insert_with(|| classes.slots(chip, class, tensors, layers)).clone();
            let depthwise = layers.iter().any(|layer| layer.output == index && layer.kind == Kind::Depthwise);
            let pitch = chip.plane_pitch(tensor.extents(), depthwise);
            let cube = Cube { extents: tensor.extents(), pitch, slots, element: tensor.element };
            offsets.push(bytes);
            bytes = (bytes + cube.bytes()).next_multiple_of(ALIGN);
            cubes.push(cube);
        }
        Self { cubes, offsets, bytes }
    }
}

/// Which tensors share a slot map: those that one operation reads and writes lane by lane.
struct Classes {
    /// First tensor of each tensor's class.
    root: Vec<usize>,
}

impl Classes {
    fn new(tensors: usize, layers: &[Layer]) -> Self {
        let mut classes = Self { root: (0..tensors).collect() };
        for layer in layers {
            if layer.kind == Kind::Depthwise {
                classes.join(layer.input, layer.output);
            }
            // The other operand goes through a convolution, which can permute.
            if let Some(addend) = layer.addend {
                classes.join(addend, layer.output);
            }
        }
        classes
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root[a], self.root[b]);
        self.root.iter_mut().filter(|root| **root == a.max(b)).for_each(|root| *root = a.min(b));
    }

    fn slots(&self, chip: &Chip, class: usize, tensors: &[Tensor], layers: &[Layer]) -> Slots {
        let channels = tensors[class].channels();
        let element = tensors[class].element;
        let writers: Vec<&Layer> = layers.iter().filter(|layer| self.root[layer.output] == class).collect();
        // A few channels that only direct convolutions read are one plane. SOURCE: npu-spec 4.8.
        if writers.is_empty() && element.is_integer() && channels <= chip.few_channels {
            return Slots::identity(channels, ATOM);
        }
        let depthwise = writers.iter().any(|layer| layer.kind == Kind::Depthwise);
        let direct_group = 32;
        let group = if depthwise { layout::depthwise_group(element) } else { direct_group };
        let demands: Vec<_> = writers.iter().filter_map(|layer| layer.demand()).collect();
        slots::arrange(channels, group, &demands)
    }
}

impl Layer {
    fn demand(&self) -> Option<slots::Demand> {
        match &self.arithmetic {
            LayerArithmetic::Int8(channels) => Some(channels.demand()),
            LayerArithmetic::Pair(..) | LayerArithmetic::Fp16 { .. } | LayerArithmetic::Sums(_) => None,
        }
    }
}

/// Tasks of all layers, and the bytes that they read beside activations.
#[derive(Debug, Default)]
pub(crate) struct Lowered {
    pub(crate) tasks: Vec<PlannedTask>,
    pub(crate) constants: Vec<u8>,
    /// Row bands and channel blocks of each layer.
    pub(crate) shapes: Vec<[usize; 2]>,
}

impl Lowered {
    /// Lowers every layer.
    ///
    /// # Errors
    /// [`Error::Layer`] where a layer does not fit.
    pub(crate) fn new(chip: &Chip, layers: &[Layer], arena: &Arena) -> Result<Self> {
        let mut lowered = Self::default();
        for (index, layer) in layers.iter().enumerate() {
            LayerPlan { chip, layer, index, arena }
                .lower(&mut lowered)
                .map_err(|source| Error::Layer { layer: index, source })?;
        }
        Ok(lowered)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<Place, Unsupported> {
        let offset = self.constants.len();
        self.constants.extend_from_slice(bytes);
        self.constants.resize(self.constants.len().next_multiple_of(ALIGN), 0);
        Ok(Place { region: Region::Constants, offset: word(offset)? })
    }
}

/// A number that must fit a 32-bit register.
fn word(value: usize) -> Result<u32, Unsupported> {
    u32::try_from(value).map_err(|_| Unsupported::new(format!("{value} exceeds 32 bits")))
}

impl Place {
    fn plus(self, bytes: usize) -> Result<Self, Unsupported> {
        let offset = self.offset.checked_add(word(bytes)?);
        let offset = offset.ok_or_else(|| Unsupported::new("a buffer exceeds 4 GiB"))?;
        Ok(Self { offset, ..self })
    }
}

/// A layer being lowered.
struct LayerPlan<'a> {
    chip: &'a Chip,
    layer: &'a Layer,
    index: usize,
    arena: &'a Arena,
}

/// Slots that share converters, and what the task reads for them.
struct Block {
    slots: Range<usize>,
    arithmetic: Arithmetic,
}

impl LayerPlan<'_> {
    fn input(&self) -> &Cube {
        &self.arena.cubes[self.layer.input]
    }

    fn output(&self) -> &Cube {
        &self.arena.cubes[self.layer.output]
    }

    fn place(&self, tensor: usize, plane: usize, pixel: usize) -> Result<Place, Unsupported> {
        let offset = self.arena.offsets[tensor] + self.arena.cubes[tensor].offset(plane, pixel);
        Ok(Place { region: Region::Activations, offset: word(offset)? })
    }

    /// Of the numbers that are multiplied.
    fn element(&self) -> ElementType {
        self.input().element
    }

    fn taps(&self) -> usize {
        self.layer.window.kernel[0] * self.layer.window.kernel[1]
    }

    /// Slots that one task must cover as a whole.
    fn group(&self) -> usize {
        match self.layer.kind {
            Kind::Direct => layout::kernel_group(self.element()),
            Kind::Depthwise => layout::depthwise_group(self.element()),
        }
    }

    fn lower(&self, lowered: &mut Lowered) -> Result<(), Unsupported> {
        let weights = lowered.append(&self.weights())?;
        let mut bands = 0;
        let blocks = self.blocks(lowered)?;
        for block in &blocks {
            let geometry = self.geometry(block.slots.len());
            let list = geometry.bands(self.chip)?;
            bands = bands.max(list.len());
            for band in &list {
                let task = self.task(block, band, &geometry, weights)?;
                lowered.tasks.push(self.planned(task, block, band));
            }
        }
        lowered.shapes.push([bands, blocks.len()]);
        Ok(())
    }

    fn geometry(&self, block_slots: usize) -> Geometry {
        let size = self.element().bytes();
        let input_slots = match self.layer.kind {
            Kind::Direct => self.input().slots.len(),
            Kind::Depthwise => block_slots,
        };
        let kernels = match self.layer.kind {
            Kind::Direct => self.group(),
            Kind::Depthwise => 1,
        };
        Geometry {
            input: self.input().extents,
            output: self.output().extents,
            window: self.layer.window,
            spread: self.layer.spread,
            pixel_bytes: input_slots * size,
            weight_bytes: kernels * self.taps() * input_slots * size,
            slack_banks: self.chip.free_banks(self.element()),
        }
    }

    /// The blocks of the layer, cut where the channels' scales demand it and, for a depthwise layer, where that is cheaper.
    fn blocks(&self, lowered: &mut Lowered) -> Result<Vec<Block>, Unsupported> {
        let slots = &self.output().slots;
        match &self.layer.arithmetic {
            LayerArithmetic::Int8(channels) => {
                let mut blocks = Vec::new();
                for run in self.runs(channels) {
                    let arithmetic = self.int8(channels, run.clone(), lowered)?;
                    for part in self.parts(run.clone())? {
                        let arithmetic = arithmetic.advanced(part.start - run.start)?;
                        blocks.push(Block { slots: part, arithmetic });
                    }
                }
                Ok(blocks)
            }
            LayerArithmetic::Pair(plan, clamp, limits) => {
                let operand = Operand { addend: -self.layer.zero_points[0], compensation: 0, multiplier: plan.first };
                let operands = lowered.append(&layout::pack_operands(&vec![operand; slots.len()]))?;
                let arithmetic = Arithmetic::Int8 {
                    operands,
                    compensation: Compensation::Tensor(0),
                    requant: plan.requant,
                    clamp: limited(*clamp, *limits, &plan.requant),
                };
                Ok(vec![Block { slots: 0..slots.len(), arithmetic }])
            }
            LayerArithmetic::Fp16 { bias, clamp } => {
                let bias = bias.as_ref().map(|bias| lowered.append(&self.real_bias(bias))).transpose()?;
                let arithmetic = Arithmetic::Fp16 { bias, clamp: *clamp };
                let parts = self.parts(0..slots.len())?;
                parts
                    .into_iter()
                    .map(|part| Ok(Block { arithmetic: arithmetic.advanced(part.start)?, slots: part }))
                    .collect()
            }
            LayerArithmetic::Sums(datapath) => Ok(vec![Block {
                slots: 0..slots.len(),
                arithmetic: Arithmetic::Raw { datapath: *datapath, operands: None },
            }]),
        }
    }

    /// Slots that may share converters, as many as a task takes.
    fn runs(&self, channels: &IntChannels) -> Vec<Range<usize>> {
        let runs = slots::cut(&self.output().slots, self.group(), &channels.demand());
        let most = if self.layer.kind == Kind::Depthwise { self.chip.max_depthwise } else { usize::MAX };
        let parts = |run: Range<usize>| {
            let end = run.end;
            run.step_by(most).map(move |first| first..first.saturating_add(most).min(end))
        };
        runs.into_iter().flat_map(parts).collect()
    }

    /// Operands and converters of the channels of one run.
    fn int8(
        &self,
        channels: &IntChannels,
        run: Range<usize>,
        lowered: &mut Lowered,
    ) -> Result<Arithmetic, Unsupported> {
        let slots = &self.output().slots;
        let live: Vec<usize> = slots
            .used(run.clone())
            .iter()
            .map(|&(_, channel)| channel)
            .filter(|&channel| channels.constants[channel].is_none())
            .collect();
        let needs: Vec<_> = live.iter().map(|&channel| channels.channels[channel]).collect();
        let plan = quantize::plan(&needs, channels.offset)?;
        let mut operands = vec![Operand::default(); run.len()];
        for (&channel, &multiplier) in live.iter().zip(&plan.factors) {
            let compensation = match &channels.zero_points {
                ZeroPoints::Tensor(_) => 0,
                // CAST: the negative of a signed byte.
                ZeroPoints::PerChannel(zero_points) => -zero_points[channel] as i16,
            };
            operands[slots.slot(channel) - run.start] =
                Operand { addend: channels.addends[channel], compensation, multiplier };
        }
        for &(slot, channel) in slots.used(run.clone()) {
            if let Some(result) = channels.constants[channel] {
                let (addend, multiplier) = plan.requant.constant(result)?;
                operands[slot - run.start] = Operand { addend, compensation: 0, multiplier };
            }
        }
        let compensation = match &channels.zero_points {
            ZeroPoints::Tensor(zero_point) => Compensation::Tensor(-zero_point),
            ZeroPoints::PerChannel(_) => Compensation::PerChannel,
        };
        Ok(Arithmetic::Int8 {
            operands: lowered.append(&self.pack_operands(&operands, compensation, plan.requant))?,
            compensation,
            requant: plan.requant,
            clamp: limited(clamp(channels.limits, channels.offset)?, channels.limits, &plan.requant),
        })
    }

    fn pack_operands(&self, operands: &[Operand], compensation: Compensation, requant: Requant) -> Vec<u8> {
        match self.chip.layout {
            Layout::Rk3588 => layout::pack_operands(operands),
            Layout::Rk3576 => {
                let all = match compensation {
                    // CAST: the negative of a signed byte.
                    Compensation::Tensor(value) => value as i16,
                    Compensation::PerChannel => 0,
                };
                rk3576::operands::pack(self.layer.kind, operands, all, requant.bs_shift)
            }
        }
    }

    fn real_bias(&self, bias: &[f32]) -> Vec<u8> {
        let slots = &self.output().slots;
        let value = |slot| slots.channel(slot).map_or(0.0, |channel| bias[channel]);
        (0..slots.len()).flat_map(|slot| value(slot).to_le_bytes()).collect()
    }

    /// A run in parts that are tasks of their own. A direct layer reads all its features for each part, so it has one; a
    /// depthwise layer reads only the part's, and smaller parts leave room for more rows.
    fn parts(&self, run: Range<usize>) -> Result<Vec<Range<usize>>, Unsupported> {
        if self.layer.kind == Kind::Direct {
            return Ok(vec![run]);
        }
        let groups = run.len() / self.group();
        let mut best = Err(Unsupported::new("no channel block"));
        for per_part in 1..=groups {
            let step = per_part * self.group();
            let parts: Vec<_> = run.clone().step_by(step).map(|first| first..(first + step).min(run.end)).collect();
            match self.parts_time(&parts) {
                Ok(time) if best.as_ref().is_ok_and(|(least, _)| *least <= time) => {}
                Ok(time) => best = Ok((time, parts)),
                // What does not fit with fewer channels does not fit with more.
                Err(error) => return best.map(|(_, parts)| parts).map_err(|_| error),
            }
        }
        best.map(|(_, parts)| parts)
    }

    fn parts_time(&self, parts: &[Range<usize>]) -> Result<Duration, Unsupported> {
        let mut time = Duration::ZERO;
        for part in parts {
            for band in self.geometry(part.len()).bands(self.chip)? {
                time += self.cost(part.len(), &band).time + self.chip.task_overhead;
            }
        }
        Ok(time)
    }

    fn task(&self, block: &Block, band: &Band, geometry: &Geometry, weights: Place) -> Result<ConvTask, Unsupported> {
        let Self { layer, .. } = self;
        let (input, output) = (self.input(), self.output());
        let size = self.element().bytes();
        let window = &layer.window;
        let kernel_bytes = self.taps() * geometry.pixel_bytes;
        let unit = if size == 1 { self.chip.depthwise_weight_bytes } else { size };
        let (first_plane, bytes) = match layer.kind {
            Kind::Direct => (0, kernel_bytes * block.slots.len()),
            Kind::Depthwise => (block.slots.start / input.lanes(), kernel_bytes * unit / size),
        };
        let offset = match layer.kind {
            Kind::Direct => block.slots.start * kernel_bytes,
            Kind::Depthwise => block.slots.start * self.taps() * unit,
        };
        let pixel = band.output_row * output.extents[1];
        let plane = block.slots.start / output.lanes();
        Ok(ConvTask {
            kind: layer.kind,
            feature: Feature {
                place: self.place(layer.input, first_plane, band.input_row * input.extents[1])?,
                extents: [word(band.input_rows)?, word(input.extents[1])?],
                pitch: word(input.pitch)?,
                host_rows: None,
                real: word(real_slots(&input.slots, geometry.pixel_bytes / size))?,
                slots: word(geometry.pixel_bytes / size)?,
                entries: word(geometry.row_entries())?,
                pad_top: word(band.pad_top)?,
                pad_left: word(window.padding.left)?,
                pad_value: self.pad_value(),
            },
            kernel: Kernel {
                place: weights.plus(offset)?,
                bytes: word(bytes)?,
                kernel_bytes: word(kernel_bytes)?,
                extents: pair(window.kernel)?,
                stride: pair(window.stride)?,
                dilation: pair(window.dilation)?,
                spread: pair(layer.spread)?,
            },
            banks: geometry.banks(self.chip, band),
            output: Output {
                place: self.place(layer.output, plane, pixel)?,
                extents: [word(band.output_rows)?, word(output.extents[1])?],
                pitch: word(output.pitch)?,
                notch: 0,
                slots: word(block.slots.len())?,
            },
            arithmetic: block.arithmetic,
            addend: layer.addend.map(|tensor| self.addend(tensor, plane, pixel)).transpose()?,
            reuse: Reuse::default(),
        })
    }

    fn addend(&self, tensor: usize, plane: usize, pixel: usize) -> Result<Addend, Unsupported> {
        let place = self.place(tensor, plane, pixel)?;
        let pitch = word(self.arena.cubes[tensor].pitch)?;
        match &self.layer.arithmetic {
            LayerArithmetic::Pair(plan, ..) => Ok(Addend {
                place,
                pitch,
                offset: -self.layer.zero_points[1],
                // CAST: multipliers are positive.
                scale: u32::from(plan.second.unsigned_abs()),
                shift: plan.second_shift,
            }),
            _ => Ok(Addend { place, pitch, offset: 0, scale: 1, shift: 0 }),
        }
    }

    fn pad_value(&self) -> u32 {
        // CAST: tensors have zero points of a signed byte.
        if self.element().is_integer() { quirks::pad_value(self.layer.zero_points[0] as i8) } else { 0 }
    }

    fn planned(&self, task: ConvTask, block: &Block, band: &Band) -> PlannedTask {
        let output = self.output();
        let width = output.extents[1];
        PlannedTask {
            task,
            layer: self.index,
            tensor: self.layer.output,
            planes: block.slots.start / output.lanes()..block.slots.end / output.lanes(),
            pixels: band.output_row * width..(band.output_row + band.output_rows) * width,
            cost: self.cost(block.slots.len(), band),
        }
    }

    /// Work of a task by the model of npu-spec 9.5.
    fn cost(&self, slots: usize, band: &Band) -> Cost {
        let size = self.element().bytes();
        let output_pixels = band.output_rows * self.output().extents[1];
        let input_pixels = band.input_rows * self.input().extents[1];
        let (input_slots, weights) = match self.layer.kind {
            Kind::Direct => (self.input().slots.len(), self.input().slots.len() * slots * self.taps()),
            Kind::Depthwise => (slots, slots * self.taps()),
        };
        let addend = if self.layer.addend.is_some() { output_pixels * slots } else { 0 };
        let read = (input_pixels * input_slots + weights + addend) * size;
        let written = output_pixels * slots * self.output().element.bytes();
        // CAST: widening.
        let macs = (output_pixels * weights) as u64;
        let bytes = (read + written + layout::operand_bytes(slots)) as u64;
        let rate = if self.element().is_integer() { self.chip.macs_per_cycle_i8 } else { self.chip.macs_per_cycle_f16 };
        let compute = nanos(macs, rate * self.chip.clock_hz);
        let memory = nanos(bytes, self.chip.bytes_per_second);
        Cost { macs, bytes, time: Duration::from_nanos(compute.max(memory)) }
    }

    fn weights(&self) -> Vec<u8> {
        match &self.layer.weights {
            Weights::Int8(weights) => self.int8_weights(weights),
            Weights::Fp16(weights) => self.pack(|kernel, tap, input| {
                kernel.zip(input).map_or([0; 2], |(kernel, input)| weights[self.weight_index(kernel, tap, input)])
            }),
            Weights::Identity if self.element().is_integer() => {
                self.pack(|kernel, _, input| [u8::from(same(kernel, input))])
            }
            Weights::Identity => {
                let one = half::f16::ONE.to_le_bytes();
                self.pack(|kernel, _, input| if same(kernel, input) { one } else { [0; 2] })
            }
        }
    }

    /// Weights of constant channels and empty slots are the zero point, which counts as nothing.
    fn int8_weights(&self, weights: &[i8]) -> Vec<u8> {
        let LayerArithmetic::Int8(channels) = &self.layer.arithmetic else {
            // Without compensation, nothing is 0.
            return self.pack(|kernel, tap, input| {
                let weight = kernel.zip(input).map(|(kernel, input)| weights[self.weight_index(kernel, tap, input)]);
                [weight.unwrap_or(0).cast_unsigned()]
            });
        };
        let live = |kernel: &usize| channels.constants[*kernel].is_none();
        self.pack(|kernel, tap, input| {
            let kernel = kernel.filter(live);
            let nothing = match (&channels.zero_points, kernel) {
                (ZeroPoints::Tensor(zero_point), _) => *zero_point,
                (ZeroPoints::PerChannel(zero_points), Some(kernel)) => zero_points[kernel],
                // Operand B of such a kernel is 0.
                (ZeroPoints::PerChannel(_), None) => 0,
            };
            let weight = kernel.zip(input).map(|(kernel, input)| weights[self.weight_index(kernel, tap, input)]);
            // CAST: zero points are signed bytes.
            [weight.unwrap_or(nothing as i8).cast_unsigned()]
        })
    }

    /// Index of a weight in the caller's order.
    fn weight_index(&self, kernel: usize, tap: usize, input: usize) -> usize {
        match self.layer.kind {
            Kind::Direct => (kernel * self.taps() + tap) * self.input().slots.channels() + input,
            Kind::Depthwise => tap * self.output().slots.channels() + kernel,
        }
    }

    /// The weight cube of `weight(output channel, tap, input channel)`.
    fn pack<const SIZE: usize>(&self, weight: impl Fn(Option<usize>, usize, Option<usize>) -> [u8; SIZE]) -> Vec<u8> {
        let (input, output) = (&self.input().slots, &self.output().slots);
        let shape = WeightShape { kernels: output.len(), inputs: input.len(), extents: self.layer.window.kernel };
        match self.layer.kind {
            Kind::Direct => layout::pack_direct(&shape, self.group(), |kernel, tap, slot| {
                weight(output.channel(kernel), tap, input.channel(slot))
            }),
            Kind::Depthwise if self.chip.layout == Layout::Rk3576 => {
                rk3576::operands::depthwise(input.len(), shape.taps(), self.group(), |slot, tap| {
                    // The other element types are refused.
                    weight(output.channel(slot), tap, input.channel(slot))[0]
                })
            }
            Kind::Depthwise => layout::pack_depthwise(&shape, self.group(), |slot, tap| {
                weight(output.channel(slot), tap, input.channel(slot))
            }),
        }
    }
}

fn same(kernel: Option<usize>, input: Option<usize>) -> bool {
    kernel.is_some() && kernel == input
}

/// Slots that the input unit is told hold data: all, but of a single plane only those in use, and no fewer than two,
/// because one means packed pixels. SOURCE: npu-spec 4.8.
fn real_slots(slots: &Slots, read: usize) -> usize {
    if slots.len() > ATOM { read } else { slots.channels().max(2) }
}

fn pair([a, b]: [usize; 2]) -> Result<[u32; 2], Unsupported> {
    Ok([word(a)?, word(b)?])
}

/// Work divided by work per second, in nanoseconds.
fn nanos(work: u64, per_second: u64) -> u64 {
    let nanos = u128::from(work) * 1_000_000_000 / u128::from(per_second.max(1));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// A clamp with the value at which results exceed their limit.
fn limited(clamp: Clamp<()>, limits: Limits, requant: &Requant) -> Clamp<i32> {
    Clamp { relu: clamp.relu, most: clamp.most.map(|()| requant.largest_below(limits.high)) }
}

impl Arithmetic {
    /// The same for slots further on.
    fn advanced(self, slots: usize) -> Result<Self, Unsupported> {
        Ok(match self {
            Self::Int8 { operands, compensation, requant, clamp } => {
                Self::Int8 { operands: operands.plus(layout::operand_bytes(slots))?, compensation, requant, clamp }
            }
            Self::Fp16 { bias, clamp } => {
                let bias = bias.map(|bias| bias.plus(slots * size_of::<f32>())).transpose()?;
                Self::Fp16 { bias, clamp }
            }
            Self::Raw { .. } => self,
        })
    }
}
