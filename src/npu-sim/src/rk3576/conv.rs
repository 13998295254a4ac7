//! Convolutions: decodes a complete program, reads its operands, multiplies.
//!
//! ```text
//! registers ─▶ Task ─▶ features, padded · weights ─▶ sums ─▶ post: coefficients, converter ─▶ Writes
//! ```
//!
//! Every register that says again what another one says must agree with it.

use half::f16;
use npu_regs::rk3576::{CHAIN, NO_ELEMENT, Path, VERBATIM, cna, core, dpu, dpu_rdma};
use npu_regs::{Block, Register, RegisterInfo};
use rayon::prelude::*;

use super::post::{Post, Value};
use crate::controller::Effect;
use crate::conv::{MOST_ELEMENTS, allow};
use crate::cost::Work;
use crate::fault::{Result, agree, proven, simulated};
use crate::memory::{ATOM, Space, Writes};
use crate::registers::RegisterFile;

/// What both channel counts are multiples of.
const CHANNELS: usize = 32;
/// Channels of a depthwise task: how more are rounded is not known.
const DEPTHWISE: usize = 64;
/// Channels that a task of half precision contracts.
const HALF_INPUTS: usize = 16;
/// Bytes of a granule of CBUF, the on-chip convolution buffer.
const GRANULE: usize = 64;
/// Granules of rows, without more of them.
const GRANULES: usize = 4096;
/// Most bytes of the weights of 32 kernels, by how many such groups there are, the last for more.
const WEIGHTS: [usize; 4] = [175 * 1024, 156 * 1024, 148 * 1024, 144 * 1024];

/// A convolution. Axes are `[rows, columns]`.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) path: Path,
    pub(super) input: [usize; 2],
    pub(super) output: [usize; 2],
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    /// Before the first row and column.
    pad: [usize; 2],
    outside: i8,
    features: u64,
    /// Bytes between planes.
    pitch: u64,
    weights: u64,
}

/// Computes a task. `left`: the largest work that is allowed.
pub(super) fn run(registers: &RegisterFile, space: &Space, left: u64) -> Result<Effect> {
    let task = Task::decode(registers)?;
    let macs = (task.output[0] * task.output[1] * task.outputs * task.per_output()) as u64;
    allow(macs, left)?;
    let padded = (task.extent(0) * task.extent(1) * task.inputs) as u64;
    allow(padded.max((task.outputs * task.per_output()) as u64), left.min(MOST_ELEMENTS))?;
    let post = Post::decode(registers, space, &task)?;
    let writes = match task.path {
        Path::HALF => task.half(space, &post)?,
        Path::DEPTHWISE => task.depthwise(space, &post)?,
        _ => task.direct(space, &post)?,
    };
    let bytes_read = (padded + (task.outputs * task.per_output()) as u64) * task.element() as u64 + post.bytes_read;
    let bytes_written = writes.iter().map(|writes| writes.bytes() as u64).sum();
    let macs_per_cycle = if task.path == Path::HALF { 256 } else { 1024 };
    let work = Work { macs, macs_per_cycle, bytes_read, bytes_written };
    Ok(Effect { writes, work, drains: task.path == Path::WIDE, ..Effect::default() })
}

/// A register that is one number.
pub(super) fn number<R: Register>(registers: &RegisterFile) -> usize {
    registers.bits(R::INFO) as usize
}

