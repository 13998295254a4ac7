//! What a header says about a model, and what the model costs.

use std::collections::HashMap;

use super::Tensor;
use super::wire::Value;
use crate::{Error, Result};

/// Architectures whose results on this GPU are known to be wrong, by the first letters of their names, and why.
/// SOURCE: measured by users on a Mali-G610 with llama.cpp's Vulkan backend: garbage, while the CPU is right.
const WRONG_ON_GPU: &[(&str, &str)] = &[("gemma", "models of the Gemma family answer garbage on this GPU")];
/// Bytes of an element of the cache: two halves, a key and a value.
const CACHE_BYTES: u64 = 2;
/// Cells that the cache is rounded up to. SOURCE: llama-context.cpp pads n_ctx to 256.
const CACHE_STEP: u64 = 256;
/// Bytes that a process has beside the model: code, tokenizer, templates.
const PROCESS_BYTES: u64 = 96 << 20;
/// Intermediate results of a layer, in units of its width, that live at the same time.
const LIVE_WIDTHS: u64 = 6;
/// The largest number that the header of a model may have for layers, heads, widths: beyond it sums could overflow.
const LARGEST: u64 = 1 << 24;

/// The metadata.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) metadata: HashMap<String, Value>,
}

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Version of the format.
    pub version: u32,
    /// llama.cpp's name of the architecture.
    pub architecture: String,
    /// The model's own name; empty where it has none.
    pub name: String,
    /// Element type of most bytes, as ggml names it.
    pub quantization: &'static str,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Bytes of the largest tensor.
    pub largest_tensor_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Layers.
    pub layers: u64,
    /// The longest context that the model was trained for, in tokens.
    pub context_length: u64,
    /// Width of a layer.
    pub embedding_length: u64,
    /// Width inside the layers' feed-forward parts; the widest of them.
    pub feed_forward_length: u64,
    /// Tokens of the vocabulary.
    pub vocabulary: u64,
    /// Bytes that one token takes in the cache, with keys and values as halves.
    pub cache_bytes_per_token: u64,
    /// Whether the file has a template for chats.
    pub has_chat_template: bool,
    /// Whether it is a model of embeddings, which generates nothing.
    pub is_embedding: bool,
    /// Why the GPU should not be used.
    pub gpu_warning: Option<&'static str>,
}

/// Memory that a loaded model needs, in bytes: upper estimates from the header alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Weights, which are mapped from the file.
    pub weights: u64,
    /// The cache of keys and values.
    pub cache: u64,
    /// Intermediate results and the process itself.
    pub compute: u64,
    /// What a GPU that computes the prompt needs of its own: intermediate results, and copies of the weights in use.
    pub gpu: u64,
}

impl Memory {
    /// All of it in the machine's memory. A GPU without memory of its own takes from the same.
    pub fn total(&self, with_gpu: bool) -> u64 {
        let gpu = if with_gpu { self.gpu } else { 0 };
        self.weights.saturating_add(self.cache).saturating_add(self.compute).saturating_add(gpu)
    }
}

impl Header {
    /// What the model needs with a context of `context` tokens, of which `ubatch` are computed at once.
    pub fn memory(&self, context: u64, ubatch: u64) -> Memory {
        let cells = context.checked_next_multiple_of(CACHE_STEP).unwrap_or(u64::MAX);
        let widths = self.vocabulary + 2 * self.feed_forward_length + LIVE_WIDTHS * self.embedding_length;
        // A token's results are singles; which tokens it may look at is a row of the mask, in singles and in halves.
        let per_token = widths.saturating_mul(4).saturating_add(cells.saturating_mul(6));
        let activations = per_token.saturating_mul(ubatch);
        Memory {
            weights: self.tensor_bytes,
            cache: cells.saturating_mul(self.cache_bytes_per_token),
            compute: activations.saturating_add(PROCESS_BYTES),
            gpu: activations.saturating_add(self.largest_tensor_bytes.saturating_mul(2)),
        }
    }
}

