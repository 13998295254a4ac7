//! The simulated NPU, and for tests of whole programs its kernel: a folder with the kernel's log as `/dev/kmsg` shows it,
//! and a socket that takes faults, one a line: `hang TASK`, `fault TASK`, `slow MILLISECONDS`.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use npu_sim::{Lever, Simulator};
use rustix::time::{ClockId, clock_gettime};

/// The kernel's log.
const LOG: &str = "kmsg";
/// The socket.
const LEVERS: &str = "levers";
/// How often the simulated kernel is asked for news.
const LOOK: Duration = Duration::from_millis(5);

/// A simulated NPU, with its kernel in `folder` if there is one.
pub(crate) fn open(folder: Option<&Path>) -> Result<Simulator> {
    let simulator = Simulator::new(npu_sim::Options::default());
    let Some(folder) = folder else { return Ok(simulator) };
    let error = || format!("show the simulated kernel in {}", folder.display());
    let log = OpenOptions::new().append(true).create(true).open(folder.join(LOG)).with_context(error)?;
    let levers = UnixListener::bind(folder.join(LEVERS)).with_context(error)?;
    let printed = simulator.clone();
    std::thread::Builder::new().name("simulated-log".into()).spawn(move || {
        if let Err(error) = print(&printed, &log) {
            tracing::error!(%error, "the simulated kernel's log ends");
        }
    })?;
    let spoiled = simulator.clone();
    std::thread::Builder::new().name("levers".into()).spawn(move || {
        for client in levers.incoming().flatten() {
            // A client that went away wanted no answer.
            let _ = take(&spoiled, client);
        }
    })?;
    Ok(simulator)
}

/// Writes what the simulated kernel says, for ever.
fn print(simulator: &Simulator, mut log: &File) -> std::io::Result<()> {
    let mut written = 0;
    loop {
        for line in simulator.kernel_log().into_iter().skip(written) {
            let device = line.split([' ', ':']).nth(1).unwrap_or_default();
            let now = clock_gettime(ClockId::Monotonic);
            let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
            let record = format!("3,{written},{micros},-;{line}\n SUBSYSTEM=platform\n DEVICE=+platform:{device}\n");
            log.write_all(record.as_bytes())?;
            written += 1;
        }
        std::thread::sleep(LOOK);
    }
}

/// Takes faults until the client has no more.
fn take(simulator: &Simulator, mut client: UnixStream) -> std::io::Result<()> {
    let lines = BufReader::new(client.try_clone()?).lines();
    for line in lines {
        match lever(&line?) {
            Ok(lever) => {
                simulator.inject(lever);
                client.write_all(b"ok\n")?;
            }
            Err(error) => client.write_all(format!("error: {error:#}\n").as_bytes())?,
        }
    }
    Ok(())
}

fn lever(line: &str) -> Result<Lever> {
    let (name, number) = line.trim().split_once(' ').context("a fault is a name and a number")?;
    let number: u32 = number.parse().with_context(|| format!("{number:?} is no number"))?;
    // CAST: usize has at least 32 bits on every machine with an NPU.
    let task = number as usize;
    Ok(match name {
        "hang" => Lever::Hang { task },
        "fault" => Lever::IommuFault { task },
        "slow" => Lever::Slow(Duration::from_millis(number.into())),
        _ => bail!("{name:?} is no fault"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_a_name_and_a_number() {
        assert_eq!(lever("hang 2").unwrap(), Lever::Hang { task: 2 });
        assert_eq!(lever("slow 600").unwrap(), Lever::Slow(Duration::from_millis(600)));
        for line in ["", "hang", "hang x", "burn 1", "hang -1"] {
            lever(line).unwrap_err();
        }
    }
}
