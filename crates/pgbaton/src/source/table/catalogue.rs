//! What the catalogue says of an adopted table, and which tables cannot be adopted as configured. Pure.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::definition::{Mark, TableSpec};
use crate::error::{Error, Kind};

/// As `table_facts.sql` gives it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Shape {
    /// Another one as soon as it is made anew, by whatever name.
    pub(super) oid: u32,
    /// The server's, as `server_version_num` has it.
    version: u32,
    pub(crate) kind: char,
    persistence: char,
    row_security: bool,
    parts: u32,
    is_part: bool,
    pub(crate) columns: Vec<Column>,
    /// The columns of each unique index, by name.
    pub(crate) unique: Vec<BTreeSet<String>>,
    rules: Vec<String>,
    /// A trigger may change a row that is updated before it is written.
    rewritten: bool,
    referenced: Vec<String>,
    unpublished: bool,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// As SQL has it.
    pub(crate) type_name: String,
    /// The type's own name, under all domains.
    pub(crate) kind: String,
    pub(crate) not_null: bool,
    /// It cannot be set: it is computed, or an identity that is always generated.
    pub(crate) generated: bool,
    /// It is computed of others.
    computed: bool,
    pub(crate) default: Option<String>,
}

/// Types whose text is the same whatever the session is set to, and that compare by it.
pub(crate) const PLAIN: [&str; 11] =
    ["int2", "int4", "int8", "uuid", "text", "varchar", "bpchar", "name", "bool", "numeric", "enum"];

/// Types that a part of an id may be of as well: its text is made in one way.
pub(crate) const TIMES: [&str; 3] = ["timestamptz", "timestamp", "date"];

/// Types that hold JSON, or may.
const JSON: [&str; 4] = ["json", "jsonb", "text", "varchar"];

impl Shape {
    /// Reads the answer of `table_facts.sql`.
    pub(crate) fn read(facts: &str) -> Result<Self, Error> {
        serde_json::from_str(facts)
            .map_err(|error| Error::new(Kind::Internal, "the catalogue's answer cannot be read").because(error))
    }

    pub(crate) fn is_partitioned(&self) -> bool {
        self.kind == 'p'
    }

