//! The NPU of the virtual board: the peer of QEMU's device `peer-mmio`.
//!
//! ```text
//! QEMU ── socket ─▶ wire ─▶ Machine ◀─ control ◀── socket ── a person or a test
//!                              └─ the guest's memory, a file that QEMU maps too
//! ```
//!
//! `npu-board FOLDER` serves one QEMU and ends with it, or when its standard input ends. In the folder lie the guest's
//! memory, `ram`, and two sockets: `npu.sock` for QEMU, `control.sock` for lines of text. `counters` answers with counters,
//! `NAME CORE [ARGUMENT]` pulls a lever and answers `ok`. Where the folder has a file `trace`, every access is written there.
//! It prints `listening` when both sockets are there.

#![forbid(unsafe_code)]

mod wire;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use npu_device::Mapping;
use npu_sim::Options;
use npu_sim::mmio::{Machine, Pull, WINDOW_BYTES};
use wire::{REQUEST, Request, reply};

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [folder] = arguments.as_slice() else {
        eprintln!("usage: npu-board FOLDER");
        return ExitCode::FAILURE;
    };
    match serve(folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("npu-board: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What went wrong, for people.
type Result<T, E = String> = std::result::Result<T, E>;

fn serve(folder: &Path) -> Result<()> {
    let ram = memory(&folder.join("ram"))?;
    let machine =
        Arc::new(Mutex::new(Machine::new(&ram, Options::default().work_limit, trace(&folder.join("trace"))?)));
    let control = listen(&folder.join("control.sock"))?;
    let guest = listen(&folder.join("npu.sock"))?;
    let levers = Arc::clone(&machine);
    thread::spawn(move || {
        for client in control.incoming().flatten() {
            // A client that went away is no reason to stop.
            let _ = answer_lines(&client, &levers);
        }
    });
    thread::spawn(|| {
        // Whoever started this is gone; QEMU notices that its peer is.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
    println!("listening");
    let (mut qemu, _) = guest.accept().map_err(|error| format!("no QEMU: {error}"))?;
    answer_requests(&mut qemu, &machine)
}

fn memory(path: &Path) -> Result<Mapping> {
    let say = |what: &dyn std::fmt::Display| format!("{} cannot be mapped: {what}", path.display());
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|error| say(&error))?;
    let bytes = file.metadata().map_err(|error| say(&error))?.len();
    let bytes = usize::try_from(bytes).map_err(|error| say(&error))?;
    Mapping::of_file(&file, 0, bytes).map_err(|error| say(&error))
}

fn trace(path: &Path) -> Result<Option<Box<dyn Write + Send>>> {
    if !path.exists() {
        return Ok(None);
    }
    let file = File::create(path).map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
    Ok(Some(Box::new(BufWriter::new(file))))
}

fn listen(path: &Path) -> Result<UnixListener> {
    UnixListener::bind(path).map_err(|error| format!("{} cannot be listened on: {error}", path.display()))
}

/// A lock whose holder panicked is still consistent: every access is whole.
fn lock(machine: &Mutex<Machine>) -> MutexGuard<'_, Machine> {
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves QEMU until it closes the connection.
fn answer_requests(qemu: &mut UnixStream, machine: &Mutex<Machine>) -> Result<()> {
    let mut request = [0; REQUEST];
    loop {
        match qemu.read_exact(&mut request) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(format!("QEMU is lost: {error}")),
        }
        let request = Request::parse(&request).map_err(|why| format!("QEMU sent {why}"))?;
        let mut machine = lock(machine);
        let value = answer(&mut machine, request)?;
        let reply = reply(machine.lines(), value, machine.due());
        drop(machine);
        qemu.write_all(&reply).map_err(|error| format!("QEMU is lost: {error}"))?;
    }
}

fn answer(machine: &mut Machine, request: Request) -> Result<u64> {
    match request {
        Request::Hello { lines: 3, bytes: WINDOW_BYTES } => {}
        Request::Hello { lines, bytes } => return Err(format!("QEMU has a window of {bytes} bytes and {lines} lines")),
        Request::Read { now, access } => return Ok(machine.read(now, access)),
        Request::Write { now, access, value } => machine.write(now, access, value),
        Request::Tick { now } => machine.settle(now),
        Request::Reset => machine.reset(),
    }
    Ok(0)
}

/// Serves a client of the control socket until it closes the connection.
fn answer_lines(client: &UnixStream, machine: &Mutex<Machine>) -> std::io::Result<()> {
    let mut out = client;
    for line in BufReader::new(client).lines() {
        let line = line?;
        let answer = match line.trim() {
            "counters" => lock(machine).counters().to_string(),
            line => match line.parse::<Pull>() {
                Ok(pull) => {
                    lock(machine).pull(pull);
                    "ok\n".into()
                }
                Err(error) => format!("error: {error}\n"),
            },
        };
        out.write_all(answer.as_bytes())?;
    }
    Ok(())
}
