//! The schema: making it, checking it, and who may do what with it.
//!
//! `pgbaton migrate` is the only thing that runs DDL, under a lock and in one transaction. Replicas only check.

use crate::connection::{Access, Connection, Database};
use crate::error::{Error, Kind};
use crate::sql;

/// One step of the schema.
struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

/// All of them, in order. Never changed once released.
const MIGRATIONS: &[Migration] =
    &[Migration { version: 1, name: "outbox", sql: include_str!("../migrations/0001_outbox.sql") }];

/// Everything before the first migration. The lock's number is pgbaton's own; it is held until the transaction ends.
const PREPARE: &str = "begin isolation level read committed;
select pg_catalog.pg_advisory_xact_lock(5718202503180921);
do $$ begin
  if pg_catalog.to_regnamespace('pgbaton') is null then create schema pgbaton; end if;
end $$;
create table if not exists pgbaton.migration (
  version    integer primary key,
  name       text        not null,
  applied_at timestamptz not null default pg_catalog.now()
);";

/// The version this executable works with.
#[must_use]
pub fn version() -> i32 {
    MIGRATIONS.last().map_or(0, |migration| migration.version)
}

/// The SQL of all migrations, as `pgbaton migrate` runs it on an empty database.
#[must_use]
pub fn print() -> String {
    let mut text = format!("{PREPARE}\n\n");
    for migration in MIGRATIONS {
        text.push_str(&script(migration));
    }
    text.push_str("commit;\n");
    text
}

fn script(migration: &Migration) -> String {
    let Migration { version, name, sql } = migration;
    format!("{sql}\ninsert into pgbaton.migration (version, name) values ({version}, '{name}');\n")
}

/// Brings the schema up to this version. Gives the versions that were applied now. Any number may run at once.
///
/// # Errors
/// Whatever the server says; nothing has been changed then. A schema that is newer than this executable is left alone.
pub async fn run(database: &Database) -> Result<Vec<i32>, Error> {
    let connection = database.connect().await?;
    connection.script(PREPARE).await.map_err(|error| error.doing("preparing the schema"))?;
    let found = applied(connection.then(sql::SCHEMA_VERSION, &[]).await?.first())?;
    if found > version() {
        return Err(newer(found));
    }
    let mut now = Vec::new();
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > found) {
        let what = format!("migration {} {}", migration.version, migration.name);
        connection.script(&script(migration)).await.map_err(|error| error.doing(&what))?;
        now.push(migration.version);
    }
    connection.script("commit").await?;
    Ok(now)
}

/// Has inserts notify replicas that listen (`wake = true`), or not.
///
/// # Errors
/// Whatever the server says: it takes the owner of the outbox.
pub async fn wake(database: &Database, on: bool) -> Result<(), Error> {
    const OFF: &str = "drop trigger if exists outbox_wake on pgbaton.outbox";
    const ON: &str = "create or replace trigger outbox_wake after insert on pgbaton.outbox
        for each statement execute function pgbaton.wake()";
    let connection = database.connect().await?;
    check(&connection).await?;
    // Whoever waited for the outbox's lock would have producers wait behind.
    let change = format!("begin; set local lock_timeout = '100ms'; {}; commit", if on { ON } else { OFF });
    let deadline = tokio::time::Instant::now() + database.patience();
    loop {
        match database.connect().await?.script(&change).await {
            Err(error) if error.is_transient() && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            }
            result => return result,
        }
    }
}

/// Whether the schema is the one this executable works with.
pub(crate) async fn check(connection: &Connection) -> Result<(), Error> {
    let [rows] = connection.pipeline(Access::Look, [(sql::SCHEMA_VERSION, &[])]).await?;
    let found = applied(rows.first())?;
    if found > version() {
        return Err(newer(found));
    }
    if found < version() {
        return Err(Error::new(
            Kind::Schema,
            format!("the schema has version {found}, this executable needs {}", version()),
        )
        .hint("Run `pgbaton migrate` with this version of pgbaton"));
    }
    Ok(())
}

fn applied(row: Option<&tokio_postgres::Row>) -> Result<i32, Error> {
    Ok(row.map(|row| row.try_get::<_, Option<i32>>(0)).transpose()?.flatten().unwrap_or_default())
}

fn newer(found: i32) -> Error {
    Error::new(Kind::Schema, format!("the schema has version {found}, this executable knows {} at most", version()))
        .hint("Run a newer version of pgbaton")
}

/// The names of the three roles.
#[derive(Debug, Clone)]
pub struct Roles {
    /// Runs `pgbaton migrate` and owns the schema.
    pub migrate: String,
    /// Runs `pgbaton run`.
    pub relay: String,
    /// Inserts messages.
    pub producer: String,
}

/// The grants that the three roles need, as SQL.
#[must_use]
pub fn grants(roles: &Roles) -> String {
    include_str!("grants.sql")
        .replace("{relay_grants}", include_str!("grants_relay.sql"))
        .replace("{migrate}", &sql::quoted(&roles.migrate))
        .replace("{relay}", &sql::quoted(&roles.relay))
        .replace("{producer}", &sql::quoted(&roles.producer))
}

/// Those of them that the role of `pgbaton run` needs of pgbaton's own schema.
pub(crate) fn relay_grants(role: &str) -> String {
    include_str!("grants_relay.sql").replace("{relay}", &sql::quoted(role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_follow_each_other() {
        for (index, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(usize::try_from(migration.version), Ok(index + 1));
        }
    }

    #[test]
    fn role_names_are_quoted() {
        let roles = Roles { migrate: "m".into(), relay: "Relay \"x\"".into(), producer: "p".into() };
        assert!(grants(&roles).contains("to \"Relay \"\"x\"\"\";"));
        assert!(!grants(&roles).contains('{'));
    }
}
