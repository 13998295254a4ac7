//! The TFLite reader on real files, and on damaged ones.

use std::path::{Path, PathBuf};

use expect_test::{Expect, expect};
use model::{Graph, Op, tflite};

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn bytes(path: &str) -> Vec<u8> {
    let path = project(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Inputs and outputs, then how often each operator occurs.
fn summary(graph: &Graph) -> String {
    let mut counts = std::collections::BTreeMap::<_, usize>::new();
    for node in &graph.nodes {
        *counts.entry(node.op.name()).or_default() += 1;
    }
    let named = |ids: &[model::TensorId]| {
        let line = |&id| {
            let tensor = &graph[id];
            format!("{tensor:?} {:?}\n", tensor.quantization.as_ref().and_then(|q| q.per_tensor()))
        };
        ids.iter().map(line).collect::<String>()
    };
    format!("{}{}{counts:?}\n", named(&graph.inputs), named(&graph.outputs))
}

fn check(path: &str, expected: Expect) -> Graph {
    let graph = tflite::read(&bytes(path)).expect("the file is a model");
    expected.assert_eq(&summary(&graph));
    graph
}

const DETECTOR: &str = "tests/models/ssd-oidv4/model.tflite";
const SMALL: &str = "../shared/captures/mesa-teflon/net3/net3.tflite";

#[test]
fn the_detector_is_read_whole() {
    let graph = check(
        DETECTOR,
        expect![[r#"
        I8[1, 300, 300, 3] "normalized_input_image_tensor" Some((0.007432128, 2))
        I8[1, 1917, 4] "raw_outputs/box_encodings" Some((0.33735237, 111))
        I8[1, 1917, 24] "raw_outputs/class_predictions" Some((0.10736679, 47))
        {"ADD": 10, "CONCATENATION": 2, "CONV_2D": 55, "DEPTHWISE_CONV_2D": 17, "QUANTIZE": 11, "RESHAPE": 13}
    "#]],
    );
    let Op::Conv2d { window, .. } = &graph.nodes[0].op else { panic!("{:?}", graph.nodes[0]) };
    expect![[r#"
        Window {
            stride: [
                2,
                2,
            ],
            dilation: [
                1,
                1,
            ],
            padding: Padding {
                top: 0,
                bottom: 1,
                left: 0,
                right: 1,
            },
        }
    "#]]
    .assert_debug_eq(window);
    let filter = &graph[graph.nodes[0].inputs[1].unwrap()];
    assert_eq!(filter.quantization.as_ref().map(|q| (q.scales.len(), q.axis)), Some((32, 0)));
    assert_eq!(filter.data.as_ref().map(|d| d.len()), Some(32 * 3 * 3 * 3));
}

#[test]
fn the_captured_models_are_read() {
    check(
        SMALL,
        expect![[r#"
        U8[1, 20, 20, 32] "in" Some((0.02, 128))
        U8[1, 20, 20, 32] "o2" Some((9.0, 128))
        {"CONV_2D": 2, "DEPTHWISE_CONV_2D": 1}
    "#]],
    );
    for name in [
        "mesa-teflon/add_mnv2c_64_14x14/add_mnv2c_64_14x14",
        "mesa-teflon/c1x1_32_32_8x8/c1x1_32_32_8x8",
        "mesa-teflon/c1x1_512_512_7x7/c1x1_512_512_7x7",
        "mesa-teflon/c3x3_32_64_12x12_same/c3x3_32_64_12x12_same",
        "mesa-teflon/c3x3_32_64_12x12_zp/c3x3_32_64_12x12_zp",
        "mesa-teflon/c3x3_64_64_80x80_split/c3x3_64_64_80x80_split",
        "mesa-teflon/c3x3s2_1_32_16x16/c3x3s2_1_32_16x16",
        "mesa-teflon/c3x3s2_32_32_16x16/c3x3s2_32_32_16x16",
        "mesa-teflon/dw3x3_128_10x10_zp/dw3x3_128_10x10_zp",
        "mesa-teflon/dw3x3_64_8x8/dw3x3_64_8x8",
        "hw-dw-capture/dw_pt",
    ] {
        tflite::read(&bytes(&format!("../shared/captures/{name}.tflite"))).unwrap();
    }
}

/// A small model with every kind of part, which damage reaches quickly.
fn small() -> Vec<u8> {
    bytes(SMALL)
}

#[test]
fn a_file_cut_anywhere_is_an_error_or_a_whole_graph() {
    let whole = small();
    let read = (0..whole.len()).filter(|&length| tflite::read(&whole[..length]).is_ok()).count();
    // Only the padding at the end may be missed.
    assert!(read < 8, "{read} cut files were read");
}

#[test]
fn a_cut_detector_is_refused() {
    let whole = bytes(DETECTOR);
    for length in (0..whole.len()).step_by(30_011) {
        tflite::read(&whole[..length]).unwrap_err();
    }
}

/// Numbers that look random and are the same at every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        // SOURCE: Marsaglia's xorshift64.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        // CAST: a remainder of a usize fits in it.
        (self.next() % limit as u64) as usize
    }
}

#[test]
fn a_hundred_thousand_damaged_files_are_read_or_refused() {
    let whole = small();
    let mut noise = Noise(0x5eed);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..100_000 {
        let mut damaged = whole.clone();
        for _ in 0..=noise.below(4) {
            let at = noise.below(damaged.len());
            damaged[at] = match noise.below(4) {
                0 => 0,
                1 => 0xff,
                2 => damaged[at] ^ 1 << noise.below(8),
                // CAST: below 256.
                _ => noise.below(256) as u8,
            };
        }
        match tflite::read(&damaged) {
            Ok(_) => read += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(read > 1000 && refused > 1000, "{read} read, {refused} refused");
}
