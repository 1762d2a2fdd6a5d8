//! `pgbaton replay`.

use pgbaton::control::replay::{self, Replay};

use crate::Failure;
use crate::args::ReplayArgs;

/// Replays, if it is meant.
pub(crate) async fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let ReplayArgs { relay, ids, key, topic, since, until, all, keep_ids, act } = args;
    let chosen = !ids.is_empty() || key.is_some() || topic.is_some() || since.is_some() || until.is_some();
    if chosen == *all {
        return Err(Failure::Usage(if *all {
            "--all means all that the outbox still holds; leave out what else was chosen, or --all".to_owned()
        } else {
            "say which messages are meant, or --all".to_owned()
        }));
    }
    let replay = Replay {
        relay: relay.clone(),
        ids: ids.clone(),
        key: key.clone(),
        topic: topic.clone(),
        since: *since,
        until: *until,
        keeps_ids: *keep_ids,
    };
    let database = act.database.database()?;
    if !act.is_given() {
        let count = replay::count(&database, &replay).await?;
        act.is_meant(&format!("{count} message(s) would be delivered again by relay {relay}"))?;
    }
    let done = replay::replay(&database, &replay).await?;
    let words = format!("replay {}: {} message(s) are delivered again by relay {relay}", done.number, done.messages);
    act.done(&serde_json::json!({ "relay": relay, "replay": done.number, "messages": done.messages }), &words)
}
