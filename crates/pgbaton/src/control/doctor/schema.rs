//! pgbaton's schema: its version, whose positions it holds, and whether the outbox is as reading relies on.

use super::{Finding, Level, unknown};
use crate::connection::{Access, Database, incarnation};
use crate::error::{Error, Kind};
use crate::source::native::{check_server, check_shape};
use crate::{migrate, sql};

/// The schema's version, which has to be this executable's.
pub(super) async fn version(database: &Database) -> Result<Finding, Error> {
    let connection = database.connect().await?;
    let [rows] = connection.pipeline(Access::Look, [(sql::ROLE_FACTS, &[])]).await?;
    if rows.first().map(|row| row.try_get("migrated")).transpose()? != Some(true) {
        return Err(Error::new(Kind::Schema, "pgbaton's schema is not in this database").hint(
            "Run `pgbaton migrate` as the role that is to own it, and then what `pgbaton grants` prints; or correct `dbname` in the DSN",
        ));
    }
    migrate::check(&connection).await?;
    Ok(Finding::ok("schema", format!("version {}, as this executable needs it", migrate::version())))
}

/// Whether positions belong to this database (`home`), and the outbox is whole (`outbox`): by what a replica asks when it starts.
pub(super) async fn outbox(database: &Database) -> Vec<Finding> {
    let asked = async {
        let [rows] = database.connect().await?.pipeline(Access::Look, [(sql::OUTBOX_FACTS, &[])]).await?;
        Ok::<_, Error>(rows)
    };
    let rows = match asked.await {
        Ok(rows) => rows,
        Err(error) => return ["home", "outbox"].map(|check| unknown(check, &error)).into(),
    };
    let home = match check_server(rows.first()) {
        Err(error) => Finding::of("home", Level::Problem, &error),
        Ok(_) => match incarnation(&rows) {
            Ok(here) => {
                Finding::ok("home", format!("positions are of this database ({here}: system, database, timeline)"))
            }
            Err(error) => Finding::of("home", Level::Problem, &error),
        },
    };
    let outbox = match rows.first().map(check_shape) {
        Some(Ok(())) => Finding::ok("outbox", "it is as reading relies on"),
        Some(Err(error)) => Finding::of("outbox", Level::Problem, &error),
        None => Finding::problem("outbox", "pgbaton.home is empty", "See `home`"),
    };
    vec![home, outbox]
}
