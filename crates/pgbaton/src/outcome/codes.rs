//! What each error of a sink means: the one table, and nobody else decides.
//!
//! A sink says which code an error has, and the code says what it means. `docs/errors.md` repeats this table for operators; a
//! test compares the two.

/// What a code says of its message, or of the sink, and with that what the relay does.
///
/// The first four are about a message; `retry.rs` decides what becomes of it. One that is rejected is dead at once. `Retry` and
/// `Silent` count against it once something else went through, so that the sink is not to blame; then it is set aside and tried
/// again later, and only its key waits. `Busy` never counts.
///
/// `Down` is about the sink: all lanes of its relay back off together, and nothing is held against a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The sink can never take this message.
    Reject,
    /// The sink answered that it failed with this message; a later attempt may succeed.
    Retry,
    /// No answer about the message came (a time-out, a connection that ended, a gateway's 502, 503 or 504): it may lie in the
    /// message or in the sink.
    Silent,
    /// The sink asks for patience: never the message's fault.
    Busy,
    /// The sink takes nothing from anybody.
    Down,
}

impl Meaning {
    /// Its word in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reject => "reject",
            Self::Retry => "retry",
            Self::Silent => "silent",
            Self::Busy => "busy",
            Self::Down => "down",
        }
    }
}

/// One kind of error. Stable over releases: alerts and selectors name it.
///
/// A sink of your own has codes of its own, each a `static`:
///
/// ```
/// use pgbaton::outcome::{Code, Fault, Meaning, Outcome};
///
/// static TOO_LARGE: Code = Code {
///     name: "lines.too_large",
///     meaning: Meaning::Reject,
///     says: "The message is larger than a line may be",
///     todo: "Send less, or raise the limit",
/// };
/// assert!(matches!(Outcome::of(Fault::new(&TOO_LARGE, "2 MiB"), None), Ok(Outcome::Rejected(_))));
/// ```
#[derive(Debug)]
pub struct Code {
    /// Of the form `sink.reason`, in lower-case letters, digits and `_`. It is what makes two codes equal.
    pub name: &'static str,
    /// What it means.
    pub meaning: Meaning,
    /// When it comes, without a full stop.
    pub says: &'static str,
    /// What an operator has to do, without a full stop.
    pub todo: &'static str,
}

