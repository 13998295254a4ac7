//! The front ends over the engine.
//!
//! ```text
//! D-Bus call ───▶ dbus ┐                                    ┌▶ D-Bus reply or error
//!                      ├▶ request ─▶ Engine ─▶ answer ──────┤
//! MQTT message ─▶ mqtt ┘                                    └▶ MQTT reply, also of an error
//! ```
//! Both turn what they receive into an engine request with the functions of one module, so that a malformed input has
//! the same code everywhere.

#![forbid(unsafe_code)]

pub mod dbus;
pub mod mqtt;
mod request;

/// Result of a front end.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What ends a front end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bus refuses.
    #[error("serve on the bus")]
    Bus(#[source] zbus::Error),
    /// The name on the bus belongs to somebody else.
    #[error("own the bus name {name}")]
    Name {
        /// The name.
        name: &'static str,
        /// Why.
        #[source]
        source: zbus::Error,
    },
    /// The link to the broker ended by itself.
    #[error("the link to the broker ended")]
    Link,
}
