//! Many clients at once that come and go as they like.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use npu_device::kernel::Rocket;
use npu_device::{Device, Driver};
use rand::Rng;

use crate::quantised;
use crate::sample::{Sample, block, chain_of};

/// The node of the driver.
pub(crate) const NODE: &str = "/dev/accel/accel0";
/// Clients at once; twice as many as cores.
const CLIENTS: u64 = 6;
/// What may be more in use afterwards: caches of the kernel that have not come to rest.
const SLACK_KIB: i64 = 2048;

/// One client: rounds of opening, loading, running some times, closing.
pub(crate) fn client(seed: u64, rounds: u64) -> ExitCode {
    let mut rng = quantised::rng(seed);
    let samples = [block(seed), chain_of(9)];
    for round in 0..rounds {
        println!("round {round}");
        if let Err(why) = one_round(&samples[rng.random_range(0..2)], rng.random_range(1..4)) {
            println!("round {round}: {why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn one_round(sample: &Sample, runs: u32) -> Result<(), String> {
    let device: Arc<dyn Device> = Rocket::at(NODE).open().map_err(|error| error.to_string())?;
    let mut resident = sample.load(&device)?;
    (0..runs).try_for_each(|_| sample.check(&mut resident))
}

fn start(seed: u64, rounds: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["client", &seed.to_string(), &rounds.to_string()]).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// All clients at once, while others are killed in the middle of their work.
pub(crate) fn crowd(seed: u64, rounds: u64) -> Result<(), String> {
    let clients: Vec<Child> = (0..CLIENTS).map(|client| start(seed * CLIENTS + client, rounds)).collect();
    for victim in 0..CLIENTS / 2 {
        let mut victim = start(1000 + victim, u64::MAX);
        let mut line = String::new();
        BufReader::new(victim.stdout.take().unwrap()).read_line(&mut line).unwrap();
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    let outcomes = clients.into_iter().map(|client| client.wait_with_output().unwrap());
    let failed: Vec<String> = outcomes
        .filter(|output| !output.status.success())
        .map(|output| format!("{}: {}", output.status, String::from_utf8_lossy(&output.stdout)))
        .collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Buffers of the driver and what the kernel cannot give back, in KiB.
fn in_use() -> i64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let of = |name: &str| -> i64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim_end_matches("kB").trim().parse().unwrap()
    };
    of("Shmem") + of("SUnreclaim")
}

/// That a second crowd leaves no more behind than the first.
pub(crate) fn leaks(rounds: u64) -> Result<(), String> {
    crowd(1, rounds)?;
    let before = in_use();
    crowd(2, rounds)?;
    let more = in_use() - before;
    if more <= SLACK_KIB { Ok(()) } else { Err(format!("{more} KiB more in use after a second crowd")) }
}
