//! The daemon that updates the system, and the health gate.

#![forbid(unsafe_code)]

use clap::Parser as _;

/// Updates the system over RAUC, as D-Bus, MQTT or hawkBit want it
#[derive(Debug, clap::Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    common: kit::Arguments,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Judge the slot that runs if it is on trial, and mark it good: once at each boot, by its own unit
    Gate,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut config: otad::Config = arguments.common.begin("otad")?;
    config.mqtt = kit::mqtt::or_provisioned(config.mqtt)?;
    let runtime = tokio::runtime::Runtime::new()?;
    match arguments.command {
        None => runtime.block_on(otad::run(config)),
        Some(Command::Gate) => runtime.block_on(otad::gate::run(&config)),
    }
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
