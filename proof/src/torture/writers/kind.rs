//! The kinds of writers: what each draws, and how long it pauses.

use std::time::Duration;

use rand::rngs::StdRng;

use super::work::{self, Work};
use crate::torture::pace::{Pace, Pressure};
use crate::torture::plan::{Plan, millis};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An application's ordinary transactions, some hundreds a second, with bursts.
    Small,
    /// Hundreds of rows a statement: most of the messages.
    Rows,
    /// Very many rows in one transaction that commits late.
    Bulk,
    /// Transactions that stay open for long, in one phase or two.
    Patient,
}

impl Kind {
    pub(super) fn draw(self, plan: &Plan, random: &mut StdRng) -> Work {
        match self {
            Kind::Small => work::small(random),
            Kind::Rows => work::rows(random),
            Kind::Bulk => work::bulk(plan, random),
            Kind::Patient => work::patient(plan, random),
        }
    }

    pub(super) const fn pressure(self) -> Pressure {
        match self {
            Kind::Small | Kind::Patient => Pressure::Low,
            Kind::Rows | Kind::Bulk => Pressure::High,
        }
    }

    /// Between two transactions.
    pub(super) fn pause(self, plan: &Plan, pace: &Pace, random: &mut StdRng) -> Duration {
        match self {
            // In one second of ten there is none.
            Kind::Small if pace.bursts() => Duration::ZERO,
            Kind::Small => millis(random, 0, 30),
            Kind::Rows => millis(random, 0, 20),
            Kind::Bulk => {
                let most = if plan.bulk > 100_000 { 45_000 } else { 5_000 };
                millis(random, most / 5, most)
            }
            Kind::Patient => millis(random, 0, 3_000),
        }
    }
}
