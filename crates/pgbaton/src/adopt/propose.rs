//! From facts to a proposal: which column is what, and why. Pure.

use std::collections::BTreeMap;

use super::facts::Facts;
use super::names::{self, Free};
use super::state::{self, State};
use super::warn::{self, Warning};
use crate::error::Error;
use crate::source::table::catalogue::{Column, PLAIN, TIMES};
use crate::source::table::{Mark, TableSpec, Value};

/// A source, the reason of each of its keys, and what has to be known before it runs.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) spec: TableSpec,
    /// By the key's name.
    pub(super) why: BTreeMap<&'static str, String>,
    pub(super) warnings: Vec<Warning>,
    /// Columns that are left alone, and what they seem to be.
    pub(super) left: Vec<(&'static str, Vec<String>)>,
    /// The table is as Debezium's outbox router expects it.
    pub(super) debezium: bool,
}

/// Proposes a source for this table.
///
/// # Errors
/// A table that cannot be adopted in any way: no relation with rows, or nothing that names a row.
pub(super) fn propose(facts: &Facts) -> Result<Draft, Error> {
    if !matches!(facts.shape.kind, 'r' | 'p') {
        return Err(Error::refused(
            format!("{} is no table: it is a view, a foreign table or the like", facts.table),
            "Adopt the table under it",
        ));
    }
    let mut why = BTreeMap::new();
    let id = id(facts, &mut why)?;
    let mut free = Free::new(&facts.shape.columns);
    if let [one] = id.as_slice() {
        free.drop_all(&[one.as_str()]);
    }
    let State { pending, why_pending, mark, why_mark, warnings: of_state, deletes } = state::find(facts, &mut free);
    why.insert("pending", why_pending);
    why.insert("mark", why_mark);
    let left = left_alone(&mut free);
    let created_at = free.take(names::CREATED_AT, names::TIMES);
    let aggregate = free.find(names::AGGREGATE_TYPE, names::TEXTS);
    let key = key(&free, &mut why);
    let debezium = deletes && aggregate.is_some() && key.is_some() && free.find(names::PAYLOAD, &[]).is_some();
    let (topic, mut header) = topic(facts, &mut free, debezium, &mut why);
    if let Some(key) = key {
        free.drop_all(&[key.name.as_str()]);
    }
    let payload = payload(&mut free, &mut why);
    let headers = free.take(names::HEADERS, names::JSON);
    for (name, columns) in names::HEADER {
        let column = free.take(columns, &[names::TEXTS, &["uuid"]].concat());
        header.extend(column.map(|column| ((*name).to_owned(), Value::Column(column.name.clone()))));
    }
    if debezium && let [one] = id.as_slice() {
        header.insert("id".to_owned(), Value::Column(one.clone()));
    }
    free.drop_all(&id.iter().map(String::as_str).collect::<Vec<_>>());
    let order = order(facts, &id, created_at, &mut free, &mut why);
    let mut left = left;
    left.push(("not used", free.left().iter().map(|column| column.name.clone()).collect()));
    left.retain(|(_, columns)| !columns.is_empty());
    let of = |column: &Column| Value::Column(column.name.clone());
    let spec = TableSpec {
        table: facts.table.clone(),
        id,
        order,
        key: key.map(of),
        topic,
        payload: payload.map(of),
        payload_is_json: false,
        headers: headers.map(of),
        header,
        created_at: created_at.map(|column| column.name.clone()),
        pending,
        mark,
    };
    let mut draft = Draft { spec, why, warnings: Vec::new(), left, debezium };
    draft.warnings = of_state.into_iter().map(Warning::of).collect();
    let others = warn::all(facts, &draft);
    draft.warnings.extend(others);
    Ok(draft)
}

/// The columns that name a row: the primary key, or another unique index that can.
fn id(facts: &Facts, why: &mut BTreeMap<&'static str, String>) -> Result<Vec<String>, Error> {
    let names = |name: &String| {
        facts
            .column(name)
            .is_some_and(|column| column.not_null && [&PLAIN[..], &TIMES].concat().contains(&column.kind.as_str()))
    };
    let key = &facts.more.primary_key;
    if !key.is_empty() && key.iter().all(names) && facts.shape.unique.contains(&key.iter().cloned().collect()) {
        why.insert("id", "The primary key. The message id is made of it: receivers drop repeats by that.".to_owned());
        return Ok(key.clone());
    }
    let mut fitting: Vec<_> =
        facts.shape.unique.iter().filter(|unique| !unique.is_empty() && unique.iter().all(names)).collect();
    fitting.sort_by_key(|unique| unique.len());
    let Some(unique) = fitting.first() else {
        return Err(Error::refused(
            format!("{} has nothing that names a row", facts.table),
            "It needs a primary key, or a unique index without a condition over columns that are not null, of types such as \
             bigint, uuid or text",
        ));
    };
    why.insert("id", "Unique and not null. The message id is made of it: receivers drop repeats by that.".to_owned());
    Ok(unique.iter().cloned().collect())
}

fn left_alone(free: &mut Free<'_>) -> Vec<(&'static str, Vec<String>)> {
    let groups = [
        ("claims of the relay before", names::CLAIMS),
        ("its attempts", names::ATTEMPTS),
        ("rows it has given up", names::GIVEN_UP),
        ("rows for later", names::LATER),
    ];
    let own = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
    groups.into_iter().map(|(what, names)| (what, own(free.take_all(names)))).collect()
}

