//! The CPU's operators against TFLite's reference kernels, bit by bit.
//!
//! ```text
//! model, inputs ─┬─ engine::cpu::evaluate ────────────────┬─ equal?
//!                └─ LiteRT (PyPI ai-edge-litert), BUILTIN_REF ┘
//! ```
//!
//! LiteRT runs in Python; `tests::python` installs it into the user's cache at the first run. Without Python or a
//! network these tests fail and say so.

use std::fs;
use std::path::{Path, PathBuf};

use model::{DType, Graph, tflite};
use tests::python;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs a model on every set of inputs in a file; `compare` gets the number of the set and the values of all tensors.
fn evaluate(model: &Path, input: &Path, mut compare: impl FnMut(usize, &Graph, &[Vec<u8>])) {
    let graph = tflite::read(&read(model)).unwrap_or_else(|error| panic!("{}: {error}", model.display()));
    let sizes: Vec<usize> = graph.inputs.iter().map(|&id| graph[id].bytes()).collect();
    let input = read(input);
    let sets = input.chunks_exact(sizes.iter().sum());
    assert!(sets.len() > 0 && sets.remainder().is_empty());
    for (number, mut set) in sets.enumerate() {
        let slices: Vec<&[u8]> = sizes.iter().map(|&size| set.split_off(..size).expect("a set holds inputs")).collect();
        let values =
            engine::cpu::evaluate(&graph, &slices).unwrap_or_else(|error| panic!("{}: {error}", model.display()));
        compare(number, &graph, &values);
    }
}

/// Where two tensors differ, for people.
fn difference(ours: &[u8], reference: &[u8]) -> Option<String> {
    assert_eq!(ours.len(), reference.len());
    let differing = ours.iter().zip(reference).filter(|(a, b)| a != b).count();
    let first = ours.iter().zip(reference).position(|(a, b)| a != b)?;
    let (a, b) = (ours[first], reference[first]);
    Some(format!("{differing} of {} bytes differ, the first at {first}: {a} instead of {b}", ours.len()))
}

/// Compares every tensor that a node writes.
fn check_every_tensor(model: &Path, input: &Path) {
    let work = tempfile::tempdir().unwrap();
    let script = python::script("litert_reference.py", &[Path::new("--all"), model, input, work.path()]);
    script.unwrap_or_else(|error| panic!("{error:#}"));
    evaluate(model, input, |number, graph, values| {
        for (index, node) in graph.nodes.iter().enumerate() {
            let id = node.outputs[0];
            let reference = read(&work.path().join(format!("{number}/tensor_{}.bin", id.0)));
            if let Some(difference) = difference(&values[id.0], &reference) {
                panic!("set {number}, operator {index} ({}), {:?}: {difference}", node.op.name(), graph[id]);
            }
        }
    });
}

#[test]
fn every_tensor_of_the_detector_equals_the_reference() {
    let work = tempfile::tempdir().unwrap();
    let input = work.path().join("input.bin");
    let pictures = ["astronaut", "chelsea", "coffee"].map(|name| folder().join(format!("pictures/{name}.jpg")));
    let arguments: Vec<&Path> = std::iter::once(input.as_path()).chain(pictures.iter().map(PathBuf::as_path)).collect();
    python::script("pictures.py", &arguments).unwrap_or_else(|error| panic!("{error:#}"));
    check_every_tensor(&folder().join("models/ssd-oidv4/model.tflite"), &input);
}

#[test]
fn every_tensor_of_the_digit_models_equals_the_reference() {
    for name in ["mnist", "mnist-v2"] {
        let model = folder().join("models").join(name).join("model.tflite");
        check_every_tensor(&model, &folder().join("models/mnist/digits.bin"));
    }
}

/// Largest difference of two real results, relative to the largest of them.
fn real_difference(ours: &[u8], reference: &[u8]) -> f32 {
    let reals = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect::<Vec<_>>();
    let (ours, reference) = (reals(ours), reals(reference));
    assert_eq!(ours.len(), reference.len());
    let largest = reference.iter().map(|value| value.abs()).fold(f32::MIN_POSITIVE, f32::max);
    ours.iter().zip(reference).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

/// Each operator on random numbers, quantisations and options. Real numbers may differ in their last bits.
#[test]
fn every_operator_equals_the_reference() {
    let work = tempfile::tempdir().unwrap();
    python::script("operator_models.py", &[work.path()]).unwrap_or_else(|error| panic!("{error:#}"));
    let mut models: Vec<_> = fs::read_dir(work.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    models.sort();
    let mut faults = Vec::new();
    for folder in &models {
        let name = folder.file_name().unwrap_or_default().display();
        evaluate(&folder.join("model.tflite"), &folder.join("input.bin"), |number, graph, values| {
            let id = graph.outputs[0];
            let reference = read(&folder.join(format!("{number}/output_0.bin")));
            let fault = match graph[id].dtype {
                DType::F32 => {
                    let difference = real_difference(&values[id.0], &reference);
                    (difference.is_nan() || difference > 1e-5).then(|| format!("differs by {difference}"))
                }
                _ => difference(&values[id.0], &reference),
            };
            faults.extend(fault.map(|fault| format!("{name} set {number}: {fault}")));
        });
    }
    assert!(models.len() > 150, "only {} models", models.len());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
