//! `pgbaton relays` and `pgbaton lanes split`.

use std::fmt::Write;
use std::time::Duration;

use pgbaton::control::relays::{self, RelayStatus};

use crate::args::{ActArgs, ShowArgs};
use crate::{Failure, print, print_json};

/// Every relay in one line.
pub(crate) async fn list(show: &ShowArgs) -> Result<(), Failure> {
    let relays = relays::list(&show.database.database()?).await?;
    if show.json { print_json(&serde_json::json!({ "relays": relays })) } else { print(&table(&relays)) }
}

fn table(relays: &[RelayStatus]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<24} {:>6} {:>6} {:>9} {:>12} {:>10}  READS",
        "RELAY", "LANES", "OWNED", "REPLICAS", "PASSED", "SET ASIDE"
    );
    for relay in relays {
        let note = match (relay.replicas, &relay.table, relay.lanes_now < i64::from(relay.lanes)) {
            (0, None, _) => "  nobody runs it: the outbox keeps its messages",
            (0, Some(_), _) => "  nobody runs it: its rows stay pending",
            (_, _, true) => "  lanes are being split",
            _ => "",
        };
        let RelayStatus { name, lanes_now, owned, replicas, parked, .. } = relay;
        let passed = if relay.table.is_some() { "-".to_owned() } else { relay.passed.unwrap_or_default().to_string() };
        let reads = relay.table.as_deref().unwrap_or("the outbox");
        let _ = writeln!(
            text,
            "{name:<24} {lanes_now:>6} {owned:>6} {replicas:>9} {passed:>12} {parked:>10}  {reads}{note}"
        );
    }
    text
}

/// Drops a relay.
pub(crate) async fn drop(relay: &str, act: &ActArgs) -> Result<(), Failure> {
    let database = act.database.database()?;
    if !act.is_given() {
        let known = relays::list(&database).await?;
        let aside = match known.iter().find(|known| known.name == relay).map_or(0, |known| known.parked) {
            0 => String::new(),
            aside => format!(", with {aside} message(s) that are set aside"),
        };
        act.is_meant(&format!(
            "relay {relay} would be forgotten{aside}: what it has not delivered of the outbox it never would, and rows of an \
             adopted table stay pending"
        ))?;
    }
    relays::drop(&database, relay).await?;
    act.done(&serde_json::json!({ "relay": relay, "dropped": true }), &format!("relay {relay} is dropped"))
}

/// Doubles a relay's lanes.
pub(crate) async fn split(relay: &str, act: &ActArgs) -> Result<(), Failure> {
    /// Each lane is drained and handed over once.
    const PATIENCE: Duration = Duration::from_secs(30);
    act.is_meant(&format!("relay {relay} would have twice as many lanes, and never fewer again"))?;
    let database = act.database.database()?;
    let lanes = relays::split(&database, relay).await?;
    let done = relays::wait_for_split(&database, relay, PATIENCE).await?;
    let words = if done {
        format!("relay {relay} has {lanes} lanes now")
    } else {
        format!(
            "relay {relay} is to have {lanes} lanes; those whose sink cannot be opened, and those that nobody runs, are \
             split once that is over"
        )
    };
    act.done(&serde_json::json!({ "relay": relay, "lanes": lanes, "done": done }), &words)
}
