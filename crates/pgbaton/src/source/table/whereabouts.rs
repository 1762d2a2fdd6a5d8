//! Where one row of an adopted table is, for `pgbaton trace`: by what the relay's registration tells, and by its configuration if that
//! is at hand. Reads only.

use serde::Serialize;
use tokio_postgres::types::Type;

use super::catalogue::Shape;
use super::definition::TableSpec;
use super::row::{message_id, row_of};
use super::statements::whereabouts as statement;
use super::taken::RowId;
use crate::connection::{Access, Connection, Parameter};
use crate::error::Error;
use crate::lane::RelayName;
use crate::source::trouble::of_a_value;
use crate::sql::{self, Verb};

/// One row, as its table has it.
#[derive(Debug, Serialize)]
pub struct RowFacts {
    /// The message id that the sink sees.
    pub message_id: String,
    /// What it is ordered by.
    pub key: Option<String>,
    /// Where it goes. `None` if that is not known here.
    pub topic: Option<String>,
    /// When it was inserted, in UTC. `None` if that is not known here.
    pub created_at: Option<String>,
    /// Whether it is to be delivered. `None` if that is not known here.
    pub pending: Option<bool>,
    #[serde(skip)]
    pub(crate) hash: i64,
}

/// What was found of a row.
pub(crate) enum Whereabouts {
    There(RowFacts),
    /// The table has no row of this id.
    Gone,
    /// It cannot be said, and why.
    NotKnown(String),
}

/// A row of a relay's table, and why not all of it is known, if so.
pub(crate) struct Looked {
    pub(crate) row: Whereabouts,
    pub(crate) but: Option<String>,
}

impl Looked {
    fn not_known(why: impl Into<String>) -> Self {
        Self { row: Whereabouts::NotKnown(why.into()), but: None }
    }
}

/// A row by its message id, or by the columns of its id where they are known. `registered` is what the relay was registered for,
/// `table` the table's oid, and `configured` what a configuration says of the same.
pub(crate) async fn look(
    connection: &Connection,
    relay: &RelayName,
    (registered, table): (&TableSpec, u32),
    configured: Option<&TableSpec>,
    (id, row): (&str, Option<Vec<String>>),
) -> Result<Looked, Error> {
    let Some(row) = row.map(RowId::from).or_else(|| row_of(relay.as_str(), id, registered.id.len())) else {
        return Ok(Looked::not_known(format!(
            "of which row it is cannot be told from its message id, which is a digest or no id of {}",
            registered.table
        )));
    };
    let Some(shape) = shape(connection, registered).await? else {
        return Ok(Looked::not_known(format!("there is no table {} any more", registered.table)));
    };
    if shape.oid != table {
        let text = format!(
            "{} is another table than the one the relay was registered for, by the same name",
            registered.table
        );
        return Ok(Looked::not_known(text));
    }
    let missing = |spec: &TableSpec| spec.columns().find(|column| shape.column(column).is_err()).map(ToOwned::to_owned);
    if let Some(column) = missing(registered) {
        return Ok(Looked::not_known(format!("{} has no column {column:?} any more", registered.table)));
    }
    let mut but = None;
    if let Some(spec) = configured {
        match found(connection, relay, (spec, &shape), &row, true).await {
            Ok(row) => return Ok(Looked { row, but: None }),
            Err(error) if error.is_transient() => return Err(error),
            // What the operator wrote, or a right that only that needs.
            Err(error) => but = Some(error.in_words()),
        }
    }
    match found(connection, relay, (registered, &shape), &row, false).await {
        Ok(row) => Ok(Looked { row, but }),
        Err(error) if error.is_transient() => Err(error),
        Err(error) => Ok(Looked::not_known(format!("{} cannot be read: {}", registered.table, error.in_words()))),
    }
}

async fn shape(connection: &Connection, spec: &TableSpec) -> Result<Option<Shape>, Error> {
    let parameters: [Parameter<'_>; 2] = [(&spec.table.schema, Type::TEXT), (&spec.table.name, Type::TEXT)];
    let [rows] = connection.pipeline(Access::Look, [(sql::TABLE_FACTS, &parameters)]).await?;
    rows.first().map(|row| Shape::read(row.try_get("facts")?)).transpose()
}

async fn found(
    connection: &Connection,
    relay: &RelayName,
    (spec, shape): (&TableSpec, &Shape),
    row: &RowId,
    known: bool,
) -> Result<Whereabouts, Error> {
    let text = statement(spec, shape, known)?;
    let verb = Verb { name: "trace", sql: &text };
    let parameters: Vec<Parameter<'_>> = row.0.iter().map(|column| -> Parameter<'_> { (column, Type::TEXT) }).collect();
    let rows = match connection.pipeline(Access::ReadTheirs, [(verb, &parameters)]).await {
        Ok([rows]) => rows,
        // What is no value of the id's type names no row.
        Err(error) if !known && of_a_value(&error) => return Ok(Whereabouts::Gone),
        Err(error) => return Err(error),
    };
    let Some(found) = rows.first() else { return Ok(Whereabouts::Gone) };
    let id = RowId::read(found, 0, spec.id.len())?;
    Ok(Whereabouts::There(RowFacts {
        message_id: message_id(relay, &id),
        key: found.try_get("key")?,
        topic: found.try_get("topic")?,
        created_at: found.try_get("created_at")?,
        pending: found.try_get("pending")?,
        hash: found.try_get("hash")?,
    }))
}
