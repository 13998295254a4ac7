//! A whole network: described layer by layer, planned without I/O, loaded once, run many times.
//!
//! ```text
//! NetworkBuilder ─build─▶ Network (tasks, packed weights) ─load─▶ Resident (buffers) ─run─▶ outputs
//! ```

use std::sync::Arc;
use std::time::Duration;

use npu_device::Device;

use crate::chip::{Chip, Operation};
use crate::emit::{Bases, Kind, words};
use crate::error::{Error, Result, Unsupported};
use crate::layer::{self, IntChannels, IntConv, Layer, LayerArithmetic, Tensor, Weights};
use crate::lower::{Arena, Lowered, PlannedTask};
use crate::ops::{Activation, Add, Bias, Conv2d, Depthwise, ElementType, Filter, Quant, Sums, Window};
use crate::run::{Resident, Sentinel};

/// Bytes from one register program to the next: whole cache lines for the longest one, and words that do nothing.
pub(crate) const PROGRAM_STRIDE: usize = 1152;

/// A tensor of a network under construction. Only valid with the builder that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorRef(usize);

/// Collects a network. Each call checks at once whether the NPU can do the operation.
///
/// # Panics
/// Every method panics where a tensor comes from another builder with more tensors.
#[derive(Clone, Debug)]
pub struct NetworkBuilder {
    chip: Chip,
    tensors: Vec<Tensor>,
    layers: Vec<Layer>,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

impl NetworkBuilder {
    /// A network without layers.
    pub fn new(chip: &Chip) -> Self {
        Self { chip: chip.clone(), tensors: Vec::new(), layers: Vec::new(), inputs: Vec::new(), outputs: Vec::new() }
    }

    /// A tensor that the caller provides, `[h, w, c]`, NHWC.
    ///
    /// # Errors
    /// Extents that the hardware's fields cannot hold, or a quantisation outside the element type.
    pub fn input(&mut self, shape: [usize; 3], element: ElementType, quant: Quant) -> Result<TensorRef, Unsupported> {
        let tensor = Tensor::new(&self.chip, shape, element, quant)?;
        readable(&tensor)?;
        let tensor = self.push_tensor(tensor);
        self.inputs.push(tensor.0);
        Ok(tensor)
    }

    /// Shape `[h, w, c]`, element type and quantisation of a tensor.
    pub fn tensor(&self, tensor: TensorRef) -> ([usize; 3], ElementType, Quant) {
        let tensor = &self.tensors[tensor.0];
        (tensor.shape, tensor.element, tensor.quant)
    }

    /// A convolution.
    ///
    /// # Errors
    /// What exceeds which limit.
    pub fn conv2d(&mut self, input: TensorRef, conv: &Conv2d<'_>) -> Result<TensorRef, Unsupported> {
        self.spread_conv2d(input, conv, [1, 1])
    }

    /// A convolution over inputs with zeros between them, `spread` steps apart: what a transposed one is.
    pub(crate) fn spread_conv2d(
        &mut self,
        input: TensorRef,
        conv: &Conv2d<'_>,
        spread: [usize; 2],
    ) -> Result<TensorRef, Unsupported> {
        let parts = Parts {
            kind: Kind::Direct,
            spread,
            window: conv.window,
            channels: conv.channels,
            filter: conv.filter,
            bias: conv.bias,
            output: conv.output,
            activation: conv.activation,
        };
        self.convolution(input, &parts)
    }

    /// A depthwise convolution. A multiplier above 1 is possible only for one input channel, which is a convolution.
    ///
    /// # Errors
    /// What exceeds which limit.
    pub fn depthwise(&mut self, input: TensorRef, conv: &Depthwise<'_>) -> Result<TensorRef, Unsupported> {
        let inputs = self.tensors[input.0].channels();
        let mut parts = Parts {
            kind: Kind::Depthwise,
            spread: [1, 1],
            window: conv.window,
            channels: inputs,
            filter: conv.filter,
            bias: conv.bias,
            output: conv.output,
            activation: conv.activation,
        };
        if conv.multiplier == 1 {
            return self.convolution(input, &parts);
        }
        if inputs != 1 || conv.multiplier == 0 {
            return Err(Unsupported::new(format!(
                "a channel multiplier of {} is not a mode of the hardware",
                conv.multiplier
            )));
        }
        let data = transposed(conv.filter.data, conv.multiplier, self.tensors[input.0].element.bytes());
        parts.kind = Kind::Direct;
        parts.channels = conv.multiplier;
        parts.filter.data = &data;
        self.convolution(input, &parts)
    }

