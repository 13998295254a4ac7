//! Whole networks of the NPU library on the simulator: chains, the bundled detector, and what a run may be trusted with.

#![allow(clippy::unwrap_used, reason = "everything in this file is a test")]

#[path = "quantised/detector.rs"]
mod detector;

mod quantised;

use std::collections::HashMap;
use std::time::Duration;

use model::{Graph, Node, TensorId};
use npu::{
    Activation, Add, Chip, Distrust, ElementType, Network, NetworkBuilder, Quant, Resident, RunError, TensorRef,
};
use npu_device::{Deadline, Errno};
use npu_sim::{Lever, Options, Simulator};
use quantised::{
    Agreement, Conv, Scales, Tensor, device, from_bytes, kernels, quant, rng, run, same_padding, soon, sum, window,
};

/// A residual block: expand, depthwise, project, add; every tensor is an output, so that each layer can be compared on the
/// inputs that it really had.
struct Block {
    input: Tensor,
    convs: [Conv; 3],
    sum: Quant,
}

impl Block {
    fn random(seed: u64, extent: usize, channels: usize, inner: usize, ratio: f64) -> Self {
        let mut rng = rng(seed);
        let quant = quant(&mut rng, ElementType::I8);
        let input = Tensor::random(&mut rng, [extent, extent, channels], ElementType::I8, quant);
        let point = window(1, 1, 1, npu::Padding::default());
        let spread = Scales::PerChannel(ratio);
        let like = |shape, quant| Tensor { shape, element: ElementType::I8, quant, data: Vec::new() };
        let expand = Conv::random(&mut rng, &input, point, inner, false, spread);
        let wide = like([extent, extent, inner], expand.output);
        let depthwise = Conv::random(&mut rng, &wide, window(3, 1, 1, same_padding(3)), inner, true, spread);
        let wide = like([extent, extent, inner], depthwise.output);
        let project = Conv::random(&mut rng, &wide, point, channels, false, spread);
        let sum = Quant { scale: input.quant.scale + project.output.scale, zero_point: -5 };
        Self { input, convs: [expand, depthwise, project], sum }
    }

    fn network(&self, chip: &Chip, all: bool) -> Network {
        let mut builder = NetworkBuilder::new(chip);
        let input = builder.input(self.input.shape, self.input.element, self.input.quant).unwrap();
        let mut tensors: Vec<TensorRef> = vec![input];
        for conv in &self.convs {
            tensors.push(conv.add_to(&mut builder, tensors[tensors.len() - 1]).unwrap());
        }
        let add = Add { output: self.sum, activation: Activation::None };
        tensors.push(builder.add(tensors[3], input, &add).unwrap());
        let outputs = if all { &tensors[1..] } else { &tensors[4..] };
        outputs.iter().for_each(|&tensor| builder.output(tensor));
        builder.build().unwrap()
    }

    /// Each output against the exact result for the inputs that its layer had.
    fn check(&self, outputs: &[Vec<u8>], agreement: &mut Agreement) {
        let mut before = self.input.clone();
        for (conv, bytes) in self.convs.iter().zip(outputs) {
            let mut exact = conv.oracle(&before);
            let found = from_bytes(ElementType::I8, bytes);
            agreement.add(&found, &exact.data);
            exact.data = found;
            before = exact;
        }
        let exact = sum(&before, &self.input, self.sum, Activation::None);
        agreement.add(&from_bytes(ElementType::I8, &outputs[3]), &exact.data);
    }
}

#[test]
fn layers_that_follow_each_other_agree_on_slots_and_layout() {
    let mut agreement = Agreement::default();
    for (seed, (extent, channels, inner, ratio)) in
        [(7, 24, 96, 1.0), (3, 16, 70, 300.0), (1, 40, 33, 1000.0), (19, 12, 144, 1000.0), (12, 64, 200, 40.0)]
            .into_iter()
            .enumerate()
    {
        let block = Block::random(seed as u64, extent, channels, inner, ratio);
        for options in kernels() {
            let (simulator, device) = device(options);
            let mut resident = block.network(&Chip::RK3588, true).load(&device).unwrap();
            let outputs = run(&simulator, &mut resident, &[&block.input], 4);
            block.check(&outputs, &mut agreement);
        }
    }
    agreement.check();
}

