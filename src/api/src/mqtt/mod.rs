//! MQTT: topics and payloads, here and nowhere else.
//!
//! ```text
//! cairn/<device>/state                      online | offline, retained; offline is the last will
//! cairn/<device>/metrics                    counters as JSON
//! cairn/<device>/models/<model>/meta        what a model is, JSON, retained; empty when it is gone
//! cairn/<device>/models/<model>/desired     what a model shall be, JSON, retained; empty takes it back
//! cairn/<device>/models/<model>/update      where its update stands, JSON, retained
//! cairn/<device>/infer/<model>/request      a request to this device
//! cairn/pool/infer/<model>/request          a request to whichever device of the fleet is free
//! cairn/<device>/llm/state                  online | offline, retained; offline is the last will
//! cairn/<device>/llm/<model>/meta           what a language model is, JSON, retained; empty when it is gone
//! cairn/<device>/llm/<model>/request        a chat, JSON; answered by several replies
//! cairn/<device>/health/state               online | offline, retained; offline is the last will
//! cairn/<device>/health/summary             how the machine is, JSON, retained
//! cairn/<device>/health/incident            something that went wrong, JSON; `id` tells a repetition
//! cairn/<device>/update/availability        online | offline, retained; offline is the last will
//! cairn/<device>/update/desired             what the device shall run, JSON, retained; empty withdraws it
//! cairn/<device>/update/state               where the update stands, JSON, retained
//! cairn/<device>/update/command             `install`: do now what is offered
//! homeassistant/device/<id>/config          Home Assistant's device discovery, retained
//! homeassistant/device/<id>_health/config   that of the health sensors of the same device
//! homeassistant/device/<id>_update/config   that of its update entity
//! homeassistant/device/<id>_llm/config      that of its language models
//! ```
//!
//! A request is a picture (`image/jpeg`, `image/png`), a JSON object as in the Open Inference Protocol
//! (`application/json`), or that protocol's binary form (`application/octet-stream` with the user property
//! `inference-header-content-length`). It is answered on its Response Topic with its Correlation Data. Clients of MQTT
//! 3.1.1 have neither: they send JSON with the members `reply_to` and `id`, and a picture as base64 in `picture`.
//! Every error is a reply: `{"id": …, "error": {"code": …, "message": …}}`.

mod chat;
mod frame;
mod health;
mod home_assistant;
mod model;
mod reply;
mod topics;
mod update;

use serde::de::DeserializeOwned;

use crate::{Failure, Result};

pub use chat::{ChatModelMeta, ChatReply, chat_envelope, decode_chat, llm_discovery};
pub use frame::{Envelope, Form, Frame, FrameBody, decode_request, envelope};
pub use health::{HealthIncident, HealthSummary};
pub use home_assistant::{discovery, health_discovery};
pub use model::{DesiredModel, ModelReport};
pub use reply::{InferReply, Metrics, ModelMeta, OutputTensor, SeenObject, TensorMeta, TimingMicros, encode_failure};
pub use topics::{Address, Topics, is_segment};
pub use update::{DesiredUpdate, INSTALL, TimeOfDay, UpdateReport, UpdateWave, UpdateWindow, update_discovery};

/// Content type of JSON.
pub const JSON: &str = "application/json";
/// Content type of the Open Inference Protocol's binary form.
pub const OCTET_STREAM: &str = "application/octet-stream";
/// User property with the bytes of the JSON header in the binary form.
pub const HEADER_LENGTH: &str = "inference-header-content-length";
/// User property of a reply: the code of an error, so that a client need not parse the payload.
pub const ERROR: &str = "error";
/// User property of a reply: its place in a stream of replies, from 0.
pub const SEQ: &str = "seq";
/// User property of a reply: `1` on the last one.
pub const FINAL: &str = "final";

/// Payload of the state topic while the daemon serves.
pub const ONLINE: &str = "online";
/// Payload of the state topic otherwise.
pub const OFFLINE: &str = "offline";

/// The largest payload of a desired state, in bytes.
const LARGEST_DESIRED: usize = 16 << 10;

/// Reads the retained message that says what is desired; `None` where it is empty and takes that back.
fn desired<T: DeserializeOwned>(payload: &[u8], what: &str) -> Result<Option<T>> {
    if payload.is_empty() {
        return Ok(None);
    }
    if payload.len() > LARGEST_DESIRED {
        return Err(Failure::invalid_args(format!(
            "the payload has {} bytes, the limit is {LARGEST_DESIRED}",
            payload.len()
        )));
    }
    serde_json::from_slice(payload).map(Some).map_err(|error| Failure::invalid_args(format!("{what}: {error}")))
}
