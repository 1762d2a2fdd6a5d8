//! lease: no publish begins at the end of its replica's lease or later, and none is still running then. A lease that has ended is
//! not renewed.
//!
//! A call is over within [`SLACK`] after the lease: it is cut off at its end, but the machine is busy. A process that was stopped
//! by a signal meanwhile cannot do that; such calls are counted. What was begun too late and sent nothing, since the clock was
//! looked at once more right before, is no breach.

use crate::case::{Case, lines_of_call};
use crate::facts::{Answer, Line, Publish, Replica, at};
use crate::found::{About, Check, Found};
use crate::history::Nanos;
use crate::table::duration;

/// How long after the end of a lease a call may be told to be over, and how much later than known a renewal may be told.
const SLACK: Nanos = 250_000_000;

pub fn check(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    let leases: Vec<Leases> = facts.replicas.iter().map(Leases::new).collect();
    for publish in &facts.publishes {
        let Some(leases) = at(&leases, publish.replica) else { continue };
        begins_within(case, found, leases, publish);
        ends_within(case, found, leases, publish);
    }
    for (number, replica) in (0..).zip(&facts.replicas) {
        not_revived(case, found, number, replica);
    }
}

/// Until when a replica may have known its lease to run, at each moment.
struct Leases(Vec<(Nanos, Nanos, Line)>);

impl Leases {
    fn new(replica: &Replica) -> Self {
        let mut told: Vec<_> = replica.leases.iter().map(|lease| (lease.t, lease.until, lease.line)).collect();
        told.sort_unstable();
        let mut last = (0, 0);
        for (_, until, line) in &mut told {
            last = last.max((*until, *line));
            (*until, *line) = last;
        }
        Self(told)
    }

    /// The end of the lease, and where it is told.
    fn at(&self, t: Nanos) -> Option<(Nanos, Line)> {
        let after = self.0.partition_point(|(told, ..)| *told <= t.saturating_add(SLACK));
        after.checked_sub(1).and_then(|index| self.0.get(index)).map(|(_, until, line)| (*until, *line))
    }
}

fn begins_within(case: &Case, found: &mut Found, leases: &Leases, publish: &Publish) {
    let facts = &case.facts;
    let (until, line) = leases.at(publish.t).map_or((0, None), |(until, line)| (until, Some(line)));
    let sent = match publish.answer {
        Answer::Letters | Answer::Ambiguous => true,
        // The sink may have been found to be down before the clock was looked at.
        Answer::Down => publish.t >= until.saturating_add(SLACK),
        Answer::Refused(_) | Answer::Cut | Answer::None => false,
    };
    if publish.t >= until && sent {
        found.violation(facts, Check::Lease, || {
            let late = duration(publish.t - until);
            let text = match line {
                Some(_) => format!("A publish of {} began {late} after its lease", whose(case, publish)),
                None => format!("A publish of {} began without a lease", whose(case, publish)),
            };
            (text, lines_of_call(publish).into_iter().chain(line).collect(), about(case, publish))
        });
    }
}

fn ends_within(case: &Case, found: &mut Found, leases: &Leases, publish: &Publish) {
    let facts = &case.facts;
    let Some((ended, _)) = publish.answered else { return };
    let Some((until, line)) = leases.at(ended) else { return };
    if ended <= until.saturating_add(SLACK) {
        return;
    }
    // One that was begun by a process which had just woken up, and given up at once: whether it sent something is the other rule.
    if publish.t >= until && ended <= publish.t.saturating_add(SLACK) {
        return;
    }
    if facts.stopped_between(publish.replica, publish.t, ended).is_some() {
        found.counts.late_while_stopped += 1;
        return;
    }
    found.violation(facts, Check::Lease, || {
        let text = format!(
            "A publish of {} was still running {} after its lease",
            whose(case, publish),
            duration(ended - until)
        );
        (text, lines_of_call(publish).into_iter().chain([line]).collect(), about(case, publish))
    });
}

fn not_revived(case: &Case, found: &mut Found, number: u32, replica: &Replica) {
    for pair in replica.leases.windows(2) {
        let [before, after] = pair else { continue };
        let late = after.until > before.until && after.t > before.until.saturating_add(SLACK);
        if late && case.facts.stopped_between(number, before.t, after.t).is_none() {
            found.violation(&case.facts, Check::Lease, || {
                let text = format!(
                    "Replica {} renewed a lease {} after its end",
                    replica.name,
                    duration(after.t - before.until)
                );
                (text, vec![before.line, after.line], About::default())
            });
        }
    }
}

