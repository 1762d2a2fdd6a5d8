//! Looking for a target: T, its ceiling, whether both are on disk, and which segments they need.

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::{Log, NativeSource, REBASE, number, snapshot};
use crate::clock;
use crate::connection::{Access, Connection, Parameter, incarnation};
use crate::error::{Error, Kind};
use crate::message::Timestamp;
use crate::position::{Incarnation, Snapshot, Target};
use crate::source::flush;
use crate::sql;

/// A target, and where its messages are.
pub(super) struct Sighted {
    here: Incarnation,
    target: Target,
    /// Leaves without an id above this are not listed: a lane that reads from further down has to ask all of them.
    above: i64,
    segments: Vec<i16>,
}

/// What a look answers.
struct Answers {
    target: Vec<Row>,
    /// The answers of `ceiling` and `written`, if they were asked for at once.
    beside: Option<[Vec<Row>; 2]>,
}

impl NativeSource {
    /// Looks for a new target for lanes at rest. `None` if nothing has happened since the last one.
    pub(super) async fn sight(&self, lanes: &[i32]) -> Result<Option<Sighted>, Error> {
        let mut slot = self.reader.lock().await;
        let (connection, began) = (slot.take().await?.waiting(self.patience.now()), clock::now());
        let sighted = self.sight_on(&connection, lanes).await;
        self.patience.follow(clock::now().since(began), sighted.is_ok());
        let sighted = sighted?;
        slot.put(connection);
        Ok(sighted)
    }

    async fn sight_on(&self, connection: &Connection, lanes: &[i32]) -> Result<Option<Sighted>, Error> {
        let (lowest, least) = self.log(|log| known(log, lanes));
        let above: [Parameter<'_>; 1] = [(&lowest, Type::INT8)];
        let Answers { target, beside } = self.ask(connection, &above).await?;
        let here = incarnation(&target)?;
        self.same_incarnation(&here)?;
        let seen = read_target(&target)?;
        self.metrics.server_clock_says(server_clock(&target)?);
        let news = self.log(|log| {
            let mut places = lanes.iter().filter_map(|lane| log.places.get(lane));
            log.news = places.any(|place| seen.newer_than(place.read_to.consumed()));
            log.news
        });
        if !news {
            return Ok(None);
        }
        // In statements after the one that took T: what T sees has no id above the ceiling, and is in these segments.
        let [ceiling, written] = match beside {
            Some(beside) => beside,
            None => connection.pipeline(Access::Look, [(sql::CEILING, &[]), (sql::WRITTEN, &above)]).await?,
        };
        self.still(&here, &ceiling)?;
        let ceiling = number(&ceiling)?;
        let written = written
            .first()
            .ok_or_else(|| Error::new(Kind::Internal, "the server did not say how far it has written its log"))?;
        if !written.try_get::<_, bool>("flushed")? {
            flush::until(connection, &here, &self.spec.relay, written.try_get("written")?).await?;
        }
        if ceiling < least {
            return Err(Error::refused(
                format!("relay {}: the outbox's last number is {ceiling} and was {least} before", self.spec.relay),
                REBASE,
            ));
        }
        let target = Target { snapshot: seen, ceiling };
        Ok(Some(Sighted { here, target, above: lowest, segments: written.try_get("segments")? }))
    }

    /// While messages come in, all is asked for at once: one statement after the other, in one round trip. Else only
    /// whether there is anything new, which touches no table.
    async fn ask(&self, connection: &Connection, above: &[Parameter<'_>]) -> Result<Answers, Error> {
        if self.log(|log| log.news) {
            let statements = [(sql::TARGET, &[][..]), (sql::CEILING, &[]), (sql::WRITTEN, above)];
            let [target, ceiling, written] = connection.pipeline(Access::Look, statements).await?;
            Ok(Answers { target, beside: Some([ceiling, written]) })
        } else {
            let [target] = connection.pipeline(Access::Look, [(sql::TARGET, &[])]).await?;
            Ok(Answers { target, beside: None })
        }
    }

    /// What belongs together comes from one incarnation, whatever the log in memory has become meanwhile.
    pub(super) fn still(&self, here: &Incarnation, rows: &[Row]) -> Result<(), Error> {
        let found = incarnation(rows)?;
        flush::same(here, &found, &self.spec.relay)
    }

    /// Has lanes take up a target, unless everything in memory belongs to another incarnation by now.
    pub(super) fn take_target(&self, lanes: &[i32], sighted: Sighted) {
        self.log(|log| {
            if log.incarnation.as_ref() == Some(&sighted.here) {
                log.last_number = log.last_number.max(Some(sighted.target.ceiling));
                log.aim_at(lanes, &sighted.target);
                log.sighted = Some(sighted);
            }
        });
    }

    /// The segments that can hold messages of this target above this id. `None` if that is not known: all of them.
    pub(super) fn segments(&self, target: Option<&Target>, after: i64) -> Option<Vec<i16>> {
        self.log(|log| {
            let sighted = log.sighted.as_ref().filter(|sighted| Some(&sighted.target) == target)?;
            (after >= sighted.above).then(|| sighted.segments.clone())
        })
    }
}

/// The lowest floor of these lanes, and the least that the ceiling can be.
fn known(log: &Log, lanes: &[i32]) -> (i64, i64) {
    let floors = || lanes.iter().filter_map(|lane| log.places.get(lane)).map(|place| place.read_to.floor());
    let least = floors().chain(log.last_number).max().unwrap_or_default();
    (floors().min().unwrap_or_default(), least)
}

/// The server's clock when it took the target.
fn server_clock(rows: &[Row]) -> Result<Timestamp, Error> {
    let row = rows.first().ok_or_else(|| Error::new(Kind::Internal, "the server did not say its time"))?;
    Ok(Timestamp(row.try_get("clock")?))
}

fn read_target(rows: &[Row]) -> Result<Snapshot, Error> {
    let row = rows.first().ok_or_else(|| Error::new(Kind::Internal, "the server gave no snapshot"))?;
    if !row.try_get::<_, bool>("alone")? {
        return Err(Error::new(Kind::Internal, "a target was taken in a transaction that has an id"));
    }
    snapshot(row.try_get("snapshot")?)
}

impl Log {
    pub(super) fn aim_at(&mut self, lanes: &[i32], target: &Target) {
        for lane in lanes {
            if let Some(place) = self.places.get_mut(lane) {
                place.read_to = place.read_to.clone().aim(target);
            }
        }
    }
}
