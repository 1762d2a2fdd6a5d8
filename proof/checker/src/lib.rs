//! Judges the history of a torture run. It knows neither the relay nor the harness: only what they wrote down, and what
//! arrived.
//!
//! [`read`] streams the files into the compact tables of [`facts`]; [`fates`], [`lanes`], [`covered`], [`arrivals`] and
//! [`meddled`] are what follows from them; each file below `checks` is one check; [`evidence`] reads the lines again that show a violation.

use std::io;
use std::path::Path;

mod arrivals;
mod case;
mod checks;
mod covered;
mod evidence;
mod facts;
mod fates;
mod found;
mod gather;
pub mod history;
mod ids;
mod lanes;
mod meddled;
mod read;
#[cfg(test)]
mod story;
mod table;
mod verdict;

pub use found::{Check, LISTED};
pub use table::table;
pub use verdict::{Counts, Repeats, Shown, Verdict, Violation};

/// Judges a folder of `*.history` files. Blocks for minutes on a long run, and takes some 200 bytes of memory a message.
///
/// # Errors
/// The folder or a file cannot be read, or there is no history in it. What is wrong with a history is no error, but a
/// violation.
pub fn check(folder: &Path) -> io::Result<Verdict> {
    let (facts, sources) = read::read(folder)?;
    let case = case::Case::new(facts);
    let found = checks::run(&case);
    let mut counts = found.counts;
    for fault in &case.facts.faults {
        *counts.faults_begun.entry(fault.kind.clone()).or_default() += 1;
    }
    let run = case.facts.run();
    Ok(Verdict {
        seed: run.map(|run| run.seed),
        sink: run.map(|run| run.sink.clone()),
        exactly_once: run.map(|run| run.exactly_once),
        passed: found.violations.is_empty(),
        counts,
        violated: found.violations,
        violations: evidence::show(&case.facts, &sources, found.listed)?,
    })
}
