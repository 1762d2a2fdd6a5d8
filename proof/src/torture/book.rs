//! A file of the run's history, written to by the tasks of this process: each event is one write at the file's end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use checker::history::{Event, Nanos, Record};

use crate::Error;

/// Nanoseconds of the boot-time clock.
pub fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or_default()
}

/// How many lines a book has.
#[derive(Clone)]
pub struct Count {
    name: String,
    lines: Arc<AtomicU64>,
}

/// The end of a run, told by the file `last`, whose last line it is: so many lines do all of these have then.
pub fn end(last: &Book, others: &[Count]) -> Event {
    let count = |count: &Count| (count.name.clone(), count.lines.load(Ordering::Relaxed));
    let mut lines: BTreeMap<String, u64> = others.iter().map(count).collect();
    let (name, so_far) = count(&last.count());
    lines.insert(name, so_far + 1);
    Event::End { lines }
}

/// One file, `NAME.history`.
pub struct Book {
    name: String,
    file: File,
    /// Lines that are written.
    lines: Arc<AtomicU64>,
    /// The first failure to write: from then on the history has a hole, and the run shows nothing.
    torn: Mutex<Option<String>>,
}

impl Book {
    /// Begins it.
    pub fn open(folder: &Path, name: &str) -> Result<Book, Error> {
        let path = folder.join(format!("{name}.history"));
        let opened = File::options().create(true).append(true).open(&path);
        let file = opened.map_err(|cause| Error::because(format!("opening {}", path.display()), &cause))?;
        Ok(Book { name: name.to_owned(), file, lines: Arc::default(), torn: Mutex::new(None) })
    }

    /// How many lines it has, for whoever tells the end of the run.
    pub fn count(&self) -> Count {
        Count { name: self.name.clone(), lines: Arc::clone(&self.lines) }
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
        (&self.file).write_all(&line).map_err(|cause| cause.to_string())?;
        self.lines.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether all that was told is written.
    pub fn whole(&self) -> Result<(), Error> {
        match &*self.torn.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(why) => Err(Error::new(format!("a history has a hole, so that nothing is shown: {why}"))),
        }
    }
}
