//! A file of the run's history, written to by the tasks of this process: each event is one write at the file's end.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use checker::history::{Event, Nanos, Record};

use crate::Error;

/// Nanoseconds of the boot-time clock.
pub fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or_default()
}

/// One file, `NAME.history`.
pub struct Book {
    file: File,
    /// The first failure to write: from then on the history has a hole, and the run shows nothing.
    torn: Mutex<Option<String>>,
}

impl Book {
    /// Begins it.
    pub fn open(folder: &Path, name: &str) -> Result<Book, Error> {
        let path = folder.join(format!("{name}.history"));
        let opened = File::options().create(true).append(true).open(&path);
        let file = opened.map_err(|cause| Error::because(format!("opening {}", path.display()), &cause))?;
        Ok(Book { file, torn: Mutex::new(None) })
    }

    /// Tells what has just happened. Returns once it is with the system.
    pub fn tell(&self, event: Event) {
        if let Err(failed) = self.write(event) {
            self.torn.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failed);
        }
    }

    fn write(&self, event: Event) -> Result<(), String> {
        let mut line = serde_json::to_vec(&Record { t: now(), event }).map_err(|cause| cause.to_string())?;
        line.push(b'\n');
        (&self.file).write_all(&line).map_err(|cause| cause.to_string())
    }

    /// Whether all that was told is written.
    pub fn whole(&self) -> Result<(), Error> {
        match &*self.torn.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(why) => Err(Error::new(format!("a history has a hole, so that nothing is shown: {why}"))),
        }
    }
}
