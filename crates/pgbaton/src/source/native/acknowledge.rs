//! Writing how far lanes have been dealt with.

use std::sync::atomic::Ordering;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::{NativeSource, stored};
use crate::connection::{Connection, Parameter, incarnation};
use crate::error::{Error, Kind};
use crate::history;
use crate::lane::Grant;
use crate::position::{Incarnation, Position, Xid};
use crate::source::batch::{Aside, AsideRow};
use crate::source::flush;
use crate::source::parked::Attempts;
use crate::source::trouble::{of_a_row, waits};
use crate::source::{Acknowledged, Dealt, Parking};
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

impl NativeSource {
    /// Writes positions. All of them belong to one incarnation, or nothing is written. Those with which messages are set aside, or
    /// were tried again, have a transaction each: others need not wait for their rows, and go on if one is refused.
    pub(super) async fn write(&self, done: &[Dealt]) -> Result<Vec<Acknowledged>, Error> {
        let (alone, together): (Vec<&Dealt>, Vec<&Dealt>) = done.iter().partition(|dealt| !dealt.parked.is_empty());
        let mut slot = self.writer.lock().await;
        let connection = slot.take().await?;
        let mut acknowledged = self.write_on(&connection, &together, false).await?;
        for dealt in alone {
            match self.write_on(&connection, &[dealt], false).await {
                Ok(written) => acknowledged.extend(written),
                // Where the server does not go on, it has something against all of them.
                Err(error) => {
                    let goes_on = connection.roll_back().await.is_ok();
                    if !(goes_on && of_a_row(&error, goes_on)) {
                        return Err(error);
                    }
                    acknowledged.push(not_set_aside(&dealt.grant, &error));
                }
            }
        }
        slot.put(connection);
        Ok(acknowledged)
    }

    /// What becomes of messages that are set aside. Statements of the transaction in which the lane was found to be ours.
    async fn park(&self, connection: &Connection, parked: &Parking) -> Result<(), Error> {
        self.set_aside(connection, &parked.aside).await?;
        self.parked.write(connection, &parked.tried).await?;
        self.copy_dead(connection, parked).await
    }

    /// What is dead by now is copied into the outbox, once, for whoever reads that topic.
    async fn copy_dead(&self, connection: &Connection, parked: &Parking) -> Result<(), Error> {
        let Some(topic) = &self.spec.dead_topic else { return Ok(()) };
        let dead: Vec<&str> = parked.dead().collect();
        if dead.is_empty() {
            return Ok(());
        }
        let relay = self.spec.relay.as_str();
        let parameters: [Parameter<'_>; 3] = [(&relay, Type::TEXT), (&dead, Type::TEXT_ARRAY), (topic, Type::TEXT)];
        connection.then(sql::DEAD_COPY, &parameters).await?;
        Ok(())
    }

    async fn set_aside(&self, connection: &Connection, aside: &[Aside]) -> Result<(), Error> {
        if aside.is_empty() {
            return Ok(());
        }
        let number = |aside: &Aside| if let AsideRow::Log(number, _) = aside.row { Some(number) } else { None };
        let numbers: Vec<i64> = aside.iter().filter_map(number).collect();
        let attempts = Attempts::of(aside.iter().map(|aside| (aside.failed.as_ref(), aside.suspect)));
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
        let parked: Vec<&Dealt> = done.iter().copied().filter(|dealt| !dealt.parked.is_empty()).collect();
        let rows = self.insert(connection, (&columns, last_number, set_back), &here, parked.is_empty()).await?;
        if !parked.is_empty() {
            flush::same(&here, &incarnation(&rows)?, &self.spec.relay)?;
            for dealt in parked.iter().filter(|dealt| is_written(dealt, &rows)) {
                self.park(connection, &dealt.parked).await?;
            }
            connection.commit(sql::INCARNATION, &[]).await?;
        }
        self.confirmed(&here, &rows, last_number)?;
        let parked = || parked.iter().filter(|dealt| is_written(dealt, &rows));
        parked().for_each(|dealt| self.parked.changed(dealt.grant.lane.number, &dealt.parked));
        let aside = || parked().flat_map(|dealt| &dealt.parked.aside).map(|aside| aside.id().to_owned());
        history::acknowledged(self.spec.replica, sent, &here, || history::Acknowledged {
            positions: written(done, &rows),
            changed: Vec::new(),
            aside: aside().collect(),
        });
        Ok(done.iter().map(|dealt| outcome(dealt, &rows)).collect())
    }

    /// The statement that writes the positions: the transaction's last one or not.
    async fn insert(
        &self,
        connection: &Connection,
        (columns, last_number, set_back): (&Columns, Option<i64>, bool),
        here: &Incarnation,
        is_last: bool,
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
        if is_last {
            connection.commit(sql::ACKNOWLEDGE, &parameters).await
        } else {
            connection.then(sql::ACKNOWLEDGE, &parameters).await
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

/// Whether to try again, or to hold the lane.
fn not_set_aside(grant: &Grant, error: &Error) -> Acknowledged {
    let (lane, why) = (grant.lane.clone(), error.in_words());
    if waits(error) {
        tracing::warn!(%grant, error = why, "messages that failed cannot be set aside yet; trying again");
        return Acknowledged::Waits(lane);
    }
    let refused = Error::refused(
        format!("{grant}: messages that failed cannot be set aside: {why}"),
        "It is tried again every 10 s, and nothing of this lane is sent meanwhile. Has somebody changed pgbaton.parked, its \
         rights, or rows of the outbox? If messages were deleted, `pgbaton rebase` goes on without them",
    );
    Acknowledged::Refused(lane, refused)
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
