//! A program of this workspace as a process that says when it serves.

use std::fs::{self, File};
use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use crate::process::Process;
use crate::workspace;

/// How often a wait for a message looks whether the program still runs.
const GLANCE: Duration = Duration::from_millis(100);

/// Builds a program of the workspace and returns its path.
///
/// # Errors
/// Where it does not build.
pub fn build(program: &str) -> Result<PathBuf> {
    let messages = cargo_build(&["--bin", program])?;
    let executable = messages.iter().filter_map(|message| message["executable"].as_str()).next_back();
    executable.map(PathBuf::from).context("cargo names no executable")
}

/// Builds a library of the workspace that other programs load, and returns its path.
///
/// # Errors
/// Where it does not build.
pub fn build_library(name: &str) -> Result<PathBuf> {
    let messages = cargo_build(&["--lib"])?;
    let of_library = |message: &&Value| message["reason"] == "compiler-artifact" && message["target"]["name"] == name;
    let mut files = messages.iter().filter(of_library).filter_map(|message| message["filenames"].as_array()).flatten();
    let shared = files.find_map(|file| file.as_str().filter(|file| file.ends_with(".so")));
    shared.map(PathBuf::from).with_context(|| format!("cargo names no shared library {name}"))
}

/// The whole workspace with all features is selected, as the other commands do, so that nothing is built twice.
fn cargo_build(target: &[&str]) -> Result<Vec<Value>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(workspace())
        .args(["build", "--quiet", "--message-format=json", "--workspace", "--all-features"])
        .args(target)
        .output()?;
    if !output.status.success() {
        bail!("{} does not build:\n{}", target.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(serde_json::Deserializer::from_slice(&output.stdout).into_iter().flatten().collect())
}

/// A daemon. It is killed when the value is dropped.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    notifications: UnixDatagram,
    log: PathBuf,
    _folder: TempDir,
}

impl Daemon {
    /// Starts a daemon with a configuration; `arguments` follow `--config FILE`.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(program: &Path, config: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let config_file = folder.path().join("config.toml");
        fs::write(&config_file, config)?;
        let socket = folder.path().join("notify");
        let notifications = UnixDatagram::bind(&socket)?;
        notifications.set_read_timeout(Some(GLANCE))?;
        let log = folder.path().join("log");
        let mut command = Command::new(program);
        command
            .arg("--config")
            .arg(config_file)
            .args(arguments)
            .env("NOTIFY_SOCKET", socket)
            .env_remove("JOURNAL_STREAM")
            .envs(environment.iter().copied())
            .stderr(File::create(&log)?);
        let process = Process::start(&mut command, "of this workspace")?;
        Ok(Self { process, notifications, log, _folder: folder })
    }

    /// Waits until the daemon says `state`, for example `READY=1` or `WATCHDOG=1`.
    ///
    /// # Errors
    /// Where it ends, or `patience` does. The error has the daemon's log.
    pub fn wait_for(&mut self, state: &str, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        let mut message = [0; 4096];
        while Instant::now() < deadline {
            match self.notifications.recv(&mut message) {
                Ok(len) if String::from_utf8_lossy(&message[..len]).lines().any(|line| line == state) => return Ok(()),
                Ok(_) => {}
                // A wait with a limit is not gone on with after a process was stopped and continued. SOURCE: signal(7).
                Err(error) if matches!(error.kind(), WouldBlock | TimedOut | Interrupted) => {
                    if let Some(status) = self.process.child().try_wait()? {
                        bail!("the daemon ended with {status} before {state}:\n{}", self.log());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        bail!("no {state} within {patience:?}:\n{}", self.log())
    }

    /// What the daemon logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The number of its process.
    pub fn pid(&mut self) -> u32 {
        self.process.child().id()
    }

    /// Asks the daemon to stop, and waits.
    ///
    /// # Errors
    /// Where it ends with an error.
    pub fn terminate(&mut self) -> Result<()> {
        self.process.terminate().with_context(|| self.log())
    }

    /// Ends the daemon at once, as a crash would.
    ///
    /// # Errors
    /// Where it had ended before.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }
}
