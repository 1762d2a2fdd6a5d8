//! JSON lines into a file or on standard output: at least once (T5).
//!
//! A batch is one write, flushed to disk before it counts as delivered. A file belongs to one replica: nothing locks it,
//! since a frozen owner would hold the lock and stop the take-over. Standard output has no acknowledgement beyond the
//! write.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::{Capabilities, OpenError, OpenLane, Opening, Part, ProbeError, Sink, Tier, jsonline};
use crate::clock::Deadline;
use crate::faults;
use crate::lane::Grant;
use crate::outcome::{AppendError, Fault, Outcome, codes};
use crate::source::Opaque;

/// Where the lines go. All lanes of a process share it.
#[derive(Clone)]
pub struct JsonLines(Arc<Out>);

enum Out {
    Stdout,
    File {
        path: PathBuf,
        /// None until it is first used, and after a failure.
        file: Mutex<Option<File>>,
    },
}

impl JsonLines {
    /// Standard output.
    #[must_use]
    pub fn stdout() -> Self {
        Self(Arc::new(Out::Stdout))
    }

    /// This file, made if it is not there. No other process may write it.
    #[must_use]
    pub fn file(path: PathBuf) -> Self {
        Self(Arc::new(Out::File { path, file: Mutex::new(None) }))
    }
}

impl Out {
    /// A closed standard output is the null device by the time that anybody can look: every message would be lost.
    fn check(&self) -> io::Result<()> {
        if let Self::Stdout = self {
            let out = File::from(io::stdout().as_fd().try_clone_to_owned()?).metadata()?;
            if out.file_type().is_char_device() && out.rdev() == std::fs::metadata("/dev/null")?.rdev() {
                return Err(io::Error::other("it is closed or the null device; `discard` is for that"));
            }
        }
        Ok(())
    }

    /// Opens the file if it is not open.
    fn open(&self) -> io::Result<()> {
        if let Self::File { path, file } = self {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            if file.is_none() {
                *file = Some(open_file(path)?);
            }
        }
        Ok(())
    }

    /// Writes whole lines, or none: a failed write is taken back, a torn one is cut when the file is opened again.
    fn write(&self, lines: &[u8]) -> Written {
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                match out.write_all(lines).and_then(|()| out.flush()) {
                    Ok(()) => Written::Whole,
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Written::Nothing(error),
                    Err(error) => Written::Unsure(error),
                }
            }
            Self::File { path, file } => {
                let mut slot = file.lock().unwrap_or_else(PoisonError::into_inner);
                let opened = slot.take().map_or_else(|| open_file(path), Ok);
                let (mut file, before) = match opened.and_then(|file| Ok((file.metadata()?.len(), file))) {
                    Ok((before, file)) => (file, before),
                    Err(error) => return Written::Nothing(error),
                };
                // One write, but where a fail point has to lie in the middle of a batch.
                let middle = if cfg!(feature = "faults") { lines.len() / 2 } else { lines.len() };
                let (first, rest) = lines.split_at(middle);
                let written = file.write_all(first).and_then(|()| {
                    faults::point("sink.mid_batch");
                    file.write_all(rest)
                });
                let flushed = written.and_then(|()| file.sync_data());
                match flushed {
                    Ok(()) => {
                        *slot = Some(file);
                        Written::Whole
                    }
                    Err(error) if file.set_len(before).is_ok() => Written::Nothing(error),
                    Err(error) => Written::Unsure(error),
                }
            }
        }
    }

    /// What failed, and where.
    fn fault(&self, error: &io::Error) -> Fault {
        Fault::new(&codes::file::FAILED, &format!("{self}: {error}"))
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    cut_torn_line(&mut file)?;
    Ok(file)
}

/// A process that died while it wrote may have left half a line. Its messages do not count as delivered.
fn cut_torn_line(file: &mut File) -> io::Result<()> {
    const STEP: u64 = 64 * 1024;
    let mut end = file.metadata()?.len();
    while end > 0 {
        let start = end.saturating_sub(STEP);
        let mut tail = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        file.take(end - start).read_to_end(&mut tail)?;
        if let Some(at) = tail.iter().rposition(|byte| *byte == b'\n') {
            return cut(file, start + u64::try_from(at).unwrap_or_default() + 1);
        }
        end = start;
    }
    cut(file, 0)
}

/// Cuts what lies from here on, if it is the beginning of a line of ours: the path may be that of somebody else's file.
fn cut(file: &mut File, from: u64) -> io::Result<()> {
    const BEGINS: &[u8] = b"{\"id\":\"";
    let mut torn = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    file.take(BEGINS.len() as u64).read_to_end(&mut torn)?;
    if !BEGINS.starts_with(&torn) {
        return Err(io::Error::other("what follows its last line break is none of this sink's lines; another file?"));
    }
    file.set_len(from)
}