impl Task {
    fn decode(registers: &RegisterFile) -> Result<Self> {
        check_verbatim(registers)?;
        let path = path(registers)?;
        let rows = registers.get::<cna::Rows>()?;
        let kernel = registers.get::<cna::Kernel>()?;
        let stride = registers.get::<cna::Stride>()?;
        let pad = registers.get::<cna::Pad>()?;
        let extents = registers.get::<core::Extents>()?;
        let pad_value = registers.bits(cna::PadValue::INFO).cast_signed();
        let outside = i8::try_from(pad_value);
        proven(outside.is_ok(), "a pad value beyond 8 bits")?;
        let task = Self {
            path,
            input: [rows.height, rows.width].map(|extent| extent as usize + 1),
            output: [extents.height, extents.width].map(|extent| extent as usize + 1),
            inputs: registers.get::<cna::Feature>()?.channels as usize + 1,
            outputs: number::<core::Channels>(registers) + 1,
            kernel: [kernel.height, kernel.width].map(|extent| extent as usize + 1),
            stride: [stride.y, stride.x].map(|step| step as usize),
            pad: [pad.top, pad.left].map(|pixels| pixels as usize),
            outside: outside.unwrap_or_default(),
            features: u64::from(registers.bits(cna::FeatureAddress::INFO)),
            pitch: u64::from(registers.bits(cna::GroupStride::INFO)) * ATOM as u64,
            weights: u64::from(registers.bits(cna::WeightAddress::INFO)),
        };
        proven(!task.stride.contains(&0), "a stride of 0")?;
        task.check_channels()?;
        // Each of these bounds what the next one multiplies.
        task.check_fetch(registers)?;
        task.check_output(registers)?;
        task.check_weights(registers)?;
        task.check_padding(&pad)?;
        Ok(task)
    }

    /// SOURCE: npu-spec-rk3576 3: other counts give wrong results.
    fn check_channels(&self) -> Result<()> {
        match self.path {
            Path::HALF => proven(self.inputs == HALF_INPUTS, "half precision of other than sixteen input channels")?,
            Path::DEPTHWISE => {
                agree("input and output channels of a depthwise task", self.inputs as u64, self.outputs as u64)?;
                simulated(self.inputs == DEPTHWISE, "a depthwise task of other than 64 channels")?;
            }
            _ => proven(self.inputs.is_multiple_of(CHANNELS), "input channels that are no multiple of 32")?,
        }
        proven(self.outputs.is_multiple_of(CHANNELS), "output channels that are no multiple of 32")
    }

    /// What the CNA is told of the rows that it reads. SOURCE: npu-spec-rk3576 2, 4.
    fn check_fetch(&self, registers: &RegisterFile) -> Result<()> {
        let [height, width] = self.input;
        let row = (width * self.inputs * self.element()).div_ceil(GRANULE);
        let (window, fetch) = (registers.get::<cna::Window>()?, registers.get::<cna::Fetch>()?);
        let (line, mode) = (registers.get::<cna::Line>()?, registers.get::<cna::CbufMode>()?);
        let chain = registers.get::<cna::Chain>()?;
        proven(mode.window, "CBUF without its window")?;
        proven(chain.code == CHAIN, "this code of a chain of rows")?;
        simulated(!mode.keep_rows && !chain.continues, "rows that stay in CBUF")?;
        proven(fetch.enable, "a fetch without room in CBUF")?;
        simulated(window.base == 0 && fetch.base == 0 && fetch.more == 0, "a window of CBUF that begins elsewhere")?;
        proven(row * height <= GRANULES, "more rows than CBUF has room for")?;
        let fetched = registers.get::<cna::FetchRows>()?;
        let both = registers.get::<cna::Width>()?;
        let same = [
            ("granules of a row", window.row as usize, row),
            ("granules from row to row", line.granules as usize, row),
            ("granules of all rows", registers.get::<cna::Feature>()?.granules as usize, row * height),
            ("pixels of a row", line.width as usize, width),
            ("fetched rows", fetched.height as usize + 1, height),
            ("fetched columns", fetched.width as usize + 1, width),
            ("fetched channels", number::<cna::FetchChannels>(registers) + 1, self.inputs),
            ("line stride", number::<cna::LineStride>(registers), 4 * width),
            ("fetched atoms", number::<cna::FetchAtoms>(registers), (width * height).next_multiple_of(4)),
            ("the width's first half", both.width_0 as usize + 1, width),
            ("the width's second half", both.width_1 as usize + 1, width),
        ];
        same.into_iter().try_for_each(|(what, left, right)| agree(what, left as u64, right as u64))?;
        proven(self.pitch >= (width * height * ATOM) as u64, "planes that overlap")?;
        proven(self.features.is_multiple_of(ATOM as u64), "features whose address is no multiple of 16")
    }

