//! What the daemon adds to llama-server: time and processor time of answers, beside the server alone, in turns.
//!
//! All run on this machine at the same time, so only the difference between two lines means something. A busy machine
//! makes the times of two equal answers differ, most of all the server's own time to read the prompt. What a client waits
//! for the first token beyond that is the daemon's and the transport's share, and hardly blurred.

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/stand/mod.rs"]
mod stand;

use std::io::{BufRead as _, BufReader, Read as _};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stand::{Alone, Stand, chat};

/// Turns that are measured.
const TURNS: usize = 24;
/// The longest answer.
const TOKENS: u32 = 48;
/// What the kernel counts a second of the processor in, for programs. SOURCE: USER_HZ, asm-generic/param.h.
const TICKS: f64 = 100.0;
/// Who answers.
const NAMES: [&str; 3] = ["llama-server alone", "gpud, OpenAI's endpoint", "gpud, D-Bus"];

/// One answer: time to its first token, of that what the server says it read the prompt for, its tokens, and the time
/// from the first to the last.
struct Answer {
    first: Duration,
    reading: Duration,
    tokens: u64,
    rest: Duration,
}

/// What one answer took: seconds to the first token, of them beyond the reading, seconds for each after it, and of the
/// processor for each, in the server and in the daemon.
#[derive(Clone, Copy)]
struct Cost {
    first: f64,
    beyond: f64,
    token: f64,
    server: f64,
    daemon: f64,
}

#[tokio::main]
async fn main() {
    let (alone, stand) = (Alone::start().await, Stand::start("").await);
    for who in 0..NAMES.len() {
        answer(who, 0, &alone, &stand).await;
    }
    let (daemon, servers) = (stand.daemon_pid(), [alone.pid(), stand.server_pid(), stand.server_pid()]);
    let mut costs = [(); NAMES.len()].map(|()| Vec::new());
    for turn in 1..=TURNS {
        // Who is first changes, so that what else the machine does hits all alike.
        for step in 0..NAMES.len() {
            let who = (turn + step) % NAMES.len();
            let before = (processor(servers[who]), processor(daemon));
            let answer = answer(who, turn, &alone, &stand).await;
            let after = (processor(servers[who]), processor(daemon));
            // CAST: an answer has far less tokens than a double counts.
            let tokens = answer.tokens as f64;
            costs[who].push(Cost {
                first: answer.first.as_secs_f64(),
                beyond: answer.first.as_secs_f64() - answer.reading.as_secs_f64(),
                token: answer.rest.as_secs_f64() / (tokens - 1.0),
                server: (after.0 - before.0) / tokens,
                daemon: (after.1 - before.1) / tokens,
            });
        }
    }
    print(&costs);
}

fn print(costs: &[Vec<Cost>; 3]) {
    println!("SmolLM2-135M, {TURNS} answers each of up to {TOKENS} tokens, in turns: medians (quartiles)");
    for (name, costs) in NAMES.iter().zip(costs) {
        let first = spread(costs.iter().map(|cost| cost.first * 1e3), 1);
        let speed = spread(costs.iter().map(|cost| 1.0 / cost.token), 1);
        let beyond = spread(costs.iter().map(|cost| cost.beyond * 1e3), 2);
        println!("  {name:24} first token {first} ms, of them not the server's reading {beyond} ms; {speed} tokens/s");
        let server = spread(costs.iter().map(|cost| cost.server * 1e3), 2);
        let daemon = spread(costs.iter().map(|cost| cost.daemon * 1e3), 2);
        println!("  {:24} processor, each token: server {server} ms, daemon {daemon} ms", "");
    }
    println!("More than alone in the same turn, in percent");
    let [alone, ..] = costs;
    for (name, costs) in NAMES.iter().zip(costs).skip(1) {
        let more = |what: fn(&Cost) -> f64| {
            spread(costs.iter().zip(alone).map(|(cost, alone)| (what(cost) / what(alone) - 1.0) * 100.0), 1)
        };
        let (first, token) = (more(|cost| cost.first), more(|cost| cost.token));
        let added = costs.iter().zip(alone).map(|(cost, alone)| (cost.beyond - alone.beyond) / alone.first * 100.0);
        let added = spread(added, 2);
        println!("  {name:24} to the first token {first}, of it not the server's reading {added}; each token {token}");
        let whole = more(|cost| cost.server + cost.daemon);
        let daemon = spread(costs.iter().map(|cost| cost.daemon / cost.server * 100.0), 1);
        println!("  {:24} processor {whole}; the daemon beside its server {daemon}", "");
    }
}

