//! A running machine: the virtual board with a disk and a bootloader, and a shell on it.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::journal::{Journal, Origin};
use super::outside::opened;
use crate::board::machine::Machine;
use crate::board::qemu;

/// TIMEOUT: a start takes two minutes on two idle cores, and ten on a busy machine.
pub(super) const START: Duration = Duration::from_secs(40 * 60);
/// TIMEOUT: the longest that a shell is asked is to wait until the machine has started.
const ANSWER: Duration = START;
/// How often it is tried whether the shell is there.
// TIMEOUT: it costs the machine a line.
const AGAIN: Duration = Duration::from_secs(10);

/// The machine. It ends with this.
#[derive(Debug)]
pub(super) struct Guest {
    qemu: Child,
    /// Last, so that the NPU goes after the machine.
    _board: Machine,
    shell: UnixStream,
    journal: Journal,
    asked: u32,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Guest {
    /// Switches it on.
    ///
    /// # Errors
    /// A part that cannot be had.
    pub(super) fn start(disk: &Path, flash: &Path, journal: &Journal) -> Result<Self> {
        let mut board = Machine::bare(qemu::MEMORY)?;
        let socket = board.folder().join("shell.sock");
        let command = board.command();
        // Four nanoseconds for an instruction, as on the board, but whoever waits for the network has to wait.
        command.args(["-icount", "shift=2,sleep=on", "-serial", "stdio"]);
        command.arg("-drive").arg(format!("if=pflash,format=raw,readonly=on,file={}", flash.display()));
        command.arg("-drive").arg(format!("if=none,id=disk,format=raw,file={}", disk.display()));
        command.args(["-device", "virtio-blk-device,drive=disk", "-netdev", "user,id=net"]);
        command.args(["-device", "virtio-net-device,netdev=net", "-device", "virtio-rng-device"]);
        command.arg("-chardev").arg(format!("socket,id=shell,server=on,wait=off,path={}", socket.display()));
        command.args(["-device", "virtio-serial-device", "-device", "virtconsole,chardev=shell"]);
        let mut qemu = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("QEMU cannot be started")?;
        // PANIC: the line above asked for the pipe.
        journal.follow(Origin::Console, qemu.stdout.take().expect("standard output is piped"));
        let shell = match opened("QEMU opens no shell", || UnixStream::connect(&socket)) {
            Ok(shell) => shell,
            Err(error) => {
                let _ = qemu.kill();
                return Err(error);
            }
        };
        journal.follow(Origin::Shell, shell.try_clone()?);
        Ok(Self { qemu, _board: board, shell, journal: journal.clone(), asked: 0 })
    }

    /// Waits until the shell is there.
    ///
    /// # Errors
    /// A system that does not come so far.
    pub(super) fn await_shell(&mut self) -> Result<()> {
        let deadline = Instant::now() + START;
        let from = self.journal.now();
        loop {
            // What is typed comes back, so the answer is another text than the question.
            writeln!(self.shell, "stty -echo; echo here-$((40 + 2))")?;
            let answer = self.journal.wait(Origin::Shell, from, AGAIN, |line| line.contains("here-42").then_some(()));
            match answer {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= deadline => return Err(error).context("the shell"),
                Err(_) => {}
            }
        }
    }

    /// Runs a command line in the shell. Returns what it printed.
    ///
    /// # Errors
    /// A command that fails.
    pub(super) fn run(&mut self, line: &str) -> Result<String> {
        self.asked += 1;
        let (number, from) = (self.asked, self.journal.now());
        writeln!(
            self.shell,
            "printf '\\nbegin-%d\\n' {number}; {{ {line}; }} 2>&1; printf '\\nend-%d-%d\\n' {number} $?"
        )?;
        let prefix = format!("end-{number}-");
        let status = self.journal.wait(Origin::Shell, from, ANSWER, |line| line.strip_prefix(&prefix)?.parse().ok());
        let status: u8 = status.with_context(|| format!("`{line}` in the machine"))?;
        let said = self.journal.since(Origin::Shell, from);
        let begin = said.iter().position(|said| *said == format!("begin-{number}")).map_or(0, |at| at + 1);
        let said: Vec<&str> =
            said[begin..].iter().map(String::as_str).take_while(|said| !said.starts_with(&prefix)).collect();
        let said = said.join("\n").trim().to_owned();
        ensure!(status == 0, "`{line}` in the machine ended with {status}: {said}");
        Ok(said)
    }
}
