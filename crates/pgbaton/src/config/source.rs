//! The `source` of a relay: the outbox, or a table that it adopts.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::section::{Problems, Section};
use crate::source::SourceSpec;
use crate::source::table::{Mark, TableName, TableSpec, Value};

/// Reads the key `source` of a relay's section. The outbox if there are problems, which are told.
pub(super) fn read(relay: &mut Section<'_>, problems: &Problems) -> SourceSpec {
    let key = format!("{}.source", relay.path());
    if !relay.holds_section("source") {
        if relay.string("source").is_some_and(|source| source != "native") {
            problems.add(&key, "is neither \"native\" nor a section with the type \"native\" or \"table\"");
        }
        return SourceSpec::Native;
    }
    let mut section = relay.section("source");
    let source = match section.required_string("type").as_deref() {
        Some("native") => Some(SourceSpec::Native),
        Some("table") => table(&mut section, problems).map(|table| SourceSpec::Table(Arc::new(table))),
        Some(_) => {
            problems.add(&format!("{key}.type"), "is neither \"native\" nor \"table\"");
            None
        }
        None => None,
    };
    section.finish();
    source.unwrap_or_default()
}

fn table(section: &mut Section<'_>, problems: &Problems) -> Option<TableSpec> {
    let path = section.path().to_owned();
    let problem = |key: &str, problem: &str| problems.add(&format!("{path}.{key}"), problem);
    let table = section.required_string("table").and_then(|name| {
        let table = TableName::parse(&name);
        if table.is_none() {
            problem("table", "is no name such as \"app.outbox\"; a part with a dot in it stands in double quotes");
        }
        table
    });
    let id = section.one_or_more("id");
    if id.is_empty() {
        problem("id", "is missing: the column, or columns, that name a row");
    }
    let order = section.one_or_more("order");
    let key = value(section, "key", problems);
    let topic = value(section, "topic", problems);
    if topic.is_none() {
        problem("topic", "is missing: a column, or { constant = \"…\" }");
    }
    let payload = value(section, "payload", problems);
    let payload_is_json = section.boolean("payload_is_json", false);
    let headers = value(section, "headers", problems);
    let header = header(section, problems);
    let created_at = section.string("created_at");
    let pending = section.required_string("pending").filter(|pending| {
        let there = !pending.trim().is_empty();
        if !there {
            problem("pending", "is empty: a condition such as \"published_at is null\"");
        }
        there
    });
    let mark = mark(section, problems);
    let order = if order.is_empty() { id.clone() } else { order };
    Some(TableSpec {
        table: table?,
        id,
        order,
        key,
        topic: topic?,
        payload,
        payload_is_json,
        headers,
        header,
        created_at,
        pending: pending?,
        mark: mark?,
    })
}

/// A column's name, or a section that says more.
fn value(section: &mut Section<'_>, name: &str, problems: &Problems) -> Option<Value> {
    if !section.holds_section(name) {
        return section.string(name).map(Value::Column);
    }
    let mut value = section.section(name);
    let key = value.path().to_owned();
    let (column, path, constant) = (value.string("column"), value.string("path"), value.string("constant"));
    value.finish();
    match (column, path, constant) {
        (Some(column), None, None) => Some(Value::Column(column)),
        (Some(column), Some(path), None) => Some(Value::Path { column, path }),
        (None, None, Some(text)) => Some(Value::Constant(text)),
        _ => {
            problems.add(
                &key,
                "is neither { column = \"…\" } nor { column = \"…\", path = \"$.…\" } nor { constant = \"…\" }",
            );
            None
        }
    }
}

/// Headers by name.
fn header(section: &mut Section<'_>, problems: &Problems) -> BTreeMap<String, Value> {
    let mut all = section.section("header");
    let header =
        all.names().into_iter().filter_map(|name| Some((name.clone(), value(&mut all, &name, problems)?))).collect();
    all.finish();
    header
}

fn mark(section: &mut Section<'_>, problems: &Problems) -> Option<Mark> {
    let key = format!("{}.mark", section.path());
    if !section.holds_section("mark") {
        return match section.required_string("mark")?.as_str() {
            "delete" => Some(Mark::Delete),
            _ => {
                problems.add(&key, "is neither \"delete\" nor a section such as { published_at = \"now()\" }");
                None
            }
        };
    }
    let columns: BTreeMap<String, String> = section.texts("mark").into_iter().collect();
    if columns.is_empty() {
        problems.add(&key, "sets no column, so that every row stays pending");
    }
    (!columns.is_empty()).then_some(Mark::Set(columns))
}
