//! A real broker on a port of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use crate::process::{Process, find};

/// Attempts to find a port that nobody takes meanwhile.
const ATTEMPTS: usize = 10;

/// How a broker differs from mosquitto's defaults.
#[derive(Clone, Debug, Default)]
pub struct BrokerOptions {
    /// Certificates: authority, the broker's own, and its key. Clients need certificates of the authority too.
    pub tls: Option<(PathBuf, PathBuf, PathBuf)>,
    /// Whether sessions survive [`Broker::shut_down`].
    pub persistent: bool,
}

/// A mosquitto.
#[derive(Debug)]
pub struct Broker {
    port: u16,
    tls: bool,
    process: Option<Process>,
    options: BrokerOptions,
    folder: TempDir,
}

impl Broker {
    /// Starts a broker that anybody may use.
    ///
    /// # Errors
    /// Where mosquitto is missing or refuses.
    pub fn start(options: BrokerOptions) -> Result<Self> {
        let tls = options.tls.is_some();
        let mut broker = Self { port: 0, tls, process: None, options, folder: tempfile::tempdir()? };
        for _ in 0..ATTEMPTS {
            broker.port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            if broker.run()? {
                return Ok(broker);
            }
        }
        bail!("mosquitto found no free port in {ATTEMPTS} attempts, or refuses its configuration");
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The broker's address as our daemons take it.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "mqtts" } else { "mqtt" };
        format!("{scheme}://localhost:{}", self.port)
    }

    /// Stops the broker, as a crash would.
    ///
    /// # Errors
    /// Where it had stopped before.
    pub fn stop(&mut self) -> Result<()> {
        self.process.take().context("the broker has stopped before")?.kill()
    }

    /// Asks the broker to stop, as a service manager does.
    ///
    /// # Errors
    /// Where it had stopped before, or ends with an error.
    pub fn shut_down(&mut self) -> Result<()> {
        self.process.take().context("the broker has stopped before")?.terminate()
    }

    /// Starts it again on the same port; without memory of what was, unless it is persistent and was shut down.
    ///
    /// # Errors
    /// Where somebody took the port meanwhile.
    pub fn start_again(&mut self) -> Result<()> {
        if !self.run()? {
            bail!("port {} was taken", self.port);
        }
        Ok(())
    }

    /// A command of mosquitto's clients, `mosquitto_pub` or `mosquitto_sub`, towards this broker.
    ///
    /// # Errors
    /// Where it is missing.
    pub fn client(&self, program: &str) -> Result<Command> {
        let path = find(program).with_context(|| format!("{program} is missing: apt-get install mosquitto-clients"))?;
        let mut command = Command::new(path);
        command.arg("-h").arg("127.0.0.1").arg("-p").arg(self.port.to_string());
        Ok(command)
    }

    /// Whether the broker came up.
    fn run(&mut self) -> Result<bool> {
        let config = self.folder.path().join("mosquitto.conf");
        fs::write(&config, self.config())?;
        let program = find("mosquitto").context("mosquitto is missing: apt-get install mosquitto")?;
        let mut command = Command::new(program);
        command.arg("-c").arg(config).stderr(Stdio::piped());
        let mut process = Process::start(&mut command, "mosquitto")?;
        let stderr = process.child().stderr.take().context("standard error is a pipe")?;
        let mut lines = BufReader::new(stderr).lines();
        let running = lines.by_ref().map_while(Result::ok).any(|line| line.ends_with(" running"));
        // The broker must not block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        self.process = running.then_some(process);
        Ok(running)
    }

    fn config(&self) -> String {
        // Who is root only in a namespace of its own cannot become another user.
        // Without nodelay the broker holds a small message back until the one before is acknowledged, some 40 ms.
        let mut config = format!(
            "user root\nlistener {} 127.0.0.1\nallow_anonymous true\npersistence false\nset_tcp_nodelay true\n\
             log_dest stderr\nlog_type all\n",
            self.port
        );
        if self.options.persistent {
            let folder = self.folder.path().display();
            config = config.replace("persistence false", &format!("persistence true\npersistence_location {folder}/"));
        }
        if let Some((authority, certificate, key)) = &self.options.tls {
            let (authority, certificate, key) = (authority.display(), certificate.display(), key.display());
            config += &format!("cafile {authority}\ncertfile {certificate}\nkeyfile {key}\nrequire_certificate true\n");
        }
        config
    }
}
