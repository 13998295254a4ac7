//! A model, checked and planned: everything about it that no context changes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use model::{DType, Graph};
use npu::Chip;

use crate::cpu::Prepared;
use crate::info::{ModelInfo, Report, TensorInfo};
use crate::package::Package;
use crate::plan::{Plan, Step, plan};
use crate::rewrite::requantize_first;
use crate::{Decoded, Error, Input, Result, Tensor};

/// A model that contexts can make resident.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) info: Arc<ModelInfo>,
    pub(crate) graph: Graph,
    pub(crate) plan: Plan,
    package: Option<Package>,
    /// Operators of the CPU, by their index in the graph.
    operators: Vec<Option<Prepared>>,
    /// Requests that it has answered.
    pub(crate) answers: AtomicU64,
    golden: Option<Golden>,
}

/// A known input with its known outputs.
#[derive(Debug)]
pub(crate) struct Golden {
    pub(crate) input: Input,
    pub(crate) outputs: Vec<Bytes>,
    /// Largest difference of an element.
    pub(crate) tolerance: u8,
}

impl Model {
    /// Reads and plans the package in `folder`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the place and the reason.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let package = Package::read(folder)?;
        let bare = Self::of_graph(package.name(), package.graph()?)?;
        let (inputs, outputs) = (&bare.info.inputs, &bare.info.outputs);
        package.check(inputs, outputs)?;
        let golden = package.golden(inputs, outputs)?;
        let info = ModelInfo {
            version: package.version().into(),
            task: package.task().into(),
            license: package.license().into(),
            labels: package.labels().to_vec(),
            takes_pictures: package.takes_pictures(),
            ..ModelInfo::clone(&bare.info)
        };
        Ok(Self { info: Arc::new(info), package: Some(package), golden, ..bare })
    }

    /// Plans a graph that belongs to no package.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the operator and the reason.
    pub(crate) fn of_graph(name: &str, mut graph: Graph) -> Result<Self> {
        let origins = requantize_first(&mut graph);
        let plan = plan(&graph, &origins, &Chip::RK3588)?;
        let operators = operators(&graph, &plan)?;
        let info = ModelInfo {
            name: name.into(),
            version: String::new(),
            task: "tensor".into(),
            license: String::new(),
            labels: Vec::new(),
            takes_pictures: false,
            inputs: graph.inputs.iter().map(|id| TensorInfo::of(&graph[*id])).collect(),
            outputs: graph.outputs.iter().map(|id| TensorInfo::of(&graph[*id])).collect(),
            report: plan.report.clone(),
        };
        Ok(Self {
            info: Arc::new(info),
            graph,
            plan,
            package: None,
            operators,
            answers: AtomicU64::new(0),
            golden: None,
        })
    }

    /// Whether any operator runs on the NPU.
    pub(crate) fn uses_npu(&self) -> bool {
        !self.plan.networks.is_empty()
    }

    /// The operator of the CPU at an index that the plan names.
    pub(crate) fn operator(&self, node: usize) -> &Prepared {
        self.operators[node].as_ref().expect("every operator that the plan puts on the CPU is prepared")
    }

    /// A known input with its known outputs, where the package has one.
    pub(crate) fn golden(&self) -> Option<&Golden> {
        self.golden.as_ref()
    }

    /// Inputs of zeros.
    pub(crate) fn blank(&self) -> Input {
        let zeros = |info: &TensorInfo| Tensor {
            name: info.name.clone(),
            dtype: info.dtype,
            shape: info.shape.clone(),
            data: vec![0; info.bytes()].into(),
        };
        Input::Tensors(self.info.inputs.iter().map(zeros).collect())
    }

    /// Checks what can be checked without decoding a picture.
    ///
    /// # Errors
    /// [`Error::InvalidTensor`] with the tensor and what it should be.
    pub(crate) fn check(&self, input: &Input) -> Result<()> {
        match input {
            Input::Picture(_) if self.info.takes_pictures => Ok(()),
            Input::Picture(_) => Err(self.takes_no_pictures()),
            Input::Tensors(tensors) => self.in_order(tensors).map(drop),
        }
    }

    /// The bytes of every input, in the graph's order.
    ///
    /// # Errors
    /// [`Error::InvalidTensor`].
    pub(crate) fn prepare(&self, input: &Input) -> Result<Vec<Bytes>> {
        match input {
            Input::Tensors(tensors) => {
                Ok(self.in_order(tensors)?.into_iter().map(|tensor| tensor.data.clone()).collect())
            }
            Input::Picture(picture) => match &self.package {
                Some(package) => Ok(vec![package.prepare(picture, &self.info.inputs[0])?]),
                None => Err(self.takes_no_pictures()),
            },
        }
    }

    /// What the outputs mean.
    ///
    /// # Errors
    /// [`Error::Internal`] for outputs that the package's decoder was not checked against.
    pub(crate) fn decode(&self, outputs: &[Tensor]) -> Result<Decoded> {
        match &self.package {
            Some(package) => package.decode(&self.info.inputs, outputs, &self.info.outputs),
            None => Ok(Decoded::None),
        }
    }

    fn takes_no_pictures(&self) -> Error {
        Error::InvalidTensor(format!("model {:?} takes tensors, not pictures", self.info.name))
    }

    /// A caller's tensors in the graph's order: by name, or by position where no tensor has a name.
    fn in_order<'a>(&self, tensors: &'a [Tensor]) -> Result<Vec<&'a Tensor>> {
        let wanted = &self.info.inputs;
        if tensors.len() != wanted.len() {
            return Err(Error::InvalidTensor(format!(
                "{} tensors given, model {:?} takes {}",
                tensors.len(),
                self.info.name,
                wanted.len()
            )));
        }
        let unnamed = tensors.iter().all(|tensor| tensor.name.is_empty());
        let found = wanted.iter().enumerate().map(|(at, info)| {
            let tensor = if unnamed { Some(&tensors[at]) } else { tensors.iter().find(|t| t.name == info.name) };
            let missing = || Error::InvalidTensor(format!("input {:?} is missing", info.name));
            fits(tensor.ok_or_else(missing)?, info)
        });
        found.collect()
    }
}

