//! What all daemons say at one moment, and what changed between two.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anyhow::Result;
use api::dbus::{
    HEALTH_NAME, HEALTH_ROOT, Model1Proxy, Models1Proxy, NPU_DEVICE, NPU_NAME, Running, UPDATE_NAME, UPDATE_ROOT,
};
use serde::Serialize;
use zbus::fdo::DBusProxy;
use zbus::names::BusName;
use zbus::proxy::CacheProperties;
use zbus::{Connection, Variant};

use crate::health::{self, Incident};
use crate::objects::{self, take};

/// Bus name and root object of the daemon that owns the GPU.
const GPU: (&str, &str) = ("org.cairn.Gpu1", "/org/cairn/Gpu1");
/// How long a daemon may take.
// TIMEOUT: a property is answered in a millisecond; a daemon that needs seconds hangs, and the view must not with it.
const PATIENCE: Duration = Duration::from_secs(3);
/// The longest text of a property that nobody here knows.
const TEXT: usize = 60;

/// What a daemon says, or why it says nothing.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Section<T> {
    /// It answers.
    There(T),
    /// It does not.
    Absent(String),
}

impl<T> Default for Section<T> {
    fn default() -> Self {
        Self::Absent("not asked yet".into())
    }
}

impl<T> Section<T> {
    pub(super) fn get(&self) -> Option<&T> {
        match self {
            Self::There(there) => Some(there),
            Self::Absent(_) => None,
        }
    }
}

/// What all daemons say.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Snapshot {
    pub(super) health: Section<Health>,
    pub(super) npu: Section<Npu>,
    pub(super) gpu: Section<Gpu>,
    pub(super) update: Section<Update>,
}

/// What healthd says.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Health {
    pub(super) state: String,
    pub(super) reasons: Vec<String>,
    pub(super) thermal_level: String,
    pub(super) reset_reason: String,
    pub(super) gauges: BTreeMap<String, f64>,
    pub(super) counters: BTreeMap<String, u64>,
    pub(super) incidents: Vec<Incident>,
}

/// What npud says.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Npu {
    pub(super) description: String,
    pub(super) driver_version: String,
    pub(super) contexts: u32,
    pub(super) queue_depth: u32,
    pub(super) queue_capacity: u32,
    pub(super) thermal_level: String,
    pub(super) counters: BTreeMap<String, u64>,
    pub(super) in_flight: Vec<Running>,
    pub(super) models: Vec<Model>,
}

/// A loaded model.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Model {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) answers: u64,
    pub(super) memory_bytes: u64,
}

/// What the daemon of the GPU says: of each object, what can be read at a glance.
pub(super) type Gpu = BTreeMap<String, BTreeMap<String, String>>;

/// What otad says.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Update {
    pub(super) state: String,
    pub(super) version: String,
    pub(super) slot: String,
    pub(super) target_version: String,
    pub(super) percent: i32,
    pub(super) doing: String,
    pub(super) reason: String,
}

impl Snapshot {
    /// Asks all daemons at the same time.
    pub(super) async fn read(connection: &Connection) -> Self {
        let (health, npu, gpu, update) = tokio::join!(
            section(connection, HEALTH_NAME, health(connection)),
            section(connection, NPU_NAME, npu(connection)),
            section(connection, GPU.0, gpu(connection)),
            section(connection, UPDATE_NAME, update(connection)),
        );
        Self { health, npu, gpu, update }
    }
}

/// What `read` yields, if `daemon` runs and answers in time. One that does not run is not started by looking.
async fn section<T>(
    connection: &Connection,
    daemon: &'static str,
    read: impl Future<Output = Result<T>>,
) -> Section<T> {
    let asked = async {
        let name = BusName::try_from(daemon)?;
        Ok(if DBusProxy::new(connection).await?.name_has_owner(name).await? { Some(read.await?) } else { None })
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(Some(there))) => Section::There(there),
        Ok(Ok(None)) => Section::Absent("not running".into()),
        Ok(Err(error)) => {
            let error: anyhow::Error = error;
            Section::Absent(format!("{error:#}"))
        }
        Err(_) => Section::Absent("does not answer".into()),
    }
}

async fn health(connection: &Connection) -> Result<Health> {
    let mut all = objects::properties(connection, HEALTH_NAME, HEALTH_ROOT, "org.cairn.Health1").await?;
    let (gauges, counters): (HashMap<_, _>, HashMap<_, _>) = (take(&mut all, "Gauges")?, take(&mut all, "Counters")?);
    Ok(Health {
        state: take(&mut all, "State")?,
        reasons: take(&mut all, "Reasons")?,
        thermal_level: take(&mut all, "ThermalLevel")?,
        reset_reason: take(&mut all, "ResetReason")?,
        gauges: gauges.into_iter().collect(),
        counters: counters.into_iter().collect(),
        incidents: health::all_incidents(connection).await?,
    })
}

