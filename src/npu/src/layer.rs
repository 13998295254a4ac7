//! From what a caller says of an operation to what the planner works with: checked extents, weights as the 8-bit datapath
//! sees them, and what every output channel needs.

use crate::chip::Chip;
use crate::emit::{Clamp, Datapath, Kind};
use crate::error::Unsupported;
use crate::layout;
use crate::matmul::numbers::{Product, Stored};
use crate::ops::{Activation, Bias, ElementType, Filter, Quant, Window};
use crate::quantize::{Channel, Limits, PairPlan, plan_pair};
use crate::quirks;
use crate::slots::Demand;
use crate::tile::Geometry;

/// A tensor of the network.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    /// `[h, w, c]`.
    pub(crate) shape: [usize; 3],
    pub(crate) element: ElementType,
    pub(crate) quant: Quant,
}

impl Tensor {
    /// Checks what any reader of the tensor needs.
    pub(crate) fn new(chip: &Chip, shape: [usize; 3], element: ElementType, quant: Quant) -> Result<Self, Unsupported> {
        at_most("width", shape[1], chip.max_width)?;
        at_most("channel count", shape[2], chip.max_output - layout::depthwise_group(element))?;
        Self::of_any_size(shape, element, quant)
    }

    /// Checks what a tensor that is cut before anything reads it needs.
    pub(crate) fn of_any_size(shape: [usize; 3], element: ElementType, quant: Quant) -> Result<Self, Unsupported> {
        if shape.contains(&0) {
            return Err(Unsupported::new(format!("a tensor of shape {shape:?} is empty")));
        }
        let tensor = Self { shape, element, quant };
        if element.is_integer() {
            let centred = tensor.zero_point();
            if i8::try_from(centred).is_err() {
                return Err(Unsupported::new(format!("zero point {} is outside {element:?}", quant.zero_point)));
            }
            if !(quant.scale.is_normal() && quant.scale > 0.0) {
                return Err(Unsupported::new(format!("tensor scale {} is not a positive number", quant.scale)));
            }
        }
        Ok(tensor)
    }

    pub(crate) fn extents(&self) -> [usize; 2] {
        [self.shape[0], self.shape[1]]
    }

    pub(crate) fn channels(&self) -> usize {
        self.shape[2]
    }

    /// The zero point as the signed datapath sees it.
    pub(crate) fn zero_point(&self) -> i32 {
        self.quant.zero_point - self.element.centre()
    }

    fn scale(&self) -> f64 {
        f64::from(self.quant.scale)
    }
}

/// An operation of the network.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) what: String,
    pub(crate) kind: Kind,
    pub(crate) input: usize,
    /// A second tensor that is added.
    pub(crate) addend: Option<usize>,
    pub(crate) output: usize,
    pub(crate) window: Window,
    /// Steps between inputs of a transposed convolution; 1 otherwise.
    pub(crate) spread: [usize; 2],
    pub(crate) weights: Weights,
    pub(crate) arithmetic: LayerArithmetic,
    /// Zero points of the input and of the addend, as the signed datapath sees them.
    pub(crate) zero_points: [i32; 2],
}

/// Weights by logical channel.
#[derive(Clone, Debug)]
pub(crate) enum Weights {
    /// Signed bytes: `[out, tap, in]`, or `[tap, channel]` for a depthwise layer.
    Int8(Vec<i8>),
    /// Half-precision numbers in the same order.
    Fp16(Vec<[u8; 2]>),
    /// One where input and output channel are the same.
    Identity,
}

/// What happens to the sums of a layer.
#[derive(Clone, Debug)]
pub(crate) enum LayerArithmetic {
    Int8(IntChannels),
    Pair(PairPlan, Clamp<()>, Limits),
    Fp16 {
        bias: Option<Vec<f32>>,
        clamp: Clamp<f32>,
    },
    /// Sums as they are.
    Sums(Datapath),
}

/// The output channels of a quantised layer.
#[derive(Clone, Debug)]
pub(crate) struct IntChannels {
    /// Range and multiplier of each.
    pub(crate) channels: Vec<Channel>,
    /// What is added to each, the input's zero point included.
    pub(crate) addends: Vec<i32>,
    /// Weight zero point of each, or one for all.
    pub(crate) zero_points: ZeroPoints,
    /// The output's zero point.
    pub(crate) offset: i32,
    pub(crate) limits: Limits,
    /// The result of each channel that has only one.
    pub(crate) constants: Vec<Option<i32>>,
}

