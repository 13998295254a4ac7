//! Our TFLite delegate in LiteRT, on the device that the preload library shows.
//!
//! ```text
//! model, inputs ─┬─ LiteRT (BUILTIN_REF) ────────────────────────────────────────────┬─ how close?
//!                ├─ LiteRT with libcairn_delegate.so, LD_PRELOAD=libnpu_shim.so ─────┤
//!                └─ engine on the simulator, as npud runs it ────────────────────────┴─ the same bytes?
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use engine::{DType, Engine, Input, ModelInfo, Options, Priority, Request, Tensor};
use model::{Graph, tflite};
use npu_sim::Simulator;
use tempfile::TempDir;
use tests::python;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A script of `tests/python` that finds the device of the preload library.
fn on_the_device(script: &str, arguments: &[&Path], environment: &[(&str, &str)]) {
    let mut command = Command::new(python::interpreter().unwrap_or_else(|error| panic!("{error:#}")));
    command.env("PYTHONDONTWRITEBYTECODE", "1").arg(python::scripts().join(script)).args(arguments);
    command.env("LD_PRELOAD", testkit::build_library("npu_shim").unwrap()).env_remove("CAIRN_DELEGATE");
    // The engine times its jobs, and this machine may be slow.
    command.env("CAIRN_SHIM_SPEED", "virtual");
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script} {arguments:?}: {}\n{text}", output.status);
}

/// A model of `tests/models` on sets of inputs, three ways.
struct Comparison {
    work: TempDir,
    graph: Graph,
    model: PathBuf,
    input: Vec<u8>,
}

impl Comparison {
    fn new(model: &str, input: Vec<u8>) -> Self {
        let model = folder().join("models").join(model);
        let graph = tflite::read(&read(&model.join("model.tflite"))).unwrap();
        let work = tempfile::tempdir().unwrap();
        fs::create_dir(work.path().join("delegate")).unwrap();
        fs::write(work.path().join("input.bin"), &input).unwrap();
        let comparison = Self { work, graph, model, input };
        let library = testkit::build_library("cairn_delegate").unwrap();
        let (model, input) = (comparison.model.join("model.tflite"), comparison.path("input.bin"));
        on_the_device("through_delegate.py", &[&library, &model, &input, &comparison.path("delegate")], &[]);
        python::script("litert_reference.py", &[&model, &input, &comparison.path("reference")])
            .unwrap_or_else(|error| panic!("{error:#}"));
        comparison
    }

    fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// The lines of the delegate's report on operators: what the runtime said of each, and what becomes of it.
    fn operators(&self) -> Vec<(String, String)> {
        let report = String::from_utf8(read(&self.path("delegate/report"))).unwrap();
        let lines = report.lines().filter(|line| line.starts_with("operator "));
        let split = |line: &str| {
            let at = [": on the NPU", ": between", ": left"].iter().find_map(|claim| line.rfind(claim));
            let (what, claim) = line.split_at(at.expect("a line says what becomes of its operator"));
            (what.to_owned(), claim[2..].to_owned())
        };
        lines.map(split).collect()
    }

    fn outputs(&self, way: &str, set: usize) -> Vec<Vec<u8>> {
        (0..self.graph.outputs.len()).map(|j| read(&self.path(&format!("{way}/{set}/output_{j}.bin")))).collect()
    }

    fn sets(&self) -> impl Iterator<Item = &[u8]> {
        let bytes = self.graph.inputs.iter().map(|id| self.graph[*id].bytes()).sum();
        self.input.chunks_exact(bytes)
    }

    /// How often each difference from the reference occurs.
    fn differences(&self, set: usize) -> BTreeMap<u8, usize> {
        let signed = self.graph[self.graph.outputs[0]].dtype == DType::I8;
        let mut counts = BTreeMap::new();
        for (ours, reference) in self.outputs("delegate", set).iter().zip(self.outputs("reference", set)) {
            assert_eq!(ours.len(), reference.len());
            for (a, b) in ours.iter().zip(&reference) {
                let difference = if signed { a.cast_signed().abs_diff(b.cast_signed()) } else { a.abs_diff(*b) };
                *counts.entry(difference).or_default() += 1;
            }
        }
        counts
    }

    /// The runtime's structures say of every tensor that an operator makes what the file says.
    fn check_what_the_runtime_said(&self) {
        let operators = self.operators();
        assert_eq!(operators.len(), self.graph.nodes.len());
        for (index, (node, (said, _))) in self.graph.nodes.iter().zip(operators).enumerate() {
            let tensor = &self.graph[node.outputs[0]];
            let (scale, zero_point) = tensor.quantization.as_ref().unwrap().per_tensor().unwrap();
            let kind = node.op.name();
            let (name, dtype, shape) = (&tensor.name, tensor.dtype, &tensor.shape);
            let wanted =
                format!("operator {index} {kind} {name:?} {dtype:?}{shape:?} scale {scale} zero point {zero_point}");
            assert_eq!(said, wanted);
        }
    }

    /// The engine as npud runs it gives the same bytes.
    async fn check_against_the_engine(&self) {
        let simulator = Simulator::new(npu_sim::Options::default());
        let monitor = simulator.fault_monitor();
        let options = Options { contexts: 1, ..Options::default() };
        let engine = Engine::start(Arc::new(simulator), Some(monitor), options).unwrap();
        let info = engine.load(&self.model).await.unwrap();
        for (set, data) in self.sets().enumerate() {
            let outputs = ask(&engine, &info, data).await;
            assert_eq!(self.outputs("delegate", set), outputs, "set {set}");
        }
    }
}

