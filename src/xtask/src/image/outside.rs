//! What is around the machine: a broker with its clients. The machine reaches it through QEMU's network as [`ADDRESS`].

use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::journal::{Journal, Origin};
use crate::kernel::succeed;
use crate::step;

/// This machine, as the guest sees it. SOURCE: QEMU's documentation of its user network.
pub(super) const ADDRESS: &str = "10.0.2.2";
/// Where answers to requests go.
pub(super) const REPLIES: &str = "replies/image";
/// TIMEOUT: a broker listens at once, and QEMU too.
const OPEN: Duration = Duration::from_secs(60);

/// The broker takes a machine for gone that says nothing for 45 seconds, and an emulated processor may take five minutes
/// for what it calls 30 seconds: the broker's clock goes slowly as well. SOURCE: faketime(1); `$LIB` in ld.so(8).
const CLOCK: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";
const SLOWLY: &str = "+0 x0.05";

/// mosquitto, and a client that hears everything. They end with this.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) port: u16,
    processes: Vec<Child>,
}

impl Drop for Broker {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Broker {
    /// Starts them, with files in `folder`.
    ///
    /// # Errors
    /// A program that cannot be started.
    pub(super) fn start(folder: &Path, journal: &Journal) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let settings = folder.join("mosquitto.conf");
        fs::write(&settings, format!("listener {port} 127.0.0.1\nallow_anonymous true\nmax_packet_size 1048576\n"))?;
        let mut broker = Self { port, processes: Vec::new() };
        let mut mosquitto = command("mosquitto");
        mosquitto.env("LD_PRELOAD", CLOCK).env("FAKETIME", SLOWLY);
        mosquitto.arg("-c").arg(&settings).stdout(Stdio::null()).stderr(File::create(folder.join("mosquitto.log"))?);
        broker.processes.push(mosquitto.spawn().context("mosquitto cannot be started")?);
        opened("mosquitto does not listen", || TcpStream::connect(("127.0.0.1", port)))?;
        let mut listener = broker.client("mosquitto_sub");
        // Not the requests: pictures are no lines.
        listener.args(["-v", "-q", "1", "-t", REPLIES, "-t", "cairn/+/state", "-t", "cairn/+/health/#"]);
        listener.args(["-t", "cairn/+/update/#"]).stdout(Stdio::piped());
        let mut listener = listener.spawn().context("mosquitto_sub cannot be started")?;
        // PANIC: the line above asked for the pipe.
        journal.follow(Origin::Broker, listener.stdout.take().expect("standard output is piped"));
        broker.processes.push(listener);
        Ok(broker)
    }

    fn client(&self, program: &str) -> Command {
        let mut command = command(program);
        command.args(["-V", "5", "-h", "127.0.0.1", "-p"]).arg(self.port.to_string());
        command
    }

    /// Asks a model about a picture. The answer goes to [`REPLIES`].
    ///
    /// # Errors
    /// A broker that does not take it.
    pub(super) fn ask(&self, topic: &str, picture: &Path) -> Result<()> {
        let mut publish = self.client("mosquitto_pub");
        publish.args(["-q", "1", "-t", topic, "-D", "publish", "content-type", "image/jpeg"]);
        succeed(publish.args(["-D", "publish", "response-topic", REPLIES, "-f"]).arg(picture))
    }
}

/// Connects as soon as somebody listens. `silence`: what it means when nobody does.
///
/// # Errors
/// Nobody who listens in time.
pub(super) fn opened<T>(silence: &'static str, connect: impl Fn() -> io::Result<T>) -> Result<T> {
    let deadline = Instant::now() + OPEN;
    loop {
        match connect() {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() >= deadline => return Err(error).context(silence),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", step::search_path()).stdin(Stdio::null());
    command
}
