//! A private bus of the system's kind, with the policy that the appliance installs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use rustix::process::{getgid, getuid};
use tempfile::TempDir;

use crate::process::{Process, find};

/// The defaults of a system bus, as dbus-daemon's own `system.conf` has them, on our socket and with our policy.
const CONFIG: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=@SOCKET@</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus"/>
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus.Introspectable"/>
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus.Properties"/>
  </policy>
  <includedir>@POLICIES@</includedir>
</busconfig>
"#;

/// A private bus.
#[derive(Debug)]
pub struct Bus {
    address: String,
    _process: Process,
    _folder: TempDir,
}

impl Bus {
    /// Starts a bus with the policy file `policy`. The users and groups that the policy names do not exist on a
    /// developer's machine: `users` and `groups` are replaced by those of the test.
    ///
    /// # Errors
    /// Where dbus-daemon is missing or refuses.
    pub fn start(policy: &Path, users: &[&str], groups: &[&str]) -> Result<Self> {
        Self::with_policies(&[policy], users, groups)
    }

    /// As [`Bus::start`], with several policy files: for daemons that talk to each other.
    ///
    /// # Errors
    /// Where dbus-daemon is missing or refuses.
    pub fn with_policies(files: &[&Path], users: &[&str], groups: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let policies = folder.path().join("policies");
        fs::create_dir(&policies)?;
        for (number, policy) in files.iter().enumerate() {
            let mut text = fs::read_to_string(policy).with_context(|| format!("read {}", policy.display()))?;
            for user in users {
                text = text.replace(&format!("user=\"{user}\""), &format!("user=\"{}\"", getuid().as_raw()));
            }
            for group in groups {
                text = text.replace(&format!("group=\"{group}\""), &format!("group=\"{}\"", getgid().as_raw()));
            }
            fs::write(policies.join(format!("policy{number}.conf")), text)?;
        }
        let socket = folder.path().join("bus");
        let config = CONFIG
            .replace("@SOCKET@", &socket.display().to_string())
            .replace("@POLICIES@", &policies.display().to_string());
        let config_file = folder.path().join("bus.conf");
        fs::write(&config_file, config)?;
        // Tests connect as other users too.
        let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(folder.path(), everyone)?;

        let program = find("dbus-daemon").context("dbus-daemon is missing: apt-get install dbus")?;
        let mut command = Command::new(program);
        command.arg("--nofork").arg("--print-address=1").arg("--config-file").arg(&config_file).stdout(Stdio::piped());
        let mut process = Process::start(&mut command, "dbus")?;
        let stdout = process.child().stdout.take().context("standard output is a pipe")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if line.is_empty() {
            bail!("dbus-daemon refuses its configuration: {}", process.child().wait()?);
        }
        Ok(Self { address: line.trim_end().to_owned(), _process: process, _folder: folder })
    }

    /// The address that clients connect to.
    pub fn address(&self) -> &str {
        &self.address
    }
}
