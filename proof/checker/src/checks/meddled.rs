//! meddled: what the owner of an adopted table does to its rows has the effect that is promised, and no other.
//!
//! A row that was set back after it had been marked is sent again, once more for each time, and arrives once more where the sink
//! does not drop it. What arrives says what the row said at a moment when whoever sent it may have read it. A row that was
//! changed after it had been read, and before it was marked, is told to have been; one that nobody changed is not. A row that
//! was deleted is sent by nobody who took the lane later.
//!
//! Every exception that other checks make for such a row is tied to a deed on that row alone: see `repeats`, `order` and `lost`.

use std::collections::HashSet;

use crate::case::{Case, lines_of_call};
use crate::facts::{Line, MessageNo, at};
use crate::fates::Fate;
use crate::found::{Check, Found};
use crate::history::{Deed, Nanos};
use crate::meddled::{Call, Done, Row};

pub fn check(case: &Case, found: &mut Found) {
    for (message, row) in case.meddled.rows() {
        for done in row.deeds.iter().filter(|done| done.stands()) {
            *found.counts.meddled.entry(done.deed).or_default() += 1;
        }
        sent_again(case, found, message, row);
        contents(case, found, message, row);
        not_sent_once_deleted(case, found, message, row);
    }
    contents_of_others(case, found);
    changes_are_told(case, found);
}

fn violation(case: &Case, found: &mut Found, message: MessageNo, what: &str, more: Vec<Line>) {
    found.violation(&case.facts, Check::Meddled, || {
        let mut lines = case.lines_of_write(message);
        lines.extend(case.lines_of_deeds(message));
        lines.extend(case.lines_of_publishes(message));
        lines.extend(case.lines_of_arrivals(message));
        lines.extend(more);
        (format!("Message {} {what}", case.id(message)), lines, case.about(&[message]))
    });
}

/// Each setting back found the row marked, and so delivered, since the one before it.
fn sent_again(case: &Case, found: &mut Found, message: MessageNo, row: &Row) {
    if case.fates.of(message) != Fate::Committed {
        return;
    }
    let set_back: Vec<&Done> = row.certain(Deed::SetBack).collect();
    let mut owed = 0;
    for (nth, done) in set_back.iter().enumerate() {
        let next = set_back.get(nth + 1);
        if is_in_vain(row, done, next.is_none()) {
            found.counts.set_back_in_vain += 1;
            continue;
        }
        owed += 1;
        let until = next.map_or(Nanos::MAX, |next| next.to);
        let mut calls = row.calls.iter().filter(|call| done.from <= call.t && call.t <= until);
        if calls.any(|call| may_be_taken(case, message, call)) {
            found.counts.sent_again += 1;
        } else {
            violation(
                case,
                found,
                message,
                "was set back after it had been marked, and was not sent again",
                Vec::new(),
            );
        }
    }
    let exactly_once = case.facts.run().is_some_and(|run| run.exactly_once);
    let arrived = case.arrivals.of(message).len();
    if !exactly_once && owed > 0 && arrived <= owed {
        let what = format!("was set back {owed} times after it had been marked, and arrived {arrived} times in all");
        violation(case, found, message, &what, Vec::new());
    }
}

/// Whether nothing need follow: the row is gone, or it may be in flight in the lane of its former key, whose owner marks it.
fn is_in_vain(row: &Row, done: &Done, last: bool) -> bool {
    let deleted = last && row.certain(Deed::Deleted).any(|deleted| deleted.from >= done.from);
    deleted || row.may(Deed::Rekeyed).any(|rekeyed| rekeyed.from <= done.from)
}

/// Whether the sink may have taken this very message of a call.
fn may_be_taken(case: &Case, message: MessageNo, call: &Call) -> bool {
    let Some(publish) = at(&case.facts.publishes, call.number) else { return false };
    let mut letters = case.facts.ids_of(publish).iter().zip(case.facts.letters_of(publish));
    letters.any(|(id, letter)| *id == message && !matches!(letter, b't' | b'x' | b'-'))
}

