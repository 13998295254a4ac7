//! Client proxies of the contracts.

use std::collections::HashMap;

use zbus::wire::OwnedVariant;
use zbus::{Fd, OwnedObjectPath, Variant};

/// Options of a call.
pub type Options<'a> = HashMap<&'a str, Variant<'a>>;
/// What a reply says of itself.
pub type Details = HashMap<String, OwnedVariant>;
/// A tensor: name, datatype, shape, bytes as [`super::Blob`] encodes them.
pub type WireTensor = (String, String, Vec<u64>, OwnedVariant);
/// Something seen: label, class, score, box (left, top, right, bottom).
pub type Seen = (String, u32, f64, (f64, f64, f64, f64));
/// What a model wants or gives: name, datatype, shape, scale, zero point.
pub type TensorDescription = (String, String, Vec<u64>, f64, i32);

/// What a context is doing: its number, the model, what its jobs are, for how many microseconds.
pub type Running = (u32, String, String, u64);

/// A check of a self-test: its name, whether it passed, what was seen.
pub type Check = (String, bool, String);

/// Answers with one model.
#[zbus::proxy(interface = "org.cairn.Inference1", default_service = "org.cairn.Npu1", assume_defaults = false)]
pub trait Inference1 {
    /// Runs the model on tensors.
    fn infer(
        &self,
        tensors: &[WireTensor],
        options: Options<'_>,
    ) -> zbus::Result<(Vec<WireTensor>, Vec<Seen>, Details)>;

    /// Runs the model on a picture.
    fn infer_picture(
        &self,
        picture: &OwnedVariant,
        options: Options<'_>,
    ) -> zbus::Result<(Vec<WireTensor>, Vec<Seen>, Details)>;
}

