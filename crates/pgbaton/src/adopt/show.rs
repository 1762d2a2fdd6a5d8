//! A proposal as a configuration: TOML, with the reason of each choice and all warnings as comments. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::warn::Warning;
use super::{Count, Proposal};
use crate::config::is_plain;
use crate::source::table::{Mark, TableName, TableSpec, Value};

/// Comments are broken at this column.
const WIDTH: usize = 116;

/// The whole text.
pub(super) fn configuration(proposal: &Proposal, sink: Option<&str>) -> String {
    let mut text = String::new();
    header(&mut text, proposal);
    let relay = proposal.relay.as_str();
    let _ = writeln!(text, "\n[relays.{relay}]");
    the_sink(&mut text, sink);
    let _ = writeln!(text, "\n[relays.{relay}.source]");
    source(&mut text, &proposal.draft.spec, &proposal.draft.why);
    text
}

fn header(text: &mut String, proposal: &Proposal) {
    let Proposal { facts, draft, .. } = proposal;
    let table = name(&facts.table);
    comment(
        text,
        "",
        &format!("What `pgbaton adopt` found in {table}, and a relay that delivers its rows. Nothing was changed."),
    );
    comment(text, "", "");
    for column in &facts.shape.columns {
        let mut line = format!("{} {}", column.name, column.type_name);
        line += if column.not_null { " not null" } else { "" };
        let _ = column.default.iter().try_for_each(|default| write!(line, " default {default}"));
        line += if column.generated { " (generated)" } else { "" };
        comment(text, "  ", &format!("column: {line}"));
    }
    for index in &facts.more.indexes {
        comment(text, "  ", &format!("index: {index}"));
    }
    for constraint in &facts.more.constraints {
        comment(text, "  ", &format!("constraint: {} {}", constraint.name, constraint.definition));
    }
    for trigger in &facts.more.triggers {
        comment(text, "  ", &format!("trigger: {} runs {}", trigger.name, trigger.function));
    }
    comment(text, "  ", &format!("rows: {}", rows(proposal)));
    for (what, columns) in &draft.left {
        comment(text, "  ", &format!("left alone ({what}): {}", columns.join(", ")));
    }
    let mut warnings: Vec<Warning> = Vec::new();
    let refused = facts.shape.refusals(&draft.spec);
    warnings.extend(
        refused.iter().map(|why| Warning::of(format!("REFUSED, no relay starts on this table as it is: {why}."))),
    );
    warnings.extend(draft.warnings.iter().cloned());
    warnings.extend(index(proposal));
    comment(text, "", "");
    comment(text, "", "Read these before it runs:");
    for warning in &warnings {
        comment(text, "- ", &warning.text);
        for line in warning.sql.iter().flat_map(|sql| sql.lines()) {
            let _ = writeln!(text, "#     {}", shown(line));
        }
    }
    comment(text, "", "");
    comment(
        text,
        "",
        "Put it into the configuration whose [database] is this one, choose the sink, and go on with docs/adopt.md: `pgbaton \
         adopt` with --grants prints what the relay's role needs, with --check it tries this relay without writing.",
    );
}

/// The index that a look would walk, if it is missing, or if nobody knows.
fn index(proposal: &Proposal) -> Option<Warning> {
    let partitioned = proposal.facts.shape.is_partitioned();
    let how = match partitioned {
        false => "it keeps nobody from writing",
        true => {
            "it keeps others from writing until it is made, unless each partition has had its own made concurrently before"
        }
    };
    let but = proposal.draft.spec.index_but();
    let text = match &proposal.rows.indexed {
        Ok(true) => return None,
        Ok(false) => format!(
            "No index gives just the pending rows in order, so that each look may read all of the table. Make this one{but}; {how}:"
        ),
        Err(why) => format!("Whether an index serves could not be seen: {why}. This one does{but}; {how}:"),
    };
    Some(Warning::with(text, format!("{};", proposal.draft.spec.index(partitioned))))
}

fn rows(proposal: &Proposal) -> String {
    let count = match &proposal.rows.count {
        Ok(Count::Exactly(rows)) => format!("{rows}"),
        Ok(Count::About(rows)) => format!("about {rows} by the statistics"),
        Ok(Count::Unknown) => "not counted, and never analysed".to_owned(),
        Err(why) => format!("not counted: {why}"),
    };
    let pending = match &proposal.rows.pending {
        Ok(pending) => {
            let some = if pending.messages < 10_000 { "" } else { " or more" };
            let oldest = pending
                .oldest
                .filter(|_| pending.messages > 0)
                .map(|age| format!(", the oldest of them for {}", age_of(age)))
                .unwrap_or_default();
            format!("{}{some} pending{oldest}", pending.messages)
        }
        Err(why) => format!("what is pending could not be seen: {why}"),
    };
    format!("{count}; {pending}")
}

