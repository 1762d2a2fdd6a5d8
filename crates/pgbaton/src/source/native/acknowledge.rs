//! Writing how far lanes have been dealt with.

use std::sync::atomic::Ordering;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::{NativeSource, stored};
use crate::connection::{Connection, Parameter, incarnation};
use crate::error::{Error, Kind};
use crate::history;
use crate::position::{Incarnation, Position, Xid};
use crate::source::batch::{Aside, AsideRow};
use crate::source::flush;
use crate::source::parked::Attempts;
use crate::source::{Acknowledged, Dealt};
use crate::sql;

/// The columns of the rows to be written, one entry a lane.
#[derive(Default)]
struct Columns {
    lanes: Vec<i32>,
    epochs: Vec<i64>,
    seqs: Vec<i64>,
    batches: Vec<i64>,
    consumed: Vec<String>,
    floors: Vec<i64>,
    targets: Vec<Option<String>>,
    ceilings: Vec<Option<i64>>,
    lasts: Vec<i64>,
}

impl Columns {
    fn push(&mut self, dealt: &Dealt, seq: i64, position: &Position) {
        self.lanes.push(dealt.grant.lane.number);
        self.epochs.push(dealt.grant.epoch.0);
        self.seqs.push(seq);
        self.batches.push(dealt.batch);
        self.consumed.push(position.consumed().to_string());
        self.floors.push(position.floor());
        self.targets.push(position.target().map(|target| target.snapshot.to_string()));
        self.ceilings.push(position.target().map(|target| target.ceiling));
        self.lasts.push(position.last());
    }
}

/// What follows the statement that writes positions.
enum Then {
    Commit,
    More,
}

impl NativeSource {
    /// Writes positions. All of them belong to one incarnation, or nothing is written. Those with which messages are set aside, or
    /// were tried again, have a transaction each: others need not wait for their rows.
    pub(super) async fn write(&self, done: &[Dealt]) -> Result<Vec<Acknowledged>, Error> {
        let (alone, together): (Vec<&Dealt>, Vec<&Dealt>) = done.iter().partition(|dealt| !dealt.parked.is_empty());
        let mut slot = self.writer.lock().await;
        let connection = slot.take().await?;
        let mut acknowledged = self.write_on(&connection, &together, false).await?;
        for dealt in alone {
            acknowledged.push(self.write_with_parked(&connection, dealt).await?);
        }
        slot.put(connection);
        Ok(acknowledged)
    }