/// Weight zero points as the signed datapath sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ZeroPoints {
    Tensor(i32),
    PerChannel(Vec<i32>),
}

impl ZeroPoints {
    pub(crate) fn are_zero(&self) -> bool {
        match self {
            Self::Tensor(zero_point) => *zero_point == 0,
            Self::PerChannel(zero_points) => zero_points.iter().all(|zero_point| *zero_point == 0),
        }
    }

    fn of(&self, channel: usize) -> i32 {
        match self {
            Self::Tensor(zero_point) => *zero_point,
            Self::PerChannel(zero_points) => zero_points[channel],
        }
    }
}

impl IntChannels {
    /// What the channels ask of those with which they share a task.
    pub(crate) fn demand(&self) -> Demand {
        let live = |(channel, constant): (&Channel, &Option<i32>)| constant.is_none().then_some(*channel);
        let live: Vec<Option<Channel>> = self.channels.iter().zip(&self.constants).map(live).collect();
        Demand {
            multiplier: live.iter().map(|channel| channel.map_or(0.0, |channel| channel.multiplier)).collect(),
            tolerates: live
                .iter()
                .map(|channel| channel.map_or(f64::INFINITY, |channel| channel.tolerates()))
                .collect(),
        }
    }

    pub(crate) fn dead(&self) -> usize {
        self.constants.iter().flatten().count()
    }
}

/// Refuses a value that its register field cannot hold.
fn at_most(what: &str, value: usize, limit: usize) -> Result<(), Unsupported> {
    if value > limit {
        return Err(Unsupported::new(format!("{what} {value} exceeds {limit}")));
    }
    Ok(())
}

/// Names of axes.
const AXES: [&str; 2] = ["vertical", "horizontal"];

/// Checks kernel, stride and dilation against the fields that hold them.
pub(crate) fn check_kernel(chip: &Chip, window: &Window) -> Result<(), Unsupported> {
    for (axis, name) in AXES.into_iter().enumerate() {
        at_most(&format!("{name} kernel extent"), window.kernel[axis], chip.max_kernel)?;
        at_most(&format!("{name} stride"), window.stride[axis], chip.max_stride)?;
        at_most(&format!("{name} dilation"), window.dilation[axis], chip.max_dilation)?;
    }
    Ok(())
}

/// Checks a window against the fields that hold it, and gives the output extents.
pub(crate) fn check_window(chip: &Chip, window: &Window, input: [usize; 2]) -> Result<[usize; 2], Unsupported> {
    let output = window.output(input)?;
    check_kernel(chip, window)?;
    let pads = [window.padding.top, window.padding.left];
    let ends = [window.padding.bottom, window.padding.right];
    for (axis, name) in AXES.into_iter().enumerate() {
        let span = window.span(axis);
        at_most(&format!("{name} padding"), pads[axis], chip.max_pad)?;
        if pads[axis].max(ends[axis]) >= span {
            return Err(Unsupported::new(format!("{name} padding leaves a window of {span} wholly outside the input")));
        }
    }
    at_most("output width", output[1], chip.max_width)?;
    Ok(output)
}

/// Extents that windows move over: those of the input, with zeros between its rows and columns.
pub(crate) fn grid([h, w]: [usize; 2], spread: [usize; 2]) -> [usize; 2] {
    [h.saturating_sub(1) * spread[0] + h.min(1), w.saturating_sub(1) * spread[1] + w.min(1)]
}

/// Checks that the hardware can put zeros between inputs.
pub(crate) fn check_spread(
    kind: Kind,
    element: ElementType,
    window: &Window,
    spread: [usize; 2],
) -> Result<(), Unsupported> {
    if spread == [1, 1] {
        return Ok(());
    }
    let known = matches!(spread, [2, 2] | [4, 4] | [8, 8] | [2, 1]);
    if !known || window.stride != [1, 1] || window.dilation != [1, 1] {
        let dilation = window.dilation;
        return Err(Unsupported::new(format!("a transposed convolution with steps {spread:?}, dilation {dilation:?}")));
    }
    if kind == Kind::Depthwise || element != ElementType::F16 {
        return Err(Unsupported::new(format!("a {kind:?} transposed convolution of {element:?}")));
    }
    quirks::check_transposed_padding(spread, [window.padding.top, window.padding.left])
}

