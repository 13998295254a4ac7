//! The self-test: whether what the machine is for works now.

use std::path::Path;
use std::time::Duration;

use api::dbus::{Check, Model1Proxy, Models1Proxy};
use zbus::Connection;

use crate::act;
use crate::config::Config;

/// How long a model may take.
// TIMEOUT: two attempts that the engine gives up after 5 s each, behind a full queue of others that end in the same way.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs all checks, each whatever the others say.
pub(crate) async fn run(bus: &Connection, config: &Config, models: bool, mqtt: Option<bool>) -> Vec<Check> {
    let mut checks = vec![npu(&config.root, config.npu_cores)];
    if config.gpu {
        checks.push(gpu(&config.root));
    }
    for unit in &config.units {
        let state = act::unit_state(bus, unit).await.unwrap_or_else(|error| error.to_string());
        checks.push((format!("unit {unit}"), state == "active", state));
    }
    if let Some(connected) = mqtt {
        let seen = if connected { "connected" } else { "not connected" };
        checks.push(("mqtt".into(), connected, seen.into()));
    }
    if models {
        match prove_models(bus).await {
            Ok(proved) if proved.is_empty() => checks.push(("models".into(), false, "none is loaded".into())),
            Ok(proved) => checks.extend(proved),
            Err(error) => checks.push(("models".into(), false, error.to_string())),
        }
    }
    checks
}

fn npu(root: &Path, expected: usize) -> Check {
    let cores = act::npu_cores(root);
    ("npu cores".into(), cores.len() == expected, format!("{} of {expected}: {}", cores.len(), cores.join(", ")))
}

fn gpu(root: &Path) -> Check {
    let driver = root.join("sys/bus/platform/drivers/panthor");
    let entries = std::fs::read_dir(driver).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let found: Vec<String> = names.filter(|name| name.ends_with(".gpu")).collect();
    ("gpu".into(), !found.is_empty(), found.join(", "))
}

/// Lets every model answer its golden input.
async fn prove_models(bus: &Connection) -> zbus::Result<Vec<Check>> {
    let mut checks = Vec::new();
    for path in Models1Proxy::new(bus).await?.list_models(Default::default()).await? {
        let model = Model1Proxy::new(bus, path).await?;
        let name = format!("model {}", model.name().await?);
        checks.push(match tokio::time::timeout(PATIENCE, model.verify(Default::default())).await {
            Ok(Ok(verdict)) => (name, true, verdict),
            Ok(Err(error)) => (name, false, error.to_string()),
            Err(_) => (name, false, format!("no answer within {PATIENCE:?}")),
        });
    }
    Ok(checks)
}
