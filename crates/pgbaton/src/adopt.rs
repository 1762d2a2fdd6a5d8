//! Adopting a table: looking at a live one, proposing a relay for it, trying that relay without writing, and what its role
//! needs. What `pgbaton adopt` does.
//!
//! `adopt/propose.rs` and what it uses is pure: from `adopt/facts.rs` to a proposal with its reasons. This file and
//! `adopt/check.rs` ask the database, in transactions that can write nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::Type;

use crate::config::Config;
use crate::connection::{Access, Connection, Database, Parameter};
use crate::error::{Error, Kind};
use crate::lane::RelayName;
use crate::sink::Sink;
use crate::source::Behind;
use crate::source::table::survey;
use crate::source::table::{TableName, TableSpec};
use crate::sql::{self, Verb};

mod check;
mod facts;
mod grants;
mod names;
mod propose;
mod show;
mod state;
#[cfg(test)]
mod tests;
mod warn;

pub use check::{Finding, Report, Verdict, check};
pub(crate) use check::{Unusable, ask};
use facts::Facts;
pub use grants::grants;
use propose::Draft;

/// How long each look at rows may take: whoever has a table without an index is told so, instead of waiting.
const LOOK: Duration = Duration::from_secs(5);
/// Up to so many rows are counted; beyond that the statistics have to do.
const COUNTED: i64 = 100_000;

/// A relay that adopts a table.
pub struct Configured {
    pub(crate) name: RelayName,
    pub(crate) spec: Arc<TableSpec>,
    /// Where its messages go, if that is known.
    pub(crate) sink: Option<Arc<dyn Sink>>,
    /// The file that this is.
    pub(crate) file: Option<PathBuf>,
}

impl Configured {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }
}

/// What was found in a table, and a relay for it.
pub struct Proposal {
    relay: RelayName,
    facts: Facts,
    draft: Draft,
    rows: Rows,
}

/// What was seen of the rows. What could not be seen in time, or at all, says why.
struct Rows {
    count: Result<Count, String>,
    pending: Result<Behind, String>,
    indexed: Result<bool, String>,
}

enum Count {
    Exactly(i64),
    About(u64),
    Unknown,
}

/// Looks at a table and proposes a relay for it, of this name or one like the table's. Writes nothing, and needs nothing of
/// pgbaton's in the database.
///
/// # Errors
/// A database that cannot be reached, a table that is not there or cannot be adopted in any way.
pub async fn look(database: &Database, table: &TableName, relay: Option<&str>) -> Result<Proposal, Error> {
    let relay = match relay {
        None => relay_name(&table.name)?,
        Some(name) => RelayName::new(name).ok_or_else(|| {
            Error::new(Kind::Config, format!("{name:?} names no relay"))
                .hint("A relay is named by 1 to 63 of a-z, 0-9, _ and -")
        })?,
    };
    let mut facts = facts_of(&database.connect().await?, table).await?;
    sample(database, &mut facts).await;
    let draft = propose::propose(&facts)?;
    let (spec, shape) = (&draft.spec, &facts.shape);
    let pending = tried(database, async |connection| survey::pending(connection, spec, shape).await).await;
    let indexed = tried(database, async |connection| survey::indexed(connection, spec, shape).await).await;
    let count = tried(database, async |connection| count(connection, &facts).await).await;
    Ok(Proposal { relay, rows: Rows { count, pending, indexed }, facts, draft })
}

impl Proposal {
    /// The configuration as TOML, with the reasons: a section of a relay, without `[database]`. `sink` is the sink as TOML has
    /// it; without it a person has to choose.
    ///
    /// # Errors
    /// A sink that is none.
    pub fn to_toml(&self, sink: Option<&str>, database: &Database) -> Result<String, Error> {
        let text = show::configuration(self, sink);
        if let Some(sink) = sink {
            is_a_table(sink)?;
            Config::of_database(&text, database.clone())?;
        }
        Ok(text)
    }

    /// Why a relay would not start on the table as it is, if so.
    #[must_use]
    pub fn refusal(&self) -> Option<Error> {
        let wrong = self.facts.shape.refusals(&self.draft.spec);
        let list: String = wrong.iter().map(|why| format!("\n  {why}")).collect();
        (!wrong.is_empty()).then(|| {
            Error::refused(
                format!("{} cannot be adopted as it is:{list}", self.facts.table),
                "The proposal says how it would be adopted otherwise",
            )
        })
    }