#[test]
fn a_second_run_sees_its_own_input() {
    let block = Block::random(1, 6, 24, 64, 10.0);
    let (simulator, device) = device(Options::batched());
    let mut resident = block.network(&Chip::RK3588, false).load(&device).unwrap();
    let first = run(&simulator, &mut resident, &[&block.input], 1);
    let mut other = block.input.clone();
    other.data.reverse();
    let second = run(&simulator, &mut resident, &[&other], 1);
    assert_ne!(first, second);
    assert_eq!(run(&simulator, &mut resident, &[&block.input], 1), first);
}

/// A picture of gradients and edges.
fn picture() -> Vec<u8> {
    let pixel = |i: usize| ((i / 3 % 300) * 200 / 300 + i / 900 * 55 / 300 + 40 * (i % 3) + (i / 97 % 2) * 60) as u8;
    (0..300 * 300 * 3).map(pixel).collect()
}

/// Outputs of the detector's part on the NPU, by tensor.
fn infer(part: detector::Part, input: &[u8]) -> HashMap<TensorId, Vec<u8>> {
    let network = part.builder.build().unwrap();
    let (simulator, device) = device(Options::batched());
    let mut resident = network.load(&device).unwrap();
    let mut outputs = vec![Vec::new(); part.outputs.len()];
    let result = resident.run(&[input], &mut outputs, soon(device.as_ref()));
    result.unwrap_or_else(|error| panic!("{error}: {:?}", simulator.faults()));
    part.outputs.into_iter().zip(outputs).collect()
}

/// Computes a node on the CPU from `values`, or from constants.
fn on_cpu(graph: &Graph, node: &Node, values: &HashMap<TensorId, Vec<u8>>) -> Vec<u8> {
    let value = |id: &Option<TensorId>| {
        let Some(id) = id else { return [].as_slice() };
        values.get(id).map_or_else(|| graph[*id].data.as_deref().unwrap(), Vec::as_slice)
    };
    let inputs: Vec<&[u8]> = node.inputs.iter().map(value).collect();
    let mut output = vec![0; graph[node.outputs[0]].bytes()];
    engine::cpu::Prepared::new(graph, node).unwrap().run(&inputs, &mut output).unwrap();
    output
}

fn agreement(found: &[u8], exact: &[u8]) -> Agreement {
    let mut agreement = Agreement::default();
    agreement.add(&from_bytes(ElementType::I8, found), &from_bytes(ElementType::I8, exact));
    agreement
}

/// A channel whose bias lies at the end of 32 bits: the CPU's sums wrap there as TFLite's do, which is an artefact of that
/// model's conversion; the NPU computes the real result.
fn wraps(graph: &Graph, node: &Node) -> Vec<bool> {
    let bias = node.inputs.get(2).copied().flatten().and_then(|id| graph[id].data.as_deref()).unwrap_or_default();
    bias.chunks_exact(4).map(|word| i32::from_le_bytes(word.try_into().unwrap()) == i32::MIN).collect()
}

#[test]
fn every_layer_of_the_detector_agrees_with_the_cpu_on_the_inputs_that_it_had() {
    let graph = detector::graph();
    let part = detector::part(&graph, &Chip::RK3588).with_all_outputs(&graph);
    let nodes = part.nodes.clone();
    let input = picture();
    let mut values = infer(part, &input);
    values.insert(graph.inputs[0], input);
    let mut all = Agreement::default();
    for index in nodes {
        let node = &graph.nodes[index];
        let wraps = wraps(&graph, node);
        let exact = on_cpu(&graph, node, &values);
        let mut found = values[&node.outputs[0]].clone();
        for (at, byte) in found.iter_mut().enumerate() {
            if wraps.get(at % wraps.len().max(1)) == Some(&true) {
                *byte = exact[at];
            }
        }
        let layer = agreement(&found, &exact);
        assert!(layer.worst <= 1 && layer.rate() >= 0.985, "node {index}: {layer:?}");
        all.add(&from_bytes(ElementType::I8, &found), &from_bytes(ElementType::I8, &exact));
    }
    println!("{all:?}, {:.4} equal", all.rate());
    all.check();
}

