//! What was found, in sentences. Pure. Each says what happened, and what to do where somebody has to do something; none says more than is
//! known.

use std::time::Duration;

use super::row::{Configured, Found};
use super::{LaneTrace, OutboxMessage, RelayTrace, Standing, State, Writer};
use crate::control::parked::ParkedMessage;
use crate::position::Xid;
use crate::source::native;

/// The transaction that `pgbaton rebase` writes down for what everybody had dealt with.
const REBASED: &str = "3";

/// What has become of a message that is set aside.
pub(super) fn state_of(aside: &ParkedMessage) -> State {
    match aside {
        ParkedMessage { given_up: true, .. } => State::GivenUp,
        ParkedMessage { dead_at: Some(_), .. } => State::Dead,
        _ => State::SetAside,
    }
}

/// About a message of the outbox that is there.
pub(super) fn of_message(message: &OutboxMessage, others: &[i64]) -> Vec<String> {
    let OutboxMessage { number, created_at, xid, .. } = message;
    let mut words = Vec::new();
    words.push(match xid.as_str() {
        REBASED => format!(
            "Message {number} was inserted at {created_at}; by which transaction is not known any more, since `pgbaton rebase` wrote it \
             anew as dealt with."
        ),
        _ => format!("Message {number} was inserted at {created_at} by transaction {xid}, which is committed."),
    });
    words.push(match (&message.committed_at, message.segment, message.keeps_times) {
        (Some(at), ..) => format!("Others see it since {at}, when that was committed."),
        (None, Some(_), true) => "Since when others see it is not known: the server has forgotten when that was committed.".to_owned(),
        (None, Some(_), false) => {
            "Since when others see it is not known: the server keeps no times of commits (track_commit_timestamp is off).".to_owned()
        }
        (None, None, _) => {
            "Its segment was emptied, since all relays had dealt with it or set it aside; it is kept where it is set aside.".to_owned()
        }
    });
    if !others.is_empty() {
        let numbers = others.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        words.push(format!(
            "Other messages of the same segment have the same message id, and are one message to a receiver that drops repeats: {numbers}."
        ));
    }
    words
}

/// About a number of which no message is seen.
pub(super) fn unseen_number(
    number: i64,
    last: i64,
    cut_off: bool,
    emptied: Option<i64>,
    writers: &[Writer],
) -> Vec<String> {
    if number > last {
        return vec![format!("There is no message {number} yet: the last number that was given out is {last}.")];
    }
    let mut words = vec![format!("No message {number} is seen, though its number was given out.")];
    let (open, emptied) = (!writers.is_empty(), emptied.is_some_and(|emptied| number <= emptied));
    if open {
        words.push(format!(
            "It may be in a transaction that has not ended, whose messages nobody else sees until it is committed: {}.",
            listed(writers)
        ));
    }
    if emptied {
        words.push(was_emptied(cut_off));
    }
    words.push(match open || emptied {
        true => "Or its transaction was rolled back, or a crash of the server left the number out: then there never was a message.".to_owned(),
        false => "Its transaction was rolled back, or a crash of the server left the number out: there never was a message. (No open \
                  transaction can hold it, and no segment that was emptied can have held it.)"
            .to_owned(),
    });
    words
}

/// About a message id that was not found. `within` is how long was looked, if that was not long enough.
pub(super) fn unseen_id(within: Option<Duration>, emptied: Option<i64>, writers: &[Writer]) -> Vec<String> {
    let mut words = Vec::new();
    words.push(match within {
        Some(within) => format!(
            "No message of this id was found in {within:?}, and then the search was cut off: older segments were not looked through. No \
             index knows message ids: give it more time (`--within`), or the message's number instead."
        ),
        None => "No message of this id is in the segments that are stored, nor set aside.".to_owned(),
    });
    if !writers.is_empty() {
        words.push(format!(
            "It may be in a transaction that has not ended, whose messages nobody else sees until it is committed: {}.",
            listed(writers)
        ));
    }
    if emptied.is_some() {
        words.push(was_emptied(false));
    }
    words.push("Or there never was one: a transaction that was rolled back leaves nothing, and this may be the id of something else.".to_owned());
    words
}

/// What is set aside is found by its message id at once; numbers are looked through.
fn was_emptied(cut_off: bool) -> String {
    let aside = match cut_off {
        true => {
            "; whether one has it set aside is not known, since that search was cut off (`--within` gives it more time)"
        }
        false => ", and none has it set aside",
    };
    format!("It may have been in a segment that was emptied: then every relay had dealt with it{aside}.")
}

