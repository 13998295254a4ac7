//! `org.cairn.Model1`.

use std::sync::Arc;

use api::dbus::TensorDescription;
use engine::{Engine, ModelInfo, Place, TensorInfo};

use kit::bus::{WireOptions, no_options};

use crate::request::{datatype, failure, verdict};

/// A loaded model.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) engine: Engine,
    pub(super) info: Arc<ModelInfo>,
}

#[zbus::interface(name = "org.cairn.Model1", introspection_docs = false)]
impl Model {
    #[zbus(out_args("verdict"))]
    async fn verify(&self, options: WireOptions) -> api::Result<String> {
        no_options(&options)?;
        let found = self.engine.verify(&self.info.name).await.map_err(|error| failure(&error))?;
        Ok(verdict(found).to_owned())
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn name(&self) -> &str {
        &self.info.name
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn answers(&self) -> u64 {
        self.engine.answers(&self.info.name).unwrap_or(0)
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> &str {
        &self.info.version
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn task(&self) -> &str {
        &self.info.task
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn license(&self) -> &str {
        &self.info.license
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn takes_pictures(&self) -> bool {
        self.info.takes_pictures
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn labels(&self) -> Vec<String> {
        self.info.labels.clone()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn inputs(&self) -> Vec<TensorDescription> {
        self.info.inputs.iter().map(description).collect()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn outputs(&self) -> Vec<TensorDescription> {
        self.info.outputs.iter().map(description).collect()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn report(&self) -> zbus::fdo::Result<String> {
        serde_json::to_string(&self.info.report).map_err(|error| zbus::fdo::Error::Failed(format!("report: {error}")))
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn operators(&self) -> u32 {
        count(self.info.report.operators.len())
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn operators_on_npu(&self) -> u32 {
        count(self.info.report.operators.iter().filter(|operator| operator.place == Place::Npu).count())
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn npu_jobs(&self) -> u32 {
        count(self.info.report.npu_jobs)
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn npu_tasks(&self) -> u32 {
        count(self.info.report.npu_tasks)
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn macs(&self) -> u64 {
        self.info.report.npu_macs
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn weight_bytes(&self) -> u64 {
        self.info.report.weight_bytes
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn memory_bytes(&self) -> u64 {
        self.info.report.memory_bytes
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn bytes_moved(&self) -> u64 {
        self.info.report.bytes_moved
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn predicted_microseconds(&self) -> u64 {
        u64::try_from(self.info.report.predicted.as_micros()).unwrap_or(u64::MAX)
    }
}

fn description(tensor: &TensorInfo) -> TensorDescription {
    let (scale, zero_point) = tensor.quantization.unwrap_or((0.0, 0));
    // CAST: usize has at most 64 bits.
    let shape = tensor.shape.iter().map(|&extent| extent as u64).collect();
    (tensor.name.clone(), datatype(tensor.dtype).name().to_owned(), shape, scale.into(), zero_point)
}

/// A count for people; one beyond 32 bits does not occur in a model that fits memory.
fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
