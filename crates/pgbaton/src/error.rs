//! Errors of the library: opaque, each with a stable code and a hint for whoever runs it.

use std::error::Error as StdError;
use std::fmt;

use crate::connection::hosts::TLS_FAILED;
use tokio_postgres::error::SqlState;

use crate::position::Incarnation;

/// Something went wrong. Says what happened, to which relay, lane or message, and what to do.
///
/// Never holds a payload, a password or a DSN.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    text: String,
    hint: Option<&'static str>,
    /// The server's five characters, where it was the server that complained.
    sql_state: Option<String>,
    /// The server's words where they may quote what it was given: for those who know that it was given nothing of a message.
    quoting: Option<Box<str>>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What callers in this crate decide by. One word each, and the stable code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The database cannot be reached, or did not answer in time: try again.
    Database,
    /// The server is in recovery or read-only: try again, perhaps another host.
    NotWritable,
    /// Another incarnation of the database answered: drop everything in memory and read it again.
    OtherIncarnation(Incarnation),
    /// Going on would guess. A person has to decide.
    Refused,
    /// The schema is missing, older or newer than this executable.
    Schema,
    /// The database does not take a value: a constraint, or a text that is no JSON.
    Value,
    /// The configuration is wrong.
    Config,
    /// The sink cannot be used as configured.
    Sink,
    /// A task of the relay ended that never should.
    Internal,
}

impl Error {
    pub(crate) fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), hint: None, sql_state: None, quoting: None, source: None }
    }

    pub(crate) fn refused(text: impl Into<String>, hint: &'static str) -> Self {
        Self::new(Kind::Refused, text).hint(hint)
    }

    pub(crate) fn hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }

    pub(crate) fn because(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// The same error, saying first what was being done.
    pub(crate) fn doing(mut self, what: &str) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }

    /// What to do about it.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        self.hint
    }

    /// What happened and why, without the code and the hint: a part of another error's text.
    pub(crate) fn in_words(&self) -> String {
        let mut words = self.text.clone();
        let mut source = self.source();
        while let Some(error) = source {
            words.push_str(": ");
            words.push_str(&error.to_string());
            source = error.source();
        }
        words
    }

    /// The same error with a text that says all that this one says.
    pub(crate) fn instead(self, text: String) -> Self {
        Self { text, source: None, ..self }
    }

    /// The same error as what a person has to decide about.
    pub(crate) fn for_a_person(self, text: String, hint: &'static str) -> Self {
        Self { kind: Kind::Refused, hint: Some(hint), ..self.instead(text) }
    }

    /// What the server said of a statement's text.
    pub(crate) fn quoting(&self) -> Option<&str> {
        self.quoting.as_deref()
    }

    /// The same error once more, its causes in words.
    pub(crate) fn again(&self) -> Self {
        let (kind, sql_state) = (self.kind.clone(), self.sql_state.clone());
        Self { kind, text: self.in_words(), hint: self.hint, sql_state, quoting: None, source: None }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    pub(crate) fn sql_state(&self) -> Option<&str> {
        self.sql_state.as_deref()
    }

    /// Whether trying again later may help without anybody doing anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, Kind::Database | Kind::NotWritable | Kind::OtherIncarnation(_))
    }

    /// Whether the server did not let this user into this database.
    pub(crate) fn is_login_refused(&self) -> bool {
        self.sql_state.as_deref().is_some_and(|state| state.starts_with("28") || state.starts_with("3D"))
    }

    /// Stable over releases.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self.kind {
            Kind::Database => "database.unavailable",
            Kind::NotWritable => "database.not_writable",
            Kind::OtherIncarnation(_) => "database.other_incarnation",
            Kind::Refused => "refused",
            Kind::Schema => "schema.mismatch",
            Kind::Value => "value.refused",
            Kind::Config => "config.invalid",
            Kind::Sink => "sink.unusable",
            Kind::Internal => "internal",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.text, self.code())?;
        let mut source = self.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        match self.hint {
            Some(hint) => write!(f, ". {hint}"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Details of a server's error may quote rows, so only its code and message are kept.
impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            return Self::from_driver(error);
        };
        let code = db.code();
        let said = match code.code().get(..2) {
            // The server's own words about connections, resources, rights and names. A syntax error quotes what it was given.
            Some("08" | "0A" | "25" | "28" | "3D" | "3F" | "40" | "42" | "53" | "55" | "57" | "58")
                if *code != SqlState::SYNTAX_ERROR =>
            {
                format!("the database says: {}", db.message())
            }
            // Others quote values, also those of somebody else's trigger.
            _ => match db.constraint() {
                Some(constraint) => format!("the database refuses a value by {constraint}"),
                None => "the database refuses a value or a statement".to_owned(),
            },
        };
        let mut error = Self::from_server(code, format!("{said} ({})", code.code()));
        error.sql_state = Some(code.code().to_owned());
        if db.schema() == Some("pgbaton") && db.constraint() == Some("parked_head") {
            // Of one key two messages were made the one to be tried, at the same time. It is looked at anew.
            (error.kind, error.hint) = (Kind::Database, None);
        }
        error.quoting = (*code == SqlState::SYNTAX_ERROR).then(|| db.message().into());
        error
    }
}

