//! From a payload to a request.
//!
//! ```text
//! payload ─▶ form ─▶ picture
//!                 └▶ JSON ─▶ envelope (id, reply_to) ─▶ tensors or picture
//!                 └▶ binary: JSON header ‖ bytes of the tensors, in order
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{JSON, OCTET_STREAM};
use crate::tensor::{Datatype, OptionValue, Options, Tensor};
use crate::{Failure, Result};

/// How a payload is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An encoded picture.
    Picture,
    /// A JSON object.
    Json,
    /// A JSON header and the bytes of the tensors.
    Binary {
        /// Bytes of the header.
        header_bytes: usize,
    },
}

impl Form {
    /// Decides by content type; without one, as MQTT 3.1.1 has none, by the first bytes.
    ///
    /// # Errors
    /// `InvalidTensor` for a type that no request has, or a missing or malformed header length.
    pub fn of(content_type: Option<&str>, header_length: Option<&str>, payload: &[u8]) -> Result<Self> {
        let essence = content_type.map(|text| text.split(';').next().unwrap_or(text).trim());
        match essence {
            Some("image/jpeg" | "image/png") => Ok(Self::Picture),
            Some(JSON) => Ok(Self::Json),
            Some(OCTET_STREAM) => {
                let length = header_length.ok_or_else(|| {
                    Failure::invalid_tensor(format!("user property {:?} is missing", super::HEADER_LENGTH))
                })?;
                let header_bytes = length.parse().map_err(|_| {
                    Failure::invalid_tensor(format!("user property {:?} is {length:?}", super::HEADER_LENGTH))
                })?;
                Ok(Self::Binary { header_bytes })
            }
            Some(other) => Err(Failure::invalid_tensor(format!("content type {other:?} is none of a request"))),
            None if payload.starts_with(b"\xff\xd8\xff") || payload.starts_with(b"\x89PNG") => Ok(Self::Picture),
            None if payload.trim_ascii_start().starts_with(b"{") => Ok(Self::Json),
            None => Err(Failure::invalid_tensor("no content type, and the payload is neither JPEG, PNG nor JSON")),
        }
    }
}

/// What a JSON request says about its reply. Read apart, so that a malformed request is answered as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Envelope {
    /// Comes back in the reply.
    #[serde(default, deserialize_with = "text")]
    pub id: Option<String>,
    /// Topic of the reply, for clients without Response Topic.
    #[serde(default, deserialize_with = "text")]
    pub reply_to: Option<String>,
}

/// A text, or nothing where something else stands: [`decode_request`] finds the fault, and the other field tells whom.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<String>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(value.as_str().map(str::to_owned))
}

/// Reads the envelope of a JSON or binary request; empty where there is none.
pub fn envelope(form: Form, payload: &[u8]) -> Envelope {
    let json = match form {
        Form::Picture => None,
        Form::Json => Some(payload),
        Form::Binary { header_bytes } => payload.get(..header_bytes),
    };
    json.and_then(|json| serde_json::from_slice(json).ok()).unwrap_or_default()
}

/// A decoded request.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// What the model sees.
    pub body: FrameBody,
    /// How it is served.
    pub options: Options,
    /// Whether the reply carries its tensors in binary form.
    pub binary_reply: bool,
}

