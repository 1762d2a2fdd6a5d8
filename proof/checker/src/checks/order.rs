//! order: of each key, first arrivals come in the order of commit. What a fail-over lost is left out, and so is a row of an
//! adopted table whose key was changed while it was pending, or that was deleted: what is in flight arrives late then, and nobody
//! sends it before. It alone is left out, not the others of its keys.
//!
//! Within one place the order of arrivals is known. Between places it is not, so there times decide: a message arrived no
//! earlier than its first publish began, and no later than the first call that delivered it was answered. Only what is certain
//! is held against the relay: a message that arrived at one place before it was sent to any other, behind a later one there; or
//! one whose first publish began after a later one had been delivered. A place is a replica's, and named after it.

use crate::arrivals::{Arrived, told};
use crate::case::Case;
use crate::covered::may_have_arrived;
use crate::facts::{Facts, MessageNo, ReplicaNo, Write, at, taken};
use crate::fates::Fate;
use crate::found::{Check, Found};
use crate::history::Nanos;

pub fn check(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    let decisive = |number: u32, write: &Write| case.fates.decisive(write.message) == Some(number);
    let mut keyed: Vec<&Write> = (0..)
        .zip(&facts.writes)
        .filter(|(number, write)| {
            write.key.is_some()
                && case.fates.of(write.message) == Fate::Committed
                && decisive(*number, write)
                && !case.meddled.has_no_order(write.message)
        })
        .map(|(_, write)| write)
        .collect();
    keyed.sort_unstable_by_key(|write| (write.key, write.n, write.line));
    let times = (facts.places.len() > 1).then(|| Times::new(facts));
    let mut last: Option<&Write> = None;
    let mut later = Later::new(facts.places.len());
    // From the last message of a key to its first: what lies behind one that comes later in the key is out of order.
    for write in keyed.into_iter().rev() {
        match last.filter(|last| last.key == write.key) {
            None => later.clear(),
            Some(last) if last.n == write.n => found.violation(facts, Check::Database, || {
                let text = format!("Two committed messages are number {} of one key: a mistake of the run", write.n);
                let lines = [write, last].into_iter().flat_map(|write| case.lines_of_write(write.message));
                (text, lines.collect(), case.about(&[write.message, last.message]))
            }),
            Some(_) => {}
        }
        last = Some(write);
        let overtaken = later.look(case, times.as_ref(), write.message);
        if let Some(by) = overtaken {
            found.counts.out_of_order += 1;
            found.violation(facts, Check::Order, || tell(case, write, by));
        }
    }
}

fn tell(case: &Case, write: &Write, by: MessageNo) -> (String, Vec<u32>, crate::found::About) {
    let facts = &case.facts;
    let messages = [write.message, by];
    let mut lines: Vec<u32> = messages.iter().flat_map(|message| case.lines_of_write(*message)).collect();
    lines.extend(messages.iter().flat_map(|message| case.lines_of_publishes(*message)));
    lines.extend(messages.iter().flat_map(|message| case.lines_of_deeds(*message)));
    let first = |message: &MessageNo| case.arrivals.of(*message).first().and_then(|arrived| told(facts, *arrived));
    lines.extend(messages.iter().filter_map(first));
    let text = format!(
        "Message {}, number {} of key {}, arrived after {}, which was committed after it",
        case.id(write.message),
        write.n,
        write.key.unwrap_or_default(),
        case.id(by)
    );
    (text, lines, case.about(&messages))
}

/// Of the messages of one key that were looked at so far, which are later ones: the first to arrive.
struct Later {
    /// At each place.
    places: Vec<Option<(u32, MessageNo)>>,
    /// Anywhere: until when it had certainly arrived.
    delivered: Option<(Nanos, MessageNo)>,
}

impl Later {
    fn new(places: usize) -> Self {
        Self { places: vec![None; places], delivered: None }
    }

    fn clear(&mut self) {
        self.places.fill(None);
        self.delivered = None;
    }

    /// A later message that certainly arrived before this one, if there is one. Then this one counts as looked at.
    fn look(&mut self, case: &Case, times: Option<&Times>, message: MessageNo) -> Option<MessageNo> {
        let only = case.arrivals.firsts(message).nth(1).is_none();
        let behind = case.arrivals.firsts(message).find_map(|first| {
            let certain = only || times.is_some_and(|times| times.place(case, message) == Some(first.place));
            let at_place = self.places.get(usize::from(first.place)).copied().flatten();
            at_place.filter(|(nth, _)| certain && *nth < first.nth).map(|(_, by)| by)
        });
        let began = times.and_then(|times| at(&times.began, message)).copied();
        let later = self.delivered.filter(|(t, _)| began.is_some_and(|began| *t < began)).map(|(_, by)| by);
        for Arrived { place, nth } in case.arrivals.firsts(message) {
            if let Some(known) = self.places.get_mut(usize::from(place)) {
                *known = Some(known.unwrap_or((u32::MAX, message)).min((nth, message)));
            }
        }
        if let Some(delivered) = times.and_then(|times| at(&times.delivered, message)).map(|(t, _)| *t) {
            self.delivered = Some(self.delivered.unwrap_or((Nanos::MAX, message)).min((delivered, message)));
        }
        behind.or(later)
    }
}

