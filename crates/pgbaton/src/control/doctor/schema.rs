//! pgbaton's schema: its version, whose positions it holds, and whether the outbox is as reading relies on.

use super::{Finding, Level, some, unknown};
use crate::config::{Examined, ExaminedRelay};
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
pub(super) async fn outbox(examined: &Examined) -> Vec<Finding> {
    let asked = async {
        let connection = examined.database.connect().await?;
        let [rows, wakes] = connection.pipeline(Access::Look, [(sql::OUTBOX_FACTS, &[]), (sql::WAKES, &[])]).await?;
        let wakes: Option<bool> = wakes.first().map(|row| row.try_get("wakes")).transpose()?;
        Ok::<_, Error>((rows, wakes.unwrap_or_default()))
    };
    let (rows, wakes) = match asked.await {
        Ok(answer) => answer,
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
    let mut found = vec![home];
    match rows.first().map(check_shape) {
        Some(Ok(())) => found.extend(judge_wake(wakes, &examined.relays)),
        Some(Err(error)) => found.push(Finding::of("outbox", Level::Problem, &error)),
        None => found.push(Finding::problem("outbox", "pgbaton.home is empty", "See `home`")),
    }
    found
}

/// Whether inserts notify, and relays listen.
fn judge_wake(wakes: bool, relays: &[ExaminedRelay]) -> Vec<Finding> {
    const CHECK: &str = "outbox";
    let listening: Vec<String> =
        relays.iter().filter(|relay| relay.spec.wake).map(|relay| relay.spec.name.to_string()).collect();
    vec![match (wakes, listening.as_slice()) {
        (false, [_, ..]) => Finding::note(
            CHECK,
            format!("wake = true of {} has no effect: inserts notify nobody", some(&listening)),
            "`pgbaton wake on`, as the schema's owner, or `wake = false`",
        ),
        (true, []) => Finding::note(
            CHECK,
            "inserts notify, for which transactions commit one after the other, and no relay of this configuration listens",
            "`pgbaton wake off`, as the schema's owner, unless replicas with another configuration listen",
        ),
        (true, [_, ..]) | (false, []) => Finding::ok(CHECK, "it is as reading relies on"),
    }]
}