#[async_trait]
impl Sink for JsonLines {
    async fn probe(&self) -> Result<Capabilities, ProbeError> {
        blocking(&self.0, |out| out.check().and_then(|()| out.open())).await.map_err(ProbeError::Unusable)?;
        Ok(Capabilities::plain(Tier::T5))
    }

    async fn open(&self, _grant: &Grant, _opening: Opening) -> Result<Box<dyn OpenLane>, OpenError> {
        blocking(&self.0, Out::open).await.map_err(OpenError::SinkDown)?;
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl OpenLane for JsonLines {
    async fn position(&mut self) -> Result<Option<Opaque>, Fault> {
        Ok(None)
    }

    async fn append(&mut self, part: &Part<'_>, deadline: &Deadline) -> Result<Vec<Outcome>, AppendError> {
        let (lines, outcomes) = lines_of(part)?;
        let deadline = deadline.clone();
        // A dropped call leaves the write to end by itself: a whole batch, or nothing.
        let written = blocking(&self.0, move |out| {
            if deadline.check().is_err() {
                return Ok(Written::LeaseOver);
            }
            faults::point("sink.checked");
            Ok(out.write(&lines))
        });
        match written.await {
            Ok(Written::Whole) => Ok(outcomes),
            Ok(Written::LeaseOver) => Err(AppendError::LeaseOver),
            Ok(Written::Nothing(error)) => Outcome::of_all(self.0.fault(&error), part.len()),
            Ok(Written::Unsure(error)) => Err(AppendError::Ambiguous(self.0.fault(&error))),
            Err(fault) => Err(AppendError::Ambiguous(fault)),
        }
    }
}

/// What came of writing a batch.
enum Written {
    Whole,
    /// And nothing of it.
    LeaseOver,
    /// Nothing of it is there, or is read by anybody.
    Nothing(io::Error),
    /// All of it may be there.
    Unsure(io::Error),
}

/// The lines of those messages that can be written, and what becomes of each. After one that cannot, no later message
/// of its key is written.
///
/// # Errors
/// What the code of such an error means, where that is not about its message.
fn lines_of(part: &Part<'_>) -> Result<(Vec<u8>, Vec<Outcome>), AppendError> {
    // At once: growing would hold old and new space of a large message, and leave holes of all sizes behind.
    let mut lines = Vec::with_capacity(part.messages().map(|message| jsonline::size_hint(&message)).sum());
    let mut outcomes = Vec::with_capacity(part.len());
    let mut held: Vec<&str> = Vec::new();
    for message in part.messages() {
        if message.key.is_some_and(|key| held.contains(&key)) {
            outcomes.push(Outcome::NotTried);
            continue;
        }
        outcomes.push(match jsonline::write(&mut lines, &message) {
            Ok(()) => Outcome::Delivered,
            Err(error) => {
                held.extend(message.key);
                Outcome::of(Fault::new(&codes::file::NOT_JSON, &error.to_string()), None)?
            }
        });
    }
    Ok((lines, outcomes))
}

/// Runs blocking work on the output beside the tasks, so that a full pipe or a slow disk stops none of them.
async fn blocking<T: Send + 'static>(
    out: &Arc<Out>,
    work: impl FnOnce(&Out) -> io::Result<T> + Send + 'static,
) -> Result<T, Fault> {
    let shared = Arc::clone(out);
    let result = tokio::task::spawn_blocking(move || work(&shared)).await.map_err(io::Error::other).flatten();
    result.map_err(|error| out.fault(&error))
}

/// Names it for whoever has to look after it.
impl fmt::Display for Out {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("standard output"),
            Self::File { path, .. } => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_is_cut_when_the_file_is_opened() {
        let path = std::env::temp_dir().join(format!("pgbaton-torn-{}", std::process::id()));
        let torn = r#"{"id":"01a2"#;
        let long = format!("a\n{torn}{}", "x".repeat(200_000));
        let whole = format!("a\nb\n{torn}");
        for (before, after) in
            [(whole.as_str(), "a\nb\n"), ("a\n", "a\n"), (torn, ""), ("{\"i", ""), ("", ""), (long.as_str(), "a\n")]
        {
            std::fs::write(&path, before).unwrap();
            drop(open_file(&path).unwrap());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), after);
        }
        std::fs::remove_file(&path).unwrap();
    }

    /// The path was mistyped.
    #[test]
    fn what_is_not_ours_is_not_cut() {
        let path = std::env::temp_dir().join(format!("pgbaton-other-{}", std::process::id()));
        for content in ["no line break", "one line\nhalf of another"] {
            std::fs::write(&path, content).unwrap();
            assert!(open_file(&path).is_err());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