/// Between which moments each message first arrived.
struct Times {
    /// Its first publish began.
    began: Vec<Nanos>,
    /// The first call that delivered it was answered, and whose that was.
    delivered: Vec<(Nanos, ReplicaNo)>,
    /// The first publish of it by a replica of another name began.
    elsewhere: Vec<Nanos>,
}

impl Times {
    fn new(facts: &Facts) -> Self {
        let count = facts.ids.count();
        let (began, delivered) = (vec![Nanos::MAX; count], vec![(Nanos::MAX, ReplicaNo::MAX); count]);
        let mut times = Self { began, delivered, elsewhere: vec![Nanos::MAX; count] };
        let publishes = || facts.publishes.iter().filter(|publish| may_have_arrived(publish));
        for publish in publishes() {
            for (message, letter) in facts.ids_of(publish).iter().zip(facts.letters_of(publish)) {
                if let Some(began) = times.began.get_mut(*message as usize) {
                    *began = (*began).min(publish.t);
                }
                let answered = publish.answered.filter(|_| taken(*letter));
                if let (Some((t, _)), Some(delivered)) = (answered, times.delivered.get_mut(*message as usize)) {
                    *delivered = (*delivered).min((t, publish.replica));
                }
            }
        }
        let name = |replica| at(&facts.replicas, replica).map(|replica| &replica.name);
        for publish in publishes() {
            for message in facts.ids_of(publish) {
                let other = at(&times.delivered, *message).is_some_and(|(_, by)| name(*by) != name(publish.replica));
                if let (true, Some(elsewhere)) = (other, times.elsewhere.get_mut(*message as usize)) {
                    *elsewhere = (*elsewhere).min(publish.t);
                }
            }
        }
        // One that nobody published is not late by that.
        times.began.iter_mut().filter(|began| **began == Nanos::MAX).for_each(|began| *began = 0);
        times
    }

