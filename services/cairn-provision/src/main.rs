//! Makes a device what its `cairn.toml` says, or what it was when it was new.

#![forbid(unsafe_code)]

use cairn_provision::{Places, Reset};
use clap::Parser as _;

/// Makes a device what its cairn.toml says, or what it was when it was new.
#[derive(Debug, clap::Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    places: Places,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Read cairn.toml and write the files that follow from it
    Apply,
    /// Remove everything that is not of the image, if someone has asked for it
    Reset(Reset),
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    kit::log::start("cairn-provision", "info")?;
    match arguments.command {
        Command::Apply => cairn_provision::apply(&arguments.places),
        Command::Reset(reset) => cairn_provision::reset(&arguments.places, &reset),
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
