//! Three replicas as separate processes, and what is done to them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::Error;
use crate::fixture::toml_text;
use crate::process::{self, Process, last_lines};

/// A replica drains within ten seconds, or says why not.
const STOP_WITHIN: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Killed,
    Frozen,
}

/// One replica.
pub(super) struct Replica {
    pub(super) name: String,
    pub(super) state: State,
    process: Process,
}

/// All of them. They die with this.
pub(super) struct Fleet {
    pub(super) replicas: Vec<Replica>,
}

/// What the replicas said at their end, summed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastWords {
    /// Messages that the sink had already when it was given them.
    pub(super) repeated: u64,
}

impl Fleet {
    /// Starts one process for each command, named `replica-1` and so on.
    pub(super) fn start(commands: Vec<Command>, logs: &Path) -> Result<Fleet, Error> {
        let mut replicas = Vec::new();
        for (number, command) in (1..).zip(commands) {
            let name = format!("replica-{number}");
            let process = Process::start(&name, logs, command)?;
            replicas.push(Replica { name, state: State::Running, process });
        }
        Ok(Fleet { replicas })
    }

    fn replica(&mut self, index: usize) -> Result<&mut Replica, Error> {
        self.replicas.get_mut(index).ok_or_else(|| Error::new("there is no such replica"))
    }

    /// SIGKILL. When this returns the process is gone.
    pub(super) fn kill(&mut self, index: usize) -> Result<(), Error> {
        let replica = self.replica(index)?;
        replica.state = State::Killed;
        replica.process.kill()
    }

    /// SIGSTOP. When this returns the process stands still.
    pub(super) fn freeze(&mut self, index: usize) -> Result<(), Error> {
        let replica = self.replica(index)?;
        replica.state = State::Frozen;
        replica.process.pause()
    }

    /// SIGCONT.
    pub(super) fn wake(&mut self, index: usize) -> Result<(), Error> {
        let replica = self.replica(index)?;
        replica.state = State::Running;
        replica.process.resume()
    }

    /// An error if a replica has ended that nobody killed.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        for replica in self.replicas.iter_mut().filter(|replica| replica.state != State::Killed) {
            if let Some(status) = replica.process.exit_status()? {
                return Err(replica.complaint(&format!("ended by itself ({status})")));
            }
        }
        Ok(())
    }

    /// SIGTERM to all that run, and waits for their end.
    pub(super) async fn stop(&mut self) -> Result<LastWords, Error> {
        let mut running: Vec<&mut Replica> =
            self.replicas.iter_mut().filter(|replica| replica.state == State::Running).collect();
        for replica in &mut running {
            replica.process.terminate()?;
        }
        let mut words = LastWords::default();
        for replica in running {
            replica.state = State::Killed;
            let status = replica.process.wait(STOP_WITHIN).await?;
            if !status.success() {
                return Err(replica.complaint(&format!("did not stop in order ({status})")));
            }
            words.repeated += replica.repeated();
        }
        Ok(words)
    }
}

impl Replica {
    /// From the counters that a replica logs last.
    fn repeated(&self) -> u64 {
        let lines = self.process.lines_with("counts since the start");
        let last: Option<Value> = lines.last().and_then(|line| serde_json::from_str(line).ok());
        last.and_then(|line| line.pointer("/fields/repeated")?.as_u64()).unwrap_or_default()
    }

    fn complaint(&self, what: &str) -> Error {
        Error::new(format!("{} {what}; the end of its log:\n{}", self.name, last_lines(self.process.stderr())))
    }
}

/// `pgbaton run` for the replica of this number, with the sink as its section says.
pub(super) fn pgbaton(number: usize, folder: &Path, dsn: &str, sink: &str) -> Result<Command, Error> {
    let path = folder.join(format!("replica-{number}.toml"));
    let text = format!(
        "name = \"replica-{number}\"\n[database]\ndsn = {}\n[log]\nformat = \"json\"\n[http]\nlisten = \"off\"\n[relays.orders]\nsink = {sink}\n",
        toml_text(dsn)
    );
    std::fs::write(&path, text).map_err(|cause| Error::because(format!("writing {}", path.display()), &cause))?;
    let mut command = executable()?;
    command.arg("run").arg("--config").arg(&path).current_dir(folder);
    Ok(command)
}

/// The real executable, without this process's own settings for it.
pub(super) fn executable() -> Result<Command, Error> {
    let mut command = Command::new(process::executable("pgbaton")?);
    command.env_remove("PGBATON_DSN").env_remove("PGBATON_CONFIG").env_remove("PGBATON_FAULT").env_remove("RUST_LOG");
    Ok(command)
}
