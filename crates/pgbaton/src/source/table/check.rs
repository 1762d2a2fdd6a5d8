//! Refuse rather than guess: whether a table can be adopted as configured, and which index it needs. Nothing is written.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::TableSource;
use super::catalogue::Shape;
use super::statements::Statements;
use crate::connection::{Access, Connection, Parameter};
use crate::error::{Error, Kind};
use crate::source::brought::Raw;
use crate::source::native;
use crate::source::trouble::passes;
use crate::sql::{self, Verb};

const NO_TEXTS: &(dyn ToSql + Sync) = &Vec::<String>::new();
const NO_INTEGERS: &(dyn ToSql + Sync) = &Vec::<i32>::new();
const NO_BIGINTS: &(dyn ToSql + Sync) = &Vec::<i64>::new();

impl TableSource {
    /// The `first` check of a process also tries the mark.
    pub(super) async fn check_table(&self, first: bool) -> Result<(), Error> {
        let mut slot = self.writer.lock().await;
        let connection = slot.take().await?;
        let shape = self.shape(&connection).await?;
        self.same_table(shape.oid)?;
        let wrong = shape.refusals(&self.spec);
        if !wrong.is_empty() {
            let list: String = wrong.iter().map(|why| format!("\n  {why}")).collect();
            return Err(Error::refused(
                format!("relay {}: {} cannot be adopted like that:{list}", self.relay, self.spec.table),
                "Correct the relay's `source` section, or the table: `pgbaton adopt` proposes one for it",
            ));
        }
        let statements = Statements::new(&self.spec, &shape)?;
        let look = self.plan(&connection, &statements).await?;
        if is_never_true(&plan_of(&look)?) {
            return Err(Error::refused(
                format!("relay {}: `pending` of {} is true for no row there could be", self.relay, self.spec.table),
                "A null is never equal to anything: say `is null`, not `= null`",
            ));
        }
        self.look_for_an_index(&connection, &statements, &look).await?;
        match (&statements.rehearse, first) {
            (Some(rehearse), true) => self.rehearse(connection, rehearse).await?,
            (None, true) => slot.put(connection),
            (_, false) => match self.forget_dead(&connection).await {
                Ok(()) => slot.put(connection),
                Err(error) => {
                    tracing::warn!(relay = %self.relay, %error, "it could not be seen whether dead rows are still pending");
                }
            },
        }
        *self.statements.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(statements));
        Ok(())
    }

    async fn shape(&self, connection: &Connection) -> Result<Shape, Error> {
        let table = &self.spec.table;
        let parameters: [Parameter<'_>; 2] = [(&table.schema, Type::TEXT), (&table.name, Type::TEXT)];
        let statements = [(sql::OUTBOX_FACTS, &[][..]), (sql::TABLE_FACTS, &parameters)];
        let [home, rows] = connection.pipeline(Access::Look, statements).await?;
        native::check_server(home.first())?;
        let Some(row) = rows.first() else {
            return Err(Error::refused(
                format!("relay {}: there is no table {table} in this database", self.relay),
                "Names are taken letter by letter, and upper case is not turned to lower case",
            ));
        };
        Shape::read(row.try_get("facts")?)
    }

    /// Has the server read and plan all statements, with this role's rights, and runs none: the operator's own SQL is right by
    /// now, or the reason is told. Running a look may take long where its index is still missing. Gives the plan of the look.
    async fn plan(&self, connection: &Connection, statements: &Statements) -> Result<Vec<Row>, Error> {
        let refused = |error: Error| {
            if passes(&error) {
                return error;
            }
            // Nothing of a row was passed along.
            let said = error.quoting().map_or_else(|| error.in_words(), ToOwned::to_owned);
            Error::refused(
                format!("relay {}: the statements for {} are not accepted: {said}", self.relay, self.spec.table),
                "Correct `pending`, `mark` or a path in the relay's `source` section, or grant what `pgbaton adopt --grants` shows",
            )
        };
        let (nothing_to_fetch, nothing_to_mark, no_rows) =
            (self.nothing_to_fetch(), self.nothing_to_mark(), self.no_rows());
        let look = look_of_all(&100);
        let Statements { look: sql, fetch, mark, mark_changed, still, behind, .. } = statements;
        let explained = [sql, fetch, mark, mark_changed, still, behind].map(|sql| explained(sql));
        let [look_of, fetch, mark, mark_changed, still, behind] = &explained;
        let all: [(Verb<'_>, &[Parameter<'_>]); 6] = [
            (Verb { name: "look", sql: look_of }, &look),
            (Verb { name: "fetch", sql: fetch }, &nothing_to_fetch),
            (Verb { name: "mark", sql: mark }, &nothing_to_mark),
            (Verb { name: "mark_changed", sql: mark_changed }, &no_rows),
            (Verb { name: "still", sql: still }, &no_rows),
            (Verb { name: "behind", sql: behind }, &[]),
        ];
        let [look, ..] = connection.pipeline(Access::ReadTheirs, all).await.map_err(refused)?;
        Ok(look)
    }

    /// Tries on one pending row, without writing, whether the mark ends the condition. What cannot be tried, or not in time, is
    /// not: until a first mark was written, each lane hands over one batch at a time. The connection ends with it, since an
    /// answer may still be under way.
    async fn rehearse(&self, connection: Connection, rehearse: &str) -> Result<(), Error> {
        let connection = connection.waiting(self.patience.most());
        let verb = Verb { name: "rehearse", sql: rehearse };
        let pending: i64 = match connection.pipeline(Access::ReadTheirs, [(verb, &[])]).await {
            Ok([rows]) => rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or_default(),
            Err(error) if connection.is_closed() => return Err(error),
            Err(error) => {
                tracing::debug!(relay = %self.relay, %error, "the mark was not tried on a row");
                0
            }
        };
        if pending == 0 {
            return Ok(());
        }
        Err(Error::refused(
            format!("relay {}: a row of {} would still be pending after its mark", self.relay, self.spec.table),
            "`mark` has to end what `pending` says, or rows would be delivered again and again",
        ))
    }

    /// The ids of no rows.
    fn no_rows(&self) -> Vec<Parameter<'_>> {
        self.spec.id.iter().map(|_| -> Parameter<'_> { (NO_TEXTS, Type::TEXT_ARRAY) }).collect()
    }

    fn nothing_to_fetch(&self) -> Vec<Parameter<'_>> {
        [(&0_i32 as &(dyn ToSql + Sync), Type::INT4)].into_iter().chain(self.no_rows()).collect()
    }

    fn nothing_to_mark(&self) -> Vec<Parameter<'_>> {
        let of: [Parameter<'_>; 9] = [
            (&"", Type::TEXT),
            (&self.replica.0, Type::UUID),
            (&"", Type::TEXT),
            (NO_INTEGERS, Type::INT4_ARRAY),
            (NO_BIGINTS, Type::INT8_ARRAY),
            (NO_BIGINTS, Type::INT8_ARRAY),
            (NO_BIGINTS, Type::INT8_ARRAY),
            (NO_INTEGERS, Type::INT4_ARRAY),
            (NO_BIGINTS, Type::INT8_ARRAY),
        ];
        of.into_iter().chain(self.no_rows()).collect()
    }

    async fn look_for_an_index(
        &self,
        connection: &Connection,
        statements: &Statements,
        look: &[Row],
    ) -> Result<(), Error> {
        if walks_what_is_pending(connection, look).await? {
            self.told.store(false, Ordering::Relaxed);
        } else if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                relay = %self.relay,
                "no index gives just the pending rows of {} in order, so that a look may read all of it; make one{}: {}",
                self.spec.table,
                self.spec.index_but(),
                self.spec.index(statements.partitioned)
            );
        }
        Ok(())
    }
}

