//! What is around the machine: a broker with its clients, and a server of bundles. The machine reaches both through QEMU's
//! network as [`ADDRESS`].

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

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

    /// Publishes what a device shall do, so that it hears of it whenever it comes.
    ///
    /// # Errors
    /// A broker that does not take it.
    pub(super) fn retain(&self, topic: &str, payload: &str) -> Result<()> {
        succeed(self.client("mosquitto_pub").args(["-r", "-q", "1", "-t", topic, "-m", payload]))
    }

    /// Asks a model about a picture. The answer goes to [`REPLIES`].
    ///
    /// # Errors
    /// As [`Broker::retain`].
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

/// Serves the files of a folder over HTTP, in the parts that are asked for. Returns its port.
///
/// # Errors
/// No port.
pub(super) fn serve(folder: &Path, journal: &Journal) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let (folder, journal) = (folder.to_owned(), journal.clone());
    // It ends with this program.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (folder, journal) = (folder.clone(), journal.clone());
            std::thread::spawn(move || {
                if let Err(error) = talk(stream, &folder, &journal) {
                    journal.add(Origin::Server, &format!("{error:#}"));
                }
            });
        }
    });
    Ok(port)
}

/// A part of a file that a request wants.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    head: bool,
    path: String,
    /// First byte, and the last where it is named.
    range: Option<(u64, Option<u64>)>,
}

/// Answers the requests of a connection until its end.
fn talk(mut stream: TcpStream, folder: &Path, journal: &Journal) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut request = Vec::new();
        for line in reader.by_ref().lines() {
            let line = line?;
            if line.is_empty() {
                break;
            }
            request.push(line);
        }
        if request.is_empty() {
            return Ok(());
        }
        let wanted = parse(&request)?;
        answer(&mut stream, &wanted, folder, journal)?;
    }
}

fn parse(request: &[String]) -> Result<Wanted> {
    let first = request.first().context("a request has a line")?;
    let mut words = first.split(' ');
    let head = match words.next() {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => bail!("{first:?} is not understood"),
    };
    let path = words.next().context("a request names a file")?.trim_start_matches('/').to_owned();
    ensure!(!path.contains(".."), "{path:?} is no file of the folder");
    let header = |line: &String| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("range").then(|| value.trim().to_owned())
    };
    let range = match request.iter().find_map(header) {
        None => None,
        Some(value) => {
            let part = value.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
            let (from, to) = part.with_context(|| format!("the range {value:?} is not understood"))?;
            let last = if to.is_empty() { None } else { Some(to.parse()?) };
            Some((from.parse()?, last))
        }
    };
    Ok(Wanted { head, path, range })
}

fn answer(stream: &mut TcpStream, wanted: &Wanted, folder: &Path, journal: &Journal) -> Result<()> {
    let Ok(mut file) = File::open(folder.join(&wanted.path)) else {
        journal.add(Origin::Server, &format!("there is no {}", wanted.path));
        return Ok(stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?);
    };
    let bytes = file.metadata()?.len();
    let (from, to) = wanted
        .range
        .map_or((0, bytes), |(from, last)| (from, last.map_or(bytes, |last| bytes.min(last.saturating_add(1)))));
    if from >= to {
        let header = format!(
            "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */{bytes}\r\nContent-Length: 0\r\n\r\n"
        );
        return Ok(stream.write_all(header.as_bytes())?);
    }
    journal.add(Origin::Server, &format!("{} from {from} to {to} of {bytes}", wanted.path));
    let (status, place) = match wanted.range {
        None => ("200 OK", String::new()),
        Some(_) => ("206 Partial Content", format!("Content-Range: bytes {from}-{}/{bytes}\r\n", to - 1)),
    };
    let length = to - from;
    let header = format!("HTTP/1.1 {status}\r\nAccept-Ranges: bytes\r\nContent-Length: {length}\r\n{place}\r\n");
    stream.write_all(header.as_bytes())?;
    if !wanted.head {
        file.seek(SeekFrom::Start(from))?;
        io::copy(&mut file.take(length), stream)?;
    }
    Ok(())
}

/// Where a bundle of that name is, for the guest.
pub(super) fn url(port: u16, bundle: &Path) -> Result<String> {
    let name = bundle.file_name().context("a bundle has a name")?;
    Ok(format!("http://{ADDRESS}:{port}/{}", name.display()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::super::journal::Journal;
    use super::serve;

    #[test]
    fn files_are_served_in_the_parts_that_are_asked_for() {
        let folder = std::env::temp_dir().join(format!("xtask-server-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("a.raucb"), "0123456789").unwrap();
        let port = serve(&folder, &Journal::new(&folder.join("log")).unwrap()).unwrap();
        let ask = |request: &str| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            said
        };
        let whole = ask("GET /a.raucb HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(whole.starts_with("HTTP/1.1 200 ") && whole.ends_with("\r\n\r\n0123456789"), "{whole}");
        let part = ask("GET /a.raucb HTTP/1.1\r\nRange: bytes=2-4\r\n\r\n");
        assert!(part.contains("Content-Range: bytes 2-4/10\r\n") && part.ends_with("\r\n\r\n234"), "{part}");
        let twice = ask("HEAD /a.raucb HTTP/1.1\r\n\r\nGET /a.raucb HTTP/1.1\r\nrange: bytes=8-\r\n\r\n");
        assert!(twice.contains("Content-Length: 10\r\n") && twice.ends_with("\r\n\r\n89"), "{twice}");
        assert!(ask("GET /b HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask("GET /a.raucb HTTP/1.1\r\nRange: bytes=10-\r\n\r\n").starts_with("HTTP/1.1 416 "));
        assert_eq!(ask("GET /../a HTTP/1.1\r\n\r\n"), "");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
