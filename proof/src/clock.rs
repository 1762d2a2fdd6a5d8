//! A wall clock that steps when a test says so, for one server or one process: libfaketime, led by a file.
//!
//! Clocks that count durations are left alone: without that, libfaketime shifts the monotonic and the boot-time clock as well,
//! and nothing that a relay promises would hold.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// The clock. Its file goes with it.
#[derive(Debug)]
pub struct Clock {
    file: PathBuf,
    library: String,
}

impl Clock {
    /// A clock that is right so far. Its file is the given one, which every account must be able to read.
    ///
    /// # Errors
    /// A machine without `faketime`.
    pub fn new(file: &Path) -> Result<Clock, Error> {
        let clock = Clock { file: file.to_owned(), library: library()? };
        clock.set("+0")?;
        Ok(clock)
    }

    /// An offset, such as `+3h`. The next look at the time sees it, or the one after [`Clock::environment`]'s `cached`.
    pub fn set(&self, offset: &str) -> Result<(), Error> {
        // Whoever reads meanwhile finds a whole file.
        let new = self.file.with_extension("new");
        fs::write(&new, offset)
            .and_then(|()| fs::rename(&new, &self.file))
            .map_err(|cause| Error::because(format!("writing {}", self.file.display()), &cause))
    }

    /// What makes a process follow this clock. It reads the file at each look at the time, or, with `cached`, once a second,
    /// which costs next to nothing.
    pub fn environment(&self, cached: bool) -> Vec<(String, String)> {
        let file = self.file.to_string_lossy().into_owned();
        let cache = if cached { ("FAKETIME_CACHE_DURATION", "1") } else { ("FAKETIME_NO_CACHE", "1") };
        [
            ("LD_PRELOAD", self.library.as_str()),
            ("FAKETIME_TIMESTAMP_FILE", &file),
            cache,
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// Removes what processes that were killed under a clock of their own have left behind: it is named by the process, and the next
/// one of that number would not start.
fn sweep() {
    let Ok(left) = fs::read_dir("/dev/shm") else { return };
    for entry in left.flatten() {
        let name = entry.file_name();
        let of = name.to_str().and_then(|name| {
            name.strip_prefix("faketime_shm_").or_else(|| name.strip_prefix("sem.faketime_sem_"))?.parse::<u32>().ok()
        });
        if of.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            // Another test may have been quicker, or it is another user's.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Where the library is, as `faketime` itself has it.
fn library() -> Result<String, Error> {
    sweep();
    let asked = Command::new("faketime").args(["-f", "+0", "printenv", "LD_PRELOAD"]).output();
    let asked = asked.map_err(|cause| Error::because("running faketime, which ./dev test installs", &cause))?;
    let library = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
    if library.is_empty() { Err(Error::new("faketime names no library")) } else { Ok(library) }
}
