//! A message of the outbox: finding it, and where it stands in each relay that reads the outbox.
//!
//! What is asked first is which transactions have written and not ended: what is not seen afterwards is of one of these, or will never be.

use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::relay::{self, Facts};
use super::standing::{Ended, standing};
use super::{Ahead, Named, OutboxMessage, Question, Read, Reads, RelayTrace, State, Trace, Writer, beats, words};
use crate::connection::{Access, Connection, Parameter};
use crate::control::parked::{self, ParkedMessage};
use crate::error::Error;
use crate::housekeeping::segments::{self, Segment};
use crate::position::Xid;
use crate::source::native;
use crate::sql;

/// As many messages as are looked at to count those that stand before one, as `trace_ahead` has it.
const LOOKED_AT: i64 = 20_000;
/// What the server says of a statement whose time is over.
const TIME_IS_OVER: &str = "57014";

/// What a look for a message brought.
#[derive(Default)]
struct Looked {
    message: Option<OutboxMessage>,
    /// Others with the same message id.
    others: Vec<i64>,
    cut_off: bool,
    /// The greatest number there was in segments when they were emptied last, where it was not found.
    emptied: Option<i64>,
}

pub(super) async fn trace(
    connection: &Connection,
    question: &Question,
    named: &Named,
    reads: &Reads,
) -> Result<Trace, Error> {
    let number = if let Named::Number(number) = named { Some(*number) } else { None };
    let parameters: [Parameter<'_>; 1] = [(&number, Type::INT8)];
    let statements = [(sql::CEILING, &[][..]), (sql::TRACE_WRITERS, &parameters)];
    let [ceiling, writers] = connection.pipeline(Access::Look, statements).await?;
    let last = native::number(&ceiling)?;
    let looked = look(connection, question, named).await?;
    let Looked { message, others, cut_off, emptied } = looked;
    let mut trace = Trace {
        id: question.id.clone(),
        found: message.is_some(),
        words: Vec::new(),
        message,
        writers: Vec::new(),
        cut_off,
        relays: Vec::new(),
    };
    let Some(message) = &trace.message else {
        let writers = writers.iter().map(writer).collect::<Result<Vec<_>, _>>()?;
        trace.words = match named {
            Named::Number(number) => words::unseen_number(*number, last, cut_off, emptied, &writers),
            _ => words::unseen_id(cut_off.then_some(question.within), emptied, &writers),
        };
        let given_out = !matches!(named, Named::Number(number) if *number > last);
        trace.writers = if given_out { writers } else { Vec::new() };
        return Ok(trace);
    };
    trace.words = words::of_message(message, &others);
    let (mut relays, registered) = in_relays(connection, question, message, reads).await?;
    if relays.is_empty() {
        trace
            .words
            .push("No relay that reads the outbox is registered: nobody delivers it, and nothing is emptied.".into());
    }
    let watched = beats::watch(connection, &mut relays).await?;
    for (relay, registered) in relays.iter_mut().zip(&registered) {
        relay.words = words::in_outbox(relay, message, registered, watched);
    }
    trace.relays = relays;
    Ok(trace)
}

async fn look(connection: &Connection, question: &Question, named: &Named) -> Result<Looked, Error> {
    let mut looked = Looked::default();
    match named {
        Named::Number(number) => {
            looked.message = by_number(connection, *number, question.within, &mut looked.cut_off).await?;
        }
        Named::MessageId(id) => by_message_id(connection, id, question, &mut looked).await?,
        Named::Row(_) => {}
    }
    if looked.message.is_none() {
        let [rows] = connection.pipeline(Access::Look, [(sql::TRACE_EMPTIED, &[])]).await?;
        looked.emptied = rows.first().map(emptied).transpose()?.flatten();
    }
    Ok(looked)
}

/// Up to which number messages may have been in a segment that was emptied.
fn emptied(row: &Row) -> Result<Option<i64>, Error> {
    Ok(if row.try_get("rebased")? { Some(i64::MAX) } else { row.try_get("emptied_id")? })
}

/// In the log, or else where it is set aside.
async fn by_number(
    connection: &Connection,
    number: i64,
    within: Duration,
    cut_off: &mut bool,
) -> Result<Option<OutboxMessage>, Error> {
    let parameters: [Parameter<'_>; 1] = [(&number, Type::INT8)];
    let [rows] = connection.pipeline(Access::Read, [(sql::TRACE_NUMBER, &parameters)]).await?;
    if let Some(row) = rows.first() {
        return message(row, true).map(Some);
    }
    match set_aside(connection, Some(number), None, within).await {
        Err(error) if error.sql_state() == Some(TIME_IS_OVER) => {
            connection.roll_back().await?;
            *cut_off = true;
            Ok(None)
        }
        aside => aside,
    }
}

async fn set_aside(
    connection: &Connection,
    number: Option<i64>,
    id: Option<&str>,
    within: Duration,
) -> Result<Option<OutboxMessage>, Error> {
    let parameters: [Parameter<'_>; 2] = [(&number, Type::INT8), (&id, Type::TEXT)];
    let milliseconds = within.as_millis().max(1).to_string();
    connection.open(Access::Look).await?;
    if number.is_some() {
        connection.then(sql::TRACE_SETTINGS, &[(&milliseconds, Type::TEXT)]).await?;
    }
    let rows = connection.then(sql::TRACE_PARKED, &parameters).await?;
    connection.commit(sql::INCARNATION, &[]).await?;
    rows.first().map(|row| message(row, false)).transpose()
}

/// What is set aside is found down an index, and tells its number; all else is read from the newest segment on.
async fn by_message_id(
    connection: &Connection,
    id: &uuid::Uuid,
    question: &Question,
    looked: &mut Looked,
) -> Result<(), Error> {
    if let Some(aside) = set_aside(connection, None, Some(&id.to_string()), question.within).await? {
        let there = by_number(connection, aside.number, question.within, &mut looked.cut_off).await?;
        looked.message = Some(there.filter(|there| there.message_id == aside.message_id).unwrap_or(aside));
        return Ok(());
    }
    let deadline = Instant::now() + question.within;
    for segment in newest_first(segments::list(connection).await?) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            looked.cut_off = true;
            return Ok(());
        }
        match in_segment(connection, segment.number, id, left).await {
            Ok(numbers) => {
                let Some((number, others)) = numbers.split_first() else { continue };
                looked.message = by_number(connection, *number, question.within, &mut looked.cut_off).await?;
                looked.others = others.to_vec();
                if looked.message.is_some() {
                    return Ok(());
                }
            }
            Err(error) if error.sql_state() == Some(TIME_IS_OVER) => {
                connection.roll_back().await?;
                looked.cut_off = true;
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The one in use, then those before it in the ring, then what an earlier, larger ring has left.
fn newest_first(mut segments: Vec<Segment>) -> Vec<Segment> {
    let ring = i16::try_from(segments.iter().filter(|segment| segment.in_ring).count()).unwrap_or(i16::MAX).max(1);
    let in_use = segments.iter().find(|segment| segment.in_use).map_or(0, |segment| segment.number);
    segments.retain(|segment| segment.filled);
    segments.sort_by_key(|segment| {
        let ago = in_use.saturating_sub(segment.number).rem_euclid(ring);
        (!segment.in_ring, ago)
    });
    segments
}

async fn in_segment(connection: &Connection, segment: i16, id: &uuid::Uuid, left: Duration) -> Result<Vec<i64>, Error> {
    let milliseconds = left.as_millis().max(1).to_string();
    connection.open(Access::Look).await?;
    connection.then(sql::TRACE_SETTINGS, &[(&milliseconds, Type::TEXT)]).await?;
    let parameters: [Parameter<'_>; 2] = [(&segment, Type::INT2), (id, Type::UUID)];
    let rows = connection.then(sql::TRACE_MESSAGE_ID, &parameters).await?;
    connection.commit(sql::INCARNATION, &[]).await?;
    rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
}

/// Of the log, or of what is set aside, which tells less.
fn message(row: &Row, in_log: bool) -> Result<OutboxMessage, Error> {
    Ok(OutboxMessage {
        number: row.try_get("id")?,
        message_id: row.try_get("message_id")?,
        xid: row.try_get("xid")?,
        topic: row.try_get("topic")?,
        key: row.try_get("key")?,
        bytes: row.try_get("size")?,
        created_at: row.try_get("created_at")?,
        committed_at: if in_log { row.try_get("committed_at")? } else { None },
        segment: if in_log { row.try_get("segment")? } else { None },
        hash: row.try_get("hash")?,
        keeps_times: in_log && row.try_get("keeps_times")?,
    })
}

fn writer(row: &Row) -> Result<Writer, Error> {
    Ok(Writer {
        pid: row.try_get("pid")?,
        xid: row.try_get("xid")?,
        prepared: row.try_get("gid")?,
        role: row.try_get("role")?,
        application: row.try_get("application")?,
        state: row.try_get("state")?,
        since: row.try_get("since")?,
        age_seconds: row.try_get("age")?,
    })
}

/// Where it stands in each relay that reads the outbox, all of it at one moment: a position passes a message in the transaction that sets
/// it aside. Beside each, which transaction registered it, and when.
async fn in_relays(
    connection: &Connection,
    question: &Question,
    message: &OutboxMessage,
    reads: &Reads,
) -> Result<(Vec<RelayTrace>, Vec<(Xid, String)>), Error> {
    let xid = native::xid(&message.xid)?;
    connection.open(Access::Read).await?;
    let mut found = Vec::new();
    for facts in relay::facts(connection, question.relay.as_deref(), message.hash).await? {
        if !facts.adopts {
            let aside = parked::of_id(connection, &facts.relay, &message.message_id).await?;
            found.push((facts, aside));
        }
    }
    connection.commit(sql::INCARNATION, &[]).await?;
    let (mut relays, mut registered) = (Vec::new(), Vec::new());
    for (mut facts, aside) in found {
        registered.push(std::mem::replace(&mut facts.registered, (xid, String::new())));
        let mut relay = in_relay(facts, message, xid, aside, reads);
        relay.ahead = ahead(connection, &relay, message.number).await?;
        relays.push(relay);
    }
    Ok((relays, registered))
}

fn in_relay(
    facts: Facts,
    message: &OutboxMessage,
    xid: Xid,
    aside: Option<ParkedMessage>,
    reads: &Reads,
) -> RelayTrace {
    let Facts { relay, lane, .. } = facts;
    let configured = reads.0.iter().find(|(name, _)| name.as_str() == relay).map(|(_, read)| read);
    let takes_topic = match configured {
        Some(Read::Outbox(topics)) => {
            Some(topics.is_empty() || topics.iter().any(|pattern| native::is_like(&message.topic, pattern)))
        }
        Some(Read::Table(_)) | None => None,
    };
    let position = lane.as_ref().and_then(|lane| lane.position.as_ref());
    let stands = position.map(|position| standing(position, xid, message.number, Ended::Committed));
    // Another message with the same id may be set aside: with this one it is one message as soon as the position has passed both.
    let aside =
        aside.filter(|aside| aside.log_id == Some(message.number) || stands.is_none_or(super::Standing::is_passed));
    let state = match (&aside, stands, takes_topic) {
        (Some(aside), ..) => words::state_of(aside),
        (None, None, _) => State::NotKnown,
        (None, Some(_), Some(false)) => State::PassedOver,
        (None, Some(stands), _) if stands.is_passed() => State::DealtWith,
        (None, Some(_), _) => State::Waits,
    };
    RelayTrace {
        relay,
        table: None,
        state,
        words: Vec::new(),
        takes_topic,
        lane,
        standing: stands,
        ahead: None,
        parked: aside,
        row: None,
    }
}

/// What stands before it in its lane, where it waits in the log.
async fn ahead(connection: &Connection, relay: &RelayTrace, number: i64) -> Result<Option<Ahead>, Error> {
    let after = relay.standing.and_then(super::Standing::after).filter(|_| relay.state == State::Waits);
    let (Some(after), Some(lane)) = (after, &relay.lane) else { return Ok(None) };
    let Some(position) = &lane.position else { return Ok(None) };
    let consumed = position.consumed().to_string();
    let parameters: [Parameter<'_>; 5] = [
        (&after, Type::INT8),
        (&number, Type::INT8),
        (&consumed, Type::TEXT),
        (&lane.lanes, Type::INT4),
        (&lane.lane, Type::INT4),
    ];
    let [rows] = connection.pipeline(Access::Read, [(sql::TRACE_AHEAD, &parameters)]).await?;
    let ahead = rows.first().map(|row| {
        let (messages, looked): (i64, i64) = (row.try_get("ahead")?, row.try_get("looked")?);
        Ok::<_, Error>(Ahead { messages, or_more: looked >= LOOKED_AT })
    });
    ahead.transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_looked_through_from_the_newest_on() {
        let segment = |number, filled| Segment { number, bytes: 0, filled, in_ring: number < 4, in_use: number == 1 };
        let segments = [(0, true), (1, true), (2, false), (3, true), (4, true)].map(|(n, filled)| segment(n, filled));
        let order = newest_first(segments.to_vec()).into_iter().map(|segment| segment.number);
        assert_eq!(order.collect::<Vec<_>>(), [1, 0, 3, 4]);
    }
}
