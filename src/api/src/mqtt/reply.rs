//! From an answer to a payload, and the payloads that describe the daemon.

use bytes::Bytes;
use serde::ser::{Error as _, SerializeSeq};
use serde::{Deserialize, Serialize, Serializer};

use crate::tensor::{Datatype, Tensor};
use crate::{ErrorCode, Failure, Result};

/// An answer, in the terms of the Open Inference Protocol.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InferReply {
    /// As in the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The model that answered.
    pub model_name: String,
    /// Its version.
    pub model_version: String,
    /// How the answer was verified: `trusted`, `trusted-after-retry` or `cpu-only`.
    pub verdict: String,
    /// Where the time went.
    pub timing: TimingMicros,
    /// What was seen, best first.
    pub seen: Vec<SeenObject>,
    /// Raw outputs, where asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputTensor>,
}

/// Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimingMicros {
    /// Between admission and execution.
    pub queued_us: u64,
    /// Decoding and quantising the input.
    pub prepare_us: u64,
    /// On the NPU.
    pub npu_us: u64,
    /// From admission to answer.
    pub total_us: u64,
}

/// Something that was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeenObject {
    /// Name of the class.
    pub label: String,
    /// Index of the class.
    pub class: usize,
    /// Probability, 0 to 1.
    pub score: f32,
    /// Left, top, right, bottom as fractions of the picture. Absent for a class of the whole picture.
    #[serde(rename = "box", skip_serializing_if = "Option::is_none")]
    pub bounds: Option<[f32; 4]>,
}

/// An output in a reply.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputTensor {
    /// The tensor.
    pub tensor: Tensor,
    /// Whether its bytes follow the JSON header.
    pub binary: bool,
}

impl Serialize for OutputTensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Wire<'a> {
            name: &'a str,
            datatype: Datatype,
            shape: &'a [usize],
            #[serde(skip_serializing_if = "Option::is_none")]
            parameters: Option<Parameters>,
            #[serde(skip_serializing_if = "Option::is_none")]
            data: Option<Elements<'a>>,
        }
        #[derive(Serialize)]
        struct Parameters {
            binary_data_size: usize,
        }
        let tensor = &self.tensor;
        Wire {
            name: tensor.name(),
            datatype: tensor.datatype(),
            shape: tensor.shape(),
            parameters: self.binary.then(|| Parameters { binary_data_size: tensor.data().len() }),
            data: (!self.binary).then_some(Elements(tensor)),
        }
        .serialize(serializer)
    }
}

/// The elements of a tensor as a flat JSON array.
struct Elements<'a>(&'a Tensor);

impl Serialize for Elements<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fn seq<S: Serializer, T: Serialize, const N: usize>(
            serializer: S,
            data: &[u8],
            element: fn([u8; N]) -> T,
        ) -> Result<S::Ok, S::Error> {
            let (elements, _) = data.as_chunks();
            let mut seq = serializer.serialize_seq(Some(elements.len()))?;
            for &bytes in elements {
                seq.serialize_element(&element(bytes))?;
            }
            seq.end()
        }
        let data = self.0.data();
        match self.0.datatype() {
            Datatype::Bool => seq(serializer, data, |[byte]: [u8; 1]| byte != 0),
            Datatype::Int8 => seq(serializer, data, i8::from_le_bytes),
            Datatype::Uint8 => seq(serializer, data, u8::from_le_bytes),
            Datatype::Int16 => seq(serializer, data, i16::from_le_bytes),
            Datatype::Int32 => seq(serializer, data, i32::from_le_bytes),
            Datatype::Int64 => seq(serializer, data, i64::from_le_bytes),
            Datatype::Fp32 if data.as_chunks().0.iter().any(|&bytes| !f32::from_le_bytes(bytes).is_finite()) => {
                Err(S::Error::custom("infinities and NaN have no JSON form, ask for binary_data_output"))
            }
            Datatype::Fp32 => seq(serializer, data, f32::from_le_bytes),
            Datatype::Fp16 => Err(S::Error::custom("FP16 has no JSON form, ask for binary_data_output")),
        }
    }
}

