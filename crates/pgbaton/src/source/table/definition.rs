//! An adopted table as the configuration describes it: which of its rows are messages, what they say, and what delivering one
//! does to it.
//!
//! Names are the catalogue's own, letter by letter, and are quoted. `pending` and the expressions of `mark` are the operator's
//! SQL, taken as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::json;

use crate::sql::quoted;

/// A table by its schema and name, exactly as the catalogue has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    /// The schema.
    pub schema: String,
    /// The name within it.
    pub name: String,
}

impl TableName {
    /// Reads `name` or `schema.name`. A part with a dot or a quote in it stands in double quotes, where a quote is doubled. No
    /// part is turned to lower case. Without a schema it is `public`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = Vec::new();
        let mut rest = text.trim();
        loop {
            let (part, after) = part(rest)?;
            parts.push(part);
            match after.strip_prefix('.') {
                Some(after) => rest = after,
                None if after.is_empty() => break,
                None => return None,
            }
        }
        let mut parts = parts.into_iter();
        match (parts.next(), parts.next(), parts.next()) {
            (Some(name), None, None) => Some(Self { schema: "public".into(), name }),
            (Some(schema), Some(name), None) => Some(Self { schema, name }),
            _ => None,
        }
    }
}

/// The first part of a dotted name, and what follows it.
fn part(text: &str) -> Option<(String, &str)> {
    let Some(mut rest) = text.strip_prefix('"') else {
        let end = text.find(['.', '"']).unwrap_or(text.len());
        let (part, after) = text.split_at_checked(end)?;
        return (!part.is_empty()).then(|| (part.to_owned(), after));
    };
    let mut part = String::new();
    loop {
        let (before, after) = rest.split_once('"')?;
        part.push_str(before);
        match after.strip_prefix('"') {
            Some(after) => {
                part.push('"');
                rest = after;
            }
            None => return (!part.is_empty()).then_some((part, after)),
        }
    }
}

/// As SQL has it, quoted.
impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", quoted(&self.schema), quoted(&self.name))
    }
}

/// What is missing where no column is named as `created_at`.
pub const NO_AGE: &str =
    "without `created_at` nothing tells for how long rows have been pending, and no alert on their age is possible";

/// Where a part of a message comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A column.
    Column(String),
    /// What an SQL/JSON path finds first in a column.
    Path {
        /// The column: json, jsonb, or a text that holds JSON.
        column: String,
        /// The path, such as `$.order.id`.
        path: String,
    },
    /// The same for every row.
    Constant(String),
}

impl Value {
    /// The column it is taken from.
    #[must_use]
    pub fn column(&self) -> Option<&str> {
        match self {
            Self::Column(column) | Self::Path { column, .. } => Some(column),
            Self::Constant(_) => None,
        }
    }
}

/// What delivering a row does to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// Sets columns to SQL expressions, after which the row is no longer pending.
    Set(BTreeMap<String, String>),
    /// Deletes it.
    Delete,
}

/// An adopted table: how its rows become messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSpec {
    /// The table, which may be partitioned.
    pub table: TableName,
    /// The columns that name a row, unique together. They become the message id.
    pub id: Vec<String>,
    /// The columns that rows of one key are delivered in the order of; the id's columns follow.
    pub order: Vec<String>,
    /// What rows are ordered by; none means that no order is asked for.
    pub key: Option<Value>,
    /// Where a message goes.
    pub topic: Value,
    /// What it says.
    pub payload: Option<Value>,
    /// Whether the payload is JSON although its column's type does not say so.
    pub payload_is_json: bool,
    /// Headers: a JSON object.
    pub headers: Option<Value>,
    /// Headers by name, besides those.
    pub header: BTreeMap<String, Value>,
    /// When the row was inserted; without it, when it was read.
    pub created_at: Option<String>,
    /// Which rows are to be delivered: a condition of the operator's own.
    pub pending: String,
    /// What delivering a row does to it.
    pub mark: Mark,
}

impl TableSpec {
    /// What all replicas have to agree about, or two of them take one row for their own: stored with the relay. Which rows are
    /// pending and in which order they come may change from one replica to the next: a lane is one replica's all the same.
    #[must_use]
    pub fn definition(&self) -> serde_json::Value {
        let key = match &self.key {
            None => serde_json::Value::Null,
            Some(Value::Column(column)) => json!({ "column": column }),
            Some(Value::Path { column, path }) => json!({ "column": column, "path": path }),
            Some(Value::Constant(text)) => json!({ "constant": text }),
        };
        json!({
            "table": self.table.to_string(),
            "id": self.id,
            "key": key,
        })
    }

    /// What a registration tells of it: which table it is, the id and the key. Which rows are pending it does not say: nothing is, by
    /// this one.
    pub(crate) fn registered(definition: &serde_json::Value) -> Option<Self> {
        let text = |value: &serde_json::Value, name: &str| Some(value.get(name)?.as_str()?.to_owned());
        let key = match definition.get("key")? {
            serde_json::Value::Null => None,
            key => Some(match (text(key, "column"), text(key, "path"), text(key, "constant")) {
                (Some(column), Some(path), _) => Value::Path { column, path },
                (Some(column), None, _) => Value::Column(column),
                (None, _, constant) => Value::Constant(constant?),
            }),
        };
        let id = definition.get("id")?.as_array()?.iter().map(|column| Some(column.as_str()?.to_owned()));
        Some(Self {
            table: TableName::parse(definition.get("table")?.as_str()?)?,
            id: id.collect::<Option<Vec<String>>>()?,
            order: Vec::new(),
            key,
            topic: Value::Constant(String::new()),
            payload: None,
            payload_is_json: false,
            headers: None,
            header: BTreeMap::new(),
            created_at: None,
            pending: "false".to_owned(),
            mark: Mark::Delete,
        })
    }