/// Checks that a layer fits CBUF. The slots are not known yet, so the channels count as padded to a depthwise group.
pub(crate) fn check_fit(
    chip: &Chip,
    kind: Kind,
    input: &Tensor,
    window: &Window,
    spread: [usize; 2],
    output: [usize; 2],
) -> Result<(), Unsupported> {
    let element = input.element;
    let group = layout::depthwise_group(element);
    let slots = match kind {
        Kind::Direct => input.channels().next_multiple_of(group),
        Kind::Depthwise => group,
    };
    let kernel_bytes = window.kernel[0] * window.kernel[1] * slots * element.bytes();
    let weight_bytes = match kind {
        Kind::Direct => {
            at_most("a kernel's byte count", kernel_bytes, chip.max_kernel_bytes)?;
            kernel_bytes * layout::kernel_group(element)
        }
        Kind::Depthwise => kernel_bytes,
    };
    let geometry = Geometry {
        input: input.extents(),
        output,
        window: *window,
        spread,
        pixel_bytes: slots * element.bytes(),
        weight_bytes,
        slack_banks: chip.free_banks(element),
    };
    geometry.bands(chip).map(drop)
}

/// The limits that TFLite gives a quantised output.
fn limits(activation: Activation, output: &Tensor) -> Limits {
    let quantised = |real: f64| {
        // CAST: saturates, which the clamp below repeats.
        (real / output.scale()).round() as i32 + output.zero_point()
    };
    let clamp = |value: i32| value.clamp(Limits::NONE.low, Limits::NONE.high);
    match activation {
        Activation::None => Limits::NONE,
        Activation::Relu => Limits { low: clamp(quantised(0.0)), high: Limits::NONE.high },
        Activation::ReluN1To1 => Limits { low: clamp(quantised(-1.0)), high: clamp(quantised(1.0)) },
        Activation::Relu6 => Limits { low: clamp(quantised(0.0)), high: clamp(quantised(6.0)) },
    }
}

/// How the hardware keeps to `limits` beside its saturation: 0 before the output converter is the zero point after it.
pub(crate) fn clamp(limits: Limits, offset: i32) -> Result<Clamp<()>, Unsupported> {
    if limits == Limits::NONE {
        return Ok(Clamp::default());
    }
    if limits.low != offset {
        return Err(Unsupported::new(format!(
            "the lower limit {} of the activation is not the zero point {offset}",
            limits.low
        )));
    }
    // With the zero point at the lowest value, saturation does the rest.
    let relu = limits.low > Limits::NONE.low || limits.high < Limits::NONE.high;
    Ok(Clamp { relu, most: (limits.high < Limits::NONE.high).then_some(()) })
}

/// The quantised channels of a convolution with `taps × inputs` weights per channel, and its weights.
pub(crate) struct IntConv<'a> {
    pub(crate) kind: Kind,
    pub(crate) input: &'a Tensor,
    pub(crate) output: &'a Tensor,
    pub(crate) taps: usize,
    pub(crate) filter: &'a Filter<'a>,
    pub(crate) bias: &'a Bias<'a>,
    pub(crate) activation: Activation,
}