    /// Whether an update leaves a row with other values than it sets.
    pub(super) fn changes_on_its_own(&self) -> bool {
        self.rewritten || self.columns.iter().any(|column| column.computed)
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = (&str, &Column)> {
        self.columns.iter().map(|column| (column.name.as_str(), column))
    }

    pub(super) fn column(&self, name: &str) -> Result<&Column, Error> {
        self.columns
            .iter()
            .find(|column| column.name == name)
            .ok_or_else(|| Error::new(Kind::Internal, format!("column {name} was not looked for before it was used")))
    }

    pub(super) fn kind(&self, name: &str) -> Option<&str> {
        Some(self.column(name).ok()?.kind.as_str())
    }

    /// Why this table cannot be adopted like that: everything at once.
    pub(crate) fn refusals(&self, spec: &TableSpec) -> Vec<String> {
        let mut all = self.of_the_table(spec);
        let missing: BTreeSet<&str> = spec.columns().filter(|name| self.column(name).is_err()).collect();
        all.extend(missing.iter().map(|name| format!("it has no column {name:?}: names are taken letter by letter")));
        if missing.is_empty() {
            all.extend(self.of_the_columns(spec));
        }
        all
    }

    fn of_the_table(&self, spec: &TableSpec) -> Vec<String> {
        let mut all = Vec::new();
        let mut refuse = |wrong: bool, why: &str| {
            if wrong {
                all.push(why.to_owned());
            }
        };
        match self.kind {
            'r' | 'p' => {}
            'v' | 'm' => refuse(true, "it is a view: adopt the table under it"),
            'f' => refuse(true, "it is a foreign table: what another server commits cannot be followed"),
            _ => refuse(true, "it is no table"),
        }
        refuse(self.persistence == 't', "it is temporary: no other session sees it");
        refuse(
            self.persistence == 'u',
            "it is unlogged: a crash empties it, and numbers of messages that were delivered are given out again",
        );
        refuse(
            self.kind == 'r' && self.parts > 0,
            "other tables inherit from it, and no index makes an id unique over all of them",
        );
        refuse(self.is_part, "it is a part of another table: adopt that one");
        refuse(
            self.row_security,
            "its row-level security holds for this role, and could hide rows: let the role bypass it, or disable it",
        );
        if !self.rules.is_empty() {
            all.push(format!(
                "it has rules on update or delete ({}), which a mark does not pass",
                self.rules.join(", ")
            ));
        }
        if self.unpublished {
            all.push(
                "it is published without a replica identity, so that no row can be marked: give it one".to_owned(),
            );
        }
        if spec.mark == Mark::Delete && !self.referenced.is_empty() {
            let tables = self.referenced.join(", ");
            all.push(format!("rows of {tables} refer to it and keep it from being deleted from: mark rows instead"));
        }
        all
    }

    fn of_the_columns(&self, spec: &TableSpec) -> Vec<String> {
        let mut all = Vec::new();
        let facts = |name: &str| self.columns.iter().find(|column| column.name == name);
        let id: BTreeSet<String> = spec.id.iter().cloned().collect();
        if !self.unique.contains(&id) {
            let columns = spec.id.join(", ");
            all.push(format!(
                "no unique index has just the columns of the id ({columns}), so one id could mean two rows"
            ));
        }
        for column in spec.id.iter().filter_map(|name| facts(name)) {
            if !column.not_null {
                all.push(format!("column {:?} of the id may be null", column.name));
            }
        }
        let key = spec.key.as_ref().filter(|key| matches!(key, super::definition::Value::Column(_)));
        let plain = |column: &&Column| PLAIN.contains(&column.kind.as_str());
        let ids = spec.id.iter().filter_map(|name| facts(name)).filter(|column| !TIMES.contains(&column.kind.as_str()));
        let keys = key.and_then(|key| key.column()).into_iter().filter_map(facts);
        for column in ids.chain(keys).filter(|column| !plain(column)) {
            all.push(format!(
                "column {:?} is of type {}, whose text depends on a session's settings, and cannot name a row or a key",
                column.name, column.type_name
            ));
        }
        if let Some(column) = spec.created_at.as_deref().and_then(facts)
            && !["timestamptz", "timestamp"].contains(&column.kind.as_str())
        {
            all.push(format!("column {:?} is no timestamp", column.name));
        }
        if let Mark::Set(columns) = &spec.mark {
            for column in columns.keys().filter_map(|name| facts(name)).filter(|column| column.generated) {
                all.push(format!("column {:?} is generated, and cannot be set", column.name));
            }
            let names = spec.id.iter().map(String::as_str).chain(key.and_then(|key| key.column()));
            for name in names.filter(|name| columns.contains_key(*name)) {
                all.push(format!("`mark` sets column {name:?}, which says which row it is or whose lane it is in"));
            }
        }
        all.extend(self.of_json(spec));
        all
    }

    fn of_json(&self, spec: &TableSpec) -> Vec<String> {
        use super::definition::Value;
        let values = [Some(&spec.topic), spec.key.as_ref(), spec.payload.as_ref(), spec.headers.as_ref()];
        let values = values.into_iter().flatten().chain(spec.header.values());
        let paths = values.filter_map(|value| if let Value::Path { column, .. } = value { Some(column) } else { None });
        let headers = spec.headers.as_ref().and_then(|value| match value {
            Value::Column(column) => Some(column),
            _ => None,
        });
        let mut all = Vec::new();
        for (column, allowed) in
            paths.map(|column| (column, &JSON[..])).chain(headers.map(|column| (column, &JSON[..2])))
        {
            if self.kind(column).is_some_and(|kind| !allowed.contains(&kind)) {
                all.push(format!("column {column:?} holds no JSON by its type"));
            }
        }
        // `pg_input_is_valid` came with that version.
        if let Some(Value::Path { column, .. }) = &spec.key
            && self.version < 160_000
            && self.kind(column).is_some_and(|kind| kind != "jsonb")
        {
            all.push(format!(
                "the key is a path in column {column:?}, which is no jsonb: before PostgreSQL 16 one row in which it is no JSON would \
                 stop all lanes"
            ));
        }
        all
    }
}