    fn check_weights(&self, registers: &RegisterFile) -> Result<()> {
        let per_output = self.per_output();
        let (all, kernel, kernels, step) = match self.path {
            Path::DEPTHWISE => {
                let taps = self.taps();
                (2 * self.inputs * taps, self.inputs * taps, 1, 8 * taps)
            }
            _ => {
                let bytes = per_output * self.element();
                (self.outputs * bytes, bytes, self.outputs - 1, 2 * per_output)
            }
        };
        let same = [
            ("bytes of all weights", number::<cna::WeightBytes>(registers), all),
            ("bytes of a kernel", number::<cna::KernelBytes>(registers), kernel),
            ("kernels", registers.get::<cna::Kernel>()?.kernels as usize, kernels),
            ("the kernel's step", registers.get::<cna::Step>()?.weights as usize, step),
        ];
        same.into_iter().try_for_each(|(what, left, right)| agree(what, left as u64, right as u64))?;
        let most = WEIGHTS[(self.outputs / CHANNELS).min(WEIGHTS.len()) - 1];
        let slice = if self.path == Path::DEPTHWISE { all } else { CHANNELS * kernel };
        proven(slice <= most, "more weights of 32 kernels than CBUF has room for")
    }

    /// The output's extents, which are said in all three blocks.
    fn check_output(&self, registers: &RegisterFile) -> Result<()> {
        let ([height, width], channels) = (self.output, self.outputs);
        let (writer, extents) = (registers.get::<dpu::Writer>()?, registers.get::<dpu::WriterExtents>()?);
        let same = [
            ("the CNA's output width", registers.get::<cna::Step>()?.width as usize + 1, width),
            ("the CNA's output pixels", number::<cna::OutputPixels>(registers) + 1, width * height),
            ("the DPU's width", number::<dpu::Width>(registers) + 1, width),
            ("the DPU's height", number::<dpu::Height>(registers) + 1, height),
            ("the DPU's channels", number::<dpu::Channels>(registers) + 1, channels),
            ("the writer's width", extents.width as usize + 1, width),
            ("the writer's height", extents.height as usize + 1, height),
            ("the writer's channels", writer.channels as usize + 1, channels),
            ("the reader's width", number::<dpu_rdma::Width>(registers) + 1, width),
            ("the reader's height", number::<dpu_rdma::Height>(registers) + 1, height),
            ("the reader's channels", number::<dpu_rdma::Channels>(registers) + 1, channels),
        ];
        same.into_iter().try_for_each(|(what, left, right)| agree(what, left as u64, right as u64))
    }

    /// Padding behind the input is what the last window reaches.
    fn check_padding(&self, pad: &cna::Pad) -> Result<()> {
        simulated(self.path != Path::HALF || *pad == cna::Pad::default(), "padding of half precision")?;
        for (axis, after) in [pad.bottom, pad.right].into_iter().enumerate() {
            let needed = self.extent(axis).saturating_sub(self.pad[axis] + self.input[axis]);
            agree("padding behind the input and what windows reach", after, needed as u64)?;
        }
        Ok(())
    }

    pub(super) fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Products of an output.
    fn per_output(&self) -> usize {
        if self.path == Path::DEPTHWISE { self.taps() } else { self.taps() * self.inputs }
    }

    /// Bytes of a feature.
    fn element(&self) -> usize {
        if self.path == Path::HALF { 2 } else { 1 }
    }

    /// Rows or columns that windows reach.
    fn extent(&self, axis: usize) -> usize {
        (self.output[axis] - 1) * self.stride[axis] + self.kernel[axis]
    }

