//! JSON lines into a file or on standard output: at least once (T5).
//!
//! The file is opened for append and flushed to disk before a batch counts as delivered. It is not locked: a frozen owner
//! would hold the lock and stop the take-over. So replicas that write one file repeat what was in flight at a kill, each
//! message under its id. Standard output has no acknowledgement beyond the write.

use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt, SeekFrom};
use tokio::sync::Mutex;

use super::{Capabilities, OpenError, OpenLane, Opening, Part, ProbeError, Sink, Tier, jsonline};
use crate::clock::Deadline;
use crate::faults;
use crate::lane::Grant;
use crate::message::Message;
use crate::outcome::{AppendError, Fault, Outcome};
use crate::source::Opaque;

/// Where the lines go.
#[derive(Debug, Clone)]
pub enum JsonLines {
    /// Standard output of this process, one batch at a time.
    Stdout(Arc<Mutex<()>>),
    /// This file, made if it is not there.
    File(PathBuf),
}

impl JsonLines {
    /// Standard output.
    #[must_use]
    pub fn stdout() -> Self {
        Self::Stdout(Arc::default())
    }

    async fn open_file(path: &PathBuf) -> std::io::Result<File> {
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path).await?;
        end_torn_line(&mut file).await?;
        Ok(file)
    }
}

/// A process that died while it wrote may have left half a line: the next one must not be glued to it.
async fn end_torn_line(file: &mut File) -> std::io::Result<()> {
    if file.metadata().await?.len() == 0 {
        return Ok(());
    }
    file.seek(SeekFrom::End(-1)).await?;
    if file.read_u8().await? != b'\n' {
        file.write_all(b"\n").await?;
        file.flush().await?;
    }
    Ok(())
}

#[async_trait]
impl Sink for JsonLines {
    async fn probe(&self) -> Result<Capabilities, ProbeError> {
        if let Self::File(path) = self {
            Self::open_file(path).await.map_err(|error| ProbeError::Unusable(failed(&error)))?;
        }
        Ok(Capabilities {
            tier: Tier::T5,
            fences: false,
            keeps_position: false,
            max_message_bytes: None,
            max_batch_messages: None,
            max_batch_bytes: None,
            dedupe_window: None,
        })
    }

    async fn open(&self, _grant: &Grant, _opening: Opening) -> Result<Box<dyn OpenLane>, OpenError> {
        let out = match self {
            Self::Stdout(out) => Out::Stdout(Arc::clone(out)),
            Self::File(path) => {
                let file = Self::open_file(path).await.map_err(|error| OpenError::SinkDown(failed(&error)))?;
                Out::File(Arc::new(file.into_std().await))
            }
        };
        Ok(Box::new(OpenLines { out, lines: Vec::new() }))
    }
}

#[derive(Clone)]
enum Out {
    Stdout(Arc<Mutex<()>>),
    File(Arc<std::fs::File>),
}

/// One lane's hold on the output.
struct OpenLines {
    out: Out,
    /// Kept between batches for its room.
    lines: Vec<u8>,
}

#[async_trait]
impl OpenLane for OpenLines {
    async fn position(&mut self) -> Result<Option<Opaque>, Fault> {
        Ok(None)
    }

    /// The lines of a batch go out in one write, so that those of several lanes and replicas do not mix. It is not torn
    /// either when nobody waits for it any more: it then goes on alone.
    async fn append(&mut self, part: &Part<'_>, deadline: &Deadline) -> Result<Vec<Outcome>, AppendError> {
        let mut lines = std::mem::take(&mut self.lines);
        lines.clear();
        let outcomes = write_lines(&mut lines, part);
        let (out, deadline) = (self.out.clone(), deadline.clone());
        // One batch at a time on standard output, waiting here rather than in a thread.
        let turn = match &out {
            Out::Stdout(turns) => Some(Arc::clone(turns).lock_owned().await),
            Out::File(_) => None,
        };
        let write = move || {
            let _turn = turn;
            let checked = deadline.check();
            faults::point("sink.checked");
            (checked.map(|_| out.write(&lines)), lines)
        };
        let (answer, lines) = tokio::task::spawn_blocking(write)
            .await
            .map_err(|error| AppendError::Ambiguous(Fault::new("file.failed", &error.to_string())))?;
        self.lines = lines;
        match answer {
            Ok(Ok(())) => Ok(outcomes),
            Ok(Err(error)) => Err(AppendError::Ambiguous(failed(&error))),
            Err(_) => Err(AppendError::LeaseOver),
        }
    }
}

impl Out {
    fn write(&self, lines: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Stdout(_) => {
                let mut out = std::io::stdout().lock();
                out.write_all(lines)?;
                out.flush()
            }
            Self::File(file) => {
                file.as_ref().write_all(lines)?;
                file.sync_data()
            }
        }
    }
}

/// A message that is no JSON is left out, and so are those of its key behind it.
fn write_lines(lines: &mut Vec<u8>, part: &Part<'_>) -> Vec<Outcome> {
    let mut waiting = HashSet::new();
    let mut outcomes = Vec::with_capacity(part.len());
    for message in part.messages() {
        if message.key.is_some_and(|key| waiting.contains(key)) {
            let fault = Fault::new("file.waits", "an earlier message of its key was not written");
            outcomes.push(Outcome::Retry { after: None, fault });
            continue;
        }
        outcomes.push(match jsonline::write(lines, &message) {
            Ok(()) => Outcome::Delivered,
            Err(error) => {
                waiting.extend(message.key);
                Outcome::Rejected(Fault::new("file.not_json", &error.to_string()))
            }
        });
    }
    outcomes
}

/// One message as its line, with the line break.
///
/// # Errors
/// Headers or a payload that are no JSON.
pub fn json_line(message: &Message<'_>) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = Vec::new();
    jsonline::write(&mut line, message)?;
    Ok(line)
}

fn failed(error: &std::io::Error) -> Fault {
    Fault::new("file.failed", &error.to_string())
}