    fn convolution(&mut self, input: TensorRef, parts: &Parts<'_>) -> Result<TensorRef, Unsupported> {
        let source = readable(&self.tensors[input.0])?;
        let element = source.element;
        self.chip.check(Operation::Convolution(parts.kind, element))?;
        if parts.spread != [1, 1] {
            self.chip.check(Operation::Transposed)?;
        }
        layer::check_spread(parts.kind, element, &parts.window, parts.spread)?;
        let grid = layer::grid(source.extents(), parts.spread);
        let [oh, ow] = layer::check_window(&self.chip, &parts.window, grid)?;
        layer::check_fit(&self.chip, parts.kind, source, &parts.window, parts.spread, [oh, ow])?;
        let output = Tensor::new(&self.chip, [oh, ow, parts.channels], element, parts.output)?;
        let taps = parts.window.kernel[0] * parts.window.kernel[1];
        let per_tap = match parts.kind {
            Kind::Direct => source.channels() * parts.channels,
            Kind::Depthwise => source.channels(),
        };
        layer::check_filter(parts.filter.data, taps * per_tap, element)?;
        let (weights, arithmetic) = if element.is_integer() {
            let Parts { kind, filter, bias, activation, .. } = parts;
            let conv =
                IntConv { kind: *kind, input: source, output: &output, taps, filter, bias, activation: *activation };
            let (weights, channels) = conv.prepare()?;
            self.check_channels(parts.kind, &channels)?;
            (Weights::Int8(weights), LayerArithmetic::Int8(channels))
        } else {
            (
                layer::half_weights(parts.filter.data),
                layer::prepare_fp16(&parts.bias, parts.activation, parts.channels)?,
            )
        };
        let Parts { kind, window, spread, .. } = *parts;
        let name = match kind {
            Kind::Direct => "conv",
            Kind::Depthwise => "depthwise",
        };
        let what = format!("{name} {:?} {:?} -> {:?}", window.kernel, source.shape, output.shape);
        let zero_points = [source.zero_point(), 0];
        let output = self.push_tensor(output);
        self.layers.push(Layer {
            what,
            kind,
            input: input.0,
            addend: None,
            output: output.0,
            window,
            spread,
            weights,
            arithmetic,
            zero_points,
        });
        Ok(output)
    }

    /// Checks that the chip can do with quantised channels what they ask for.
    fn check_channels(&self, kind: Kind, channels: &IntChannels) -> Result<(), Unsupported> {
        if layer::clamp(channels.limits, channels.offset)?.relu {
            self.chip.check(Operation::Limits)?;
        }
        if kind == Kind::Depthwise && !channels.zero_points.are_zero() {
            self.chip.check(Operation::DepthwiseZeroPoints)?;
        }
        Ok(())
    }

    /// The sums of a direct convolution as they are, which only an output can be: no operation reads them.
    ///
    /// # Errors
    /// What exceeds which limit.
    pub fn sums(&mut self, input: TensorRef, sums: &Sums<'_>) -> Result<TensorRef, Unsupported> {
        let source = readable(&self.tensors[input.0])?;
        self.chip.check(Operation::Sums(source.element))?;
        let Sums { window, channels, filter } = *sums;
        let [oh, ow] = layer::check_window(&self.chip, &window, source.extents())?;
        layer::check_fit(&self.chip, Kind::Direct, source, &window, [1, 1], [oh, ow])?;
        let taps = window.kernel[0] * window.kernel[1];
        layer::check_filter(filter, taps * source.channels() * channels, source.element)?;
        let (arithmetic, element) = layer::prepare_sums(source.element);
        let output = Tensor::new(&self.chip, [oh, ow, channels], element, Quant::NONE)?;
        let weights = match source.element.is_integer() {
            true => Weights::Int8(layer::signed_weights(filter, source.element)),
            false => layer::half_weights(filter),
        };
        let what = format!("sums {:?} {:?} -> {:?}", window.kernel, source.shape, output.shape);
        let zero_points = [source.zero_point(), 0];
        let output = self.push_tensor(output);
        self.layers.push(Layer {
            what,
            kind: Kind::Direct,
            input: input.0,
            addend: None,
            output: output.0,
            window,
            spread: [1, 1],
            weights,
            arithmetic,
            zero_points,
        });
        Ok(output)
    }

