//! Error codes, the same on every transport.
//!
//! On D-Bus a code is the error's name, in an MQTT reply it is the field `error.code`.

use serde::{Deserialize, Serialize};
use zbus::message::{Header, Message};
use zbus::names::ErrorName;

/// Result of an interface function.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// What kind of failure a client sees. A code never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The daemon is shutting down or the model is being replaced.
    Busy,
    /// The queue has no room.
    QueueFull,
    /// The answer would come too late.
    DeadlineExceeded,
    /// No model of that name is loaded.
    UnknownModel,
    /// The input does not fit the model, or its bytes cannot be read.
    InvalidTensor,
    /// Two attempts gave results that cannot be verified.
    ResultUntrusted,
    /// The device is gone or refuses.
    DeviceLost,
    /// Memory is used up.
    OutOfMemory,
    /// The machine is too hot.
    ThermalLimit,
    /// The model or the request needs what the daemon does not do.
    Unsupported,
    /// The request was cancelled.
    Cancelled,
    /// A fault of the daemon.
    Internal,
    /// An option is unknown, or an argument is malformed.
    InvalidArgs,
    /// The caller may not do this.
    AccessDenied,
    /// An update was refused, or came to nothing.
    UpdateFailed,
}

impl ErrorCode {
    /// Every code.
    pub const ALL: [Self; 15] = [
        Self::Busy,
        Self::QueueFull,
        Self::DeadlineExceeded,
        Self::UnknownModel,
        Self::InvalidTensor,
        Self::ResultUntrusted,
        Self::DeviceLost,
        Self::OutOfMemory,
        Self::ThermalLimit,
        Self::Unsupported,
        Self::Cancelled,
        Self::Internal,
        Self::InvalidArgs,
        Self::AccessDenied,
        Self::UpdateFailed,
    ];

    /// The code as text, for example `QueueFull`: the last part of [`ErrorCode::dbus_name`].
    pub fn name(self) -> &'static str {
        self.dbus_name().rsplit('.').next().expect("a split yields at least one part")
    }

    /// The name of the D-Bus error.
    pub const fn dbus_name(self) -> &'static str {
        match self {
            Self::Busy => "org.cairn.Error.Busy",
            Self::QueueFull => "org.cairn.Error.QueueFull",
            Self::DeadlineExceeded => "org.cairn.Error.DeadlineExceeded",
            Self::UnknownModel => "org.cairn.Error.UnknownModel",
            Self::InvalidTensor => "org.cairn.Error.InvalidTensor",
            Self::ResultUntrusted => "org.cairn.Error.ResultUntrusted",
            Self::DeviceLost => "org.cairn.Error.DeviceLost",
            Self::OutOfMemory => "org.cairn.Error.OutOfMemory",
            Self::ThermalLimit => "org.cairn.Error.ThermalLimit",
            Self::Unsupported => "org.cairn.Error.Unsupported",
            Self::Cancelled => "org.cairn.Error.Cancelled",
            Self::Internal => "org.cairn.Error.Internal",
            Self::UpdateFailed => "org.cairn.Error.UpdateFailed",
            Self::InvalidArgs => "org.freedesktop.DBus.Error.InvalidArgs",
            Self::AccessDenied => "org.freedesktop.DBus.Error.AccessDenied",
        }
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A failure as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Failure {
    /// What kind.
    pub code: ErrorCode,
    /// What exactly, for people: lower case, without a full stop.
    pub message: String,
}

impl Failure {
    /// A failure of one kind.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// An unknown option or a malformed argument.
    pub fn invalid_args(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgs, message)
    }

    /// A tensor or picture that cannot be read or does not fit.
    pub fn invalid_tensor(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidTensor, message)
    }
}

impl zbus::DBusError for Failure {
    fn create_reply(&self, call: &Header<'_>) -> zbus::Result<Message> {
        Message::error(call, self.name()).build(&self.message)
    }

    fn name(&self) -> ErrorName<'_> {
        ErrorName::from_static_str_unchecked(self.code.dbus_name())
    }

    fn description(&self) -> Option<&str> {
        Some(&self.message)
    }
}

/// A failure of the bus itself is a fault of the daemon's surroundings.
impl From<zbus::Error> for Failure {
    fn from(error: zbus::Error) -> Self {
        Self::new(ErrorCode::Internal, format!("bus: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_a_valid_dbus_error_name() {
        for code in ErrorCode::ALL {
            ErrorName::try_from(code.dbus_name()).unwrap();
        }
    }

    #[test]
    fn a_code_has_one_spelling() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_string(&code).unwrap(), format!("{:?}", code.name()));
        }
    }
}
