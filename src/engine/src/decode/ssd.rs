//! Single-shot detectors: each anchor, a fixed box of the picture, has class scores and corrections of its box.
//!
//! ```text
//! anchors (from parameters) ┐
//! boxes  [1, anchors, 4] ───┼▶ candidates, best first ─ overlaps of a class dropped ─▶ detections
//! scores [1, anchors, c] ───┘
//! ```
//!
//! SOURCE: the anchor grid and box coder of the TensorFlow object detection API (`ssd_anchor_generator`,
//! `faster_rcnn_box_coder`), which detectors of this family are trained with.

use serde::Deserialize;

use super::{check_real, find, label, reals, sigmoid, softmax};
use crate::{Detection, Tensor, TensorInfo};

/// Parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ssd {
    /// Name of the output with `y, x, h, w` of each box, relative to its anchor.
    boxes: String,
    /// Name of the output with the logits of each class.
    scores: String,
    /// How logits become probabilities.
    activation: Activation,
    /// Whether class 0 means that there is nothing.
    background: bool,
    /// Divisors of `y, x, h, w`.
    coder: [f32; 4],
    anchors: Anchors,
    /// Overlap, as intersection over union, from which the weaker box of a class is dropped.
    max_overlap: f32,
    /// Least probability of an answer.
    min_score: f32,
    /// Most objects of an answer.
    max_results: usize,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Activation {
    Sigmoid,
    Softmax,
}

/// The grid of anchors.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Anchors {
    /// Pixels between anchors, one entry per layer.
    strides: Vec<usize>,
    /// Size of the anchors of the first layer as a fraction of the picture.
    min_scale: f32,
    /// Size of those of the last layer; between them it grows evenly.
    max_scale: f32,
    /// Width by height of the anchors at each place.
    aspect_ratios: Vec<f32>,
    /// Width by height of one more anchor, between the sizes of its layer and the next one.
    interpolated_ratio: Option<f32>,
    /// Size of the first of only three anchors in the first layer, whose ratios are 1, 2 and 1/2.
    reduced_lowest_scale: Option<f32>,
}

/// A box by its centre, as fractions of the picture.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Anchor {
    x: f32,
    y: f32,
    w: f32,
    h: f32,
}

impl Anchors {
    fn check(&self) -> Result<(), String> {
        let positive = |what: &str, value: f32| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(format!("{what} {value} is not a positive number")),
        };
        if self.strides.is_empty() || self.strides.contains(&0) {
            return Err(format!("strides {:?} are not positive numbers", self.strides));
        }
        positive("min_scale", self.min_scale)?;
        positive("max_scale", self.max_scale)?;
        self.reduced_lowest_scale.map_or(Ok(()), |scale| positive("reduced_lowest_scale", scale))?;
        let mut ratios = self.aspect_ratios.iter().chain(&self.interpolated_ratio);
        ratios.try_for_each(|&ratio| positive("aspect ratio", ratio))
    }

    fn scale(&self, layer: usize) -> f32 {
        match self.strides.len() {
            layers if layer >= layers => 1.0,
            1 => self.min_scale,
            layers => self.min_scale + (self.max_scale - self.min_scale) * layer as f32 / (layers - 1) as f32,
        }
    }

    /// Aspect ratio and scale of the anchors at each place of a layer.
    fn shapes(&self, layer: usize) -> Vec<(f32, f32)> {
        let scale = self.scale(layer);
        if let (0, Some(lowest)) = (layer, self.reduced_lowest_scale) {
            return vec![(1.0, lowest), (2.0, scale), (0.5, scale)];
        }
        let between = (scale * self.scale(layer + 1)).sqrt();
        let shapes = self.aspect_ratios.iter().map(|&ratio| (ratio, scale));
        shapes.chain(self.interpolated_ratio.map(|ratio| (ratio, between))).collect()
    }

    fn count(&self, [height, width]: [usize; 2]) -> usize {
        let places = |stride: usize| height.div_ceil(stride) * width.div_ceil(stride);
        let layers = self.strides.iter().enumerate();
        layers.map(|(layer, &stride)| places(stride) * self.shapes(layer).len()).sum()
    }

    /// The anchors of a picture, layer by layer, row by row.
    fn generate(&self, [height, width]: [usize; 2]) -> Vec<Anchor> {
        let mut anchors = Vec::with_capacity(self.count([height, width]));
        for (layer, &stride) in self.strides.iter().enumerate() {
            let (rows, columns, shapes) = (height.div_ceil(stride), width.div_ceil(stride), self.shapes(layer));
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let x = (column as f32 + 0.5) / columns as f32;
                let y = (row as f32 + 0.5) / rows as f32;
                anchors.extend(shapes.iter().map(|&(ratio, scale)| {
                    let root = ratio.sqrt();
                    Anchor { x, y, w: scale * root, h: scale / root }
                }));
            }
        }
        anchors
    }
}