/// Which models a daemon holds.
#[zbus::proxy(interface = "org.cairn.Models1", default_service = "org.cairn.Npu1", default_path = "/org/cairn/Npu1")]
pub trait Models1 {
    /// Starts to load a model package.
    fn load_model(&self, path: &str, options: Options<'_>) -> zbus::Result<OwnedObjectPath>;

    /// Unloads a model.
    fn unload_model(&self, name: &str, options: Options<'_>) -> zbus::Result<()>;

    /// The objects of all loaded models.
    fn list_models(&self, options: Options<'_>) -> zbus::Result<Vec<OwnedObjectPath>>;
}

/// A loaded model.
#[zbus::proxy(interface = "org.cairn.Model1", default_service = "org.cairn.Npu1", assume_defaults = false)]
pub trait Model1 {
    /// Name in the package.
    #[zbus(property(emits_changed_signal = "const"))]
    fn name(&self) -> zbus::Result<String>;
    /// Version in the package.
    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> zbus::Result<String>;
    /// What the model is for.
    #[zbus(property(emits_changed_signal = "const"))]
    fn task(&self) -> zbus::Result<String>;
    /// Licence in the package.
    #[zbus(property(emits_changed_signal = "const"))]
    fn license(&self) -> zbus::Result<String>;
    /// Whether it takes encoded pictures.
    #[zbus(property(emits_changed_signal = "const"))]
    fn takes_pictures(&self) -> zbus::Result<bool>;
    /// Class names.
    #[zbus(property(emits_changed_signal = "const"))]
    fn labels(&self) -> zbus::Result<Vec<String>>;
    /// Inputs.
    #[zbus(property(emits_changed_signal = "const"))]
    fn inputs(&self) -> zbus::Result<Vec<TensorDescription>>;
    /// Outputs.
    #[zbus(property(emits_changed_signal = "const"))]
    fn outputs(&self) -> zbus::Result<Vec<TensorDescription>>;
    /// The report of planning, JSON.
    #[zbus(property(emits_changed_signal = "const"))]
    fn report(&self) -> zbus::Result<String>;
    /// Requests that it has answered.
    #[zbus(property(emits_changed_signal = "false"))]
    fn answers(&self) -> zbus::Result<u64>;
    /// Operators of the graph.
    #[zbus(property(emits_changed_signal = "const"))]
    fn operators(&self) -> zbus::Result<u32>;
    /// Operators that run on the NPU.
    #[zbus(property(emits_changed_signal = "const"))]
    fn operators_on_npu(&self) -> zbus::Result<u32>;
    /// Jobs of one inference.
    #[zbus(property(emits_changed_signal = "const"))]
    fn npu_jobs(&self) -> zbus::Result<u32>;
    /// All device memory that the model holds, in bytes per context.
    #[zbus(property(emits_changed_signal = "const"))]
    fn memory_bytes(&self) -> zbus::Result<u64>;
    /// Lets the model answer its golden input. Returns the verdict.
    fn verify(&self, options: Options<'_>) -> zbus::Result<String>;
    /// Predicted time on the NPU, microseconds.
    #[zbus(property(emits_changed_signal = "const"))]
    fn predicted_microseconds(&self) -> zbus::Result<u64>;
}

/// A device and the queue in front of it.
#[zbus::proxy(
    interface = "org.cairn.Device1",
    default_service = "org.cairn.Npu1",
    default_path = "/org/cairn/Npu1/device/npu0"
)]
pub trait Device1 {
    /// What is driven.
    #[zbus(property(emits_changed_signal = "const"))]
    fn description(&self) -> zbus::Result<String>;
    /// Version of the kernel driver.
    #[zbus(property(emits_changed_signal = "const"))]
    fn driver_version(&self) -> zbus::Result<String>;
    /// Open files.
    #[zbus(property(emits_changed_signal = "const"))]
    fn contexts(&self) -> zbus::Result<u32>;
    /// Requests that may wait.
    #[zbus(property(emits_changed_signal = "const"))]
    fn queue_capacity(&self) -> zbus::Result<u32>;
    /// Requests that wait.
    #[zbus(property(emits_changed_signal = "false"))]
    fn queue_depth(&self) -> zbus::Result<u32>;
    /// Whether the kernel log takes part in the verdict.
    #[zbus(property(emits_changed_signal = "const"))]
    fn kernel_log_watched(&self) -> zbus::Result<bool>;
    /// How hot the machine is.
    #[zbus(property)]
    fn thermal_level(&self) -> zbus::Result<String>;
    /// What was counted.
    #[zbus(property(emits_changed_signal = "false"))]
    fn counters(&self) -> zbus::Result<HashMap<String, u64>>;
    /// What runs now.
    #[zbus(property(emits_changed_signal = "false"))]
    fn in_flight(&self) -> zbus::Result<Vec<Running>>;
    /// A context was replaced.
    #[zbus(signal)]
    fn context_replaced(
        &self,
        context: u32,
        model: &str,
        job: &str,
        reason: &str,
        kernel_line: &str,
    ) -> zbus::Result<()>;
}

/// Work that takes longer than a method call may.
#[zbus::proxy(interface = "org.cairn.Job1", default_service = "org.cairn.Npu1", assume_defaults = false)]
pub trait Job1 {
    /// What is done.
    #[zbus(property(emits_changed_signal = "const"))]
    fn kind(&self) -> zbus::Result<String>;
    /// Where it stands.
    #[zbus(property)]
    fn state(&self) -> zbus::Result<String>;
    /// Percentage, text, depth.
    #[zbus(property)]
    fn progress(&self) -> zbus::Result<(i32, String, i32)>;
    /// What it made.
    #[zbus(property)]
    fn result(&self) -> zbus::Result<OwnedObjectPath>;
    /// What else the work found out.
    #[zbus(property)]
    fn details(&self) -> zbus::Result<Details>;
    /// Why it failed: error name and text.
    #[zbus(property)]
    fn error(&self) -> zbus::Result<(String, String)>;
    /// Gives it up.
    fn cancel(&self, options: Options<'_>) -> zbus::Result<()>;
    /// It ended.
    #[zbus(signal)]
    fn completed(&self, state: &str) -> zbus::Result<()>;
}

/// Text by one language model.
#[zbus::proxy(interface = "org.cairn.TextGeneration1", default_service = "org.cairn.Gpu1", assume_defaults = false)]
pub trait TextGeneration1 {
    /// Answers a chat. Returns the job, and the pipe that gives the answer.
    fn generate(
        &self,
        messages: &[(&str, &str)],
        options: Options<'_>,
    ) -> zbus::Result<(OwnedObjectPath, zbus::wire::OwnedFd)>;
}

/// A language model.
#[zbus::proxy(interface = "org.cairn.LanguageModel1", default_service = "org.cairn.Gpu1", assume_defaults = false)]
pub trait LanguageModel1 {
    /// By which it is asked.
    #[zbus(property(emits_changed_signal = "const"))]
    fn name(&self) -> zbus::Result<String>;
    /// llama.cpp's name of the architecture.
    #[zbus(property(emits_changed_signal = "const"))]
    fn architecture(&self) -> zbus::Result<String>;
    /// Element type of most weights.
    #[zbus(property(emits_changed_signal = "const"))]
    fn quantization(&self) -> zbus::Result<String>;
    /// Weights.
    #[zbus(property(emits_changed_signal = "const"))]
    fn parameters(&self) -> zbus::Result<u64>;
    /// Bytes of the file.
    #[zbus(property(emits_changed_signal = "const"))]
    fn file_bytes(&self) -> zbus::Result<u64>;
    /// Why the GPU is not used.
    #[zbus(property(emits_changed_signal = "const"))]
    fn warning(&self) -> zbus::Result<String>;
    /// Whether it is in memory.
    #[zbus(property)]
    fn state(&self) -> zbus::Result<String>;
    /// Where it computes.
    #[zbus(property)]
    fn placement(&self) -> zbus::Result<String>;
    /// Tokens of the context, and tokens that are read at once.
    #[zbus(property)]
    fn context(&self) -> zbus::Result<(u64, u64)>;
    /// What it needs by estimate.
    #[zbus(property)]
    fn memory_bytes(&self) -> zbus::Result<u64>;
    /// Why less is used than could be, or why its server was lost.
    #[zbus(property)]
    fn reason(&self) -> zbus::Result<String>;
}

/// How the machine is.
#[zbus::proxy(
    interface = "org.cairn.Health1",
    default_service = "org.cairn.Health1",
    default_path = "/org/cairn/Health1"
)]
pub trait Health1 {
    /// How it is, in one word.
    #[zbus(property)]
    fn state(&self) -> zbus::Result<String>;
    /// Why it is not healthy.
    #[zbus(property)]
    fn reasons(&self) -> zbus::Result<Vec<String>>;
    /// How hot it is.
    #[zbus(property)]
    fn thermal_level(&self) -> zbus::Result<String>;
    /// Why it started last.
    #[zbus(property(emits_changed_signal = "const"))]
    fn reset_reason(&self) -> zbus::Result<String>;
    /// The kernel's name of this boot.
    #[zbus(property(emits_changed_signal = "const"))]
    fn boot_id(&self) -> zbus::Result<String>;
    /// What is measured.
    #[zbus(property(emits_changed_signal = "false"))]
    fn gauges(&self) -> zbus::Result<HashMap<String, f64>>;
    /// What was counted.
    #[zbus(property(emits_changed_signal = "false"))]
    fn counters(&self) -> zbus::Result<HashMap<String, u64>>;
    /// Starts a self-test. Returns the job; its details are `passed` and `checks`, [`Check`]s.
    fn run_self_test(&self, options: Options<'_>) -> zbus::Result<OwnedObjectPath>;
    /// Starts to gather a support bundle. Returns the job; its details are `name` and `bytes`.
    fn create_support_bundle(&self, options: Options<'_>) -> zbus::Result<OwnedObjectPath>;
    /// Opens a support bundle.
    fn open_support_bundle(&self, name: &str, options: Options<'_>) -> zbus::Result<zbus::wire::OwnedFd>;
}

/// Something that went wrong, once.
#[zbus::proxy(interface = "org.cairn.Incident1", default_service = "org.cairn.Health1", assume_defaults = false)]
pub trait Incident1 {
    /// Unique for ever.
    #[zbus(property(emits_changed_signal = "const"))]
    fn id(&self) -> zbus::Result<String>;
    /// What happened.
    #[zbus(property)]
    fn class(&self) -> zbus::Result<String>;
    /// Whether lines may still join.
    #[zbus(property)]
    fn state(&self) -> zbus::Result<String>;
    /// How bad it is.
    #[zbus(property)]
    fn severity(&self) -> zbus::Result<String>;
    /// The device.
    #[zbus(property(emits_changed_signal = "const"))]
    fn device(&self) -> zbus::Result<String>;
    /// The core of the NPU, or -1.
    #[zbus(property(emits_changed_signal = "const"))]
    fn core(&self) -> zbus::Result<i32>;
    /// Who suffered.
    #[zbus(property)]
    fn subject(&self) -> zbus::Result<String>;
    /// The model that ran.
    #[zbus(property)]
    fn model(&self) -> zbus::Result<String>;
    /// What the kernel said.
    #[zbus(property)]
    fn lines(&self) -> zbus::Result<Vec<String>>;
    /// How often it was seen.
    #[zbus(property)]
    fn count(&self) -> zbus::Result<u32>;
    /// When it began, milliseconds since 1970.
    #[zbus(property(emits_changed_signal = "const"))]
    fn first_seen(&self) -> zbus::Result<u64>;
    /// When it was last seen.
    #[zbus(property)]
    fn last_seen(&self) -> zbus::Result<u64>;
    /// What should be done.
    #[zbus(property)]
    fn suggested_action(&self) -> zbus::Result<String>;
    /// What was done.
    #[zbus(property)]
    fn taken_action(&self) -> zbus::Result<String>;
}

/// Updates of the system.
#[zbus::proxy(
    interface = "org.cairn.Update1",
    default_service = "org.cairn.Update1",
    default_path = "/org/cairn/Update1"
)]
pub trait Update1 {
    /// Where the update stands.
    #[zbus(property)]
    fn state(&self) -> zbus::Result<String>;
    /// What runs.
    #[zbus(property)]
    fn version(&self) -> zbus::Result<String>;
    /// What is or was wanted.
    #[zbus(property)]
    fn target_version(&self) -> zbus::Result<String>;
    /// Where it comes from.
    #[zbus(property)]
    fn source(&self) -> zbus::Result<String>;
    /// The slot that runs.
    #[zbus(property)]
    fn slot(&self) -> zbus::Result<String>;
    /// Percentage, text, depth.
    #[zbus(property)]
    fn progress(&self) -> zbus::Result<(i32, String, i32)>;
    /// Why it failed or was rolled back.
    #[zbus(property)]
    fn reason(&self) -> zbus::Result<String>;
    /// What the kernel that failed said last.
    #[zbus(property)]
    fn kernel_tail(&self) -> zbus::Result<Vec<String>>;
    /// What the update waits for.
    #[zbus(property)]
    fn waiting(&self) -> zbus::Result<Vec<String>>;
    /// Whether the broker is connected.
    #[zbus(property)]
    fn broker_connected(&self) -> zbus::Result<bool>;
    /// Which updates this machine is for.
    #[zbus(property)]
    fn channel(&self) -> zbus::Result<String>;
    /// Starts an update. Returns the job.
    fn install(&self, source: &str, options: Options<'_>) -> zbus::Result<OwnedObjectPath>;
    /// Does now what waits.
    fn proceed(&self, options: Options<'_>) -> zbus::Result<()>;
    /// Forgets an offer, a failure or a rollback.
    fn dismiss(&self, options: Options<'_>) -> zbus::Result<()>;
    /// Empties the machine and starts it anew.
    fn factory_reset(&self, options: Options<'_>) -> zbus::Result<()>;
}

/// The store of signed models.
#[zbus::proxy(
    interface = "org.cairn.ModelStore1",
    default_service = "org.cairn.Update1",
    default_path = "/org/cairn/Update1"
)]
pub trait ModelStore1 {
    /// Adds the bundle that an open file holds. Returns the job.
    fn add(&self, bundle: Fd<'_>, options: Options<'_>) -> zbus::Result<OwnedObjectPath>;
    /// Adds the bundle at an address. Returns the job.
    fn fetch(&self, url: &str, options: Options<'_>) -> zbus::Result<OwnedObjectPath>;
    /// Name; current, previous and candidate version; the last refusal.
    #[zbus(property)]
    fn models(&self) -> zbus::Result<Vec<(String, String, String, String, String)>>;
}

/// The part of polkit that asks whether a caller may do something.
#[zbus::proxy(
    interface = "org.freedesktop.PolicyKit1.Authority",
    default_service = "org.freedesktop.PolicyKit1",
    default_path = "/org/freedesktop/PolicyKit1/Authority"
)]
pub trait Authority {
    /// Asks for `subject`, a kind and its facts. Returns: authorised, a challenge would help, details.
    fn check_authorization(
        &self,
        subject: &(&str, HashMap<&str, Variant<'_>>),
        action: &str,
        details: HashMap<&str, &str>,
        flags: u32,
        cancellation: &str,
    ) -> zbus::Result<(bool, bool, HashMap<String, String>)>;
}
