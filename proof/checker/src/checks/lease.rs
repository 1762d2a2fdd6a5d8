//! lease: no publish begins at the end of its replica's lease or later, nothing is written then, and none is still running. A
//! lease that has ended is not renewed: the answer to a renewal has to be there before.
//!
//! Each write of a call is preceded by a look at the clock, which is told: each of these moments has to lie within the lease,
//! whatever the answer was. A call that was begun too late and wrote nothing, since the lease was found to be over, is no breach.
//! A call is over within [`TOLD_WITHIN`] after the lease: it is cut off at its end, but the machine is busy. A process that stood
//! still by a signal all the while cannot do that, and has [`AWAKE_WITHIN`] from then on; such calls are counted. A call without
//! an answer is one of a process that was killed within that time.

use std::collections::HashMap;

use super::{AWAKE_WITHIN, TOLD_WITHIN};
use crate::case::{Case, lines_of_call};
use crate::facts::{Answer, Lease, Line, Look, Publish, PublishNo, Replica, at};
use crate::found::{About, Check, Found};
use crate::history::Nanos;
use crate::table::duration;

pub fn check(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    let leases: Vec<Leases> = facts.replicas.iter().map(Leases::new).collect();
    let late = late_looks(case, &leases);
    for (number, publish) in (0..).zip(&facts.publishes) {
        let Some(leases) = at(&leases, publish.replica) else { continue };
        begins_within(case, found, leases, publish, late.get(&number));
        ends_within(case, found, leases, publish);
    }
    for (number, replica) in (0..).zip(&facts.replicas) {
        not_revived(case, found, number, replica);
    }
}

/// Until when a replica may have known its lease to run, from each moment on.
struct Leases(Vec<(Nanos, Nanos, Line)>);

impl Leases {
    fn new(replica: &Replica) -> Self {
        // One whose moment is not told may have been told a little late.
        let from = |lease: &Lease| lease.confirmed.unwrap_or(lease.t.saturating_sub(TOLD_WITHIN));
        let mut known: Vec<_> = replica.leases.iter().map(|lease| (from(lease), lease.until, lease.line)).collect();
        known.sort_unstable();
        let mut last = (0, 0);
        for (_, until, line) in &mut known {
            last = last.max((*until, *line));
            (*until, *line) = last;
        }
        Self(known)
    }

    /// The end of the lease, and where it is told.
    fn at(&self, t: Nanos) -> Option<(Nanos, Line)> {
        let after = self.0.partition_point(|(from, ..)| *from <= t);
        after.checked_sub(1).and_then(|index| self.0.get(index)).map(|(_, until, line)| (*until, *line))
    }

    /// The same; a replica without a lease had its end at the beginning of time.
    fn end_at(&self, t: Nanos) -> (Nanos, Option<Line>) {
        self.at(t).map_or((0, None), |(until, line)| (until, Some(line)))
    }
}

/// Of each call, the first look at the clock that was after the end of the lease.
fn late_looks(case: &Case, leases: &[Leases]) -> HashMap<PublishNo, Look> {
    let facts = &case.facts;
    let is_late = |look: &&Look| {
        let leases = at(&facts.publishes, look.publish).and_then(|publish| at(leases, publish.replica));
        leases.is_some_and(|leases| look.looked >= leases.end_at(look.looked).0)
    };
    let mut late: HashMap<PublishNo, Look> = HashMap::new();
    for look in facts.looks.iter().filter(is_late) {
        let first = late.entry(look.publish).or_insert(*look);
        *first = if look.looked < first.looked { *look } else { *first };
    }
    late
}

