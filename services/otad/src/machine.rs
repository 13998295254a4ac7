//! What runs here, and how it is: read where the kernel, the service manager and the other daemons say it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use api::dbus::{Device1Proxy, Health1Proxy, Model1Proxy, Models1Proxy};
use semver::Version;
use zbus::Connection;
use zbus::proxy::CacheProperties;

use crate::condition::{self, Gauges};
use crate::config::{Gate, Places};
use crate::record::Baseline;

/// Where the NPU's driver keeps the cores that it is bound to. SOURCE: drivers/accel/rocket/rocket_drv.c.
const NPU_DRIVER: &str = "bus/platform/drivers/rocket";
/// Where the GPU's driver does. It binds when the firmware answers. SOURCE: panthor_probe, panthor_fw_init.
const GPU_DRIVER: &str = "bus/platform/drivers/panthor";
/// Endings of the devices' names. SOURCE: rk3588-base.dtsi.
const NPU_DEVICE: &str = ".npu";
const GPU_DEVICE: &str = ".gpu";

/// How long another daemon may take to answer.
// TIMEOUT: these answer from memory; one that hangs must not keep the update from it that would mend it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a model may take to prove itself.
// TIMEOUT: the slowest takes a second on the simulator and may wait in a full queue; the watchdog of this daemon has 120 s.
const PROOF: Duration = Duration::from_secs(30);

/// A unit as the service manager lists it: name, description, load state, active state, and what nobody here asks for.
type Unit = (String, String, String, String, String, String, zbus::OwnedObjectPath, u32, String, zbus::OwnedObjectPath);

/// SOURCE: org.freedesktop.systemd1(5).
#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait Systemd {
    fn list_units_by_names(&self, names: &[String]) -> zbus::Result<Vec<Unit>>;
}

/// SOURCE: org.freedesktop.login1(5).
#[zbus::proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
trait Logind {
    fn reboot(&self, interactive: bool) -> zbus::Result<()>;
}

/// The version of what runs.
///
/// # Errors
/// A file that cannot be read, or says no semantic version.
pub fn version(os_release: &Path) -> io::Result<Version> {
    let text = fs::read_to_string(os_release)?;
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(line.trim().trim_matches(['"', '\'']).to_owned())
    };
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let version = value("IMAGE_VERSION").or_else(|| value("VERSION_ID"));
    let version = version.ok_or_else(|| invalid("neither IMAGE_VERSION nor VERSION_ID is there".into()))?;
    Version::parse(&version).map_err(|error| invalid(format!("version {version:?}: {error}")))
}

/// The kernel's name of this boot.
///
/// # Errors
/// A file that cannot be read.
pub fn boot_id(file: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(file)?.trim().to_owned())
}

/// Asks for a new start of the machine.
///
/// # Errors
/// What logind says.
pub async fn reboot(connection: &Connection) -> zbus::Result<()> {
    LogindProxy::new(connection).await?.reboot(false).await
}

/// How many cores of the NPU a driver is bound to, and whether one is bound to the GPU.
pub fn devices(sysfs: &Path) -> (usize, bool) {
    let bound = |driver: &str, ending: &str| {
        let entries = fs::read_dir(sysfs.join(driver)).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(ending)).count()
    };
    (bound(NPU_DRIVER, NPU_DEVICE), bound(GPU_DRIVER, GPU_DEVICE) > 0)
}

/// Which of `units` are active.
///
/// # Errors
/// What the service manager says.
pub async fn active_units(connection: &Connection, units: &[String]) -> zbus::Result<Vec<String>> {
    let listed = SystemdProxy::new(connection).await?.list_units_by_names(units).await?;
    let active = listed.into_iter().filter(|unit| unit.3 == "active");
    Ok(active.map(|unit| unit.0).collect())
}

/// How the machine is now, for comparison after the update.
pub async fn baseline(connection: &Connection, places: &Places, gate: &Gate, broker: bool) -> Baseline {
    let (npu_cores, gpu) = devices(&places.sysfs);
    // A service manager that does not answer vouches for no unit, and an NPU's daemon for no model.
    let units = soon(active_units(connection, &gate.units)).await.unwrap_or_default();
    let models = models(connection).await.unwrap_or_default();
    let proved = models.into_iter().filter(|(_, proof)| proof.is_ok()).map(|(name, _)| name);
    Baseline { broker, npu_cores, gpu, units, models: proved.collect() }
}

