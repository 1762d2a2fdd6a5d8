//! The second phase of prepared transactions. A prepared transaction keeps its locks through restarts and fail-overs, so
//! whoever prepared one stays with it until the server says that it is gone.

use std::collections::HashSet;
use std::time::Duration;

use checker::history::Event;
use tokio::time::{Instant, timeout};
use tokio_postgres::error::SqlState;

use super::super::book::now;
use super::super::primary::{Primary, within};
use super::{Ended, Shared};
use crate::Error;

const NAMED: &str = "torture-";
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// One attempt, and all of them: no fault keeps a server away for so long.
const ATTEMPT: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(300);

/// What the server knows it by.
pub(super) fn name(transaction: u64) -> String {
    format!("{NAMED}{transaction}")
}

/// Ends it, however often the server goes away meanwhile. `written` messages of it count if this very attempt committed them.
/// What is still there after minutes is left to the sweep.
pub(super) async fn end(transaction: u64, commit: bool, written: u64, shared: &Shared) -> Ended {
    let name = name(transaction);
    let verb = if commit { "commit" } else { "rollback" };
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Ok(client) = shared.primary.producer().await {
            let sent = now();
            let sql = format!("{verb} prepared '{name}'");
            match timeout(ATTEMPT, client.batch_execute(&sql)).await {
                Ok(Ok(())) if commit => {
                    shared.book.tell(Event::Committed { transaction, sent });
                    return Ended::Committed(written);
                }
                Ok(Ok(())) => {
                    shared.book.tell(Event::RolledBack { transaction });
                    return Ended::RolledBack;
                }
                // Never prepared, or ended by an attempt whose answer was lost, or lost in a fail-over.
                Ok(Err(error)) if error.code() == Some(&SqlState::UNDEFINED_OBJECT) => {
                    shared.book.tell(Event::Over { transaction });
                    return Ended::Unsure;
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    shared.met(&format!("{name} was not ended within {PATIENCE:?}"));
    Ended::Unsure
}

/// Rolls back what nobody stays with any more: prepared by a backend whose client had given up already. `living` are those
/// that somebody stays with.
pub(super) async fn sweep(primary: &Primary, living: &HashSet<u64>) -> Result<u64, Error> {
    let admin = primary.admin().await?;
    // Those who are at it have a moment to come by.
    let sql = "select gid from pg_prepared_xacts where database = current_database()
               and clock_timestamp() - prepared not between interval '0' and interval '3 seconds'";
    let mut swept = 0;
    for row in within(admin.query(sql, &[])).await? {
        let name: String = row.try_get(0).map_err(|cause| Error::because("reading a prepared transaction", &cause))?;
        let number = name.strip_prefix(NAMED).and_then(|number| number.parse().ok());
        if number.is_none_or(|number| !living.contains(&number)) {
            within(admin.batch_execute(&format!("rollback prepared '{name}'"))).await?;
            swept += 1;
        }
    }
    Ok(swept)
}
