//! How much writers may write: as fast as they can until the relay is so far behind, then little until it has caught up, so that
//! it is kept busy, and drains, in turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::timeout;

use super::destination::Destination;
use super::outbox::SourceKind;
use super::primary::{Primary, within};
use crate::Error;

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Ordinary transactions go on while the relay is behind by this many times what stops the others.
const FAR_TOO_FAR: i64 = 4;
/// The outbox's database may grow to this: all of it lies in memory.
const MOST_BYTES: i64 = 3 << 30;
/// A relay that is this close has caught up: an idle lane writes its position once a second.
const CAUGHT_UP: i64 = 3_000;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressure {
    /// Single messages.
    Low,
    /// Hundreds and more at once.
    High,
}

/// How far the relay is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Progress {
    /// The outbox's last number; of an adopted table, how many rows are pending.
    pub(super) last: i64,
    /// All lanes have passed this one; of an adopted table, none.
    pub(super) passed: i64,
    /// The size of the outbox's database.
    pub(super) bytes: i64,
    /// Messages that were committed and have not arrived, as far as that is known: those of a transaction that committed late
    /// have small numbers, so that lanes may have passed what is far from delivered.
    pub(super) missing: i64,
    /// Grows with what arrives, which lanes that work off stragglers do not show otherwise.
    pub(super) fill: u64,
}

impl Progress {
    /// Another one than before if anything was delivered or dealt with.
    pub(super) fn marks(self) -> (i64, u64) {
        (self.passed, self.fill)
    }

    pub(super) fn behind(self) -> i64 {
        self.missing.max(self.last - self.passed)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Leave {
    high: bool,
    low: bool,
    bursts: bool,
    progress: Progress,
}

/// What writers look at.
#[derive(Clone)]
pub(super) struct Pace {
    leave: watch::Receiver<Leave>,
}

impl Pace {
    /// Waits for leave. False if writers are to end, or if it took so long that there may be none.
    pub(super) async fn allows(&self, pressure: Pressure, stop: &watch::Receiver<bool>) -> bool {
        let (mut leave, mut stop) = (self.leave.clone(), stop.clone());
        let given = leave.wait_for(|leave| match pressure {
            Pressure::Low => leave.low,
            Pressure::High => leave.high,
        });
        tokio::select! {
            given = timeout(Duration::from_secs(5), given) => given.is_ok_and(|given| given.is_ok()),
            _ = stop.wait_for(|stop| *stop) => false,
        }
    }

    /// Whether ordinary transactions make no pauses now.
    pub(super) fn bursts(&self) -> bool {
        self.leave.borrow().bursts
    }

    pub(super) fn progress(&self) -> Progress {
        self.leave.borrow().progress
    }
}

/// Looks all the time, until it is aborted. `behind` is what stops the rush, and `committed` what writers count.
pub(super) fn start(
    (primary, source): (Primary, SourceKind),
    destination: Arc<Destination>,
    committed: Arc<AtomicU64>,
    behind: i64,
) -> (Pace, tokio::task::JoinHandle<()>) {
    let (giving, leave) = watch::channel(Leave::default());
    let looking = tokio::spawn(async move {
        let (mut rush, mut round, mut missing, mut fill) = (true, 0_u32, Missing::default(), 0);
        loop {
            round = round.wrapping_add(1);
            // While nobody answers, what was allowed before stays allowed: writers meet the same.
            if let Ok(mut progress) = look(&primary, source).await {
                if let Ok(Some(arrived)) = destination.counted().await {
                    let count = committed.load(Ordering::Relaxed).cast_signed().saturating_sub_unsigned(arrived);
                    progress.missing = missing.of(count, progress);
                }
                fill = destination.fill().await.unwrap_or(fill);
                progress.fill = fill;
                let room = progress.bytes < MOST_BYTES;
                rush = if rush { progress.behind() < behind && room } else { progress.behind() < CAUGHT_UP && room };
                let low = progress.behind() < behind * FAR_TOO_FAR && progress.bytes < MOST_BYTES + MOST_BYTES / 4;
                giving.send_replace(Leave { high: rush, low, bursts: round % 20 < 2, progress });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
    (Pace { leave }, looking)
}

/// What is still to arrive, from a count that drifts: repeats and rows of failed calls arrive beyond what was committed, and so
/// does what was committed while its writer lost the answer; what a fail-over has lost never will.
#[derive(Default)]
struct Missing {
    /// The count when nothing is missing.
    given_up: i64,
    /// How many were missing some time ago, and how many looks ago that was.
    before: i64,
    looks: u32,
}

impl Missing {
    /// If lanes have passed nearly all, and it does not get less over twenty looks, it is given up.
    fn of(&mut self, count: i64, progress: Progress) -> i64 {
        // There is never less than nothing missing.
        self.given_up = self.given_up.min(count);
        let missing = count - self.given_up;
        self.looks += 1;
        if self.looks >= 20 {
            if progress.last - progress.passed < CAUGHT_UP && missing > self.before - CAUGHT_UP {
                self.given_up += missing;
            }
            (self.before, self.looks) = (missing, 0);
        }
        count - self.given_up
    }
}

/// How far the relay is now.
pub(super) async fn look(primary: &Primary, source: SourceKind) -> Result<Progress, Error> {
    let admin = primary.admin().await?;
    let row = within(admin.query_one(&source.progress(), &[])).await?;
    let number = |nth| row.try_get(nth).map_err(|cause| Error::because("reading how far the relay is", &cause));
    Ok(Progress { last: number(0)?, passed: number(1)?, bytes: number(2)?, missing: 0, fill: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_known_whatever_came_again_before() {
        let mut missing = Missing::default();
        let behind = Progress { last: 1_000_000, ..Progress::default() };
        assert_eq!(missing.of(500, behind), 500);
        // Two hundred arrivals were repeats.
        assert_eq!(missing.of(-200, behind), 0);
        assert_eq!(missing.of(50_000, behind), 50_200);
    }

    #[test]
    fn what_a_fail_over_lost_is_given_up() {
        let mut missing = Missing::default();
        let caught_up = Progress { last: 10, passed: 10, ..Progress::default() };
        let last = (0..40).map(|_| missing.of(9_000, caught_up)).last();
        assert_eq!(last, Some(0));
    }
}
