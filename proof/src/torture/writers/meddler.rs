//! Whoever owns an adopted table, and meddles with its rows: locks those that are pending, changes what they say or their keys,
//! deletes them, and sets back those that were marked.
//!
//! Each kind of deed is one task, with a transaction after the other. What a transaction did, and to which rows, is told before
//! its commit is sent; whether it is committed the ledger says, as of any writer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use checker::history::{Deed, Event};
use rand::RngExt;
use rand::rngs::StdRng;
use serde::Serialize;
use tokio::time::timeout;
use tokio_postgres::Client;
use uuid::Uuid;

use super::{Ended, PATIENCE, Shared};
use crate::torture::book::now;
use crate::torture::log::lock;
use crate::torture::outbox::Pick;
use crate::torture::plan::{KEYS, Plan, millis};

/// Waits for others no longer than this: the relay's marks, and each other.
const SETTINGS: &str = "set lock_timeout = '2s'; set statement_timeout = '60s'";
const BEGIN: &str = "begin isolation level read committed";

/// Rows that were met by transactions whose commit was confirmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(in crate::torture) struct Meddled {
    locked: u64,
    changed: u64,
    rekeyed: u64,
    set_back: u64,
    deleted: u64,
}

impl Meddled {
    pub(in crate::torture) const fn of(self, deed: Deed) -> u64 {
        match deed {
            Deed::Locked => self.locked,
            Deed::Changed => self.changed,
            Deed::Rekeyed => self.rekeyed,
            Deed::SetBack => self.set_back,
            Deed::Deleted => self.deleted,
        }
    }

    const fn count(&mut self, deed: Deed, rows: u64) {
        let count = match deed {
            Deed::Locked => &mut self.locked,
            Deed::Changed => &mut self.changed,
            Deed::Rekeyed => &mut self.rekeyed,
            Deed::SetBack => &mut self.set_back,
            Deed::Deleted => &mut self.deleted,
        };
        *count += rows;
    }
}

/// How one ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Commit,
    /// Without waiting for the log to be on disk.
    CommitLazily,
    Rollback,
}

/// One transaction.
#[derive(Clone, Debug, PartialEq)]
struct Work {
    pause: Duration,
    pick: Pick,
    /// How long it keeps its locks.
    open: Duration,
    end: End,
}

impl Work {
    fn draw(deed: Deed, random: &mut StdRng) -> Work {
        let skip = match random.random_range(0..10) {
            // What is in flight is at the front.
            0..5 => 0,
            5..9 => random.random_range(0..2_000),
            _ => random.random_range(0..20_000),
        };
        let rows = if random.random_bool(0.1) { random.random_range(20..200) } else { random.random_range(1..20) };
        let key = (!random.random_bool(0.1)).then(|| random.random_range(0..KEYS));
        let size = if random.random_bool(0.02) { 50_000 } else { random.random_range(0..200) };
        let (pause, open) = match (deed, random.random_range(0..10)) {
            (Deed::Locked, 0..7) => (millis(random, 300, 2_000), millis(random, 20, 800)),
            (Deed::Locked, _) => (millis(random, 300, 2_000), millis(random, 800, 5_000)),
            (_, 0) => (millis(random, 20, 600), millis(random, 50, 1_500)),
            _ => (millis(random, 20, 600), Duration::ZERO),
        };
        let end = match random.random_range(0..100) {
            0..10 => End::Rollback,
            10..15 => End::CommitLazily,
            _ => End::Commit,
        };
        Work { pause, pick: Pick { deed, skip, rows, key, size }, open, end }
    }
}

/// Transaction after transaction, until writers are to end.
pub(super) async fn meddle(deed: Deed, plan: Plan, shared: Arc<Shared>) {
    let mut draws = plan.random(&format!("meddler {deed:?}"), 0);
    let mut client = None;
    while !shared.stopped() {
        let work = Work::draw(deed, &mut draws);
        shared.rest(work.pause).await;
        let Some(open) = connected(client, &shared).await else { return };
        client = attempt(open, &work, &shared).await;
    }
}

