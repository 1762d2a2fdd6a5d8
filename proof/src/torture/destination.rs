//! Where the messages arrive, and in what mood it is.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use checker::history::Event;
use futures_util::{StreamExt, TryStreamExt};
use serde::Deserialize;
use tokio::sync::{Mutex, watch};

use super::book::{Book, Count};
use super::outbox::changed_by;
use super::plan::{Plan, SinkKind};
use super::primary::{UNDO_WITHIN, again, see_that_it_runs, within};
use super::ways::Ways;
use crate::Error;
use crate::endpoint::{Endpoint, Reply};
use crate::fixture::{Fixture, RELAY, toml_text};
use crate::servers::{Binaries, Cluster, Options};

/// One in so many messages is poison.
const POISON: u64 = 1_500;

/// Arrivals that one line of the history names.
const TOLD_AT_ONCE: usize = 1_000;

/// How slowly the inbox takes rows: a statement waits so long.
const SLOWNESS: &str = "
    create table app.slowness (seconds float8 not null);
    insert into app.slowness values (0);
    create function app.slowly() returns trigger language plpgsql security definer as
      $$ begin perform pg_sleep(seconds) from app.slowness where seconds > 0; return null; end $$;
    create trigger slowly before insert on app.inbox for each statement execute function app.slowly();";

/// What the endpoint does with requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mood {
    Willing,
    /// Answers late.
    Slow(Duration),
    /// Of a share of them it says that it failed, or nothing: most of these it has taken, the others it refuses.
    Failing,
    /// Says nothing until it is in another mood.
    Hanging,
    /// Of a message that it says it never will take.
    Rejecting,
}

/// One message in a thousand or two is rejected the first time it comes, and so is dead until an operator has it tried again.
#[derive(Default)]
struct Poison(std::sync::Mutex<HashSet<String>>);

impl Poison {
    fn rejects(&self, id: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let mut rejected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hasher.finish().is_multiple_of(POISON) && rejected.insert(id.to_owned())
    }
}

/// The sink's other end.
pub(super) enum Destination {
    Inbox { cluster: Box<Mutex<Cluster>>, fixture: Fixture },
    Endpoint { endpoint: Endpoint, mood: watch::Sender<Mood>, book: Arc<Book>, taken: Arc<AtomicU64> },
    Files { folder: PathBuf },
}

impl Destination {
    pub(super) async fn start(plan: &Plan) -> Result<Destination, Error> {
        match plan.sink {
            SinkKind::Postgres => Destination::inbox().await,
            SinkKind::Http => Destination::endpoint(&plan.folder).await,
            SinkKind::File => Ok(Destination::Files { folder: plan.folder.clone() }),
        }
    }