/// The median, and the quartiles around it.
fn spread(numbers: impl Iterator<Item = f64>, digits: usize) -> String {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    let at = |quarter: usize| numbers[(numbers.len() - 1) * quarter / 4];
    format!("{:.digits$} ({:.digits$} to {:.digits$})", at(2), at(1), at(3))
}

/// Seconds that a process has had of the processor. SOURCE: proc_pid_stat(5), utime and stime.
fn processor(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    // Its name, in parentheses, may have spaces.
    let (_, fields) = text.rsplit_once(") ").expect("a name in parentheses");
    let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().expect("a number"));
    // CAST: a double counts far more ticks than there were.
    ticks.sum::<u64>() as f64 / TICKS
}

async fn answer(who: usize, turn: usize, alone: &Alone, stand: &Stand) -> Answer {
    // Each asks something else of the same length: what was read before is not read again.
    let question = format!("{who}{turn:02}: tell me a long story about a fox, a crow and a piece of cheese.");
    match who {
        0 => http(alone.url(), &question).await,
        1 => http(stand.url(), &question).await,
        _ => dbus(stand, &question).await,
    }
}

async fn http(url: &str, question: &str) -> Answer {
    let mut body = chat(question, TOKENS);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let url = format!("{url}/v1/chat/completions");
    let answer = tokio::task::spawn_blocking(move || {
        let begin = Instant::now();
        let answer = ureq::post(&url).content_type("application/json").send(body.to_string()).expect("an answer");
        let (mut times, mut tokens, mut reading) = (Vec::new(), 0, 0.0);
        for line in BufReader::new(answer.into_body().into_reader()).lines() {
            let line = line.expect("a line");
            if line.contains("\"content\":\"") {
                times.push(Instant::now());
            }
            let event = line.strip_prefix("data: ").and_then(|data| serde_json::from_str::<Value>(data).ok());
            let Some(event) = event else { continue };
            tokens = event.pointer("/usage/completion_tokens").and_then(Value::as_u64).unwrap_or(tokens);
            reading = event.pointer("/timings/prompt_ms").and_then(Value::as_f64).unwrap_or(reading);
        }
        measured(begin, &times, tokens, Duration::from_secs_f64(reading / 1e3))
    });
    answer.await.expect("the client does not panic")
}

async fn dbus(stand: &Stand, question: &str) -> Answer {
    let begin = Instant::now();
    let (job, pipe) = stand.begin(question, TOKENS, &[]).await.expect("a job");
    let read = tokio::task::spawn_blocking(move || {
        let (mut pipe, mut bytes, mut times) = (std::fs::File::from(pipe), [0; 4096], Vec::new());
        while pipe.read(&mut bytes).expect("a pipe") > 0 {
            times.push(Instant::now());
        }
        times
    });
    let times = read.await.expect("the client does not panic");
    stand.end_of(&job).await.expect("a whole answer");
    let details = job.details().await.expect("details");
    let number = |key: &str| u64::try_from(details[key].try_clone().expect("a number")).expect("a number");
    measured(begin, &times, number("completion-tokens"), Duration::from_micros(number("prompt-us")))
}

fn measured(begin: Instant, times: &[Instant], tokens: u64, reading: Duration) -> Answer {
    let (first, last) = (times[0], times[times.len() - 1]);
    assert!(!reading.is_zero(), "the server does not say for how long it read the prompt");
    Answer { first: first - begin, reading, tokens, rest: last - first }
}
