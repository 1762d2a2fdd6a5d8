//! Where the orders arrive: counted roughly while the demo runs, and read whole at its end.

use std::collections::HashSet;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_postgres::Client;

use crate::Error;
use crate::writers::Arrival;

/// One arrival with its time by this machine's clock.
pub(super) struct Landed {
    pub(super) arrival: Arrival,
    pub(super) at: SystemTime,
}

/// The place.
pub(super) enum Destination {
    Table { client: Client, table: Table },
    File(Tail),
}

/// The inbox of one of the relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    /// Of the `postgres` sink.
    Inbox,
    /// Of the classic relay, without a unique key.
    Classic,
}

/// Everything that arrived.
pub(super) struct Everything {
    /// In the order of arrival.
    pub(super) landed: Vec<Landed>,
    /// Numbers that the inbox gave to rows it did not keep: repeats that it dropped, and inserts that were rolled
    /// back. It counts those of a killed replica, too, which cannot say any more what was repeated.
    pub(super) numbers_unused: u64,
}

impl Table {
    const fn name(self) -> &'static str {
        match self {
            Table::Inbox => "inbox.orders",
            Table::Classic => "public.classic_inbox",
        }
    }

    const fn payload(self) -> &'static str {
        match self {
            Table::Inbox => "payload_json",
            Table::Classic => "payload",
        }
    }
}

impl Destination {
    /// How many arrivals there were, repeats included. Costs next to nothing.
    pub(super) async fn arrived(&mut self) -> Result<u64, Error> {
        match self {
            Destination::Table { client, table } => {
                let sql = format!("select coalesce(pg_sequence_last_value('{}_seq_seq'), 0)", table.name());
                number(client, &sql).await
            }
            Destination::File(tail) => {
                tail.read_on()?;
                Ok(tail.landed.len() as u64)
            }
        }
    }

    /// How many different messages have arrived.
    pub(super) async fn distinct(&mut self) -> Result<u64, Error> {
        match self {
            Destination::Table { client, table } => {
                number(client, &format!("select count(distinct message_id) from {}", table.name())).await
            }
            Destination::File(tail) => {
                tail.read_on()?;
                let ids: HashSet<&str> = tail.landed.iter().map(|one| one.arrival.message_id.as_str()).collect();
                Ok(ids.len() as u64)
            }
        }
    }

    /// Reads it whole.
    pub(super) async fn everything(mut self) -> Result<Everything, Error> {
        let arrived = self.arrived().await?;
        let landed = match self {
            Destination::Table { client, table } => read_table(&client, table).await?,
            Destination::File(tail) => tail.landed,
        };
        let numbers_unused = arrived.saturating_sub(landed.len() as u64);
        Ok(Everything { landed, numbers_unused })
    }
}

async fn number(client: &Client, sql: &str) -> Result<u64, Error> {
    let failed = |cause| Error::because("counting what arrived", &cause);
    let number: i64 = client.query_one(sql, &[]).await.map_err(failed)?.try_get(0).map_err(failed)?;
    Ok(number.unsigned_abs())
}

/// `seq` is the order in which rows came in.
async fn read_table(client: &Client, table: Table) -> Result<Vec<Landed>, Error> {
    let failed = |cause| Error::because("reading the inbox", &cause);
    let ahead = clock_ahead(client).await?;
    let sql = format!("select message_id, {}::text, received_at from {} order by seq", table.payload(), table.name());
    let mut landed = Vec::new();
    for row in client.query(&sql, &[]).await.map_err(failed)? {
        let arrival = Arrival { message_id: row.try_get(0).map_err(failed)?, payload: row.try_get(1).map_err(failed)? };
        let received: SystemTime = row.try_get(2).map_err(failed)?;
        landed.push(Landed { arrival, at: ahead.to_ours(received) });
    }
    Ok(landed)
}

/// How far the server's clock is from ours: nothing where both are one machine's.
enum Ahead {
    Server(Duration),
    Us(Duration),
}

impl Ahead {
    fn to_ours(&self, theirs: SystemTime) -> SystemTime {
        match self {
            Ahead::Server(by) => theirs - *by,
            Ahead::Us(by) => theirs + *by,
        }
    }
}

async fn clock_ahead(client: &Client) -> Result<Ahead, Error> {
    let failed = |cause| Error::because("reading the server's clock", &cause);
    let asked = SystemTime::now();
    let theirs: SystemTime =
        client.query_one("select clock_timestamp()", &[]).await.map_err(failed)?.try_get(0).map_err(failed)?;
    let ours = asked + asked.elapsed().unwrap_or_default() / 2;
    Ok(match theirs.duration_since(ours) {
        Ok(by) => Ahead::Server(by),
        Err(behind) => Ahead::Us(behind.duration()),
    })
}

/// Follows the file of the `file` sink. The time of a line is that of the look which found it.
pub(super) struct Tail {
    path: PathBuf,
    file: Option<File>,
    /// The start of a line whose end is not there yet.
    begun: Vec<u8>,
    landed: Vec<Landed>,
}

/// What counts of a line.
#[derive(Deserialize)]
struct Line<'a> {
    id: String,
    #[serde(borrow)]
    json: &'a RawValue,
}

impl Tail {
    pub(super) fn new(path: PathBuf) -> Tail {
        Tail { path, file: None, begun: Vec::new(), landed: Vec::new() }
    }

    fn read_on(&mut self) -> Result<(), Error> {
        let failed = |cause| Error::because("reading the sink's file", &cause);
        if self.file.is_none() {
            match File::open(&self.path) {
                Ok(file) => self.file = Some(file),
                Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
                Err(cause) => return Err(failed(cause)),
            }
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        file.read_to_end(&mut self.begun).map_err(failed)?;
        let whole = self.begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let at = SystemTime::now();
        let lines: Vec<u8> = self.begun.drain(..whole).collect();
        // Half a line that a killed replica left is no message: the next owner writes it again.
        let parsed =
            lines.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Line<'_>>(line).ok());
        self.landed.extend(parsed.map(|line| {
            let arrival = Arrival { message_id: line.id, payload: line.json.get().to_owned() };
            Landed { arrival, at }
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_is_no_arrival_and_a_growing_one_is_waited_for() {
        let path = std::env::temp_dir().join(format!("pgbaton-tail-{}", std::process::id()));
        let mut tail = Tail::new(path.clone());
        tail.read_on().unwrap();
        std::fs::write(&path, "{\"id\":\"a\",\"js\n{\"id\":\"b\",\"json\":{\"n\": 1}}\n{\"id\":\"c\",").unwrap();
        tail.read_on().unwrap();
        let text = std::fs::read_to_string(&path).unwrap() + "\"json\":2}\n";
        std::fs::write(&path, text).unwrap();
        tail.read_on().unwrap();
        std::fs::remove_file(&path).unwrap();
        let seen: Vec<(&str, &str)> = tail
            .landed
            .iter()
            .map(|landed| (landed.arrival.message_id.as_str(), landed.arrival.payload.as_str()))
            .collect();
        assert_eq!(seen, [("b", "{\"n\": 1}"), ("c", "2")]);
    }
}