    /// The sum of two tensors of one shape.
    ///
    /// # Errors
    /// What exceeds which limit.
    pub fn add(&mut self, a: TensorRef, b: TensorRef, add: &Add) -> Result<TensorRef, Unsupported> {
        let [first, second] = [a, b].map(|tensor| &self.tensors[tensor.0]);
        readable(first)?;
        self.chip.check(Operation::Addition)?;
        if first.shape != second.shape || first.element != second.element {
            return Err(Unsupported::new(format!(
                "the sum of {:?}{:?} and {:?}{:?}",
                first.element, first.shape, second.element, second.shape
            )));
        }
        let output = Tensor::new(&self.chip, first.shape, first.element, add.output)?;
        let arithmetic = layer::prepare_add([first, second], &output, add.activation)?;
        self.point(a, Some(b), output, arithmetic, "add")
    }

    /// The same numbers in another quantisation or 8-bit element type, or clamped.
    ///
    /// # Errors
    /// What exceeds which limit.
    pub fn requantize(
        &mut self,
        input: TensorRef,
        element: ElementType,
        output: Quant,
        activation: Activation,
    ) -> Result<TensorRef, Unsupported> {
        let source = &self.tensors[input.0];
        readable(source)?;
        self.chip.check(Operation::Copy)?;
        if source.element.bytes() != element.bytes() {
            return Err(Unsupported::new(format!("a conversion from {:?} to {element:?}", source.element)));
        }
        let output = Tensor::new(&self.chip, source.shape, element, output)?;
        let arithmetic = if element.is_integer() {
            layer::prepare_requantize(source, &output, activation)?
        } else {
            LayerArithmetic::Fp16 { bias: None, clamp: layer::fp16_clamp(activation)? }
        };
        self.point(input, None, output, arithmetic, "requantize")
    }

    /// A convolution of one tap that keeps every channel, and what follows it.
    fn point(
        &mut self,
        input: TensorRef,
        addend: Option<TensorRef>,
        output: Tensor,
        arithmetic: LayerArithmetic,
        name: &str,
    ) -> Result<TensorRef, Unsupported> {
        let source = &self.tensors[input.0];
        layer::check_fit(&self.chip, Kind::Direct, source, &Window::POINT, [1, 1], output.extents())?;
        let what = format!("{name} {:?}", output.shape);
        let second = addend.map_or(0, |addend| self.tensors[addend.0].zero_point());
        let zero_points = [source.zero_point(), second];
        let output = self.push_tensor(output);
        self.layers.push(Layer {
            what,
            kind: Kind::Direct,
            input: input.0,
            addend: addend.map(|addend| addend.0),
            output: output.0,
            window: Window::POINT,
            spread: [1, 1],
            weights: Weights::Identity,
            arithmetic,
            zero_points,
        });
        Ok(output)
    }

    fn push_tensor(&mut self, tensor: Tensor) -> TensorRef {
        self.tensors.push(tensor);
        TensorRef(self.tensors.len() - 1)
    }

    /// Makes a tensor an output of the network. Outputs come in the order of these calls.
    pub fn output(&mut self, tensor: TensorRef) {
        self.outputs.push(tensor.0);
    }

