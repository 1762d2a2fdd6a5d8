//! A fetched row as a message: its id, whether it can be one, and what it says.

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tokio_postgres::Row;

use super::taken::RowId;
use crate::error::Error;
use crate::lane::RelayName;
use crate::message::{Message, Payload};
use crate::source::brought::{Raw, timestamp};

/// Longer message ids are not allowed.
const LONGEST_ID: usize = 200;
/// What ids begin with that are made of a digest.
const DIGEST: &str = "sha256:";

/// What the receiver drops repeats by: the relay and the row's id, or a digest of that where it is long.
pub(super) fn message_id(relay: &RelayName, row: &RowId) -> String {
    let id = match &*row.0 {
        [one] => one.clone(),
        several => serde_json::json!(several).to_string(),
    };
    let relay = relay.as_str();
    // An id may be any text: one that looks like a digest must not pass for another row's.
    if relay.len() + 1 + id.len() <= LONGEST_ID && !id.starts_with(DIGEST) {
        return format!("{relay}:{id}");
    }
    let digest: String = Sha256::digest(id.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{relay}:{DIGEST}{digest}")
}

/// The columns of the id that a message id was made of; `None` if they cannot be told from it.
pub(super) fn row_of(relay: &str, message_id: &str, columns: usize) -> Option<RowId> {
    let id = message_id.strip_prefix(relay)?.strip_prefix(':').filter(|id| !id.starts_with(DIGEST))?;
    let row = match columns {
        1 => vec![id.to_owned()],
        _ => serde_json::from_str::<Vec<String>>(id).ok().filter(|row| row.len() == columns)?,
    };
    Some(RowId::from(row))
}

/// Which version of the row was fetched.
pub(super) fn version(row: &Row) -> Result<i64, Error> {
    Ok(row.try_get(9)?)
}

/// Whether a row can be a message. Constraints see to that in the outbox; here any row may be there. One that is too large to
/// come with the others is looked at for what it says by itself when it comes.
pub(super) fn check(row: &Row, inline: i32, payload_is_json: bool) -> Result<(), &'static str> {
    let size: i32 = row.try_get(2).map_err(|_| "its size cannot be read")?;
    if size > inline {
        return Ok(());
    }
    content(row, payload_is_json)
}

pub(super) fn content(row: &Row, payload_is_json: bool) -> Result<(), &'static str> {
    match row.try_get::<_, Option<&str>>(4) {
        Ok(Some("")) => return Err("its topic is empty"),
        Ok(None) => return Err("its topic is null"),
        Ok(Some(_)) => {}
        Err(_) => return Err("its topic cannot be read"),
    }
    let headers = headers(row).map_err(|_| "its headers cannot be read")?;
    if headers.is_some_and(|headers| !headers.trim_start().starts_with('{')) {
        return Err("its headers are no JSON object");
    }
    let json = row.try_get::<_, Option<&str>>(8).map_err(|_| "its payload cannot be read")?;
    if payload_is_json && json.is_some_and(|json| serde_json::from_str::<&RawValue>(json).is_err()) {
        return Err("its payload is no JSON");
    }
    Ok(())
}

/// Whether nothing would be sent but the row's name, topic and key.
pub(super) fn without_payload(row: &Row) -> bool {
    let is_null = |column| matches!(row.try_get::<_, Option<Raw<'_>>>(column), Ok(None));
    is_null(7) && is_null(8)
}

/// Some write the JSON value `null` where there are none.
fn headers(row: &Row) -> Result<Option<&str>, tokio_postgres::Error> {
    Ok(row.try_get::<_, Option<&str>>(6)?.filter(|headers| headers.trim() != "null"))
}

/// Lends out a row as a message, without copying it.
pub(super) fn lend(row: &Row, id: &str, take: &mut dyn FnMut(Message<'_>)) -> Result<(), Error> {
    let payload = match (row.try_get::<_, Option<Raw<'_>>>(7)?, row.try_get::<_, Option<&str>>(8)?) {
        (Some(Raw(bytes)), _) => Payload::Bytes(bytes),
        (None, Some(json)) => Payload::Json(json),
        (None, None) => Payload::None,
    };
    take(Message {
        id,
        topic: row.try_get(4)?,
        key: row.try_get(5)?,
        headers: headers(row)?,
        payload,
        created_at: timestamp(row.try_get(3)?)?,
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_ids_are_never_longer_than_allowed() {
        let relay = RelayName::new("orders").unwrap();
        let id = |columns: &[&str]| message_id(&relay, &RowId(columns.iter().map(|id| (*id).to_owned()).collect()));
        assert_eq!(id(&["7"]), "orders:7");
        assert_eq!(id(&["a", "b,c"]), r#"orders:["a","b,c"]"#);
        assert_ne!(id(&["a,b", "c"]), id(&["a", "b,c"]));
        let long = "x".repeat(250);
        assert!(id(&[&long]).starts_with("orders:sha256:") && id(&[&long]).len() <= LONGEST_ID);
        let digest = id(&[&long]).split_off("orders:".len());
        assert_ne!(id(&[&digest]), id(&[&long]));
    }

    #[test]
    fn a_row_is_told_by_its_message_id_unless_that_is_a_digest() {
        let relay = RelayName::new("orders").unwrap();
        for columns in [vec!["7"], vec!["a:b"], vec!["a", "b,c"], vec!["\"", "", "x"]] {
            let row = RowId::from(columns.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>());
            assert_eq!(row_of("orders", &message_id(&relay, &row), columns.len()), Some(row));
        }
        for (id, columns) in
            [("other:7", 1), ("orders", 1), ("orders:7", 2), ("orders:[\"a\"]", 2), ("orders:sha256:00", 1)]
        {
            assert_eq!(row_of("orders", id, columns), None, "{id}");
        }
    }
}