fn contents(case: &Case, found: &mut Found, message: MessageNo, row: &Row) {
    let content = |nth: u32| case.facts.contents.get(&nth).copied();
    let mut arrived: Vec<Option<u64>> = case.arrivals.of(message).iter().map(|arrived| content(arrived.nth)).collect();
    arrived.sort_unstable();
    arrived.dedup();
    let last = row.certain(Deed::Changed).next_back().map(|done| done.number);
    found.counts.former_contents += u64::from(last.is_some() && !arrived.is_empty() && !arrived.contains(&last));
    for content in arrived {
        let given = row.deeds.iter().find(|done| done.deed == Deed::Changed && Some(done.number) == content);
        let wrong = match (content, given) {
            (Some(number), None) => format!("arrived with a content of transaction {number}, which gave it none"),
            (Some(number), Some(given)) if !given.may_stand() => {
                format!("arrived with the content of transaction {number}, which was rolled back")
            }
            _ if may_be_read(row, given) => continue,
            (Some(number), _) => format!(
                "arrived with the content of transaction {number} alone from those who could no longer read it, or not yet"
            ),
            (None, _) => "arrived as it was written from those who could only read what it was changed to".to_owned(),
        };
        violation(case, found, message, &wrong, Vec::new());
    }
}

/// Whether one of the calls may have read the row when this was its content; without a change, the one it was written with.
fn may_be_read(row: &Row, given: Option<&Done>) -> bool {
    let from = given.map_or(0, |given| given.from);
    let later = row.certain(Deed::Changed).filter(|done| given.is_none_or(|given| done.from > given.from));
    let to = later.map(|done| done.to).min().unwrap_or(Nanos::MAX);
    row.calls.iter().any(|call| from <= call.t && call.read_from <= to)
}

/// Rows that nobody changed say what they were written with.
fn contents_of_others(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    let mut numbers: Vec<(&u32, &u64)> = facts.contents.iter().collect();
    numbers.sort_unstable();
    for (nth, content) in numbers {
        let Some(message) = at(&facts.arrived, *nth).copied() else { continue };
        if case.meddled.of(message).is_none() {
            let what = format!("arrived with a content of transaction {content}, and nobody changed it");
            violation(case, found, message, &what, Vec::new());
        }
    }
}

fn not_sent_once_deleted(case: &Case, found: &mut Found, message: MessageNo, row: &Row) {
    let Some(deleted) = row.certain(Deed::Deleted).next() else { return };
    for call in row.calls.iter().filter(|call| call.read_from > deleted.to) {
        let lines = at(&case.facts.publishes, call.number).map(lines_of_call).unwrap_or_default();
        violation(case, found, message, "was sent by one who took the lane after the row had been deleted", lines);
    }
}

fn changes_are_told(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    found.counts.changes_told = facts.changed.len() as u64;
    let told: HashSet<(MessageNo, Line)> = facts.changed.iter().copied().collect();
    for (message, line) in &facts.changed {
        let is_change = |done: &&Done| matches!(done.deed, Deed::Changed | Deed::Rekeyed | Deed::SetBack);
        let mut deeds = case.meddled.of(*message).into_iter().flat_map(|row| &row.deeds).filter(is_change);
        if !deeds.any(|done| done.may_stand() && done.from <= facts.time(*line)) {
            violation(case, found, *message, "is told to have been changed, and nobody had", vec![*line]);
        }
    }
    for (message, row) in case.meddled.rows() {
        // Of one that is gone there is nothing to mark; one of two lanes may have been marked for the other one.
        if row.may(Deed::Deleted).chain(row.may(Deed::Rekeyed)).next().is_none() {
            untold(case, found, (message, row), &told);
        }
    }
}

