//! One server process: spawn, signal, wait with a deadline, quote its log. Killed when dropped.
//!
//! A child reads its standard input and stops when that closes, so it does not outlive a parent that was killed
//! outright. It runs in a process group of its own: a Ctrl-C in the terminal reaches the parent only, which then
//! stops its children in order.

use crate::clock;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// How often a wait looks at the process.
const POLL: Duration = Duration::from_millis(5);
/// How much of a log is quoted in an error.
const TAIL_BYTES: u64 = 4 * 1024;

/// A running (or dead, not yet replaced) server process.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    log: PathBuf,
}

impl ServerProcess {
    /// Starts `binary` with `arguments` and further variables of the environment; its output is appended to `log`.
    ///
    /// # Errors
    /// When the binary cannot be started or the log not be opened.
    pub fn spawn(
        binary: &Path,
        arguments: &[String],
        environment: &[(String, String)],
        log: &Path,
    ) -> io::Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        let mut command = Command::new(binary);
        // Settings come from the arguments alone, whatever the parent's environment says.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TIEDKV_")) {
            command.env_remove(name);
        }
        let child = command
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended; `None` while it runs.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Sends a signal; a process that has ended is left alone.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.ended()?.is_some() {
            return Ok(());
        }
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            kill_process(pid, signal)?;
        }
        Ok(())
    }

    /// Waits until it has ended; `None` when `deadline` is over first.
    ///
    /// # Errors
    /// When the system does not tell.
    ///
    /// # Cancel safety
    /// Safe: the process is not touched.
    pub async fn wait(&mut self, deadline: Duration) -> io::Result<Option<ExitStatus>> {
        let end = clock::now() + deadline;
        loop {
            let ended = self.ended()?;
            if ended.is_some() || clock::now() >= end {
                return Ok(ended);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Kills it at once (SIGKILL, also when it is paused) and waits for its end.
    pub fn kill(&mut self) {
        // An error says that it is gone already; the wait reaps it either way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        tail(&self.log).unwrap_or_else(|error| format!("(no log: {error})"))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, folder: &Path) -> ServerProcess {
        let arguments = ["-c".to_owned(), script.to_owned()];
        ServerProcess::spawn(Path::new("/bin/sh"), &arguments, &[], &folder.join("log")).unwrap()
    }

    fn runs(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[tokio::test]
    async fn quotes_the_log_of_one_that_failed() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = shell("echo no such disk >&2; exit 3", folder.path());
        let status = process.wait(Duration::from_secs(10)).await.unwrap().unwrap();
        assert_eq!(status.code(), Some(3));
        assert_eq!(process.log_tail(), "no such disk\n");
    }

    #[tokio::test]
    async fn a_paused_one_dies_when_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = shell("read line", folder.path());
        process.signal(Signal::STOP).unwrap();
        assert_eq!(process.wait(Duration::from_millis(20)).await.unwrap(), None);
        let pid = process.pid();
        drop(process);
        assert!(!runs(pid));
    }

    #[tokio::test]
    async fn its_input_stays_open_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = shell("read line; echo closed", folder.path());
        assert_eq!(process.wait(Duration::from_millis(50)).await.unwrap(), None);
        drop(process.child.stdin.take());
        assert!(process.wait(Duration::from_secs(10)).await.unwrap().is_some());
        assert_eq!(process.log_tail(), "closed\n");
    }
}
