//! What a transaction of a writer is like, drawn from its stream of random numbers.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use uuid::Uuid;

use super::super::plan::{KEYS, Plan, millis};

/// Keys of ordinary transactions: the lower the number, the hotter.
const HOT: std::ops::Range<u32> = 0..KEYS * 3 / 4;
/// Keys that bulk loads take, and hold for long.
const OF_BULK: std::ops::Range<u32> = KEYS * 3 / 4..KEYS * 7 / 8;
/// Keys of those who keep transactions open.
const OF_PATIENT: std::ops::Range<u32> = KEYS * 7 / 8..KEYS;
/// So few of them in one transaction that two seldom wait for each other: several are open at once.
const PATIENT_KEYS: std::ops::RangeInclusive<usize> = 1..=5;
/// Rows of one statement of a bulk load.
const BULK_PIECE: u64 = 5_000;

/// One message before it is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Draft {
    pub(super) id: Uuid,
    pub(super) key: Option<u32>,
    /// Bytes of its payload.
    pub(super) size: i32,
}

/// How messages get into the outbox.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum How {
    /// `insert … select`.
    Rows,
    /// `copy`.
    Copy,
}

/// What one statement of it writes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) how: How,
    pub(super) drafts: Vec<Draft>,
    /// Under a savepoint, which is rolled back to if true.
    pub(super) savepoint: Option<bool>,
}

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    Commit,
    /// Without waiting for the log to be on disk: whether it took place only the ledger knows.
    CommitLazily,
    Rollback,
    /// In two phases, with so much time between them; the second one is a rollback if not `commit`.
    Prepare {
        wait: Duration,
        commit: bool,
    },
}

/// A transaction.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Work {
    /// One statement that begins and ends it.
    Bare(Draft),
    Whole(Whole),
}

/// One of several statements.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Whole {
    /// It takes its id first, and waits so long before it does anything else.
    pub(super) early: Option<Duration>,
    pub(super) pieces: Vec<Piece>,
    /// How long it stays open after its inserts.
    pub(super) open: Duration,
    pub(super) end: End,
}