    /// A position, and in the same transaction what becomes of messages that are set aside.
    async fn write_with_parked(&self, connection: &Connection, dealt: &Dealt) -> Result<Acknowledged, Error> {
        let here = &dealt.next.incarnation;
        let mut columns = Columns::default();
        columns.push(dealt, self.next_seq(), &stored(&dealt.next)?.position);
        let locks: [Parameter<'_>; 2] = [(&self.spec.relay.as_str(), Type::TEXT), (&columns.lanes, Type::INT4_ARRAY)];
        let (last_number, sent) = (self.last_number(here), history::now());
        connection.lock(sql::ACKNOWLEDGE_LOCK, &locks).await?;
        crate::faults::point("acknowledge.locked");
        let rows = self.insert(Then::More, connection, &columns, here, last_number, false).await?;
        flush::same(here, &incarnation(&rows)?, &self.spec.relay)?;
        if !is_written(dealt, &rows) {
            connection.roll_back().await?;
            return Ok(outcome(dealt, &rows));
        }
        self.park(connection, &dealt.parked.aside).await?;
        if !dealt.parked.tried.is_empty() {
            self.parked.write(connection, &dealt.parked.tried).await?;
        }
        connection.commit(sql::INCARNATION, &[]).await?;
        self.confirmed(here, &rows, last_number)?;
        self.parked.changed(dealt.grant.lane.number, dealt.parked.due());
        history::acknowledged(self.spec.replica, sent, here, || history::Acknowledged {
            positions: written(&[dealt], &rows),
            changed: Vec::new(),
            aside: dealt.parked.aside.iter().map(|aside| aside.id().to_owned()).collect(),
        });
        Ok(outcome(dealt, &rows))
    }

    async fn park(&self, connection: &Connection, aside: &[Aside]) -> Result<(), Error> {
        if aside.is_empty() {
            return Ok(());
        }
        let number = |aside: &Aside| if let AsideRow::Log(number, _) = aside.row { Some(number) } else { None };
        let numbers: Vec<i64> = aside.iter().filter_map(number).collect();
        let attempts = Attempts::of(aside.iter().map(|aside| aside.failed.as_ref()));
        let (relay, replica) = (self.spec.relay.as_str(), self.spec.replica.0);
        let mut parameters: Vec<Parameter<'_>> =
            vec![(&relay, Type::TEXT), (&replica, Type::UUID), (&numbers, Type::INT8_ARRAY)];
        parameters.extend(attempts.parameters());
        let rows = connection.then(sql::PARK, &parameters).await?;
        let there: i64 = rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or_default();
        if usize::try_from(there) == Ok(numbers.len()) {
            return Ok(());
        }
        Err(Error::refused(
            format!("{there} of {} messages that are to be set aside are still in the outbox", numbers.len()),
            "Somebody deleted or truncated the others by hand. `pgbaton rebase` goes on without them",
        ))
    }

    /// Read from the sequence before a transaction takes its id: that order is what makes the pair a floor.
    fn last_number(&self, here: &Incarnation) -> Option<i64> {
        self.log(|log| log.last_number.filter(|_| log.incarnation.as_ref() == Some(here)))
    }

    /// Writes a position that stands before an earlier one, on purpose. Nobody empties a segment meanwhile, and nothing that
    /// it would send again may have been emptied already.
    pub(super) async fn write_set_back(&self, dealt: &Dealt) -> Result<Vec<Acknowledged>, Error> {
        let mut slot = self.writer.lock().await;
        let connection = slot.take().await?;
        connection.lock(sql::REGISTER_LOCK, &[]).await?;
        self.is_all_there(&connection, dealt).await?;
        let acknowledged = self.write_on(&connection, &[dealt], true).await?;
        slot.put(connection);
        Ok(acknowledged)
    }

    async fn is_all_there(&self, connection: &Connection, dealt: &Dealt) -> Result<(), Error> {
        let position = stored(&dealt.next)?.position;
        let consumed = position.consumed().to_string();
        let target = position.target().map(|target| target.snapshot.to_string());
        let parameters: [Parameter<'_>; 4] = [
            (&self.spec.relay.as_str(), Type::TEXT),
            (&consumed, Type::TEXT),
            (&target, Type::TEXT),
            (&position.last(), Type::INT8),
        ];
        let rows = connection.then(sql::EMPTIED, &parameters).await?;
        if rows.first().map(|row| row.try_get("lacks")).transpose()? == Some(false) {
            return Ok(());
        }
        Err(Error::refused(
            format!("{}: what the sink has lost is no longer in the outbox", dealt.grant),
            "Its segment was emptied; a longer retention keeps messages for this. Restore the sink, or drop the relay and \
             register it again to go on without them",
        ))
    }

    /// In a transaction of its own, or, to set a lane back, in the one that holds the lock for that.
    async fn write_on(
        &self,
        connection: &Connection,
        done: &[&Dealt],
        set_back: bool,
    ) -> Result<Vec<Acknowledged>, Error> {
        let Some(first) = done.first() else { return Ok(Vec::new()) };
        let here = first.next.incarnation.clone();
        let mut columns = Columns::default();
        for dealt in done {
            if dealt.next.incarnation != here {
                return Err(Error::new(Kind::Internal, "positions of several incarnations in one acknowledgement"));
            }
            columns.push(dealt, self.next_seq(), &stored(&dealt.next)?.position);
        }
        let relay = self.spec.relay.as_str();
        let locks: [Parameter<'_>; 2] = [(&relay, Type::TEXT), (&columns.lanes, Type::INT4_ARRAY)];
        let last_number = self.last_number(&here);
        let sent = history::now();
        if set_back {
            connection.then(sql::ACKNOWLEDGE_LOCK, &locks).await?;
        } else {
            connection.lock(sql::ACKNOWLEDGE_LOCK, &locks).await?;
        }
        crate::faults::point("acknowledge.locked");
        let rows = self.insert(Then::Commit, connection, &columns, &here, last_number, set_back).await?;
        self.confirmed(&here, &rows, last_number)?;
        history::acknowledged(self.spec.replica, sent, &here, || history::Acknowledged {
            positions: written(done, &rows),
            changed: Vec::new(),
            aside: Vec::new(),
        });
        Ok(done.iter().map(|dealt| outcome(dealt, &rows)).collect())
    }

    async fn insert(
        &self,
        then: Then,
        connection: &Connection,
        columns: &Columns,
        here: &Incarnation,
        last_number: Option<i64>,
        set_back: bool,
    ) -> Result<Vec<Row>, Error> {
        let (relay, here) = (self.spec.relay.as_str(), here.to_string());
        let parameters: [Parameter<'_>; 14] = [
            (&relay, Type::TEXT),
            (&self.spec.replica.0, Type::UUID),
            (&here, Type::TEXT),
            (&columns.lanes, Type::INT4_ARRAY),
            (&columns.epochs, Type::INT8_ARRAY),
            (&columns.seqs, Type::INT8_ARRAY),
            (&columns.batches, Type::INT8_ARRAY),
            (&columns.consumed, Type::TEXT_ARRAY),
            (&columns.floors, Type::INT8_ARRAY),
            (&columns.targets, Type::TEXT_ARRAY),
            (&columns.ceilings, Type::INT8_ARRAY),
            (&columns.lasts, Type::INT8_ARRAY),
            (&last_number, Type::INT8),
            (&set_back, Type::BOOL),
        ];
        match then {
            Then::Commit => connection.commit(sql::ACKNOWLEDGE, &parameters).await,
            Then::More => connection.then(sql::ACKNOWLEDGE, &parameters).await,
        }
    }

    /// Never the same number twice: an acknowledgement whose answer was lost may still be committed, and a lane may be
    /// closed and opened again under one epoch. One counter for all lanes is enough, since an epoch has one owner.
    fn next_seq(&self) -> i64 {
        self.seq.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// It is committed: its pair may be used as a floor from now on.
    fn confirmed(&self, here: &Incarnation, rows: &[Row], last_number: Option<i64>) -> Result<(), Error> {
        let found = incarnation(rows)?;
        if found != *here {
            return Err(Error::new(
                Kind::OtherIncarnation(found.clone()),
                format!("relay {}: positions of {here} were not written, the database is {found} now", self.spec.relay),
            ));
        }
        let x: &str = rows.first().map(|row| row.try_get("x")).transpose()?.unwrap_or_default();
        let wrote = rows.first().map(|row| row.try_get::<_, Option<i32>>("lane")).transpose()?.flatten().is_some();
        if let (true, Ok(x), Some(l)) = (wrote, x.parse(), last_number) {
            self.log(|log| {
                if log.incarnation.as_ref() == Some(here) {
                    log.floors.add(l, Xid(x));
                }
            });
        }
        Ok(())
    }
}

fn is_written(dealt: &Dealt, rows: &[Row]) -> bool {
    rows.iter()
        .any(|row| matches!(row.try_get::<_, Option<i32>>("lane"), Ok(Some(lane)) if lane == dealt.grant.lane.number))
}

/// What was written, for the history.
fn written<'a>(done: &[&'a Dealt], rows: &[Row]) -> Vec<history::Position<'a>> {
    let position = |dealt: &'a Dealt| {
        let consumed = stored(&dealt.next).ok()?.position.consumed().xmax();
        Some(history::Position { grant: &dealt.grant, batch: dealt.batch, consumed: Some(consumed), again: false })
    };
    done.iter().copied().filter(|dealt| is_written(dealt, rows)).filter_map(position).collect()
}

fn outcome(dealt: &Dealt, rows: &[Row]) -> Acknowledged {
    if is_written(dealt, rows) {
        Acknowledged::Written(dealt.grant.lane.clone())
    } else {
        Acknowledged::LaneLost(dealt.grant.lane.clone(), dealt.grant.epoch)
    }
}