    /// The relay that is proposed.
    ///
    /// # Errors
    /// A sink that is none.
    pub fn configured(self, sink: Option<&str>, database: &Database) -> Result<Configured, Error> {
        let Some(sink) = sink else {
            return Ok(Configured { name: self.relay, spec: Arc::new(self.draft.spec), sink: None, file: None });
        };
        is_a_table(sink)?;
        let config = Config::of_database(&show::configuration(&self, Some(sink)), database.clone())?;
        let configured = config.adopting(&self.facts.table, None)?;
        configured.ok_or_else(|| Error::new(Kind::Internal, "the proposal does not adopt its own table"))
    }
}

/// What is no TOML would be told of a line that nobody has written.
fn is_a_table(sink: &str) -> Result<(), Error> {
    let parsed = toml::from_str::<toml::Table>(&format!("sink = {sink}"));
    if parsed.is_ok_and(|all| all.len() == 1 && all.get("sink").is_some_and(toml::Value::is_table)) {
        return Ok(());
    }
    Err(Error::new(Kind::Config, "the sink is no inline table as TOML has it")
        .hint("Such as: --sink '{ type = \"file\", path = \"{relay}-{name}.jsonl\" }'"))
}

/// What the catalogue says.
async fn facts_of(connection: &Connection, table: &TableName) -> Result<Facts, Error> {
    let parameters: [Parameter<'_>; 2] = [(&table.schema, Type::TEXT), (&table.name, Type::TEXT)];
    let statements = [(sql::TABLE_FACTS, &parameters[..]), (sql::ADOPT_FACTS, &parameters)];
    let [shape, more] = connection.pipeline(Access::Look, statements).await?;
    let (Some(shape), Some(more)) = (shape.first(), more.first()) else {
        return Err(Error::refused(
            format!("there is no table {table} in this database"),
            "Names are taken letter by letter: upper case is not turned to lower case, and without a schema it is public",
        ));
    };
    Facts::new(table.clone(), shape.try_get("facts")?, more.try_get("facts")?)
}

/// A look on a connection of its own, which it may lose.
async fn tried<T>(database: &Database, look: impl AsyncFnOnce(&Connection) -> Result<T, Error>) -> Result<T, String> {
    let looked = async { look(&database.connect().await?.waiting(LOOK)).await };
    looked.await.map_err(|error| error.in_words())
}

/// Values of columns that may say what became of a row. Without them there is only less to go by.
async fn sample(database: &Database, facts: &mut Facts) {
    /// More are no status.
    const MOST: usize = 20;
    let status = |name: &str| ["status", "state"].iter().any(|word| names::plain(name).ends_with(word));
    let columns: Vec<String> =
        facts.shape.columns.iter().map(|column| column.name.clone()).filter(|name| status(name)).collect();
    for column in columns {
        let (table, quoted) = (&facts.table, sql::quoted(&column));
        let text = format!(
            "select distinct pg_catalog.left(s.x, 64) from (select {quoted}::text as x from {table} limit 20000) s
             where s.x is not null limit {}",
            MOST + 1
        );
        let values = tried(database, async |connection| {
            let [rows] = connection.pipeline(Access::Look, [(Verb { name: "sample", sql: &text }, &[])]).await?;
            rows.iter().map(|row| Ok(row.try_get::<_, String>(0)?)).collect::<Result<Vec<String>, Error>>()
        });
        if let Ok(values) = values.await
            && values.len() <= MOST
        {
            facts.sampled.insert(column, values);
        }
    }
}

/// How many rows there are: counted where that is cheap.
async fn count(connection: &Connection, facts: &Facts) -> Result<Count, Error> {
    let known = |estimate: Option<u64>| estimate.map_or(Count::Unknown, Count::About);
    if facts.more.estimate.is_some_and(|rows| i64::try_from(rows).is_ok_and(|rows| rows > COUNTED)) {
        return Ok(known(facts.more.estimate));
    }
    let text = format!("select pg_catalog.count(*) from (select from {} limit {COUNTED}) n", facts.table);
    let [rows] = connection.pipeline(Access::Look, [(Verb { name: "count", sql: &text }, &[])]).await?;
    let rows: i64 = rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or_default();
    Ok(if rows < COUNTED { Count::Exactly(rows) } else { known(facts.more.estimate) })
}

/// A relay's name like the table's.
fn relay_name(table: &str) -> Result<RelayName, Error> {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c.to_ascii_lowercase() } else { '_' };
    let name: String = table.chars().map(allowed).take(63).collect();
    let name = name.trim_matches('_');
    RelayName::new(if name.is_empty() { "adopted" } else { name })
        .ok_or_else(|| Error::new(Kind::Internal, "a relay's name was made wrong"))
}