/// What a look is asked for where all rows are one lane's, and none is set aside.
pub(super) fn look_of_all(most: &i64) -> [Parameter<'_>; 5] {
    [
        (&1_i32, Type::INT4),
        (NO_INTEGERS, Type::INT4_ARRAY),
        (most, Type::INT8),
        (&None::<&str>, Type::TEXT),
        (&true, Type::BOOL),
    ]
}

/// Whether the server walks an index of just what is pending. Without one a look reads the whole table and sorts what is pending,
/// or walks over all that was marked: it works, and costs more the more there is.
pub(super) async fn is_indexed(connection: &Connection, statements: &Statements) -> Result<bool, Error> {
    let explain = explained(&statements.look);
    let [look] = connection
        .pipeline(Access::ReadTheirs, [(Verb { name: "explain", sql: &explain }, &look_of_all(&100))])
        .await?;
    walks_what_is_pending(connection, &look).await
}

/// The same of a look's plan.
async fn walks_what_is_pending(connection: &Connection, look: &[Row]) -> Result<bool, Error> {
    let Some(walked) = walked(&plan_of(look)?) else { return Ok(false) };
    // An index that holds every row gives the order as well, but what was marked is walked over, too.
    let (schemas, names): (Vec<&str>, Vec<&str>) =
        walked.iter().map(|[schema, name]| (schema.as_str(), name.as_str())).unzip();
    let parameters: [Parameter<'_>; 2] = [(&schemas, Type::TEXT_ARRAY), (&names, Type::TEXT_ARRAY)];
    let [rows] = connection.pipeline(Access::Look, [(sql::WHOLE_INDEXES, &parameters)]).await?;
    Ok(rows.is_empty())
}

fn plan_of(explained: &[Row]) -> Result<serde_json::Value, Error> {
    let row = explained.first().ok_or_else(|| Error::new(Kind::Internal, "the server gave no plan"))?;
    serde_json::from_str(row.try_get::<_, Raw<'_>>(0)?.text()?)
        .map_err(|error| Error::new(Kind::Internal, "a plan cannot be read").because(error))
}

/// Whether the server need not read anything to know that no row is meant.
fn is_never_true(plan: &serde_json::Value) -> bool {
    match plan {
        serde_json::Value::Array(items) => items.iter().any(is_never_true),
        serde_json::Value::Object(fields) => {
            fields.get("One-Time Filter").is_some_and(|filter| filter == "false") || fields.values().any(is_never_true)
        }
        _ => false,
    }
}

/// Planned as it would be run, with its rights, and not run.
fn explained(statement: &str) -> String {
    format!("explain (verbose, format json, costs off) {statement}")
}

/// Indexes, by schema and name, that are walked from their beginning with rows left out on the way; `None` if rows do not come in
/// order, so that the first ones are not there at once.
fn walked(plan: &serde_json::Value) -> Option<Vec<[String; 2]>> {
    let (mut nodes, mut walked) = (vec![plan], Vec::new());
    while let Some(node) = nodes.pop() {
        match node {
            serde_json::Value::Array(items) => nodes.extend(items),
            serde_json::Value::Object(fields) => {
                let text = |key: &str| fields.get(key).and_then(|value| value.as_str());
                if matches!(text("Node Type"), Some("Sort" | "Seq Scan")) {
                    return None;
                }
                if let (Some(name), Some(_), None) = (text("Index Name"), text("Filter"), text("Index Cond")) {
                    walked.push([text("Schema").unwrap_or_default().to_owned(), name.to_owned()]);
                }
                nodes.extend(fields.values());
            }
            _ => {}
        }
    }
    Some(walked)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_walked_over_is_told_by_the_plan() {
        let scan = |more: serde_json::Value| {
            let mut scan = json!({ "Node Type": "Index Scan", "Schema": "app", "Index Name": "i" });
            scan.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!([{ "Plan": { "Node Type": "Limit", "Plans": [scan] } }])
        };
        let i = vec![["app".to_owned(), "i".to_owned()]];
        assert_eq!(walked(&scan(json!({ "Filter": "(published_at IS NULL)" }))), Some(i));
        assert_eq!(walked(&scan(json!({}))), Some(Vec::new()));
        let found = json!({ "Index Cond": "(status = 'new')", "Filter": "(attempts < 5)" });
        assert_eq!(walked(&scan(found)), Some(Vec::new()));
        assert_eq!(walked(&json!([{ "Plan": { "Node Type": "Sort", "Plans": [] } }])), None);
    }
}
