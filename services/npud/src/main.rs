//! The daemon that owns the NPU.

#![forbid(unsafe_code)]

#[cfg(feature = "simulator")]
mod simulator;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser as _;
use npu_device::kernel::Rocket;
use npu_device::kmsg::KernelLog;
use npu_device::{Driver, FaultMonitor};

/// Owns the NPU and serves inference over D-Bus and MQTT.
#[derive(Debug, clap::Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    common: kit::Arguments,
    /// Device node of the NPU [default: that of the rocket driver]
    #[arg(long, value_name = "PATH")]
    device: Option<PathBuf>,
    /// Drive a simulated NPU instead of the device
    #[cfg(feature = "simulator")]
    #[arg(long, conflicts_with = "device")]
    simulate: bool,
    /// Folder where the simulated kernel shows its log and takes faults
    #[cfg(feature = "simulator")]
    #[arg(long, value_name = "FOLDER", requires = "simulate")]
    simulated_kernel: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut config: npud::Config = arguments.common.begin("npud")?;
    config.mqtt = kit::mqtt::or_provisioned(config.mqtt)?;
    let (driver, monitor) = open(&arguments)?;
    tokio::runtime::Runtime::new()?.block_on(npud::run(driver, monitor, config))
}

/// What is driven, and who watches for its faults.
type Npu = (Arc<dyn Driver>, Option<Arc<dyn FaultMonitor>>);

fn open(arguments: &Arguments) -> anyhow::Result<Npu> {
    #[cfg(feature = "simulator")]
    if arguments.simulate {
        let simulator = simulator::open(arguments.simulated_kernel.as_deref())?;
        let monitor = simulator.fault_monitor();
        return Ok((Arc::new(simulator), Some(monitor)));
    }
    let monitor = KernelLog::open().map(|log| Arc::new(log) as Arc<dyn FaultMonitor>);
    let monitor = monitor.inspect_err(|error| tracing::warn!(%error, "verdicts do without the kernel log")).ok();
    let driver = arguments.device.as_ref().map_or_else(Rocket::anywhere, Rocket::at);
    Ok((Arc::new(driver), monitor))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Arguments;

    #[test]
    fn arguments_do_not_contradict_each_other() {
        Arguments::command().debug_assert();
    }
}
