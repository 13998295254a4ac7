//! What the TFLite reader refuses, and what it says.

use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, WIPOffset};
use model::{Graph, Result, tflite};

/// A model of one operator; fields are numbered as in the schema. Tests change what they are about.
struct Model {
    version: u32,
    subgraphs: usize,
    /// Deprecated 8-bit code and 32-bit code.
    codes: (i8, i32),
    custom: Option<&'static str>,
    /// Kind of the operator's options and its integer fields `(number, value)`.
    options: (u8, Vec<(u16, i32)>),
    tensors: Vec<Tensor>,
    inputs: Vec<i32>,
    outputs: Vec<i32>,
    graph_inputs: Vec<i32>,
    graph_outputs: Vec<i32>,
    /// Bytes of the buffers from 1 on; buffer 0 is empty.
    buffers: Vec<Buffer>,
    appended: Vec<u8>,
}

#[derive(Clone)]
enum Buffer {
    Inside(Vec<u8>),
    Outside(u64, u64),
}

#[derive(Clone)]
struct Tensor {
    shape: Vec<i32>,
    signature: Vec<i32>,
    dtype: i8,
    buffer: u32,
    scales: Vec<f32>,
    zero_points: Vec<i64>,
    axis: i32,
    variable: bool,
    sparse: bool,
}

const I8: i8 = 9;
const I32: i8 = 2;

fn tensor(shape: &[i32]) -> Tensor {
    Tensor {
        shape: shape.to_vec(),
        signature: Vec::new(),
        dtype: I8,
        buffer: 0,
        scales: vec![0.5],
        zero_points: vec![0],
        axis: 0,
        variable: false,
        sparse: false,
    }
}

/// A 1×1 convolution of two channels to three.
fn conv() -> Model {
    let filter = Tensor { buffer: 1, scales: vec![0.1, 0.2, 0.3], zero_points: vec![0; 3], ..tensor(&[3, 1, 1, 2]) };
    let bias = Tensor { buffer: 2, dtype: I32, ..tensor(&[3]) };
    Model {
        version: 3,
        subgraphs: 1,
        codes: (3, 0),
        custom: None,
        options: (1, vec![(1, 1), (2, 1)]),
        tensors: vec![tensor(&[1, 4, 4, 2]), filter, bias, tensor(&[1, 4, 4, 3])],
        inputs: vec![0, 1, 2],
        outputs: vec![3],
        graph_inputs: vec![0],
        graph_outputs: vec![3],
        buffers: vec![Buffer::Inside(vec![1; 6]), Buffer::Inside(vec![0; 12])],
        appended: Vec::new(),
    }
}

type Offset = WIPOffset<TableFinishedWIPOffset>;

fn slot(field: u16) -> u16 {
    4 + 2 * field
}

impl Tensor {
    fn write(&self, b: &mut FlatBufferBuilder<'_>) -> Offset {
        let (shape, signature) = (b.create_vector(&self.shape), b.create_vector(&self.signature));
        let (scales, zero_points) = (b.create_vector(&self.scales), b.create_vector(&self.zero_points));
        let name = b.create_string("t");
        let start = b.start_table();
        b.push_slot_always(slot(2), scales);
        b.push_slot_always(slot(3), zero_points);
        b.push_slot_always(slot(6), self.axis);
        let quantization = b.end_table(start);
        let start = b.start_table();
        let sparsity = b.end_table(start);
        let start = b.start_table();
        b.push_slot_always(slot(0), shape);
        b.push_slot_always(slot(1), self.dtype);
        b.push_slot_always(slot(2), self.buffer);
        b.push_slot_always(slot(3), name);
        b.push_slot_always(slot(4), quantization);
        b.push_slot_always(slot(5), self.variable);
        if self.sparse {
            b.push_slot_always(slot(6), sparsity);
        }
        b.push_slot_always(slot(7), signature);
        b.end_table(start)
    }
}

impl Buffer {
    fn write(&self, b: &mut FlatBufferBuilder<'_>) -> Offset {
        match self {
            Self::Inside(bytes) => {
                let bytes = b.create_vector(bytes);
                let start = b.start_table();
                b.push_slot_always(slot(0), bytes);
                b.end_table(start)
            }
            Self::Outside(offset, size) => {
                let start = b.start_table();
                b.push_slot_always(slot(1), *offset);
                b.push_slot_always(slot(2), *size);
                b.end_table(start)
            }
        }
    }
}

