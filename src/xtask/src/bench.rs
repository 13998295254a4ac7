//! `cargo xtask bench`: measurements, each a program under `benches` of its package. They print numbers and assert nothing.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::llama;
use crate::need::{self, BROKER, BUS};
use crate::step;

/// What is measured.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Which {
    /// What D-Bus and MQTT add to a direct call of the engine.
    Latency,
    /// Requests per second with a tiny model.
    Throughput,
    /// Lines of the kernel's log that are classified per second.
    Classify,
    /// Seconds that the simulator needs for one inference of the detector.
    Sim,
    /// What the planner makes of published shapes.
    Plan,
    /// What the NPU library costs the host.
    Host,
    /// What gpud adds to llama-server; only where it is named.
    Llm,
}

/// Runs one measurement, or all.
///
/// # Errors
/// A program that is missing and cannot be installed.
pub(crate) fn run(which: Option<Which>) -> Result<ExitCode> {
    // Building llama-server takes minutes.
    let all: Vec<Which> =
        Which::value_variants().iter().copied().filter(|which| !matches!(which, Which::Llm)).collect();
    let chosen = which.as_ref().map_or(&all[..], std::slice::from_ref);
    if chosen.iter().any(|which| matches!(which, Which::Latency | Which::Throughput)) {
        need::require(&[BUS, BROKER])?;
    }
    let mut command = step::cargo();
    command.arg("bench");
    for which in chosen {
        command.args(["--package", which.package(), "--bench", which.name()]);
    }
    if matches!(which, Some(Which::Llm)) {
        need::require(&llama::NEEDS)?;
        command = llama::with_server(command)?;
    }
    let status = command.status().context("cargo cannot be started")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Which {
    fn package(self) -> &'static str {
        match self {
            Self::Classify => "healthd",
            Self::Llm => "gpud",
            Self::Latency | Self::Throughput | Self::Sim | Self::Plan | Self::Host => "tests",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Throughput => "throughput",
            Self::Classify => "classify",
            Self::Sim => "sim",
            Self::Plan => "plan",
            Self::Llm => "llm",
            Self::Host => "host",
        }
    }
}
