//! Topics and payloads of language models.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Envelope, OFFLINE, ONLINE, Topics};
use crate::text::{Chat, ChatOptions, Message, Usage};
use crate::{Failure, Result};

/// Payload of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireRequest {
    #[serde(default, rename = "id")]
    _id: Option<String>,
    #[serde(default, rename = "reply_to")]
    _reply_to: Option<String>,
    messages: Vec<Message>,
    #[serde(default)]
    options: ChatOptions,
}

/// Payload of a reply: one of several, which the user properties `seq` and `final` number as well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatReply {
    /// As in the request.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<String>,
    /// Its place, from 0.
    pub seq: u64,
    /// Whether it is the last.
    pub r#final: bool,
    /// What was written since the reply before.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub text: String,
    /// Tokens of the prompt that are read, and all of them; while it is read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reading: Option<(u64, u64)>,
    /// Why the answer ended, `stop` or `length`; in the last reply.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub finish_reason: Option<String>,
    /// What it cost; in the last reply.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub usage: Option<Usage>,
    /// Why there is no more; in the last reply.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<Failure>,
}

/// Payload of a language model's meta topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatModelMeta {
    /// Name.
    pub name: String,
    /// llama.cpp's name of the architecture.
    pub architecture: String,
    /// Element type of most weights.
    pub quantization: String,
    /// Weights.
    pub parameters: u64,
    /// The longest context, in tokens.
    pub context_length: u64,
    /// `idle`, `starting`, `ready` or `lost`.
    pub state: String,
    /// Where it computes; empty while never started.
    pub placement: String,
}

/// The envelope of a request, also of a malformed one.
pub fn chat_envelope(payload: &[u8]) -> Envelope {
    serde_json::from_slice(payload).unwrap_or_default()
}

/// Decodes a request.
///
/// # Errors
/// `InvalidArgs`, with what is wrong and where.
pub fn decode_chat(payload: &Bytes) -> Result<Chat> {
    let request: WireRequest =
        serde_json::from_slice(payload).map_err(|error| Failure::invalid_args(format!("chat request: {error}")))?;
    let chat = Chat { messages: request.messages, options: request.options };
    chat.check()?;
    Ok(chat)
}

impl Topics {
    /// Whether the daemon of language models serves.
    pub fn llm_state(&self) -> String {
        format!("cairn/{}/llm/state", self.device())
    }

    /// Requests for one language model, or for `+`, any.
    pub fn llm_request(&self, model: &str) -> String {
        format!("cairn/{}/llm/{model}/request", self.device())
    }

    /// What a language model is.
    pub fn llm_meta(&self, model: &str) -> String {
        format!("cairn/{}/llm/{model}/meta", self.device())
    }

    /// The model that a topic of [`Self::llm_request`] is about.
    pub fn llm_model<'a>(&self, topic: &'a str) -> Option<&'a str> {
        let rest = topic.strip_prefix("cairn/")?.strip_prefix(self.device())?.strip_prefix("/llm/")?;
        rest.strip_suffix("/request").filter(|model| super::is_segment(model))
    }

    /// Home Assistant's discovery of the sensors of language models.
    pub fn home_assistant_llm(&self) -> String {
        format!("homeassistant/device/{}_llm/config", self.home_assistant_id())
    }
}

/// Payload of [`Topics::home_assistant_llm`]. `version` is that of the daemon.
pub fn llm_discovery(topics: &Topics, version: &str) -> Value {
    let id = topics.home_assistant_id();
    json!({
        "dev": {"ids": [id], "name": format!("Cairn {}", topics.device()), "mf": "Cairn", "mdl": "NPU inference"},
        "o": {"name": "cairn", "sw": version},
        "cmps": {"llm_state": {
            "p": "binary_sensor",
            "name": "Language models",
            "unique_id": format!("{id}_llm_state"),
            "device_class": "connectivity",
            "state_topic": topics.llm_state(),
            "payload_on": ONLINE,
            "payload_off": OFFLINE,
        }},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &'static str) -> Result<Chat> {
        decode_chat(&Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn a_request_is_read_with_its_options() {
        let chat = decode(
            r#"{"id":"1","reply_to":"r","messages":[{"role":"user","content":"hi"}],
               "options":{"max_tokens":5,"temperature":0,"priority":"batch"}}"#,
        )
        .unwrap();
        assert_eq!((chat.messages.len(), chat.options.max_tokens), (1, Some(5)));
        assert_eq!(chat.options.priority, crate::tensor::Priority::Batch);
        let envelope = chat_envelope(br#"{"id":"1","reply_to":"r","messages":7}"#);
        assert_eq!((envelope.id.as_deref(), envelope.reply_to.as_deref()), (Some("1"), Some("r")));
    }

    #[test]
    fn a_malformed_request_is_refused_with_the_place() {
        for (text, words) in [
            ("{", "line 1 column 1"),
            (r#"{"messages":[]}"#, "0 messages"),
            (r#"{"messages":[{"role":"judge","content":""}]}"#, "unknown variant `judge`"),
            (r#"{"messages":[{"role":"user","content":"x"}],"options":{"colour":1}}"#, "unknown field `colour`"),
            (r#"{"messages":[{"role":"user","content":"x"}],"options":{"temperature":-1}}"#, "temperature"),
        ] {
            let failure = decode(text).unwrap_err();
            assert!(failure.message.contains(words), "{text}: {failure}");
        }
    }

    #[test]
    fn a_topic_names_its_model() {
        let topics = Topics::new("d").unwrap();
        assert_eq!(topics.llm_model(&topics.llm_request("smol")), Some("smol"));
        for topic in
            ["cairn/e/llm/smol/request", "cairn/d/llm/a/b/request", "cairn/d/llm/state", "cairn/d/llm//request"]
        {
            assert_eq!(topics.llm_model(topic), None);
        }
    }
}
