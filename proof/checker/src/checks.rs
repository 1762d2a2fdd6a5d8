//! The checks. Each is a pure function from a case to what it found, in a file of its own, under the name that the verdict uses.

use crate::case::Case;
use crate::found::Found;
use crate::history::Nanos;

mod database;
mod drained;
mod exclusive;
mod in_flight;
mod leaks;
mod lease;
mod lost;
mod meddled;
mod order;
mod phantom;
mod positions;
mod repeats;
mod told;

/// How much later than it happens something may be told or heard of, on a machine that is busy.
const TOLD_WITHIN: Nanos = 250_000_000;

/// When a process that stood still by a signal is at work again: the machine has taken its pages meanwhile, and is busy. In
/// fifteen minutes on two full cores 292 ms were seen, in a debug build 490.
const AWAKE_WITHIN: Nanos = 1_000_000_000;

/// Runs all of them.
#[must_use]
pub fn run(case: &Case) -> Found {
    let mut found = Found::default();
    for check in [
        told::check,
        database::check,
        lost::check,
        phantom::check,
        order::check,
        repeats::check,
        meddled::check,
        in_flight::check,
        exclusive::check,
        lease::check,
        positions::check,
        drained::check,
        leaks::check,
    ] {
        check(case, &mut found);
    }
    found
}
