//! One row of an adopted table, for whoever asks where its message is.

use super::{Parts, ROW};
use crate::error::Error;
use crate::source::table::catalogue::Shape;
use crate::source::table::definition::{TableSpec, Value};

/// What the table says of a row by its id, without what its message says.
///
/// Parameters: a text for each column of the id.
/// Rows: one, if it is there: the id's columns as texts, the hash, the key, the topic where it can be told without care, when it was
/// inserted, as a text in UTC, whether it is pending, and which table it is that has this name. `known` says whether topic, moment and
/// condition are: else they are null. Locks: none. Relies on: the unique index on the id.
pub(in crate::source::table) fn whereabouts(spec: &TableSpec, shape: &Shape, known: bool) -> Result<String, Error> {
    let parts = Parts { spec, shape };
    let (table, ids, hash, itself) = (parts.rows(), parts.ids(), parts.hash(), parts.itself());
    let same = parts.same(ROW)?;
    let given = (1..=spec.id.len()).map(|n| format!("${n}::text as pgbaton_{n}")).collect::<Vec<_>>().join(", ");
    let key = spec.key.as_ref().map_or_else(|| "null::text".to_owned(), |key| parts.readable(key));
    let topic = match &spec.topic {
        Value::Path { column, .. } if shape.kind(column) != Some("jsonb") => "null::text".to_owned(),
        topic => parts.readable(topic),
    };
    let created_at = spec.created_at.as_ref().map(|column| format!("pgbaton.utc({})", parts.time(column)));
    let created_at = created_at.unwrap_or_else(|| "null::text".to_owned());
    let (topic, created_at, pending) = match known {
        true => (topic, created_at, parts.still_pending()),
        false => ("null::text".to_owned(), "null::text".to_owned(), "null::boolean".to_owned()),
    };
    let each = parts.each("w");
    Ok(format!(
        "select {each}, w.pgbaton_hash as hash, w.pgbaton_key as key, w.pgbaton_topic as topic,\n  \
         w.pgbaton_created_at as created_at, w.pgbaton_pending as pending, {itself} as itself\n\
         from (select {given}) {ROW}\ncross join lateral (\nselect {ids}, {hash} as pgbaton_hash, {key} as pgbaton_key,\n\
         {topic} as pgbaton_topic, {created_at} as pgbaton_created_at, {pending} as pgbaton_pending\nfrom {table}\nwhere {same}\noffset 0) w"
    ))
}