/// The loaded models by name, each with why it does not give its golden output, if it does not.
pub type Proofs = BTreeMap<String, Result<(), String>>;

/// Lets every model that the NPU's daemon has answer its golden input now.
///
/// # Errors
/// What the daemon says, or that it says nothing.
pub async fn models(connection: &Connection) -> Result<Proofs, String> {
    let deadline = Instant::now() + PROOF;
    let text = |error: zbus::Error| error.to_string();
    let silent = |_| "it does not answer".to_owned();
    let listed = async { Models1Proxy::new(connection).await?.list_models(Default::default()).await };
    let listed = tokio::time::timeout(PATIENCE, listed).await.map_err(silent)?.map_err(text)?;
    let mut proofs = Proofs::new();
    for path in listed {
        let model = Model1Proxy::new(connection, path).await.map_err(text)?;
        let name = tokio::time::timeout(PATIENCE, model.name()).await.map_err(silent)?.map_err(text)?;
        let proof = tokio::time::timeout_at(deadline.into(), model.verify(Default::default())).await;
        let proof = proof.map_err(silent).and_then(|proof| proof.map(drop).map_err(text));
        proofs.insert(name, proof);
    }
    Ok(proofs)
}

/// The answer of another daemon, if it comes soon.
pub(crate) async fn soon<T>(answer: impl Future<Output = zbus::Result<T>>) -> Option<T> {
    tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()
}

/// Measures what updates wait for.
#[derive(Debug)]
pub(crate) struct Meter {
    health: Health1Proxy<'static>,
    device: Device1Proxy<'static>,
    /// Requests that the NPU had answered, and since when no more came.
    requests: Option<(u64, Instant)>,
}

impl Meter {
    pub(crate) async fn new(connection: &Connection) -> zbus::Result<Self> {
        // Nothing is kept: a daemon that was restarted, or never told of a change, must not be believed.
        let health = Health1Proxy::builder(connection).cache_properties(CacheProperties::No).build().await?;
        let device = Device1Proxy::builder(connection).cache_properties(CacheProperties::No).build().await?;
        Ok(Self { health, device, requests: None })
    }

    pub(crate) async fn read(&mut self, places: &Places) -> Gauges {
        Gauges {
            hot: self.hot().await,
            discharging_percent: condition::discharging_percent(&places.sysfs),
            idle: self.idle().await,
            free_bytes: condition::free_bytes(&places.state),
            time: condition::time_of_day(),
        }
    }

    /// The health daemon knows; where it is not there, the NPU's daemon has an own opinion.
    async fn hot(&self) -> Option<bool> {
        let level = match soon(self.health.thermal_level()).await {
            Some(level) if level != "unknown" => Some(level),
            _ => soon(self.device.thermal_level()).await,
        };
        level.map(|level| level != "normal")
    }

    async fn idle(&mut self) -> Option<Duration> {
        let Some(counters) = soon(self.device.counters()).await else {
            self.requests = None;
            return None;
        };
        let now = Instant::now();
        let count = counters.get("requests").copied().unwrap_or(0);
        let since = match self.requests {
            Some((before, since)) if before == count => since,
            _ => now,
        };
        self.requests = Some((count, since));
        Some(now - since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_images_version_counts_before_the_systems() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("os-release");
        let check = |text: &str, expected: &str| {
            fs::write(&file, text).unwrap();
            let found = version(&file).map_or_else(|error| error.to_string(), |version| version.to_string());
            assert_eq!(found, expected, "{text}");
        };
        check("ID=cairn\nVERSION_ID=\"1.2.3\"\nIMAGE_VERSION=1.3.0-rc.1\n", "1.3.0-rc.1");
        check("VERSION_ID='1.2.3'\n", "1.2.3");
        check("ID=cairn\n", "neither IMAGE_VERSION nor VERSION_ID is there");
        check("VERSION_ID=12\n", "version \"12\": unexpected end of input while parsing major version number");
    }

    #[test]
    fn a_bound_device_is_seen_in_its_drivers_folder() {
        let sysfs = tempfile::tempdir().unwrap();
        assert_eq!(devices(sysfs.path()), (0, false));
        for entry in ["rocket/fdab0000.npu", "rocket/fdac0000.npu", "rocket/bind", "panthor/fb000000.gpu"] {
            fs::create_dir_all(sysfs.path().join("bus/platform/drivers").join(entry)).unwrap();
        }
        assert_eq!(devices(sysfs.path()), (2, true));
    }
}
