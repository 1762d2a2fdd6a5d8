//! A histogram of durations with fixed buckets.
//!
//! A batch is counted beside it first, on the stack, and then added: a few additions a batch, none a message.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::message::Timestamp;

/// Upper bounds of the buckets in microseconds: 1 ms to 5 min. What took longer is counted beyond them.
pub const BUCKETS: [i64; 17] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
];

/// Durations that were counted.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS.len()],
    beyond: AtomicU64,
    sum_micros: AtomicU64,
}

/// What a batch adds to it.
#[derive(Debug)]
pub struct Tally {
    now: Timestamp,
    buckets: [u32; BUCKETS.len()],
    beyond: u32,
    sum_micros: u64,
}

impl Tally {
    /// Nothing yet, of what ends at `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self { now, buckets: [0; BUCKETS.len()], beyond: 0, sum_micros: 0 }
    }

    /// Counts what began at this moment by the same clock. What is yet to begin took no time.
    pub fn count(&mut self, began: Timestamp) {
        let took = self.now.0.saturating_sub(began.0).max(0);
        let bucket = BUCKETS.partition_point(|bound| *bound < took);
        *self.buckets.get_mut(bucket).unwrap_or(&mut self.beyond) += 1;
        self.sum_micros = self.sum_micros.saturating_add(took.unsigned_abs());
    }
}

impl Histogram {
    /// Adds what was counted.
    pub fn add(&self, tally: &Tally) {
        for (bucket, more) in self.buckets.iter().zip(tally.buckets) {
            if more > 0 {
                bucket.fetch_add(u64::from(more), Ordering::Relaxed);
            }
        }
        self.beyond.fetch_add(u64::from(tally.beyond), Ordering::Relaxed);
        self.sum_micros.fetch_add(tally.sum_micros, Ordering::Relaxed);
    }

    /// The sum of all, and how many each bucket holds by itself, the last of them beyond all bounds.
    #[must_use]
    pub fn read(&self) -> (Duration, Vec<u64>) {
        let counts = self.buckets.iter().chain([&self.beyond]).map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        (Duration::from_micros(self.sum_micros.load(Ordering::Relaxed)), counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let histogram = Histogram::default();
        let mut tally = Tally::new(Timestamp(1_000_000_000));
        for took in [-5, 0, 1_000, 1_001, 300_000_000, 300_000_001] {
            tally.count(Timestamp(1_000_000_000 - took));
        }
        histogram.add(&tally);
        let (sum, counts) = histogram.read();
        assert_eq!((counts[0], counts[1], counts[16], counts[17]), (3, 1, 1, 1));
        assert_eq!(counts.iter().sum::<u64>(), 6);
        assert_eq!(sum, Duration::from_micros(600_002_002));
    }

    #[test]
    fn dates_beyond_the_calendar_are_counted() {
        let mut tally = Tally::new(Timestamp(0));
        tally.count(Timestamp(i64::MIN));
        tally.count(Timestamp(i64::MAX));
        assert_eq!((tally.buckets[0], tally.beyond), (1, 1));
    }
}