    /// Plans the network.
    ///
    /// # Errors
    /// [`Error::Layer`] where a layer does not fit after all, [`Error::Empty`] without layers or outputs,
    /// [`Error::TooLarge`] where buffers exceed the address space.
    pub fn build(self) -> Result<Network> {
        if self.layers.is_empty() {
            return Err(Error::Empty("layers"));
        }
        if self.outputs.is_empty() {
            return Err(Error::Empty("outputs"));
        }
        let arena = Arena::new(&self.chip, &self.tensors, &self.layers);
        let lowered = Lowered::new(&self.chip, &self.layers, &arena)?;
        for (index, planned) in lowered.tasks.iter().enumerate() {
            // A value that does not fit its register shows here; addresses always fit.
            planned
                .task
                .program(self.chip.layout, &Bases::default())
                .map_err(|source| Error::Register { task: index, source })?;
        }
        let jobs = jobs(&self.chip, &lowered.tasks);
        let report = report(&self.chip, &self.layers, &lowered, &arena, &jobs);
        let sentinels = sentinels(&lowered.tasks, &arena);
        Ok(Network {
            plan: Arc::new(Plan {
                chip: self.chip,
                arena,
                tasks: lowered.tasks,
                constants: lowered.constants,
                jobs,
                inputs: self.inputs,
                outputs: self.outputs,
                sentinels,
                report,
            }),
        })
    }
}

/// Refuses a tensor of sums where an operation would read it.
fn readable(tensor: &Tensor) -> Result<&Tensor, Unsupported> {
    match tensor.element.bytes() {
        4 => Err(Unsupported::new(format!("no operation reads {:?}, it can only be an output", tensor.element))),
        _ => Ok(tensor),
    }
}

/// What both kinds of convolution have.
struct Parts<'a> {
    kind: Kind,
    /// Steps between inputs, with zeros between them.
    spread: [usize; 2],
    window: Window,
    channels: usize,
    filter: Filter<'a>,
    bias: Bias<'a>,
    output: Quant,
    activation: Activation,
}

/// `[tap, channel]` as `[channel, tap]`.
fn transposed(data: &[u8], channels: usize, size: usize) -> Vec<u8> {
    let taps = data.len() / (channels * size);
    let element = |channel, tap| &data[(tap * channels + channel) * size..][..size];
    (0..channels).flat_map(|channel| (0..taps).flat_map(move |tap| element(channel, tap))).copied().collect()
}

/// Everything that is known of a network without a device.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) chip: Chip,
    pub(crate) arena: Arena,
    pub(crate) tasks: Vec<PlannedTask>,
    pub(crate) constants: Vec<u8>,
    /// Tasks of each job.
    pub(crate) jobs: Vec<std::ops::Range<usize>>,
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<usize>,
    pub(crate) sentinels: Vec<Sentinel>,
    pub(crate) report: NetworkReport,
}

/// Splits the tasks into jobs whose modelled time is a safe part of the watchdog.
fn jobs(chip: &Chip, tasks: &[PlannedTask]) -> Vec<std::ops::Range<usize>> {
    let mut jobs: Vec<std::ops::Range<usize>> = Vec::new();
    let mut time = Duration::ZERO;
    for (index, task) in tasks.iter().enumerate() {
        let more = task.cost.time + chip.task_overhead;
        match jobs.last_mut() {
            Some(job) if time + more <= chip.job_budget && job.len() < chip.max_tasks => {
                job.end = index + 1;
                time += more;
            }
            _ => {
                jobs.push(index..index + 1);
                time = more;
            }
        }
    }
    jobs
}

/// Where the hardware must write: every pixel of every plane of every task, so that a single lost burst shows.
fn sentinels(tasks: &[PlannedTask], arena: &Arena) -> Vec<Sentinel> {
    let mut sentinels = Vec::new();
    for (task, planned) in tasks.iter().enumerate() {
        let cube = &arena.cubes[planned.tensor];
        for plane in planned.planes.clone() {
            let offset = arena.offsets[planned.tensor] + cube.offset(plane, planned.pixels.start);
            sentinels.push(Sentinel { offset, layer: planned.layer, task, plane, pixels: planned.pixels.clone() });
        }
    }
    sentinels
}

fn report(
    chip: &Chip,
    layers: &[Layer],
    lowered: &Lowered,
    arena: &Arena,
    jobs: &[std::ops::Range<usize>],
) -> NetworkReport {
    let mut per_layer: Vec<LayerReport> = layers
        .iter()
        .zip(&lowered.shapes)
        .map(|(layer, &[bands, blocks])| LayerReport {
            what: layer.what.clone(),
            bands,
            blocks,
            dead_channels: match &layer.arithmetic {
                LayerArithmetic::Int8(channels) => channels.dead(),
                LayerArithmetic::Pair(..) | LayerArithmetic::Fp16 { .. } | LayerArithmetic::Sums(_) => 0,
            },
            slots: arena.cubes[layer.output].slots.len(),
            ..LayerReport::default()
        })
        .collect();
    for task in &lowered.tasks {
        let layer = &mut per_layer[task.layer];
        layer.tasks += 1;
        layer.macs += task.cost.macs;
        layer.bytes_moved += task.cost.bytes;
        layer.predicted += task.cost.time + chip.task_overhead;
    }
    // CAST: counts and sizes, widening.
    let tasks = lowered.tasks.len();
    NetworkReport {
        layers: layers.len(),
        jobs: jobs.len(),
        tasks,
        macs: per_layer.iter().map(|layer| layer.macs).sum(),
        weight_bytes: lowered.constants.len() as u64,
        activation_bytes: arena.bytes as u64,
        regcmd_bytes: (tasks * words(chip.layout) as usize * size_of::<u64>()) as u64,
        bytes_moved: per_layer.iter().map(|layer| layer.bytes_moved).sum(),
        predicted: per_layer.iter().map(|layer| layer.predicted).sum::<Duration>()
            + chip.job_overhead * u32::try_from(jobs.len()).unwrap_or(u32::MAX),
        per_layer,
    }
}

