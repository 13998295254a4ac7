//! The daemon that owns the GPU.

#![forbid(unsafe_code)]

use clap::Parser as _;

/// Owns the GPU and serves language models over D-Bus, MQTT and HTTP.
#[derive(Debug, clap::Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    common: kit::Arguments,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut config: gpud::Config = arguments.common.begin("gpud")?;
    config.mqtt = kit::mqtt::or_provisioned(config.mqtt)?;
    tokio::runtime::Runtime::new()?.block_on(gpud::run(config))
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