    /// The features with what is around them, `[row, column, channel]`, as many as windows reach.
    fn features<T: Copy>(&self, space: &Space, outside: T, read: impl Fn(&[u8]) -> T) -> Result<Vec<T>> {
        let (element, lanes) = (self.element(), ATOM / self.element());
        let [rows, columns] = [self.extent(0), self.extent(1)];
        let mut padded = vec![outside; rows * columns * self.inputs];
        for plane in 0..self.inputs / lanes {
            let dma = self.features + plane as u64 * self.pitch;
            let bytes = space.read_vec(Block::Cna, dma, (self.input[0] * self.input[1] * ATOM) as u64)?;
            for (pixel, atom) in bytes.chunks_exact(ATOM).enumerate() {
                let (row, column) = (pixel / self.input[1] + self.pad[0], pixel % self.input[1] + self.pad[1]);
                if row < rows && column < columns {
                    let to = &mut padded[(row * columns + column) * self.inputs + plane * lanes..][..lanes];
                    to.iter_mut().zip(atom.chunks_exact(element)).for_each(|(to, from)| *to = read(from));
                }
            }
        }
        Ok(padded)
    }

    /// Where the window of an output pixel has a kernel position, in the padded features.
    fn at(&self, row: usize, column: usize, tap: usize) -> usize {
        let (y, x) = (tap / self.kernel[1], tap % self.kernel[1]);
        let columns = self.extent(1);
        ((row * self.stride[0] + y) * columns + column * self.stride[1] + x) * self.inputs
    }

    /// Weights of kernels, `[kernel][tap][input]`. `group`: kernels and inputs that lie together.
    fn kernels<T: Copy>(&self, space: &Space, group: usize, zero: T, read: impl Fn(&[u8]) -> T) -> Result<Vec<T>> {
        let (element, taps, inputs) = (self.element(), self.taps(), self.inputs);
        let count = self.outputs * taps * inputs;
        let bytes = space.read_vec(Block::Cna, self.weights, (count * element) as u64)?;
        let mut kernels = vec![zero; count];
        for (index, weight) in bytes.chunks_exact(element).enumerate() {
            let (cell, within) = (index / (group * group), index % (group * group));
            let (tap, cell) = (cell % taps, cell / taps);
            let (kernel, input) = (cell / (inputs / group), cell % (inputs / group));
            let kernel = kernel * group + within / group;
            kernels[(kernel * taps + tap) * inputs + input * group + within % group] = read(weight);
        }
        Ok(kernels)
    }

    /// Integers, each output of all inputs.
    fn direct(&self, space: &Space, post: &Post) -> Result<Vec<Writes>> {
        let features = self.features(space, self.outside, |byte| byte[0].cast_signed())?;
        let kernels = self.kernels(space, CHANNELS, 0, |byte| byte[0].cast_signed())?;
        let (taps, inputs) = (self.taps(), self.inputs);
        let value = |row, column, channel: usize| {
            let (mut products, mut sum) = (0_i64, 0_i64);
            for tap in 0..taps {
                let window = &features[self.at(row, column, tap)..][..inputs];
                let weights = &kernels[(channel * taps + tap) * inputs..][..inputs];
                // At most 4608 inputs: no sum of products exceeds 32 bits.
                let dot: i32 = window.iter().zip(weights).map(|(x, w)| i32::from(*x) * i32::from(*w)).sum();
                products += i64::from(dot);
                if post.compensates(channel) {
                    sum += window.iter().map(|x| i64::from(*x)).sum::<i64>();
                }
            }
            Value::Integer { products, sum }
        };
        Ok(self.write(post, value))
    }

