//! A writer's connection, and how it carries out a transaction: take the keys' locks, count, insert, note down in the ledger,
//! end. What it does is told as it happens; what was committed is told once the server has confirmed it.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use checker::history::{Event, Message};
use futures_util::SinkExt;
use hyper::body::Bytes;
use tokio_postgres::{Client, Statement};

use super::super::book::now;
use super::super::outbox::SourceKind;
use super::work::{Draft, End, How, Piece, Whole, Work};
use super::{Ended, Shared};
use crate::Error;

/// Made beside the outbox: what the keys' locks are, and the database's own word of what was committed.
pub(super) const SCHEMA: &str = "
    create schema shop;
    create table shop.key (number integer primary key, n bigint not null default 0) with (fillfactor = 50);
    create table shop.ledger (transaction bigint primary key);";

/// All locks of a transaction at once, in ascending order.
const LOCK: &str = "select number, n from shop.key where number = any($1) order by number for update";

const COUNT: &str = "update shop.key k set n = v.n from unnest($1::integer[], $2::bigint[]) v(number, n)
    where k.number = v.number";

const LEDGER: &str = "insert into shop.ledger values ($1)";

const LOOK: &str = "select n from shop.key where number = $1";

/// Messages that one line of the history names.
const TOLD_AT_ONCE: usize = 1_000;

/// Takes the key's lock by a version check: whoever comes second finds another version, and writes nothing.
fn bare(source: SourceKind) -> String {
    format!(
        "with k as (
           update shop.key set n = n + 1 where number = $2::integer and n = $3::bigint - 1 returning number
         ), l as (insert into shop.ledger select $1::bigint from k)
         insert into {}
           select 'orders', 'k' || k.number, convert_to(repeat('x', $5::integer), 'UTF8'), $4::uuid from k",
        source.target()
    )
}

fn bare_without_key(source: SourceKind) -> String {
    format!(
        "with l as (insert into shop.ledger values ($1::bigint))
         insert into {}
           values ('orders', null, convert_to(repeat('x', $3::integer), 'UTF8'), $2::uuid)",
        source.target()
    )
}

/// A connection with its statements.
pub(super) struct Desk {
    pub(super) client: Client,
    source: SourceKind,
    lock: Statement,
    insert: Statement,
    count: Statement,
    ledger: Statement,
    look: Statement,
    bare: Statement,
    bare_without_key: Statement,
}

/// What a transaction has counted for each of its keys.
type Counts = BTreeMap<u32, u64>;

impl Desk {
    /// `lock_timeout` is how long a key is waited for.
    pub(super) async fn open(client: Client, source: SourceKind, lock_timeout: Duration) -> Result<Desk, Error> {
        let failed = |cause| Error::because("preparing a writer", &cause);
        let settings = format!("set lock_timeout = {}; set statement_timeout = '60s'", lock_timeout.as_millis());
        client.batch_execute(&settings).await.map_err(failed)?;
        let prepare = async |sql: &str| client.prepare(sql).await.map_err(failed);
        let (lock, insert, count) = (prepare(LOCK).await?, prepare(&source.insert()).await?, prepare(COUNT).await?);
        let (ledger, look, bare) = (prepare(LEDGER).await?, prepare(LOOK).await?, prepare(&bare(source)).await?);
        let bare_without_key = prepare(&bare_without_key(source)).await?;
        Ok(Desk { client, source, lock, insert, count, ledger, look, bare, bare_without_key })
    }

    /// Runs it under this number. After an error nobody knows whether it took place, unless the ledger says so.
    pub(super) async fn carry_out(
        &self,
        number: u64,
        work: &Work,
        shared: &Shared,
    ) -> Result<Ended, tokio_postgres::Error> {
        match work {
            Work::Bare(draft) => self.bare(number, *draft, shared).await,
            Work::Whole(whole) => self.whole(number, whole, shared).await,
        }
    }

    async fn bare(&self, number: u64, draft: Draft, shared: &Shared) -> Result<Ended, tokio_postgres::Error> {
        let serial = signed(number);
        let n = match draft.key {
            Some(key) => self.client.query_one(&self.look, &[&number_of(key)]).await?.try_get::<_, i64>(0)? + 1,
            None => 0,
        };
        shared.tell_wrote(
            number,
            &[Message { id: self.source.message_id(draft.id), key: draft.key, n: n.unsigned_abs() }],
        );
        let sent = now();
        let written = match draft.key {
            Some(key) => {
                let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
                    [&serial, &number_of(key), &n, &draft.id, &draft.size];
                self.client.execute(&self.bare, &parameters).await?
            }
            None => self.client.execute(&self.bare_without_key, &[&serial, &draft.id, &draft.size]).await?,
        };
        if written == 0 {
            shared.book.tell(Event::RolledBack { transaction: number });
            return Ok(Ended::RolledBack);
        }
        shared.book.tell(Event::Committed { transaction: number, sent });
        Ok(Ended::Committed(1))
    }

