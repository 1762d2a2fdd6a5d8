//! A relay inside a program of its own, with a sink of its own: `cargo run -p pgbaton --example embed -- "$DSN"`.
//!
//! `DSN` is that of the relay's role, on a database that `pgbaton migrate` and `pgbaton grants` have prepared. Messages of
//! the relay `orders` come out on standard output, one a line, until SIGINT or SIGTERM. Start it twice: the two share the
//! lanes.

use pgbaton::clock::Deadline;
use pgbaton::lane::Grant;
use pgbaton::outcome::{AppendError, Code, Fault, Meaning, Outcome};
use pgbaton::relay::RelaySpec;
use pgbaton::replica::{Replica, ReplicaSpec};
use pgbaton::sink::{Capabilities, OpenError, OpenLane, Opening, Part, ProbeError, Sink, Tier, async_trait};
use pgbaton::source::Opaque;
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{SignalKind, signal};

/// What can go wrong, and what that means: one `Code` for each kind of error.
static UNWRITTEN: Code = Code {
    name: "lines.unwritten",
    meaning: Meaning::Down,
    says: "Standard output cannot be written",
    todo: "Look at whoever reads it",
};

/// The destination, and each of its lanes: it refuses no epoch and keeps no position.
struct Lines;

#[async_trait]
impl Sink for Lines {
    async fn probe(&self) -> Result<Capabilities, ProbeError> {
        Ok(Capabilities::plain(Tier::T5)) // at least once: receivers drop repeats by the message's id
    }

    async fn open(&self, _grant: &Grant, _opening: Opening) -> Result<Box<dyn OpenLane>, OpenError> {
        Ok(Box::new(Lines)) // a sink with connections opens one here
    }
}

#[async_trait]
impl OpenLane for Lines {
    async fn position(&mut self) -> Result<Option<Opaque>, Fault> {
        Ok(None)
    }

    async fn append(&mut self, part: &Part<'_>, deadline: &Deadline) -> Result<Vec<Outcome>, AppendError> {
        let line = |m: pgbaton::message::Message<'_>| format!("{} {} {}\n", m.topic, m.key.unwrap_or("-"), m.id);
        let lines: String = part.messages().map(line).collect();
        deadline.check()?; // right before each write: whoever has lost the lane writes nothing
        let written = async {
            let mut out = tokio::io::stdout();
            out.write_all(lines.as_bytes()).await?;
            out.flush().await
        };
        // Some of it may have been written.
        written.await.map_err(|error| AppendError::Ambiguous(Fault::new(&UNWRITTEN, &error.to_string())))?;
        Ok(vec![Outcome::Delivered; part.len()])
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dsn = std::env::args().nth(1).ok_or("usage: embed DSN")?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        stop.send_replace(true); // drains: what was handed to the sink finishes, and lanes are given back
    });
    Replica::new(ReplicaSpec::new(&dsn)?.relay(RelaySpec::new("orders", Lines)?)).run(stopped).await?;
    Ok(())
}
