//! Networks with inputs, and what the simulator makes of them.

use std::sync::Arc;
use std::time::Duration;

use npu::{Activation, Add, Chip, ElementType, Network, NetworkBuilder, Padding, Resident};
use npu_device::{Deadline, Device, Driver};
use npu_sim::{Options, Simulator};
use rand::Rng;
use rand::rngs::StdRng;

use crate::quantised::{self, Conv, Scales, Tensor, same_padding, window};

/// TIMEOUT: on the guest's clock, where jobs take milliseconds and the driver's own limit is half a second.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A network and its input.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    network: Network,
    input: Vec<u8>,
    /// What the simulator computes.
    pub(crate) expected: Vec<u8>,
}

impl Sample {
    fn new(name: &'static str, builder: NetworkBuilder, input: &Tensor) -> Self {
        let network = builder.build().unwrap();
        let simulator: Arc<dyn Device> = Simulator::new(Options::default()).open().unwrap();
        let input = input.bytes();
        let expected = run(&mut network.load(&simulator).unwrap(), &input).unwrap();
        Self { name, network, input, expected }
    }

    pub(crate) fn tasks(&self) -> usize {
        self.network.report().tasks
    }

    pub(crate) fn load(&self, device: &Arc<dyn Device>) -> Result<Resident, String> {
        self.network.load(device).map_err(|error| chain(&error))
    }

    /// Runs it once and compares every byte.
    pub(crate) fn check(&self, resident: &mut Resident) -> Result<(), String> {
        let found = run(resident, &self.input)?;
        match found.iter().zip(&self.expected).position(|(found, expected)| found != expected) {
            None if found.len() == self.expected.len() => Ok(()),
            place => Err(format!("{}: differs from the simulator at byte {place:?}", self.name)),
        }
    }

    /// Runs it once, whatever comes of it.
    pub(crate) fn run(&self, resident: &mut Resident) -> Result<Vec<u8>, String> {
        run(resident, &self.input)
    }
}

fn run(resident: &mut Resident, input: &[u8]) -> Result<Vec<u8>, String> {
    let mut output = [Vec::new()];
    resident.run(&[input], &mut output, Deadline::Never).map_err(|error| chain(&error))?;
    let [output] = output;
    Ok(output)
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn input(rng: &mut StdRng, shape: [usize; 3]) -> (NetworkBuilder, Tensor, npu::TensorRef) {
    let quant = quantised::quant(rng, ElementType::I8);
    let tensor = Tensor::random(rng, shape, ElementType::I8, quant);
    let mut builder = NetworkBuilder::new(&Chip::RK3588);
    let input = builder.input(shape, ElementType::I8, quant).unwrap();
    (builder, tensor, input)
}

/// `layers` matrix products `[64, 32] × [32, 32]`, one after the other, as convolutions of 1×1: one task each.
pub(crate) fn chain_of(layers: usize) -> Sample {
    let mut rng = quantised::rng(64);
    let (mut builder, tensor, mut at) = input(&mut rng, [8, 8, 32]);
    let mut like = tensor.clone();
    for _ in 0..layers {
        let conv = Conv::random(&mut rng, &like, window(1, 1, 1, Padding::default()), 32, false, Scales::Tensor);
        at = conv.add_to(&mut builder, at).unwrap();
        like.quant = conv.output;
    }
    builder.output(at);
    Sample::new("matrix products", builder, &tensor)
}

/// A convolution, a depthwise one and a sum, of random extents.
pub(crate) fn block(seed: u64) -> Sample {
    let mut rng = quantised::rng(seed);
    let shape = [rng.random_range(4..20), rng.random_range(4..20), rng.random_range(1..=64)];
    let (mut builder, tensor, first) = input(&mut rng, shape);
    let spread = Scales::PerChannel(4.0);
    let conv = Conv::random(&mut rng, &tensor, window(3, 1, 1, same_padding(3)), shape[2], false, spread);
    let middle = conv.add_to(&mut builder, first).unwrap();
    let like = Tensor { quant: conv.output, data: Vec::new(), ..tensor.clone() };
    let depthwise = Conv::random(&mut rng, &like, window(3, 1, 1, same_padding(3)), shape[2], true, spread);
    let last = depthwise.add_to(&mut builder, middle).unwrap();
    let output = npu::Quant { scale: conv.output.scale + depthwise.output.scale, zero_point: 3 };
    let sum = builder.add(last, middle, &Add { output, activation: Activation::None }).unwrap();
    builder.output(sum);
    Sample::new("convolutions and a sum", builder, &tensor)
}

/// A convolution that needs several tasks.
pub(crate) fn large() -> Sample {
    let mut rng = quantised::rng(3);
    let (mut builder, tensor, at) = input(&mut rng, [48, 48, 64]);
    let conv = Conv::random(&mut rng, &tensor, window(3, 1, 1, same_padding(3)), 64, false, Scales::Tensor);
    let output = conv.add_to(&mut builder, at).unwrap();
    builder.output(output);
    Sample::new("a convolution in tiles", builder, &tensor)
}