async fn npu(connection: &Connection) -> Result<Npu> {
    let mut all = objects::properties(connection, NPU_NAME, NPU_DEVICE, "org.cairn.Device1").await?;
    let counters: HashMap<_, _> = take(&mut all, "Counters")?;
    Ok(Npu {
        description: take(&mut all, "Description")?,
        driver_version: take(&mut all, "DriverVersion")?,
        contexts: take(&mut all, "Contexts")?,
        queue_depth: take(&mut all, "QueueDepth")?,
        queue_capacity: take(&mut all, "QueueCapacity")?,
        thermal_level: take(&mut all, "ThermalLevel")?,
        counters: counters.into_iter().collect(),
        in_flight: take(&mut all, "InFlight")?,
        models: models(connection).await?,
    })
}

async fn models(connection: &Connection) -> Result<Vec<Model>> {
    let mut models = Vec::new();
    for path in Models1Proxy::new(connection).await?.list_models(Default::default()).await? {
        let model = Model1Proxy::builder(connection).path(path).cache_properties(CacheProperties::No).build().await?;
        models.push(Model {
            name: model.name().await?,
            version: model.version().await?,
            answers: model.answers().await?,
            memory_bytes: model.memory_bytes().await?,
        });
    }
    Ok(models)
}

async fn gpu(connection: &Connection) -> Result<Gpu> {
    let mut gpu = Gpu::new();
    for (path, interfaces) in objects::all(connection, GPU.0, GPU.1).await? {
        let ours = interfaces.into_iter().filter(|(interface, _)| interface.starts_with("org.cairn."));
        let shown: BTreeMap<_, _> =
            ours.flat_map(|(_, all)| all).filter_map(|(name, value)| Some((name, glance(&value)?))).collect();
        let name = path.as_str().strip_prefix(GPU.1).unwrap_or(path.as_str()).trim_start_matches('/').to_owned();
        gpu.insert(name, shown);
    }
    Ok(gpu)
}

/// A value in a few letters, if it has them.
fn glance(value: &Variant<'_>) -> Option<String> {
    let text = match value {
        Variant::Str(text) => text.to_string(),
        Variant::Bool(flag) => flag.to_string(),
        Variant::U32(number) => number.to_string(),
        Variant::U64(number) => number.to_string(),
        Variant::I32(number) => number.to_string(),
        Variant::I64(number) => number.to_string(),
        Variant::F64(number) => format!("{number:.1}"),
        _ => return None,
    };
    (!text.is_empty() && text.len() <= TEXT).then_some(text)
}

async fn update(connection: &Connection) -> Result<Update> {
    let mut all = objects::properties(connection, UPDATE_NAME, UPDATE_ROOT, "org.cairn.Update1").await?;
    let (percent, doing, _): (i32, String, i32) = take(&mut all, "Progress")?;
    Ok(Update {
        state: take(&mut all, "State")?,
        version: take(&mut all, "Version")?,
        slot: take(&mut all, "Slot")?,
        target_version: take(&mut all, "TargetVersion")?,
        percent,
        doing,
        reason: take(&mut all, "Reason")?,
    })
}

/// What changed in a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// Requests that npud admitted.
    pub(super) requests: f64,
    /// Contexts whose jobs were on the NPU, on average.
    pub(super) busy: f64,
    /// Answers of each model.
    pub(super) models: BTreeMap<String, f64>,
}

impl Rates {
    /// The rates between two snapshots. A daemon that was away in one of them has none; one that started anew counts
    /// from 0.
    pub(super) fn between(before: &Snapshot, now: &Snapshot, elapsed: Duration) -> Self {
        let (Some(before), Some(now)) = (before.npu.get(), now.npu.get()) else { return Self::default() };
        let seconds = elapsed.as_secs_f64();
        // CAST: a difference of counters within seconds is exact in a double.
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        let counter = |npu: &Npu, name: &str| npu.counters.get(name).copied().unwrap_or(0);
        let answers = |name: &str| before.models.iter().find(|model| model.name == name).map(|model| model.answers);
        let models = now
            .models
            .iter()
            .map(|model| (model.name.clone(), rate(answers(&model.name).unwrap_or(model.answers), model.answers)));
        Self {
            requests: rate(counter(before, "requests"), counter(now, "requests")),
            busy: rate(counter(before, "npu-us"), counter(now, "npu-us")) / 1e6,
            models: models.collect(),
        }
    }
}
