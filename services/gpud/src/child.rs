//! A `llama-server` as a child: started for one model, listening at a socket of ours, watched until it ends.
//!
//! ```text
//! start ─▶ listening ─▶ ready (it said so, and has read a prompt) ─▶ stopped (we asked)
//!   └────────┴──────────────┴────────────────────────────────────▶ lost, with the reason
//! ```
//! What it prints is read for the words of a device that failed; the newest lines are kept for the reason.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::{ErrorCode, Failure, Result};
use model::gguf::Header;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Notify, watch};

use crate::http_client::Client;
use crate::plan::Placement;

/// Newest lines that are kept.
const LINES: usize = 40;
/// How often a server that starts is asked whether it is ready.
const GLANCE: Duration = Duration::from_millis(50);
/// How long a server may take to load its model.
// TIMEOUT: 8 GB from an SD card at 50 MB/s take three minutes; twice that.
const LOADING: Duration = Duration::from_secs(360);
/// How long a server may take to stop.
const STOPPING: Duration = Duration::from_secs(5);

/// What a server prints when its device failed, and what that means.
/// SOURCE: vulkan.hpp's names of results; ggml-vulkan.cpp, ggml_vk_create_buffer and ggml_backend_vk_buffer_type_alloc_buffer.
const WORDS: &[(&str, Fault)] = &[
    ("ErrorOutOfDeviceMemory", Fault::OutOfDeviceMemory),
    ("ErrorOutOfHostMemory", Fault::OutOfDeviceMemory),
    ("Device memory allocation of size", Fault::OutOfDeviceMemory),
    ("Requested buffer size exceeds device", Fault::OutOfDeviceMemory),
    ("ErrorDeviceLost", Fault::DeviceLost),
];

/// What the device did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    OutOfDeviceMemory,
    DeviceLost,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::OutOfDeviceMemory => "the device's memory is used up",
            Self::DeviceLost => "the device was lost",
        }
    }
}

/// How a server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Whether we had asked for it.
    pub(crate) asked: bool,
    /// What its device did, if that was it.
    pub(crate) fault: Option<Fault>,
    /// For people.
    pub(crate) reason: String,
}

impl Ended {
    /// As whoever waited for an answer sees it.
    pub(crate) fn failure(&self) -> Failure {
        match self.fault {
            Some(Fault::OutOfDeviceMemory) => Failure::new(ErrorCode::OutOfMemory, &self.reason),
            _ => Failure::new(ErrorCode::DeviceLost, &self.reason),
        }
    }
}

/// What a server is started with.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) program: &'a Path,
    pub(crate) model: &'a Path,
    pub(crate) name: &'a str,
    pub(crate) header: &'a Header,
    pub(crate) placement: &'a Placement,
    pub(crate) threads: usize,
    pub(crate) cores: &'a [usize],
    pub(crate) socket: PathBuf,
}

/// A server that runs, or has run.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    client: Client,
    pid: Option<u32>,
    stop: Arc<Notify>,
    ended: watch::Receiver<Option<Ended>>,
}

impl Server {
    /// Starts a server and waits until it is ready.
    ///
    /// # Errors
    /// How it ended instead.
    pub(crate) async fn start(start: Start<'_>) -> Result<Self, Ended> {
        let unasked = |reason: String| Ended { asked: false, fault: None, reason };
        // Ours, of a server before.
        let _ = std::fs::remove_file(&start.socket);
        let key = key();
        let mut command = command(&start, &key);
        let child = command.spawn().map_err(|error| unasked(format!("start {}: {error}", start.program.display())))?;
        let server = Self::watch(child, Client::new(start.socket, key));
        let mut ended = server.ended.clone();
        let ready = tokio::select! {
            ready = tokio::time::timeout(LOADING, server.ready(start.placement)) => {
                ready.map_err(|_| unasked(format!("the model was not loaded within {LOADING:?}")))?
            }
            // The sender lives in the task that watches the child, which ends with this message.
            _ = ended.wait_for(Option::is_some) => Err(Failure::new(ErrorCode::DeviceLost, "it ended")),
        };
        match ready {
            Ok(()) => Ok(server),
            Err(failure) => {
                server.stop.notify_one();
                let ended = server.ended().await;
                // What the device did says more than what the request saw.
                if ended.asked { Err(unasked(failure.message)) } else { Err(ended) }
            }
        }
    }

