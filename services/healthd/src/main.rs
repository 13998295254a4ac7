//! Watches the machine's health.

#![forbid(unsafe_code)]

use clap::Parser as _;

/// Watches the machine's health, says what is wrong and acts within its budgets.
#[derive(Debug, clap::Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    common: kit::Arguments,
    /// Bind the NPU's driver anew, if it is idle, and end
    #[arg(long)]
    rebind_npu: bool,
    /// Write down what NVMe drives say of their wear, and end
    #[arg(long, conflicts_with = "rebind_npu")]
    read_smart: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut config: healthd::Config = arguments.common.begin("healthd")?;
    if arguments.rebind_npu {
        return healthd::rebind(&config.root);
    }
    if arguments.read_smart {
        return healthd::smart::write_down(&config.root, healthd::smart::SMARTCTL.as_ref());
    }
    config.mqtt = kit::mqtt::or_provisioned(config.mqtt)?;
    tokio::runtime::Runtime::new()?.block_on(healthd::run(config))
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
