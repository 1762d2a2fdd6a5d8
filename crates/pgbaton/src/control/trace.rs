//! The whole life of one message, as far as this database knows it: written when and by which transaction, whether others see it, its
//! lane and owner, where it stands to the lane's position, and what it waits for, in words.
//!
//! Reads only. What the database does not know is said to be not known: which topics a relay takes and which rows of an adopted table
//! are pending stands in the configuration alone ([`Reads`]); that a message was delivered follows from the position having passed it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::checked;
use super::parked::ParkedMessage;
use crate::connection::{Access, Database, incarnation};
use crate::error::{Error, Kind};
use crate::lane::RelayName;
use crate::position::Position;
use crate::source::native;
use crate::source::table::TableSpec;
pub use crate::source::table::whereabouts::RowFacts;
use crate::sql;

mod beats;
mod outbox;
mod relay;
mod row;
mod standing;
mod words;

pub use standing::{Ended, Standing, standing};

/// What is asked.
#[derive(Debug, Clone)]
pub struct Question {
    /// A message id, as the sink sees it, or a number of the outbox.
    pub id: String,
    /// Of this relay alone; `None`: of all.
    pub relay: Option<String>,
    /// How long messages are looked through for an id that no index knows: a day at most.
    pub within: Duration,
}

/// Nobody waits for longer.
const LONGEST: Duration = Duration::from_secs(86_400);
/// What an answer takes besides what the server was asked to take for it.
const ON_THE_WAY: Duration = Duration::from_secs(10);

/// What a configuration says its relays read, by their names: what the database does not know.
#[derive(Debug, Clone, Default)]
pub struct Reads(pub(crate) BTreeMap<RelayName, Read>);

/// What one relay reads.
#[derive(Debug, Clone)]
pub(crate) enum Read {
    /// The outbox, of these topics; none: all.
    Outbox(Vec<String>),
    /// A table.
    Table(Arc<TableSpec>),
}

/// All that is known of a message.
#[derive(Debug, Serialize)]
pub struct Trace {
    /// As it was asked for.
    pub id: String,
    /// Whether there is such a message: not where its transaction has not ended, since only that one sees it.
    pub found: bool,
    /// About the message itself, in sentences.
    pub words: Vec<String>,
    /// The message of the outbox. `None` of an adopted table's.
    pub message: Option<OutboxMessage>,
    /// Transactions that have written to the outbox and have not ended, where the message may be one of theirs.
    pub writers: Vec<Writer>,
    /// Not all messages were looked through for this id: the time was over.
    pub cut_off: bool,
    /// What has become of it in each relay.
    pub relays: Vec<RelayTrace>,
}

/// A message of the outbox, without what it says.
#[derive(Debug, Clone, Serialize)]
pub struct OutboxMessage {
    /// Its number.
    pub number: i64,
    /// Its message id.
    pub message_id: String,
    /// The transaction that wrote it.
    pub xid: String,
    /// Where it goes.
    pub topic: String,
    /// What it is ordered by.
    pub key: Option<String>,
    /// Bytes of it.
    pub bytes: i32,
    /// When it was inserted, in UTC.
    pub created_at: String,
    /// When its transaction was committed, in UTC: since then others see it. `None` if the server does not know.
    pub committed_at: Option<String>,
    /// The segment that it is in. `None` if that was emptied, and the message is set aside.
    pub segment: Option<i16>,
    #[serde(skip)]
    pub(crate) hash: i64,
    #[serde(skip)]
    pub(crate) keeps_times: bool,
}

/// An open transaction that has written to the outbox.
#[derive(Debug, Clone, Serialize)]
pub struct Writer {
    /// Its server process. `None` if it is prepared.
    pub pid: Option<i32>,
    /// Its transaction id.
    pub xid: Option<String>,
    /// The name that it was prepared under.
    pub prepared: Option<String>,
    /// Its role, application and state. `None` if this role may not see them.
    pub role: Option<String>,
    /// See `role`.
    pub application: Option<String>,
    /// See `role`.
    pub state: Option<String>,
    /// When it began, in UTC. `None` if this role may not see that.
    pub since: Option<String>,
    /// Seconds since then.
    pub age_seconds: Option<f64>,
}

/// What has become of a message in a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The position has passed it, and it is not set aside: delivered, unless the words say what else it may be.
    DealtWith,
    /// The relay does not take its topic, by the configuration at hand.
    PassedOver,
    /// It is still to be delivered.
    Waits,
    /// It failed, or waits behind one that did.
    SetAside,
    /// It is not tried any more.
    Dead,
    /// A dead row of an adopted table that was discarded.
    GivenUp,
    /// A row of an adopted table that is not pending: marked, by the relay or by somebody else.
    NotPending,
    /// It is not there any more.
    Gone,
    /// It cannot be told; the words say why.
    NotKnown,
}

/// What one relay makes of the message.
#[derive(Debug, Serialize)]
pub struct RelayTrace {
    /// The relay.
    pub relay: String,
    /// The adopted table that it reads, quoted; `None`: the outbox.
    pub table: Option<String>,
    /// What has become of it.
    pub state: State,
    /// The same, and what it waits for, in sentences.
    pub words: Vec<String>,
    /// Whether the relay takes its topic. `None` if that is not known here.
    pub takes_topic: Option<bool>,
    /// Its lane. `None` if the relay has none for it, or it is not known which.
    pub lane: Option<LaneTrace>,
    /// Where it stands to the position of its lane.
    pub standing: Option<Standing>,
    /// Messages of its lane that stand before it.
    pub ahead: Option<Ahead>,
    /// How it was set aside.
    pub parked: Option<ParkedMessage>,
    /// Its row in the adopted table.
    pub row: Option<RowFacts>,
}

