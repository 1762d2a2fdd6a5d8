//! An adopted table as the configuration describes it: which of its rows are messages, what they say, and what delivering one
//! does to it.
//!
//! Names are the catalogue's own, letter by letter, and are quoted. `pending` and the expressions of `mark` are the operator's
//! SQL, taken as they are.

use std::collections::BTreeMap;
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
    /// What all replicas have to agree about, or two of them take one row for their own: stored with the relay.
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
            "order": self.order,
            "key": key,
            "pending": self.pending,
        })
    }

    /// The index that a look walks, as SQL. One of all parts of a table cannot be made concurrently.
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

#[cfg(test)]
mod tests {
    use super::*;

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
