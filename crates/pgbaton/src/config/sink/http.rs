//! The options of an `http` sink.

use std::time::Duration;

use crate::config::section::{Problems, Section};
use crate::sink::http::{Settings, Webhooks};

/// Lanes are many already: with 16 of them, 64 requests at once to one endpoint.
const CONCURRENCY: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the options. `None` if there are problems, which are told.
pub(super) fn read(section: &mut Section<'_>, path: &str, problems: &Problems) -> Option<Webhooks> {
    let url = section.required_string("url");
    let settings = Settings {
        url: url.clone().unwrap_or_default(),
        concurrency: section.size("concurrency", CONCURRENCY, 1, 256),
        timeout: section.duration("timeout", TIMEOUT),
        headers: section.texts("headers"),
        allow_private: section.boolean("allow_private", false),
        ca_file: section.string("ca_file").map(Into::into),
        secret: section.string("secret"),
    };
    url?;
    match Webhooks::new(&settings) {
        Ok(sink) => Some(sink),
        Err(bad) => {
            bad.iter().for_each(|bad| problems.add(&format!("{path}.{}", bad.key), &bad.problem));
            None
        }
    }
}
