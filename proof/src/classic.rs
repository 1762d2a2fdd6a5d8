//! The home-made relay that pgbaton replaces, as it is written in many places, to show what is wrong with it.
//!
//! On each tick it takes a batch with `select … for update skip locked`, commits, publishes the batch message by
//! message, and marks it. It reads as if the row locks kept two replicas apart. They do not: the locks end at the
//! commit, **before** the publish, and until the mark every other replica takes the same rows again.
//!
//! Its destination has no unique key, so each publish is there to be counted.

use std::time::Duration;

use checker::history::{Event, Grant};
use tokio_postgres::{Client, Row, Statement};

use crate::Error;
use crate::torture::book::Book;
use crate::writers::connect;

const TABLES: &str = "
    create table classic_outbox (
      id           bigint generated always as identity primary key,
      topic        text not null,
      key          text,
      payload      json not null,
      published_at timestamptz
    );
    create index classic_outbox_unpublished on classic_outbox (id) where published_at is null;
    create table classic_inbox (
      seq         bigint generated always as identity,
      message_id  text not null,
      payload     json not null,
      received_at timestamptz not null default clock_timestamp()
    );";

/// How it runs. The defaults are those of the home-made relay.
#[derive(Clone, Copy, Debug)]
pub struct Classic {
    /// Messages taken at once.
    pub batch: i64,
    /// How long it rests when it has found nothing more to do.
    pub tick: Duration,
    /// How long publishing a batch takes at the least, for destinations slower than a table.
    pub slowness: Duration,
}

impl Default for Classic {
    fn default() -> Classic {
        Classic { batch: 500, tick: Duration::from_secs(5), slowness: Duration::ZERO }
    }
}

/// Makes its outbox and the inbox it publishes to, and lets `producer` write to the one and `relay` do its work.
pub async fn prepare(admin: &Client, producer: &str, relay: &str) -> Result<(), Error> {
    let sql = format!(
        "{TABLES}
         grant insert, select on classic_outbox to \"{producer}\";
         grant select, update on classic_outbox to \"{relay}\";
         grant insert on classic_inbox to \"{relay}\";"
    );
    admin.batch_execute(&sql).await.map_err(|cause| Error::because("making the classic outbox", &cause))
}

impl Classic {
    /// Runs one replica until it is dropped or the server fails.
    pub async fn run(self, dsn: &str) -> Result<std::convert::Infallible, Error> {
        self.run_with(dsn, None).await
    }

    /// The same, and it tells under this name what it publishes. It has no lanes and no leases to tell of.
    pub async fn run_telling(self, dsn: &str, name: &str, book: &Book) -> Result<std::convert::Infallible, Error> {
        self.run_with(dsn, Some(Telling { name, book, batch: 0 })).await
    }

    async fn run_with(self, dsn: &str, mut telling: Option<Telling<'_>>) -> Result<std::convert::Infallible, Error> {
        let client = connect(dsn).await?;
        let failed = |cause| Error::because("the classic relay", &cause);
        let work = Statements::prepare(&client).await.map_err(failed)?;
        let mut ticks = tokio::time::interval(self.tick);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            while self.one_batch(&client, &work, telling.as_mut()).await.map_err(failed)? {}
        }
    }

    /// Deals with one batch. False if there was nothing to do.
    async fn one_batch(
        self,
        client: &Client,
        work: &Statements,
        mut telling: Option<&mut Telling<'_>>,
    ) -> Result<bool, tokio_postgres::Error> {
        client.batch_execute("begin").await?;
        let batch = client.query(&work.take, &[&self.batch]).await?;
        client.batch_execute("commit").await?; // the row locks end here …

        if let Some(telling) = &mut telling {
            telling.publish(&batch)?;
        }
        let slowness = tokio::time::sleep(self.slowness);
        let mut ids: Vec<i64> = Vec::with_capacity(batch.len());
        for row in &batch {
            let (id, payload): (i64, &str) = (row.try_get(0)?, row.try_get(1)?);
            client.execute(&work.publish, &[&id.to_string(), &payload]).await?; // … and this comes after
            ids.push(id);
        }
        slowness.await;
        if let Some(telling) = telling {
            telling.answered(batch.len());
        }
        client.execute(&work.mark, &[&ids]).await?;
        Ok(!ids.is_empty())
    }
}

/// Tells of batches as if there were one lane.
struct Telling<'a> {
    name: &'a str,
    book: &'a Book,
    batch: i64,
}

impl Telling<'_> {
    fn grant() -> Grant {
        Grant { relay: "classic".to_owned(), lane: 0, of: 1, epoch: 0 }
    }

    fn publish(&mut self, rows: &[Row]) -> Result<(), tokio_postgres::Error> {
        let ids: Vec<String> =
            rows.iter().map(|row| Ok(row.try_get::<_, i64>(0)?.to_string())).collect::<Result<_, _>>()?;
        self.batch += 1;
        let (replica, batch) = (self.name.to_owned(), self.batch);
        self.book.tell(Event::Publish { replica, grant: Self::grant(), timeline: 1, batch, ids });
        Ok(())
    }

    fn answered(&self, messages: usize) {
        let (replica, batch, answer) = (self.name.to_owned(), self.batch, "d".repeat(messages));
        self.book.tell(Event::Answered { replica, grant: Self::grant(), batch, answer });
    }
}

struct Statements {
    take: Statement,
    publish: Statement,
    mark: Statement,
}

impl Statements {
    async fn prepare(client: &Client) -> Result<Statements, tokio_postgres::Error> {
        const TAKE: &str = "select id, payload::text from classic_outbox where published_at is null \
                            order by id limit $1 for update skip locked";
        const PUBLISH: &str = "insert into classic_inbox (message_id, payload) values ($1, ($2::text)::json)";
        const MARK: &str = "update classic_outbox set published_at = now() where id = any($1)";
        Ok(Statements {
            take: client.prepare(TAKE).await?,
            publish: client.prepare(PUBLISH).await?,
            mark: client.prepare(MARK).await?,
        })
    }
}
