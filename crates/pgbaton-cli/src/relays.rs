//! `pgbaton relays` and `pgbaton lanes split`.

use std::fmt::Write;
use std::time::Duration;

use pgbaton::control::relays::{self, RelayStatus};

use crate::args::{DatabaseArgs, ShowArgs};
use crate::{Failure, print, print_json, say};

/// Every relay in one line.
pub(crate) async fn list(show: &ShowArgs) -> Result<(), Failure> {
    let relays = relays::list(&show.database.database()?).await?;
    if show.json { print_json(&serde_json::json!({ "relays": relays })) } else { print(&table(&relays)) }
}

fn table(relays: &[RelayStatus]) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{:<24} {:>6} {:>6} {:>9} {:>12}", "RELAY", "LANES", "OWNED", "REPLICAS", "PASSED");
    for relay in relays {
        let note = match (relay.replicas, relay.lanes_now < i64::from(relay.lanes)) {
            (0, _) => "  nobody runs it: it keeps its messages",
            (_, true) => "  lanes are being split",
            _ => "",
        };
        let RelayStatus { name, lanes_now, owned, replicas, .. } = relay;
        let passed = relay.passed.unwrap_or_default();
        let _ = writeln!(text, "{name:<24} {lanes_now:>6} {owned:>6} {replicas:>9} {passed:>12}{note}");
    }
    text
}

/// Drops a relay.
pub(crate) async fn drop(relay: &str, database: &DatabaseArgs, yes: bool) -> Result<(), Failure> {
    if !yes {
        return Err(Failure::Usage(format!(
            "relay {relay} would never deliver what it has not delivered yet; add --yes if that is meant"
        )));
    }
    relays::drop(&database.database()?, relay).await?;
    say(&format!("relay {relay} is dropped"));
    Ok(())
}

/// Doubles a relay's lanes.
pub(crate) async fn split(relay: &str, database: &DatabaseArgs) -> Result<(), Failure> {
    /// Each lane is drained and handed over once.
    const PATIENCE: Duration = Duration::from_secs(30);
    let database = database.database()?;
    let lanes = relays::split(&database, relay).await?;
    if relays::wait_for_split(&database, relay, PATIENCE).await? {
        say(&format!("relay {relay} has {lanes} lanes now"));
    } else {
        say(&format!(
            "relay {relay} is to have {lanes} lanes; those whose sink cannot be opened, and those that nobody runs, are \
             split once that is over"
        ));
    }
    Ok(())
}