fn begins_within(case: &Case, found: &mut Found, leases: &Leases, publish: &Publish, late: Option<&Look>) {
    let facts = &case.facts;
    let (until, line) = leases.end_at(publish.t);
    let answered = matches!(publish.answer, Answer::Letters | Answer::Ambiguous);
    let (what, lines) = if publish.t >= until && answered {
        let what = match line {
            Some(_) => format!("began {} after its lease", duration(publish.t - until)),
            None => "began without a lease".to_owned(),
        };
        (what, vec![line])
    } else if let Some(Look { looked, line: writing, .. }) = late {
        let (until, line) = leases.end_at(*looked);
        (format!("wrote {} after its lease", duration(looked - until)), vec![line, Some(*writing)])
    } else if answered && publish.writing.is_none() {
        ("was sent without a look at the clock".to_owned(), vec![line])
    } else {
        return;
    };
    found.violation(facts, Check::Lease, || {
        let text = format!("A publish of {} {what}", whose(case, publish));
        let lines = lines_of_call(publish).into_iter().chain(lines.into_iter().flatten());
        (text, lines.collect(), case.lane(publish.grant).1)
    });
}

fn ends_within(case: &Case, found: &mut Found, leases: &Leases, publish: &Publish) {
    let facts = &case.facts;
    let ended = publish.answered.map(|(t, _)| t).or_else(|| facts.killed(publish.replica)).unwrap_or(Nanos::MAX);
    let Some((until, line)) = leases.at(ended) else { return };
    if ended <= until.saturating_add(TOLD_WITHIN) {
        return;
    }
    // One that was begun by a process which had just woken up, and given up at once: whether it wrote something is the other
    // rule.
    if publish.t >= until && ended <= publish.t.saturating_add(TOLD_WITHIN) {
        return;
    }
    if facts.stopped_through(publish.replica, (until, ended), TOLD_WITHIN, AWAKE_WITHIN) {
        found.counts.late_while_stopped += 1;
        return;
    }
    found.violation(facts, Check::Lease, || {
        let whose = whose(case, publish);
        let text = match publish.answered {
            Some(_) => format!("A publish of {whose} was still running {} after its lease", duration(ended - until)),
            None => format!("A publish of {whose} has no answer, and its process was not killed within its lease"),
        };
        (text, lines_of_call(publish).into_iter().chain([line]).collect(), case.lane(publish.grant).1)
    });
}

fn not_revived(case: &Case, found: &mut Found, number: u32, replica: &Replica) {
    let ttl = case.facts.run().map_or(0, |run| run.ttl_ms.saturating_mul(1_000_000));
    for pair in replica.leases.windows(2) {
        let [before, after] = pair else { continue };
        if after.until <= before.until {
            continue;
        }
        let late = match after.confirmed {
            Some(confirmed) => confirmed >= before.until,
            None => {
                // A lease is no longer than a ttl, so this one was not even asked for before the other one's end.
                let sent_late = after.until.saturating_sub(ttl) > before.until;
                let told_late = after.t > before.until.saturating_add(TOLD_WITHIN)
                    && !case.facts.stopped_through(number, (before.until, after.t), TOLD_WITHIN, AWAKE_WITHIN);
                sent_late || told_late
            }
        };
        if late {
            found.violation(&case.facts, Check::Lease, || {
                let text = format!(
                    "Replica {} renewed a lease {} after its end",
                    replica.name,
                    duration(after.confirmed.unwrap_or(after.t).saturating_sub(before.until))
                );
                (text, vec![before.line, after.line], About::default())
            });
        }
    }
}