impl IntConv<'_> {
    /// Checks and prepares.
    ///
    /// # Errors
    /// Lists of the wrong length, zero points outside the type, sums outside 32 bits, limits that cannot be kept.
    pub(crate) fn prepare(&self) -> Result<(Vec<i8>, IntChannels), Unsupported> {
        let outputs = self.output.channels();
        let scales = self.scales()?;
        let weights = signed_weights(self.filter.data, self.input.element);
        let (ranges, zero_points) = self.ranges(&weights)?;
        let offset = self.output.zero_point();
        let limits = limits(self.activation, self.output);
        clamp(limits, offset)?;
        let mut channels = Vec::with_capacity(outputs);
        let mut addends = Vec::with_capacity(outputs);
        let mut constants = Vec::with_capacity(outputs);
        for (index, range) in ranges.into_iter().enumerate() {
            let multiplier = self.input.scale() * scales(index) / self.output.scale();
            if !(multiplier.is_finite() && multiplier > 0.0) {
                return Err(Unsupported::new(format!("the scale of channel {index} is not a positive number")));
            }
            let channel = Channel { multiplier, low: range.low, high: range.high };
            let constant = channel.constant(offset, limits);
            // The sums of a constant channel are never computed.
            if constant.is_none() && !range.fits() {
                return Err(Unsupported::new(format!("the sums of channel {index} exceed 32 bits")));
            }
            channels.push(channel);
            // CAST: fits, or is not used.
            addends.push(range.addend as i32);
            constants.push(constant);
        }
        Ok((weights, IntChannels { channels, addends, zero_points, offset, limits, constants }))
    }

    /// What is added to each channel's sums, what they can then be, and the weight zero points.
    ///
    /// # Errors
    /// Lists of the wrong length, zero points outside the type.
    pub(crate) fn ranges(&self, weights: &[i8]) -> Result<(Vec<Range>, ZeroPoints), Unsupported> {
        self.scales().map(drop)?;
        let (zero_points, bias) = (self.zero_points()?, self.bias()?);
        let ranges = self.sums(weights, &zero_points).into_iter().enumerate().map(|(index, sum)| {
            let bias = bias.map_or(0, |bias| i64::from(bias[index]));
            let addend = bias - i64::from(self.input.zero_point()) * sum.total;
            Range { addend, low: sum.low + bias, high: sum.high + bias }
        });
        Ok((ranges.collect(), zero_points))
    }

    fn weights_per_channel(&self) -> usize {
        match self.kind {
            Kind::Direct => self.taps * self.input.channels(),
            Kind::Depthwise => self.taps,
        }
    }

    fn scales(&self) -> Result<impl Fn(usize) -> f64, Unsupported> {
        let (scales, outputs) = (self.filter.scales, self.output.channels());
        if scales.len() != 1 && scales.len() != outputs {
            return Err(Unsupported::new(format!("{} filter scales for {outputs} channels", scales.len())));
        }
        Ok(move |channel| f64::from(scales[if scales.len() == 1 { 0 } else { channel }]))
    }

    fn zero_points(&self) -> Result<ZeroPoints, Unsupported> {
        let given = self.filter.zero_points;
        let centre = self.input.element.centre();
        if !given.is_empty() && given.len() != self.filter.scales.len() {
            return Err(Unsupported::new(format!(
                "{} filter zero points for {} scales",
                given.len(),
                self.filter.scales.len()
            )));
        }
        let centred: Vec<i32> = given.iter().map(|zero_point| zero_point.wrapping_sub(centre)).collect();
        if let Some(outside) = centred.iter().find(|&&zero_point| i8::try_from(zero_point).is_err()) {
            return Err(Unsupported::new(format!("filter zero point {outside} is outside the element type")));
        }
        let first = centred.first().copied().unwrap_or(-centre);
        if centred.iter().all(|&zero_point| zero_point == first) {
            return Ok(ZeroPoints::Tensor(first));
        }
        Ok(ZeroPoints::PerChannel(centred))
    }

    fn bias(&self) -> Result<Option<&[i32]>, Unsupported> {
        match *self.bias {
            Bias::None => Ok(None),
            Bias::I32(bias) if bias.len() == self.output.channels() => Ok(Some(bias)),
            Bias::I32(bias) => {
                Err(Unsupported::new(format!("{} biases for {} channels", bias.len(), self.output.channels())))
            }
            Bias::F32(_) => Err(Unsupported::new("a real bias for quantised numbers")),
        }
    }

    fn sums(&self, weights: &[i8], zero_points: &ZeroPoints) -> Vec<Sum> {
        let ends = [-128, 127].map(|end| end - i64::from(self.input.zero_point()));
        let outputs = self.output.channels();
        let mut sums = vec![Sum::default(); outputs];
        for (at, &weight) in weights.iter().enumerate() {
            let channel = match self.kind {
                Kind::Direct => at / self.weights_per_channel(),
                Kind::Depthwise => at % outputs,
            };
            let weight = i64::from(weight) - i64::from(zero_points.of(channel));
            let products = ends.map(|end| weight * end);
            let sum = &mut sums[channel];
            sum.total += weight;
            sum.low += products[0].min(products[1]);
            sum.high += products[0].max(products[1]);
        }
        sums
    }
}

/// Weights as signed bytes, in the caller's order.
pub(crate) fn signed_weights(data: &[u8], element: ElementType) -> Vec<i8> {
    let flip = if element == ElementType::U8 { 0x80 } else { 0 };
    data.iter().map(|byte| (byte ^ flip).cast_signed()).collect()
}

