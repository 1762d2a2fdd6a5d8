//! `pgbaton pause`, `pgbaton resume` and `pgbaton pauses`.

use std::fmt::Write;

use pgbaton::control::pauses::{self, PauseStatus, What};

use crate::args::{PauseArgs, ResumeArgs, ShowArgs};
use crate::messages::plain;
use crate::{Failure, print, print_json};

/// Every pause in one line.
pub(crate) async fn list(show: &ShowArgs) -> Result<(), Failure> {
    let pauses = pauses::list(&show.database.database()?).await?;
    if show.json { print_json(&serde_json::json!({ "pauses": pauses })) } else { print(&table(&pauses)) }
}

fn table(pauses: &[PauseStatus]) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{:<24} {:<26} {:<20} {:>10}  PAUSED", "RELAY", "SINCE", "WHO", "SET ASIDE");
    for PauseStatus { relay, what, since, who, parked } in pauses {
        let parked = parked.map_or_else(|| "-".to_owned(), |parked| parked.to_string());
        let _ = writeln!(text, "{relay:<24} {since:<26} {who:<20} {parked:>10}  {}", in_words(what));
    }
    text
}

fn in_words(what: &What) -> String {
    match what {
        What::All => "all of it".to_owned(),
        What::Lane(lane) => format!("lane {lane}"),
        What::Key(key) => format!("key {}", plain(key)),
        What::Topic(topic) => format!("topics {}", plain(topic)),
    }
}

/// Pauses.
pub(crate) async fn pause(args: &PauseArgs) -> Result<(), Failure> {
    let (relay, what) = (&args.relay, args.what.what());
    let words = in_words(&what);
    args.act.is_meant(&format!("of relay {relay} {words} would not be delivered until it is resumed"))?;
    let paused = pauses::pause(&args.act.database.database()?, relay, &what).await?;
    let told = if paused { "is paused" } else { "was paused already" };
    args.act.done(
        &serde_json::json!({ "relay": relay, "what": what, "paused": paused }),
        &format!("relay {relay}: {words} {told}"),
    )
}

/// Resumes.
pub(crate) async fn resume(args: &ResumeArgs) -> Result<(), Failure> {
    let (relay, what) = (&args.relay, (!args.every).then(|| args.what.what()));
    let words = what.as_ref().map_or_else(|| "all that is paused".to_owned(), in_words);
    args.act.is_meant(&format!("of relay {relay} {words} would be delivered again"))?;
    let resumed = pauses::resume(&args.act.database.database()?, relay, what.as_ref()).await?;
    let told = if resumed { "goes on" } else { "was not paused" };
    args.act.done(
        &serde_json::json!({ "relay": relay, "what": what, "resumed": resumed }),
        &format!("relay {relay}: {words} {told}"),
    )
}