/// A planned network: tasks, packed weights and layouts. Clones share them.
#[derive(Clone, Debug)]
pub struct Network {
    plan: Arc<Plan>,
}

impl Network {
    /// What the plan costs.
    pub fn report(&self) -> &NetworkReport {
        &self.plan.report
    }

    /// Allocates buffers on `device`, and writes weights, operands and register programs there.
    ///
    /// # Errors
    /// [`Error::Device`] where the device refuses, [`Error::TooLarge`].
    pub fn load(&self, device: &Arc<dyn Device>) -> Result<Resident> {
        self.load_as(device, device.info().has_batched_submit())
    }

    /// Loads it with or without links from program to program.
    pub(crate) fn load_as(&self, device: &Arc<dyn Device>, batched: bool) -> Result<Resident> {
        Resident::load(Arc::clone(&self.plan), device, batched)
    }

    /// The register programs in words, one register a line, for buffers at address 0: for people and for tests.
    pub fn listing(&self) -> String {
        let mut text = String::new();
        for (index, planned) in self.plan.tasks.iter().enumerate() {
            text += &format!("task {index}, layer {}\n", planned.layer);
            let layout = self.plan.chip.layout;
            if let Ok(program) = planned.task.program(layout, &Bases::default()) {
                program.words().iter().for_each(|word| text += &format!("{}\n", word.text(layout)));
            }
        }
        text
    }
}

/// What a planned network costs. Times are of a model, not measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkReport {
    /// Layers on the NPU.
    pub layers: usize,
    /// Jobs of one run.
    pub jobs: usize,
    /// Tasks of one run.
    pub tasks: usize,
    /// Multiply-accumulates, padding included.
    pub macs: u64,
    /// Bytes of packed weights and operands.
    pub weight_bytes: u64,
    /// Bytes of inputs, intermediates and outputs on the device.
    pub activation_bytes: u64,
    /// Bytes of register programs.
    pub regcmd_bytes: u64,
    /// Bytes that the NPU reads and writes in one run.
    pub bytes_moved: u64,
    /// Modelled time of the jobs of one run.
    pub predicted: Duration,
    /// One entry per layer.
    pub per_layer: Vec<LayerReport>,
}

/// What a layer costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerReport {
    /// Kind and shapes, for people.
    pub what: String,
    /// Tasks.
    pub tasks: usize,
    /// Row bands.
    pub bands: usize,
    /// Channel blocks.
    pub blocks: usize,
    /// Multiply-accumulates, padding included.
    pub macs: u64,
    /// Bytes that the NPU reads and writes.
    pub bytes_moved: u64,
    /// Modelled time.
    pub predicted: Duration,
    /// Physical channels of the output.
    pub slots: usize,
    /// Output channels that are constant and were computed by the planner.
    pub dead_channels: usize,
}

#[cfg(test)]
mod tests {
    use expect_test::{ExpectFile, expect_file};
    use npu_regs::Layout;

    use super::*;
    use crate::ops::Padding;

    const QUANT: Quant = Quant { scale: 0.5, zero_point: 3 };

    fn window(kernel: usize, stride: usize, pad: usize) -> Window {
        let padding = Padding { top: pad, bottom: pad, left: pad, right: pad };
        Window { kernel: [kernel; 2], stride: [stride; 2], dilation: [1; 2], padding }
    }

    fn filter<'a>(data: &'a [u8], scales: &'a [f32]) -> Filter<'a> {
        Filter { data, scales, zero_points: &[] }
    }