impl PartialEq for Code {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Code {}

/// One `static` for each code, in a module for each sink; and all of them, so that none is left out.
macro_rules! codes {
    ($($(#[$about:meta])* $sink:ident { $($code:ident = $name:literal, $meaning:ident, $says:literal, $todo:literal;)* })*) => {
        $($(#[$about])* pub mod $sink {
            use super::{Code, Meaning};
            $(#[doc = $says] pub static $code: Code =
                Code { name: $name, meaning: Meaning::$meaning, says: $says, todo: $todo };)*
        })*

        /// The codes of all sinks, whichever are built in, in the order in which they are documented.
        pub const ALL: &[&Code] = &[$($(&$sink::$code,)*)*];
    };
}

codes! {
    /// Of a row of an adopted table.
    source {
        UNFIT = "source.unfit", Busy,
            "A row that had been set aside has been changed, and cannot be a message any more",
            "The fault says why. Change the row, or have `pending` leave it out; it is looked at every 10 s";
    }

    /// Of the relay itself.
    relay {
        DIED = "relay.died", Retry,
            "Replicas have died one after the other while they had this message, or while they tried it alone",
            "What they died of: their logs, the kernel's on memory. The message may be why once the text says that it was tried alone";
    }

    /// Of any sink.
    sink {
        SILENT = "sink.silent", Down,
            "At the start of a replica the sink did not say within `lease.ttl` what it can do",
            "If it goes on: the sink, and the way to it. Its lanes ask it again";
    }

    /// Of `postgres`.
    postgres {
        REFUSED = "postgres.refused", Reject,
            "The inbox does not take what a message says, by a type, a constraint, a limit or a trigger that raises an error \
             (SQLSTATE 22, 23, 54, P0)",
            "The text names the constraint; of several messages, the log of the sink's server names the row. Change the \
             constraint or the trigger, or what the message breaks";
        UNREACHABLE = "postgres.unreachable", Down,
            "The server does not answer, is starting or stopping, or has no connection left (no SQLSTATE, 08, 57P, 53300)",
            "If it goes on: the server, the network, the hosts in `dsn`, `max_connections`";
        NOT_WRITABLE = "postgres.not_writable", Down,
            "The server is in recovery or read-only (25006)",
            "During a fail-over nothing. Else name the hosts of all servers in `dsn`";
        LOGIN = "postgres.login", Down,
            "The server does not let this user into this database, or it and this client do not agree on TLS or on how to \
             authenticate (28, 3D)",
            "User, password, database and TLS in `dsn`; `pg_hba.conf` of the server";
        RIGHTS = "postgres.rights", Down,
            "The role lacks a right to the inbox or its fence table (42501)",
            "`pgbaton inbox` ends with the grants that it needs";
        MISSING = "postgres.missing", Down,
            "The inbox or its fence table is not there, or not as `pgbaton inbox` makes it (3F, 42)",
            "Make the tables with `pgbaton inbox`; a trigger of theirs that is broken may be to blame, too";
        CONFLICT = "postgres.conflict", Down,
            "Another transaction was in the way: a deadlock, a lock that was waited for too long, transactions that cannot be \
             put in order (40, 55P03)",
            "If it goes on: who holds locks on the inbox, or writes to it in transactions that are serializable";
        FAILED = "postgres.failed", Down,
            "Anything else: a disk that is full, a statement that was cancelled, a fault of the server",
            "The text says what the server said, with its SQLSTATE";
    }

    /// Of `stdout` and `file`.
    file {
        FAILED = "file.failed", Down,
            "The file or standard output cannot be opened or written, or is not this sink's",
            "The text names it and the reason: a disk that is full, rights, a folder that is not there, a file with other \
             lines in it, standard output that is closed";
        NOT_JSON = "file.not_json", Reject,
            "The headers of the message, or its payload, are said to be JSON and are none",
            "Look who writes such rows: the outbox's own columns take no such value";
    }

    /// Of `http`.
    http {
        TIMEOUT = "http.timeout", Silent,
            "No status came within `timeout`; the endpoint may have taken the message",
            "Raise `timeout`, or have the endpoint answer as soon as the message is durable";
        CONNECTION_LOST = "http.connection_lost", Silent,
            "The connection ended before a status came, or what came was no HTTP or did not end; the endpoint may have taken \
             the message",
            "If it goes on: what lies in between, or an endpoint that breaks on this message";
        UNAVAILABLE = "http.unavailable", Silent,
            "502, 503 or 504: a gateway that has no answer from the endpoint, or an endpoint that is overloaded",
            "If it goes on: the endpoint behind the gateway";
        TRY_LATER = "http.try_later", Silent,
            "408 or 425: the request did not arrive in time, or too early to be trusted",
            "If it goes on: what lies in between";
        TOO_MANY = "http.too_many", Busy,
            "429: more requests than the endpoint allows",
            "Lower `concurrency`, or raise the endpoint's limit";
        IN_PROGRESS = "http.in_progress", Retry,
            "409: the endpoint is dealing with an earlier attempt",
            "If it goes on: the endpoint's log. What it has already it should answer with 2xx";
        FAILED = "http.failed", Retry,
            "500, or another 5xx: the endpoint failed at this message",
            "The endpoint's log says why";
        REJECTED = "http.rejected", Reject,
            "400, 413, 415, 422, or any 4xx that is not in this table; 404, 405 or 410 where `url` holds `{topic}`, since other \
             topics have other URLs",
            "Have the endpoint take the message, or the URL of its topic be there";
        TOPIC = "http.topic", Reject,
            "The topic makes no URL: it is `.` or `..`, or longer than 64 KiB",
            "Send under another topic, or take `{topic}` out of `url`";
        HEADER = "http.header", Reject,
            "A header of the request takes no value",
            "It does not happen: report it";
        REFUSED = "http.refused", Down,
            "401 to 405, 407, 410, 421 or 426: credentials, rights, the URL, the method, a proxy, another server or protocol",
            "Correct `url` and `headers`, or what the endpoint allows";
        REDIRECTED = "http.redirected", Down,
            "3xx: redirects are not followed, since they could lead anywhere, with all headers",
            "Correct `url`";
        NO_ANSWER = "http.no_answer", Down,
            "A status that is no answer to a POST: 101, or 600 and more",
            "Correct `url`: something else listens there";
        UNRESOLVED = "http.unresolved", Down,
            "The host in `url` has no address, or its name could not be looked up",
            "The name, and how this machine looks names up";
        PRIVATE_ADDRESS = "http.private_address", Down,
            "The host in `url` has no address of the public internet",
            "Set `allow_private = true` if that is meant";
        UNREACHABLE = "http.unreachable", Down,
            "No connection came about within `timeout`, or it was refused",
            "If it goes on: the endpoint, its port, what lies in between";
        TLS = "http.tls", Down,
            "No TLS came about: a certificate that is not trusted, is out of date or is for another name",
            "The text says which: `ca_file`, or the endpoint's certificate";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_stable_words_and_each_is_there_once() {
        let names: BTreeSet<&str> = ALL.iter().map(|code| code.name).collect();
        assert_eq!(names.len(), ALL.len());
        let is_word = |word: &str| {
            word.starts_with(|c: char| c.is_ascii_lowercase())
                && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        };
        for Code { name, says, todo, .. } in ALL {
            assert!(name.split_once('.').is_some_and(|(sink, reason)| is_word(sink) && is_word(reason)), "{name}");
            for text in [says, todo] {
                assert!(!text.is_empty() && !text.contains(['|', '\n']) && !text.ends_with('.'), "{name}: {text}");
            }
        }
    }

    /// Each row of the tables in `docs/errors.md` with the word that its chapter begins with.
    fn documented() -> Vec<(String, Vec<String>)> {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md")).unwrap();
        let (mut chapter, mut rows) = (String::new(), Vec::new());
        for line in text.lines() {
            if let Some(heading) = line.strip_prefix("## ") {
                chapter = heading.split('`').nth(1).unwrap_or_default().to_owned();
            } else if let Some(row) = line.strip_prefix('|').filter(|row| row.split('`').nth(1).is_some_and(is_code)) {
                let cells = row.trim_end_matches('|').split('|').map(|cell| cell.trim().to_owned());
                rows.push((chapter.clone(), cells.collect()));
            }
        }
        rows
    }

    /// Words without a dot are meanings.
    fn is_code(word: &str) -> bool {
        word.contains('.')
    }

    #[test]
    fn the_documents_have_this_table() {
        let expected: Vec<(String, Vec<String>)> = ALL
            .iter()
            .map(|code| {
                let sink = code.name.split('.').next().unwrap_or_default();
                let cells = [&format!("`{}`", code.name), code.meaning.name(), code.says, code.todo];
                (sink.to_owned(), cells.map(str::to_owned).into())
            })
            .collect();
        for (documented, expected) in documented().iter().zip(&expected) {
            assert_eq!(documented, expected);
        }
        assert_eq!(documented().len(), expected.len());
    }
}