    /// The place where a message arrived before it was sent to any other, if that is certain.
    fn place(&self, case: &Case, message: MessageNo) -> Option<u16> {
        let (delivered, by) = at(&self.delivered, message)?;
        let name = &at(&case.facts.replicas, *by)?.name;
        at(&self.elsewhere, message).filter(|elsewhere| *elsewhere > delivered)?;
        let mut places = (0..).zip(&case.facts.places);
        places.find(|(_, place)| place.split('.').next() == Some(name)).map(|(number, _)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Deed;
    use crate::story::{Story, grant};

    fn written() -> Story {
        Story::run(false)
            .wrote(1, 1, &["k#1", "x#1"])
            .wrote(2, 2, &["k#2", "n"])
            .wrote(3, 3, &["k#3"])
            .ledger(4, &[1, 2, 3])
    }

    #[test]
    fn first_arrivals_come_in_the_order_of_commit() {
        let good = written().arrived(9, "t", &["n", "k#1", "k#2", "k#1", "x#1", "k#2", "k#3"]);
        assert_eq!(good.judged(check).of(Check::Order), 0);
        let bad = written().arrived(9, "t", &["k#1", "k#3", "k#2", "x#1"]).judged(check);
        assert_eq!((bad.of(Check::Order), bad.counts.out_of_order), (1, 1));
        assert!(bad.listed[0].text.contains("Message k#2, number 2 of key 107, arrived after k#3"));
    }

    #[test]
    fn a_row_that_moved_or_is_gone_has_no_order_and_the_others_have() {
        for deed in [Deed::Rekeyed, Deed::Deleted, Deed::Changed, Deed::SetBack, Deed::Locked] {
            let meddled = |id| written().meddled(3, 4, deed, &[id]).ledger(5, &[4]);
            let late = |id| meddled(id).arrived(9, "t", &["k#1", "k#3", "k#2"]).violations(check, Check::Order);
            let left_out = matches!(deed, Deed::Rekeyed | Deed::Deleted);
            assert_eq!((late("k#2"), late("k#3")), if left_out { (0, 0) } else { (1, 1) }, "{deed:?}");
            assert_eq!(late("k#1"), 1, "{deed:?}");
        }
    }

    /// Every order of four messages: accused exactly when one of them is overtaken.
    #[test]
    fn each_overtaken_message_is_found() {
        let mut orders = vec![Vec::new()];
        for _ in 0..4 {
            let longer = |order: &Vec<u32>| {
                let order = order.clone();
                (1..=4).filter(|n| !order.contains(n)).map(|n| [order.as_slice(), &[n]].concat()).collect::<Vec<_>>()
            };
            orders = orders.iter().flat_map(longer).collect();
        }
        assert_eq!(orders.len(), 24);
        for order in orders {
            let ids: Vec<String> = order.iter().map(|n| format!("k#{n}")).collect();
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            let story =
                Story::run(false).wrote(1, 1, &["k#1", "k#2", "k#3", "k#4"]).ledger(4, &[1]).arrived(9, "t", &ids);
            let overtaken = |at: &usize| order[..*at].iter().any(|before| *before > order[*at]);
            let expected = (0..4).filter(overtaken).count() as u64;
            assert_eq!(story.judged(check).of(Check::Order), expected, "{order:?}");
        }
    }

    #[test]
    fn what_a_fail_over_lost_has_no_order() {
        let story = Story::run(false)
            .wrote(1, 1, &["k#1"])
            .wrote(2, 2, &["k#2"])
            .committed(3, 2)
            .failed_over(10, 20, 2, false)
            .ledger(90, &[1])
            .arrived(99, "t", &["k#2", "k#1"]);
        assert_eq!(story.judged(check).of(Check::Order), 0);
    }

    /// Replica 2 took over: the order of its file does not compare with the other's, and repeats come late.
    #[test]
    fn between_places_only_times_tell() {
        let (a, b) = (grant(0, 1, 1), grant(0, 1, 2));
        let good = written()
            .published(10, "r1", &a, 1, &["k#1", "k#2"], "dd")
            .published(20, "r1", &a, 2, &["k#3"], "d")
            .published(30, "r2", &b, 1, &["k#1", "k#2", "k#3"], "ddd")
            .arrived(90, "r2", &["k#1", "k#2", "k#3"])
            .arrived(91, "r1", &["k#1", "k#2", "k#3"]);
        assert_eq!(good.judged(check).of(Check::Order), 0);
        let bad = written()
            .published(10, "r1", &a, 1, &["k#1", "k#3"], "dd")
            .published(30, "r2", &b, 2, &["k#2"], "d")
            .arrived(90, "r1", &["k#1", "k#3"])
            .arrived(91, "r2", &["k#2"]);
        assert_eq!(bad.judged(check).of(Check::Order), 1);
        let unsure = written()
            .publish(10, "r1", &a, 1, &["k#1", "k#3"])
            .publish(30, "r2", &b, 2, &["k#2"])
            .arrived(90, "r1", &["k#1", "k#3"])
            .arrived(91, "r2", &["k#2"]);
        assert_eq!(unsure.judged(check).of(Check::Order), 0);
    }

    /// Positions fell back in a fail-over: k#2 reaches this file after k#3, and reached the other one before.
    #[test]
    fn a_repeat_at_another_place_is_not_out_of_order() {
        let (a, b) = (grant(0, 1, 1), grant(0, 1, 2));
        let story = written()
            .published(10, "r1", &a, 1, &["k#1", "k#2"], "dd")
            .published(20, "r2", &b, 2, &["k#3"], "d")
            .published(30, "r2", &b, 2, &["k#2", "k#3"], "dd")
            .arrived(90, "r1", &["k#1", "k#2"])
            .arrived(91, "r2", &["k#3", "k#2", "k#3"]);
        assert_eq!(story.judged(check).of(Check::Order), 0);
    }

    /// It came late to the first one's file, and a repeat of it came to the second one's.
    #[test]
    fn a_repeat_does_not_hide_what_came_late_to_its_first_place() {
        let (a, b) = (grant(0, 1, 1), grant(0, 1, 2));
        for (repeated, expected) in [(30, 1), (8, 0)] {
            let story = written()
                .joined(5, "r1", 100)
                .joined(5, "r2", 100)
                .published(10, "r1", &a, 1, &["k#1", "k#3"], "dd")
                .published(20, "r1", &a, 2, &["k#2"], "d")
                .published(repeated, "r2", &b, 1, &["k#1", "k#2", "k#3"], "ddd")
                .arrived(90, "name-r1.jsonl", &["k#1", "k#3", "k#2"])
                .arrived(91, "name-r2.jsonl", &["k#1", "k#2", "k#3"]);
            assert_eq!(story.violations(check, Check::Order), expected);
        }
    }

    #[test]
    fn a_number_of_a_key_is_given_out_once() {
        let story = Story::run(false).wrote(1, 1, &["k#1"]).wrote(2, 2, &["kk#1", "k#1"]).ledger(4, &[1, 2]);
        assert_eq!(story.judged(check).of(Check::Database), 0);
        // Two ids of one key: `\0k` has the same sum of bytes.
        let story = Story::run(false).wrote(1, 1, &["k#1"]).wrote(2, 2, &["\0k#1"]).ledger(4, &[1, 2]);
        assert_eq!(story.judged(check).of(Check::Database), 1);
    }
}