/// Single roundings that differ spread through eighty layers, so whole outputs are compared by how far they are apart.
/// TFLite's optimised kernels differ from its reference kernels by up to 6 steps on photographs.
#[test]
fn the_detector_agrees_with_the_cpu() {
    let graph = detector::graph();
    let input = match std::env::var("PIC") {
        Ok(p) => std::fs::read(p).unwrap(),
        _ => picture(),
    };
    let part = detector::part(&graph, &Chip::RK3588);
    println!("{:#?}", part.builder.clone().build().unwrap().report());
    let inside = part.nodes.clone();
    let mut values = infer(part, &input);
    for (_, node) in graph.nodes.iter().enumerate().filter(|(index, _)| !inside.contains(index)) {
        values.insert(node.outputs[0], on_cpu(&graph, node, &values));
    }
    let exact = engine::cpu::evaluate(&graph, &[&input]).unwrap();
    for id in &graph.outputs {
        let output = agreement(&values[id], &exact[id.0]);
        println!("{output:?}, {:.4} equal", output.rate());
        assert!(output.worst <= 6 && output.rate() > 0.45, "{output:?}");
    }
}

struct Trial {
    simulator: Simulator,
    resident: Resident,
    block: Block,
    good: Vec<Vec<u8>>,
    tasks: usize,
}

impl Trial {
    fn new(options: Options, chip: &Chip) -> Self {
        let block = Block::random(3, 9, 24, 96, 400.0);
        let (simulator, device) = device(options);
        let network = block.network(chip, false);
        let mut resident = network.load(&device).unwrap();
        let good = run(&simulator, &mut resident, &[&block.input], 1);
        Self { simulator, resident, block, good, tasks: network.report().tasks }
    }

    fn run(&mut self, deadline: Deadline) -> Result<Vec<Vec<u8>>, RunError> {
        // What a careless caller would take for a result.
        let mut outputs = self.good.clone();
        let result = self.resident.run(&[&self.block.input.bytes()], &mut outputs, deadline);
        if result.is_err() {
            assert!(outputs.iter().all(Vec::is_empty), "an unverified result was handed out");
        }
        result.map(|_| outputs)
    }

    /// Runs with a lever, which must be noticed, and once more, which must be right.
    fn notices(&mut self, lever: Lever) -> RunError {
        self.simulator.inject(lever.clone());
        let error = self.run(Deadline::Never).expect_err("the lever went unnoticed");
        assert_eq!(self.run(Deadline::Never).unwrap(), self.good, "after {lever:?}");
        error
    }
}

/// Whether a run took too long to be believed.
fn is_slow(error: &RunError) -> bool {
    matches!(error, RunError::Untrusted { reason: Distrust::Slow { .. }, .. })
}

/// Whether a task of a run did not write what it should.
fn lacks_writes_of(error: &RunError, task: usize) -> bool {
    matches!(error, RunError::Untrusted { reason: Distrust::Sentinels { first, .. }, .. } if first.task == task)
}

/// Whether the driver itself said that a run failed.
fn is_told(error: &RunError, errno: Errno) -> bool {
    matches!(error, RunError::Device { source, .. } if source.errno() == Some(errno))
}

