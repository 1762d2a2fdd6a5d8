//! What a relay counts. Names of metrics live here and nowhere else.

use std::sync::atomic::{AtomicU64, Ordering};

/// One relay's counters since its process started.
#[derive(Debug, Default)]
pub struct Metrics {
    delivered: AtomicU64,
    repeated: AtomicU64,
    retried: AtomicU64,
    rejected: AtomicU64,
    sink_failures: AtomicU64,
    acknowledgements: AtomicU64,
    lanes: AtomicU64,
}

/// A reading of all counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// `pgbaton_messages_delivered_total`: the sink has them.
    pub delivered: u64,
    /// `pgbaton_messages_repeated_total`: the sink had them already.
    pub repeated: u64,
    /// `pgbaton_messages_retried_total`: attempts that the sink answered with a retry.
    pub retried: u64,
    /// `pgbaton_messages_rejected_total`: attempts that the sink answered with a rejection.
    pub rejected: u64,
    /// `pgbaton_sink_failures_total`: calls that failed as a whole.
    pub sink_failures: u64,
    /// `pgbaton_acknowledgements_total`: transactions that wrote positions.
    pub acknowledgements: u64,
    /// `pgbaton_lanes_owned`: lanes this replica holds now.
    pub lanes: u64,
}

impl Metrics {
    pub(crate) fn delivered(&self, count: u64) {
        self.delivered.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn repeated(&self, count: u64) {
        self.repeated.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn retried(&self) {
        self.retried.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn sink_failed(&self) {
        self.sink_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn acknowledged(&self) {
        self.acknowledgements.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn lanes(&self, lanes: usize) {
        self.lanes.store(u64::try_from(lanes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Reads all counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            delivered: read(&self.delivered),
            repeated: read(&self.repeated),
            retried: read(&self.retried),
            rejected: read(&self.rejected),
            sink_failures: read(&self.sink_failures),
            acknowledgements: read(&self.acknowledgements),
            lanes: read(&self.lanes),
        }
    }
}
