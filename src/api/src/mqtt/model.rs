//! Topics and payloads of model updates.
//!
//! What a model shall be is retained, one message per model; publishing it again changes nothing. An empty payload takes
//! it back, and leaves the model as it is.

use serde::{Deserialize, Serialize};

use super::Topics;
use crate::{Failure, Result};

/// Payload of [`Topics::model_desired`]: what a model shall be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DesiredModel {
    /// Version of the package.
    pub version: String,
    /// Where the bundle is: http or https.
    pub url: String,
    /// SHA-256 of the bundle, in lower-case hexadecimal digits.
    pub sha256: String,
}

/// Payload of [`Topics::model_report`], retained: where a model stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelReport {
    /// `fetching`, `checking`, `serving`, `refused`, or `failed`, which will be tried again.
    pub state: String,
    /// The version that this is about.
    pub version: String,
    /// SHA-256 of its bundle.
    pub sha256: String,
    /// Why it was refused or failed; empty otherwise.
    pub reason: String,
}

impl DesiredModel {
    /// Reads a payload; `None` where it takes back what was desired.
    ///
    /// # Errors
    /// `InvalidArgs`, with what is wrong and where.
    pub fn decode(payload: &[u8]) -> Result<Option<Self>> {
        let Some(desired) = super::desired::<Self>(payload, "desired model")? else { return Ok(None) };
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if desired.sha256.len() != 64 || !desired.sha256.bytes().all(digit) {
            return Err(Failure::invalid_args(format!("sha256 {:?} is no SHA-256", desired.sha256)));
        }
        Ok(Some(desired))
    }
}

impl Topics {
    /// What a model shall be, or for `+`, any.
    pub fn model_desired(&self, model: &str) -> String {
        format!("cairn/{}/models/{model}/desired", self.device())
    }

    /// The model that a topic of [`Self::model_desired`] is about.
    pub fn desired_model<'a>(&self, topic: &'a str) -> Option<&'a str> {
        let rest = topic.strip_prefix("cairn/")?.strip_prefix(self.device())?.strip_prefix("/models/")?;
        rest.strip_suffix("/desired").filter(|model| super::is_segment(model))
    }

    /// Where a model stands.
    pub fn model_report(&self, model: &str) -> String {
        format!("cairn/{}/models/{model}/update", self.device())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_desired_model_is_read_as_it_is_written() {
        let sha256 = "0123456789abcdef".repeat(4);
        let desired = DesiredModel { version: "1.1.0".into(), url: "https://example.org/m".into(), sha256 };
        let payload = serde_json::to_vec(&desired).unwrap();
        assert_eq!(DesiredModel::decode(&payload).unwrap(), Some(desired));
        assert_eq!(DesiredModel::decode(b"").unwrap(), None);
    }

    #[test]
    fn a_malformed_desired_model_is_refused_with_the_place() {
        let check = |text: &str, words: &str| {
            let failure = DesiredModel::decode(text.as_bytes()).unwrap_err();
            assert!(failure.message.contains(words), "{text}: {failure}");
        };
        check("{", "line 1 column 1");
        check(r#"{"version":"1","url":"u"}"#, "missing field `sha256`");
        check(r#"{"version":"1","url":"u","sha256":"12"}"#, "sha256 \"12\"");
        check(r#"{"version":"1","url":"u","sha256":"12","x":1}"#, "unknown field `x`");
        check(&" ".repeat(super::super::LARGEST_DESIRED + 1), "the limit is");
    }

    #[test]
    fn a_topic_names_its_model() {
        let topics = Topics::new("d").unwrap();
        assert_eq!(topics.desired_model(&topics.model_desired("mnist")), Some("mnist"));
        for topic in ["cairn/e/models/mnist/desired", "cairn/d/models/a/b/desired", "cairn/d/models//desired"] {
            assert_eq!(topics.desired_model(topic), None);
        }
    }
}