/// A box that may be an object; `bounds` are left, top, right, bottom and not yet clipped.
struct Candidate {
    class: usize,
    score: f32,
    bounds: [f32; 4],
}

impl Ssd {
    pub(super) fn check(&self, picture: Option<[usize; 2]>, outputs: &[TensorInfo]) -> Result<(), String> {
        let picture = picture.ok_or("anchors need a model whose input is a picture")?;
        self.anchors.check()?;
        let (boxes, scores) = (&outputs[find(&self.boxes, outputs)?], &outputs[find(&self.scores, outputs)?]);
        check_real(boxes)?;
        check_real(scores)?;
        let count = self.anchors.count(picture);
        if boxes.shape != [1, count, 4] {
            return Err(format!("output {:?} is {:?}, the anchors need [1, {count}, 4]", boxes.name, boxes.shape));
        }
        let &[1, anchors, classes] = scores.shape.as_slice() else {
            return Err(format!("output {:?} is {:?}, not [1, {count}, classes]", scores.name, scores.shape));
        };
        if anchors != count || classes <= usize::from(self.background) {
            return Err(format!("output {:?} is {:?}, not [1, {count}, classes]", scores.name, scores.shape));
        }
        if self.coder.iter().any(|divisor| !(divisor.is_finite() && *divisor > 0.0)) {
            return Err(format!("coder {:?} has a divisor that is not positive", self.coder));
        }
        for (what, value) in [("min_score", self.min_score), ("max_overlap", self.max_overlap)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(format!("{what} {value} is not between 0 and 1"));
            }
        }
        Ok(())
    }

    pub(super) fn decode(
        &self,
        picture: Option<[usize; 2]>,
        labels: &[String],
        outputs: &[Tensor],
        infos: &[TensorInfo],
    ) -> Result<Vec<Detection>, String> {
        let anchors = self.anchors.generate(picture.ok_or("the model's input is not a picture")?);
        let output = |name: &str| {
            let index = find(name, infos)?;
            reals(outputs.get(index).ok_or("an output is missing")?, &infos[index])
        };
        let (boxes, mut scores) = (output(&self.boxes)?, output(&self.scores)?);
        if boxes.len() != 4 * anchors.len() || !scores.len().is_multiple_of(anchors.len()) {
            return Err(format!("{} anchors do not fit the outputs", anchors.len()));
        }
        let classes = scores.len() / anchors.len();
        let rows = scores.chunks_exact_mut(classes);
        let boxes = boxes.as_chunks().0.iter();
        let candidates = anchors.iter().zip(boxes).zip(rows);
        let mut candidates: Vec<_> =
            candidates.filter_map(|((anchor, code), logits)| self.candidate(anchor, code, logits)).collect();
        candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
        Ok(self.suppress(candidates).into_iter().map(|candidate| detection(candidate, labels)).collect())
    }

    /// The best class of an anchor, if it is probable enough.
    fn candidate(&self, anchor: &Anchor, code: &[f32; 4], logits: &mut [f32]) -> Option<Candidate> {
        if let Activation::Softmax = self.activation {
            softmax(logits);
        }
        let classes = logits.iter().copied().enumerate().skip(usize::from(self.background));
        let (class, best) = classes.max_by(|a, b| a.1.total_cmp(&b.1))?;
        let score = match self.activation {
            Activation::Sigmoid => sigmoid(best),
            Activation::Softmax => best,
        };
        let bounds = self.bounds(anchor, code);
        let usable = score >= self.min_score && bounds.iter().all(|edge| edge.is_finite());
        usable.then_some(Candidate { class, score, bounds })
    }

    fn bounds(&self, anchor: &Anchor, code: &[f32; 4]) -> [f32; 4] {
        let [y, x, h, w] = [0, 1, 2, 3].map(|i| code[i] / self.coder[i]);
        let (x, y) = (x * anchor.w + anchor.x, y * anchor.h + anchor.y);
        let (w, h) = (w.exp() * anchor.w, h.exp() * anchor.h);
        [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0]
    }

    /// Drops what overlaps a better box of its class. `candidates` come best first.
    fn suppress(&self, candidates: Vec<Candidate>) -> Vec<Candidate> {
        let mut kept: Vec<Candidate> = Vec::new();
        for candidate in candidates {
            if kept.len() == self.max_results {
                break;
            }
            let hides =
                |k: &Candidate| k.class == candidate.class && overlap(&k.bounds, &candidate.bounds) >= self.max_overlap;
            if !kept.iter().any(hides) {
                kept.push(candidate);
            }
        }
        kept
    }
}

