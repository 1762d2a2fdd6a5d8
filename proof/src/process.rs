//! Child processes under a test's hand: started with their output in files, signalled, waited for.
//!
//! ```no_run
//! # async fn example(logs: &std::path::Path) -> Result<(), proof::Error> {
//! use proof::process::{self, Process};
//! use std::{process::Command, time::Duration};
//!
//! let mut command = Command::new(process::executable("pgbaton")?);
//! command.arg("run").env("RUST_LOG", "debug");
//! let mut relay = Process::start("relay-1", logs, command)?;
//! relay.wait_for_line("ready", Duration::from_secs(10)).await?;
//! relay.pause()?; // SIGSTOP: when this returns, no thread of it runs
//! relay.resume()?; // SIGCONT
//! relay.terminate()?; // SIGTERM
//! let status = relay.wait(Duration::from_secs(10)).await?;
//! assert!(status.success());
//! # Ok(())
//! # }
//! ```
//!
//! Dropping a [`Process`] kills it. If this process dies first, a [`Guard`] kills it.

mod guard;

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getrlimit, kill_process, prlimit, waitid};
use tokio::time::Instant;

use crate::Error;
pub use guard::Guard;

/// How often a condition outside of this process is looked at again.
pub const POLL: Duration = Duration::from_millis(10);

/// How many of a log's last lines an error quotes.
const QUOTED_LINES: usize = 30;

/// The executable `name` of this build, found beside the one that is running.
///
/// Test binaries lie in `deps`, one folder further down than the executables.
pub fn executable(name: &str) -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(|cause| Error::because("finding this executable", &cause))?;
    let mut folder = own.parent().unwrap_or(Path::new("."));
    if folder.ends_with("deps") {
        folder = folder.parent().unwrap_or(folder);
    }
    let path = folder.join(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::new(format!("{} does not exist: build it first, or use ./dev", path.display())))
}

/// A child process whose output goes to two files.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    /// Kills the child if this process dies; given up as soon as the child is reaped, because from
    /// then on its process id may belong to somebody else.
    guard: Option<Guard>,
}

impl Process {
    /// Starts `command` with no input and its output in `<logs>/<name>.out` and `<logs>/<name>.err`,
    /// which are emptied. It gets a process group of its own, so Ctrl-C reaches only this process.
    pub fn start(name: &str, logs: &Path, mut command: Command) -> Result<Process, Error> {
        let stdout = logs.join(format!("{name}.out"));
        let stderr = logs.join(format!("{name}.err"));
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(create(&stdout)?)
            .stderr(create(&stderr)?)
            .spawn()
            .map_err(|cause| Error::because(format!("starting {name}"), &cause))?;
        let guard = Guard::new("kill -KILL \"$1\"", child.id().to_string());
        let mut process = Process { name: name.to_owned(), child, stdout, stderr, guard: None };
        process.guard = Some(guard?);
        Ok(process)
    }

    /// The operating system's id of the child.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it stands still, stopped by a signal.
    pub fn is_stopped(&self) -> bool {
        // The state stands behind the name, which is in parentheses.
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap_or_default();
        state.rsplit(") ").next().is_some_and(|state| state.starts_with('T'))
    }

    /// The file that holds what the child wrote to its standard output.
    pub fn stdout(&self) -> &Path {
        &self.stdout
    }

    /// The file that holds what the child wrote to its standard error.
    pub fn stderr(&self) -> &Path {
        &self.stderr
    }

    /// Sends SIGTERM: the child is asked to finish. Use [`Process::wait`] for the end.
    pub fn terminate(&mut self) -> Result<(), Error> {
        self.signal(Signal::TERM)
    }

    /// Sends SIGHUP: the child is to read its configuration again.
    pub fn hang_up(&mut self) -> Result<(), Error> {
        self.signal(Signal::HUP)
    }

