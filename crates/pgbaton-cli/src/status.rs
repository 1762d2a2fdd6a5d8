//! `pgbaton status` and `pgbaton lanes`.

use std::collections::BTreeMap;
use std::fmt::Write;

use pgbaton::control::{self, LaneStatus, Status};

use crate::args::{DatabaseArgs, ShowArgs};
use crate::{Failure, print, print_json};

/// Replicas, and each relay in one line.
#[allow(clippy::needless_pass_by_value, reason = "a command consumes its arguments")]
pub(crate) async fn status(database: DatabaseArgs, json: bool) -> Result<(), Failure> {
    let status = control::status(&database.database()?).await?;
    if json { print_json(&status) } else { print(&summary(&status)) }
}

/// Every lane in one line.
#[allow(clippy::needless_pass_by_value, reason = "a command consumes its arguments")]
pub(crate) async fn lanes(show: ShowArgs) -> Result<(), Failure> {
    let status = control::status(&show.database.database()?).await?;
    if show.json {
        print_json(&serde_json::json!({ "last_number": status.last_number, "lanes": status.lanes }))
    } else {
        print(&table(&status.lanes))
    }
}

fn summary(status: &Status) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{:<24} {:<38} {:>8} {:>8}  RELAYS", "REPLICA", "ID", "BEAT", "UP");
    for replica in &status.replicas {
        let relays = if replica.relays.is_empty() { "(leaving)".to_owned() } else { replica.relays.join(", ") };
        let _ = writeln!(
            text,
            "{:<24} {:<38} {:>8} {:>7.0}s  {relays}",
            replica.name, replica.id, replica.beat, replica.age_seconds
        );
    }
    let mut relays: BTreeMap<&str, Vec<&LaneStatus>> = BTreeMap::new();
    for lane in &status.lanes {
        relays.entry(&lane.relay).or_default().push(lane);
    }
    let _ = writeln!(text, "\n{:<24} {:>6} {:>6} {:>12} {:>12}", "RELAY", "LANES", "OWNED", "PASSED", "OUTBOX");
    for (relay, lanes) in relays {
        let owned = lanes.iter().filter(|lane| lane.replica.is_some()).count();
        let passed = lanes.iter().filter_map(|lane| lane.passed).min();
        let (passed, outbox) = (number(passed), number(passed.map(|_| status.last_number)));
        let _ = writeln!(text, "{relay:<24} {:>6} {owned:>6} {passed:>12} {outbox:>12}", lanes.len());
    }
    text
}

/// Adopted tables have no numbers.
fn number(number: Option<i64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

fn table(lanes: &[LaneStatus]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<24} {:>6} {:>6} {:>12} {:>12} {:>8}  OWNER",
        "RELAY", "LANE", "EPOCH", "BATCH", "PASSED", "AGE"
    );
    for lane in lanes {
        let _ = writeln!(
            text,
            "{:<24} {:>6} {:>6} {:>12} {:>12} {:>7.1}s  {}",
            lane.relay,
            lane.lane,
            lane.epoch,
            lane.batch.unwrap_or_default(),
            number(lane.passed),
            lane.position_age_seconds.unwrap_or_default(),
            lane.replica_name.as_deref().unwrap_or("-"),
        );
    }
    text
}
