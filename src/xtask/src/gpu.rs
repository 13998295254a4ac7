//! `cargo xtask gpu`: Mesa's driver of the GPU with our patches, measured without a GPU.
//!
//! ```text
//! Debian 13 in a folder ─▶ Mesa, stock and patched ─▶ programs on a device that maps but does not run ─▶ its log
//! ```
//!
//! Root and half an hour of a core are needed the first time. Everything is kept in the user's cache.

mod bench;
mod chroot;
mod emulated;
mod llama;
mod log;
mod mesa;
mod run;
mod shaders;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

use crate::need::{self, Need, XZ};
use crate::patches;
use crate::step::Counts;

/// What the patches are checked with.
const NEEDS: &[Need] = &[XZ];

/// What to do with the GPU's driver.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Builds Mesa stock, patched and in between, measures all of them, and checks the bounds.
    Test,
    /// Compiles llama.cpp's matrix products for the GPU, as released and with our patches, and prints what becomes of them.
    Shaders {
        /// The large tiles of the release as well, which take a quarter of an hour of a core each.
        #[arg(long)]
        all: bool,
    },
    /// Compares llama.cpp's matrix products, with our patches, with those of the CPU, on Mesa's lavapipe.
    Compare {
        /// Parts of the names of products, such as `q4_K` or `128x128x256`; some of all kinds where none is given.
        names: Vec<String>,
    },
    /// Runs a command in the Debian that everything is built in: this repository is /workspace there, the cache /cache.
    Shell {
        /// A line for its shell.
        line: String,
    },
}

/// Does it.
///
/// # Errors
/// Something missing that cannot be had, a build that fails.
pub(crate) fn run(action: &Action) -> Result<ExitCode> {
    match action {
        Action::Test => {
            need::require(NEEDS)?;
            let mut counts = Counts::default();
            mesa::check(&mut counts)?;
            llama::check(&mut counts)?;
            bench::all(&mut counts);
            println!("\n{counts}");
            Ok(counts.exit_code())
        }
        Action::Shaders { all } => {
            need::require(NEEDS)?;
            need::require(emulated::NEEDS)?;
            let mut counts = Counts::default();
            llama::check(&mut counts)?;
            shaders::all(*all, &mut counts);
            println!("\n{counts}");
            Ok(counts.exit_code())
        }
        Action::Compare { names } => llama::compare(names),
        Action::Shell { line } => {
            let status = chroot::command(line)?.status()?;
            Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

/// The part of `cargo xtask test`: the patches apply; the rest only where all of it has been built before.
///
/// # Errors
/// Patches that cannot be read.
pub(crate) fn test(counts: &mut Counts) -> Result<()> {
    println!("\n== the GPU's driver");
    if let Some(need) = need::provide(NEEDS).first() {
        counts.skip("the GPU's driver", &format!("{} cannot be had", need.name));
        return Ok(());
    }
    mesa::check(counts)?;
    llama::check(counts)?;
    if chroot::is_here()? {
        patches::check(counts, "llama.cpp: the release's modules", llama::leaves_modules_alone);
    } else {
        counts.skip("llama.cpp: the release's modules", "`cargo xtask gpu shaders` has not compiled them here");
    }
    if bench::is_warm()? {
        bench::all(counts);
    } else {
        counts.skip("Mesa on a device that maps only", "`cargo xtask gpu test` has not built it here");
    }
    Ok(())
}