fn age_of(age: Duration) -> String {
    let seconds = age.as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let parts = units.iter().scan(seconds, |left, (unit, name)| {
        let count = *left / unit;
        *left %= unit;
        Some((count, name))
    });
    let parts: Vec<String> =
        parts.skip_while(|(count, _)| *count == 0).take(2).map(|(count, name)| format!("{count}{name}")).collect();
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

fn the_sink(text: &mut String, sink: Option<&str>) {
    if let Some(sink) = sink {
        let _ = writeln!(text, "sink = {sink}");
        return;
    }
    comment(
        text,
        "",
        "Where messages go: choose one (docs/sinks.md says what each promises). None is chosen here, since a row is marked once \
         the sink has it, and nobody else would deliver it then.",
    );
    for choice in [
        "{ type = \"http\", url = \"https://example.org/hooks/{topic}\" }",
        "{ type = \"postgres\", dsn_file = \"/run/secrets/sink-dsn\", table = \"app.inbox\" }",
        "{ type = \"file\", path = \"/var/lib/pgbaton/{relay}-{name}.jsonl\" }",
        "{ type = \"stdout\" }",
    ] {
        let _ = writeln!(text, "# sink = {choice}");
    }
}

fn source(text: &mut String, spec: &TableSpec, why: &BTreeMap<&'static str, String>) {
    let mut key = |name: &'static str, value: Option<String>, instead: &str| {
        if let Some(why) = why.get(name) {
            comment(text, "", why);
        }
        let _ = match value {
            Some(value) => writeln!(text, "{name} = {value}"),
            None if instead.is_empty() => Ok(()),
            None => writeln!(text, "# {name} = {instead}"),
        };
    };
    key("type", Some(quoted("table")), "");
    key("table", Some(quoted(&name(&spec.table))), "");
    key("id", Some(names(&spec.id)), "");
    key("order", Some(names(&spec.order)), "");
    key("key", spec.key.as_ref().map(value), "\"…\"");
    key("topic", Some(value(&spec.topic)), "");
    key("payload", spec.payload.as_ref().map(value), "\"…\"");
    key("headers", spec.headers.as_ref().map(value), "");
    let header = spec.header.iter().map(|(name, of)| format!("{} = {}", bare(name), value(of)));
    let header = header.collect::<Vec<_>>().join(", ");
    key("header", (!header.is_empty()).then(|| format!("{{ {header} }}")), "");
    key("created_at", spec.created_at.as_deref().map(quoted), "");
    key("pending", Some(quoted(&spec.pending)), "");
    let mark = match &spec.mark {
        Mark::Delete => quoted("delete"),
        Mark::Set(columns) => {
            let set = columns.iter().map(|(column, to)| format!("{} = {}", bare(column), quoted(to)));
            format!("{{ {} }}", set.collect::<Vec<_>>().join(", "))
        }
    };
    key("mark", Some(mark), "");
}

/// As the configuration has it.
fn name(table: &TableName) -> String {
    let part = |part: &str| match part.chars().all(|c| c.is_alphanumeric() || c == '_') {
        true => part.to_owned(),
        false => format!("\"{}\"", part.replace('"', "\"\"")),
    };
    format!("{}.{}", part(&table.schema), part(&table.name))
}

fn names(columns: &[String]) -> String {
    match columns {
        [one] => quoted(one),
        several => format!("[{}]", several.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ")),
    }
}

fn value(of: &Value) -> String {
    match of {
        Value::Column(column) => quoted(column),
        Value::Path { column, path } => format!("{{ column = {}, path = {} }}", quoted(column), quoted(path)),
        Value::Constant(text) => format!("{{ constant = {} }}", quoted(text)),
    }
}

/// A key: bare where it can be.
fn bare(key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if plain { key.to_owned() } else { escaped(key) }
}

/// A text, without escapes where it can be.
fn quoted(text: &str) -> String {
    let literal = text.contains(['"', '\\']) && !text.contains('\'') && text.chars().all(is_plain);
    if literal { format!("'{text}'") } else { escaped(text) }
}

fn escaped(text: &str) -> String {
    let mut escaped = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => escaped.extend(['\\', c]),
            c if !is_plain(c) => {
                let _ = write!(escaped, "\\U{:08X}", u32::from(c));
            }
            c => escaped.push(c),
        }
    }
    escaped + "\""
}

/// Names may hold anything, and a comment ends with its line.
fn shown(text: &str) -> String {
    text.chars().flat_map(|c| if is_plain(c) { vec![c] } else { c.escape_unicode().collect() }).collect()
}

/// A comment, broken into lines; those after the first one are indented like its beginning.
fn comment(text: &mut String, begin: &str, words: &str) {
    let words = words.replace('\n', " ");
    let (mut line, indent) = (format!("# {begin}"), format!("# {}", " ".repeat(begin.chars().count())));
    let mut empty = true;
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        let word = shown(word);
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(text, "{line}");
            (line, empty) = (indent.clone(), true);
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(&word);
        empty = false;
    }
    let _ = writeln!(text, "{}", line.trim_end());
}
