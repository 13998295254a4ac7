//! One chat answered: from the request to pieces of text, the same for D-Bus and MQTT.

use std::time::{Duration, Instant};

use api::text::{Chat, Usage};
use api::{ErrorCode, Failure, Result};
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::http_client::{failure_of, refusal, whole};
use crate::service::{Admitted, Service, Size, Work};
use crate::sse::{Event, Events};

/// Something that happened to an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// So many requests are before it.
    Waiting(usize),
    /// So many tokens of the prompt are read, of so many.
    Reading(u64, u64),
    /// More of the answer.
    Text(String),
}

/// How an answer ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) usage: Usage,
    pub(crate) finish_reason: String,
    pub(crate) placement: String,
}

/// A chat that has its place in the queue.
#[derive(Debug)]
pub(crate) struct Asked {
    chat: Chat,
    admitted: Admitted,
    received: Instant,
}

/// Admits a chat. Chats are answered in the order of these calls.
///
/// # Errors
/// Why it is refused.
pub(crate) fn ask(service: &Service, model: &str, chat: Chat) -> Result<Asked> {
    let received = Instant::now();
    if service.model(model)?.header.is_embedding {
        return Err(Failure::new(ErrorCode::Unsupported, format!("{model:?} makes embeddings, no text")));
    }
    let size = Size { prompt_bytes: chat.bytes(), tokens: chat.options.max_tokens };
    let admitted = service.admit(model, chat.options.priority, size)?;
    Ok(Asked { chat, admitted, received })
}

/// Answers a chat. `give` takes each piece, and ends the answer with its error. Dropping the future cancels it.
///
/// # Errors
/// Why there is no answer, or no more of it.
pub(crate) async fn generate(
    service: &Service,
    asked: Asked,
    deadline: Option<Instant>,
    mut give: impl FnMut(Piece) -> Result<()>,
) -> Result<Answer> {
    let Asked { chat, admitted, received } = asked;
    give(Piece::Waiting(admitted.before()))?;
    let mut work = admitted.turn(deadline).await?;
    let begin = Instant::now();
    loop {
        let mut reader = Reader { begin, first: None, usage: Usage::default(), finish: String::new() };
        let late = || Failure::new(ErrorCode::DeadlineExceeded, "the deadline passed before the answer was complete");
        let attempt = tokio::time::timeout_at(work.deadline.into(), reader.read(&work, &chat, &mut give)).await;
        match attempt.map_err(|_| late())? {
            Ok(()) => {
                work.succeeded().await;
                return Ok(reader.answer(&work, service, received));
            }
            // Nobody has seen anything of it yet, so it may be tried with less.
            Err(failure) if reader.first.is_none() && failure.code == ErrorCode::DeviceLost => {
                if !work.device_failed().await {
                    return Err(work.cut_off(failure).await);
                }
                work.again().await?;
            }
            Err(failure) if failure.code == ErrorCode::DeviceLost => return Err(work.cut_off(failure).await),
            Err(failure) => return Err(failure),
        }
    }
}

/// What is read of one attempt.
struct Reader {
    begin: Instant,
    first: Option<Instant>,
    usage: Usage,
    finish: String,
}

impl Reader {
    async fn read(&mut self, work: &Work, chat: &Chat, give: &mut impl FnMut(Piece) -> Result<()>) -> Result<()> {
        let stall = work.stall();
        let post = work.server.client().post("/v1/chat/completions", body(&work.model.name, chat).into());
        let answer = match tokio::time::timeout(stall, post).await {
            Ok(answer) => answer?,
            Err(_) => return Err(work.give_up().await),
        };
        if answer.status() != StatusCode::OK {
            let status = answer.status();
            return Err(refusal(status, &whole(answer).await?));
        }
        let mut body = answer.into_body();
        let mut events = Events::default();
        let lost = |why: String| Failure::new(ErrorCode::DeviceLost, format!("llama-server ended its answer: {why}"));
        loop {
            while let Some(event) = events.next()? {
                match event {
                    Event::Done => return Ok(()),
                    Event::Data(data) => self.take(&data, give)?,
                }
            }
            let frame = match tokio::time::timeout(stall, body.frame()).await {
                Ok(Some(frame)) => frame.map_err(|error| lost(error.to_string()))?,
                Ok(None) => return Err(lost("it is not complete".into())),
                Err(_) => return Err(work.give_up().await),
            };
            if let Ok(data) = frame.into_data() {
                events.push(&data)?;
            }
        }
    }