/// What a model sees.
#[derive(Clone, Debug, PartialEq)]
pub enum FrameBody {
    /// An encoded picture.
    Picture(Bytes),
    /// One tensor per input.
    Tensors(Vec<Tensor>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireRequest<'a> {
    #[serde(default, rename = "id")]
    _id: Option<String>,
    #[serde(default, rename = "reply_to")]
    _reply_to: Option<String>,
    #[serde(default)]
    parameters: serde_json::Map<String, serde_json::Value>,
    #[serde(default, borrow)]
    inputs: Option<Vec<WireInput<'a>>>,
    #[serde(default)]
    picture: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireInput<'a> {
    #[serde(default)]
    name: String,
    shape: Vec<u64>,
    datatype: String,
    #[serde(default)]
    parameters: InputParameters,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct InputParameters {
    binary_data_size: Option<usize>,
}

/// Decodes a request.
///
/// # Errors
/// `InvalidTensor` for what is malformed or does not fit together, `InvalidArgs` for an unknown parameter.
pub fn decode_request(form: Form, payload: &Bytes) -> Result<Frame> {
    match form {
        Form::Picture => {
            Ok(Frame { body: FrameBody::Picture(payload.clone()), options: Options::default(), binary_reply: false })
        }
        Form::Json => decode_json(payload, Bytes::new(), false),
        Form::Binary { header_bytes } if header_bytes <= payload.len() => {
            decode_json(&payload[..header_bytes], payload.slice(header_bytes..), true)
        }
        Form::Binary { header_bytes } => {
            let len = payload.len();
            Err(Failure::invalid_tensor(format!("the header has {header_bytes} bytes, the payload only {len}")))
        }
    }
}

fn decode_json(json: &[u8], mut binary: Bytes, binary_reply: bool) -> Result<Frame> {
    let request: WireRequest<'_> =
        serde_json::from_slice(json).map_err(|error| Failure::invalid_tensor(format!("malformed request: {error}")))?;
    let mut frame = Frame { body: FrameBody::Tensors(Vec::new()), options: Options::default(), binary_reply };
    for (key, value) in &request.parameters {
        set_parameter(&mut frame, key, value)?;
    }
    frame.body = match (request.picture, request.inputs) {
        (Some(picture), None) => FrameBody::Picture(
            STANDARD
                .decode(picture)
                .map_err(|error| Failure::invalid_tensor(format!("picture is not base64: {error}")))?
                .into(),
        ),
        (None, Some(inputs)) => {
            FrameBody::Tensors(inputs.into_iter().map(|input| decode_input(input, &mut binary)).collect::<Result<_>>()?)
        }
        _ => return Err(Failure::invalid_tensor("a request has either \"inputs\" or \"picture\"")),
    };
    if !binary.is_empty() {
        let len = binary.len();
        return Err(Failure::invalid_tensor(format!("{len} bytes follow the last tensor")));
    }
    Ok(frame)
}

fn set_parameter(frame: &mut Frame, key: &str, value: &serde_json::Value) -> Result<()> {
    if key == "binary_data_output" {
        frame.binary_reply = value
            .as_bool()
            .ok_or_else(|| Failure::invalid_args("parameter \"binary_data_output\" is true or false"))?;
        return Ok(());
    }
    let value = match value {
        serde_json::Value::String(text) => OptionValue::Text(text),
        serde_json::Value::Bool(flag) => OptionValue::Flag(*flag),
        serde_json::Value::Number(number) => number.as_u64().map_or(OptionValue::Other, OptionValue::Number),
        _ => OptionValue::Other,
    };
    frame.options.set(key, value)
}

fn decode_input(input: WireInput<'_>, binary: &mut Bytes) -> Result<Tensor> {
    let WireInput { name, shape, datatype, parameters, data } = input;
    let datatype = Datatype::parse(&datatype)?;
    let data = match (data, parameters.binary_data_size) {
        (Some(data), None) => {
            elements(datatype, data).map_err(|error| Failure::invalid_tensor(format!("tensor {name:?}: {error}")))?
        }
        (None, Some(size)) if size <= binary.len() => binary.split_to(size),
        (None, Some(size)) => {
            let left = binary.len();
            return Err(Failure::invalid_tensor(format!(
                "tensor {name:?}: {size} bytes are announced, {left} are left"
            )));
        }
        _ => {
            return Err(Failure::invalid_tensor(format!(
                "tensor {name:?} has either \"data\" or \"binary_data_size\""
            )));
        }
    };
    Tensor::new(name, datatype, &shape, data)
}

/// Elements of a JSON array, nested or flat, as little-endian bytes.
fn elements(datatype: Datatype, json: &RawValue) -> serde_json::Result<Bytes> {
    let mut out = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_str(json.get());
    Elements { datatype, out: &mut out }.deserialize(&mut deserializer)?;
    Ok(out.into())
}

struct Elements<'a> {
    datatype: Datatype,
    out: &'a mut Vec<u8>,
}

impl Elements<'_> {
    fn integer<T, E, const N: usize>(self, value: impl TryInto<T>, bytes: fn(T) -> [u8; N]) -> Result<(), E>
    where
        E: serde::de::Error,
    {
        let value =
            value.try_into().map_err(|_| E::custom(format!("a value does not fit {}", self.datatype.name())))?;
        self.out.extend_from_slice(&bytes(value));
        Ok(())
    }