/// Half-precision weights in the caller's order.
pub(crate) fn half_weights(data: &[u8]) -> Weights {
    Weights::Fp16(data.as_chunks().0.to_vec())
}

/// What a channel's sums can be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// Added to the sum of x × (w − zero point): the bias, and what makes up for the input's zero point.
    pub(crate) addend: i64,
    /// Smallest result.
    pub(crate) low: i64,
    /// Largest result.
    pub(crate) high: i64,
}

impl Range {
    /// Whether 32 bits hold everything.
    pub(crate) fn fits(&self) -> bool {
        [self.addend, self.low, self.high].iter().all(|&sum| i32::try_from(sum).is_ok())
    }
}

/// What one channel's weights can sum up to.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    total: i64,
    low: i64,
    high: i64,
}

/// Checks the filter's length against the shape.
pub(crate) fn check_filter(data: &[u8], elements: usize, element: ElementType) -> Result<(), Unsupported> {
    let expected = elements * element.bytes();
    if data.len() != expected {
        return Err(Unsupported::new(format!("the filter has {} bytes, its shape {expected}", data.len())));
    }
    Ok(())
}

/// Arithmetic of sums that leave as they are, and their element type.
pub(crate) fn prepare_sums(input: ElementType) -> (LayerArithmetic, ElementType) {
    let (product, stored, element) = match input.is_integer() {
        true => (Product::I8, Stored::I32, ElementType::I32),
        false => (Product::F16ToF32, Stored::F32, ElementType::F32),
    };
    (LayerArithmetic::Sums(product.datapath(stored)), element)
}

/// Arithmetic of a half-precision layer.
pub(crate) fn prepare_fp16(
    bias: &Bias<'_>,
    activation: Activation,
    channels: usize,
) -> Result<LayerArithmetic, Unsupported> {
    let bias = match *bias {
        Bias::None => None,
        Bias::F32(bias) if bias.len() == channels => Some(bias.to_vec()),
        Bias::F32(bias) => return Err(Unsupported::new(format!("{} biases for {channels} channels", bias.len()))),
        Bias::I32(_) => return Err(Unsupported::new("a quantised bias for real numbers")),
    };
    Ok(LayerArithmetic::Fp16 { bias, clamp: fp16_clamp(activation)? })
}

/// The clamp of an activation of real numbers.
pub(crate) fn fp16_clamp(activation: Activation) -> Result<Clamp<f32>, Unsupported> {
    match activation {
        Activation::None => Ok(Clamp::default()),
        Activation::Relu => Ok(Clamp { relu: true, most: None }),
        Activation::Relu6 => Ok(Clamp { relu: true, most: Some(6.0) }),
        Activation::ReluN1To1 => Err(Unsupported::new("the hardware's lower limit is 0, not -1")),
    }
}

/// Arithmetic of a sum of two tensors.
pub(crate) fn prepare_add(
    inputs: [&Tensor; 2],
    output: &Tensor,
    activation: Activation,
) -> Result<LayerArithmetic, Unsupported> {
    if !output.element.is_integer() {
        return Ok(LayerArithmetic::Fp16 { bias: None, clamp: fp16_clamp(activation)? });
    }
    let offset = output.zero_point();
    let limits = limits(activation, output);
    let clamp = clamp(limits, offset)?;
    let plan = plan_pair(inputs.map(|input| input.scale() / output.scale()), offset)?;
    Ok(LayerArithmetic::Pair(plan, clamp, limits))
}

/// Arithmetic of a copy into another quantisation.
pub(crate) fn prepare_requantize(
    input: &Tensor,
    output: &Tensor,
    activation: Activation,
) -> Result<LayerArithmetic, Unsupported> {
    let offset = output.zero_point();
    let limits = limits(activation, output);
    clamp(limits, offset)?;
    let zero_point = input.zero_point();
    let [low, high] = [-128, 127].map(|end| i64::from(end - zero_point));
    let channel = Channel { multiplier: input.scale() / output.scale(), low, high };
    let count = output.channels();
    Ok(LayerArithmetic::Int8(IntChannels {
        channels: vec![channel; count],
        addends: vec![-zero_point; count],
        zero_points: ZeroPoints::Tensor(0),
        offset,
        limits,
        constants: vec![channel.constant(offset, limits); count],
    }))
}