    /// Sends SIGKILL and reaps the child, so that when this returns it is gone.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.signal(Signal::KILL)?;
        self.child.wait().map_err(|cause| Error::because(format!("waiting for {}", self.name), &cause))?;
        self.guard = None;
        Ok(())
    }

    /// Sends SIGSTOP and returns once every thread of the child stands still.
    pub fn pause(&mut self) -> Result<(), Error> {
        self.signal(Signal::STOP)?;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), options)
            .map_err(|cause| Error::because(format!("waiting for {} to stop", self.name), &cause))?;
        Ok(())
    }

    /// Sends SIGCONT: a paused child goes on where it was.
    pub fn resume(&mut self) -> Result<(), Error> {
        self.signal(Signal::CONT)
    }

    /// No file that it writes may become longer than this. It has to ignore SIGXFSZ, or that ends it.
    pub fn limit_files(&self, bytes: Option<u64>) -> Result<(), Error> {
        let own = getrlimit(Resource::Fsize);
        let limit = Rlimit { current: bytes.or(own.current), maximum: own.maximum };
        let limited = prlimit(Some(Pid::from_child(&self.child)), Resource::Fsize, limit);
        limited.map(drop).map_err(|cause| Error::because(format!("limiting the files of {}", self.name), &cause))
    }

    /// How the child ended, or `None` while it runs.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>, Error> {
        let status =
            self.child.try_wait().map_err(|cause| Error::because(format!("waiting for {}", self.name), &cause))?;
        if status.is_some() {
            self.guard = None;
        }
        Ok(status)
    }

    /// Waits for the child's end. An error that quotes its log if it still runs after `within`.
    pub async fn wait(&mut self, within: Duration) -> Result<ExitStatus, Error> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.exit_status()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(self.complaint(&format!("still runs after {within:?}")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until the child has written a line that contains `text`, and returns the first such line.
    pub async fn wait_for_line(&mut self, text: &str, within: Duration) -> Result<String, Error> {
        let mut lines = self.wait_for_lines(text, 1, within).await?;
        Ok(lines.swap_remove(0))
    }

    /// Waits until the child has written at least `count` lines that contain `text`, and returns all of
    /// them. An error that quotes the log if the child ends first or `within` has passed.
    pub async fn wait_for_lines(&mut self, text: &str, count: usize, within: Duration) -> Result<Vec<String>, Error> {
        let deadline = Instant::now() + within;
        loop {
            // The end is looked at before the log: what a child wrote before its end is then all there.
            let ended = self.exit_status()?;
            let lines = self.lines_with(text);
            if lines.len() >= count {
                return Ok(lines);
            }
            if let Some(status) = ended {
                return Err(self.complaint(&format!("ended ({status}) before it wrote {text:?}")));
            }
            if Instant::now() >= deadline {
                return Err(self.complaint(&format!("did not write {text:?} within {within:?}")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Every complete line so far that contains `text`: those of the standard output first.
    pub fn lines_with(&self, text: &str) -> Vec<String> {
        [&self.stdout, &self.stderr].into_iter().flat_map(|path| complete_lines_with(path, text)).collect()
    }

    fn signal(&mut self, signal: Signal) -> Result<(), Error> {
        // A reaped child's id may be another process by now, so it must not be signalled.
        if let Some(status) = self.exit_status()? {
            return Err(self.complaint(&format!("has ended already ({status})")));
        }
        kill_process(Pid::from_child(&self.child), signal)
            .map_err(|cause| Error::because(format!("signalling {}", self.name), &cause))
    }

    fn complaint(&self, what: &str) -> Error {
        Error::new(format!(
            "{} {what}; the end of its output:\n{}{}",
            self.name,
            last_lines(&self.stdout),
            last_lines(&self.stderr)
        ))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when the child is gone already. A paused child dies of SIGKILL, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn create(path: &Path) -> Result<File, Error> {
    File::create(path).map_err(|cause| Error::because(format!("creating {}", path.display()), &cause))
}

/// The text of a log; empty if it cannot be read, since it only serves to explain another failure.
fn log_text(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// A line whose newline is not there yet may still grow, so it does not count.
fn complete_lines_with(path: &Path, text: &str) -> Vec<String> {
    let log = log_text(path);
    let complete = log.rfind('\n').map_or("", |end| log.get(..end).unwrap_or(""));
    complete.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
}

/// The last lines of a log, for an error message.
pub(crate) fn last_lines(path: &Path) -> String {
    let log = log_text(path);
    let lines: Vec<&str> = log.lines().collect();
    let quoted = lines.get(lines.len().saturating_sub(QUOTED_LINES)..).unwrap_or_default();
    quoted.iter().map(|line| format!("  {line}\n")).collect()
}
