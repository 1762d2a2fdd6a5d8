//! Building and running single tests of a copy of the project.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::Error;
use crate::process::POLL;

/// How a test ended.
pub(super) enum Ran {
    Passed,
    /// With what it said.
    Failed(String),
    Hung,
    NoTest,
    /// With what the compiler said.
    DoesNotBuild(String),
}

/// Cargo in a folder, with builds of its own.
pub(super) struct Cargo {
    folder: PathBuf,
    target: PathBuf,
}

/// A build of everything on a busy machine.
const BUILD_WITHIN: Duration = Duration::from_secs(1_800);

impl Cargo {
    pub(super) fn new(folder: &Path, target: &Path) -> Cargo {
        let target = std::path::absolute(target).unwrap_or_else(|_| target.to_owned());
        Cargo { folder: folder.to_owned(), target }
    }

    /// Builds and runs the tests of this name or beginning. Those of `proof` may start the relay's executable: one of an
    /// earlier mutant would fail for what that one broke.
    pub(super) fn test(&self, package: &str, test: &str, within: Duration) -> Result<Ran, Error> {
        let of_proof = package == "proof";
        let place: &[&str] = if of_proof { &["--test", "it"] } else { &["--lib"] };
        let mut selection = vec!["--locked", "--all-features", "-p", package];
        if of_proof {
            // Together with the test, so that both are built with the same features of everything.
            selection.extend(["-p", "pgbaton-cli"]);
            let built = self.cargo("build", &[&selection, place, &["--bin", "pgbaton"]].concat(), BUILD_WITHIN)?;
            if !built.success() {
                return Ok(Ran::DoesNotBuild(self.said()));
            }
        }
        let built = self.cargo("test", &[&selection, place, &["--no-run"]].concat(), BUILD_WITHIN)?;
        if !built.success() {
            return Ok(Ran::DoesNotBuild(self.said()));
        }
        let ran = self.cargo("test", &[&selection, place, &["--", test]].concat(), within)?;
        let said = self.said();
        Ok(match ran {
            Ended::InTime(_) if said.contains("running 0 tests") => Ran::NoTest,
            Ended::InTime(status) if status.success() => Ran::Passed,
            Ended::InTime(_) => Ran::Failed(reason(&said)),
            Ended::TooLate => Ran::Hung,
        })
    }

    fn log(&self) -> PathBuf {
        self.target.join("mutants.log")
    }

    fn said(&self) -> String {
        fs::read(self.log()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    fn cargo(&self, verb: &str, arguments: &[&str], within: Duration) -> Result<Ended, Error> {
        let failed = |cause: std::io::Error| Error::because("running cargo", &cause);
        fs::create_dir_all(&self.target).map_err(failed)?;
        let log = File::create(self.log()).map_err(failed)?;
        let mut child = Command::new("cargo")
            .arg(verb)
            .args(arguments)
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", &self.target)
            .env_remove("PGBATON_BIN")
            .env("RUST_BACKTRACE", "0")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            .spawn()
            .map_err(failed)?;
        let ended = wait(&mut child, within).map_err(failed)?;
        if matches!(ended, Ended::TooLate) {
            // The test itself is a child of cargo's, in the same group.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            child.wait().map_err(failed)?;
        }
        Ok(ended)
    }
}

enum Ended {
    InTime(ExitStatus),
    TooLate,
}

impl Ended {
    fn success(&self) -> bool {
        matches!(self, Ended::InTime(status) if status.success())
    }
}

fn wait(child: &mut Child, within: Duration) -> std::io::Result<Ended> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended::InTime(status));
        }
        if Instant::now() >= deadline {
            return Ok(Ended::TooLate);
        }
        std::thread::sleep(POLL);
    }
}

/// The lines that say why a test failed, for whoever wants to see that it failed for the right reason.
fn reason(said: &str) -> String {
    let from = said.find("panicked at").unwrap_or_default();
    said.get(from..).unwrap_or_default().lines().take(6).map(|line| format!("    {line:.300}\n")).collect()
}
