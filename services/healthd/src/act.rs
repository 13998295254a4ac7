//! What is done: through the service manager and logind, which ask polkit whether we may.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use zbus::{Connection, OwnedObjectPath};

use crate::config::Config;
use crate::gauge::Gauges;
use crate::ladder::Rung;

/// What every service stops before. SOURCE: systemd.special(7).
const SHUTDOWN: &str = "shutdown.target";

/// The service manager.
#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait Manager {
    fn restart_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn start_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn load_unit(&self, name: &str) -> zbus::Result<OwnedObjectPath>;
}

/// A unit.
#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Unit",
    default_service = "org.freedesktop.systemd1",
    assume_defaults = false
)]
trait Unit {
    #[zbus(property(emits_changed_signal = "false"))]
    fn active_state(&self) -> zbus::Result<String>;
    /// Number and path of what is to be done about it; 0 where nothing is.
    #[zbus(property(emits_changed_signal = "false"))]
    fn job(&self) -> zbus::Result<(u32, OwnedObjectPath)>;
}

/// A service.
#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Service",
    default_service = "org.freedesktop.systemd1",
    assume_defaults = false
)]
trait Service {
    #[zbus(property(emits_changed_signal = "false"), name = "NRestarts")]
    fn n_restarts(&self) -> zbus::Result<u32>;
}

/// Whoever may start the machine again.
#[zbus::proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
trait Login {
    fn reboot(&self, interactive: bool) -> zbus::Result<()>;
}

/// Does what a rung says.
pub(crate) async fn act(bus: &Connection, config: &Config, rung: Rung) -> Result<()> {
    let manager = ManagerProxy::new(bus).await?;
    match rung {
        // The owner did it before it told us.
        Rung::FreshContext | Rung::GivenUp => {}
        Rung::RestartWorker => {
            let unit = &config.npu_unit;
            manager.restart_unit(unit, "replace").await.with_context(|| format!("restart {unit}"))?;
        }
        // The unit conflicts with the owner's and starts it again afterwards: the driver is bound anew only when idle.
        Rung::RebindDriver => {
            let unit = &config.rebind_unit;
            manager.start_unit(unit, "replace").await.with_context(|| format!("start {unit}"))?;
        }
        Rung::Reboot => LoginProxy::new(bus).await?.reboot(false).await.context("ask logind for a reboot")?,
    }
    Ok(())
}

/// Whether the machine is shutting down in good order.
pub(crate) async fn is_shutting_down(bus: &Connection) -> bool {
    // Not the manager's state: that stays "starting" where a start that has not come to its end is given up.
    let job = async { unit(bus, SHUTDOWN).await?.job().await };
    job.await.is_ok_and(|(number, _)| number != 0)
}

async fn unit<'a>(bus: &'a Connection, name: &str) -> zbus::Result<UnitProxy<'a>> {
    let path = ManagerProxy::new(bus).await?.load_unit(name).await?;
    UnitProxy::new(bus, path).await
}

/// State of a unit: `active`, `failed` and so on.
///
/// # Errors
/// Where there is no service manager, or no such unit.
pub(crate) async fn unit_state(bus: &Connection, name: &str) -> zbus::Result<String> {
    unit(bus, name).await?.active_state().await
}

/// How the units live.
pub(crate) async fn units(bus: &Connection, names: &[String], gauges: &mut Gauges) {
    for name in names {
        let Ok(state) = unit_state(bus, name).await else { continue };
        let flag = |is: bool| f64::from(u8::from(is));
        gauges.insert(format!("unit-active.{name}"), flag(state == "active"));
        gauges.insert(format!("unit-failed.{name}"), flag(state == "failed"));
        if let Ok(restarts) = restarts(bus, name).await {
            gauges.insert(format!("unit-restarts.{name}"), restarts.into());
        }
    }
}

async fn restarts(bus: &Connection, name: &str) -> zbus::Result<u32> {
    let path = ManagerProxy::new(bus).await?.load_unit(name).await?;
    ServiceProxy::new(bus, path).await?.n_restarts().await
}

/// Where the driver's devices stand.
const DRIVER: &str = "sys/bus/platform/drivers/rocket";

/// Cores that the driver has.
pub(crate) fn npu_cores(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root.join(DRIVER)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut cores: Vec<String> = names.filter(|name| name.ends_with(".npu")).collect();
    cores.sort();
    cores
}

/// Binds the NPU's driver anew, all cores, if none is in use. What `healthd --rebind-npu` does.
///
/// # Errors
/// Where a core is in use, or the kernel refuses.
pub fn rebind(root: &Path) -> Result<()> {
    let cores = npu_cores(root);
    ensure!(!cores.is_empty(), "the driver has no core");
    for core in &cores {
        let status = root.join(DRIVER).join(core).join("power/runtime_status");
        let text = fs::read_to_string(&status).with_context(|| format!("read {}", status.display()))?;
        // SOURCE: the driver keeps a core awake while a job runs; autosuspend follows.
        if text.trim() != "suspended" {
            bail!("core {core} is {}, not suspended: it may be in use", text.trim());
        }
    }
    // All are unbound first: with the last core the stock driver lets its DRM device go, and makes a new one with the next.
    for action in ["unbind", "bind"] {
        for core in &cores {
            let file = root.join(DRIVER).join(action);
            fs::write(&file, core).with_context(|| format!("write {core} to {}", file.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_bound_anew_only_when_every_core_is_idle() {
        let root = tempfile::tempdir().unwrap();
        rebind(root.path()).unwrap_err();
        for core in ["fdab0000.npu", "fdac0000.npu"] {
            let power = root.path().join(DRIVER).join(core).join("power");
            fs::create_dir_all(&power).unwrap();
            fs::write(power.join("runtime_status"), "suspended\n").unwrap();
        }
        let busy = root.path().join(DRIVER).join("fdac0000.npu/power/runtime_status");
        fs::write(&busy, "active\n").unwrap();
        assert!(rebind(root.path()).unwrap_err().to_string().contains("fdac0000.npu is active"));
        assert!(!root.path().join(DRIVER).join("unbind").exists());
        fs::write(&busy, "suspended\n").unwrap();
        rebind(root.path()).unwrap();
        assert_eq!(fs::read_to_string(root.path().join(DRIVER).join("bind")).unwrap(), "fdac0000.npu");
    }
}
