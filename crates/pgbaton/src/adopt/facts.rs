//! What `pgbaton adopt` knows of a table: the catalogue's answers, and values that were found in columns. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::error::{Error, Kind};
use crate::source::table::TableName;
use crate::source::table::catalogue::{Column, Shape};
use crate::sql::quoted;

/// Everything that a proposal is made of.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) table: TableName,
    pub(super) shape: Shape,
    pub(super) more: More,
    /// Values that were found in rows of columns that may say what became of a row.
    pub(super) sampled: BTreeMap<String, Vec<String>>,
}

/// As `adopt_facts.sql` gives it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct More {
    pub(super) primary_key: Vec<String>,
    pub(super) indexes: Vec<String>,
    pub(super) constraints: Vec<Constraint>,
    pub(super) triggers: Vec<Trigger>,
    /// Names as SQL has them: quoted where that is needed.
    quoted: BTreeMap<String, String>,
    /// Columns with a sequence of their own: how many numbers a session takes at once.
    pub(super) sequences: BTreeMap<String, i64>,
    labels: BTreeMap<String, Vec<String>>,
    common: BTreeMap<String, Vec<String>>,
    pub(super) publications: Vec<String>,
    pub(super) slots: Vec<String>,
    pub(super) replica_identity: char,
    pub(super) row_security: bool,
    pub(super) partition_key: Vec<String>,
    /// Rows by the statistics, if there are any.
    pub(super) estimate: Option<u64>,
    pub(super) inserted: u64,
    pub(super) deleted: u64,
    pub(super) live: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Constraint {
    pub(super) name: String,
    pub(super) definition: String,
    pub(super) columns: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Trigger {
    pub(super) name: String,
    pub(super) function: String,
    pub(super) on_update: bool,
    pub(super) on_delete: bool,
    /// Its function runs with its owner's rights.
    pub(super) definer: bool,
}

impl Facts {
    pub(super) fn new(table: TableName, shape: &str, more: &str) -> Result<Self, Error> {
        let more = serde_json::from_str(more)
            .map_err(|error| Error::new(Kind::Internal, "the catalogue's answer cannot be read").because(error))?;
        Ok(Self { table, shape: Shape::read(shape)?, more, sampled: BTreeMap::new() })
    }

    pub(super) fn column(&self, name: &str) -> Option<&Column> {
        self.shape.columns.iter().find(|column| column.name == name)
    }

    /// A column's name in SQL.
    pub(super) fn sql(&self, column: &str) -> String {
        self.more.quoted.get(column).cloned().unwrap_or_else(|| quoted(column))
    }

    /// Values that a column may have or has, as far as anything says so: each with where it is from, the surest first.
    pub(super) fn values(&self, column: &str) -> Vec<(String, &'static str)> {
        let mut all: Vec<(String, &'static str)> = Vec::new();
        let mut add = |values: Vec<String>, from| {
            for value in values {
                if !all.iter().any(|(known, _)| *known == value) {
                    all.push((value, from));
                }
            }
        };
        let default = self.column(column).and_then(|column| column.default.as_deref());
        add(default.and_then(first_literal).into_iter().collect(), "its default");
        let checks = self.more.constraints.iter().filter(|check| check.columns == [column]);
        add(checks.flat_map(|check| literals(&check.definition)).collect(), "a check constraint");
        add(self.more.labels.get(column).cloned().unwrap_or_default(), "its type");
        add(self.more.common.get(column).cloned().unwrap_or_default(), "the statistics");
        add(self.sampled.get(column).cloned().unwrap_or_default(), "rows of the table");
        all
    }
}

/// The literal that an expression begins with: a text, or a whole number.
fn first_literal(expression: &str) -> Option<String> {
    literals(expression).into_iter().next()
}

/// Texts and whole numbers in an expression, as the server writes it.
fn literals(expression: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find(|c: char| c == '\'' || c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        if let Some(text) = from.strip_prefix('\'') {
            let mut value = String::new();
            let mut after = text;
            while let Some((part, next)) = after.split_once('\'') {
                value.push_str(part);
                after = next;
                match next.strip_prefix('\'') {
                    Some(next) => {
                        value.push('\'');
                        after = next;
                    }
                    None => break,
                }
            }
            found.push(value);
            rest = after;
        } else {
            let end = from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len());
            let (number, after) = from.split_at(end);
            // Digits of a name or a type are none.
            if !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.') {
                found.push(number.to_owned());
            }
            rest = after;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_of_expressions_are_found() {
        for (expression, values) in [
            ("'pending'::text", vec!["pending"]),
            ("'it''s'::character varying", vec!["it's"]),
            ("0", vec!["0"]),
            ("CHECK ((status = ANY (ARRAY['new'::text, 'sent'::text])))", vec!["new", "sent"]),
            ("CHECK ((state = ANY (ARRAY[0, 1, 22])))", vec!["0", "1", "22"]),
            ("nextval2(col_1)", vec![]),
            ("'", vec![""]),
        ] {
            assert_eq!(literals(expression), values, "{expression}");
        }
    }
}
