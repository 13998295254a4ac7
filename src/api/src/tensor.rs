//! Tensors as clients write them, and the options of a request.
//!
//! Datatypes are named as in the Open Inference Protocol, on D-Bus too. Bytes are little-endian, row-major.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Failure, Result};

/// Element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Datatype {
    /// One byte, 0 or 1.
    Bool,
    /// Signed 8-bit integer.
    Int8,
    /// Unsigned 8-bit integer.
    Uint8,
    /// Signed 16-bit integer.
    Int16,
    /// Signed 32-bit integer.
    Int32,
    /// Signed 64-bit integer.
    Int64,
    /// IEEE half precision. It has no JSON form.
    Fp16,
    /// IEEE single precision.
    Fp32,
}

impl Datatype {
    /// Every type.
    pub const ALL: [Self; 8] =
        [Self::Bool, Self::Int8, Self::Uint8, Self::Int16, Self::Int32, Self::Int64, Self::Fp16, Self::Fp32];

    /// The name, for example `INT8`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Int8 => "INT8",
            Self::Uint8 => "UINT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Fp32 => "FP32",
        }
    }

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Fp16 => 2,
            Self::Int32 | Self::Fp32 => 4,
            Self::Int64 => 8,
        }
    }

    /// The type of a name.
    ///
    /// # Errors
    /// `InvalidTensor` for a name that is none of [`Datatype::ALL`].
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|datatype| datatype.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Failure::invalid_tensor(format!("datatype {name:?} is none of {names}"))
        })
    }
}

/// A tensor whose bytes fit its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    name: String,
    datatype: Datatype,
    shape: Vec<usize>,
    data: Bytes,
}

impl Tensor {
    /// Checks that `data` is as long as `shape` and `datatype` say.
    ///
    /// # Errors
    /// `InvalidTensor` where it is not.
    pub fn new(name: String, datatype: Datatype, shape: &[u64], data: Bytes) -> Result<Self> {
        let extents: Option<Vec<usize>> = shape.iter().map(|&extent| usize::try_from(extent).ok()).collect();
        let bytes = extents
            .as_ref()
            .and_then(|extents| extents.iter().try_fold(datatype.bytes(), |bytes, &extent| bytes.checked_mul(extent)));
        let (Some(shape), Some(bytes)) = (extents, bytes) else {
            return Err(Failure::invalid_tensor(format!("tensor {name:?}: shape {shape:?} is larger than memory")));
        };
        if bytes != data.len() {
            let (type_name, len) = (datatype.name(), data.len());
            return Err(Failure::invalid_tensor(format!(
                "tensor {name:?}: shape {shape:?} of {type_name} is {bytes} bytes, the data has {len}"
            )));
        }
        Ok(Self { name, datatype, shape, data })
    }

    /// Name in the model. May be empty where the model has one input.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Element type.
    pub fn datatype(&self) -> Datatype {
        self.datatype
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// Extents as interfaces carry them.
    pub fn wire_shape(&self) -> Vec<u64> {
        // CAST: usize has at most 64 bits.
        self.shape.iter().map(|&extent| extent as u64).collect()
    }
}

/// Who goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Somebody waits.
    #[default]
    Interactive,
    /// A camera; the next frame comes soon.
    Stream,
    /// Whenever there is time.
    Batch,
}

/// Value of an option, whatever carried it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptionValue<'a> {
    /// Text.
    Text(&'a str),
    /// A number without sign or fraction.
    Number(u64),
    /// Yes or no.
    Flag(bool),
    /// What no option takes.
    Other,
}

/// Options of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `priority`: who goes first.
    pub priority: Priority,
    /// `deadline-ms`: the answer loses its worth so many milliseconds after the request.
    pub deadline_ms: Option<u64>,
    /// `outputs`: whether raw output tensors are returned. Without it, tensors answer tensors.
    pub outputs: Option<bool>,
}