fn whose(case: &Case, publish: &Publish) -> String {
    let replica = at(&case.facts.replicas, publish.replica).map_or("", |replica| &replica.name);
    format!("replica {replica}, batch {} of lane {},", publish.batch, case.lane(publish.grant).0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{SECOND, Story, grant};

    fn call(begun: Nanos, over: Nanos, answer: &str) -> Story {
        let g = grant(0, 1, 1);
        let story = Story::run(false).joined(1, "r", 3 * SECOND).renewed(2 * SECOND, "r", 5 * SECOND);
        let written = ["d", "ambiguous"].contains(&answer);
        let story = story.publish(begun, "r", &g, 1, &["a"]);
        let story = if written { story.writing(begun, "r", &g) } else { story };
        story.answered(over, "r", &g, 1, answer)
    }

    fn violations(story: &Story) -> u64 {
        story.violations(check, Check::Lease)
    }

    #[test]
    fn a_publish_begins_within_the_lease() {
        assert_eq!(violations(&call(4 * SECOND, 5 * SECOND, "d")), 0);
        assert_eq!(violations(&call(5 * SECOND, 5 * SECOND + 1, "d")), 1);
        for harmless in ["lease_over", "cut", "fenced", "down"] {
            assert_eq!(violations(&call(5 * SECOND, 5 * SECOND + 1, harmless)), 0);
        }
    }

    #[test]
    fn what_is_written_late_is_a_breach_whatever_the_answer() {
        let g = grant(0, 1, 1);
        for (looked, expected) in [(5 * SECOND - 1, 0), (5 * SECOND, 1)] {
            for answer in ["lease_over", "cut", "down", "d"] {
                let story = Story::run(false).joined(1, "r", 5 * SECOND).publish(4 * SECOND, "r", &g, 1, &["a"]);
                let story = story.writing(looked, "r", &g).answered(5 * SECOND + 2, "r", &g, 1, answer);
                assert_eq!(violations(&story), expected, "{answer}");
            }
        }
        // What was cut off goes on beside it.
        assert_eq!(violations(&call(4 * SECOND, 5 * SECOND, "cut").writing(5 * SECOND, "r", &g)), 1);
    }

    /// One that was late is not made good by a renewal, and a look after it.
    #[test]
    fn each_look_at_the_clock_counts() {
        let g = grant(0, 1, 1);
        let story = |looked| {
            let story = Story::run(false).joined(1, "r", 5 * SECOND).publish(4 * SECOND, "r", &g, 1, &["a"]);
            let story = story.writing(looked, "r", &g).confirmed(5 * SECOND - 1, 6 * SECOND, "r", 9 * SECOND);
            story.writing(7 * SECOND, "r", &g).answered(8 * SECOND, "r", &g, 1, "d")
        };
        assert_eq!(violations(&story(5 * SECOND)), 0, "it was renewed by then");
        let late = Story::run(false).joined(1, "r", 5 * SECOND).publish(4 * SECOND, "r", &g, 1, &["a"]);
        let late = late.writing(6 * SECOND, "r", &g).renewed(8 * SECOND, "r", 12 * SECOND).writing(9 * SECOND, "r", &g);
        let found = late.answered(10 * SECOND, "r", &g, 1, "d").judged(check);
        let texts: Vec<&str> = found.listed.iter().map(|finding| finding.text.as_str()).collect();
        assert!(texts.iter().any(|text| text.contains("wrote 1000 ms after its lease")), "{texts:?}");
    }

    #[test]
    fn nothing_is_sent_without_a_look_at_the_clock() {
        let g = grant(0, 1, 1);
        let story = Story::run(false).joined(1, "r", 5 * SECOND).publish(10, "r", &g, 1, &["a"]);
        assert_eq!(violations(&story.clone().answered(20, "r", &g, 1, "d")), 1);
        assert_eq!(violations(&story.writing(11, "r", &g).answered(20, "r", &g, 1, "d")), 0);
    }

    #[test]
    fn a_call_without_an_answer_is_of_who_was_killed() {
        let story = || {
            let story = Story::run(false).joined(1, "r", 5 * SECOND);
            story.publish(4 * SECOND, "r", &grant(0, 1, 1), 1, &["a"])
        };
        assert_eq!(violations(&story()), 1);
        assert_eq!(violations(&story().fault("kill_at_point", "r", 5 * SECOND, 6 * SECOND)), 0);
        assert_eq!(violations(&story().fault("kill", "q", 5 * SECOND, 6 * SECOND)), 1);
        let late = story().fault("kill", "r", 7 * SECOND, 7 * SECOND);
        assert_eq!(violations(&late), 1);
        assert_eq!(violations(&late.fault("stop_long", "r", 5 * SECOND, 8 * SECOND)), 0);
    }

    #[test]
    fn a_publish_is_over_soon_after_the_lease() {
        assert_eq!(violations(&call(4 * SECOND, 5 * SECOND + TOLD_WITHIN, "cut")), 0);
        let late = call(4 * SECOND, 5 * SECOND + TOLD_WITHIN + 1, "d");
        assert_eq!(violations(&late), 1);
        let stopped = late.fault("stop", "r", 4 * SECOND + 5, 9 * SECOND).judged(check);
        assert_eq!((stopped.of(Check::Lease), stopped.counts.late_while_stopped), (0, 1));
    }

    #[test]
    fn only_a_stop_that_lasted_excuses() {
        let late = || call(4 * SECOND, 9 * SECOND, "cut");
        let stopped = |from, to| late().fault("stop", "r", from, to);
        assert_eq!(violations(&stopped(4 * SECOND + 1, 9 * SECOND - AWAKE_WITHIN)), 0);
        assert_eq!(violations(&stopped(4 * SECOND + 1, 9 * SECOND - AWAKE_WITHIN - 1)), 1);
        assert_eq!(violations(&stopped(5 * SECOND + TOLD_WITHIN + 1, 9 * SECOND)), 1);
        assert_eq!(
            violations(&stopped(4 * SECOND + 1, 6 * SECOND).fault("stop", "r", 6 * SECOND + TOLD_WITHIN, 9 * SECOND)),
            0
        );
    }

    #[test]
    fn what_a_woken_process_gives_up_at_once_is_no_breach() {
        assert_eq!(violations(&call(9 * SECOND, 9 * SECOND + 1, "cut")), 0);
        assert_eq!(violations(&call(9 * SECOND, 9 * SECOND + 1, "d")), 1);
        assert_eq!(violations(&call(9 * SECOND, 9 * SECOND + TOLD_WITHIN + 1, "cut")), 1);
    }

    #[test]
    fn a_stop_of_another_process_is_no_excuse() {
        let late = || call(4 * SECOND, 7 * SECOND, "d");
        assert_eq!(violations(&late().fault("stop", "q", 4 * SECOND + 5, 9 * SECOND)), 1);
        assert_eq!(violations(&late().fault("slow", "r", 4 * SECOND + 5, 9 * SECOND)), 1);
    }

    #[test]
    fn a_slow_call_may_take_longer_than_one_lease() {
        assert_eq!(violations(&call(SECOND, 7 * SECOND, "d").renewed(4 * SECOND, "r", 8 * SECOND)), 0);
    }

    #[test]
    fn what_has_no_lease_does_not_publish() {
        let story = Story::run(false).published(10, "r", &grant(0, 1, 1), 1, &["a"], "d");
        assert_eq!(violations(&story), 1);
    }

    #[test]
    fn a_lease_that_has_ended_is_not_renewed() {
        let renewed = |t, until| Story::run(false).joined(1, "r", 3 * SECOND).renewed(t, "r", until);
        assert_eq!(violations(&renewed(3 * SECOND, 8 * SECOND)), 0);
        assert_eq!(violations(&renewed(4 * SECOND, 8 * SECOND)), 1);
        let stopped = |until| renewed(4 * SECOND, until).fault("stop", "r", SECOND, 4 * SECOND);
        assert_eq!(violations(&stopped(8 * SECOND)), 0, "it was asked for before the end");
        assert_eq!(violations(&stopped(8 * SECOND + 1)), 1);
    }

    #[test]
    fn the_answer_to_a_renewal_comes_before_the_end_of_the_lease() {
        let g = grant(0, 1, 1);
        for (confirmed, expected) in [(3 * SECOND - 1, 0), (3 * SECOND, 1)] {
            // Told late: what counts is when it was there.
            let story = Story::run(false).joined(1, "r", 3 * SECOND).confirmed(confirmed, 6 * SECOND, "r", 7 * SECOND);
            assert_eq!(violations(&story), expected);
            // What is written in between is late as well.
            let written = story.clone().published(confirmed, "r", &g, 1, &["a"], "d");
            assert_eq!(violations(&written), expected);
            let before = story.published(3 * SECOND + 5, "r", &g, 1, &["a"], "d");
            assert_eq!(violations(&before), expected);
        }
        let story = Story::run(false).joined(1, "r", 3 * SECOND).confirmed(3 * SECOND + 9, 4 * SECOND, "r", 7 * SECOND);
        assert_eq!(violations(&story.published(3 * SECOND + 5, "r", &g, 1, &["a"], "d")), 2);
    }
}
