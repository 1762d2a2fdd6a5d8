//! JSON lines into a file or on standard output: at least once (T5).
//!
//! The file is opened for append and flushed to disk before a batch counts as delivered. It is not locked: a frozen owner
//! would hold the lock and stop the take-over. So replicas that write one file repeat what was in flight at a kill, each
//! message under its id. Standard output has no acknowledgement beyond the write.

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
use crate::outcome::{AppendError, Fault, Outcome};
use crate::source::Opaque;

/// Where the lines go.
#[derive(Debug, Clone)]
pub enum JsonLines {
    /// Standard output of this process.
    Stdout(Arc<Mutex<tokio::io::Stdout>>),
    /// This file, made if it is not there.
    File(PathBuf),
}

impl JsonLines {
    /// Standard output.
    #[must_use]
    pub fn stdout() -> Self {
        Self::Stdout(Arc::new(Mutex::new(tokio::io::stdout())))
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
                Out::File(Self::open_file(path).await.map_err(|error| OpenError::SinkDown(failed(&error)))?)
            }
        };
        Ok(Box::new(OpenLines { out, lines: Vec::new() }))
    }
}

enum Out {
    Stdout(Arc<Mutex<tokio::io::Stdout>>),
    File(File),
}

/// One lane's hold on the output.
struct OpenLines {
    out: Out,
    lines: Vec<u8>,
}

#[async_trait]
impl OpenLane for OpenLines {
    async fn position(&mut self) -> Result<Option<Opaque>, Fault> {
        Ok(None)
    }

    /// The lines of a batch go out in one write, so that those of several lanes and replicas do not mix.
    async fn append(&mut self, part: &Part<'_>, deadline: &Deadline) -> Result<Vec<Outcome>, AppendError> {
        self.lines.clear();
        let mut outcomes = Vec::with_capacity(part.len());
        for message in part.messages() {
            outcomes.push(match jsonline::write(&mut self.lines, &message) {
                Ok(()) => Outcome::Delivered,
                Err(error) => Outcome::Rejected(Fault::new("file.not_json", &error.to_string())),
            });
        }
        let result = match &mut self.out {
            Out::Stdout(out) => {
                let mut out = out.lock().await;
                deadline.check().map_err(|_| AppendError::LeaseOver)?;
                faults::point("sink.checked");
                match out.write_all(&self.lines).await {
                    Ok(()) => out.flush().await,
                    Err(error) => Err(error),
                }
            }
            Out::File(file) => {
                deadline.check().map_err(|_| AppendError::LeaseOver)?;
                faults::point("sink.checked");
                match file.write_all(&self.lines).await {
                    Ok(()) => file.sync_data().await,
                    Err(error) => Err(error),
                }
            }
        };
        match result {
            Ok(()) => Ok(outcomes),
            Err(error) => Err(AppendError::Ambiguous(failed(&error))),
        }
    }
}

fn failed(error: &std::io::Error) -> Fault {
    Fault::new("file.failed", &error.to_string())
}
