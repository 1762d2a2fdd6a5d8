//! What the role of a relay needs to adopt a table: as SQL, and no more than that.

use std::fmt::Write;

use super::{Configured, facts_of};
use crate::connection::Database;
use crate::error::Error;
use crate::migrate;
use crate::source::table::Mark;
use crate::sql::quoted;

/// The grants that this role needs for this relay, on the table and in pgbaton's own schema.
///
/// Reading is granted on the whole table, not on columns: `pending` and `mark` are free to name any of them, the mark is tried
/// on whole rows at start, and a column that is added later must not stop a relay. What a relay may change is granted to the
/// column.
///
/// # Errors
/// A database that cannot be reached, a table that is not there.
pub async fn grants(database: &Database, relay: &Configured, role: &str) -> Result<String, Error> {
    let spec = &relay.spec;
    let facts = facts_of(&database.connect().await?, &spec.table).await?;
    let (table, schema, role_) = (spec.table.to_string(), quoted(&spec.table.schema), quoted(role));
    let deletes = spec.mark == Mark::Delete;
    let change = match &spec.mark {
        Mark::Delete => "delete".to_owned(),
        Mark::Set(columns) => {
            let columns: Vec<String> = columns.keys().map(|column| quoted(column)).collect();
            format!("update ({})", columns.join(", "))
        }
    };
    let mut sql = format!(
        "-- What the role of relay {} needs to deliver rows of {}. Run it after each `pgbaton migrate`, as\n\
         -- a superuser; or part 1 as the owner of the table, and part 2 as the owner of the schema pgbaton.\n\n\
         -- 1. The table. It is read as a whole: `pending` and `mark` may name any column.\n\
         grant usage on schema {schema} to {role_};\n\
         grant select on {table} to {role_};\n\
         grant {change} on {table} to {role_};\n",
        relay.name,
        table.replace(char::is_control, " "),
    );
    for trigger in &facts.more.triggers {
        let runs = if deletes { trigger.on_delete } else { trigger.on_update };
        if runs && !trigger.definer {
            let (name, function) = (&trigger.name, &trigger.function);
            let line = format!("The trigger {name} runs {function} with this role's rights: grant what it needs.");
            let _ = writeln!(sql, "-- {}", line.replace(char::is_control, " "));
        }
    }
    if facts.more.row_security {
        let _ = writeln!(
            sql,
            "-- The table has row-level security, which could hide rows from the relay: it refuses to start unless its role bypasses\n\
             -- it (alter role {} bypassrls, as a superuser), or the table's is disabled.",
            role_.replace(char::is_control, " ")
        );
    }
    let _ = writeln!(
        sql,
        "-- Names in `pending`, `mark` and triggers are looked up by this role's search_path: let nobody else create in a schema on it."
    );
    let _ = write!(sql, "\n-- 2. pgbaton's own schema, as `pgbaton grants` has it.\n{}", migrate::relay_grants(role));
    Ok(sql)
}
