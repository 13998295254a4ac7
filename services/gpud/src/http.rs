//! The endpoints of OpenAI's kind: passed through to the servers, behind the same queue as all other requests.
//!
//! ```text
//! GET  /v1/models             POST /v1/chat/completions
//! GET  /health                POST /v1/completions, /v1/embeddings
//! ```
//! SOURCE: OpenAI's API reference: `{"error": {"message", "type", "param", "code"}}`, `Retry-After` beside 429.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use api::tensor::Priority;
use api::{ErrorCode, Failure};
use bytes::Bytes;
use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, ORIGIN, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tracing::{Instrument as _, debug, info};

use crate::http_client::refusal;
use crate::service::{Service, Size, Work};

/// The largest request, as of a chat on the other transports.
const REQUEST: usize = 4 << 20;
/// The longest name of a model, which is that of a file.
const NAME: usize = 255;
/// Clients at the same time; most wait in the queue.
const CLIENTS: usize = 64;
/// Frames of an answer that may wait for a client.
const FRAMES: usize = 16;
/// How long a client may take to send its request, or to take a frame of its answer.
// TIMEOUT: networks that lose a connection without a word are noticed, slow ones are not cut off.
const PATIENCE: Duration = Duration::from_secs(30);
/// When a client may come again after the queue was full.
const COME_AGAIN: HeaderValue = HeaderValue::from_static("5");

type Body = Either<Full<Bytes>, Channel<Bytes, std::io::Error>>;

/// What all requests share.
#[derive(Debug)]
struct Front {
    service: Service,
    key: Option<String>,
}

