//! What the daemon adds to llama-server: first token and tokens per second beside the server alone, in turns.
//!
//! All run on this machine at the same time, so only the difference between two lines means something.

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/stand/mod.rs"]
mod stand;

use std::io::{BufRead as _, BufReader, Read as _};
use std::time::{Duration, Instant};

use stand::{Alone, Stand, chat};

/// Turns that are measured; one more warms up.
const TURNS: usize = 9;
/// The longest answer.
const TOKENS: u32 = 128;

/// One answer: time to its first token, tokens after it, and the time that those took.
#[derive(Clone, Copy)]
struct Run {
    first: Duration,
    tokens: f64,
    rest: Duration,
}

#[tokio::main]
async fn main() {
    let (alone, stand) = (Alone::start().await, Stand::start("").await);
    let mut runs = [(); 3].map(|()| Vec::new());
    for turn in 0..=TURNS {
        // Who is first changes, so that what else the machine does hits all alike.
        for step in 0..runs.len() {
            let who = (turn + step) % runs.len();
            // Each asks something else of the same length: what was read before is not read again.
            let question = format!("{who}{turn}: tell me a long story about a fox, a crow and a piece of cheese.");
            let run = match who {
                0 => http(alone.url(), &question).await,
                1 => http(stand.url(), &question).await,
                _ => dbus(&stand, &question).await,
            };
            if turn > 0 {
                runs[who].push(run);
            }
        }
    }
    println!("SmolLM2-135M, medians of {TURNS} answers of up to {TOKENS} tokens, in turns");
    let names = ["llama-server alone", "gpud, OpenAI's endpoint", "gpud, D-Bus"];
    let base = summary(&runs[0]);
    for (name, runs) in names.iter().zip(&runs) {
        let (first, speed) = summary(runs);
        let (more, less) = ((first / base.0 - 1.0) * 100.0, (1.0 - speed / base.1) * 100.0);
        println!(
            "  {name:24} first token {:7.1} ms ({more:+.1} %), {speed:6.1} tokens/s ({:+.1} %)",
            first * 1e3,
            -less
        );
    }
}

/// Medians: seconds to the first token, tokens per second.
fn summary(runs: &[Run]) -> (f64, f64) {
    let median = |mut numbers: Vec<f64>| {
        numbers.sort_by(f64::total_cmp);
        numbers[numbers.len() / 2]
    };
    let first = runs.iter().map(|run| run.first.as_secs_f64()).collect();
    let speed = runs.iter().map(|run| run.tokens / run.rest.as_secs_f64()).collect();
    (median(first), median(speed))
}

async fn http(url: &str, question: &str) -> Run {
    let mut body = chat(question, TOKENS);
    body["stream"] = true.into();
    let url = format!("{url}/v1/chat/completions");
    let answer = tokio::task::spawn_blocking(move || {
        let begin = Instant::now();
        let answer = ureq::post(&url).content_type("application/json").send(body.to_string()).expect("an answer");
        let mut times = Vec::new();
        for line in BufReader::new(answer.into_body().into_reader()).lines() {
            if line.expect("a line").contains("\"content\":\"") {
                times.push(Instant::now());
            }
        }
        run(begin, times[0], times[times.len() - 1], times.len() as f64)
    });
    answer.await.expect("the client does not panic")
}

async fn dbus(stand: &Stand, question: &str) -> Run {
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
    let tokens = u64::try_from(details["completion-tokens"].try_clone().expect("a number")).expect("a number");
    // CAST: an answer has far less tokens than a double counts. The last one ends the answer and has no text.
    run(begin, times[0], times[times.len() - 1], tokens as f64)
}

fn run(begin: Instant, first: Instant, last: Instant, tokens: f64) -> Run {
    Run { first: first - begin, tokens: tokens - 1.0, rest: last - first }
}
