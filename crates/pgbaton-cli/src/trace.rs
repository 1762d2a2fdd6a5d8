//! `pgbaton trace`.

use std::fmt::Write;

use pgbaton::control::parked::ParkedMessage;
use pgbaton::control::trace::{self, LaneTrace, OutboxMessage, Question, RelayTrace, RowFacts, Trace};

use crate::args::TraceArgs;
use crate::messages::plain;
use crate::{Failure, print, print_json};

/// Where one message is, in words first and in facts after.
pub(crate) async fn run(args: &TraceArgs) -> Result<(), Failure> {
    let database = args.show.database.database()?;
    // What the database does not know stands there.
    let reads = args.show.database.config()?.map(pgbaton::config::Config::reads).unwrap_or_default();
    let question = Question { id: args.id.clone(), relay: args.relay.clone(), within: args.within };
    let found = trace::find(&database, &question, &reads).await?;
    let printed = if args.show.json { print_json(&found) } else { print(&described(&found)) };
    printed?;
    if found.found { Ok(()) } else { Err(Failure::Found) }
}

fn described(trace: &Trace) -> String {
    let mut text = String::new();
    say(&mut text, "", &trace.words);
    for relay in &trace.relays {
        let _ = writeln!(text, "\nrelay {}", relay.relay);
        say(&mut text, "  ", &relay.words);
    }
    if let Some(message) = &trace.message {
        text.push_str("\nmessage\n");
        facts(&mut text, &of_message(message));
    }
    for relay in &trace.relays {
        let _ = writeln!(text, "\nrelay {}", relay.relay);
        facts(&mut text, &of_relay(relay));
    }
    text
}

fn say(text: &mut String, indent: &str, words: &[String]) {
    for sentence in words {
        let _ = writeln!(text, "{indent}{}", plain(sentence));
    }
}

type Fact = (&'static str, String);

fn facts(text: &mut String, facts: &[Fact]) {
    for (name, value) in facts {
        let _ = writeln!(text, "  {name:<12} {}", plain(value));
    }
}

fn of_message(message: &OutboxMessage) -> Vec<Fact> {
    let mut all = vec![
        ("id", message.message_id.clone()),
        ("number", message.number.to_string()),
        ("topic", message.topic.clone()),
    ];
    all.extend(message.key.clone().map(|key| ("key", key)));
    all.push(("bytes", message.bytes.to_string()));
    all.push(("inserted", message.created_at.clone()));
    all.push(("transaction", message.xid.clone()));
    all.extend(message.committed_at.clone().map(|at| ("committed", at)));
    all.push(("segment", message.segment.map_or_else(|| "emptied".to_owned(), |segment| segment.to_string())));
    all
}

fn of_relay(relay: &RelayTrace) -> Vec<Fact> {
    let mut all = vec![("reads", relay.table.clone().unwrap_or_else(|| "the outbox".to_owned()))];
    if let Some(takes) = relay.takes_topic {
        all.push(("takes topic", if takes { "yes" } else { "no" }.to_owned()));
    }
    if let Some(row) = &relay.row {
        all.extend(of_row(row));
    }
    if let Some(lane) = &relay.lane {
        all.extend(of_lane(lane));
    }
    if let Some(ahead) = &relay.ahead {
        all.push(("before it", format!("{}{}", if ahead.or_more { "at least " } else { "" }, ahead.messages)));
    }
    if let Some(aside) = &relay.parked {
        all.extend(of_aside(aside));
    }
    all
}

fn of_row(row: &RowFacts) -> Vec<Fact> {
    let mut all = vec![("id", row.message_id.clone())];
    let more = [("topic", &row.topic), ("key", &row.key), ("inserted", &row.created_at)];
    all.extend(more.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
    let pending = row.pending.map_or("not known", |pending| if pending { "yes" } else { "no" });
    all.push(("pending", pending.to_owned()));
    all
}

fn of_lane(lane: &LaneTrace) -> Vec<Fact> {
    let mut all = vec![("lane", format!("{} of {}", lane.lane, lane.lanes)), ("epoch", lane.epoch.to_string())];
    all.push((
        "owner",
        match (&lane.replica_name, &lane.replica) {
            (Some(name), Some(id)) => format!("{name} {id}"),
            _ => "nobody".to_owned(),
        },
    ));
    if let Some(beat) = lane.beat {
        let seen = match lane.beat_moved {
            Some(true) => ", and was seen to renew its lease",
            Some(false) => ", and was not seen to renew its lease",
            None => "",
        };
        all.push(("beat", format!("{beat}{seen}")));
    }
    all.push(("replicas", lane.replicas.to_string()));
    all.extend(lane.batch.map(|batch| ("batch", batch.to_string())));
    if let Some(position) = &lane.position {
        all.push(("consumed", position.consumed().to_string()));
        all.push(("floor", position.floor().to_string()));
        if let Some(target) = position.target() {
            all.push(("target", target.snapshot.to_string()));
            all.push(("ceiling", target.ceiling.to_string()));
        }
        all.push(("last", position.last().to_string()));
    }
    all.extend(lane.position_age_seconds.map(|age| ("position age", format!("{age:.1} s"))));
    all
}

fn of_aside(aside: &ParkedMessage) -> Vec<Fact> {
    let mut all =
        vec![("set aside", aside.parked_at.clone()), ("fate", aside.fate()), ("attempts", aside.attempts.to_string())];
    let times = [("first try", &aside.first_at), ("last try", &aside.last_at), ("next try", &aside.next_at)];
    all.extend(times.into_iter().filter_map(|(name, at)| Some((name, at.clone()?))));
    all.push(("faults", aside.faults.get().to_owned()));
    all
}