/// The lane of a message.
#[derive(Debug, Serialize)]
pub struct LaneTrace {
    /// Its number.
    pub lane: i32,
    /// How many lanes there are of that kind.
    pub lanes: i32,
    /// Its epoch.
    pub epoch: i64,
    /// The replica that holds it.
    pub replica: Option<String>,
    /// That replica's name.
    pub replica_name: Option<String>,
    /// That replica's renewals so far.
    pub beat: Option<i64>,
    /// Whether it was seen to renew its lease. `None` if nobody looked, since nothing waits for it.
    pub beat_moved: Option<bool>,
    /// That replica takes no lanes of the relay any more.
    pub leaving: bool,
    /// How many replicas run the relay.
    pub replicas: i64,
    /// The number of the lane's last batch that was handed to the sink, of those whose position is written.
    pub batch: Option<i64>,
    /// How far it is. `None` of an adopted table.
    pub position: Option<Position>,
    /// Seconds since that was written.
    pub position_age_seconds: Option<f64>,
    #[serde(skip)]
    pub(crate) ttl: Duration,
}

/// What stands before a message in its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Ahead {
    /// Messages of its lane, whether the relay takes their topics or not.
    pub messages: i64,
    /// Not all were counted: there may be more.
    pub or_more: bool,
}

/// What the id may name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    Number(i64),
    MessageId(uuid::Uuid),
    /// A row of the table that this relay adopts.
    Row(String),
}

impl Named {
    /// `adopting` are the relays that adopt a table, `relay` the one that is asked about.
    fn of(id: &str, adopting: &[&str], relay: Option<&str>) -> Result<Self, Error> {
        let asked = |name: &&&str| relay.is_none_or(|relay| relay == **name);
        let prefixed = |name: &&&str| id.strip_prefix(**name).is_some_and(|rest| rest.starts_with(':'));
        if let Some(name) = adopting.iter().filter(asked).find(prefixed) {
            return Ok(Self::Row((*name).to_owned()));
        }
        // Of one relay, its row's id alone will do.
        if let Some(relay) = relay.filter(|relay| adopting.contains(relay)) {
            return Ok(Self::Row(relay.to_owned()));
        }
        if let Some(number) = id.parse().ok().filter(|number| *number > 0) {
            return Ok(Self::Number(number));
        }
        uuid::Uuid::try_parse(id).map(Self::MessageId).map_err(|_| {
            Error::refused(
                format!("{id:?} is no id of a message"),
                "A message of the outbox is named by its message id, which is a uuid, or by its number; one of an adopted table by \
                 its relay and the id of its row, such as orders:7. `pgbaton relays list` shows the relays",
            )
        })
    }
}

/// Looks for a message and for what has become of it in each relay.
///
/// It looks at the log by number down an index. A message id is looked for in the segments that are still stored, the newest first,
/// for [`Question::within`] at most. Where something waits for a replica, that replica is watched for some seconds, until it renews its
/// lease.
///
/// # Errors
/// A relay that is not registered, an id that is none, a database that cannot be reached or is in recovery, a schema of another version,
/// and a database or server that positions were not written in: nothing they say counts there.
pub async fn find(database: &Database, question: &Question, reads: &Reads) -> Result<Trace, Error> {
    let question = &Question { within: question.within.min(LONGEST), ..question.clone() };
    let patience = database.patience().max(question.within + ON_THE_WAY);
    let connection = checked(database).await?.waiting(patience);
    let [home] = connection.pipeline(Access::Look, [(sql::OUTBOX_FACTS, &[])]).await?;
    let here = incarnation(&home).map_err(on_the_primary)?;
    native::check_server(home.first())?;
    let registered = relay::registered(&connection, question.relay.as_deref()).await?;
    let adopting: Vec<&str> = registered.iter().filter(|of| of.table.is_some()).map(|of| of.name.as_str()).collect();
    let trace = match Named::of(&question.id, &adopting, question.relay.as_deref())? {
        Named::Row(name) => row::trace(&connection, question, &registered, &name, reads).await?,
        named => outbox::trace(&connection, question, &named, reads).await?,
    };
    let [found] = connection.pipeline(Access::Look, [(sql::INCARNATION, &[])]).await?;
    if incarnation(&found)? != here {
        return Err(Error::new(Kind::Database, "the database was failed over meanwhile: ask again"));
    }
    Ok(trace)
}

/// A standby shows no transaction that is open on its primary, and positions as they were a while ago.
fn on_the_primary(error: Error) -> Error {
    error.hint("Ask the primary: a standby does not know what is open there")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_what_it_names() {
        let of = |id: &str, relay| Named::of(id, &["orders", "uuids"], relay).ok();
        let uuid = "018f4e6a-1b2c-7d3e-8f90-123456789abc";
        assert_eq!(of("42", None), Some(Named::Number(42)));
        assert_eq!(of(uuid, None), Some(Named::MessageId(uuid.parse().unwrap())));
        assert_eq!(of(&uuid.to_uppercase(), None), Some(Named::MessageId(uuid.parse().unwrap())));
        assert_eq!(of("orders:42", None), Some(Named::Row("orders".into())));
        assert_eq!(of("42", Some("orders")), Some(Named::Row("orders".into())));
        assert_eq!(of("42", Some("native")), Some(Named::Number(42)));
        for (id, relay) in [("", None), ("0", None), ("-1", None), ("other:42", None), ("orders:42", Some("native"))] {
            assert_eq!(of(id, relay), None, "{id}");
        }
    }
}
