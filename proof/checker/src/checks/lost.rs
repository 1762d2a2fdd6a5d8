//! lost: every message of a committed transaction arrived at the sink. What an asynchronous fail-over lost may have arrived or
//! not, and is counted apart; so is what arrived and may have been committed until a fail-over, or never was, and what the owner
//! of an adopted table deleted before it arrived.
//!
//! Of a lost message is shown what its writer did, whether it was ever published, which position passed it, and whether a segment
//! was emptied after its commit.

use crate::case::{Case, lines_of_call};
use crate::facts::{Ack, Line, MessageNo, PublishNo, Write, at};
use crate::fates::Fate;
use crate::found::{About, Check, Found};
use crate::lanes::related;

pub fn check(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    for message in 0..crate::facts::number(facts.ids.count()) {
        let arrived = !case.arrivals.of(message).is_empty();
        match case.fates.of(message) {
            Fate::Committed => {
                found.counts.messages += 1;
                if !arrived && case.meddled.is_deleted(message) {
                    found.counts.deleted_undelivered += 1;
                } else if !arrived {
                    found.counts.lost += 1;
                    found.violation(facts, Check::Lost, || tell(case, message));
                }
            }
            Fate::FailOverLost if !arrived => found.counts.fail_over_lost_undelivered += 1,
            Fate::FailOverLost | Fate::Unanswered if arrived => found.counts.fail_over_lost_delivered += 1,
            _ => {}
        }
    }
    found.counts.emptied = facts.emptied.len() as u64;
}

fn tell(case: &Case, message: MessageNo) -> (String, Vec<Line>, About) {
    let facts = &case.facts;
    let mut lines = case.lines_of_write(message);
    let published = case.publishes_of(message);
    lines.extend(case.lines_of_deeds(message));
    lines.extend(case.lines_of_publishes(message));
    let mut about = case.about(&[message]);
    let mut text = format!("Message {} was committed and never arrived", case.id(message));
    let write = case.fates.decisive(message).and_then(|write| at(&facts.writes, write));
    let later = write.filter(|_| published.is_empty()).and_then(|write| next_of_key(case, write));
    if !published.is_empty() {
        text += ", though it was handed to the sink";
    } else if let Some((next, publish)) = later {
        text += &format!(", and was never published; {} of the same key was, later", case.id(next));
        about.ids.push(case.id(next));
        lines.extend(at(&facts.publishes, publish).into_iter().flat_map(lines_of_call));
    } else {
        text += ", and was never published";
    }
    let known = published.last().map(|(number, _)| *number).or(later.map(|(_, publish)| publish));
    if let Some(ack) = known.and_then(|publish| passed_by(case, publish)) {
        text += "; a position passed it";
        lines.push(ack.line);
        about.lane = at(&facts.grants, ack.grant).cloned();
    }
    if let Some(emptied) = write.and_then(|write| emptied_after(case, write)) {
        text += &format!("; segment {} was emptied after it was written: the likely cause", emptied.0);
        lines.push(emptied.1);
    }
    (text, lines, about)
}

/// The next message of the same key that was published, and by which publish.
fn next_of_key(case: &Case, write: &Write) -> Option<(MessageNo, PublishNo)> {
    let facts = &case.facts;
    write.key?;
    let mut later: Vec<&Write> =
        facts.writes.iter().filter(|other| other.key == write.key && other.n > write.n).collect();
    later.sort_by_key(|other| other.n);
    let first = |other: &&Write| Some((other.message, case.publishes_of(other.message).first()?.0));
    later.iter().take(crate::found::LISTED).find_map(first)
}

/// The first position of that lane, or of one that was split from it, that is at a publish's batch or beyond it.
fn passed_by(case: &Case, publish: PublishNo) -> Option<&Ack> {
    let facts = &case.facts;
    let publish = at(&facts.publishes, publish)?;
    let grant = at(&facts.grants, publish.grant)?;
    let passes = |ack: &&Ack| {
        ack.t >= publish.t
            && ack.batch >= publish.batch
            && at(&facts.grants, ack.grant).is_some_and(|g| related(g, grant))
    };
    facts.acks.iter().filter(passes).min_by_key(|ack| ack.t)
}