impl Facts {
    pub(super) fn header(&self, tensors: &[Tensor], version: u32, file_bytes: u64) -> Result<Header> {
        let architecture = self.text("general.architecture")?.ok_or_else(|| missing("general.architecture"))?;
        let of = |key: &str| format!("{architecture}.{key}");
        let layers = self.positive(&of("block_count"))?;
        let embedding_length = self.positive(&of("embedding_length"))?;
        let tensor_bytes = tensors.iter().map(|tensor| tensor.bytes).sum();
        if tensors.is_empty() {
            return Err(Error::file("there are no tensors"));
        }
        Ok(Header {
            version,
            name: self.text("general.name")?.unwrap_or_default().to_owned(),
            quantization: quantization(tensors),
            parameters: tensors.iter().map(|tensor| tensor.elements).fold(0, u64::saturating_add),
            tensor_bytes,
            largest_tensor_bytes: tensors.iter().map(|tensor| tensor.bytes).max().unwrap_or(0),
            file_bytes,
            layers,
            context_length: self.positive(&of("context_length"))?,
            embedding_length,
            feed_forward_length: self.widest(&of("feed_forward_length"))?.unwrap_or(0),
            vocabulary: self.vocabulary(&of("vocab_size"))?,
            cache_bytes_per_token: self.cache_bytes_per_token(architecture, layers, embedding_length)?,
            has_chat_template: self.metadata.contains_key("tokenizer.chat_template"),
            is_embedding: self.metadata.contains_key(&of("pooling_type")),
            gpu_warning: WRONG_ON_GPU.iter().find(|(prefix, _)| architecture.starts_with(prefix)).map(|(_, why)| *why),
            architecture: architecture.to_owned(),
        })
    }

    /// Keys and values of all layers. Layers without attention have no heads here.
    fn cache_bytes_per_token(&self, architecture: &str, layers: u64, embedding_length: u64) -> Result<u64> {
        let of = |key: &str| format!("{architecture}.{key}");
        let heads = self.widest(&of("attention.head_count"))?.unwrap_or(0);
        let default = embedding_length.checked_div(heads).unwrap_or(0);
        let key_length = self.number(&of("attention.key_length"))?.unwrap_or(default);
        let value_length = self.number(&of("attention.value_length"))?.unwrap_or(default);
        let key = of("attention.head_count_kv");
        let cached_heads = match self.metadata.get(&key) {
            Some(Value::Numbers(of_layers)) if of_layers.len() as u64 == layers => {
                of_layers.iter().try_fold(0u64, |sum, &heads| Some(sum + bounded(heads)?)).ok_or_else(|| odd(&key))?
            }
            _ => layers * self.number(&key)?.unwrap_or(heads),
        };
        cached_heads
            .checked_mul(key_length + value_length)
            .and_then(|elements| elements.checked_mul(CACHE_BYTES))
            .ok_or_else(|| Error::file(format!("{key}: the cache of one token is beyond counting")))
    }

    fn vocabulary(&self, key: &str) -> Result<u64> {
        match self.metadata.get("tokenizer.ggml.tokens") {
            Some(Value::List { length }) => Ok(*length),
            Some(_) => Err(odd("tokenizer.ggml.tokens")),
            None => Ok(self.number(key)?.unwrap_or(0)),
        }
    }

    fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) if !text.is_empty() => Ok(Some(text)),
            Some(_) => Err(odd(key)),
        }
    }

    fn number(&self, key: &str) -> Result<Option<u64>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(&Value::Number(number)) => bounded(number).ok_or_else(|| odd(key)).map(Some),
            Some(_) => Err(odd(key)),
        }
    }

    fn positive(&self, key: &str) -> Result<u64> {
        match self.number(key)? {
            None => Err(missing(key)),
            Some(0) => Err(odd(key)),
            Some(number) => Ok(number),
        }
    }

    /// The largest of one number per layer, or the one number for all.
    fn widest(&self, key: &str) -> Result<Option<u64>> {
        match self.metadata.get(key) {
            Some(Value::Numbers(numbers)) => {
                numbers.iter().max().map(|&number| bounded(number).ok_or_else(|| odd(key))).transpose()
            }
            _ => self.number(key),
        }
    }
}

/// The element type of most bytes.
fn quantization(tensors: &[Tensor]) -> &'static str {
    let mut bytes: HashMap<&'static str, u64> = HashMap::new();
    for tensor in tensors {
        *bytes.entry(tensor.kind.name).or_default() += tensor.bytes;
    }
    bytes.into_iter().max_by_key(|&(name, bytes)| (bytes, name)).map_or("", |(name, _)| name)
}

fn bounded(number: u64) -> Option<u64> {
    (number <= LARGEST).then_some(number)
}

fn missing(key: &str) -> Error {
    Error::file(format!("{key} is missing"))
}

fn odd(key: &str) -> Error {
    Error::file(format!("{key} is not what it should be"))
}