    fn conv<'a>(filter: Filter<'a>, window: Window, channels: usize) -> Conv2d<'a> {
        let (bias, output, activation) = (Bias::None, QUANT, Activation::None);
        Conv2d { window, channels, filter, bias, output, activation }
    }

    fn depthwise(filter: Filter<'_>, window: Window) -> Depthwise<'_> {
        let (bias, output, activation) = (Bias::None, QUANT, Activation::Relu);
        Depthwise { window, multiplier: 1, filter, bias, output, activation }
    }

    fn input(builder: &mut NetworkBuilder, shape: [usize; 3]) -> TensorRef {
        builder.input(shape, ElementType::I8, QUANT).unwrap()
    }

    /// Compares the programs of a network of one operation with the golden text.
    fn check(
        golden: ExpectFile,
        shape: [usize; 3],
        describe: impl Fn(&mut NetworkBuilder, TensorRef) -> Result<TensorRef, Unsupported>,
    ) {
        let mut builder = NetworkBuilder::new(&Chip::RK3588);
        let tensor = input(&mut builder, shape);
        let output = describe(&mut builder, tensor).unwrap();
        builder.output(output);
        golden.assert_eq(&builder.build().unwrap().listing());
    }

    #[test]
    fn a_direct_convolution_of_few_channels_reads_one_plane() {
        check(expect_file!["../golden/conv.txt"], [8, 10, 3], |builder, tensor| {
            builder.conv2d(tensor, &conv(filter(&[5; 9 * 3 * 24], &[0.01]), window(3, 2, 1), 24))
        });
    }

    #[test]
    fn a_depthwise_convolution_is_padded_to_whole_groups() {
        check(expect_file!["../golden/depthwise.txt"], [3, 3, 40], |builder, tensor| {
            builder.depthwise(tensor, &depthwise(filter(&[7; 9 * 40], &[0.01]), window(3, 1, 1)))
        });
    }

    #[test]
    fn a_sum_is_an_identity_convolution_with_an_addend() {
        check(expect_file!["../golden/add.txt"], [4, 5, 32], |builder, tensor| {
            let other =
                builder.requantize(tensor, ElementType::I8, Quant { scale: 0.7, zero_point: -9 }, Activation::None)?;
            builder.add(tensor, other, &Add { output: QUANT, activation: Activation::None })
        });
    }

    #[test]
    fn every_program_has_126_words_and_its_link_at_122() {
        let mut builder = NetworkBuilder::new(&Chip::RK3588);
        let tensor = input(&mut builder, [90, 90, 64]);
        let tensor = builder.conv2d(tensor, &conv(filter(&[1; 25 * 64 * 8], &[0.01]), window(5, 1, 2), 8)).unwrap();
        let tensor = builder.depthwise(tensor, &depthwise(filter(&[1; 9 * 8], &[0.01]), window(3, 1, 1))).unwrap();
        builder.output(tensor);
        let network = builder.build().unwrap();
        assert!(network.report().tasks > 2, "the first layer has bands");
        for planned in &network.plan.tasks {
            let program = planned.task.program(Layout::Rk3588, &Bases::default()).unwrap();
            assert_eq!(program.words().len(), words(Layout::Rk3588) as usize);
            assert_eq!(program.words()[122], npu_regs::Word::NOP);
            assert_eq!(program.words()[124], npu_regs::Word::MARKER);
        }
    }

    fn refused(describe: impl Fn(&mut NetworkBuilder) -> Result<TensorRef, Unsupported>) -> String {
        describe(&mut NetworkBuilder::new(&Chip::RK3588)).unwrap_err().what
    }

    #[test]
    fn what_exceeds_a_field_is_refused_by_its_name() {
        let convolve = |shape: [usize; 3], window: Window| {
            refused(move |builder| {
                let tensor = builder.input(shape, ElementType::I8, QUANT)?;
                let data = vec![1; window.kernel[0] * window.kernel[1] * shape[2]];
                builder.conv2d(tensor, &conv(filter(&data, &[0.01]), window, 1))
            })
        };
        assert_eq!(convolve([8, 2048, 3], window(1, 1, 0)), "width 2048 exceeds 2047");
        assert_eq!(convolve([40, 40, 3], window(32, 1, 0)), "vertical kernel extent 32 exceeds 31");
        assert_eq!(convolve([40, 40, 3], window(3, 8, 0)), "vertical stride 8 exceeds 7");
        assert_eq!(convolve([40, 40, 3], window(17, 1, 16)), "vertical padding 16 exceeds 15");
        assert_eq!(convolve([2, 2, 3], window(3, 1, 0)), "a window of 3 does not fit 2 padded pixels");
        assert_eq!(convolve([9, 9, 600], window(9, 1, 0)), "a kernel's byte count 51840 exceeds 32768");
        assert_eq!(
            convolve([9, 9, 600], window(7, 1, 0)),
            "1003520 bytes of weights leave no CBUF bank of 12 for features"
        );
        let dilated = Window { dilation: [33, 1], ..window(2, 1, 0) };
        assert_eq!(convolve([40, 40, 3], dilated), "vertical dilation 33 exceeds 32");
    }

    #[test]
    fn lists_of_the_wrong_length_are_refused() {
        let convolve = |bytes: usize, scales: &[f32], zero_points: &[i32], bias: &[i32]| {
            refused(|builder| {
                let tensor = builder.input([4, 4, 2], ElementType::I8, QUANT)?;
                let filter = Filter { data: &vec![1; bytes], scales, zero_points };
                let bias = Bias::I32(bias);
                builder.conv2d(tensor, &Conv2d { bias, ..conv(filter, window(1, 1, 0), 3) })
            })
        };
        assert_eq!(convolve(5, &[0.1], &[], &[0; 3]), "the filter has 5 bytes, its shape 6");
        assert_eq!(convolve(6, &[0.1; 2], &[], &[0; 3]), "2 filter scales for 3 channels");
        assert_eq!(convolve(6, &[0.1], &[0; 3], &[0; 3]), "3 filter zero points for 1 scales");
        assert_eq!(convolve(6, &[0.1], &[], &[0; 2]), "2 biases for 3 channels");
        assert_eq!(convolve(6, &[0.1], &[200], &[0; 3]), "filter zero point 200 is outside the element type");
        assert_eq!(convolve(6, &[f32::NAN], &[], &[0; 3]), "the scale of channel 0 is not a positive number");
    }

    #[test]
    fn what_the_hardware_has_no_mode_for_is_refused() {
        let multiplied = refused(|builder| {
            let tensor = input(builder, [4, 4, 2]);
            let conv = depthwise(filter(&[1; 4], &[0.01]), window(1, 1, 0));
            builder.depthwise(tensor, &Depthwise { multiplier: 2, ..conv })
        });
        assert_eq!(multiplied, "a channel multiplier of 2 is not a mode of the hardware");
        let limited = refused(|builder| {
            let tensor = input(builder, [4, 4, 2]);
            builder.requantize(tensor, ElementType::I8, Quant { scale: 0.1, zero_point: 3 }, Activation::ReluN1To1)
        });
        assert_eq!(limited, "the lower limit -7 of the activation is not the zero point 3");
        let broadcast = refused(|builder| {
            let (a, b) = (input(builder, [4, 4, 2]), input(builder, [1, 1, 2]));
            builder.add(a, b, &Add { output: QUANT, activation: Activation::None })
        });
        assert_eq!(broadcast, "the sum of I8[4, 4, 2] and I8[1, 1, 2]");
    }

    #[test]
    fn a_network_without_layers_or_outputs_is_refused() {
        let mut builder = NetworkBuilder::new(&Chip::RK3588);
        let tensor = input(&mut builder, [4, 4, 2]);
        assert!(matches!(builder.clone().build(), Err(Error::Empty("layers"))));
        builder.requantize(tensor, ElementType::I8, QUANT, Activation::None).unwrap();
        assert!(matches!(builder.build(), Err(Error::Empty("outputs"))));
    }

    #[test]
    fn a_depthwise_convolution_of_one_channel_may_have_a_multiplier() {
        let mut builder = NetworkBuilder::new(&Chip::RK3588);
        let tensor = input(&mut builder, [4, 4, 1]);
        let conv = depthwise(filter(&[1; 9 * 5], &[0.01]), window(3, 1, 1));
        let output = builder.depthwise(tensor, &Depthwise { multiplier: 5, ..conv }).unwrap();
        assert_eq!(builder.tensor(output).0, [4, 4, 5]);
    }
}
