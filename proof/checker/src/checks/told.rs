//! told: the history can be trusted. Each line is a record, but for one torn by a kill at a file's end; the run says how it was
//! set up; each answer belongs to a publish.

use crate::case::Case;
use crate::found::{About, Check, Found};

pub fn check(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    found.counts.torn_lines = facts.torn;
    for (line, why) in &facts.unreadable {
        found
            .violation(facts, Check::Told, || (format!("A line cannot be read: {why}"), vec![*line], About::default()));
    }
    for line in &facts.stray_answers {
        found.violation(facts, Check::Told, || {
            let text = "An answer belongs to no publish of that grant and batch".to_owned();
            (text, vec![*line], About::default())
        });
    }
    if facts.runs.len() != 1 {
        found.violation(facts, Check::Told, || {
            let text = format!("The history tells of {} beginnings of a run instead of one", facts.runs.len());
            (text, facts.runs.iter().map(|(line, _)| *line).collect(), About::default())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use crate::read::take_line;
    use crate::story::{Story, grant};

    fn found(facts: Facts) -> Found {
        let mut found = Found::default();
        check(&Case::new(facts), &mut found);
        found
    }

    #[test]
    fn only_a_last_line_without_its_end_may_be_torn() {
        let mut facts = Story::run(true).facts();
        take_line(&mut facts, 1, b"{\"t\":5,\"event\":\"ca");
        let torn = found(facts);
        assert_eq!((torn.of(Check::Told), torn.counts.torn_lines), (0, 1));

        let mut facts = Story::run(true).facts();
        take_line(&mut facts, 1, b"{\"t\":5,\"event\":\"ca\n");
        take_line(&mut facts, 2, b"{\"t\":5,\"event\":\"unheard_of\"}\n");
        assert_eq!(found(facts).of(Check::Told), 2);
    }

    #[test]
    fn an_answer_belongs_to_a_publish() {
        let g = grant(0, 1, 1);
        let good = Story::run(true).published(10, "r", &g, 1, &["a"], "d");
        assert_eq!(found(good.facts()).of(Check::Told), 0);
        let bad = Story::run(true).publish(10, "r", &g, 1, &["a"]).answered(11, "r", &g, 2, "d");
        assert_eq!(found(bad.facts()).of(Check::Told), 1);
    }

    #[test]
    fn an_answer_has_a_letter_for_each_message() {
        let mut facts = Story::run(true).facts();
        let story = Story::default().published(10, "r", &grant(0, 1, 1), 1, &["a", "b"], "d");
        for (line, text) in (1..).zip(story.lines()) {
            take_line(&mut facts, line, text.as_bytes());
        }
        assert_eq!(found(facts).of(Check::Told), 1);
    }

    #[test]
    fn a_run_begins_once() {
        assert_eq!(found(Story::default().facts()).of(Check::Told), 1);
    }
}