fn whose(case: &Case, publish: &Publish) -> String {
    let replica = at(&case.facts.replicas, publish.replica).map_or("", |replica| &replica.name);
    let lane = at(&case.facts.grants, publish.grant).map_or_else(String::new, crate::table::lane);
    format!("replica {replica}, batch {} of lane {lane},", publish.batch)
}

fn about(case: &Case, publish: &Publish) -> About {
    About { lane: at(&case.facts.grants, publish.grant).cloned(), ..About::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{SECOND, Story, grant};

    fn found(story: &Story) -> Found {
        story.judged(check)
    }

    fn call(begun: Nanos, over: Nanos, answer: &str) -> Story {
        let g = grant(0, 1, 1);
        let story = Story::run(false).joined(1, "r", 3 * SECOND).renewed(2 * SECOND, "r", 5 * SECOND);
        story.publish(begun, "r", &g, 1, &["a"]).answered(over, "r", &g, 1, answer)
    }

    #[test]
    fn a_publish_begins_within_the_lease() {
        assert_eq!(found(&call(4 * SECOND, 5 * SECOND, "d")).of(Check::Lease), 0);
        assert_eq!(found(&call(5 * SECOND, 5 * SECOND + 1, "d")).of(Check::Lease), 1);
        for harmless in ["lease_over", "cut", "fenced", "down"] {
            assert_eq!(found(&call(5 * SECOND, 5 * SECOND + 1, harmless)).of(Check::Lease), 0);
        }
    }

    #[test]
    fn a_publish_is_over_soon_after_the_lease() {
        assert_eq!(found(&call(4 * SECOND, 5 * SECOND + SLACK, "cut")).of(Check::Lease), 0);
        let late = call(4 * SECOND, 5 * SECOND + SLACK + 1, "d");
        assert_eq!(found(&late).of(Check::Lease), 1);
        let stopped = found(&late.fault("stop", "r", 4 * SECOND + 5, 9 * SECOND));
        assert_eq!((stopped.of(Check::Lease), stopped.counts.late_while_stopped), (0, 1));
    }

    #[test]
    fn what_a_woken_process_gives_up_at_once_is_no_breach() {
        assert_eq!(found(&call(9 * SECOND, 9 * SECOND + 1, "cut")).of(Check::Lease), 0);
        assert_eq!(found(&call(9 * SECOND, 9 * SECOND + 1, "d")).of(Check::Lease), 1);
        assert_eq!(found(&call(9 * SECOND, 9 * SECOND + SLACK + 1, "cut")).of(Check::Lease), 1);
    }

    #[test]
    fn a_stop_of_another_process_is_no_excuse() {
        let late = call(4 * SECOND, 7 * SECOND, "d").fault("stop", "q", 4 * SECOND + 5, 9 * SECOND);
        assert_eq!(found(&late).of(Check::Lease), 1);
        let late = call(4 * SECOND, 7 * SECOND, "d").fault("slow", "r", 4 * SECOND + 5, 9 * SECOND);
        assert_eq!(found(&late).of(Check::Lease), 1);
    }

    #[test]
    fn a_slow_call_may_take_longer_than_one_lease() {
        let story = call(SECOND, 7 * SECOND, "d").renewed(4 * SECOND, "r", 8 * SECOND);
        assert_eq!(found(&story).of(Check::Lease), 0);
    }

    #[test]
    fn what_has_no_lease_does_not_publish() {
        let story = Story::run(false).published(10, "r", &grant(0, 1, 1), 1, &["a"], "d");
        assert_eq!(found(&story).of(Check::Lease), 1);
    }

    #[test]
    fn a_lease_that_has_ended_is_not_renewed() {
        let renewed = |t| Story::run(false).joined(1, "r", 3 * SECOND).renewed(t, "r", 9 * SECOND);
        assert_eq!(found(&renewed(3 * SECOND)).of(Check::Lease), 0);
        assert_eq!(found(&renewed(4 * SECOND)).of(Check::Lease), 1);
        assert_eq!(found(&renewed(4 * SECOND).fault("freeze", "r", SECOND, 4 * SECOND)).of(Check::Lease), 0);
    }
}