impl InferReply {
    /// The payload, and the bytes of its JSON header where tensors follow it.
    ///
    /// # Errors
    /// `Unsupported` where a tensor has no JSON form and the binary form was not asked for.
    pub fn encode(&self) -> Result<(Bytes, Option<usize>)> {
        let mut payload =
            serde_json::to_vec(self).map_err(|error| Failure::new(ErrorCode::Unsupported, error.to_string()))?;
        let header = payload.len();
        let binary = self.outputs.iter().filter(|output| output.binary);
        binary.clone().for_each(|output| payload.extend_from_slice(output.tensor.data()));
        Ok((payload.into(), (binary.count() > 0).then_some(header)))
    }
}

/// The payload of an error reply.
pub fn encode_failure(id: Option<&str>, failure: &Failure) -> Bytes {
    #[derive(Serialize)]
    struct Wire<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a str>,
        error: &'a Failure,
    }
    serde_json::to_vec(&Wire { id, error: failure }).expect("text and codes serialise").into()
}

/// Payload of the metrics topic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Requests admitted since the start.
    pub inferences: u64,
    /// Answers verified at the second attempt.
    pub retried: u64,
    /// Requests without a verifiable answer.
    pub untrusted: u64,
    /// Requests refused because the queue was full.
    pub queue_full: u64,
    /// Requests that wait.
    pub queue_depth: usize,
    /// Requests that may wait.
    pub queue_capacity: usize,
    /// Median time of the newest answers over MQTT, milliseconds; absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
    /// `normal`, `throttled` or `critical`.
    pub thermal_level: String,
    /// Replies that were dropped because the link could not take them.
    pub replies_dropped: u64,
}

/// Payload of a model's meta topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelMeta {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// `detect`, `classify` or `tensor`.
    pub task: String,
    /// Licence.
    pub license: String,
    /// Whether it takes encoded pictures.
    pub takes_pictures: bool,
    /// Class names, by index.
    pub labels: Vec<String>,
    /// What a request provides.
    pub inputs: Vec<TensorMeta>,
    /// What a reply has.
    pub outputs: Vec<TensorMeta>,
}

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorMeta {
    /// Name.
    pub name: String,
    /// Element type.
    pub datatype: Datatype,
    /// Extents, outermost first.
    pub shape: Vec<u64>,
    /// Scale, where quantised as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
    /// Zero point, where quantised as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero_point: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(datatype: Datatype, data: &'static [u8], binary: bool) -> InferReply {
        let shape = [(data.len() / datatype.bytes()) as u64];
        let tensor = Tensor::new("y".into(), datatype, &shape, Bytes::from_static(data)).unwrap();
        InferReply {
            id: None,
            model_name: "m".into(),
            model_version: "1".into(),
            verdict: "trusted".into(),
            timing: TimingMicros { queued_us: 1, prepare_us: 2, npu_us: 3, total_us: 6 },
            seen: Vec::new(),
            outputs: vec![OutputTensor { tensor, binary }],
        }
    }

    #[test]
    fn a_tensor_becomes_a_json_array() {
        let (payload, header) = reply(Datatype::Int16, &[1, 0, 0xfe, 0xff], false).encode().unwrap();
        assert_eq!(header, None);
        let json: serde_json::Value = serde_json::from_slice(&payload).unwrap();
        assert_eq!(json["outputs"][0]["data"], serde_json::json!([1, -2]));
    }

    #[test]
    fn a_binary_tensor_follows_the_header() {
        let (payload, header) = reply(Datatype::Fp16, &[1, 2, 3, 4], true).encode().unwrap();
        let header = header.unwrap();
        assert_eq!(payload[header..], [1, 2, 3, 4]);
        let json: serde_json::Value = serde_json::from_slice(&payload[..header]).unwrap();
        assert_eq!(json["outputs"][0]["parameters"]["binary_data_size"], 4);
    }

    #[test]
    fn numbers_without_a_json_form_are_refused() {
        // Bytes of a half, of an infinity and of NaN.
        for (datatype, data) in [
            (Datatype::Fp16, &[1, 2][..]),
            (Datatype::Fp32, &[0, 0, 0x80, 0x7f]),
            (Datatype::Fp32, &[0, 0, 0xc0, 0x7f]),
        ] {
            assert_eq!(reply(datatype, data, false).encode().unwrap_err().code, ErrorCode::Unsupported);
            reply(datatype, data, true).encode().unwrap();
        }
    }

    #[test]
    fn a_failure_names_its_code() {
        let payload = encode_failure(Some("7"), &Failure::new(ErrorCode::QueueFull, "full"));
        assert_eq!(payload, r#"{"id":"7","error":{"code":"QueueFull","message":"full"}}"#);
    }
}
