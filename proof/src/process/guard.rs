//! A watcher that cleans up after this process, however it ends.
//!
//! `Drop` does not run for statics, after `abort` or after SIGKILL. So each server and each child gets
//! a small shell that waits on a pipe which only this process holds open. When this process is gone the
//! kernel closes the pipe, the shell's `read` meets the end of its input, and it carries out its script.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::Error;

/// Runs a shell script when this process ends without having called [`Guard::release`].
///
/// Dropping a guard releases it: whoever holds one cleans up by other means first. Only a guard that
/// is never dropped, because the process died or the guard sits in a static, carries out its script.
#[derive(Debug)]
pub struct Guard {
    shell: Child,
}

impl Guard {
    /// Starts the watcher. `script` is POSIX shell and finds `argument` as `$1`.
    ///
    /// The shell has a process group of its own, so neither Ctrl-C at the terminal nor a kill of this
    /// process's group takes it along, and it holds none of this process's output open.
    pub fn new(script: &str, argument: impl AsRef<OsStr>) -> Result<Guard, Error> {
        // A line read means "released"; the end of the input means "the holder is gone".
        let whole = format!("trap '' HUP INT TERM; read -r _ && exit 0\n{script}");
        let shell = Command::new("/bin/sh")
            .arg("-c")
            .arg(whole)
            .arg("pgbaton-guard")
            .arg(argument)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|cause| Error::because("starting a guard shell", &cause))?;
        Ok(Guard { shell })
    }

    /// Tells the watcher that nothing is left to clean up, and reaps it.
    pub fn release(self) {
        drop(self);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.shell.stdin.take() {
            // Fails only if the shell is gone already, and then there is nothing to tell it.
            let _ = pipe.write_all(b"\n");
        }
        let _ = self.shell.wait();
    }
}