/// A connection that works, this one if it does. None once writers are to end.
async fn connected(client: Option<Client>, shared: &Shared) -> Option<Client> {
    let mut client = client.filter(|client| !client.is_closed());
    while client.is_none() && !shared.stopped() {
        let opened = shared.primary.producer().await;
        client = opened.map_err(|error| shared.met(&error.to_string())).ok();
        if let Some(opened) = client.take() {
            client = opened.batch_execute(SETTINGS).await.is_ok().then_some(opened);
        }
        if client.is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    client.filter(|_| !shared.stopped())
}

/// Gives the connection back if it can be used again.
async fn attempt(client: Client, work: &Work, shared: &Shared) -> Option<Client> {
    let number = shared.next.fetch_add(1, Ordering::Relaxed);
    match timeout(PATIENCE + work.open, carry_out(&client, number, work, shared)).await {
        Ok(Ok(ended)) => {
            if let Ended::Committed(rows) = ended {
                lock(&shared.written).meddled.count(work.pick.deed, rows);
            }
            Some(client)
        }
        Ok(Err(error)) => {
            shared.met(&error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string));
            let usable = !client.is_closed()
                && timeout(PATIENCE, client.batch_execute("rollback")).await.is_ok_and(|done| done.is_ok());
            if usable || client.is_closed() {
                shared.book.tell(Event::Over { transaction: number });
            }
            usable.then_some(client)
        }
        Err(_) => {
            shared.met("no answer");
            None
        }
    }
}

/// With the number of rows. After an error nobody knows whether it took place, unless the ledger says so.
async fn carry_out(client: &Client, number: u64, work: &Work, shared: &Shared) -> Result<Ended, tokio_postgres::Error> {
    client.batch_execute(BEGIN).await?;
    let rows = client.query(&shared.source.meddle(&work.pick, number), &[]).await?;
    let ids = rows.iter().map(|row| row.try_get::<_, Uuid>(0)).collect::<Result<Vec<Uuid>, _>>()?;
    if ids.is_empty() {
        client.batch_execute("rollback").await?;
        return Ok(Ended::RolledBack);
    }
    let met = u64::try_from(ids.len()).unwrap_or_default();
    let ids = ids.into_iter().map(|id| shared.source.message_id(id)).collect();
    shared.book.tell(Event::Meddled { transaction: number, deed: work.pick.deed, ids });
    client.batch_execute(&format!("insert into shop.ledger values ({number})")).await?;
    shared.rest(work.open).await;
    let sent = now();
    match work.end {
        End::Commit => {
            client.batch_execute("commit").await?;
            shared.book.tell(Event::Committed { transaction: number, sent });
            Ok(Ended::Committed(met))
        }
        End::CommitLazily => {
            client.batch_execute("set local synchronous_commit = off; commit").await?;
            shared.book.tell(Event::Over { transaction: number });
            Ok(Ended::CommittedLazily(met))
        }
        End::Rollback => {
            client.batch_execute("rollback").await?;
            shared.book.tell(Event::RolledBack { transaction: number });
            Ok(Ended::RolledBack)
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn deeds_depend_on_the_seed_alone_and_most_meet_what_is_in_flight() {
        let draw = |seed| {
            let mut random = StdRng::seed_from_u64(seed);
            (0..400).map(|_| Work::draw(Deed::Locked, &mut random)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let drawn = draw(7);
        assert!(drawn.iter().filter(|work| work.pick.skip == 0).count() > 150);
        let longest = drawn.iter().map(|work| work.open).max();
        assert!(longest.is_some_and(|longest| longest > Duration::from_secs(4)));
        assert!([End::Commit, End::CommitLazily, End::Rollback].iter().all(|end| drawn.iter().any(|w| w.end == *end)));
    }
}
