//! The options of a `postgres` sink.

use std::time::Duration;

use super::super::parse_dsn;
use super::super::section::{Problems, Section};
use crate::sink::postgres::{BadTable, Inbox};

/// Reads them. `None` if there are problems, which are told.
pub(super) fn read(section: &mut Section<'_>, ttl: Duration, path: &str, problems: &Problems) -> Option<Inbox> {
    let dsn = section.required_string("dsn");
    let table = section.required_string("table")?;
    let database = parse_dsn(&dsn?, ttl, &format!("{path}.dsn"), problems)?;
    let inbox = Inbox::new(database, &table);
    if inbox.is_err() {
        problems.add(&format!("{path}.table"), &BadTable.to_string());
    }
    inbox.ok()
}
