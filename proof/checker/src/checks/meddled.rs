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
