//! told: the history can be trusted, and there is something in it. Each line is a record, but for one torn at the end of the
//! file of a process that was killed; files that are no replica's have as many lines as the end of the run says; the run says
//! how it was set up; each answer belongs to a publish. Messages were written and published, the database told what it knows to
//! be committed, and of each such transaction its writer told what it wrote.

use std::collections::BTreeMap;

use crate::case::Case;
use crate::facts::{Facts, Line, at, number};
use crate::found::{About, Check, Found};

pub fn check(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    found.counts.torn_lines = facts.torn.len() as u64;
    let mut wrong = |text: String, lines: Vec<Line>| {
        found.violation(facts, Check::Told, || (text, lines, About::default()));
    };
    for (line, why) in &facts.unreadable {
        wrong(format!("A line cannot be read: {why}"), vec![*line]);
    }
    for line in facts.torn.iter().filter(|line| !may_be_torn(facts, **line)) {
        wrong("A line is torn, and nobody killed who wrote it".to_owned(), vec![*line]);
    }
    for line in &facts.stray {
        wrong("An answer or a write belongs to no publish of that grant and batch".to_owned(), vec![*line]);
    }
    if facts.runs.len() != 1 {
        let text = format!("The history tells of {} beginnings of a run instead of one", facts.runs.len());
        wrong(text, facts.runs.iter().map(|(line, _)| *line).collect());
    }
    for (nothing, what) in [
        (facts.writes.is_empty(), "written"),
        (facts.publishes.is_empty(), "published"),
        (facts.ledger_lines == 0, "told of what the database knows to be committed"),
    ] {
        if nothing {
            wrong(format!("Nothing was {what}: the run shows nothing"), Vec::new());
        }
    }
    let unwritten = |line: &Option<Line>, wrote: bool| line.filter(|_| !wrote);
    for transaction in &facts.transactions {
        if let Some(line) = unwritten(&transaction.ledger, transaction.wrote.is_some()) {
            wrong(format!("Nobody told what transaction {} wrote, which is committed", transaction.number), vec![line]);
        }
    }
    if let Some((_, line)) = facts.end {
        for text in holes(facts) {
            wrong(text, vec![line]);
        }
    }
}

/// Of a replica that was killed: as the history of its process says, or, if that was killed before it told anything, since there
/// is such a kill.
fn may_be_torn(facts: &Facts, line: Line) -> bool {
    let file = facts.file_of(line);
    let mut of_it = (0..number(facts.replicas.len())).filter(|replica| {
        let joined = at(&facts.replicas, *replica).and_then(|replica| replica.leases.first());
        joined.is_some_and(|joined| facts.file_of(joined.line) == file)
    });
    let told_nothing = file.and_then(|file| facts.files.get(file)).is_none_or(|file| file.first == line);
    if told_nothing {
        let mut kills = facts.faults.iter().filter(|fault| fault.kind.starts_with("kill") && fault.pid.is_some());
        return kills.any(|kill| !facts.replicas.iter().any(|replica| kill.hits(replica)));
    }
    of_it.any(|replica| facts.killed(replica).is_some())
}