impl Model {
    fn bytes(&self) -> Vec<u8> {
        let mut b = FlatBufferBuilder::new();
        let custom = self.custom.map(|name| b.create_string(name));
        let start = b.start_table();
        b.push_slot_always(slot(0), self.codes.0);
        if let Some(custom) = custom {
            b.push_slot_always(slot(1), custom);
        }
        b.push_slot_always(slot(3), self.codes.1);
        let code = b.end_table(start);
        let codes = b.create_vector(&[code]);
        let subgraph = self.subgraph(&mut b);
        let subgraphs = b.create_vector(&vec![subgraph; self.subgraphs]);
        let empty = Buffer::Inside(Vec::new());
        let buffers: Vec<_> = std::iter::once(&empty).chain(&self.buffers).map(|buffer| buffer.write(&mut b)).collect();
        let buffers = b.create_vector(&buffers);
        let start = b.start_table();
        b.push_slot_always(slot(0), self.version);
        b.push_slot_always(slot(1), codes);
        b.push_slot_always(slot(2), subgraphs);
        b.push_slot_always(slot(4), buffers);
        let model = b.end_table(start);
        b.finish(model, Some("TFL3"));
        [b.finished_data(), &self.appended].concat()
    }

    fn subgraph(&self, b: &mut FlatBufferBuilder<'_>) -> Offset {
        let (kind, fields) = &self.options;
        let start = b.start_table();
        fields.iter().for_each(|&(field, value)| b.push_slot_always(slot(field), value));
        let options = b.end_table(start);
        let (inputs, outputs) = (b.create_vector(&self.inputs), b.create_vector(&self.outputs));
        let start = b.start_table();
        b.push_slot_always(slot(1), inputs);
        b.push_slot_always(slot(2), outputs);
        b.push_slot_always(slot(3), *kind);
        b.push_slot_always(slot(4), options);
        let operator = b.end_table(start);
        let operators = b.create_vector(&[operator]);
        let tensors: Vec<_> = self.tensors.iter().map(|tensor| tensor.write(b)).collect();
        let tensors = b.create_vector(&tensors);
        let (inputs, outputs) = (b.create_vector(&self.graph_inputs), b.create_vector(&self.graph_outputs));
        let start = b.start_table();
        b.push_slot_always(slot(0), tensors);
        b.push_slot_always(slot(1), inputs);
        b.push_slot_always(slot(2), outputs);
        b.push_slot_always(slot(3), operators);
        b.end_table(start)
    }

    fn read(&self) -> Result<Graph> {
        tflite::read(&self.bytes())
    }
}

#[track_caller]
fn check(change: impl FnOnce(&mut Model), reason: &str) {
    let mut model = conv();
    change(&mut model);
    assert_eq!(model.read().map(|_| ()).map_err(|error| error.to_string()), Err(reason.to_owned()));
}

#[test]
fn the_model_that_the_other_tests_change_is_read() {
    let graph = conv().read().unwrap();
    assert_eq!((graph.nodes.len(), graph.tensors.len()), (1, 4));
    assert_eq!(graph.tensors[1].data.as_deref(), Some(&[1; 6][..]));
}

#[test]
fn either_field_may_hold_the_operator() {
    for codes in [(3, 0), (0, 3), (3, 3)] {
        assert_eq!(Model { codes, ..conv() }.read().unwrap().nodes[0].op.name(), "CONV_2D");
    }
}

#[test]
fn a_buffer_may_follow_the_flatbuffer() {
    let mut model = conv();
    model.buffers[0] = Buffer::Outside(0, 0);
    let offset = model.bytes().len() as u64;
    model.buffers[0] = Buffer::Outside(offset, 6);
    model.appended = vec![7, 8, 9, 10, 11, 12];
    assert_eq!(model.bytes().len() as u64, offset + 6);
    assert_eq!(model.read().unwrap().tensors[1].data.as_deref(), Some(&[7, 8, 9, 10, 11, 12][..]));
    model.appended.pop();
    let error = model.read().unwrap_err().to_string();
    assert_eq!(error, format!("model: buffer 1: malformed at byte {offset}: appended buffer ends outside the file"));
}

#[test]
fn a_batch_that_is_unknown_is_the_one_of_the_shapes() {
    let mut model = conv();
    model.tensors[0].signature = vec![-1, 4, 4, 2];
    model.read().unwrap();
}

#[test]
fn files_of_another_kind_are_refused() {
    let refused = |bytes: &[u8]| tflite::read(bytes).unwrap_err().to_string();
    for bytes in [&b""[..], b"abc", b"GGUF\x03\0\0\0", &[0; 64]] {
        assert_eq!(refused(bytes), "model: not a TFLite file: the identifier is not TFL3");
    }
    check(|m| m.version = 2, "model: schema version 2 is not supported, only 3");
    check(|m| m.subgraphs = 2, "model: 2 subgraphs are not supported, only one");
    check(|m| m.subgraphs = 0, "model: 0 subgraphs are not supported, only one");
}

#[test]
fn operators_that_are_not_supported_are_named() {
    check(|m| m.codes = (67, 0), "operator 0 (TRANSPOSE_CONV): the operator is not supported");
    check(|m| m.codes = (0, 999), "operator 0 (builtin 999): the operator is not supported");
    let custom = |m: &mut Model| (m.codes, m.custom) = ((32, 32), Some("TFLite_Detection_PostProcess"));
    check(custom, "operator 0 (CUSTOM): the custom operator \"TFLite_Detection_PostProcess\" is not supported");
}

