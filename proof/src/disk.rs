//! A small file system of one server's own, in memory, that can be full.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::process::Guard;

/// Waits until the server's own guard has stopped it and removed its folder.
const UNMOUNT: &str = r#"
tries=150
while [ "$tries" -gt 0 ] && ls -d "$1"/pgbaton-* >/dev/null 2>&1; do
    sleep 0.1
    tries=$((tries - 1))
done
umount -l "$1"
rmdir "$1"
"#;

/// The file system; unmounted when this is dropped, or, by a guard, when this process dies.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    megabytes: u32,
    guard: Option<Guard>,
}

impl Disk {
    /// Mounts one at this path, which must not exist.
    ///
    /// # Errors
    /// Without root, and in a container that may not mount.
    pub fn mount(path: &Path, megabytes: u32) -> Result<Disk, Error> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::new("a small file system is mounted to be filled, which takes root"));
        }
        fs::create_dir(path).map_err(|cause| Error::because(format!("creating {}", path.display()), &cause))?;
        let mut disk = Disk { path: path.to_owned(), megabytes, guard: None };
        let options = format!("size={megabytes}m,mode=0755");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "pgbaton"]).arg(path)).map_err(|cause| {
            Error::because("a small file system to be filled; a container needs CAP_SYS_ADMIN for that", &cause)
        })?;
        disk.guard = Some(Guard::new(UNMOUNT, path)?);
        Ok(disk)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From now on nothing more fits: it is made as small as what it holds, so that being full takes no memory.
    pub fn fill(&self) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            let filled = self.used().and_then(|used| self.resize(&used.to_string()));
            tries += 1;
            // What was written since the look does not fit into the size.
            if filled.is_ok() || tries == 50 {
                return filled;
            }
        }
    }

    /// There is room again.
    pub fn free(&self) -> Result<(), Error> {
        self.resize(&format!("{}m", self.megabytes))
    }

    /// Bytes in use.
    pub fn used(&self) -> Result<u64, Error> {
        let found = rustix::fs::statvfs(&self.path);
        let found = found.map_err(|cause| Error::because(format!("looking at {}", self.path.display()), &cause))?;
        Ok(found.f_blocks.saturating_sub(found.f_bfree) * found.f_frsize)
    }

    fn resize(&self, size: &str) -> Result<(), Error> {
        run(Command::new("mount").args(["-o", &format!("remount,size={size}")]).arg(&self.path))
    }
}

fn run(command: &mut Command) -> Result<(), Error> {
    let output = command.output().map_err(|cause| Error::because("running mount", &cause))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::new(format!("mount: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.path).output();
        let removed = fs::remove_dir(&self.path);
        if unmounted.is_ok_and(|output| output.status.success())
            && removed.is_ok()
            && let Some(guard) = self.guard.take()
        {
            guard.release();
        }
    }
}