/// Serves for ever.
///
/// # Errors
/// Where the address cannot be had.
pub(crate) async fn run(service: Service) -> Result<()> {
    let config = &service.config().http;
    if !config.enabled {
        return std::future::pending().await;
    }
    let key = config.key()?;
    let listener = TcpListener::bind(config.listen).await.with_context(|| format!("listen at {}", config.listen))?;
    info!(address = %listener.local_addr().context("listen")?, key = key.is_some(), "OpenAI's endpoints are there");
    let front = Arc::new(Front { service: service.clone(), key });
    let clients = Arc::new(Semaphore::new(CLIENTS));
    loop {
        // PANIC: nobody closes the semaphore.
        let client = Arc::clone(&clients).acquire_owned().await.expect("the semaphore is open");
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Of one client, or there are no descriptors now; neither ends the daemon.
                debug!(%error, "a client cannot be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let front = Arc::clone(&front);
        tokio::spawn(async move {
            let _client = client;
            let answer = service_fn(move |request| {
                let front = Arc::clone(&front);
                async move { Ok::<_, Infallible>(front.answer(request).await) }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
            // A client that goes away is no matter of ours.
            let _ = http.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

impl Front {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        match self.route(request).await {
            Ok(response) => response,
            Err(failure) => refuse(&failure),
        }
    }

    async fn route(&self, request: Request<Incoming>) -> api::Result<Response<Body>> {
        let path = request.uri().path().to_owned();
        if (request.method(), path.as_str()) == (&Method::GET, "/health") {
            return Ok(json_response(StatusCode::OK, &json!({"status": "ok"})));
        }
        self.authorise(&request)?;
        match (request.method(), path.as_str()) {
            (&Method::GET, "/v1/models") => Ok(json_response(StatusCode::OK, &self.models())),
            (&Method::POST, path @ ("/v1/chat/completions" | "/v1/completions" | "/v1/embeddings")) => {
                let body = Limited::new(request.into_body(), REQUEST).collect();
                let body = tokio::time::timeout(PATIENCE, body).await;
                let wrong = |why: String| Failure::invalid_args(format!("the request cannot be read: {why}"));
                let body = body.map_err(|_| wrong(format!("it did not come within {PATIENCE:?}")))?;
                let body = body.map_err(|error| wrong(error.to_string()))?.to_bytes();
                let result = self.forward(path, body).await;
                if result.is_err() {
                    self.service.count(&result);
                }
                result
            }
            (method, path) => Err(Failure::new(ErrorCode::Unsupported, format!("there is no {method} {path}"))),
        }
    }

    /// Lets in who has the key. Without one everybody on this machine may, but no page in a browser.
    fn authorise(&self, request: &Request<Incoming>) -> api::Result<()> {
        let denied = |why: &str| Err(Failure::new(ErrorCode::AccessDenied, why));
        let Some(key) = &self.key else {
            return if request.headers().contains_key(ORIGIN) {
                denied("requests of web pages need a key, and none is configured")
            } else {
                Ok(())
            };
        };
        let given = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let given = given.and_then(|given| given.strip_prefix(b"Bearer ")).unwrap_or_default();
        // Digests are compared, so that the time says nothing about the key.
        let same = digest(&SHA256, given).as_ref() == digest(&SHA256, key.as_bytes()).as_ref();
        if same { Ok(()) } else { denied("the key is missing or wrong") }
    }

    fn models(&self) -> Value {
        let models = self
            .service
            .models()
            .into_iter()
            .map(|model| json!({"id": model.name, "object": "model", "created": 0, "owned_by": "cairn"}));
        json!({"object": "list", "data": models.collect::<Vec<_>>()})
    }

    async fn forward(&self, path: &str, body: Bytes) -> api::Result<Response<Body>> {
        let (model, tokens) = asked(&body)?;
        let size = Size { prompt_bytes: body.len(), tokens };
        let span = tracing::info_span!("request", model, transport = "http");
        let work = async {
            let work = self.service.admit(&model, Priority::Interactive, size)?.turn(None).await?;
            let answer = tokio::time::timeout_at(work.deadline.into(), work.server.client().post(path, body)).await;
            let late = || Failure::new(ErrorCode::DeadlineExceeded, "the deadline passed before the answer began");
            match answer.map_err(|_| late())? {
                Ok(answer) => Ok((work, answer)),
                Err(failure) => Err(work.cut_off(failure).await),
            }
        };
        let (work, answer) = work.instrument(span.clone()).await?;
        if answer.status().is_client_error() || answer.status().is_server_error() {
            let status = answer.status();
            let body = crate::http_client::whole(answer).await?;
            return Err(refusal(status, &body));
        }
        let mut response = Response::builder().status(answer.status());
        let kind = answer.headers().get(CONTENT_TYPE).cloned();
        let streams = kind.as_ref().is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        response = response.header(CACHE_CONTROL, "no-cache");
        if let Some(kind) = kind {
            response = response.header(CONTENT_TYPE, kind);
        }
        let (sender, channel) = Channel::new(FRAMES);
        tokio::spawn(pass(self.service.clone(), work, answer.into_body(), sender, streams).instrument(span));
        response.body(Either::Right(channel)).map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))
    }
}

/// What is to be known of a request: its model, and the longest answer in tokens. Of the rest only the form is checked.
fn asked(body: &[u8]) -> api::Result<(String, Option<u32>)> {
    let wrong = |why: String| Failure::invalid_args(format!("the request is no JSON: {why}"));
    let request: Value = serde_json::from_slice(body).map_err(|error| wrong(error.to_string()))?;
    let model = request.get("model").and_then(Value::as_str).filter(|model| model.len() <= NAME);
    let model = model.ok_or_else(|| Failure::invalid_args("the request names no model"))?;
    let tokens = ["max_completion_tokens", "max_tokens"].iter().find_map(|key| request.get(key)?.as_u64());
    Ok((model.to_owned(), tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX))))
}

/// Passes an answer on. The turn is kept for so long, and given back where the client does not take what it asked for.
async fn pass(
    service: Service,
    work: Work,
    mut body: Incoming,
    mut client: Sender<Bytes, std::io::Error>,
    streams: bool,
) {
    let result = tokio::time::timeout_at(work.deadline.into(), relay(&work, &mut body, &mut client)).await;
    let late = || Err(Failure::new(ErrorCode::DeadlineExceeded, "the deadline passed before the answer was complete"));
    let result = result.unwrap_or_else(|_| late());
    service.count(&result);
    let Err(failure) = result else { return work.succeeded().await };
    debug!(%failure, "the answer is cut off");
    if streams {
        let event = format!("data: {}\n\n", error_object(&failure));
        let _ = tokio::time::timeout(PATIENCE, client.send_data(event.into())).await;
    } else {
        client.abort(std::io::Error::other(failure));
    }
}

async fn relay(work: &Work, body: &mut Incoming, client: &mut Sender<Bytes, std::io::Error>) -> api::Result<()> {
    let begin = Instant::now();
    loop {
        let frame = match tokio::time::timeout(work.stall(), body.frame()).await {
            Err(_) => return Err(work.give_up().await),
            Ok(None) if work.server.runs() => {
                debug!(took = ?begin.elapsed(), "answered");
                return Ok(());
            }
            Ok(None) => return Err(work.cut_off(Failure::new(ErrorCode::DeviceLost, "llama-server ended")).await),
            Ok(Some(Err(error))) => {
                let seen = Failure::new(ErrorCode::DeviceLost, format!("llama-server ended its answer: {error}"));
                return Err(work.cut_off(seen).await);
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        let gone = |why: &str| Failure::new(ErrorCode::Cancelled, format!("the client {why}"));
        let taken = tokio::time::timeout(PATIENCE, client.send_data(data)).await;
        taken.map_err(|_| gone("does not read its answer"))?.map_err(|_| gone("went away"))?;
    }
}

fn refuse(failure: &Failure) -> Response<Body> {
    let status = match failure.code {
        ErrorCode::QueueFull => StatusCode::TOO_MANY_REQUESTS,
        ErrorCode::UnknownModel => StatusCode::NOT_FOUND,
        ErrorCode::InvalidArgs | ErrorCode::InvalidTensor => StatusCode::BAD_REQUEST,
        ErrorCode::AccessDenied => StatusCode::UNAUTHORIZED,
        ErrorCode::Unsupported => StatusCode::NOT_FOUND,
        ErrorCode::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        ErrorCode::Busy | ErrorCode::ThermalLimit | ErrorCode::DeviceLost | ErrorCode::OutOfMemory => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut response = json_response(status, &error_object(failure));
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        response.headers_mut().insert(RETRY_AFTER, COME_AGAIN);
    }
    response
}

fn error_object(failure: &Failure) -> Value {
    let kind = match failure.code {
        ErrorCode::InvalidArgs | ErrorCode::UnknownModel | ErrorCode::Unsupported => "invalid_request_error",
        ErrorCode::AccessDenied => "authentication_error",
        ErrorCode::QueueFull => "rate_limit_error",
        _ => "server_error",
    };
    json!({"error": {"message": failure.message, "type": kind, "param": null, "code": failure.code.name()}})
}

fn json_response(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(body.to_string()))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_json_that_names_a_model() {
        let body = br#"{"model": "m", "max_tokens": 99999999999, "messages": [{"role": "user", "content": "\u00e4"}]}"#;
        assert_eq!(asked(body).unwrap(), ("m".to_owned(), Some(u32::MAX)));
        assert_eq!(asked(br#"{"model": "m", "max_tokens": -1}"#).unwrap(), ("m".to_owned(), None));
        let deep = format!(r#"{{"model": "m", "x": {}1{}}}"#, "[".repeat(500), "]".repeat(500));
        let long = format!(r#"{{"model": "{}"}}"#, "m".repeat(NAME + 1));
        let bad: [&[u8]; 6] =
            [b"", b"[]", br#"{"model": 1}"#, b"{\"model\": \"\xff\"}", deep.as_bytes(), long.as_bytes()];
        for body in bad {
            assert_eq!(asked(body).unwrap_err().code, ErrorCode::InvalidArgs);
        }
    }

    #[test]
    fn a_full_queue_says_when_to_come_again() {
        let response = refuse(&Failure::new(ErrorCode::QueueFull, "full"));
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[RETRY_AFTER], COME_AGAIN);
        let object = error_object(&Failure::new(ErrorCode::QueueFull, "full"));
        let expected = json!({"message": "full", "type": "rate_limit_error", "param": null, "code": "QueueFull"});
        assert_eq!(object["error"], expected);
    }
}
