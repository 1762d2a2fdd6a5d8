//! Segments of the outbox: how much they hold, who keeps them, and whether there will be room.

use super::{Finding, size};
use crate::connection::Database;
use crate::control::segments::{self, SegmentStatus, Segments};
use crate::error::Error;

const CHECK: &str = "segments";

pub(super) async fn look(database: &Database) -> Result<Vec<Finding>, Error> {
    Ok(judge(&segments::list(database).await?))
}

fn judge(Segments { ring, segments }: &Segments) -> Vec<Finding> {
    let in_ring = |segment: &&SegmentStatus| i32::from(segment.segment) < ring.segments;
    let bytes: i64 = segments.iter().map(|segment| segment.bytes).sum();
    let filled = segments.iter().filter(in_ring).filter(|segment| segment.filled).count();
    let kept: Vec<(i16, &str)> = segments
        .iter()
        .filter(|segment| !segment.in_use)
        .filter_map(|segment| Some((segment.segment, segment.kept_by.as_deref()?)))
        .collect();
    let of = ring.segments;
    let in_all = format!("{filled} of {of} segments hold messages, {} in all", size(bytes));
    // By retention as it was asked for, and by whoever may be to blame.
    let blamed: Vec<String> = kept
        .iter()
        .filter(|(_, why)| *why != "retention")
        .map(|(segment, why)| format!("{segment} by {why}"))
        .collect();
    let free = usize::try_from(of).unwrap_or_default().saturating_sub(filled);
    const SEE: &str = "See `relays`, `lanes` and `transactions` above and below for what keeps whoever keeps it; `pgbaton segments` shows each";
    if blamed.is_empty() {
        return vec![if free == 0 {
            Finding::note(
                CHECK,
                format!("{in_all}: the ring is just as long as the retention of {} s", ring.retention_seconds),
                "`pgbaton segments set` makes it longer, if the disk has room",
            )
        } else {
            Finding::ok(CHECK, in_all)
        }];
    }
    let kept = super::some(&blamed);
    vec![match free {
        0 => Finding::warning(
            CHECK,
            format!(
                "{in_all}: the ring is full, and segments that are kept are written to again, so that the outbox grows. Kept: {kept}"
            ),
            SEE,
        ),
        1 => Finding::warning(CHECK, format!("{in_all}: the ring is about to be full. Kept: {kept}"), SEE),
        _ => Finding::note(CHECK, format!("{in_all}. Kept: {kept}"), SEE),
    }]
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;
    use crate::control::segments::Ring;

    fn judged(filled: i16, kept_by: Option<&str>) -> Finding {
        let segment = |segment| SegmentStatus {
            segment,
            bytes: 1 << 20,
            filled: segment < filled,
            in_use: segment == 0,
            kept_by: kept_by.filter(|_| segment < filled).map(str::to_owned),
        };
        let ring = Ring { segments: 4, seconds: 3_600, retention_seconds: 0 };
        judge(&Segments { ring, segments: (0..5).map(segment).collect() }).remove(0)
    }

    #[test]
    fn a_ring_fills_by_and_by() {
        assert_eq!(judged(1, None).level, Level::Ok);
        assert_eq!(judged(2, Some("relay a, lane 3")).level, Level::Note);
        assert_eq!(judged(3, Some("relay a, lane 3")).level, Level::Warning);
        let full = judged(4, Some("relay a, lane 3"));
        assert_eq!(full.level, Level::Warning);
        assert!(full.what.contains("relay a, lane 3") && full.what.contains("5 MiB"), "{}", full.what);
        assert_eq!(judged(3, Some("retention")).level, Level::Ok, "as it was asked for");
    }
}
