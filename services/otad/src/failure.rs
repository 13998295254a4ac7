//! Why an update did not happen.

use serde::{Deserialize, Serialize};

/// What kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// The offer makes no sense.
    Offer,
    /// The version is older than the one that runs.
    Downgrade,
    /// The bundle has another version than was offered.
    Version,
    /// The bundle is for another kind of machine.
    Compatible,
    /// Nobody whom we trust signed the bundle, or it was changed since.
    Signature,
    /// The bundle's manifest is not the one that was offered.
    Manifest,
    /// The bundle is damaged or none.
    Bundle,
    /// This machine's RAUC cannot do what the offer demands.
    Unsupported,
    /// There is no room.
    Space,
    /// RAUC or this daemon ended meanwhile.
    Interrupted,
    /// RAUC does something else.
    Busy,
    /// The bundle cannot be had.
    Download,
    /// RAUC cannot be reached.
    Unreachable,
    /// RAUC failed otherwise.
    Install,
}

/// Why an update did not happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: {message}", self.kind.name())]
pub struct Failure {
    /// What kind.
    pub kind: Kind,
    /// What exactly.
    pub message: String,
}

/// What RAUC's errors say, and what it means. The first that matches counts.
/// SOURCE: src/install.c, src/bundle.c, src/signature.c, src/update_handler.c, src/service.c of RAUC 1.8 and 1.15.2.
const SAID: &[(&str, Kind)] = &[
    ("already processing", Kind::Busy),
    ("Compatible mismatch", Kind::Compatible),
    ("signature verification failed", Kind::Signature),
    ("verify signature", Kind::Signature),
    ("No space left", Kind::Space),
    ("too small", Kind::Space),
    ("download", Kind::Download),
    ("curl", Kind::Download),
    ("Invalid bundle format", Kind::Bundle),
    ("Signature size", Kind::Bundle),
    ("bundle size", Kind::Bundle),
    ("not a valid", Kind::Bundle),
    ("No such file", Kind::Download),
    ("anifest", Kind::Manifest),
];

impl Kind {
    /// The name, as clients see it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Offer => "offer",
            Self::Downgrade => "downgrade",
            Self::Version => "version",
            Self::Compatible => "compatible",
            Self::Signature => "signature",
            Self::Manifest => "manifest",
            Self::Bundle => "bundle",
            Self::Unsupported => "unsupported",
            Self::Space => "space",
            Self::Interrupted => "interrupted",
            Self::Busy => "busy",
            Self::Download => "download",
            Self::Unreachable => "unreachable",
            Self::Install => "install",
        }
    }
}

impl Failure {
    /// A failure of one kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What RAUC says went wrong.
    pub fn said(message: &str) -> Self {
        let kind = SAID.iter().find(|(words, _)| message.contains(words)).map_or(Kind::Install, |(_, kind)| *kind);
        Self::new(kind, message.trim())
    }

    /// Whether the same offer may succeed later, without anybody's doing.
    pub fn may_pass(&self) -> bool {
        match self.kind {
            Kind::Space | Kind::Interrupted | Kind::Busy | Kind::Download | Kind::Unreachable | Kind::Install => true,
            Kind::Offer
            | Kind::Downgrade
            | Kind::Version
            | Kind::Compatible
            | Kind::Signature
            | Kind::Manifest
            | Kind::Bundle
            | Kind::Unsupported => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rauc_says_has_a_kind() {
        // SOURCE: messages of RAUC 1.8 and 1.15.2 on this project's test system.
        for (message, kind) in [
            ("signature verification failed: error:17000097:CMS routines::verification failure", Kind::Signature),
            ("signature verification failed: Verify error: self-signed certificate", Kind::Signature),
            ("Invalid bundle format: Signature size (105930) exceeds bundle size", Kind::Bundle),
            ("Compatible mismatch: Expected 'a' but bundle manifest has 'b'", Kind::Compatible),
            ("Slot (/dev/loop1) is too small (8388608) for image (9437184).", Kind::Space),
            ("already processing a different method", Kind::Busy),
            ("something new", Kind::Install),
        ] {
            assert_eq!(Failure::said(message).kind, kind, "{message}");
        }
    }
}
