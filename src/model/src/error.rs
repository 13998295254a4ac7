//! Why a model file is refused.

/// Result of reading a model.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A model file that is not read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file as a whole is malformed, or has a feature that is not supported.
    #[error("model: {reason}")]
    File {
        /// What is wrong.
        reason: String,
    },
    /// A tensor is malformed, or of a kind that is not supported.
    #[error("tensor {index} {name:?}: {reason}")]
    Tensor {
        /// Its index in the file.
        index: usize,
        /// Its name in the file; empty where it has none.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// An operator is malformed, or of a kind that is not supported.
    #[error("operator {index} ({kind}): {reason}")]
    Operator {
        /// Its index in the file.
        index: usize,
        /// Its name in the file's schema.
        kind: String,
        /// What is wrong.
        reason: String,
    },
}

impl Error {
    pub(crate) fn file(reason: impl Into<String>) -> Self {
        Self::File { reason: reason.into() }
    }
}
