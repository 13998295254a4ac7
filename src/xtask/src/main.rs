//! `cargo xtask`: the commands of the project, one file each.
//!
//! It builds with nothing but a Rust toolchain and imports only the register table: what needs the whole product (the
//! demonstration, the measurements, the tests) is a program of its own that a command here prepares, starts and counts.

#![forbid(unsafe_code)]

mod archive;
mod bench;
mod bless;
mod board;
mod bootloader;
mod check;
mod cross;
mod fuzz;
mod gpu;
mod image;
mod kbuild;
mod kernel;
mod kmod;
mod llama;
mod need;
mod overlays;
mod patches;
mod regs;
mod run;
mod sanitize;
mod series;
mod shim;
mod step;
mod teflon;
mod test;
mod yocto;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The commands of the project.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the whole path on this machine: a bus, a broker and npud on the simulator, one picture by each transport.
    Run,
    /// Runs everything that needs no board; ends with one line of counts.
    Test {
        /// Without fuzzing.
        #[arg(long)]
        quick: bool,
    },
    /// Format, lints and import rules.
    Check,
    /// Accepts what golden tests print now.
    Bless {
        /// Packages; all where none is named.
        packages: Vec<String>,
    },
    /// Prints a register program in words.
    Regs {
        /// Little-endian 64-bit command words.
        file: PathBuf,
    },
    /// Builds for the boards' processor, aarch64, and prints where the programs are.
    Cross {
        /// With the C library inside, for a system that has none.
        #[arg(long)]
        r#static: bool,
        /// Runs the NPU library's unit tests in QEMU instead.
        #[arg(long, exclusive = true)]
        test: bool,
        /// Further arguments of `cargo build`, such as `--package npud`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Runs many threads of the NPU library on the simulator under ThreadSanitizer.
    Sanitize {
        /// For how long.
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Runs a command with the preload device, /dev/accel/accel0 on the simulator.
    Shim {
        /// The command and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Runs Mesa's own driver for the NPU, as Debian ships it for the boards, on the simulator.
    Teflon,
    /// llama.cpp's server and a small model, for gpud.
    Llama {
        /// What to do.
        #[command(subcommand)]
        action: llama::Action,
    },
    /// Applies, checks and compiles the kernel patches.
    Patches,
    /// Mesa's driver of the GPU, stock and patched, without a GPU.
    Gpu {
        /// What to do with it.
        #[command(subcommand)]
        action: gpu::Action,
    },
    /// The boot script in U-Boot, in QEMU.
    Bootloader,
    /// A virtual board that boots the real kernel driver; its NPU is the simulator.
    Board {
        /// What to do with it.
        #[command(subcommand)]
        action: board::Action,
    },
    /// The disk of the appliance, by ordinary tools.
    Image {
        /// What to do with it.
        #[command(subcommand)]
        action: image::Action,
    },
    /// The Yocto layer of the image.
    Yocto {
        /// What to do with it.
        #[command(subcommand)]
        action: yocto::Action,
    },
    /// Measures latency, throughput, the simulator's speed and the NPU library's cost; prints plans.
    Bench {
        /// One of them; all where none is named.
        which: Option<bench::Which>,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Run => run::run(),
        Command::Test { quick } => Ok(test::run(quick)),
        Command::Check => check::run(),
        Command::Bless { packages } => bless::run(&packages),
        Command::Regs { file } => regs::run(&file),
        Command::Cross { test: true, .. } => cross::run_tests(),
        Command::Cross { r#static, arguments, .. } => {
            cross::run(if r#static { cross::Linking::Static } else { cross::Linking::Dynamic }, &arguments)
        }
        Command::Sanitize { seconds } => sanitize::run(seconds),
        Command::Shim { command } => shim::run(&command),
        Command::Teflon => teflon::run(),
        Command::Llama { action } => llama::run(action),
        Command::Patches => patches::run(),
        Command::Gpu { action } => gpu::run(&action),
        Command::Bootloader => bootloader::run(),
        Command::Board { action } => board::run(&action),
        Command::Image { action } => image::run(&action),
        Command::Yocto { action } => yocto::run(action),
        Command::Bench { which } => bench::run(which),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