fn key<'a>(free: &Free<'a>, why: &mut BTreeMap<&'static str, String>) -> Option<&'a Column> {
    let key = free.find(names::KEY, &PLAIN);
    let text = match key {
        Some(key) if key.not_null => {
            "By its name. Rows of one key are delivered in order, by one replica at a time; a failing key holds those of its lane."
        }
        Some(_) => "By its name. Rows of one key are delivered in order; rows without a key have none.",
        None => {
            "No column is known to be a key: rows are delivered in no order that a receiver may rely on. Name one if there is one."
        }
    };
    why.insert("key", text.to_owned());
    key
}

/// Where messages go, and the headers that say what of the type is not in it.
fn topic(
    facts: &Facts,
    free: &mut Free<'_>,
    debezium: bool,
    why: &mut BTreeMap<&'static str, String>,
) -> (Value, BTreeMap<String, Value>) {
    let aggregate = free.find(names::AGGREGATE_TYPE, names::TEXTS);
    let topic = free.find(names::TOPIC, names::TEXTS).or(aggregate).or_else(|| free.find(names::TYPE, names::TEXTS));
    let text = match topic {
        Some(_) if debezium => {
            "As Debezium's outbox router routes; but its topics are outbox.event.<type> unless it was told otherwise, and this is \
             the bare type: see which name the sink's receivers expect."
        }
        Some(_) => "By its name.",
        None => "A GUESS: no column is known to say where a message goes, so all go to one place.",
    };
    why.insert("topic", text.to_owned());
    free.drop_all(&topic.iter().map(|column| column.name.as_str()).collect::<Vec<_>>());
    let mut header = BTreeMap::new();
    for (name, columns) in [("aggregate_type", names::AGGREGATE_TYPE), ("type", names::EVENT_TYPE)] {
        let column = free.take(columns, names::TEXTS);
        header.extend(column.map(|column| (name.to_owned(), Value::Column(column.name.clone()))));
    }
    let topic =
        topic.map_or_else(|| Value::Constant(facts.table.name.clone()), |column| Value::Column(column.name.clone()));
    (topic, header)
}

fn payload<'a>(free: &mut Free<'a>, why: &mut BTreeMap<&'static str, String>) -> Option<&'a Column> {
    let kinds = [names::JSON, &["bytea"], names::TEXTS].concat();
    let named = free.take(names::PAYLOAD, &kinds);
    let payload = named.or_else(|| {
        let json: Vec<&Column> =
            free.left().iter().filter(|column| names::JSON.contains(&column.kind.as_str())).copied().collect();
        let headers = |column: &&&Column| names::HEADERS.contains(&names::plain(&column.name).as_str());
        let mut others = json.iter().filter(|column| !headers(column));
        let one = others.next().copied().filter(|_| others.next().is_none())?;
        free.drop_all(&[one.name.as_str()]);
        Some(one)
    });
    let text = match payload {
        Some(column) if names::JSON.contains(&column.kind.as_str()) => {
            "By its name and type: JSON, passed on as it is."
        }
        Some(_) => "By its name. Passed on as bytes: if it holds JSON, add payload_is_json = true.",
        None => "No column is known to be a payload: messages have none. Name one if there is one.",
    };
    why.insert("payload", text.to_owned());
    payload
}

/// What rows of one key are delivered in the order of.
fn order(
    facts: &Facts,
    id: &[String],
    created_at: Option<&Column>,
    free: &mut Free<'_>,
    why: &mut BTreeMap<&'static str, String>,
) -> Vec<String> {
    let counts = |column: &Column| facts.more.sequences.contains_key(&column.name) && column.not_null;
    let of_id = |name: &String| facts.column(name);
    let (order, text): (Vec<String>, &str) = match id {
        [one] if of_id(one).is_some_and(is_number) => {
            (id.to_vec(), "Numbers of the id: the order in which they were given out.")
        }
        [one] if of_id(one).is_some_and(counts_in_time) => {
            (id.to_vec(), "The id's default gives ids that grow with time.")
        }
        _ => {
            let counter = free.left().iter().find(|column| counts(column)).map(|column| column.name.clone());
            if let Some(counter) = counter {
                free.drop_all(&[counter.as_str()]);
                (vec![counter], "A sequence counts it: the order in which numbers were given out.")
            } else if let Some(created_at) = created_at {
                (
                    vec![created_at.name.clone()],
                    "The id has no order of its own. Rows of one moment follow in the order of the id.",
                )
            } else {
                (id.to_vec(), "A GUESS: no column says when a row was inserted, and this one need not grow with time.")
            }
        }
    };
    why.insert("order", format!("{text} Rows of a key are ordered by it among those that are committed."));
    order
}

pub(super) fn is_number(column: &Column) -> bool {
    names::INTEGERS.contains(&column.kind.as_str()) || column.kind == "numeric"
}

/// Whether new values are greater than older ones, by the default.
pub(super) fn counts_in_time(column: &Column) -> bool {
    let default = column.default.as_deref().map(names::plain).unwrap_or_default();
    ["uuidv7", "uuidgeneratev7", "ulid", "uuidv6", "ksuid"].iter().any(|word| default.contains(word))
}

/// The columns that a mark sets.
pub(super) fn marked(spec: &TableSpec) -> Vec<&str> {
    match &spec.mark {
        Mark::Set(columns) => columns.keys().map(String::as_str).collect(),
        Mark::Delete => Vec::new(),
    }
}
