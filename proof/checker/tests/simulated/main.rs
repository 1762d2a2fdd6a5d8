//! Histories of a simulated relay, with kills, freezes, hand-overs, splits and fail-overs: an honest one passes, whatever the
//! seed; a wrong one is caught by the check that it breaks.

// The whole binary is a test, but clippy takes its helpers for tests, which may unwrap, only below
// `cfg(test)` (see clippy.toml).
#[cfg(test)]
mod judged;
#[cfg(test)]
mod meddler;
#[cfg(test)]
mod relay;
#[cfg(test)]
mod sink;
#[cfg(test)]
mod stage;

/// Files of records, by their names.
type Histories = std::collections::BTreeMap<String, Vec<checker::history::Record>>;
