//! The `sink` section of a relay: which destination, and its options.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::section::{Problems, Section};
use crate::sink::Sink;
use crate::sink::discard::Discard;
use crate::sink::file::JsonLines;
#[cfg(feature = "http")]
use crate::sink::http::Webhooks;
#[cfg(feature = "postgres")]
use crate::sink::postgres::Inbox;

#[cfg(feature = "http")]
mod http;
#[cfg(feature = "postgres")]
mod postgres;

/// A sink's options.
pub(super) enum SinkFields {
    Stdout,
    File(PathBuf),
    Discard,
    #[cfg(feature = "http")]
    Http(Box<Webhooks>),
    #[cfg(feature = "postgres")]
    Postgres(Box<Inbox>),
}

/// Reads the section. `None` if there are problems, which are told. `ttl` bounds the waits of sinks that are databases.
#[cfg_attr(not(feature = "postgres"), allow(unused_variables, reason = "no such sink in this build"))]
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
        "postgres" => {
            postgres::read(&mut section, ttl, &path, problems).map(|sink| SinkFields::Postgres(Box::new(sink)))
        }
        _ => {
            problems.add(&format!("{path}.type"), "is none of stdout, file, http, postgres, discard");
            None
        }
    };
    section.finish();
    sink
}

impl SinkFields {
    /// The file it writes to.
    pub(super) fn path(&self) -> Option<&Path> {
        if let Self::File(path) = self { Some(path) } else { None }
    }

    pub(super) fn build(self) -> Arc<dyn Sink> {
        match self {
            Self::Stdout => Arc::new(JsonLines::stdout()),
            Self::File(path) => Arc::new(JsonLines::file(path)),
            Self::Discard => Arc::new(Discard),
            #[cfg(feature = "http")]
            Self::Http(sink) => Arc::new(*sink),
            #[cfg(feature = "postgres")]
            Self::Postgres(sink) => Arc::new(*sink),
        }
    }
}
