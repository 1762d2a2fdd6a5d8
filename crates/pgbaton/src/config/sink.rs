//! The `sink` section of a relay: which destination, and its options.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::section::{Problems, Section};
use crate::connection::Database;
use crate::error::{Error, Kind};
use crate::sink::Sink;
use crate::sink::discard::Discard;
use crate::sink::file::JsonLines;
#[cfg(feature = "http")]
use crate::sink::http::Webhooks;
#[cfg(feature = "postgres")]
use crate::sink::postgres::Inbox;

#[cfg(feature = "http")]
mod http;

/// A sink's options.
pub(super) enum SinkFields {
    Stdout,
    File(PathBuf),
    Discard,
    #[cfg(feature = "http")]
    Http(Box<Webhooks>),
    #[cfg(feature = "postgres")]
    Postgres {
        database: Box<Database>,
        table: String,
    },
}

/// Reads the section. `None` if there are problems, which are told.
pub(super) fn read(
    mut section: Section<'_>,
    (replica, relay): (&str, &str),
    ttl: Duration,
    problems: &Problems,
) -> Option<SinkFields> {
    let path = section.path().to_owned();
    let kind = section.required_string("type")?;
    let sink = match kind.as_str() {
        "stdout" => Some(SinkFields::Stdout),
        "discard" => Some(SinkFields::Discard),
        "file" => section.required_string("path").map(|path| {
            // A file belongs to one replica and relay.
            SinkFields::File(path.replace("{name}", replica).replace("{relay}", relay).into())
        }),
        #[cfg(feature = "http")]
        "http" => http::read(&mut section, &path, problems).map(|sink| SinkFields::Http(Box::new(sink))),
        #[cfg(feature = "postgres")]
        "postgres" => postgres(&mut section, ttl, &path, problems),
        _ => {
            problems.add(&format!("{path}.type"), "is none of stdout, file, http, postgres, discard");
            None
        }
    };
    section.finish();
    sink
}

#[cfg(feature = "postgres")]
fn postgres(section: &mut Section<'_>, ttl: Duration, path: &str, problems: &Problems) -> Option<SinkFields> {
    let dsn = section.required_string("dsn");
    let table = section.required_string("table")?;
    let database = super::parse_dsn(&dsn?, ttl, &format!("{path}.dsn"), problems)?;
    if Inbox::new(database.clone(), &table).is_err() {
        problems.add(&format!("{path}.table"), &crate::sink::postgres::BadTable.to_string());
    }
    Some(SinkFields::Postgres { database: Box::new(database), table })
}

impl SinkFields {
    /// The file it writes to.
    pub(super) fn path(&self) -> Option<&Path> {
        if let Self::File(path) = self { Some(path) } else { None }
    }

    pub(super) fn build(self) -> Result<Arc<dyn Sink>, Error> {
        Ok(match self {
            Self::Stdout => Arc::new(JsonLines::stdout()),
            Self::File(path) => Arc::new(JsonLines::file(path)),
            Self::Discard => Arc::new(Discard),
            #[cfg(feature = "http")]
            Self::Http(sink) => Arc::new(*sink),
            #[cfg(feature = "postgres")]
            Self::Postgres { database, table } => Arc::new(
                Inbox::new(*database, &table)
                    .map_err(|error| Error::new(Kind::Config, format!("table {table}")).because(error))?,
            ),
        })
    }
}