impl Golden {
    /// Compares outputs with the known ones.
    ///
    /// # Errors
    /// [`Error::ResultUntrusted`] with the first element that differs by more than the tolerance.
    pub(crate) fn check(&self, outputs: &[Tensor]) -> Result<()> {
        for (output, expected) in outputs.iter().zip(&self.outputs) {
            let signed = output.dtype == DType::I8;
            let value = |byte: u8| if signed { i16::from(byte.cast_signed()) } else { i16::from(byte) };
            let mut pairs = output.data.iter().zip(expected.iter());
            let off = |(a, b): (&u8, &u8)| value(*a).abs_diff(value(*b)) > u16::from(self.tolerance);
            if let Some(at) = pairs.position(off) {
                return Err(Error::ResultUntrusted(format!(
                    "golden output {:?} differs at element {at}: {} instead of {}, tolerance {}",
                    output.name,
                    value(output.data[at]),
                    value(expected[at]),
                    self.tolerance
                )));
            }
        }
        Ok(())
    }
}

fn fits<'a>(tensor: &'a Tensor, info: &TensorInfo) -> Result<&'a Tensor> {
    if tensor.dtype != info.dtype {
        return Err(Error::InvalidTensor(format!("input {:?} is {:?}, not {:?}", info.name, info.dtype, tensor.dtype)));
    }
    if tensor.shape != info.shape {
        return Err(Error::InvalidTensor(format!(
            "input {:?} has shape {:?}, not {:?}",
            info.name, info.shape, tensor.shape
        )));
    }
    if tensor.data.len() != info.bytes() {
        return Err(Error::InvalidTensor(format!(
            "input {:?} has {} bytes, not {}",
            info.name,
            info.bytes(),
            tensor.data.len()
        )));
    }
    Ok(tensor)
}

/// Where the operators of a graph would run, and what one inference would cost. Opens no device.
///
/// # Errors
/// [`Error::Unsupported`] where a part cannot be planned after all.
pub fn report(mut graph: Graph) -> Result<Report> {
    let origins = requantize_first(&mut graph);
    Ok(plan(&graph, &origins, &Chip::RK3588)?.report)
}

fn operators(graph: &Graph, plan: &Plan) -> Result<Vec<Option<Prepared>>> {
    let mut operators: Vec<_> = graph.nodes.iter().map(|_| None).collect();
    for step in &plan.steps {
        if let Step::Cpu { node: index } = step {
            let node = &graph.nodes[*index];
            let refused = |reason| {
                let name = &graph[node.outputs[0]].name;
                Error::Unsupported(format!(
                    "{} {name:?} runs neither on the NPU nor on the CPU: {reason}",
                    node.op.name()
                ))
            };
            operators[*index] = Some(Prepared::new(graph, node).map_err(refused)?);
        }
    }
    Ok(operators)
}