    /// Takes one event. SOURCE: server-task.cpp, to_json_oaicompat_chat.
    fn take(&mut self, data: &Value, give: &mut impl FnMut(Piece) -> Result<()>) -> Result<()> {
        if let Some(error) = data.get("error") {
            return Err(failure_of(500, error));
        }
        let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_u64);
        if let Some(progress) = data.get("prompt_progress")
            && let Some((read, all)) = number(progress, "processed").zip(number(progress, "total"))
        {
            give(Piece::Reading(read, all))?;
        }
        if let Some(choice) = data.pointer("/choices/0") {
            let text = choice.pointer("/delta/content").and_then(Value::as_str).unwrap_or_default();
            if !text.is_empty() {
                self.first.get_or_insert_with(Instant::now);
                give(Piece::Text(text.to_owned()))?;
            }
            if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
                self.finish = reason.to_owned();
            }
        }
        if let Some(usage) = data.get("usage").filter(|usage| usage.is_object()) {
            self.usage.prompt_tokens = number(usage, "prompt_tokens").unwrap_or(0);
            self.usage.completion_tokens = number(usage, "completion_tokens").unwrap_or(0);
            let cached = usage.pointer("/prompt_tokens_details/cached_tokens").and_then(Value::as_u64);
            self.usage.cached_tokens = cached.unwrap_or(0);
        }
        if let Some(ms) = data.pointer("/timings/prompt_ms").and_then(Value::as_f64) {
            self.usage.prompt_us = Duration::try_from_secs_f64(ms / 1e3).map_or(0, micros);
        }
        Ok(())
    }

    fn answer(self, work: &Work, service: &Service, received: Instant) -> Answer {
        let first = self.first.unwrap_or_else(Instant::now);
        let usage = Usage {
            queued_us: micros(work.queued),
            first_token_us: micros(first.duration_since(self.begin)),
            total_us: micros(received.elapsed()),
            ..self.usage
        };
        service.count_tokens(&usage);
        Answer { usage, finish_reason: self.finish, placement: work.placement() }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The request as the server takes it.
fn body(model: &str, chat: &Chat) -> String {
    let mut body = json!({
        "model": model,
        "messages": chat.messages,
        "stream": true,
        "stream_options": {"include_usage": true},
        "return_progress": true,
        // What a model thinks is a part of its answer here.
        "reasoning_format": "none",
    });
    let options = serde_json::to_value(&chat.options).unwrap_or_default();
    let members = body.as_object_mut().expect("an object was built");
    members.extend(options.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
    body.to_string()
}

#[cfg(test)]
mod tests {
    use api::text::{ChatOptions, Message, Role};

    use super::*;

    #[test]
    fn only_what_was_said_is_in_the_request() {
        let options = ChatOptions { temperature: Some(0.0), deadline_ms: Some(7), ..ChatOptions::default() };
        let chat = Chat { messages: vec![Message { role: Role::User, content: "hi".into() }], options };
        let body: Value = serde_json::from_str(&body("m", &chat)).unwrap();
        assert_eq!(body["messages"], json!([{"role": "user", "content": "hi"}]));
        assert_eq!(body["temperature"], json!(0.0));
        for absent in ["deadline_ms", "priority", "max_tokens", "stop"] {
            assert!(body.get(absent).is_none(), "{absent} is there");
        }
    }

    #[test]
    fn an_answer_is_read_event_by_event() {
        let mut reader = Reader { begin: Instant::now(), first: None, usage: Usage::default(), finish: String::new() };
        let mut pieces = Vec::new();
        for event in [
            json!({"prompt_progress": {"total": 9, "cache": 0, "processed": 4, "time_ms": 1}, "choices": []}),
            json!({"choices": [{"delta": {"role": "assistant", "content": null}}]}),
            json!({"choices": [{"delta": {"content": "Hello"}}]}),
            json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
            json!({"choices": [], "timings": {"prompt_ms": 1.5}, "usage": {"prompt_tokens": 9, "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 3}}}),
        ] {
            reader
                .take(&event, &mut |piece| {
                    pieces.push(piece);
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(pieces, [Piece::Reading(4, 9), Piece::Text("Hello".into())]);
        assert_eq!((reader.finish.as_str(), reader.usage.cached_tokens, reader.usage.prompt_us), ("stop", 3, 1500));
        // Foreign numbers that are no time are none.
        reader.take(&json!({"timings": {"prompt_ms": -1e300}}), &mut |_| Ok(())).unwrap();
        assert_eq!(reader.usage.prompt_us, 0);
        let error = json!({"error": {"code": 400, "message": "too long"}});
        assert_eq!(reader.take(&error, &mut |_| Ok(())).unwrap_err().code, ErrorCode::InvalidArgs);
    }
}