#[test]
fn a_hung_job_is_never_taken_for_a_result() {
    for options in kernels() {
        let told = options.reports_failed_jobs;
        let mut trial = Trial::new(options, &Chip::RK3588);
        let tasks = (0..trial.tasks).flat_map(|task| [Lever::Hang { task }, Lever::IommuFault { task }]);
        for lever in tasks.chain([Lever::Slow(Duration::from_millis(600))]) {
            let error = trial.notices(lever);
            assert!(if told { is_told(&error, Errno::IO) } else { is_slow(&error) }, "{error:?}");
        }
    }
}

#[test]
fn a_job_that_was_never_queued_is_noticed() {
    for options in kernels() {
        let told = options.reports_dropped_jobs;
        let mut trial = Trial::new(options, &Chip::RK3588);
        let error = trial.notices(Lever::SwallowedSubmit);
        assert!(if told { is_told(&error, Errno::NOMEM) } else { lacks_writes_of(&error, 0) }, "{error:?}");
    }
}

#[test]
fn a_task_that_writes_only_a_part_is_noticed() {
    let mut trial = Trial::new(Options::batched(), &Chip::RK3588);
    for task in 0..trial.tasks {
        for percent in [0, 10, 50, 90, 99] {
            let error = trial.notices(Lever::PartialWrite { task, percent });
            assert!(lacks_writes_of(&error, task), "{error:?}");
        }
    }
}

#[test]
fn a_lost_burst_of_any_layer_is_noticed() {
    let mut trial = Trial::new(Options::batched(), &Chip::RK3588);
    for task in 0..trial.tasks {
        for burst in (0..400).step_by(37) {
            let error = trial.notices(Lever::LostWrite { task, burst });
            assert!(lacks_writes_of(&error, task), "{error:?}");
        }
    }
}

#[test]
fn a_slow_job_below_the_mark_is_a_result() {
    let mut trial = Trial::new(Options::batched(), &Chip::RK3588);
    trial.simulator.inject(Lever::Slow(Duration::from_millis(300)));
    assert_eq!(trial.run(Deadline::Never).unwrap(), trial.good);
}

#[test]
fn a_deadline_ends_the_wait_and_the_next_run_is_right() {
    let mut trial = Trial::new(Options::batched(), &Chip::RK3588);
    trial.simulator.inject(Lever::Slow(Duration::from_millis(300)));
    let error = trial.run(Deadline::POLL).unwrap_err();
    assert!(matches!(error, RunError::Deadline { .. }), "{error}");
    assert_eq!(trial.run(Deadline::Never).unwrap(), trial.good);
}

#[test]
fn a_hang_in_any_of_several_jobs_is_noticed() {
    // As many jobs as tasks: the budget is below any task's modelled time.
    let chip = Chip { job_budget: Duration::ZERO, ..Chip::RK3588 };
    for options in kernels() {
        let told = options.reports_failed_jobs;
        let mut trial = Trial::new(options, &chip);
        let jobs = trial.block.network(&chip, false).report().jobs;
        assert_eq!(jobs, trial.tasks);
        let error = trial.notices(Lever::Hang { task: 0 });
        assert!(if told { is_told(&error, Errno::IO) } else { is_slow(&error) }, "{error:?}");
    }
}

#[test]
fn buffers_of_the_wrong_size_are_refused() {
    let mut trial = Trial::new(Options::default(), &Chip::RK3588);
    let bytes = trial.block.input.bytes();
    let mut outputs = vec![Vec::new()];
    let error = trial.resident.run(&[&bytes[1..]], &mut outputs, Deadline::Never).unwrap_err();
    assert!(matches!(error, RunError::Size { what: "input", index: 0, .. }), "{error}");
    let error = trial.resident.run(&[], &mut outputs, Deadline::Never).unwrap_err();
    assert!(matches!(error, RunError::Count { what: "inputs", found: 0, expected: 1 }), "{error}");
    let error = trial.resident.run(&[&bytes], &mut [], Deadline::Never).unwrap_err();
    assert!(matches!(error, RunError::Count { what: "outputs", found: 0, expected: 1 }), "{error}");
}