fn listed(writers: &[Writer]) -> String {
    /// More are told as their number.
    const MOST: usize = 5;
    let mut each: Vec<String> = writers.iter().take(MOST).map(writer).collect();
    if writers.len() > MOST {
        each.push(format!("{} more", writers.len() - MOST));
    }
    each.join("; ")
}

fn writer(writer: &Writer) -> String {
    let xid = writer.xid.as_deref().unwrap_or("?");
    let since = match (&writer.since, writer.age_seconds) {
        (Some(since), Some(age)) => format!("since {since}, {age:.0} s ago"),
        _ => "since when is not known (this role may not see other roles' sessions: pg_read_all_stats)".to_owned(),
    };
    match (&writer.prepared, writer.pid) {
        (Some(name), _) => format!("transaction {xid}, prepared as {name:?} {since}"),
        (None, Some(pid)) => {
            let role = writer.role.as_ref().map(|role| format!(" of role {role}")).unwrap_or_default();
            format!("transaction {xid} of server process {pid}{role}, {since}")
        }
        (None, None) => format!("transaction {xid}, {since}"),
    }
}

/// What a relay of the outbox makes of it. `registered` is the transaction that registered the relay, and when; the lane's owner was
/// watched for so long.
pub(super) fn in_outbox(
    relay: &RelayTrace,
    message: &OutboxMessage,
    registered: &(Xid, String),
    watched: Duration,
) -> Vec<String> {
    let mut words = Vec::new();
    let passes = |words: &mut Vec<String>| {
        words.push(format!(
            "The relay leaves the topic {:?} out, by the configuration at hand: it passes the message over.",
            message.topic
        ));
    };
    match (relay.state, relay.standing) {
        (State::PassedOver, standing) => {
            passes(&mut words);
            words.extend(
                standing
                    .filter(|standing| !standing.is_passed())
                    .map(|_| "Its lane has not come to it yet.".to_owned()),
            );
        }
        (State::DealtWith, _) => words.push(dealt_with(relay, message, registered)),
        (State::Waits, Some(standing)) => {
            words.extend(in_the_log(relay, standing, &message.xid));
            words.extend(owner(relay, watched));
            words.extend(not_told(relay));
        }
        (State::SetAside | State::Dead | State::GivenUp, _) => words.extend(aside(relay, watched)),
        _ => words.push(no_lane(relay)),
    }
    words
}

fn no_lane(relay: &RelayTrace) -> String {
    match &relay.lane {
        None => "What has become of it is not known: the relay has no lane for it in pgbaton.lane, or it is being split. Ask again; if it \
                 stays so, `pgbaton rebase` makes the lanes that are missing."
            .to_owned(),
        Some(LaneTrace { lane, .. }) => format!(
            "What has become of it is not known: lane {lane} has no position, which was deleted by hand. `pgbaton rebase` writes one."
        ),
    }
}

/// Nothing is written when a message is delivered, so what else it may be is told.
fn dealt_with(relay: &RelayTrace, message: &OutboxMessage, (registered_by, at): &(Xid, String)) -> String {
    let batch = relay.lane.as_ref().and_then(|lane| lane.batch).unwrap_or_default();
    let mut unless = Vec::new();
    if relay.takes_topic.is_none() {
        unless.push(format!(
            "the relay's `topics` leave {:?} out, which is not known here (name the configuration with --config)",
            message.topic
        ));
    }
    let earlier = native::xid(&message.xid).is_ok_and(|xid| xid < *registered_by);
    if message.xid == REBASED {
        unless.push("it counted as dealt with when positions were re-based".to_owned());
    } else if earlier {
        unless.push(format!(
            "the relay began behind it, with `start = \"latest\"`: it was registered at {at}, later than that"
        ));
    }
    unless.push("it was dead and an operator gave it up (`pgbaton audit` shows what was discarded)".to_owned());
    format!(
        "Dealt with: the position of its lane has passed it, with batch {batch} or before, and it is not set aside. So it was delivered, \
         unless {}.",
        unless.join("; or ")
    )
}

/// Where it stands in the log.
fn in_the_log(relay: &RelayTrace, standing: Standing, xid: &str) -> Vec<String> {
    let mut words = Vec::new();
    let before = match &relay.ahead {
        Some(ahead) if ahead.messages == 0 && !ahead.or_more => {
            "no other message of its lane stands before it".to_owned()
        }
        Some(ahead) => format!(
            "{}{} message(s) of its lane stand before it",
            if ahead.or_more { "at least " } else { "" },
            ahead.messages
        ),
        None => "how many messages stand before it is not known".to_owned(),
    };
    let (late, straggler) = match standing {
        Standing::Next { late, straggler, .. } => {
            words.push(format!(
                "It waits in the log: its lane reads up to a target that it is in, and has not come to it; {before}."
            ));
            (late, straggler)
        }
        Standing::NotSighted { late, straggler, .. } => {
            words.push(format!(
                "It waits in the log: it was not seen yet when its lane's position was written; {before}."
            ));
            (late, straggler)
        }
        _ => (false, false),
    };
    if late {
        words.push(format!(
            "Transaction {xid} was still open when its lane took stock last, and others with greater numbers may have gone past it. It is read \
             all the same{}.",
            if straggler { ", as a straggler: by its transaction and not by its number" } else { "" }
        ));
    }
    words
}

