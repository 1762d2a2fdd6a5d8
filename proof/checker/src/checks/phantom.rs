//! phantom: what arrived was committed. A message whose writer got no answer before a fail-over may have been, for a while.

use crate::case::Case;
use crate::fates::Fate;
use crate::found::{Check, Found};

pub fn check(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    for message in 0..crate::facts::number(facts.ids.count()) {
        let why = match case.fates.of(message) {
            Fate::Unknown => "no writer wrote it",
            Fate::Undone => "its transaction was rolled back, or a savepoint took it back",
            _ => continue,
        };
        if case.arrivals.of(message).is_empty() {
            continue;
        }
        found.counts.phantom += 1;
        found.violation(facts, Check::Phantom, || {
            let mut lines = case.lines_of_write(message);
            lines.extend(case.lines_of_publishes(message));
            lines.extend(case.lines_of_arrivals(message));
            (format!("Message {} arrived, and {why}", case.id(message)), lines, case.about(&[message]))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::Story;

    #[test]
    fn what_arrives_was_committed() {
        let story = || Story::run(true).wrote(10, 1, &["a", "b"]).took_back(11, 1, &["b"]).ledger(90, &[1]);
        assert_eq!(story().arrived(95, "t", &["a"]).violations(check, Check::Phantom), 0);
        assert_eq!(story().arrived(95, "t", &["a", "b", "c"]).violations(check, Check::Phantom), 2);
    }

    #[test]
    fn an_unanswered_commit_before_a_fail_over_may_have_been_visible() {
        let story = Story::run(true).wrote(10, 1, &["a"]).failed_over(20, 30, 2, false).ledger(90, &[]);
        assert_eq!(story.arrived(95, "t", &["a"]).violations(check, Check::Phantom), 0);
    }
}