#[test]
fn tensors_that_are_not_supported_are_named() {
    check(|m| m.tensors[1].variable = true, "tensor 1 \"t\": variables are not supported");
    check(|m| m.tensors[1].sparse = true, "tensor 1 \"t\": sparse tensors are not supported");
    check(|m| m.tensors[3].dtype = 5, "tensor 3 \"t\": element type 5 is not supported");
    check(
        |m| m.tensors[0].signature = vec![1, -1, -1, 2],
        "tensor 0 \"t\": the shape [1, -1, -1, 2] is only known at run time, which is not supported",
    );
    check(|m| m.tensors[0].shape = vec![1, 0, 4, 2], "tensor 0 \"t\": the shape [1, 0, 4, 2] has an extent below 1");
    check(|m| m.tensors[0].shape = vec![1; 9], "tensor 0 \"t\": 9 axes are more than the 8 that are supported");
    check(
        |m| m.tensors[0].shape = vec![i32::MAX; 4],
        "tensor 0 \"t\": the shape [2147483647, 2147483647, 2147483647, 2147483647] needs more than 1073741824 bytes",
    );
}

#[test]
fn constants_of_the_wrong_length_are_refused() {
    check(|m| m.buffers[0] = Buffer::Inside(vec![0; 5]), "tensor 1 \"t\": buffer 1 has 5 bytes, the shape needs 6");
    check(|m| m.tensors[1].buffer = 9, "tensor 1 \"t\": buffer 9 does not exist");
}

#[test]
fn quantisations_without_meaning_are_refused() {
    check(|m| m.tensors[0].scales = vec![0.0], "tensor 0 \"t\": scale 0 is not a positive number");
    check(|m| m.tensors[0].scales = vec![f32::NAN], "tensor 0 \"t\": scale NaN is not a positive number");
    check(|m| m.tensors[0].zero_points = vec![128], "tensor 0 \"t\": zero point 128 does not fit I8");
    check(|m| m.tensors[1].scales = vec![0.1, 0.2], "tensor 1 \"t\": 2 scales do not fit axis 0 of [3, 1, 1, 2]");
    check(|m| m.tensors[1].axis = 4, "tensor 1 \"t\": 3 scales do not fit axis 4 of [3, 1, 1, 2]");
    check(|m| m.tensors[1].zero_points = vec![0; 2], "tensor 1 \"t\": 2 zero points for 3 scales");
    check(
        |m| m.tensors[1].zero_points = vec![0, 1, 0],
        "operator 0 (CONV_2D): signed weights I8[3, 1, 1, 2] \"t\" const with a zero point are not supported",
    );
    check(|m| m.tensors[0].scales.clear(), "operator 0 (CONV_2D): I8[1, 4, 4, 2] \"t\" should have one scale");
}

#[test]
fn indices_out_of_range_are_refused() {
    check(|m| m.inputs = vec![0, 4, 2], "operator 0 (CONV_2D): input 4 is not a tensor");
    check(|m| m.inputs = vec![-2, 1, 2], "operator 0 (CONV_2D): input -2 is not a tensor");
    check(|m| m.inputs = vec![0, -1], "operator 0 (CONV_2D): input 1 is missing");
    check(|m| m.outputs = vec![-1], "operator 0 (CONV_2D): output -1 is not a tensor");
    check(|m| m.outputs = vec![], "operator 0 (CONV_2D): has 0 outputs instead of one");
    check(|m| m.graph_inputs = vec![7], "model: input 7 is not a tensor");
    check(|m| m.graph_outputs = vec![], "model: the graph has no output");
}

#[test]
fn values_that_do_not_exist_yet_are_not_read() {
    check(|m| m.graph_inputs = vec![3], "operator 0 (CONV_2D): reads tensor 0 \"t\" before it has a value");
    check(|m| m.graph_inputs = vec![0, 3], "operator 0 (CONV_2D): writes tensor 3 \"t\", which has its value already");
    check(|m| m.graph_inputs = vec![0, 0], "tensor 0 \"t\": is an input of the graph and has its value already");
    check(|m| m.outputs = vec![1], "operator 0 (CONV_2D): its output I8[3, 1, 1, 2] \"t\" const is a constant");
}

#[test]
fn options_that_do_not_fit_are_refused() {
    check(|m| m.options.1.clear(), "operator 0 (CONV_2D): stride 0 is not between 1 and 32768");
    check(|m| m.options.0 = 2, "operator 0 (CONV_2D): has options of kind 2 instead of 1");
    check(|m| m.options.1.push((3, 4)), "operator 0 (CONV_2D): fused activation 4 is not supported");
    check(|m| m.options.1.push((0, 2)), "operator 0 (CONV_2D): padding rule 2 does not exist");
    check(
        |m| m.tensors[3].shape = vec![1, 2, 4, 3],
        "operator 0 (CONV_2D): its output I8[1, 2, 4, 3] \"t\" should have the shape [1, 4, 4, 3]",
    );
    check(
        |m| m.tensors[0].shape = vec![1, 4, 4, 4],
        "operator 0 (CONV_2D): grouped convolution of 4 channels by filters of 2 is not supported",
    );
}
