//! Command line of the appliance: a client of the daemons' D-Bus interfaces, and of nothing else.
//!
//! Every command prints text for people, or with `--json` JSON values, one a line. Errors carry the daemon's code and end
//! with status 1, wrong arguments with status 2.

#![forbid(unsafe_code)]

mod annotate;
mod chat;
pub mod flash;
mod health;
mod infer;
mod models;
mod objects;
mod provision;
mod status;
mod top;
mod update;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;
use zbus::{Connection, connection};

/// Command line of the appliance.
#[derive(Debug, clap::Parser)]
#[command(version)]
pub struct Arguments {
    /// Address of the bus, instead of the system's
    #[arg(long, value_name = "ADDRESS", global = true)]
    bus: Option<String>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show a picture to a model and print what it sees
    Infer(infer::Infer),
    /// Ask a language model, and print its answer while it grows
    Chat(chat::Chat),
    /// List the models
    Models,
    /// Load or unload a model
    #[command(subcommand)]
    Model(models::Change),
    /// Write an image to a card or disk, at your desk
    Flash(flash::Flash),
    /// Look at a cairn.toml at your desk
    #[command(subcommand)]
    Provision(provision::Provision),
    /// Update the system
    #[command(subcommand)]
    Update(update::Update),
    /// Empty the machine and start it anew: models, settings and logs are removed
    Reset {
        /// Do it; without this, nothing happens
        #[arg(long)]
        yes: bool,
    },
    /// List the devices and what they counted
    Devices,
    /// Show how the machine is
    Health,
    /// List what went wrong
    Incidents,
    /// Print what goes wrong, as it happens
    Watch,
    /// Gather a support bundle
    Bundle(health::Bundle),
    /// Show load, models, queue, temperatures, incidents and update, live
    Top {
        /// Print one view as text, or as JSON, and end
        #[arg(long)]
        once: bool,
    },
}

/// Carries out a command.
///
/// # Errors
/// Where the bus or the daemon refuses, or a file cannot be read or written.
pub async fn run(arguments: Arguments, out: &mut impl Write) -> Result<()> {
    let mut printer = Printer { json: arguments.json, out };
    // For people at their desk: these ask no daemon.
    match &arguments.command {
        Command::Provision(command) => return provision::run(command, &mut printer),
        Command::Flash(command) => return flash::run(command, &mut printer),
        _ => {}
    }
    let bus = arguments.bus.as_deref().map_or_else(connection::Builder::system, connection::Builder::address);
    let connection = bus.build().await.context("connect to the bus")?;
    match arguments.command {
        Command::Infer(infer) => infer::run(&connection, &infer, &mut printer).await,
        Command::Chat(chat) => chat::run(&connection, &chat, &mut printer).await,
        Command::Models => models::list(&connection, &mut printer).await,
        Command::Model(change) => models::change(&connection, &change, &mut printer).await,
        Command::Provision(command) => provision::run(&command, &mut printer),
        Command::Flash(command) => flash::run(&command, &mut printer),
        Command::Update(update) => update::run(&connection, &update, &mut printer).await,
        Command::Reset { yes } => update::reset(&connection, yes, &mut printer).await,
        Command::Devices => status::devices(&connection, &mut printer).await,
        Command::Health => health::health(&connection, &mut printer).await,
        Command::Incidents => health::incidents(&connection, &mut printer).await,
        Command::Watch => health::watch(&connection, &mut printer).await,
        Command::Bundle(bundle) => health::bundle(&connection, &bundle, &mut printer).await,
        Command::Top { once } => top::run(&connection, once, &mut printer).await,
    }
}

/// Where and how answers are printed.
struct Printer<'a, W> {
    json: bool,
    out: &'a mut W,
}

impl<W: Write> Printer<'_, W> {
    /// Prints `value` as JSON, or what `text` makes of it.
    fn print<T: Serialize>(&mut self, value: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        let answer = if self.json { serde_json::to_string(value)? } else { text(value) };
        writeln!(self.out, "{}", answer.trim_end())?;
        Ok(self.out.flush()?)
    }
}

/// An absolute path, because the daemon has another working directory.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("{} has no absolute path", path.display()))
}

/// All loaded models, as proxies.
async fn model_proxies(connection: &Connection) -> Result<Vec<api::dbus::Model1Proxy<'static>>> {
    let manager = api::dbus::Models1Proxy::new(connection).await?;
    let mut models = Vec::new();
    for path in manager.list_models(Default::default()).await.context("list the models")? {
        models.push(api::dbus::Model1Proxy::new(connection, path).await?);
    }
    Ok(models)
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