    fn any_integer<E: serde::de::Error>(self, value: i128) -> Result<(), E> {
        match self.datatype {
            Datatype::Int8 => self.integer(value, i8::to_le_bytes),
            Datatype::Uint8 => self.integer(value, u8::to_le_bytes),
            Datatype::Int16 => self.integer(value, i16::to_le_bytes),
            Datatype::Int32 => self.integer(value, i32::to_le_bytes),
            Datatype::Int64 => self.integer(value, i64::to_le_bytes),
            // CAST: FP32 keeps the nearest value, as its JSON numbers do.
            Datatype::Fp32 => self.float(value as f64),
            Datatype::Fp16 => Err(E::custom("FP16 has no JSON form, send it in binary form")),
            Datatype::Bool => Err(E::custom("BOOL elements are true or false")),
        }
    }

    fn float<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        match self.datatype {
            Datatype::Fp32 => {
                // CAST: FP32 keeps the nearest value; beyond its largest there is none.
                let nearest = value as f32;
                if nearest.is_infinite() {
                    return Err(E::custom(format!("{value} does not fit FP32")));
                }
                self.out.extend_from_slice(&nearest.to_le_bytes());
                Ok(())
            }
            Datatype::Fp16 => Err(E::custom("FP16 has no JSON form, send it in binary form")),
            other => Err(E::custom(format!("{value} is no {}", other.name()))),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Elements<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} elements, or arrays of them", self.datatype.name())
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        if self.datatype != Datatype::Bool {
            return Err(E::custom(format!("{value} is no {}", self.datatype.name())));
        }
        self.out.push(value.into());
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.any_integer(value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.any_integer(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.float(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        while elements.next_element_seed(Elements { datatype: self.datatype, out: &mut *self.out })?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;

    fn json(text: &str) -> Result<Frame> {
        decode_request(Form::Json, &Bytes::copy_from_slice(text.as_bytes()))
    }

    fn data(datatype: &str, shape: &str, data: &str) -> Result<Bytes> {
        let text = format!(r#"{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":{shape},"data":{data}}}]}}"#);
        let FrameBody::Tensors(tensors) = json(&text)?.body else { panic!("tensors were sent") };
        Ok(tensors[0].data().clone())
    }

    #[test]
    fn flat_and_nested_arrays_are_the_same_tensor() {
        assert_eq!(data("INT8", "[2,2]", "[[1,-2],[3,127]]").unwrap(), data("INT8", "[2,2]", "[1,-2,3,127]").unwrap());
        assert_eq!(data("FP32", "[2]", "[1, 0.5]").unwrap(), [1f32.to_le_bytes(), 0.5f32.to_le_bytes()].concat());
        assert_eq!(data("INT16", "[1]", "[-2]").unwrap(), (-2i16).to_le_bytes()[..]);
        assert_eq!(data("BOOL", "[2]", "[true,false]").unwrap(), [1, 0][..]);
    }

    #[test]
    fn an_element_that_its_type_cannot_hold_is_refused() {
        for (datatype, elements) in [
            ("INT8", "[128]"),
            ("UINT8", "[-1]"),
            ("INT8", "[1.5]"),
            ("INT8", "[true]"),
            ("BOOL", "[1]"),
            ("FP16", "[1]"),
            ("INT32", "[\"1\"]"),
            ("INT32", "{}"),
            ("INT64", "[9223372036854775808]"),
            ("FP32", "[1e39]"),
            ("FP32", "[-1e39]"),
            ("FP32", "[1e999]"),
            ("INT4", "[1]"),
        ] {
            let failure = data(datatype, "[1]", elements).unwrap_err();
            assert_eq!(failure.code, ErrorCode::InvalidTensor, "{datatype} {elements}");
        }
    }

    #[test]
    fn a_request_that_does_not_fit_together_is_refused() {
        for text in [
            "",
            "[]",
            "{}",
            r#"{"inputs":[],"picture":""}"#,
            r#"{"picture":"no base64!"}"#,
            r#"{"inputs":[{"datatype":"INT8","shape":[1]}]}"#,
            r#"{"inputs":[{"datatype":"INT8","shape":[1],"data":[1],"parameters":{"binary_data_size":1}}]}"#,
            r#"{"inputs":[{"datatype":"INT8","shape":[1],"parameters":{"binary_data_size":1}}]}"#,
            r#"{"inputs":[{"datatype":"INT8","shape":[1],"data":[1]}],"colour":1}"#,
            r#"{"inputs":[{"datatype":"INT8","shape":[1],"data":[1]}],"id":7}"#,
        ] {
            assert_eq!(json(text).unwrap_err().code, ErrorCode::InvalidTensor, "{text}");
        }
    }

    #[test]
    fn parameters_are_options() {
        let frame = json(r#"{"picture":"","parameters":{"deadline-ms":5,"outputs":true,"binary_data_output":true}}"#);
        let frame = frame.unwrap();
        assert_eq!(frame.options.deadline_ms, Some(5));
        assert!(frame.binary_reply);
        let failure = json(r#"{"picture":"","parameters":{"colour":5}}"#).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidArgs);
    }

    #[test]
    fn the_binary_form_takes_tensors_in_order() {
        let header = r#"{"inputs":[{"name":"a","datatype":"INT8","shape":[2],"parameters":{"binary_data_size":2}},{"name":"b","datatype":"INT16","shape":[1],"parameters":{"binary_data_size":2}}]}"#;
        let payload = |tail: &[u8]| Bytes::from([header.as_bytes(), tail].concat());
        let form = Form::Binary { header_bytes: header.len() };
        let FrameBody::Tensors(tensors) = decode_request(form, &payload(&[1, 2, 3, 4])).unwrap().body else {
            panic!("tensors were sent")
        };
        assert_eq!((&tensors[0].data()[..], &tensors[1].data()[..]), (&[1, 2][..], &[3, 4][..]));
        for tail in [&[1, 2, 3][..], &[1, 2, 3, 4, 5]] {
            decode_request(form, &payload(tail)).unwrap_err();
        }
        decode_request(Form::Binary { header_bytes: 10_000 }, &payload(&[])).unwrap_err();
    }

    #[test]
    fn the_form_follows_the_content_type_and_else_the_first_bytes() {
        assert_eq!(Form::of(Some("image/png"), None, b"").unwrap(), Form::Picture);
        assert_eq!(Form::of(Some("application/json; charset=utf-8"), None, b"").unwrap(), Form::Json);
        assert_eq!(Form::of(Some(OCTET_STREAM), Some("7"), b"").unwrap(), Form::Binary { header_bytes: 7 });
        assert_eq!(Form::of(None, None, b"\xff\xd8\xff\xe0").unwrap(), Form::Picture);
        assert_eq!(Form::of(None, None, b" {").unwrap(), Form::Json);
        for (content_type, length) in
            [(Some(OCTET_STREAM), None), (Some(OCTET_STREAM), Some("-1")), (Some("text/plain"), None), (None, None)]
        {
            Form::of(content_type, length, b"abc").unwrap_err();
        }
    }

    #[test]
    fn the_envelope_of_a_malformed_request_is_read() {
        let text = br#"{"id":"7","reply_to":"me/answers","inputs":"nonsense"}"#;
        let expected = Envelope { id: Some("7".into()), reply_to: Some("me/answers".into()) };
        assert_eq!(envelope(Form::Json, text), expected);
        let text = br#"{"id":7,"reply_to":"me/answers"}"#;
        assert_eq!(envelope(Form::Json, text), Envelope { id: None, ..expected });
        assert_eq!(envelope(Form::Json, b"{"), Envelope::default());
        assert_eq!(envelope(Form::Binary { header_bytes: 99 }, text), Envelope::default());
    }
}
