//! `pgbaton rebase` and `pgbaton confirm`.

use pgbaton::control::rebase::{self, Rebased};

use crate::args::DatabaseArgs;
use crate::{Failure, say};

/// Takes all positions back to what is certain.
pub(crate) async fn rebase(database: &DatabaseArgs, forsake: i32, yes: bool) -> Result<(), Failure> {
    if !yes {
        return Err(Failure::Usage(
            "messages may be delivered again, with all replicas stopped; add --yes if that is meant".into(),
        ));
    }
    let Rebased { messages, due } = rebase::rebase(&database.database()?, forsake).await?;
    say(&format!("the outbox holds {messages} messages; {due} of them are delivered from now on, again perhaps"));
    Ok(())
}

/// Confirms that this server came from `pg_upgrade`.
pub(crate) async fn confirm(database: &DatabaseArgs) -> Result<(), Failure> {
    rebase::confirm(&database.database()?).await?;
    say("confirmed: positions go on from where they stood");
    Ok(())
}
