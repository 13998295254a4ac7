//! Chats and the options of their answers, as clients write them.

use serde::{Deserialize, Serialize};

use crate::tensor::Priority;
use crate::{Failure, Result};

/// Messages of a chat.
const MESSAGES: usize = 1024;
/// Bytes of all messages.
const CHAT_BYTES: usize = 4 << 20;
/// Texts that end an answer, and bytes of one.
const STOPS: (usize, usize) = (16, 256);
/// The hottest temperature. Above 2 nothing but noise comes out; the bound only keeps typing errors away.
const HOTTEST: f64 = 100.0;

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Who made the assistant.
    System,
    /// Who asks.
    User,
    /// Who answers.
    Assistant,
}

impl Role {
    /// The role of a name.
    ///
    /// # Errors
    /// `InvalidArgs` for a name that is none.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "system" => Ok(Self::System),
            "user" => Ok(Self::User),
            "assistant" => Ok(Self::Assistant),
            _ => Err(Failure::invalid_args(format!("role {name:?} is none of system, user, assistant"))),
        }
    }
}

/// Options of an answer. What is not said is as the model's maker wants it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChatOptions {
    /// The longest answer, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// How far from the likeliest token; 0 takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Only tokens that have this probability together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Only so many tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// What chance begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// Texts that end the answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// The answer loses its worth so many milliseconds after the request.
    #[serde(skip_serializing)]
    pub deadline_ms: Option<u64>,
    /// Who goes when the machine is hot.
    #[serde(skip_serializing)]
    pub priority: Priority,
}

/// A chat that is to be answered, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// How.
    pub options: ChatOptions,
}

impl Chat {
    /// Checks what no type can.
    ///
    /// # Errors
    /// `InvalidArgs`, with what is wrong.
    pub fn check(&self) -> Result<()> {
        let count = self.messages.len();
        if !(1..=MESSAGES).contains(&count) {
            return Err(Failure::invalid_args(format!("{count} messages, 1 to {MESSAGES} are allowed")));
        }
        let bytes = self.bytes();
        if bytes > CHAT_BYTES {
            return Err(Failure::invalid_args(format!("the messages have {bytes} bytes, the limit is {CHAT_BYTES}")));
        }
        self.options.check()
    }

    /// Bytes of all messages.
    pub fn bytes(&self) -> usize {
        self.messages.iter().map(|message| message.content.len()).sum()
    }
}

impl ChatOptions {
    fn check(&self) -> Result<()> {
        let wrong = |key: &str, reason: &str| Err(Failure::invalid_args(format!("option {key:?} {reason}")));
        if self.temperature.is_some_and(|value| !(0.0..=HOTTEST).contains(&value)) {
            return wrong("temperature", "is not 0 to 100");
        }
        if self.top_p.is_some_and(|value| !(value > 0.0 && value <= 1.0)) {
            return wrong("top-p", "is not above 0 and at most 1");
        }
        if self.max_tokens == Some(0) {
            return wrong("max-tokens", "is 0");
        }
        if self.stop.len() > STOPS.0 || self.stop.iter().any(|stop| stop.is_empty() || stop.len() > STOPS.1) {
            return wrong("stop", "is not up to 16 texts of 1 to 256 bytes");
        }
        Ok(())
    }
}

/// What an answer cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Of them not read again, because the chat before began the same.
    pub cached_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
    /// Time in the queue, microseconds.
    pub queued_us: u64,
    /// What the server took to read the prompt, by its own clock, microseconds.
    pub prompt_us: u64,
    /// From the start of the work to the first token, microseconds.
    pub first_token_us: u64,
    /// From the request to the end, microseconds.
    pub total_us: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: ChatOptions, words: &str) {
        let message = Message { role: Role::User, content: "hello".into() };
        let failure = Chat { messages: vec![message], options }.check().unwrap_err();
        assert!(failure.message.contains(words), "{failure}");
    }

    #[test]
    fn an_option_out_of_its_range_is_refused() {
        let options = ChatOptions::default;
        for temperature in [-0.1, 100.1, f64::NAN, f64::INFINITY] {
            check(ChatOptions { temperature: Some(temperature), ..options() }, "temperature");
        }
        for top_p in [0.0, 1.1, f64::NAN] {
            check(ChatOptions { top_p: Some(top_p), ..options() }, "top-p");
        }
        check(ChatOptions { max_tokens: Some(0), ..options() }, "max-tokens");
        check(ChatOptions { stop: vec![String::new()], ..options() }, "stop");
        check(ChatOptions { stop: vec!["x".into(); 17], ..options() }, "stop");
    }

    #[test]
    fn a_chat_without_messages_and_one_beyond_all_bounds_are_refused() {
        let chat = |messages| Chat { messages, options: ChatOptions::default() };
        let message = |bytes| Message { role: Role::User, content: "x".repeat(bytes) };
        chat(Vec::new()).check().unwrap_err();
        chat(vec![message(1); MESSAGES + 1]).check().unwrap_err();
        chat(vec![message(CHAT_BYTES), message(1)]).check().unwrap_err();
        chat(vec![message(CHAT_BYTES)]).check().unwrap();
    }
}
