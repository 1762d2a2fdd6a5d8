//! `pgbaton rebase` and `pgbaton confirm`.

use pgbaton::control::rebase::{self, Rebased};

use crate::args::{ActArgs, DatabaseArgs};
use crate::{Failure, say};

/// Takes all positions back to what is certain.
pub(crate) async fn rebase(act: &ActArgs, forsake: i32) -> Result<(), Failure> {
    act.is_meant("messages may be delivered again, with all replicas stopped")?;
    let Rebased { messages, due } = rebase::rebase(&act.database.database()?, forsake).await?;
    act.done(
        &serde_json::json!({ "messages": messages, "due": due }),
        &format!("the outbox holds {messages} messages; {due} of them are delivered from now on, again perhaps"),
    )
}

/// Confirms that this server came from `pg_upgrade`.
pub(crate) async fn confirm(database: &DatabaseArgs) -> Result<(), Failure> {
    rebase::confirm(&database.database()?).await?;
    say("confirmed: positions go on from where they stood");
    Ok(())
}
