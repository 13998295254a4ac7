//! A child process that ends with its value.

use std::ffi::OsStr;
use std::process::{Child, Command};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// A child process. It is killed when the value is dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// Starts a program.
    ///
    /// # Errors
    /// Where it cannot be started; says which Debian package has it.
    pub fn start(command: &mut Command, package: &str) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .spawn()
            .with_context(|| format!("start {name} (Debian package {package}: apt-get install {package})"))?;
        Ok(Self { name, child })
    }

    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Asks the program to stop, and waits.
    ///
    /// # Errors
    /// Where it ends with an error.
    pub fn terminate(&mut self) -> Result<()> {
        kill_process(self.pid()?, Signal::TERM)?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{} ended with {status}", self.name);
        }
        Ok(())
    }

    /// Ends the program at once, as a crash would.
    ///
    /// # Errors
    /// Where it had ended before.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn pid(&self) -> Result<Pid> {
        Pid::from_raw(i32::try_from(self.child.id())?).context("a process identifier is not 0")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; then both do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a program is, if it is installed.
pub(crate) fn find(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps daemons where an ordinary user's PATH does not look.
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(Into::into));
    folders.map(|folder| folder.join(OsStr::new(program))).find(|file| file.is_file())
}