/// The first segment that was emptied after a write, told as number and line.
fn emptied_after(case: &Case, write: &Write) -> Option<(u32, Line)> {
    let facts = &case.facts;
    let committed = at(&facts.transactions, write.transaction).and_then(|transaction| transaction.committed);
    let since = committed.map_or(facts.time(write.line), |(sent, _)| sent);
    let first = facts.emptied.iter().filter(|emptied| emptied.t >= since).min_by_key(|emptied| emptied.t);
    first.map(|emptied| (emptied.segment, emptied.line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Deed, Event};
    use crate::story::{Story, grant};

    #[test]
    fn what_is_committed_arrives() {
        let story = || Story::run(true).wrote(10, 1, &["a", "b"]).wrote(12, 2, &["c"]).ledger(90, &[1]);
        let good = story().arrived(95, "t", &["a", "b"]).judged(check);
        assert_eq!((good.of(Check::Lost), good.counts.messages), (0, 2));
        let bad = story().arrived(95, "t", &["b"]).judged(check);
        assert_eq!((bad.of(Check::Lost), bad.counts.lost), (1, 1));
        assert_eq!(bad.listed[0].text, "Message a was committed and never arrived, and was never published");
        assert_eq!(bad.listed[0].lines, [1, 3]);
    }

    #[test]
    fn what_a_fail_over_lost_is_counted_apart() {
        let story = Story::run(true)
            .wrote(10, 1, &["a", "b"])
            .committed(11, 1)
            .failed_over(20, 30, 2, false)
            .ledger(90, &[])
            .arrived(95, "t", &["b"]);
        let found = story.judged(check);
        assert_eq!(found.of(Check::Lost), 0);
        assert_eq!((found.counts.fail_over_lost_delivered, found.counts.fail_over_lost_undelivered), (1, 1));
    }

    #[test]
    fn what_was_deleted_need_not_arrive() {
        let story = |deed, ids: &[&str], ledger: &[u64]| {
            let story = Story::run(true).wrote(10, 1, &["a", "b"]).meddled(20, 2, deed, ids).ledger(90, ledger);
            let found = story.arrived(95, "t", &["b"]).judged(check);
            (found.of(Check::Lost), found.counts.lost, found.counts.deleted_undelivered)
        };
        assert_eq!(story(Deed::Deleted, &["a"], &[1, 2]), (0, 0, 1));
        assert_eq!(story(Deed::Deleted, &["a"], &[1]), (1, 1, 0), "it was not committed");
        assert_eq!(story(Deed::Deleted, &["b"], &[1, 2]), (1, 1, 0), "that was another row");
        for deed in [Deed::Locked, Deed::Changed, Deed::Rekeyed, Deed::SetBack] {
            assert_eq!(story(deed, &["a"], &[1, 2]), (1, 1, 0), "{deed:?}");
        }
    }

    #[test]
    fn the_position_and_the_emptied_segment_that_passed_it_are_shown() {
        let g = grant(3, 4, 1);
        let story = Story::run(true)
            .wrote(10, 1, &["k#1"])
            .wrote(11, 2, &["k#2"])
            .published(20, "r", &g, 1, &["k#2"], "d")
            .acknowledged(30, "r", &g, 1)
            .at(40, Event::Emptied { replica: "r".into(), segment: 5 })
            .ledger(90, &[1, 2])
            .arrived(95, "t", &["k#2"]);
        let found = story.judged(check);
        let finding = &found.listed[0];
        assert!(finding.text.contains("k#2 of the same key was, later; a position passed it; segment 5 was emptied"));
        assert_eq!(finding.lines, [1, 3, 5, 6, 7, 8]);
        assert_eq!(finding.about.lane, Some(g));
    }
}