    async fn whole(&self, number: u64, work: &Whole, shared: &Shared) -> Result<Ended, tokio_postgres::Error> {
        self.client.batch_execute("begin isolation level read committed").await?;
        if let Some(wait) = work.early {
            self.client.batch_execute("select pg_current_xact_id()").await?;
            shared.rest(wait).await;
        }
        let mut counts = self.lock(&work.keys()).await?;
        let mut written = 0;
        for piece in &work.pieces {
            written += self.piece(number, piece, &mut counts, shared).await?;
        }
        self.note(number, &counts).await?;
        shared.rest(work.open).await;
        let sent = now();
        match work.end {
            End::Commit => self.client.batch_execute("commit").await?,
            End::CommitLazily => {
                self.client.batch_execute("set local synchronous_commit = off; commit").await?;
                shared.book.tell(Event::Over { transaction: number });
                return Ok(Ended::CommittedLazily(written));
            }
            End::Rollback => {
                self.client.batch_execute("rollback").await?;
                shared.book.tell(Event::RolledBack { transaction: number });
                return Ok(Ended::RolledBack);
            }
            End::Prepare { wait, commit } => {
                self.client.batch_execute(&format!("prepare transaction '{}'", super::phases::name(number))).await?;
                shared.rest(wait).await;
                return Ok(Ended::Prepared { commit, written });
            }
        }
        shared.book.tell(Event::Committed { transaction: number, sent });
        Ok(Ended::Committed(written))
    }

    async fn lock(&self, keys: &[u32]) -> Result<Counts, tokio_postgres::Error> {
        if keys.is_empty() {
            return Ok(Counts::new());
        }
        let keys: Vec<i32> = keys.iter().map(|key| number_of(*key)).collect();
        let rows = self.client.query(&self.lock, &[&keys]).await?;
        rows.iter()
            .map(|row| Ok((row.try_get::<_, i32>(0)?.unsigned_abs(), row.try_get::<_, i64>(1)?.unsigned_abs())))
            .collect()
    }

    /// Returns how many messages of it stand.
    async fn piece(
        &self,
        number: u64,
        piece: &Piece,
        counts: &mut Counts,
        shared: &Shared,
    ) -> Result<u64, tokio_postgres::Error> {
        let before = piece.savepoint.is_some().then(|| counts.clone());
        if before.is_some() {
            self.client.batch_execute("savepoint piece").await?;
        }
        let messages: Vec<Message> = piece.drafts.iter().map(|draft| self.counted(*draft, counts)).collect();
        shared.tell_wrote(number, &messages);
        match piece.how {
            How::Rows => self.insert(&piece.drafts).await?,
            How::Copy => self.copy(&piece.drafts).await?,
        }
        match (piece.savepoint, before) {
            (Some(true), Some(before)) => {
                self.client.batch_execute("rollback to savepoint piece").await?;
                let ids = messages.into_iter().map(|message| message.id).collect();
                shared.book.tell(Event::TookBack { transaction: number, ids });
                *counts = before;
                return Ok(0);
            }
            (Some(false), _) => self.client.batch_execute("release savepoint piece").await?,
            _ => {}
        }
        Ok(u64::try_from(piece.drafts.len()).unwrap_or_default())
    }

    async fn insert(&self, drafts: &[Draft]) -> Result<(), tokio_postgres::Error> {
        let ids: Vec<uuid::Uuid> = drafts.iter().map(|draft| draft.id).collect();
        let keys: Vec<Option<i32>> = drafts.iter().map(|draft| draft.key.map(number_of)).collect();
        let sizes: Vec<i32> = drafts.iter().map(|draft| draft.size).collect();
        self.client.execute(&self.insert, &[&ids, &keys, &sizes]).await.map(drop)
    }

    async fn copy(&self, drafts: &[Draft]) -> Result<(), tokio_postgres::Error> {
        let mut text = String::new();
        for draft in drafts {
            let key = draft.key.map_or("\\N".to_owned(), |key| format!("k{key}"));
            let payload = "x".repeat(usize::try_from(draft.size).unwrap_or_default());
            text.push_str(&format!("orders\t{key}\t{payload}\t{}\n", draft.id));
        }
        let copy = format!("copy {} from stdin", self.source.target());
        let mut sink = pin!(self.client.copy_in::<_, Bytes>(&copy).await?);
        sink.send(Bytes::from(text)).await?;
        sink.finish().await.map(drop)
    }

    fn counted(&self, draft: Draft, counts: &mut Counts) -> Message {
        let n = match draft.key.and_then(|key| counts.get_mut(&key)) {
            Some(n) => {
                *n += 1;
                *n
            }
            None => 0,
        };
        Message { id: self.source.message_id(draft.id), key: draft.key, n }
    }

    async fn note(&self, number: u64, counts: &Counts) -> Result<(), tokio_postgres::Error> {
        let keys: Vec<i32> = counts.keys().map(|key| number_of(*key)).collect();
        let counted: Vec<i64> = counts.values().map(|n| signed(*n)).collect();
        if !keys.is_empty() {
            self.client.execute(&self.count, &[&keys, &counted]).await?;
        }
        self.client.execute(&self.ledger, &[&signed(number)]).await.map(drop)
    }
}

impl Shared {
    fn tell_wrote(&self, transaction: u64, messages: &[Message]) {
        for messages in messages.chunks(TOLD_AT_ONCE) {
            self.book.tell(Event::Wrote { transaction, messages: messages.to_vec() });
        }
    }
}

fn number_of(key: u32) -> i32 {
    i32::try_from(key).unwrap_or(i32::MAX)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
