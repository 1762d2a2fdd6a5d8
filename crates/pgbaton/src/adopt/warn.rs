//! What has to be known of a table before a relay runs on it. Pure.

use super::facts::Facts;
use super::names::{self, plain};
use super::propose::{Draft, counts_in_time, is_number, marked};
use crate::source::table::{Mark, NO_AGE, Value};

/// Something to know, and the SQL that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Warning {
    pub(super) text: String,
    pub(super) sql: Option<String>,
}

impl Warning {
    pub(super) fn of(text: impl Into<String>) -> Self {
        Self { text: text.into(), sql: None }
    }

    pub(super) fn with(text: impl Into<String>, sql: impl Into<String>) -> Self {
        Self { text: text.into(), sql: Some(sql.into()) }
    }
}

/// All of them, the ones that lose or repeat messages first.
pub(super) fn all(facts: &Facts, draft: &Draft) -> Vec<Warning> {
    let mut all = Vec::new();
    other_consumers(facts, draft, &mut all);
    rows_set_aside(facts, draft, &mut all);
    order(facts, draft, &mut all);
    contents(facts, draft, &mut all);
    marks(facts, draft, &mut all);
    all
}

fn listed(names: &[String]) -> String {
    names.join(", ")
}

/// Who else delivers or reads these rows.
fn other_consumers(facts: &Facts, draft: &Draft, all: &mut Vec<Warning>) {
    let more = &facts.more;
    if draft.debezium {
        all.push(Warning::of(
            "The table is as Debezium's outbox router expects it. Applications often insert a row and delete it in the same \
             transaction, since Debezium reads the write-ahead log: such a row is never seen here, and its message would be \
             LOST. Have them leave the delete out before this relay takes over. And stop the connector first.",
        ));
        if more.inserted > 0 && more.live == 0 && more.deleted >= more.inserted / 2 {
            all.push(Warning::of(format!(
                "By the statistics {} rows were inserted, {} deleted, and none is there: rows of this table do not stay.",
                more.inserted, more.deleted
            )));
        }
    }
    if !more.publications.is_empty() {
        all.push(Warning::of(format!(
            "The table is published ({}): somebody reads its changes, a connector or a subscriber. If that one delivers these \
             rows, stop it first; and it sees each mark as a change.",
            listed(&more.publications)
        )));
    } else if !more.slots.is_empty() {
        all.push(Warning::of(format!(
            "There are logical replication slots in this database ({}): see whether one of their readers delivers these rows, \
             and stop it first.",
            listed(&more.slots)
        )));
    }
    if let Some((_, claims)) = draft.left.iter().find(|(what, _)| what.starts_with("claims")) {
        all.push(Warning::of(format!(
            "{} are claims of the relay before. They mean nothing here and are left alone, so nothing keeps both from one row: \
             stop the old relay first, on all machines, and wait until what it has under way is marked.",
            listed(claims)
        )));
    }
}

/// Rows that the relay before would not deliver, or not yet.
fn rows_set_aside(facts: &Facts, draft: &Draft, all: &mut Vec<Warning>) {
    let of = |begin: &str| draft.left.iter().find(|(what, _)| what.starts_with(begin)).map(|(_, names)| names);
    if let Some(names) = of("rows for later") {
        let name = facts.sql(names.first().map_or("", String::as_str));
        all.push(Warning::of(format!(
            "{} may say when a row is to be delivered at the earliest. pgbaton delivers what is pending at once: if that \
             matters, have `pending` say: … and ({name} is null or {name} <= now())",
            listed(names)
        )));
    }
    if let Some(names) = of("rows it has given up") {
        all.push(Warning::of(format!(
            "{} may say that the relay before has given a row up. If such rows are not to be delivered, have `pending` leave \
             them out.",
            listed(names)
        )));
    }
}

