//! Requests to a server of ours: HTTP over its socket, one connection each, so that dropping an answer cancels it.

use std::path::PathBuf;

use api::{ErrorCode, Failure, Result};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;

/// The longest answer that is not a stream, for example of an error.
const WHOLE: usize = 16 << 20;
/// A token that every vocabulary has.
const SOME_TOKEN: u64 = 1;

/// A way to a server.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    key: String,
}

impl Client {
    pub(crate) fn new(socket: PathBuf, key: String) -> Self {
        Self { socket, key }
    }

    /// Whether the server has loaded its model.
    pub(crate) async fn is_healthy(&self) -> bool {
        let answer = self.send(Method::GET, "/health", Bytes::new()).await;
        answer.is_ok_and(|answer| answer.status() == StatusCode::OK)
    }

    /// Lets the server read a prompt of so many tokens.
    ///
    /// # Errors
    /// What the server says, or that it is gone.
    pub(crate) async fn prove(&self, tokens: u64) -> Result<()> {
        let prompt = vec![SOME_TOKEN; usize::try_from(tokens).unwrap_or(1)];
        let body = json!({"prompt": prompt, "n_predict": 1, "cache_prompt": false}).to_string();
        let answer = self.post("/completion", body.into()).await?;
        match answer.status() {
            // A model of embeddings has no completions.
            StatusCode::OK | StatusCode::NOT_IMPLEMENTED => whole(answer).await.map(drop),
            status => Err(refusal(status, &whole(answer).await?)),
        }
    }

    /// Posts JSON. The answer's body may be a stream.
    ///
    /// # Errors
    /// `DeviceLost` where the server is gone.
    pub(crate) async fn post(&self, path: &str, body: Bytes) -> Result<Response<Incoming>> {
        self.send(Method::POST, path, body).await
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| gone(&error))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| gone(&error))?;
        // It ends with the answer's body, and the other way round.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "localhost")
            .header(CONNECTION, "close")
            .header(CONTENT_TYPE, "application/json")
            .header(AUTHORIZATION, format!("Bearer {}", self.key))
            .body(Full::new(body))
            .map_err(|error| Failure::new(ErrorCode::Internal, format!("request to llama-server: {error}")))?;
        sender.send_request(request).await.map_err(|error| gone(&error))
    }
}

/// All of an answer.
///
/// # Errors
/// `DeviceLost` where the server ends within it.
pub(crate) async fn whole(answer: Response<Incoming>) -> Result<Bytes> {
    let body = Limited::new(answer.into_body(), WHOLE).collect().await;
    Ok(body.map_err(|error| Failure::new(ErrorCode::DeviceLost, format!("llama-server: {error}")))?.to_bytes())
}

/// A refusal of the server as an error of ours: its own words, and whose fault it is.
pub(crate) fn refusal(status: StatusCode, body: &[u8]) -> Failure {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let error = json.get("error").unwrap_or(&json);
    failure_of(u64::from(status.as_u16()), error)
}

/// As [`refusal`], for the object in the member `error`.
pub(crate) fn failure_of(status: u64, error: &Value) -> Failure {
    let status = error.get("code").and_then(Value::as_u64).unwrap_or(status);
    let message = error.get("message").and_then(Value::as_str).unwrap_or("it gives no reason");
    let code = match status {
        400..=499 => ErrorCode::InvalidArgs,
        501 => ErrorCode::Unsupported,
        503 => ErrorCode::Busy,
        _ => ErrorCode::Internal,
    };
    Failure::new(code, format!("llama-server refuses: {message}"))
}

fn gone(error: &dyn std::error::Error) -> Failure {
    Failure::new(ErrorCode::DeviceLost, format!("llama-server does not answer: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_its_words_and_says_whose_fault_it_is() {
        let body = br#"{"error":{"code":400,"message":"too long","type":"exceed_context_size_error"}}"#;
        let failure = refusal(StatusCode::BAD_REQUEST, body);
        assert_eq!(failure, Failure::new(ErrorCode::InvalidArgs, "llama-server refuses: too long"));
        assert_eq!(refusal(StatusCode::NOT_IMPLEMENTED, b"").code, ErrorCode::Unsupported);
        assert_eq!(refusal(StatusCode::INTERNAL_SERVER_ERROR, b"x").code, ErrorCode::Internal);
    }
}
