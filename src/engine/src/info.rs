//! What the engine says of itself and of its models.

use std::sync::Arc;
use std::time::Duration;

use model::DType;
use serde::{Serialize, Serializer};

/// How an engine works. The defaults are those of the appliance.
#[derive(Clone, Debug)]
pub struct Options {
    /// Open files of the driver, each with a worker thread. One file drives one core at a time.
    pub contexts: usize,
    /// Requests that may wait.
    pub queue_capacity: usize,
    /// How long a run may take on the device's clock before its context is given up.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // SOURCE: RK3588 has three NPU cores, npu-spec 0.
            contexts: 3,
            queue_capacity: 32,
            // TIMEOUT: the kernel retires a job after 500 ms, and a network is at most a few jobs.
            patience: Duration::from_secs(5),
        }
    }
}

/// A loaded model.
#[derive(Clone, Debug, Serialize)]
pub struct ModelInfo {
    /// Name, unique among the loaded models.
    pub name: String,
    /// Version of the package.
    pub version: String,
    /// What it is for: `detect`, `classify` or `tensor`.
    pub task: String,
    /// Licence of the model.
    pub license: String,
    /// Class names, by index.
    pub labels: Vec<String>,
    /// Whether it takes encoded pictures.
    pub takes_pictures: bool,
    /// What a caller provides.
    pub inputs: Vec<TensorInfo>,
    /// What a caller gets.
    pub outputs: Vec<TensorInfo>,
    /// Where its operators run and what that costs.
    pub report: Report,
}

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorInfo {
    /// Name in the model.
    pub name: String,
    /// Element type.
    #[serde(serialize_with = "dtype_name")]
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Scale and zero point, where the tensor is quantised as a whole: real = scale × (q − zero point).
    pub quantization: Option<(f32, i32)>,
}

impl TensorInfo {
    /// What a caller must know of a graph's tensor.
    pub(crate) fn of(tensor: &model::Tensor) -> Self {
        Self {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            quantization: tensor.quantization.as_ref().and_then(model::Quantization::per_tensor),
        }
    }

    /// Bytes of the tensor.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bytes()
    }
}

fn dtype_name<S: Serializer>(dtype: &DType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{dtype:?}"))
}

/// Where a model's operators run and what that costs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// One entry per operator, in execution order.
    pub operators: Vec<OperatorReport>,
    /// Jobs that one inference submits.
    pub npu_jobs: usize,
    /// Register programs that one inference runs.
    pub npu_tasks: usize,
    /// Multiplications on the NPU, channel padding included.
    pub npu_macs: u64,
    /// Resident weights and operands in device memory, per context.
    pub weight_bytes: u64,
    /// All device memory, per context.
    pub memory_bytes: u64,
    /// Bytes that one inference moves between memory and the NPU.
    pub bytes_moved: u64,
    /// Time on the NPU as the cost model predicts it; not a measurement.
    pub predicted: Duration,
}

impl Report {
    /// Whether a job of the model ends in the pooling unit.
    pub(crate) fn pools(&self) -> bool {
        let pools = |operator: &OperatorReport| matches!(operator.kind, "AVERAGE_POOL_2D" | "MAX_POOL_2D");
        self.operators.iter().any(|operator| operator.place == Place::Npu && pools(operator))
    }
}

/// What the jobs of a model are, which decides what it means when the kernel's watchdog ends one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    /// They end in the unit that every kernel listens to.
    Convolution,
    /// They end in the pooling unit.
    Pooling,
    /// They end in the pooling unit, on a kernel that does not listen to it, and all of the output was written: the
    /// watchdog ends such a job after its work. SOURCE: kernel-lines 1c, fact 8.
    PoolingUnheard,
}

impl JobKind {
    /// As interfaces name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Convolution => "convolution",
            Self::Pooling => "pooling",
            Self::PoolingUnheard => "pooling-unheard",
        }
    }

    /// What a job is that left its output `complete` or not. `pools`: it ends in the pooling unit; `heard`: the kernel
    /// listens to that.
    pub(crate) fn of(pools: bool, heard: bool, complete: bool) -> Self {
        match (pools, heard, complete) {
            (false, ..) => Self::Convolution,
            (true, false, true) => Self::PoolingUnheard,
            (true, ..) => Self::Pooling,
        }
    }
}

/// What a context is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InFlight {
    /// Which context.
    pub context: usize,
    /// The model that runs.
    pub model: String,
    /// What its jobs are.
    pub job: JobKind,
    /// Since when.
    pub running: Duration,
}

/// Where one operator runs.
#[derive(Clone, Debug, Serialize)]
pub struct OperatorReport {
    /// Index in the model file.
    pub index: usize,
    /// Kind, as the model file calls it.
    pub kind: &'static str,
    /// Name of its output.
    pub name: String,
    /// Where it runs.
    pub place: Place,
    /// Why it does not run on the NPU.
    pub reason: Option<String>,
}

/// Where an operator runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// On the NPU.
    Npu,
    /// On the CPU.
    Cpu,
}

/// How hot the machine is. Whoever watches the thermal zones sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ThermalLevel {
    /// Every request is admitted.
    #[default]
    Normal,
    /// Batch requests are refused.
    Throttled,
    /// Every request is refused.
    Critical,
}

/// Something that happened. Slow readers miss old events.
#[derive(Clone, Debug)]
pub enum Event {
    /// A model can be used.
    ModelLoaded(Arc<ModelInfo>),
    /// A model is gone.
    ModelUnloaded(String),
    /// A result could not be trusted, and its context was replaced.
    ContextReplaced {
        /// Which context.
        context: usize,
        /// The model that ran.
        model: String,
        /// What its jobs are.
        job: JobKind,
        /// Why the result could not be trusted.
        reason: String,
        /// What the kernel said meanwhile, the last of several lines.
        kernel_line: Option<String>,
    },
}

/// A snapshot of the engine.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// What is driven, for people.
    pub device: String,
    /// DRM driver version.
    pub driver_version: String,
    /// Whether a whole network is one kick.
    pub batched_submit: bool,
    /// Whether faults in the kernel log are part of the verdict.
    pub kernel_log_watched: bool,
    /// Open files of the driver.
    pub contexts: usize,
    /// Requests that wait.
    pub queue_depth: usize,
    /// Requests that may wait.
    pub queue_capacity: usize,
    /// How hot the machine is.
    pub thermal_level: ThermalLevel,
    /// What has been counted since the start.
    pub counters: Counters,
}

/// What has been counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Requests admitted.
    pub requests: u64,
    /// Answers verified at the first attempt, or computed by the CPU alone.
    pub trusted: u64,
    /// Answers verified at the second attempt.
    pub retried: u64,
    /// Requests without a verifiable answer.
    pub untrusted: u64,
    /// Requests refused because the queue was full.
    pub queue_full: u64,
    /// Requests whose deadline passed.
    pub deadline_exceeded: u64,
    /// Requests whose caller went away.
    pub cancelled: u64,
    /// Requests that ended with any other error.
    pub failed: u64,
    /// Contexts replaced.
    pub contexts_replaced: u64,
    /// Time on the NPU, in microseconds on the device's clock.
    pub npu_micros: u64,
}