/// Who has the lane, and whether it can go on.
fn owner(relay: &RelayTrace, watched: Duration) -> Vec<String> {
    let Some(lane) = &relay.lane else { return Vec::new() };
    let LaneTrace { lane: number, lanes, epoch, replicas, .. } = lane;
    let here = format!("lane {number} of {lanes}");
    let name = lane.replica_name.as_deref().unwrap_or("of unknown name");
    let mut words = Vec::new();
    match (&lane.replica, replicas, lane.beat_moved) {
        (None, 0, _) => words.push(format!(
            "It waits for a replica: nobody runs relay {}, so {here} has no owner. Start one that has the relay in its configuration, or drop \
             the relay.",
            relay.relay
        )),
        (None, running, _) => words.push(format!(
            "It waits for an owner: nobody holds {here} at the moment, and {running} replica(s) run the relay, by the table. One that lives \
             takes it within seconds; one that died is expired by the others, or by the next that starts. If it stays so, their logs say why."
        )),
        (Some(_), _, Some(true)) => words.push(format!("Replica {name} holds {here} under epoch {epoch}, and renews its lease.")),
        (Some(_), _, Some(false)) => words.push(format!(
            "It waits for an owner that lives: replica {name} holds {here} under epoch {epoch}, and was not seen to renew its lease for {}. \
             If it is dead, another replica takes the lane a ttl of {:?} after its last renewal; if there is no other, start one.",
            super::row::seconds(watched),
            lane.ttl
        )),
        (Some(_), _, None) => words.push(format!("Replica {name} holds {here} under epoch {epoch}.")),
    }
    if lane.leaving {
        words.push(format!("Replica {name} is leaving: another one has the lane next."));
    }
    words
}

/// What the database cannot know.
fn not_told(relay: &RelayTrace) -> Option<String> {
    // Of one that nobody ever owned nothing can be in flight.
    let lane = relay.lane.as_ref().filter(|lane| lane.epoch > 0)?;
    let age = lane.position_age_seconds.map(|age| format!(", which was written {age:.1} s ago")).unwrap_or_default();
    let last = if relay.table.is_none() { format!("the lane's position{age}") } else { "the row's mark".to_owned() };
    let log = lane
        .replica_name
        .as_ref()
        .map(|name| format!(" The log of {name} says what the sink answers."))
        .unwrap_or_default();
    Some(format!(
        "What has been handed to the sink since {last}, is not known to the database: it may be in flight.{log}"
    ))
}

/// It was set aside.
fn aside(relay: &RelayTrace, watched: Duration) -> Vec<String> {
    let Some(aside) = &relay.parked else { return Vec::new() };
    let ParkedMessage { id, attempts, parked_at, .. } = aside;
    let (name, mut words) = (&relay.relay, Vec::new());
    let why = match (&aside.code, attempts) {
        (Some(code), attempts) => {
            format!("its sink did not take it at {attempts} attempt(s) that count, the last time with {code}")
        }
        (None, _) => "it was not tried yet".to_owned(),
    };
    match (relay.state, &aside.behind, &aside.next_at) {
        (State::GivenUp, ..) => words.push(format!(
            "Given up: an operator discarded it (`pgbaton audit` says who); {why}. Its row stays as it is, and this relay leaves it out."
        )),
        (State::Dead, ..) => words.push(format!(
            "Dead since {}: {why}. {}. `pgbaton dead retry {name} --id {} --yes` has it tried again, `pgbaton dead discard` gives it up.",
            aside.dead_at.as_deref().unwrap_or_default(),
            if aside.holds { "Later messages of its key wait for it" } else { "Its key goes on without it" },
            as_argument(id)
        )),
        (_, Some(behind), _) => words.push(format!(
            "Set aside at {parked_at}: it waits behind {behind}, which is of its key and was set aside before it; {why}. \
             `pgbaton trace {} --relay {name}` shows that one.",
            as_argument(behind)
        )),
        (_, None, Some(at)) => words.push(format!(
            "Set aside at {parked_at}: {why}. It waits for its next attempt, at {at} or as soon after that as its lane's owner gets to it."
        )),
        (_, None, None) => words.push(format!("Set aside at {parked_at}: {why}. It is the next of its key, and tried as soon as that is seen.")),
    }
    if relay.state == State::SetAside {
        words.extend(owner(relay, watched));
    }
    words
}