    fn watch(mut child: Child, client: Client) -> Self {
        let said = Arc::new(Mutex::new(Said::default()));
        let readers = [
            child.stdout.take().map(|out| tokio::spawn(listen(out, Arc::clone(&said)))),
            child.stderr.take().map(|out| tokio::spawn(listen(out, Arc::clone(&said)))),
        ];
        let (sender, ended) = watch::channel(None);
        let stop = Arc::new(Notify::new());
        let (asked, pid) = (Arc::clone(&stop), child.id());
        tokio::spawn(async move {
            let (status, asked) = tokio::select! {
                status = child.wait() => (status, false),
                () = asked.notified() => (end(&mut child).await, true),
            };
            // Its last words are in the pipes.
            for reader in readers.into_iter().flatten() {
                let _ = tokio::time::timeout(STOPPING, reader).await;
            }
            let said = said.lock().unwrap_or_else(PoisonError::into_inner);
            let ended = Ended { asked, fault: said.fault, reason: reason(status, &said) };
            // Nobody may be left who wants to know.
            let _ = sender.send(Some(ended));
        });
        Self { client, pid, stop, ended }
    }

    /// Asks until the server answers, and then lets it read one prompt as long as its ubatch: a device that cannot is
    /// found here, and not by a client.
    async fn ready(&self, placement: &Placement) -> Result<()> {
        while !self.client.is_healthy().await {
            tokio::time::sleep(GLANCE).await;
        }
        let tokens = if placement.gpu.is_some() { placement.ubatch.min(placement.context / 2).max(1) } else { 1 };
        self.client.prove(tokens).await
    }

    /// Requests go here.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The number of its process.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Whether it runs.
    pub(crate) fn runs(&self) -> bool {
        self.ended.borrow().is_none()
    }

    /// Returns when it has ended, with how.
    pub(crate) async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        let ended = ended.wait_for(Option::is_some).await;
        let gone = || Ended { asked: false, fault: None, reason: "its watch ended".into() };
        ended.ok().and_then(|ended| ended.clone()).unwrap_or_else(gone)
    }

    /// Ends it, and waits.
    pub(crate) async fn stop(&self) {
        self.stop.notify_one();
        self.ended().await;
    }
}