fn order(facts: &Facts, draft: &Draft, all: &mut Vec<Warning>) {
    let spec = &draft.spec;
    let (Some(first), id) = (spec.order.first().and_then(|name| facts.column(name)), &spec.id) else { return };
    let name = facts.sql(&first.name);
    if names::TIMES.contains(&first.kind.as_str()) {
        let default = first.default.as_deref().unwrap_or_default().to_lowercase();
        all.push(Warning::of(if default.contains("clock_timestamp") || default.contains("statement_timestamp") {
            format!(
                "{name} is the time of the insert, not of the commit: order is by it among committed rows, and a row whose \
                 transaction commits late comes after later ones. Nothing is lost by that."
            )
        } else if default.contains("now()") || default.contains("current_timestamp") || default.contains("timestamp") {
            format!(
                "{name} is the start of the transaction, not of the commit: order is by it among committed rows, and a row whose \
                 transaction commits late comes after later ones. Nothing is lost by that. Rows of one transaction have one \
                 moment, and follow by their id."
            )
        } else {
            format!(
                "{name} is set by the application, by the clocks of its machines: order is by it among committed rows, and \
                 clocks that differ put rows of one key in the wrong order."
            )
        }));
    }
    if let Some(cache) = facts.more.sequences.get(&first.name).filter(|cache| **cache > 1) {
        all.push(Warning::of(format!(
            "The sequence of {name} is taken {cache} numbers at a time by each session: numbers of two sessions are not in the \
             order of their inserts, also within a key."
        )));
    }
    if !first.not_null && spec.order != *id {
        all.push(Warning::of(format!("{name} may be null: such rows come last.")));
    }
    if let [one] = id.as_slice()
        && spec.order == *id
        && facts.column(one).is_some_and(|column| !is_number(column) && !counts_in_time(column))
    {
        all.push(Warning::of(format!(
            "Ids that are random have no order, and no other column gives one: rows of a key are delivered in the order of {}, \
             which means nothing. Add a created_at if order matters.",
            facts.sql(one)
        )));
    }
    if let Some(Value::Column(key)) = &spec.key {
        all.push(Warning::of(format!(
            "A row's {} decides its lane. An application that changes it while the row is pending may have two replicas deliver \
             the row, once under each key.",
            facts.sql(key)
        )));
    }
}

/// What a message says.
fn contents(facts: &Facts, draft: &Draft, all: &mut Vec<Warning>) {
    let spec = &draft.spec;
    if let Some(topic) = spec.topic.column().and_then(|name| facts.column(name)).filter(|column| !column.not_null) {
        all.push(Warning::of(format!(
            "{} may be null: a pending row without a topic holds its lane until it has one. `pgbaton adopt --check` looks for such rows.",
            facts.sql(&topic.name)
        )));
    }
    let payload = spec.payload.as_ref().and_then(Value::column);
    let texts = facts.shape.columns.iter().filter(|column| {
        names::HEADERS.contains(&plain(&column.name).as_str())
            && !names::JSON.contains(&column.kind.as_str())
            && Some(column.name.as_str()) != payload
    });
    for column in texts {
        all.push(Warning::of(format!(
            "{} may hold headers, but is of type {}: headers come from a column of type json or jsonb.",
            facts.sql(&column.name),
            column.type_name
        )));
    }
    if spec.created_at.is_none() {
        all.push(Warning::of(format!("No column was found that says when a row was inserted: {NO_AGE}.")));
    }
    all.push(Warning::of(
        "A row that is set back to pending is delivered again, under the same message id: a receiver that keeps ids, such as a \
         `postgres` sink, drops it as a repeat. To have it taken again, insert it under another id.",
    ));
}

/// What a mark meets.
fn marks(facts: &Facts, draft: &Draft, all: &mut Vec<Warning>) {
    let (spec, more) = (&draft.spec, &facts.more);
    let deletes = spec.mark == Mark::Delete;
    if deletes && !draft.debezium {
        all.push(Warning::of(
            "Rows are deleted once they are delivered. If somebody counts or reads delivered rows, add a column such as \
             published_at timestamptz instead, and mark that.",
        ));
    }
    let run = more.triggers.iter().filter(|t| if deletes { t.on_delete } else { t.on_update });
    for trigger in run {
        let rights = if trigger.definer { "its owner's" } else { "the relay's role's" };
        all.push(Warning::of(format!(
            "The trigger {} ({}) runs with each mark, with {rights} rights: it needs its grants, its time counts, and one that \
             takes the mark back or swallows it stops the lane.",
            trigger.name, trigger.function
        )));
    }
    let moved: Vec<&str> = marked(spec).into_iter().filter(|c| more.partition_key.iter().any(|key| key == c)).collect();
    if !moved.is_empty() {
        all.push(Warning::of(format!(
            "The mark sets {}, which decides the partition: each mark moves a row to another one. One that meets a move by \
             somebody else fails with 40001 and is tried again.",
            moved.join(", ")
        )));
    } else if !more.partition_key.is_empty() {
        all.push(Warning::of(
            "The table is partitioned: a mark that meets a row on its way to another partition fails with 40001 and is tried \
             again; a partition that is detached or dropped takes its pending rows with it.",
        ));
    }
    if !more.publications.is_empty() && more.replica_identity == 'f' {
        all.push(Warning::of(
            "The replica identity is full: each mark writes the whole row before it into the log once more.",
        ));
    }
}