impl Options {
    /// Key of [`Options::priority`].
    pub const PRIORITY: &str = "priority";
    /// Key of [`Options::deadline_ms`].
    pub const DEADLINE_MS: &str = "deadline-ms";
    /// Key of [`Options::outputs`].
    pub const OUTPUTS: &str = "outputs";

    /// Sets an option by its key.
    ///
    /// # Errors
    /// `InvalidArgs` for an unknown key or a value of the wrong type.
    pub fn set(&mut self, key: &str, value: OptionValue<'_>) -> Result<()> {
        match (key, value) {
            (Self::PRIORITY, OptionValue::Text("interactive")) => self.priority = Priority::Interactive,
            (Self::PRIORITY, OptionValue::Text("stream")) => self.priority = Priority::Stream,
            (Self::PRIORITY, OptionValue::Text("batch")) => self.priority = Priority::Batch,
            (Self::PRIORITY, _) => {
                return Err(Failure::invalid_args("option \"priority\" is interactive, stream or batch"));
            }
            (Self::DEADLINE_MS, OptionValue::Number(ms)) => self.deadline_ms = Some(ms),
            (Self::DEADLINE_MS, _) => {
                return Err(Failure::invalid_args("option \"deadline-ms\" is a number of milliseconds"));
            }
            (Self::OUTPUTS, OptionValue::Flag(outputs)) => self.outputs = Some(outputs),
            (Self::OUTPUTS, _) => return Err(Failure::invalid_args("option \"outputs\" is true or false")),
            (key, _) => return Err(Failure::invalid_args(format!("unknown option {key:?}"))),
        }
        Ok(())
    }

    /// Sets an option from text, as MQTT user properties carry it.
    ///
    /// # Errors
    /// As [`Options::set`].
    pub fn set_text(&mut self, key: &str, text: &str) -> Result<()> {
        let value = match key {
            Self::DEADLINE_MS => text.parse().map_or(OptionValue::Other, OptionValue::Number),
            Self::OUTPUTS => text.parse().map_or(OptionValue::Other, OptionValue::Flag),
            _ => OptionValue::Text(text),
        };
        self.set(key, value)
    }

    /// Whether `key` is an option.
    pub fn knows(key: &str) -> bool {
        [Self::PRIORITY, Self::DEADLINE_MS, Self::OUTPUTS].contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datatype_has_one_spelling() {
        for datatype in Datatype::ALL {
            assert_eq!(serde_json::to_string(&datatype).unwrap(), format!("{:?}", datatype.name()));
            assert_eq!(Datatype::parse(datatype.name()).unwrap(), datatype);
        }
    }

    #[test]
    fn a_tensor_whose_bytes_do_not_fit_its_shape_is_refused() {
        for (shape, len) in [(vec![2, 3], 5), (vec![0], 1), (vec![u64::MAX, 2], 0), (vec![], 0)] {
            Tensor::new("x".into(), Datatype::Int8, &shape, Bytes::from(vec![0; len])).unwrap_err();
        }
        Tensor::new("x".into(), Datatype::Int16, &[2, 3], Bytes::from(vec![0; 12])).unwrap();
    }

    #[test]
    fn an_unknown_option_or_a_value_of_the_wrong_type_is_refused() {
        let mut options = Options::default();
        for (key, value) in [
            ("colour", OptionValue::Text("red")),
            ("priority", OptionValue::Text("urgent")),
            ("deadline-ms", OptionValue::Text("5")),
            ("outputs", OptionValue::Number(1)),
        ] {
            assert_eq!(options.set(key, value).unwrap_err().code, crate::ErrorCode::InvalidArgs);
        }
        options.set_text("deadline-ms", "-5").unwrap_err();
        options.set_text("deadline-ms", "250").unwrap();
        options.set_text("outputs", "true").unwrap();
        assert_eq!(options, Options { priority: Priority::Interactive, deadline_ms: Some(250), outputs: Some(true) });
    }
}