fn command(start: &Start<'_>, key: &str) -> Command {
    let Start { placement, header, .. } = start;
    let mut command = Command::new(start.program);
    command.arg("--model").arg(start.model).args(["--alias", start.name]).arg("--host").arg(&start.socket);
    for (option, number) in [
        ("--ctx-size", placement.context),
        ("--batch-size", placement.ubatch),
        ("--ubatch-size", placement.ubatch),
        // CAST: usize has at most 64 bits.
        ("--threads", start.threads as u64),
        // One request at a time: the queue is ours.
        ("--parallel", 1),
        // Weights stay in the machine's memory.
        ("--gpu-layers", 0),
        // Prompts of chats before are kept in the context alone.
        ("--cache-ram", 0),
    ] {
        command.arg(option).arg(number.to_string());
    }
    match &placement.gpu {
        Some(gpu) => drop(command.args(["--device", gpu])),
        // A driver that failed is not even looked at. SOURCE: ggml_backend_registry, ggml-backend-reg.cpp.
        None => drop(command.args(["--device", "none"]).env("GGML_DISABLE_VULKAN", "1")),
    }
    if let Some(mask) = mask(start.cores) {
        command.args(["--cpu-mask", &mask, "--cpu-strict", "1"]);
    }
    if header.is_embedding {
        command.arg("--embeddings");
    }
    // Memory was planned, nothing is fetched, and nobody looks at pages.
    command.args(["--fit", "off", "--offline", "--no-ui", "--no-slots", "--log-colors", "off"]);
    // Not an argument, which everybody on the machine can read.
    command.env("LLAMA_API_KEY", key);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// The cores as the server takes them: a hexadecimal number with a bit for each.
fn mask(cores: &[usize]) -> Option<String> {
    let bits =
        cores.iter().try_fold(0u128, |bits, &core| Some(bits | 1u128.checked_shl(u32::try_from(core).ok()?)?))?;
    (bits != 0).then(|| format!("{bits:x}"))
}

fn key() -> String {
    let key: u128 = rand::random();
    format!("{key:032x}")
}

/// What a server printed.
#[derive(Debug, Default)]
struct Said {
    lines: VecDeque<String>,
    fault: Option<Fault>,
}

impl Said {
    fn hear(&mut self, line: String) {
        let heard = WORDS.iter().find(|(words, _)| line.contains(words));
        self.fault = self.fault.or(heard.map(|(_, fault)| *fault));
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The line that says most: one that speaks of an error, the last of several.
    fn telling(&self) -> Option<&str> {
        let tells =
            |line: &&String| ["rror", "ailed", "terminate", "what()", "abort"].iter().any(|word| line.contains(word));
        self.lines.iter().rev().find(tells).map(String::as_str)
    }
}

async fn listen(pipe: impl AsyncRead + Unpin, said: Arc<Mutex<Said>>) {
    let mut lines = BufReader::new(pipe).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        let line = String::from_utf8_lossy(&line).chars().filter(|c| !c.is_control()).take(512).collect::<String>();
        tracing::trace!(line, "llama-server");
        said.lock().unwrap_or_else(PoisonError::into_inner).hear(line);
    }
}

async fn end(child: &mut Child) -> std::io::Result<ExitStatus> {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended meanwhile; then the wait returns at once.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    match tokio::time::timeout(STOPPING, child.wait()).await {
        Ok(status) => status,
        Err(_) => {
            child.start_kill()?;
            child.wait().await
        }
    }
}

fn reason(status: std::io::Result<ExitStatus>, said: &Said) -> String {
    let mut reason = match status {
        Ok(status) => format!("llama-server ended with {status}"),
        Err(error) => format!("llama-server cannot be waited for: {error}"),
    };
    if let Some(fault) = said.fault {
        reason = format!("{}: {reason}", fault.name());
    }
    match said.telling() {
        Some(line) => format!("{reason}: {line}"),
        None => reason,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn said(lines: &[&str]) -> Said {
        let mut said = Said::default();
        lines.iter().for_each(|line| said.hear((*line).to_owned()));
        said
    }

    #[test]
    fn a_failed_device_is_known_by_its_words() {
        let fault = |line| said(&["loading", line, "more"]).fault;
        assert_eq!(fault("what():  vk::CommandBuffer::end: ErrorOutOfDeviceMemory"), Some(Fault::OutOfDeviceMemory));
        assert_eq!(fault("what():  vk::Queue::submit: ErrorDeviceLost"), Some(Fault::DeviceLost));
        assert_eq!(fault("error: no such file"), None);
    }

    #[test]
    fn the_reason_has_the_signal_and_the_line_that_says_most() {
        let status = || Ok(ExitStatus::from_raw(9));
        assert_eq!(reason(status(), &said(&["fine"])), "llama-server ended with signal: 9 (SIGKILL)");
        let ended = reason(status(), &said(&["x", "  what():  vk::Queue::submit: ErrorDeviceLost", "y"]));
        assert!(ended.starts_with("the device was lost: llama-server ended with"), "{ended}");
        assert!(ended.ends_with("vk::Queue::submit: ErrorDeviceLost"), "{ended}");
    }

    #[test]
    fn only_the_newest_lines_are_kept() {
        let mut said = Said::default();
        (0..LINES + 5).for_each(|number| said.hear(number.to_string()));
        assert_eq!((said.lines.len(), said.lines[0].as_str()), (LINES, "5"));
    }

    #[test]
    fn cores_become_a_mask() {
        assert_eq!(mask(&[4, 5, 6, 7]).as_deref(), Some("f0"));
        assert_eq!(mask(&[]), None);
        assert_eq!(mask(&[200]), None);
    }
}
