//! `pgbaton segments`.

use std::fmt::Write;
use std::time::Duration;

use pgbaton::control::segments::{self, Ring, Segments};

use crate::args::{SegmentsCommand, ShowArgs};
use crate::{Failure, print, print_json, say};

/// Every segment in one line.
pub(crate) async fn list(show: &ShowArgs) -> Result<(), Failure> {
    let segments = segments::list(&show.database.database()?).await?;
    if show.json { print_json(&segments) } else { print(&table(&segments)) }
}

fn table(Segments { ring, segments }: &Segments) -> String {
    let mut text = format!("{}\n\n", described(*ring));
    let _ = writeln!(text, "{:>7} {:>14}  KEPT BY", "SEGMENT", "BYTES");
    for segment in segments {
        let kept_by = match (&segment.kept_by, segment.in_use, segment.filled) {
            (Some(why), true, _) => format!("in use, {why}"),
            (Some(why), false, _) => why.clone(),
            (None, true, _) => "in use".to_owned(),
            (None, false, true) => "nobody: about to be emptied".to_owned(),
            (None, false, false) => "(empty)".to_owned(),
        };
        let _ = writeln!(text, "{:>7} {:>14}  {kept_by}", segment.segment, segment.bytes);
    }
    text
}

fn described(Ring { segments, seconds, retention_seconds }: Ring) -> String {
    format!(
        "{segments} segments of {seconds} s each; messages are kept for at least {retention_seconds} s after they were inserted"
    )
}

/// Sets how segments take turns.
pub(crate) async fn set(command: SegmentsCommand) -> Result<(), Failure> {
    /// For transactions that use the outbox all the time.
    const PATIENCE: Duration = Duration::from_secs(30);
    let SegmentsCommand::Set { database, count, length, retention } = command;
    if (count, length, retention) == (None, None, None) {
        return Err(Failure::Usage("say what to set: --count, --length or --retention".into()));
    }
    let ring = segments::set(&database.database()?, count, length, retention, PATIENCE).await?;
    say(&described(ring));
    Ok(())
}
