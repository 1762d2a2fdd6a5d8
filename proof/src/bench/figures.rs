//! Figures by name: shown one by one as they come, and as one JSON object in the end.

use std::time::Duration;

use serde_json::{Map, Value};

/// What a figure should be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    fn met(self, value: f64) -> bool {
        match self {
            Goal::AtMost(most) => value <= most,
            Goal::AtLeast(least) => value >= least,
        }
    }
}

pub(super) struct Figures {
    values: Map<String, Value>,
    missed: Vec<Value>,
    json: bool,
}

impl Figures {
    pub(super) fn new(json: bool) -> Figures {
        Figures { values: Map::new(), missed: Vec::new(), json }
    }

    /// What is being done now, for whoever waits.
    pub(super) fn doing(&self, what: &str) {
        eprintln!("# {what}");
    }

    /// Shows and keeps a figure. The last one of a name counts.
    pub(super) fn add(&mut self, name: &str, value: f64, unit: &str) {
        self.show(&format!("{name:<44} {value:>14.3} {unit}"));
        // More digits would only look exact.
        self.values.insert(name.to_owned(), Value::from((value * 1_000.0).round() / 1_000.0));
    }

    /// The same for a figure that has a goal.
    pub(super) fn judge(&mut self, name: &str, value: f64, unit: &str, goal: Goal) {
        let word = if goal.met(value) { "ok" } else { "MISSED" };
        self.add(name, value, &format!("{unit}  (goal {goal:?}: {word})"));
        if !goal.met(value) {
            self.missed.push(Value::from(name));
        }
    }

    pub(super) fn finish(mut self) {
        if self.json {
            self.values.insert("goals_missed".to_owned(), Value::from(self.missed));
            println!("{}", Value::from(self.values));
        }
    }

    fn show(&self, line: &str) {
        if self.json {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    }
}

/// The middle one; of an even number, the lower of the two in the middle. 0 if there is none.
pub(super) fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// The smallest value that at least this share of all does not exceed. 0 if there is none.
pub(super) fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let least = share * count(sorted.len());
    let found = (1..=sorted.len()).zip(&sorted).find(|(nth, _)| count(*nth) >= least);
    found.map(|(_, value)| *value).or(sorted.last().copied()).unwrap_or_default()
}

/// A count as a figure.
pub(super) fn count(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

/// So many of something in this time, by the second.
pub(super) fn rate(of: f64, took: Duration) -> f64 {
    of / took.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!((median(&values), percentile(&values, 0.99), percentile(&values, 1.0)), (50.0, 99.0, 100.0));
        assert_eq!((median(&[7.0]), median(&[])), (7.0, 0.0));
    }
}