fn detection(candidate: Candidate, labels: &[String]) -> Detection {
    Detection {
        label: label(labels, candidate.class),
        class: candidate.class,
        score: candidate.score,
        bounds: candidate.bounds.map(|edge| edge.clamp(0.0, 1.0)),
    }
}

/// Intersection over union.
fn overlap(a: &[f32; 4], b: &[f32; 4]) -> f32 {
    let area = |r: &[f32; 4]| (r[2] - r[0]) * (r[3] - r[1]);
    let width = a[2].min(b[2]) - a[0].max(b[0]);
    let height = a[3].min(b[3]) - a[1].max(b[1]);
    let shared = width.max(0.0) * height.max(0.0);
    shared / (area(a) + area(b) - shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchors(strides: &[usize]) -> Anchors {
        Anchors {
            strides: strides.to_vec(),
            min_scale: 0.2,
            max_scale: 0.95,
            aspect_ratios: vec![1.0, 2.0, 0.5, 3.0, 0.3333],
            interpolated_ratio: Some(1.0),
            reduced_lowest_scale: Some(0.1),
        }
    }

    #[test]
    fn the_grid_has_an_anchor_for_each_shape_at_each_place() {
        let anchors = anchors(&[16, 32, 64, 128, 256, 512]);
        assert_eq!(anchors.count([300, 300]), 1917);
        let all = anchors.generate([300, 300]);
        assert_eq!(all.len(), 1917);
        assert_eq!(all[0], Anchor { x: 0.5 / 19.0, y: 0.5 / 19.0, w: 0.1, h: 0.1 });
        let last = all[1916];
        assert_eq!((last.x, last.y, last.w, last.h), (0.5, 0.5, 0.95_f32.sqrt(), 0.95_f32.sqrt()));
    }

    #[test]
    fn a_wide_picture_has_more_columns_than_rows() {
        let all = anchors(&[16]).generate([16, 32]);
        assert_eq!(all.iter().map(|a| (a.x, a.y)).collect::<Vec<_>>(), [[(0.25, 0.5); 3], [(0.75, 0.5); 3]].concat());
    }

    #[test]
    fn boxes_overlap_by_their_shared_part() {
        assert_eq!(overlap(&[0.0, 0.0, 2.0, 2.0], &[1.0, 0.0, 3.0, 2.0]), 2.0 / 6.0);
        assert_eq!(overlap(&[0.0, 0.0, 1.0, 1.0], &[2.0, 2.0, 3.0, 3.0]), 0.0);
    }
}