    /// What to know of the statement that makes the index, as the end of a sentence, if it cannot be run as it stands.
    pub(crate) fn index_but(&self) -> &'static str {
        match depends_on_time(&self.pending) {
            true => " (but leave out of its condition what depends on the time, which no index can hold)",
            false => "",
        }
    }

    /// The index that a look walks, as SQL: see also [`index_but`](Self::index_but). One of all parts of a table cannot be made
    /// concurrently.
    pub(crate) fn index(&self, partitioned: bool) -> String {
        let further = self.id.iter().filter(|id| !self.order.contains(id));
        let columns: Vec<String> = self.order.iter().chain(further).map(|column| quoted(column)).collect();
        format!(
            "create index {}on {} ({}) where {}",
            if partitioned { "" } else { "concurrently " },
            self.table,
            columns.join(", "),
            self.pending.trim()
        )
    }

    /// Columns that are read as something else than they are, which may fail: as JSON, or as a text.
    pub(crate) fn converted(&self) -> BTreeSet<&str> {
        let values = [self.key.as_ref(), self.headers.as_ref(), Some(&self.topic)].into_iter().flatten();
        let values = values.chain(self.header.values());
        let read = |value: &Value| matches!(value, Value::Path { .. });
        let mut columns: BTreeSet<&str> = values.filter(|value| read(value)).filter_map(Value::column).collect();
        let payload = self.payload.as_ref().filter(|payload| read(payload) || self.payload_is_json);
        columns.extend(payload.and_then(Value::column));
        // They are merged with others.
        columns.extend(self.headers.as_ref().filter(|_| !self.header.is_empty()).and_then(Value::column));
        columns
    }

    /// Every column that it names, in no particular order.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &str> {
        let values = [&self.key, &self.payload, &self.headers].into_iter().flatten();
        let values = values.chain([&self.topic]).chain(self.header.values()).filter_map(Value::column);
        let marked = match &self.mark {
            Mark::Set(columns) => Some(columns.keys().map(String::as_str)),
            Mark::Delete => None,
        };
        let named = self.id.iter().chain(&self.order).chain(&self.created_at).map(String::as_str);
        named.chain(values).chain(marked.into_iter().flatten())
    }
}

/// What gives another value as time goes by, without its arguments.
const OF_THE_TIME: [&str; 9] = [
    "current_date",
    "current_time",
    "current_timestamp",
    "localtime",
    "localtimestamp",
    "clock_timestamp",
    "statement_timestamp",
    "transaction_timestamp",
    "timeofday",
];

fn depends_on_time(sql: &str) -> bool {
    let sql = sql.to_lowercase();
    let is_of_a_name = |c: char| c.is_alphanumeric() || c == '_';
    // A column or a value may be called so as well: only the call counts.
    let now = sql.match_indices("now").any(|(at, now)| {
        let before = sql.get(..at).and_then(|before| before.chars().next_back());
        let after = sql.get(at + now.len()..).unwrap_or_default();
        !before.is_some_and(is_of_a_name) && after.trim_start().starts_with('(')
    });
    now || sql.split(|c| !is_of_a_name(c)).any(|word| OF_THE_TIME.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_change_with_time_are_told() {
        for sql in [
            "a is null and (b is null or b <= now())",
            "NOW ()>b",
            "b < Current_Timestamp",
            "b<pg_catalog.clock_timestamp()",
        ] {
            assert!(depends_on_time(sql), "{sql}");
        }
        for sql in ["published_at is null", "state = 'now'", "known(id)", "now_at is null", "my_current_date is null"] {
            assert!(!depends_on_time(sql), "{sql}");
        }
    }

    #[test]
    fn what_is_registered_is_what_was_defined() {
        let key = |key: &str| -> serde_json::Value { serde_json::from_str(key).unwrap() };
        for of in ["null", r#"{"column": "k"}"#, r#"{"column": "k", "path": "$.a"}"#, r#"{"constant": "x"}"#] {
            let definition = json!({ "table": r#""App"."an ""odd"" one""#, "id": ["a", "b"], "key": key(of) });
            let spec = TableSpec::registered(&definition).unwrap();
            assert_eq!(spec.definition(), definition);
        }
        assert_eq!(TableSpec::registered(&json!({ "table": "a.b", "id": "a", "key": null })), None);
    }

    #[test]
    fn names_are_taken_as_they_are() {
        let parsed = |text| TableName::parse(text).map(|name| (name.schema, name.name));
        let name = |schema: &str, name: &str| Some((schema.to_owned(), name.to_owned()));
        assert_eq!(parsed("outbox"), name("public", "outbox"));
        assert_eq!(parsed("App.Outbox"), name("App", "Outbox"));
        assert_eq!(parsed(r#""my.app"."an ""odd"" one""#), name("my.app", r#"an "odd" one"#));
        for wrong in ["", ".", "a.", ".a", "a.b.c", r#""a"#, r#""a"b"#, r#"a"b""#, r#""""#] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
        assert_eq!(TableName::parse("App.Outbox").unwrap().to_string(), r#""App"."Outbox""#);
    }
}
