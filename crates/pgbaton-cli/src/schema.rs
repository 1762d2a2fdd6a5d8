//! `pgbaton migrate`, `grants` and `inbox`.

use pgbaton::migrate::{self, Roles};

use crate::args::DatabaseArgs;
use crate::{Failure, print, say};

/// Brings the schema up to this version, or shows how.
#[allow(clippy::needless_pass_by_value, reason = "a command consumes its arguments")]
pub(crate) async fn migrate(database: DatabaseArgs, show: bool) -> Result<(), Failure> {
    if show {
        return print(&migrate::print());
    }
    let applied = migrate::run(&database.database()?).await?;
    if applied.is_empty() {
        say(&format!("the schema is at version {} already", migrate::version()));
    } else {
        say(&format!("the schema is at version {} now; see `pgbaton grants` for who may use it", migrate::version()));
    }
    Ok(())
}

/// Prints what the three roles need.
pub(crate) fn grants(roles: &Roles) -> Result<(), Failure> {
    print(&migrate::grants(roles))
}

/// Prints the tables of a `postgres` sink, with the grants of this role.
pub(crate) fn inbox(table: &str, role: &str) -> Result<(), Failure> {
    let ddl = pgbaton::sink::postgres::inbox_ddl(table, role).map_err(|error| Failure::Usage(error.to_string()))?;
    print(&ddl)
}