/// Changes that were confirmed between a call and the mark of its very batch, and that the mark did not tell of.
fn untold(case: &Case, found: &mut Found, (message, row): (MessageNo, &Row), told: &HashSet<(MessageNo, Line)>) {
    for call in &row.calls {
        let Some(publish) = at(&case.facts.publishes, call.number) else { continue };
        let own = |cover: &crate::covered::Cover| {
            (cover.grant, cover.batch, cover.again) == (publish.grant, publish.batch, false)
        };
        let Some(mark) = case.coverage.of(call.number).filter(own) else { continue };
        let changed = row.certain(Deed::Changed).any(|done| call.t < done.from && done.to < mark.sent);
        if changed && !told.contains(&(message, mark.line)) {
            violation(
                case,
                found,
                message,
                "was marked after it had been changed, and that is not told",
                vec![mark.line],
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{Story, grant};

    /// Sent by `r` from 10 on and marked by 20, as transaction 1 wrote it.
    fn marked(exactly_once: bool) -> Story {
        let g = grant(0, 1, 1);
        let story = Story::run(exactly_once).claimed(5, "r", std::slice::from_ref(&g)).wrote(1, 1, &["a"]);
        story.published(10, "r", &g, 1, &["a"], "d").marked(20, &g, 1, false, &[])
    }

    fn violations(story: &Story) -> u64 {
        story.violations(check, Check::Meddled)
    }

    #[test]
    fn what_was_set_back_is_sent_again() {
        let g = grant(0, 1, 1);
        let set_back = |exactly_once| marked(exactly_once).meddled(30, 2, Deed::SetBack, &["a"]).ledger(90, &[1, 2]);
        let again = |exactly_once, letter| set_back(exactly_once).published(40, "r", &g, 2, &["a"], letter);
        let good = again(false, "d").arrived(95, "t", &["a", "a"]).judged(check);
        assert_eq!((good.of(Check::Meddled), good.counts.sent_again), (0, 1));
        assert_eq!(good.counts.meddled, [(Deed::SetBack, 1)].into());
        assert_eq!(violations(&again(true, "r").arrived(95, "t", &["a"])), 0);
        assert_eq!(violations(&again(true, "x").arrived(95, "t", &["a"])), 1);
        assert_eq!(violations(&again(false, "d").arrived(95, "t", &["a"])), 1, "it arrived once");
        assert_eq!(violations(&set_back(true).arrived(95, "t", &["a"])), 1);
        assert_eq!(violations(&set_back(false).arrived(95, "t", &["a"])), 2);
        let before = marked(true).meddled(30, 2, Deed::SetBack, &["a"]).published(29, "r", &g, 2, &["a"], "r");
        assert_eq!(violations(&before.ledger(90, &[1, 2])), 1, "what was sent before does not count");
    }

    #[test]
    fn what_was_set_back_twice_is_sent_twice() {
        let g = grant(0, 1, 1);
        let twice = |first, second| {
            let story = marked(true).meddled(30, 2, Deed::SetBack, &["a"]).meddled(60, 3, Deed::SetBack, &["a"]);
            let story = story.published(first, "r", &g, 2, &["a"], "r").published(second, "r", &g, 3, &["a"], "r");
            violations(&story.ledger(90, &[1, 2, 3]))
        };
        assert_eq!((twice(40, 70), twice(40, 50), twice(70, 80)), (0, 1, 1));
    }

    /// Rolled back, lost by a fail-over, deleted after it, or in two lanes before it.
    #[test]
    fn not_every_setting_back_has_to_be_followed() {
        let set_back = |story: Story, t| story.meddled(t, 2, Deed::SetBack, &["a"]);
        let undone = marked(true).meddles(30, 2, Deed::SetBack, &["a"]).rolled_back(31, 2).ledger(90, &[1]);
        assert_eq!(violations(&undone), 0);
        let lost = set_back(marked(true), 30).failed_over(40, 50, 2, false).ledger(90, &[1]);
        assert_eq!(violations(&lost), 0);
        for (deed, t, expected) in
            [(Deed::Deleted, 40, 0), (Deed::Rekeyed, 8, 0), (Deed::Rekeyed, 40, 1), (Deed::Changed, 8, 1)]
        {
            let story = set_back(marked(true).meddled(t, 3, deed, &["a"]), 30).ledger(90, &[1, 2, 3]).judged(check);
            assert_eq!(story.of(Check::Meddled), expected, "{deed:?} at {t}");
            assert_eq!(story.counts.set_back_in_vain, 1 - expected);
        }
        let other = set_back(marked(true).wrote(2, 4, &["b"]).meddled(40, 3, Deed::Deleted, &["b"]), 30);
        assert_eq!(violations(&other.ledger(90, &[1, 2, 3, 4])), 1, "that was another row");
    }

    #[test]
    fn what_arrives_says_what_its_sender_may_have_read() {
        let (g, next) = (grant(0, 1, 1), grant(0, 1, 2));
        let story = |published, content: Option<u64>| {
            let contents: Vec<(u32, u64)> = content.into_iter().map(|content| (0, content)).collect();
            let story = Story::run(false).claimed(5, "r", std::slice::from_ref(&g)).claimed(
                40,
                "s",
                std::slice::from_ref(&next),
            );
            let story = story.wrote(1, 1, &["a"]).meddled(30, 2, Deed::Changed, &["a"]);
            let story = story.meddles(32, 3, Deed::Changed, &["a"]).rolled_back(33, 3);
            let (by, grant) = if published < 40 { ("r", &g) } else { ("s", &next) };
            let story = story.published(published, by, grant, 1, &["a"], "d");
            violations(&story.ledger(90, &[1, 2]).arrived_as(95, "t", &["a"], &contents))
        };
        assert_eq!((story(10, None), story(10, Some(2))), (0, 1), "it was sent before it was changed");
        assert_eq!((story(35, None), story(35, Some(2))), (0, 0), "nobody knows when it was read");
        assert_eq!((story(50, None), story(50, Some(2))), (1, 0), "it was read after it was changed");
        assert_eq!((story(50, Some(3)), story(50, Some(4))), (1, 1), "rolled back, and of nobody");
        let unchanged = marked(false).ledger(90, &[1]);
        assert_eq!(violations(&unchanged.clone().arrived(95, "t", &["a"])), 0);
        assert_eq!(violations(&unchanged.arrived_as(95, "t", &["a"], &[(0, 2)])), 1);
    }

    #[test]
    fn what_was_changed_in_flight_is_told() {
        let g = grant(0, 1, 1);
        let story = |changed_at, again, told: &[&str]| {
            let story = Story::run(false).claimed(5, "r", std::slice::from_ref(&g)).wrote(1, 1, &["a"]);
            let story = story.meddled(changed_at, 2, Deed::Changed, &["a"]).published(10, "r", &g, 1, &["a"], "d");
            story.marked(20, &g, 1, again, told).ledger(90, &[1, 2]).arrived(95, "t", &["a"]).judged(check)
        };
        let told = story(15, false, &["a"]);
        assert_eq!((told.of(Check::Meddled), told.counts.changes_told, told.counts.former_contents), (0, 1, 1));
        assert_eq!(story(15, false, &[]).of(Check::Meddled), 1);
        assert_eq!(story(15, true, &[]).of(Check::Meddled), 0, "an attempt whose answer was lost may have met it");
        assert_eq!(story(8, false, &[]).of(Check::Meddled), 0, "it may have been read afterwards");
        assert_eq!(story(18, false, &[]).of(Check::Meddled), 0, "the mark may have come first");
        assert_eq!(story(15, false, &["a", "b"]).of(Check::Meddled), 1, "nobody had changed b");
        assert_eq!(story(30, false, &["a"]).of(Check::Meddled), 1, "nobody had changed it by then");
    }

    #[test]
    fn what_was_deleted_is_sent_by_nobody_who_came_later() {
        let (old, new) = (grant(0, 1, 1), grant(0, 1, 2));
        for (claimed, expected) in [(21, 0), (22, 1)] {
            let story = Story::run(false).claimed(5, "r", std::slice::from_ref(&old)).wrote(1, 1, &["a"]);
            let story = story.meddled(20, 2, Deed::Deleted, &["a"]).claimed(claimed, "s", std::slice::from_ref(&new));
            let story = story.published(25, "r", &old, 1, &["a"], "d").published(30, "s", &new, 1, &["a"], "d");
            assert_eq!(violations(&story.ledger(90, &[1, 2])), expected);
        }
    }
}
