//! One run of the virtual board: QEMU and its peer, which end together.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::guest::{self, Boot};
use super::qemu;
use crate::step;

/// What the guest prints as its last line, followed by a status.
const FINISHED: &str = "board: finished ";
/// Names a file that gets every access to the NPU's registers.
const TRACE: &str = "CAIRN_BOARD_TRACE";
/// TIMEOUT: the whole run takes two minutes on two idle cores; what is slower by this much hangs.
pub(super) const LIMIT: Duration = Duration::from_secs(30 * 60);
/// TIMEOUT: the peer opens its sockets at once.
const START: Duration = Duration::from_secs(60);

/// What the guest's console is fed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Terminal,
    Nothing,
}

/// A board that is about to boot.
#[derive(Debug)]
pub(crate) struct Machine {
    folder: Folder,
    /// Ends when its standard input does, so when this program ends, however it ends; and QEMU with it.
    peer: Child,
    qemu: Command,
}

/// A folder that goes with the run.
#[derive(Debug)]
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.peer.kill();
        let _ = self.peer.wait();
    }
}

impl Machine {
    /// Prepares a board that boots this and has `memory` MiB, and starts its NPU.
    ///
    /// # Errors
    /// A part that cannot be had, a peer that does not start.
    pub(crate) fn start(boot: &Boot, memory: u32) -> Result<Self> {
        let mut machine = Self::bare(memory)?;
        let qemu = machine.command();
        qemu.arg("-kernel").arg(&boot.kernel).arg("-initrd").arg(&boot.initramfs);
        // Four nanoseconds for an instruction; nobody waits for time in which nothing happens.
        qemu.args(["-icount", "shift=2,sleep=off", "-no-reboot", "-serial", "stdio", "-append"]);
        // A task that hangs ends the run, as it would never end by itself. Freed memory is poisoned and checked, so that who
        // still uses it is found at once.
        qemu.arg("console=ttyAMA0 panic=-1 hung_task_panic=1 slab_debug=FZP quiet loglevel=1");
        Ok(machine)
    }

    /// As [`Machine::start`], without anything to boot.
    ///
    /// # Errors
    /// As [`Machine::start`].
    pub(crate) fn bare(memory: u32) -> Result<Self> {
        let (program, device) = (qemu::program()?, qemu::device()?);
        let folder = folder()?;
        let ram = folder.0.join("ram");
        fs::File::create(&ram)?.set_len(u64::from(memory) << 20)?;
        if let Some(trace) = std::env::var_os(TRACE) {
            fs::File::create(&trace)?;
            std::os::unix::fs::symlink(Path::new(&trace).canonicalize()?, folder.0.join("trace"))?;
        }
        let tree = qemu::device_tree(&program, &folder.0, memory)?;
        let mut peer =
            Command::new(guest::peer()).arg(&folder.0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        await_peer(&mut peer)?;
        // Only QEMU may see the library, not what starts it.
        let mut preload = std::ffi::OsString::from("LD_PRELOAD=");
        preload.push(device);
        let mut qemu = Command::new("env");
        qemu.arg(preload).arg(&program).args(qemu::command(&program, &ram, memory).get_args());
        let socket = folder.0.join("npu.sock");
        qemu.arg("-dtb").arg(tree).arg("-device");
        qemu.arg(format!("peer-mmio,socket={},base=0xfdab0000,size=0x40000,spi=110,lines=3", socket.display()));
        Ok(Self { folder, peer, qemu })
    }

    /// QEMU's command line, for more.
    pub(crate) fn command(&mut self) -> &mut Command {
        &mut self.qemu
    }

    /// A folder that goes with the run, with short paths.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// Runs to the end with the guest's console on this one. Returns the guest's status, if it came that far.
    ///
    /// # Errors
    /// A machine that does not start, or has to be stopped.
    pub(crate) fn pass_through(mut self, input: Input) -> Result<Option<i32>> {
        if input == Input::Nothing {
            return self.follow(LIMIT, |_| {});
        }
        println!("levers and counters: {}", self.folder.0.join("control.sock").display());
        let status = self.qemu.status().context("QEMU cannot be started")?;
        if !status.success() {
            bail!("QEMU ended with {status}");
        }
        Ok(None)
    }

    /// Runs to the end, prints every line of the guest and hands it on.
    ///
    /// # Errors
    /// As [`Machine::pass_through`].
    pub(crate) fn follow(self, limit: Duration, mut line: impl FnMut(&str)) -> Result<Option<i32>> {
        let mut qemu = step::limited(&self.qemu, limit);
        let mut qemu = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("QEMU cannot be started")?;
        // PANIC: the line above asked for the pipe.
        let console = qemu.stdout.take().expect("standard output is piped");
        let mut finished = None;
        for bytes in BufReader::new(console).split(b'\n') {
            let text = bytes.context("the console cannot be read")?;
            let text = String::from_utf8_lossy(&text);
            let text = text.trim_end_matches('\r');
            if let Some(status) = text.strip_prefix(FINISHED) {
                finished = status.trim().parse().ok();
                continue;
            }
            println!("{text}");
            line(text);
        }
        let status = qemu.wait()?;
        if !status.success() {
            bail!("QEMU ended with {status}");
        }
        Ok(finished)
    }
}

/// A new folder, in memory where that can be: the guest's memory lies in it, and the paths of sockets must be short.
fn folder() -> Result<Folder> {
    let shared = Path::new("/dev/shm");
    let parent = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    let folder = parent.join(format!("cairn-board-{}", std::process::id()));
    fs::create_dir(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    Ok(Folder(folder))
}

/// Waits until the peer says that it listens.
fn await_peer(peer: &mut Child) -> Result<()> {
    // PANIC: it was started with the pipe.
    let output = peer.stdout.take().expect("standard output is piped");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = BufReader::new(output).read_line(&mut line);
        let _ = tell.send(line);
    });
    let line = told.recv_timeout(START).unwrap_or_default();
    if line.trim() != "listening" {
        let _ = std::io::stdout().flush();
        bail!("npu-board does not start");
    }
    Ok(())
}