    /// Integers, each output of one input. A weight is the sum of two bytes.
    fn depthwise(&self, space: &Space, post: &Post) -> Result<Vec<Writes>> {
        let features = self.features(space, self.outside, |byte| byte[0].cast_signed())?;
        let taps = self.taps();
        let bytes = space.read_vec(Block::Cna, self.weights, (2 * self.inputs * taps) as u64)?;
        let weight = |tap: usize, channel: usize| {
            let at = tap * 2 * self.inputs + 4 * (channel / 2) + channel % 2;
            i64::from(bytes[at].cast_signed()) + i64::from(bytes[at + 2].cast_signed())
        };
        let value = |row, column, channel| {
            let product = |tap| i64::from(features[self.at(row, column, tap) + channel]) * weight(tap, channel);
            Value::Integer { products: (0..taps).map(product).sum(), sum: 0 }
        };
        Ok(self.write(post, value))
    }

    /// Half precision. Sums of sixteen products a kernel position are exact in double precision, and rounded once.
    fn half(&self, space: &Space, post: &Post) -> Result<Vec<Writes>> {
        let read = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f64();
        let features = self.features(space, f64::from(self.outside), read)?;
        let kernels = self.kernels(space, HALF_INPUTS, 0.0, read)?;
        let (taps, inputs) = (self.taps(), self.inputs);
        let value = |row, column, channel: usize| {
            let sum = (0..taps).map(|tap| {
                let window = &features[self.at(row, column, tap)..][..inputs];
                let weights = &kernels[(channel * taps + tap) * inputs..][..inputs];
                window.iter().zip(weights).map(|(x, w)| x * w).sum::<f64>()
            });
            // CAST: the rounding of the accumulator.
            Value::Real(sum.sum::<f64>() as f32)
        };
        Ok(self.write(post, value))
    }

    /// Computes and lays out every atom that the path writes.
    fn write(&self, post: &Post, value: impl Fn(usize, usize, usize) -> Value + Sync) -> Vec<Writes> {
        let atoms = post.atoms(self);
        let pieces: Vec<_> = (0..atoms).step_by(PIECE).collect();
        let piece = |first: &usize| {
            let mut writes = Writes::default();
            for index in *first..(first + PIECE).min(atoms) {
                let atom = post.atom(self, index);
                let mut bytes = [0; ATOM];
                let (row, column) = (atom.pixel / self.output[1], atom.pixel % self.output[1]);
                for (lane, bytes) in bytes.chunks_exact_mut(post.element).enumerate() {
                    let channel = atom.channel + lane;
                    let bits = post.finish(channel, value(row, column, channel));
                    bytes.copy_from_slice(&bits.to_le_bytes()[..post.element]);
                }
                writes.push(atom.dma, &bytes);
            }
            writes
        };
        pieces.par_iter().map(piece).collect()
    }
}

/// Atoms that are computed in one piece.
const PIECE: usize = 64;

/// The datapath that the words which are not understood choose.
fn path(registers: &RegisterFile) -> Result<Path> {
    let found = Path {
        mode: registers.bits(cna::Mode::INFO),
        core: registers.bits(core::Mode::INFO),
        feature_mode: registers.bits(dpu::FeatureMode::INFO),
        format: registers.bits(dpu::Format::INFO),
        writer: registers.get::<dpu::Writer>()?.code,
        writer_mode: registers.bits(dpu::WriterMode::INFO),
        unnamed_4044: registers.bits(dpu::Unnamed4044::INFO),
        bias: registers.bits(dpu::Bias::INFO),
        operands: registers.bits(dpu_rdma::Operands::INFO),
        reader: registers.bits(dpu_rdma::Mode::INFO),
    };
    proven(Path::ALL.contains(&found), "words that no known datapath has")?;
    let [integers, reals] = NO_ELEMENT;
    let element = if found == Path::HALF { reals } else { integers };
    agree("the element-wise reader's code", registers.bits(dpu_rdma::Element::INFO), element)?;
    Ok(found)
}

/// Registers that hold the same in every known program.
fn check_verbatim(registers: &RegisterFile) -> Result<()> {
    let zeros = dpu::LUT.iter().map(|register: &&RegisterInfo| (*register, 0));
    for (register, value) in VERBATIM.iter().copied().chain(zeros) {
        agree(register.name, registers.bits(register), value)?;
    }
    Ok(())
}