    async fn inbox() -> Result<Destination, Error> {
        let settings = [("max_wal_size", "1GB"), ("checkpoint_timeout", "60s")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let options = Options { shared_buffers: "128MB".to_owned(), settings, ..Options::default() };
        let cluster = Cluster::start(&Binaries::any()?, options).await?;
        let fixture = Fixture::on(&cluster).await?;
        fixture.inbox("app.inbox").await?;
        within(fixture.admin().await?.batch_execute(SLOWNESS)).await?;
        Ok(Destination::Inbox { cluster: Box::new(Mutex::new(cluster)), fixture })
    }

    async fn endpoint(folder: &Path) -> Result<Destination, Error> {
        let book = Arc::new(Book::open(folder, "sink")?);
        let mood = watch::Sender::new(Mood::Willing);
        let taken = Arc::<AtomicU64>::default();
        let (telling, counting, moods) = (Arc::clone(&book), Arc::clone(&taken), mood.subscribe());
        let requests = AtomicU64::new(0);
        let poison = Poison::default();
        let endpoint = Endpoint::forgetful(move |received| {
            let (mut moods, nth) = (moods.clone(), requests.fetch_add(1, Ordering::Relaxed));
            let mood = *moods.borrow_and_update();
            // A message that is refused has not arrived: a relay that does not try it again has lost it.
            if mood == Mood::Willing && poison.rejects(received.id()) {
                return answer(Mood::Rejecting, nth, moods);
            }
            if !mood.refuses(nth) {
                telling.tell(arrived("endpoint", vec![(received.id().to_owned(), changed_by(&received.body))]));
                counting.fetch_add(1, Ordering::Relaxed);
            }
            answer(mood, nth, moods)
        });
        Ok(Destination::Endpoint { endpoint: endpoint.await?, mood, book, taken })
    }

    /// Of the history of its own, if it has one.
    pub(super) fn count(&self) -> Option<Count> {
        match self {
            Destination::Endpoint { book, .. } => Some(book.count()),
            Destination::Inbox { .. } | Destination::Files { .. } => None,
        }
    }

    /// The port that a way leads to.
    pub(super) fn port(&self) -> Option<u16> {
        match self {
            // The port stays over restarts.
            Destination::Inbox { fixture, .. } => {
                let port = fixture.admin_dsn().split_whitespace().find_map(|word| word.strip_prefix("port="));
                port.and_then(|port| port.parse().ok())
            }
            Destination::Endpoint { endpoint, .. } => Some(endpoint.port()),
            Destination::Files { .. } => None,
        }
    }

    /// The value of `sink` in a replica's configuration.
    pub(super) fn section(&self, ways: &Ways) -> String {
        let port = ways.sink.as_ref().map_or(0, crate::proxy::Proxy::port);
        match self {
            Destination::Inbox { fixture, .. } => {
                let dsn = format!("host=127.0.0.1 port={port} user={RELAY} dbname={}", fixture.database);
                format!("{{ type = \"postgres\", dsn = {}, table = \"app.inbox\" }}", toml_text(&dsn))
            }
            Destination::Endpoint { .. } => format!(
                "{{ type = \"http\", url = \"http://127.0.0.1:{port}/in\", allow_private = true, timeout = \"1500ms\", \
                 concurrency = 8 }}"
            ),
            Destination::Files { folder } => {
                let path = file_of(folder, "{name}");
                format!("{{ type = \"file\", path = {} }}", toml_text(&path.to_string_lossy()))
            }
        }
    }

    /// Takes its time from now on with each call, or no longer.
    pub(super) async fn slow(&self, by: Duration) -> Result<(), Error> {
        match self {
            Destination::Inbox { fixture, .. } => {
                let admin = fixture.admin().await?;
                within(admin.execute("update app.slowness set seconds = $1", &[&by.as_secs_f64()])).await.map(drop)
            }
            Destination::Endpoint { mood, .. } => {
                mood.send_replace(if by.is_zero() { Mood::Willing } else { Mood::Slow(by) });
                Ok(())
            }
            Destination::Files { .. } => Ok(()),
        }
    }

    /// Nothing ails it from now on.
    pub(super) async fn heal(&self) -> Result<(), Error> {
        self.see_that_it_runs().await?;
        again(UNDO_WITHIN, || self.slow(Duration::ZERO)).await
    }

    /// Starts an inbox's server again if it has ended.
    pub(super) async fn see_that_it_runs(&self) -> Result<(), Error> {
        let Destination::Inbox { cluster, .. } = self else { return Ok(()) };
        see_that_it_runs(&mut *cluster.lock().await).await
    }

    /// How many messages have arrived, repeats and rows of failed calls included; `None` where nobody counts.
    pub(super) async fn counted(&self) -> Result<Option<u64>, Error> {
        match self {
            Destination::Inbox { fixture, .. } => {
                let admin = fixture.admin().await?;
                let sql = "select coalesce(pg_sequence_last_value('app.inbox_seq_seq'), 0)";
                let row = within(admin.query_one(sql, &[])).await?;
                Ok(Some(row.try_get::<_, i64>(0).unwrap_or_default().unsigned_abs()))
            }
            Destination::Endpoint { taken, .. } => Ok(Some(taken.load(Ordering::Relaxed))),
            Destination::Files { .. } => Ok(None),
        }
    }

    /// A number that grows with what arrives.
    pub(super) async fn fill(&self) -> Result<u64, Error> {
        match self {
            Destination::Files { folder } => {
                let files = files(folder)?;
                Ok(files.iter().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum())
            }
            counted => Ok(counted.counted().await?.unwrap_or_default()),
        }
    }

    /// Tells what has arrived, in its own order. An endpoint has told it already.
    pub(super) async fn tell(&self, book: &Book) -> Result<u64, Error> {
        match self {
            Destination::Inbox { fixture, .. } => tell_inbox(fixture, book).await,
            Destination::Endpoint { taken, book, .. } => book.whole().map(|()| taken.load(Ordering::Relaxed)),
            Destination::Files { folder } => files(folder)?.iter().map(|file| tell_file(file, book)).sum(),
        }
    }
}

impl Mood {
    /// Whether it does nothing with this request but say that it failed: with every second one of which it says so.
    fn refuses(self, nth: u64) -> bool {
        self == Mood::Failing && matches!(nth % 10, 6 | 7)
    }
}

/// `moods` tells when it is in another one.
async fn answer(mood: Mood, nth: u64, mut moods: watch::Receiver<Mood>) -> Reply {
    match mood {
        Mood::Willing => {}
        Mood::Slow(by) => tokio::time::sleep(by).await,
        Mood::Failing => match nth % 5 {
            0 => return Reply::Close,
            1 => return Reply::Status(503),
            2 => return Reply::Status(500),
            _ => {}
        },
        Mood::Rejecting => return Reply::Status(422),
        Mood::Hanging => {
            let _ = moods.changed().await;
            return Reply::Close;
        }
    }
    Reply::Status(204)
}

/// A message's id, and the transaction that had changed it, if one had.
type Came = (String, Option<u64>);

fn arrived(place: &str, messages: Vec<Came>) -> Event {
    let (ids, contents): (Vec<String>, Vec<Option<u64>>) = messages.into_iter().unzip();
    let contents = (0..).zip(contents).filter_map(|(nth, content)| Some((nth, content?))).collect();
    Event::Arrived { place: place.to_owned(), ids, contents }
}

fn in_inbox(row: &tokio_postgres::Row) -> Result<Came, tokio_postgres::Error> {
    let payload: Option<&[u8]> = row.try_get(1)?;
    Ok((row.try_get(0)?, payload.and_then(changed_by)))
}

async fn tell_inbox(fixture: &Fixture, book: &Book) -> Result<u64, Error> {
    let failed = |cause| Error::because("reading the inbox", &cause);
    let admin = again(UNDO_WITHIN, || fixture.admin()).await?;
    let sql = "select message_id, substr(payload, 1, 40) from app.inbox order by seq";
    let none: [&str; 0] = [];
    let rows = admin.query_raw(sql, none).await.map_err(failed)?;
    let mut chunks =
        std::pin::pin!(rows.map_err(failed).and_then(async |row| in_inbox(&row).map_err(failed)).chunks(TOLD_AT_ONCE));
    let mut told = 0;
    while let Some(messages) = chunks.next().await {
        let messages = messages.into_iter().collect::<Result<Vec<Came>, Error>>()?;
        told += messages.len() as u64;
        book.tell(arrived("inbox", messages));
    }
    Ok(told)
}

/// Where the `file` sink of this replica writes.
pub(super) fn file_of(folder: &Path, replica: &str) -> PathBuf {
    folder.join(format!("{replica}.jsonl"))
}

/// What the `file` sink wrote.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |cause| Error::because("looking for the sink's files", &cause);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[derive(Deserialize)]
struct Line {
    id: String,
    text: Option<String>,
}

/// A line that a kill has torn at the end of the file was never acknowledged, and is cut when the file is opened again.
fn tell_file(file: &Path, book: &Book) -> Result<u64, Error> {
    let failed = |cause: &dyn std::error::Error| Error::because(format!("reading {}", file.display()), cause);
    let mut reader = BufReader::new(std::fs::File::open(file).map_err(|cause| failed(&cause))?);
    let place = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (mut messages, mut told, mut line) = (Vec::new(), 0, Vec::new());
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line).map_err(|cause| failed(&cause))?;
        let whole = line.last() == Some(&b'\n');
        if whole {
            let Line { id, text } = serde_json::from_slice(&line).map_err(|cause| failed(&cause))?;
            messages.push((id, text.and_then(|text| changed_by(text.as_bytes()))));
        }
        if messages.len() == TOLD_AT_ONCE || (read == 0 || !whole) && !messages.is_empty() {
            told += messages.len() as u64;
            book.tell(arrived(&place, std::mem::take(&mut messages)));
        }
        if read == 0 || !whole {
            return Ok(told);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_fails_refuses_half_of_what_it_says_has_failed() {
        let (_mood, moods) = watch::channel(Mood::Failing);
        let mut seen = Vec::new();
        for nth in 0..10 {
            let refused = Mood::Failing.refuses(nth);
            assert!(!Mood::Willing.refuses(nth));
            if let Reply::Status(status @ 500..) = answer(Mood::Failing, nth, moods.clone()).await {
                seen.push((status, refused));
            } else {
                assert!(!refused, "{nth}");
            }
        }
        assert_eq!(seen, [(503, false), (500, false), (503, true), (500, true)]);
    }
}