/// The outputs for a model's one input.
async fn ask(engine: &Engine, info: &ModelInfo, data: &[u8]) -> Vec<Vec<u8>> {
    let [input] = info.inputs.as_slice() else { panic!("{} has not one input", info.name) };
    let tensor =
        Tensor { name: input.name.clone(), dtype: input.dtype, shape: input.shape.clone(), data: data.to_vec().into() };
    let input = Input::Tensors(vec![tensor]);
    let request = Request { model: info.name.clone(), input, priority: Priority::Interactive, deadline: None };
    let reply = engine.submit(request).unwrap().await.unwrap();
    reply.outputs.iter().map(|output| output.data.to_vec()).collect()
}

/// The kinds of operators that are left, with the reasons.
fn left(operators: &[(String, String)]) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for (said, claim) in operators {
        if let Some(reason) = claim.strip_prefix("left: ") {
            let kind = said.split(' ').nth(2).unwrap().to_owned();
            *counts.entry((kind, reason.to_owned())).or_default() += 1;
        }
    }
    counts
}

fn counted(expected: &[(&str, &str, usize)]) -> BTreeMap<(String, String), usize> {
    expected.iter().map(|(kind, reason, count)| (((*kind).to_owned(), (*reason).to_owned()), *count)).collect()
}

#[tokio::test]
async fn the_digit_models_are_within_one_of_the_reference_and_as_npud_answers() {
    for name in ["mnist", "mnist-v2"] {
        let comparison = Comparison::new(name, read(&folder().join("models/mnist/digits.bin")));
        comparison.check_what_the_runtime_said();
        let softmax = "SOFTMAX has no NPU program yet";
        let expected = counted(&[("RESHAPE", "moves data only", 1), ("SOFTMAX", softmax, 1)]);
        assert_eq!(left(&comparison.operators()), expected, "{name}");
        let mut differences = BTreeMap::new();
        for (digit, _) in comparison.sets().enumerate() {
            for (difference, count) in comparison.differences(digit) {
                *differences.entry(difference).or_insert(0) += count;
            }
            let scores = &comparison.outputs("delegate", digit)[0];
            let best = (0..10).max_by_key(|class| scores[*class]);
            assert_eq!(best, Some(digit), "{name}: {scores:?}");
        }
        println!("{name}: elements by difference {differences:?}");
        assert!(differences.keys().all(|difference| *difference <= 1), "{name}: {differences:?}");
        comparison.check_against_the_engine().await;
    }
}

/// The limits are those of `detector.rs`: the spread of TFLite's own kernels.
#[tokio::test]
async fn the_detector_is_as_close_as_tflites_own_kernels_and_as_npud_answers() {
    let work = tempfile::tempdir().unwrap();
    let input = work.path().join("input.bin");
    let pictures = ["astronaut", "chelsea", "coffee"].map(|name| folder().join(format!("pictures/{name}.jpg")));
    let arguments: Vec<&Path> = std::iter::once(input.as_path()).chain(pictures.iter().map(PathBuf::as_path)).collect();
    python::script("pictures.py", &arguments).unwrap_or_else(|error| panic!("{error:#}"));
    let comparison = Comparison::new("ssd-oidv4", read(&input));
    comparison.check_what_the_runtime_said();
    let operators = comparison.operators();
    assert_eq!(
        left(&operators),
        counted(&[("CONCATENATION", "moves data only", 2), ("RESHAPE", "moves data only", 2)])
    );
    assert_eq!(operators.iter().filter(|(_, claim)| claim == "on the NPU").count(), 93);
    for (set, picture) in pictures.iter().enumerate() {
        let differences = comparison.differences(set);
        let all: usize = differences.values().sum();
        let beyond: usize = differences.range(3..).map(|(_, count)| count).sum();
        println!("{}: elements by difference {differences:?}, {beyond} of {all} beyond 2", picture.display());
        assert!(differences.keys().all(|difference| *difference <= 8), "{differences:?}");
        assert!(beyond as f64 <= 0.03 * all as f64, "{differences:?}");
    }
    comparison.check_against_the_engine().await;
}

/// Runs a case of `delegate_host.py`.
fn host(case: &str, environment: &[(&str, &str)]) {
    let library = testkit::build_library("cairn_delegate").unwrap();
    let (model, digits) = (folder().join("models/mnist/model.tflite"), folder().join("models/mnist/digits.bin"));
    on_the_device("delegate_host.py", &[&library, &model, &digits, Path::new(case)], environment);
}

#[test]
fn settings_without_meaning_and_missing_devices_are_refused_by_name() {
    host("bad_settings", &[]);
}

#[test]
fn several_interpreters_share_a_delegate_from_several_threads() {
    host("several_interpreters", &[]);
}

#[test]
fn a_part_lives_as_long_as_its_interpreter() {
    host("interpreter_after_interpreter", &[]);
}

#[test]
fn a_resized_graph_is_claimed_anew() {
    host("resized", &[]);
}

#[test]
fn a_graph_of_unknown_shapes_is_refused_and_runs_without_us() {
    host("dynamic_shape", &[]);
}

#[test]
fn a_forked_child_is_told_to_start_anew() {
    host("forked", &[]);
}

#[test]
fn a_result_that_cannot_be_trusted_is_an_error() {
    host("untrusted", &[("CAIRN_SHIM_FAULTS", "seed=1,hang=1")]);
}
