//! One section of the configuration file: keys are taken out one by one, and what is left over is unknown.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use toml::{Table, Value};

use super::file;
use super::overrides::Override;
use crate::error::{Error, Kind};

/// What is gathered until everything has been read: what is wrong, and what the named files hold.
#[derive(Default)]
pub(super) struct Problems {
    found: RefCell<Vec<String>>,
    overrides: Vec<Override>,
    /// By the key whose value they hold. Secrets.
    files: RefCell<BTreeMap<String, String>>,
}

impl Problems {
    /// From now on a problem names the variable that it may come from.
    pub(super) fn with_overrides(self, overrides: Vec<Override>) -> Self {
        Self { overrides, ..self }
    }

    pub(super) fn add(&self, key: &str, problem: &str) {
        // The last one is the closest: a section's keys come after the section.
        let by = self.overrides.iter().rev().find(|given| given.concerns(key));
        let by = by.map(|given| format!(" (set by {})", given.variable)).unwrap_or_default();
        // A key that nobody knows may hold anything, and this goes to a terminal.
        let key: String =
            key.chars().flat_map(|c| if is_plain(c) { vec![c] } else { c.escape_unicode().collect() }).collect();
        self.found.borrow_mut().push(format!("{key}: {problem}{by}"));
    }

    /// A key's value in the environment, before it was taken for a number or the like.
    fn text(&self, key: &str) -> Option<String> {
        self.overrides.iter().find(|given| given.key == key).map(|given| given.text.clone())
    }

    /// All that was read from files, or all that is wrong.
    pub(super) fn into_result(self) -> Result<BTreeMap<String, String>, Error> {
        let problems = self.found.into_inner();
        if problems.is_empty() {
            return Ok(self.files.into_inner());
        }
        let list: String = problems.iter().map(|problem| format!("\n  {problem}")).collect();
        Err(Error::new(Kind::Config, format!("the configuration has {} problem(s):{list}\n", problems.len())))
    }
}

/// Later moments cannot be reckoned with everywhere.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// A table of the file, with the path to it.
pub(super) struct Section<'a> {
    path: String,
    table: Table,
    problems: &'a Problems,
}