/// A message id as a shell takes it: of a row it may be any text.
fn as_argument(id: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ':' | '.');
    if id.chars().all(plain) { id.to_owned() } else { format!("'{}'", id.replace('\'', r"'\''")) }
}

/// About a row of an adopted table.
pub(super) fn of_row(id: &str, relay: &RelayTrace) -> Vec<String> {
    let table = relay.table.as_deref().unwrap_or_default();
    match (&relay.row, &relay.parked) {
        (Some(row), _) => {
            let at = row.created_at.as_ref().map(|at| format!(", inserted at {at}")).unwrap_or_default();
            vec![format!("Message {} is a row of {table}{at}.", row.message_id)]
        }
        (None, Some(_)) => vec![format!("Message {id} is set aside; its row was not found in {table}.")],
        (None, None) if relay.state == State::Gone => vec![format!(
            "There is no such row in {table}, or its transaction has not ended: it was never there, or was deleted, as the relay's mark may do \
             when it has delivered it."
        )],
        (None, None) => vec![format!("Message {id} would be a row of {table}.")],
    }
}

/// What the relay makes of its row.
pub(super) fn in_table(relay: &RelayTrace, found: &Found, watched: Duration) -> Vec<String> {
    let mut words = Vec::new();
    match relay.state {
        State::SetAside | State::Dead | State::GivenUp => {
            words.extend(aside(relay, watched));
            if relay.row.as_ref().is_none_or(|row| row.pending == Some(false)) && found.not_known.is_none() {
                words.push("Its row is no longer pending: that is forgotten at the next attempt, or within a minute once it is dead.".to_owned());
            }
        }
        State::Waits => {
            words.push("It is pending, and not set aside.".to_owned());
            words.extend(owner(relay, watched));
            words.extend(not_told(relay));
        }
        State::NotPending => words.push(
            "It is not pending: the relay has delivered and marked it, or somebody else has marked it, or it was never to be delivered. The \
             row itself is all that tells."
                .to_owned(),
        ),
        State::Gone => words.push("Nothing is to be delivered of it.".to_owned()),
        _ => {}
    }
    words.extend(found.not_known.as_ref().map(|why| format!("What has become of its row is not known: {why}.")));
    let is_there = relay.row.is_some();
    match &found.configured {
        Configured::Yes => {}
        Configured::No | Configured::Otherwise if !is_there || relay.state != State::NotKnown => {}
        Configured::No => words.push(
            "Whether it is pending is not known: that stands in the relay's configuration alone (name it with --config).".to_owned(),
        ),
        Configured::Otherwise => words.push(
            "Whether it is pending is not known: the configuration at hand has another source for this relay than it was registered for."
                .to_owned(),
        ),
        Configured::Failed(why) => words.push(format!("Whether it is pending is not known: {why}.")),
    }
    if relay.state == State::NotKnown {
        words.extend(owner(relay, watched));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(pid: i32) -> Writer {
        let xid = Some((pid + 1).to_string());
        Writer {
            pid: Some(pid),
            xid,
            prepared: None,
            role: None,
            application: None,
            state: None,
            since: None,
            age_seconds: None,
        }
    }

    #[test]
    fn a_number_that_is_not_seen_never_was_only_if_that_is_certain() {
        let said = |emptied, writers: &[Writer]| unseen_number(7, 9, false, emptied, writers).join(" ");
        assert!(said(None, &[]).contains("there never was a message. (No open"));
        assert!(said(Some(6), &[]).contains("there never was a message. (No open"));
        for uncertain in [said(Some(7), &[]), said(None, &[open(40)]), said(Some(9), &[open(40)])] {
            assert!(uncertain.contains("It may ") && uncertain.contains("Or its transaction"), "{uncertain}");
        }
        assert_eq!(unseen_number(10, 9, false, Some(20), &[open(40)]).len(), 1);
        assert!(unseen_number(7, 9, true, Some(7), &[]).join(" ").contains("that search was cut off"));
    }

    #[test]
    fn of_many_open_transactions_some_are_named() {
        let writers: Vec<Writer> = (1..=8).map(open).collect();
        let said = listed(&writers);
        assert!(
            said.contains("server process 5") && !said.contains("server process 6") && said.ends_with("3 more"),
            "{said}"
        );
    }

    #[test]
    fn ids_are_arguments_of_a_shell() {
        assert_eq!(as_argument("orders:018f-7"), "orders:018f-7");
        assert_eq!(as_argument(r#"orders:["a","it's"]"#), r#"'orders:["a","it'\''s"]'"#);
    }
}