impl Error {
    /// What the driver found out by itself. It tells the kinds of its errors apart by their words alone.
    fn from_driver(error: tokio_postgres::Error) -> Self {
        let said = error.to_string();
        if said == "invalid configuration" {
            // The one thing that is looked for only when the server asks for it.
            return Self::refused(
                "the server asks for a password, and there is none",
                "Add `password` to the DSN, set PGPASSWORD, or add a line for this host, port, database and user to \
                 .pgpass, which nobody else may be able to read",
            );
        }
        if crate::tls::is_disagreement(&error) {
            let hint =
                "Check `sslrootcert`, `sslcert` and the certificate of the server: its authority, names and dates";
            return Self::refused("this client and the server do not agree on TLS", hint).because(error);
        }
        // Without a cause in the network: the server has no TLS.
        let refused = said == TLS_FAILED && error.source().is_some_and(|cause| !cause.is::<std::io::Error>());
        if refused {
            let hint = "Set `ssl = on` on the server, or use another `sslmode`";
            return Self::refused("the DSN demands TLS", hint).because(error);
        }
        if said == "authentication error" {
            let hint = "Check the password, `channel_binding`, and what pg_hba.conf asks for";
            return Self::refused("this client and the server do not agree on how to authenticate", hint)
                .because(error);
        }
        Self::new(Kind::Database, "no answer from the database").because(error)
    }

    fn from_server(code: &tokio_postgres::error::SqlState, text: String) -> Self {
        if *code == SqlState::READ_ONLY_SQL_TRANSACTION || text.contains("recovery is in progress") {
            return Self::new(Kind::NotWritable, text);
        }
        match code.code().get(..2) {
            // Connection trouble, resources, operator's intervention, transaction rolled back, system error.
            Some("08" | "53" | "57" | "40" | "58" | "55" | "25") => Self::new(Kind::Database, text),
            Some("42") if *code == SqlState::INSUFFICIENT_PRIVILEGE => Self::new(Kind::Refused, text).hint(
                "A producer's role sends, the relay's runs, and what changes the schema or a relay's registration takes \
                 the role that owns the schema; `pgbaton grants` prints what each role needs",
            ),
            Some("42" | "3F") => {
                Self::new(Kind::Schema, text).hint("Run `pgbaton migrate` with this version of pgbaton")
            }
            Some("22" | "23" | "54" | "P0") => {
                Self::new(Kind::Value, text).hint("Change what the named constraint or type does not allow")
            }
            Some("28" | "3D") => Self::new(Kind::Refused, text).hint("Check the DSN's user, password and database"),
            _ => Self::new(Kind::Database, text),
        }
    }
}
