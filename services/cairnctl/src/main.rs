//! Command line of the appliance.

#![forbid(unsafe_code)]

use clap::Parser as _;

fn main() -> anyhow::Result<()> {
    let arguments = cairnctl::Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(cairnctl::run(arguments, &mut std::io::stdout().lock()))
}
