//! The environment over the file: `PGBATON__RELAYS__ORDERS__LANES=8` is the key `relays.orders.lanes`.

use std::ffi::OsString;

use toml::{Table, Value};

use super::section::Problems;

/// Begins the name of every variable that overrides a key. All that begin with it have to name one.
const PREFIX: &str = "PGBATON__";

/// One key that the environment gives.
pub(super) struct Override {
    /// The variable, for whoever set it.
    pub(super) variable: String,
    /// The key, as in problems.
    pub(super) key: String,
    /// The topmost section that the file does not have.
    made: Option<String>,
    /// Its value as a text.
    pub(super) text: String,
}

impl Override {
    /// Whether a problem with this key may come from this variable.
    pub(super) fn concerns(&self, key: &str) -> bool {
        let within =
            |section: &str| key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        within(&self.key) || self.made.as_deref().is_some_and(within)
    }
}

/// Puts what the environment says over what the file says, in the order of names: a whole section comes before its keys.
pub(super) fn apply(
    table: &mut Table,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> (Vec<Override>, Problems) {
    let problems = Problems::default();
    let mut overrides = gather(environment, &problems);
    for given in &overrides {
        forget_the_other_form(table, &given.key);
    }
    for given in &mut overrides {
        put(table, given, &problems);
    }
    (overrides, problems)
}

fn gather(environment: impl IntoIterator<Item = (OsString, OsString)>, problems: &Problems) -> Vec<Override> {
    let mut overrides = Vec::new();
    for (name, value) in environment {
        let Some(variable) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let path = variable.strip_prefix(PREFIX).unwrap_or_default().to_lowercase();
        if path.split("__").any(str::is_empty) {
            problems.add(variable, "names no key: sections and keys are joined by two underscores");
        } else if let Some(text) = value.to_str() {
            let key = path.replace("__", ".");
            overrides.push(Override { variable: variable.to_owned(), key, made: None, text: text.to_owned() });
        } else {
            problems.add(variable, "is not a text");
        }
    }
    overrides.sort_by(|a, b| a.variable.cmp(&b.variable));
    overrides
}

/// A key in the environment takes the place of the same one in the file, in whichever form that is given.
fn forget_the_other_form(table: &mut Table, key: &str) {
    let other = key.strip_suffix("_file").map_or_else(|| format!("{key}_file"), str::to_owned);
    let mut path: Vec<&str> = other.split('.').collect();
    let Some(last) = path.pop() else { return };
    let section = path.into_iter().try_fold(table, |table, name| table.get_mut(name)?.as_table_mut());
    if let Some(section) = section {
        section.remove(last);
    }
}

fn put(table: &mut Table, given: &mut Override, problems: &Problems) {
    let mut path: Vec<&str> = given.key.split('.').collect();
    let Some(last) = path.pop() else { return };
    let mut section = table;
    for (depth, name) in path.iter().enumerate() {
        let entry = section.entry(*name).or_insert_with(|| {
            given.made.get_or_insert_with(|| given.key.split('.').take(depth + 1).collect::<Vec<_>>().join("."));
            Value::Table(Table::new())
        });
        let Value::Table(table) = entry else {
            return problems.add(&given.variable, &format!("{name} is not a section"));
        };
        section = table;
    }
    section.insert(last.to_owned(), value(&given.text));
}

/// A number, a truth value, a list or a section if it reads as one, and else the text as it stands.
fn value(text: &str) -> Value {
    match text.parse::<Value>() {
        Ok(value @ (Value::Integer(_) | Value::Boolean(_) | Value::Array(_) | Value::Table(_))) => value,
        _ => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_they_read_as() {
        assert_eq!(value("4"), Value::Integer(4));
        assert_eq!(value("true"), Value::Boolean(true));
        assert_eq!(value("[1, \"a\"]"), Value::Array(vec![Value::Integer(1), Value::String("a".into())]));
        assert_eq!(value("{ type = \"stdout\" }").as_table().map(Table::len), Some(1));
        for text in ["", "5s", "host=x", "\"quoted\"", "1.5", "1979-05-27", "4\nlanes = 5", "[", "a = 1"] {
            assert_eq!(value(text), Value::String(text.into()), "{text}");
        }
    }
}