impl Whole {
    /// The keys whose locks it takes, each once, in ascending order: or transactions would wait for each other in a circle.
    pub(super) fn keys(&self) -> Vec<u32> {
        let drafts = self.pieces.iter().flat_map(|piece| &piece.drafts);
        let mut keys: Vec<u32> = drafts.filter_map(|draft| draft.key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// An application's ordinary transaction.
pub(super) fn small(random: &mut StdRng) -> Work {
    let key = |random: &mut StdRng| match random.random_range(0..100) {
        0..5 => None,
        5..8 => Some(random.random_range(0..KEYS)),
        _ => Some(hot(random)),
    };
    if random.random_bool(0.25) {
        let key = key(random);
        return Work::Bare(draft(random, key));
    }
    let count = if random.random_bool(0.3) { random.random_range(2..=6) } else { 1 };
    let pieces = (0..count)
        .map(|_| {
            let key = key(random);
            let how = if random.random_bool(0.1) { How::Copy } else { How::Rows };
            Piece { how, drafts: vec![draft(random, key)], savepoint: savepoint(random, 0.1) }
        })
        .collect();
    let early = random.random_bool(0.1).then(|| millis(random, 1, 200));
    let open = if random.random_bool(0.02) { millis(random, 100, 1_500) } else { Duration::ZERO };
    Work::Whole(Whole { early, pieces, open, end: end(random, 0.06) })
}

/// Hundreds of rows by a statement or two, of some keys: all of them are locked for as long as it takes.
pub(super) fn rows(random: &mut StdRng) -> Work {
    let keys: Vec<u32> = (0..40).map(|_| random.random_range(HOT)).collect();
    let pieces = (0..random.random_range(1..=2))
        .map(|_| {
            let count = random.random_range(50..2_500);
            let drafts = (0..count).map(|_| {
                let key = keys.get(random.random_range(0..keys.len() + 2)).copied();
                draft(random, key)
            });
            let drafts = drafts.collect();
            let how = if random.random_bool(0.3) { How::Copy } else { How::Rows };
            Piece { how, drafts, savepoint: savepoint(random, 0.05) }
        })
        .collect();
    let early = random.random_bool(0.1).then(|| millis(random, 1, 500));
    Work::Whole(Whole { early, pieces, open: Duration::ZERO, end: end(random, 0.04) })
}

/// A load of very many rows that commits late.
pub(super) fn bulk(plan: &Plan, random: &mut StdRng) -> Work {
    let first = random.random_range(OF_BULK.start..OF_BULK.end - 40);
    let how = if random.random_bool(0.5) { How::Copy } else { How::Rows };
    let pieces = (0..plan.bulk.div_ceil(BULK_PIECE))
        .map(|_| {
            let drafts = (0..BULK_PIECE).map(|_| {
                let key = (!random.random_bool(0.2)).then(|| random.random_range(first..first + 40));
                Draft { id: id(random), key, size: random.random_range(0..100) }
            });
            Piece { how, drafts: drafts.collect(), savepoint: None }
        })
        .collect();
    let open = millis(random, 0, 5_000);
    let end = if random.random_bool(0.05) { End::Rollback } else { End::Commit };
    Work::Whole(Whole { early: None, pieces, open, end })
}

/// One that stays open for long, in one phase or two.
pub(super) fn patient(plan: &Plan, random: &mut StdRng) -> Work {
    let count = random.random_range(1..50);
    let keys: Vec<u32> = (0..random.random_range(PATIENT_KEYS)).map(|_| random.random_range(OF_PATIENT)).collect();
    let mut pieces = Vec::new();
    for _ in 0..random.random_range(1..=3) {
        let drafts = (0..count).map(|_| {
            let key = if random.random_bool(0.3) { None } else { keys.choose(random).copied() };
            draft(random, key)
        });
        pieces.push(Piece { how: How::Rows, drafts: drafts.collect(), savepoint: savepoint(random, 0.2) });
    }
    let most = u64::try_from(plan.open_for.as_millis()).unwrap_or(u64::MAX);
    // Most are short for this kind, a few as long as can be.
    let longest = if random.random_bool(0.3) { most } else { most / 10 };
    let length = millis(random, 100, longest);
    let early = random.random_bool(0.4).then(|| millis(random, 1, most / 10));
    if random.random_bool(0.5) {
        let end = End::Prepare { wait: length, commit: random.random_bool(0.8) };
        return Work::Whole(Whole { early, pieces, open: Duration::ZERO, end });
    }
    Work::Whole(Whole { early, pieces, open: length, end: end(random, 0.15) })
}

fn end(random: &mut StdRng, rolled_back: f64) -> End {
    if random.random_bool(rolled_back) {
        return End::Rollback;
    }
    match random.random_range(0..100) {
        0..5 => End::CommitLazily,
        5..7 => End::Prepare { wait: millis(random, 0, 300), commit: random.random_bool(0.8) },
        _ => End::Commit,
    }
}

fn savepoint(random: &mut StdRng, likely: f64) -> Option<bool> {
    random.random_bool(likely).then(|| random.random_bool(0.5))
}

/// A few keys get most of it.
fn hot(random: &mut StdRng) -> u32 {
    let place = random.random::<f64>().powi(3) * f64::from(HOT.end);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the number of keys")]
    let key = place as u32;
    key.min(HOT.end - 1)
}

fn draft(random: &mut StdRng, key: Option<u32>) -> Draft {
    let size = match random.random_range(0..100_000) {
        0..3 => random.random_range(1 << 20..5 << 20),
        3..100 => random.random_range(10_000..200_000),
        100..10_000 => 0,
        10_000..20_000 => random.random_range(300..3_000),
        _ => random.random_range(1..200),
    };
    Draft { id: id(random), key, size }
}

/// Never the same twice, in all attempts of all writers.
fn id(random: &mut StdRng) -> Uuid {
    uuid::Builder::from_random_bytes(random.random()).into_uuid()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn work_depends_on_the_seed_alone_and_ids_are_all_different() {
        let draws = |seed| {
            let mut random = StdRng::seed_from_u64(seed);
            let mut drawn: Vec<Work> = (0..500).map(|_| small(&mut random)).collect();
            drawn.extend((0..5).map(|_| rows(&mut random)));
            drawn
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
        let mut random = StdRng::seed_from_u64(1);
        let ids: std::collections::HashSet<Uuid> = (0..10_000).map(|_| id(&mut random)).collect();
        assert_eq!(ids.len(), 10_000);
    }

    #[test]
    fn a_patient_transaction_takes_few_keys() {
        let mut random = StdRng::seed_from_u64(5);
        let plan = Plan::for_tests(5, crate::torture::plan::SinkKind::File);
        for _ in 0..200 {
            let Work::Whole(whole) = patient(&plan, &mut random) else { panic!("a single statement") };
            assert!(whole.keys().len() <= *PATIENT_KEYS.end());
        }
    }

    #[test]
    fn keys_are_of_very_different_heat() {
        let mut random = StdRng::seed_from_u64(3);
        let mut counts = vec![0_u32; KEYS as usize];
        for _ in 0..100_000 {
            counts[hot(&mut random) as usize] += 1;
        }
        let hottest: u32 = counts[..15].iter().sum();
        assert!(hottest > 15_000, "{hottest}");
    }
}
