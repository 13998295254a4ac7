//! One score per class.

use serde::Deserialize;

use super::{check_real, find, label, reals, softmax};
use crate::{Class, Tensor, TensorInfo};

/// Parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Classify {
    /// Name of the output that holds the scores.
    scores: String,
    /// Whether the scores are logits that a softmax makes probabilities.
    softmax: bool,
    /// Most classes of an answer.
    max_results: usize,
    /// Least probability of an answer.
    min_score: f32,
}

impl Classify {
    pub(super) fn check(&self, outputs: &[TensorInfo]) -> Result<(), String> {
        check_real(&outputs[find(&self.scores, outputs)?])?;
        if !(0.0..=1.0).contains(&self.min_score) {
            return Err(format!("min_score {} is not between 0 and 1", self.min_score));
        }
        Ok(())
    }

    pub(super) fn decode(
        &self,
        labels: &[String],
        outputs: &[Tensor],
        infos: &[TensorInfo],
    ) -> Result<Vec<Class>, String> {
        let index = find(&self.scores, infos)?;
        let mut scores = reals(outputs.get(index).ok_or("an output is missing")?, &infos[index])?;
        if self.softmax {
            softmax(&mut scores);
        }
        let mut order: Vec<usize> = (0..scores.len()).filter(|&class| scores[class] >= self.min_score).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        order.truncate(self.max_results);
        let class = |class| Class { label: label(labels, class), class, score: scores[class] };
        Ok(order.into_iter().map(class).collect())
    }
}
