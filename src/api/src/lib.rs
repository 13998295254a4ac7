//! What others depend on: the contracts of the daemons.
//!
//! [`ErrorCode`] is the one list of error codes, the same on every transport. [`dbus`] holds the D-Bus contracts and
//! proxies for clients, [`mqtt`] the topics and payloads, [`tensor`] what both say about tensors, [`text`] about chats.

#![forbid(unsafe_code)]

pub mod dbus;
mod error;
pub mod mqtt;
pub mod tensor;
pub mod text;

pub use error::{ErrorCode, Failure, Result};
