//! Many clients at once that come and go as they like.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// How long a client works.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Rounds(u64),
    Time(Duration),
}

impl Limit {
    /// Until somebody kills it.
    const NONE: Self = Self::Rounds(u64::MAX);

    fn is_reached(self, rounds: u64, since: Instant) -> bool {
        match self {
            Self::Rounds(limit) => rounds >= limit,
            Self::Time(limit) => since.elapsed() >= limit,
        }
    }

    /// As [`FromStr`] reads it.
    fn text(self) -> String {
        match self {
            Self::Rounds(rounds) => rounds.to_string(),
            Self::Time(time) => format!("{}s", time.as_secs()),
        }
    }
}

impl FromStr for Limit {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_suffix('s') {
            Some(seconds) => Ok(Self::Time(Duration::from_secs(seconds.parse()?))),
            None => Ok(Self::Rounds(text.parse()?)),
        }
    }
}

/// One client: rounds of opening, loading, running some times, closing.
pub(crate) fn client(seed: u64, limit: Limit) -> ExitCode {
    let mut rng = quantised::rng(seed);
    let samples = [block(seed), chain_of(9)];
    let start = Instant::now();
    let mut rounds = 0;
    while !limit.is_reached(rounds, start) {
        println!("round {rounds}");
        if let Err(why) = one_round(&samples[rng.random_range(0..2)], rng.random_range(1..4)) {
            println!("round {rounds}: {why}");
            return ExitCode::FAILURE;
        }
        rounds += 1;
    }
    ExitCode::SUCCESS
}

fn one_round(sample: &Sample, runs: u32) -> Result<(), String> {
    let device: Arc<dyn Device> = Rocket::at(NODE).open().map_err(|error| error.to_string())?;
    let mut resident = sample.load(&device)?;
    (0..runs).try_for_each(|_| sample.check(&mut resident))
}

fn start(seed: u64, limit: Limit) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["client", &seed.to_string(), &limit.text()]).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// All clients at once, while others are killed in the middle of their work.
fn crowd(seed: u64, limit: Limit) -> Result<u64, String> {
    let clients: Vec<Child> = (0..CLIENTS).map(|client| start(seed * CLIENTS + client, limit)).collect();
    for victim in 0..CLIENTS / 2 {
        let mut victim = start(1000 + victim, Limit::NONE);
        let mut line = String::new();
        BufReader::new(victim.stdout.take().unwrap()).read_line(&mut line).unwrap();
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    let outcomes: Vec<_> = clients.into_iter().map(|client| client.wait_with_output().unwrap()).collect();
    let text = |output: &[u8]| String::from_utf8_lossy(output).into_owned();
    let rounds = outcomes.iter().map(|output| text(&output.stdout).lines().count() as u64).sum();
    let failed = outcomes.iter().filter(|output| !output.status.success());
    let failed: Vec<String> = failed.map(|output| format!("{}: {}", output.status, text(&output.stdout))).collect();
    if failed.is_empty() { Ok(rounds) } else { Err(failed.join("\n")) }
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
pub(crate) fn leaks(limit: Limit) -> Result<(), String> {
    let first = crowd(1, limit)?;
    let before = in_use();
    let second = crowd(2, limit)?;
    let more = in_use() - before;
    println!("# {first} and {second} rounds of {CLIENTS} clients; {more} KiB more in use after the second crowd");
    if more <= SLACK_KIB { Ok(()) } else { Err(format!("{more} KiB more in use after a second crowd")) }
}