impl<'a> Section<'a> {
    pub(super) fn new(path: &str, table: Table, problems: &'a Problems) -> Self {
        Self { path: path.to_owned(), table, problems }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    fn key(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn problem(&self, name: &str, problem: &str) {
        self.problems.add(&self.key(name), problem);
    }

    /// A section within; an empty one if it is not there.
    pub(super) fn section(&mut self, name: &str) -> Section<'a> {
        let table = match self.table.remove(name) {
            None => Table::new(),
            Some(Value::Table(table)) => table,
            Some(_) => {
                self.problem(name, "is not a section");
                Table::new()
            }
        };
        Section::new(&self.key(name), table, self.problems)
    }

    /// All sections within, whatever their names.
    pub(super) fn subsections(&mut self) -> Vec<(String, Section<'a>)> {
        let names: Vec<String> = self.table.keys().cloned().collect();
        names.into_iter().map(|name| (name.clone(), self.section(&name))).collect()
    }

    /// A text: the key's own, or what the file holds that `<name>_file` names.
    pub(super) fn string(&mut self, name: &str) -> Option<String> {
        let in_file = file_key(name);
        match (self.table.remove(name), self.table.remove(&in_file)) {
            (None, None) => None,
            (Some(value), None) => self.text(name, value),
            (None, Some(path)) => {
                let path = self.text(&in_file, path)?;
                self.text_of_file(name, &in_file, &path)
            }
            (Some(_), Some(_)) => {
                self.problem(name, &format!("is given twice: here and by {in_file}"));
                None
            }
        }
    }

    pub(super) fn required_string(&mut self, name: &str) -> Option<String> {
        if !self.table.contains_key(name) && !self.table.contains_key(&file_key(name)) {
            self.problem(name, "is missing");
        }
        self.string(name)
    }

    /// Whether there is a section of this name, rather than a value.
    pub(super) fn holds_section(&self, name: &str) -> bool {
        self.table.get(name).is_some_and(Value::is_table)
    }

    /// The keys that have not been taken out yet.
    pub(super) fn names(&self) -> Vec<String> {
        self.table.keys().cloned().collect()
    }

    /// A text, or a list of them; an empty one if it is not there.
    pub(super) fn one_or_more(&mut self, name: &str) -> Vec<String> {
        match self.table.get(name) {
            Some(Value::Array(_)) => self.strings(name),
            _ => self.string(name).into_iter().collect(),
        }
    }

    /// A list of texts; an empty one if it is not there.
    pub(super) fn strings(&mut self, name: &str) -> Vec<String> {
        let Some(value) = self.table.remove(name) else { return Vec::new() };
        let texts = |values: Vec<Value>| values.into_iter().map(|value| value.as_str().map(str::to_owned)).collect();
        let texts: Option<Vec<String>> = if let Value::Array(values) = value { texts(values) } else { None };
        texts.unwrap_or_else(|| {
            self.problem(name, "is not a list of texts such as [\"orders.*\"]");
            Vec::new()
        })
    }

    fn text(&self, name: &str, value: Value) -> Option<String> {
        let text = match value {
            Value::String(text) => Some(text),
            // A variable is a text by itself, also where it reads as a number.
            _ => self.problems.text(&self.key(name)),
        };
        if text.is_none() {
            self.problem(name, "is not a text");
        }
        text
    }

    fn text_of_file(&self, name: &str, in_file: &str, path: &str) -> Option<String> {
        match file::read_value(Path::new(path)) {
            Ok(text) => {
                self.problems.files.borrow_mut().insert(self.key(name), text.clone());
                Some(text)
            }
            Err(error) => {
                self.problem(in_file, &format!("{path} cannot be read: {error}"));
                None
            }
        }
    }

    /// A table of texts; an empty one if it is not there. Values are not quoted: they may be secrets.
    pub(super) fn texts(&mut self, name: &str) -> Vec<(String, String)> {
        let mut section = self.section(name);
        let names: Vec<String> = section.table.keys().cloned().collect();
        names.into_iter().filter_map(|name| section.string(&name).map(|text| (name, text))).collect()
    }

    pub(super) fn boolean(&mut self, name: &str, default: bool) -> bool {
        match self.table.remove(name) {
            None => default,
            Some(Value::Boolean(value)) => value,
            Some(_) => {
                self.problem(name, "is neither true nor false");
                default
            }
        }
    }

    /// A duration with its unit, as in `"5s"` or `"1m 30s"`.
    pub(super) fn duration(&mut self, name: &str, default: Duration) -> Duration {
        let Some(value) = self.table.remove(name) else { return default };
        match value.as_str().and_then(duration).filter(|duration| !duration.is_zero() && *duration <= LONGEST) {
            Some(duration) => duration,
            None => {
                self.problem(name, "is not a duration such as \"100ms\", \"5s\" or \"1m 30s\", of a year at most");
                default
            }
        }
    }

    /// The same; `None` where it is not given.
    pub(super) fn optional_duration(&mut self, name: &str) -> Option<Duration> {
        self.table.contains_key(name).then(|| self.duration(name, LONGEST))
    }

    pub(super) fn integer(&mut self, name: &str, default: u32, least: u32, most: u32) -> u32 {
        let Some(value) = self.table.remove(name) else { return default };
        match value.as_integer().and_then(|value| u32::try_from(value).ok()).filter(|v| (least..=most).contains(v)) {
            Some(value) => value,
            None => {
                self.problem(name, &format!("is not a number from {least} to {most}"));
                default
            }
        }
    }

    pub(super) fn size(&mut self, name: &str, default: usize, least: u32, most: u32) -> usize {
        let default = u32::try_from(default).unwrap_or(most);
        self.integer(name, default, least, most) as usize
    }

    /// A size with its unit, as in `"64 MiB"`.
    pub(super) fn bytes(&mut self, name: &str, default: usize) -> usize {
        let Some(value) = self.table.remove(name) else { return default };
        match value.as_str().and_then(bytes).filter(|bytes| *bytes > 0) {
            Some(bytes) => bytes,
            None => {
                self.problem(name, "is not a size such as \"512 KiB\" or \"64 MiB\"");
                default
            }
        }
    }

    /// Whatever was not taken out is unknown.
    pub(super) fn finish(self) {
        for name in self.table.keys() {
            self.problem(name, "is unknown");
        }
    }
}

/// Whether a terminal shows it as what it is: neither a control character nor one that changes the direction of text.
pub(crate) fn is_plain(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A duration with its unit, as in `5s` or `1m 30s`. None if it is not one, or is negative.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    Duration::try_from(text.parse::<jiff::SignedDuration>().ok()?).ok()
}

/// A time with its offset, as in `2026-12-01T10:00:00Z` or `2026-12-01T11:00+01:00`. None if it is not one.
#[must_use]
pub fn time(text: &str) -> Option<SystemTime> {
    Some(text.parse::<jiff::Timestamp>().ok()?.into())
}

fn file_key(name: &str) -> String {
    format!("{name}_file")
}

fn bytes(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: usize = match unit.trim() {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("64 MiB"), Some(64 << 20));
        assert_eq!(bytes("1GiB"), Some(1 << 30));
        for bad in ["64", "64 MB", "MiB", "-1 B", "99999999999999999999 B", "9999999999999 GiB"] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
    }
}
