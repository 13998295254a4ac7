//! Which operators of a runtime's graph are claimed, and why not the others.
//!
//! Claimed is what the NPU computes, and what lies between two such operators and the engine computes on the CPU: an
//! operator left out there would cut the network in two. What comes before or after is left to the runtime, which has
//! faster kernels for it.

use std::collections::{BTreeSet, HashSet};
use std::fmt;

use engine::Place;
use model::{Graph, Node, Quantization, Tensor, TensorId};

use crate::ffi::{Runtime, Subset};
use crate::sketch::{Refusal, Sketch};

/// What becomes of every operator of a graph.
#[derive(Debug)]
pub(crate) struct Survey {
    operators: Vec<Surveyed>,
}

/// What becomes of an operator.
#[derive(Debug)]
struct Surveyed {
    /// The runtime's index.
    node: i32,
    kind: String,
    /// The tensor that it makes, for people.
    output: String,
    claim: Claim,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Claim {
    /// Claimed, for the NPU.
    Npu,
    /// Claimed, for the engine's CPU; why it is not on the NPU.
    Between(String),
    /// Left to the runtime; why.
    Left(String),
}

impl Survey {
    /// Looks at every operator of the runtime's plan.
    ///
    /// # Errors
    /// Where the runtime does not answer.
    pub(crate) fn of(runtime: &Runtime<'_>) -> Result<Self, String> {
        let mut operators = Vec::new();
        let mut sketch = Sketch::default();
        // Of the operators that were drawn, their index in `operators`.
        let mut drawn = Vec::new();
        let mut read_elsewhere = BTreeSet::new();
        for node in runtime.execution_plan()? {
            let (kind, output, claim) = match sketch.add(runtime, node) {
                Ok(made) => {
                    drawn.push(operators.len());
                    (made.0, made.1, Claim::Left(String::new()))
                }
                Err(Refusal { kind, reason, reads }) => {
                    read_elsewhere.extend(reads);
                    (kind, String::new(), Claim::Left(reason))
                }
            };
            operators.push(Surveyed { node, kind, output, claim });
        }
        let claims = sketch.whole(&read_elsewhere).and_then(|graph| claims(&graph));
        let claims = claims.unwrap_or_else(|reason| vec![Claim::Left(reason); drawn.len()]);
        for (at, claim) in drawn.into_iter().zip(claims) {
            operators[at].claim = claim;
        }
        let mut survey = Self { operators };
        survey.leave_poor_parts(runtime)?;
        Ok(survey)
    }

    /// The runtime's indices of the claimed operators.
    pub(crate) fn claimed(&self) -> Vec<i32> {
        let claimed = self.operators.iter().filter(|operator| !matches!(operator.claim, Claim::Left(_)));
        claimed.map(|operator| operator.node).collect()
    }

    /// Where the runtime cuts what is claimed into parts, those without work for the NPU are left to it.
    fn leave_poor_parts(&mut self, runtime: &Runtime<'_>) -> Result<(), String> {
        let parts = runtime.preview(&self.claimed())?;
        if parts.len() < 2 {
            return Ok(());
        }
        for part in parts {
            let report = part_graph(runtime, &part).and_then(|(graph, ..)| report(graph));
            let reason = match report {
                Ok(report) if report.npu_jobs > 0 => continue,
                Ok(_) => "too little work for a job of its own".to_owned(),
                Err(reason) => reason,
            };
            for operator in self.operators.iter_mut().filter(|operator| part.nodes.contains(&operator.node)) {
                operator.claim = Claim::Left(reason.clone());
            }
        }
        Ok(())
    }
}

/// A claimed subset as a graph, with the runtime's tensors that are its inputs and outputs.
///
/// # Errors
/// What the subset has that cannot be drawn.
pub(crate) fn part_graph(runtime: &Runtime<'_>, part: &Subset) -> Result<(Graph, Vec<i32>, Vec<i32>), String> {
    let mut sketch = Sketch::default();
    for node in &part.nodes {
        sketch.add(runtime, *node).map_err(|refusal| format!("{}: {}", refusal.kind, refusal.reason))?;
    }
    sketch.between(&part.inputs, &part.outputs)
}

fn report(graph: Graph) -> Result<engine::Report, String> {
    engine::report(graph).map_err(|error| error.to_string())
}

/// What becomes of each node of a graph.
fn claims(graph: &Graph) -> Result<Vec<Claim>, String> {
    let report = report(graph.clone())?;
    let mut claims: Vec<Claim> = report
        .operators
        .into_iter()
        .zip(&graph.nodes)
        .map(|(operator, node)| match operator.place {
            Place::Npu => Claim::Npu,
            Place::Cpu => {
                let reason = operator.reason.unwrap_or_default();
                match engine::cpu::supports(graph, node) {
                    Ok(()) => Claim::Between(reason),
                    Err(_) => Claim::Left(reason),
                }
            }
        })
        .collect();
    let after = reached(graph.nodes.iter().zip(&claims), |node| (inputs(node), node.outputs.clone()));
    let before = reached(graph.nodes.iter().zip(&claims).rev(), |node| (node.outputs.clone(), inputs(node)));
    for (claim, node) in claims.iter_mut().zip(&graph.nodes) {
        let is_between =
            inputs(node).iter().any(|id| after.contains(id)) && node.outputs.iter().any(|id| before.contains(id));
        if let Claim::Between(reason) = claim
            && !is_between
        {
            *claim = Claim::Left(std::mem::take(reason));
        }
    }
    Ok(claims)
}

fn inputs(node: &Node) -> Vec<TensorId> {
    node.inputs.iter().flatten().copied().collect()
}

/// The tensors that lead away from an operator of the NPU through operators that can be claimed.
fn reached<'g>(
    nodes: impl Iterator<Item = (&'g Node, &'g Claim)>,
    ends: impl Fn(&Node) -> (Vec<TensorId>, Vec<TensorId>),
) -> HashSet<TensorId> {
    let mut reached = HashSet::new();
    for (node, claim) in nodes {
        let (from, to) = ends(node);
        let leads = match claim {
            Claim::Npu => true,
            Claim::Between(_) => from.iter().any(|id| reached.contains(id)),
            Claim::Left(_) => false,
        };
        if leads {
            reached.extend(to);
        }
    }
    reached
}