/// What is wrong with the numbers of lines.
fn holes(facts: &Facts) -> Vec<String> {
    let mut counted: BTreeMap<&str, u64> = facts.counted.iter().map(|(name, lines)| (name.as_str(), *lines)).collect();
    let mut holes = Vec::new();
    let ends = facts.files.iter().skip(1).map(|file| file.first).chain([number(facts.times.len())]);
    for (index, (file, end)) in facts.files.iter().zip(ends).enumerate() {
        let lines = u64::from(end - file.first);
        let of_a_replica = facts.replicas.iter().filter_map(|replica| replica.leases.first());
        let is_a_replicas = of_a_replica.into_iter().any(|joined| facts.file_of(joined.line) == Some(index));
        // A process that was killed early has told nothing, or half a line.
        let told_nothing = lines == 0 || lines == 1 && facts.torn.contains(&file.first);
        match counted.remove(file.name.as_str()) {
            Some(expected) if expected == lines => {}
            Some(expected) => holes.push(format!("{} has {lines} lines, and {expected} were told", file.name)),
            None if is_a_replicas || told_nothing => {}
            None => holes.push(format!("Nobody told how many lines {} has", file.name)),
        }
    }
    holes.extend(counted.keys().map(|name| format!("There is no file {name}")));
    holes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::HistoryFile;
    use crate::history::Event;
    use crate::read::take_line;
    use crate::story::{Story, grant};

    fn found(facts: Facts) -> Found {
        let mut found = Found::default();
        check(&Case::new(facts), &mut found);
        found
    }

    /// All that a history has to have.
    fn whole() -> Story {
        let g = grant(0, 1, 1);
        Story::run(true).wrote(5, 1, &["a"]).published(10, "r", &g, 1, &["a"], "d").ledger(90, &[1])
    }

    #[test]
    fn only_a_last_line_without_its_end_may_be_torn() {
        let lines = u32::try_from(whole().lines().len()).unwrap();
        let mut facts = whole().facts();
        take_line(&mut facts, lines, b"{\"t\":5,\"event\":\"ca\n");
        take_line(&mut facts, lines + 1, b"{\"t\":5,\"event\":\"unheard_of\"}\n");
        assert_eq!(found(facts).of(Check::Told), 2);
    }

    #[test]
    fn only_who_was_killed_tears_a_line() {
        let torn = |killed: &str| {
            let mut facts = whole().fault("kill", killed, 20, 21).joined(1, "r", 100).facts();
            let line = u32::try_from(facts.times.len()).unwrap();
            facts.files = vec![HistoryFile { name: "all".into(), first: 0 }];
            take_line(&mut facts, line, b"{\"t\":5,\"event\":\"ca");
            let found = found(facts);
            (found.of(Check::Told), found.counts.torn_lines)
        };
        assert_eq!((torn("r"), torn("q")), ((0, 1), (1, 1)));
    }

    #[test]
    fn an_answer_belongs_to_a_publish() {
        let g = grant(0, 1, 1);
        assert_eq!(found(whole().facts()).of(Check::Told), 0);
        let bad = whole().publish(20, "r", &g, 1, &["a"]).answered(21, "r", &g, 2, "d");
        assert_eq!(found(bad.facts()).of(Check::Told), 1);
        assert_eq!(found(whole().writing(20, "q", &g).facts()).of(Check::Told), 1);
    }

    #[test]
    fn an_answer_has_a_letter_for_each_message() {
        let mut facts = whole().facts();
        let story = Story::default().published(20, "r", &grant(0, 1, 1), 1, &["a", "b"], "d");
        for (line, text) in (facts.times.len()..).zip(story.lines()) {
            take_line(&mut facts, u32::try_from(line).unwrap(), text.as_bytes());
        }
        assert_eq!(found(facts).of(Check::Told), 1);
    }

    #[test]
    fn a_run_begins_once() {
        let g = grant(0, 1, 1);
        let story = Story::default().wrote(5, 1, &["a"]).published(10, "r", &g, 1, &["a"], "d").ledger(90, &[1]);
        assert_eq!(found(story.facts()).of(Check::Told), 1);
    }

    #[test]
    fn an_empty_history_shows_nothing() {
        assert_eq!(found(Story::run(true).facts()).of(Check::Told), 3);
    }

    #[test]
    fn of_each_transaction_its_writer_told() {
        assert_eq!(found(whole().ledger(91, &[2]).facts()).of(Check::Told), 1);
    }

    #[test]
    fn lines_are_counted() {
        let told = |counted: &[(&str, u64)], replica: &str| {
            let lines = counted.iter().map(|(name, lines)| ((*name).to_owned(), *lines)).collect();
            let mut facts = whole().joined(3, "r", 100).at(99, Event::End { lines }).facts();
            // Of seven lines, the last two are a replica's or not.
            let joined = facts.replicas[0].leases[0].line;
            let file = |name: &str, first| HistoryFile { name: name.into(), first };
            facts.files =
                if replica.is_empty() { vec![file("stage", 0)] } else { vec![file("stage", 0), file(replica, joined)] };
            found(facts).of(Check::Told)
        };
        assert_eq!(told(&[("stage", 8)], ""), 0);
        assert_eq!(told(&[("stage", 9)], ""), 1);
        assert_eq!(told(&[], ""), 0, "a replica's");
        assert_eq!(told(&[("stage", 6)], "r1"), 0);
        assert_eq!(told(&[("stage", 6), ("writers", 1)], "r1"), 1);
        assert_eq!(told(&[], "r1"), 1);
    }
}