/// A tensor in words: element type, shape, and scale and zero point where there is one of each.
pub(crate) fn describe(tensor: &Tensor) -> String {
    let mut line = format!("{:?} {:?}{:?}", tensor.name, tensor.dtype, tensor.shape);
    if let Some((scale, zero_point)) = tensor.quantization.as_ref().and_then(Quantization::per_tensor) {
        line = format!("{line} scale {scale} zero point {zero_point}");
    }
    line
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |wanted: fn(&Claim) -> bool| self.operators.iter().filter(|o| wanted(&o.claim)).count();
        writeln!(
            f,
            "{} operators: {} on the NPU, {} between them on the CPU, {} left to the runtime",
            self.operators.len(),
            count(|claim| *claim == Claim::Npu),
            count(|claim| matches!(claim, Claim::Between(_))),
            count(|claim| matches!(claim, Claim::Left(_))),
        )?;
        for Surveyed { node, kind, output, claim } in &self.operators {
            write!(f, "operator {node} {kind} {output}: ")?;
            match claim {
                Claim::Npu => writeln!(f, "on the NPU")?,
                Claim::Between(reason) => writeln!(f, "between, on the CPU: {reason}")?,
                Claim::Left(reason) => writeln!(f, "left: {reason}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use model::tflite;

    use super::*;

    fn kinds(model: &str) -> Vec<(&'static str, Claim)> {
        let path = format!("{}/../../tests/models/{model}/model.tflite", env!("CARGO_MANIFEST_DIR"));
        let graph = tflite::read(&std::fs::read(path).unwrap()).unwrap();
        let claims = claims(&graph).unwrap();
        graph.nodes.iter().map(|node| node.op.name()).zip(claims).collect()
    }

    #[test]
    fn what_follows_the_last_convolution_is_left() {
        let kinds = kinds("mnist");
        let left = kinds.iter().filter(|(_, claim)| matches!(claim, Claim::Left(_)));
        assert_eq!(left.map(|(kind, _)| *kind).collect::<Vec<_>>(), ["RESHAPE", "SOFTMAX"]);
        assert!(kinds.contains(&("AVERAGE_POOL_2D", Claim::Between("AVERAGE_POOL_2D has no NPU program yet".into()))));
    }

    #[test]
    fn what_moves_data_between_two_operators_of_the_npu_is_claimed() {
        let kinds = kinds("ssd-oidv4");
        let between = kinds.iter().filter(|(_, claim)| matches!(claim, Claim::Between(_)));
        assert!(between.clone().count() > 0);
        for (kind, claim) in between {
            assert_eq!((*kind, claim), ("RESHAPE", &Claim::Between("moves data only".into())));
        }
        assert_eq!(kinds.iter().filter(|(_, claim)| *claim == Claim::Npu).count(), 93);
        assert!(kinds.iter().any(|(kind, claim)| *kind == "CONCATENATION" && matches!(claim, Claim::Left(_))));
    }
}
