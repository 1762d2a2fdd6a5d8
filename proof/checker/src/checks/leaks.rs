//! leaks: files, connections and memory do not keep growing over the run.
//!
//! Each process, and the server, is judged by its own samples, after [`WARM_UP`], if there are at least [`FEWEST`] over at least
//! [`SHORTEST`]. They are cut into four quarters. *Files and connections* leak if the least of the last quarter is more than
//! [`SPARE`] above what every other one came down to: its least, or its most where it has fewer than [`MANY`] samples; or, if no
//! quarter's least is below the one's before, above that of the first. What comes and goes with load or with lanes does not do
//! that, what is never closed does.
//!
//! *Memory* of a replica leaks in the same way, by more than [`SPARE_KIB`], if there are many samples; and it is never more than
//! [`MESSAGES_KIB`] above the least of its first minute, which is the process without messages. The server's, which fills its
//! buffers, is not judged.

use std::collections::BTreeMap;
use std::collections::HashSet;

use crate::case::Case;
use crate::facts::Sample;
use crate::found::{About, Check, Found};
use crate::history::Nanos;

const SECOND: Nanos = 1_000_000_000;
/// So long after the first sample of a process nothing is compared.
const WARM_UP: Nanos = 20 * SECOND;
/// The first minute, for memory.
const FIRST: Nanos = 60 * SECOND;
/// Fewer samples are not judged.
const FEWEST: usize = 12;
/// Over less time nothing is judged.
const SHORTEST: Nanos = 60 * SECOND;
/// Of so many samples the least is what a process holds when it has no lane.
const MANY: usize = 30;
/// In a run of this length somebody is judged.
const LONG: Nanos = 120 * SECOND;
/// Files or connections.
const SPARE: u64 = 16;
/// Of a relay's configuration: so many bytes of messages it reads before it waits.
const MEMORY_KIB: u64 = 8 * 1024;
/// What a process gives back at leisure: no more than it reads ahead.
const SPARE_KIB: u64 = MEMORY_KIB;
/// The largest message that writers write.
const MESSAGE_KIB: u64 = 5 * 1024;
/// A relay has at most twice its `memory` and one message (docs/operate.md, Sizing). Of what is under way the sink makes two more
/// copies, the call and the buffer that it is sent from, each of them by a third longer: base64 in JSON.
const MESSAGES_KIB: u64 = (2 * MEMORY_KIB + MESSAGE_KIB) * (3 + 4 + 4) / 3;

pub fn check(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    let replicas: HashSet<u32> = facts.replicas.iter().filter_map(|replica| replica.pid).collect();
    let mut processes: BTreeMap<(&str, Option<u32>), Vec<&Sample>> = BTreeMap::new();
    for sample in &facts.samples {
        processes.entry((&sample.name, sample.pid)).or_default().push(sample);
    }
    for ((name, pid), mut samples) in processes {
        samples.sort_by_key(|sample| (sample.t, sample.line));
        if pid.is_some_and(|pid| replicas.contains(&pid)) {
            memory(case, found, name, &samples);
        }
        let first = samples.first().map_or(0, |sample| sample.t);
        samples.retain(|sample| sample.t >= first.saturating_add(WARM_UP));
        let span = samples.last().zip(samples.first()).map_or(0, |(last, first)| last.t - first.t);
        if samples.len() < FEWEST || span < SHORTEST {
            found.counts.unjudged_processes += 1;
            continue;
        }
        found.counts.judged_processes += 1;
        growth(case, found, (name, "files", SPARE), &samples, |sample| sample.files);
        growth(case, found, (name, "connections", SPARE), &samples, |sample| sample.connections);
        if samples.len() >= 4 * MANY {
            growth(case, found, (name, "KiB of memory", SPARE_KIB), &samples, |sample| sample.resident_kib);
        }
    }
    let lasted = facts.times.iter().max().zip(facts.times.iter().min()).map_or(0, |(last, first)| last - first);
    if lasted >= LONG && found.counts.judged_processes == 0 {
        found.violation(facts, Check::Leaks, || {
            ("Of no process there are enough samples to judge leaks by".to_owned(), Vec::new(), About::default())
        });
    }
}

fn growth(
    case: &Case,
    found: &mut Found,
    (name, what, spare): (&str, &str, u64),
    samples: &[&Sample],
    value: impl Fn(&Sample) -> Option<u64>,
) {
    let known: Vec<(u64, &Sample)> = samples.iter().filter_map(|sample| Some((value(sample)?, *sample))).collect();
    if known.len() < FEWEST {
        return;
    }
    let quarters: Vec<&[(u64, &Sample)]> = known.chunks(known.len().div_ceil(4)).collect();
    let Some((last, others)) = quarters.split_last() else { return };
    let only_rises = quarters.windows(2).all(|pair| match pair {
        [a, b] => least(a).map(|(value, _)| value) <= least(b).map(|(value, _)| value),
        _ => true,
    });
    let before = if only_rises {
        others.first().and_then(|first| at_rest(first))
    } else {
        others.iter().filter_map(|quarter| at_rest(quarter)).max_by_key(|(value, _)| *value)
    };
    let (Some((before, begin)), Some((least, end))) = (before, least(last)) else { return };
    if least > before.saturating_add(spare) {
        found.violation(&case.facts, Check::Leaks, || {
            let text = format!("{name} kept growing: {before} {what} before, at least {least} in the end");
            (text, vec![begin.line, end.line], About::default())
        });
    }
}

fn least<'a>(quarter: &[(u64, &'a Sample)]) -> Option<(u64, &'a Sample)> {
    quarter.iter().min_by_key(|(value, _)| *value).copied()
}

/// What a process held without lanes; what it held at most, if it may have had some all the while.
fn at_rest<'a>(quarter: &[(u64, &'a Sample)]) -> Option<(u64, &'a Sample)> {
    if quarter.len() >= MANY { least(quarter) } else { quarter.iter().max_by_key(|(value, _)| *value).copied() }
}

fn memory(case: &Case, found: &mut Found, name: &str, samples: &[&Sample]) {
    let first = samples.first().map_or(0, |sample| sample.t).saturating_add(FIRST);
    let known: Vec<(u64, &Sample)> =
        samples.iter().filter_map(|sample| Some((sample.resident_kib?, *sample))).collect();
    let least = known.iter().filter(|(_, sample)| sample.t <= first).min_by_key(|(kib, _)| *kib);
    let (Some((least, begin)), Some((most, end))) = (least, known.iter().max_by_key(|(kib, _)| *kib)) else { return };
    let bound = least.saturating_add(MESSAGES_KIB);
    if *most > bound {
        found.violation(&case.facts, Check::Leaks, || {
            let text = format!("{name} held {most} KiB of memory: more than {bound}, by its first minute's {least}");
            (text, vec![begin.line, end.line], About::default())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Event;
    use crate::story::Story;

    /// A sample each five seconds of process 114 (`r`): files, connections, memory.
    fn found(value: impl Fn(u64) -> (u64, u64, u64)) -> Found {
        found_in(60, value)
    }

    fn found_in(samples: u64, value: impl Fn(u64) -> (u64, u64, u64)) -> Found {
        let story = (0..samples).fold(Story::run(false).joined(1, "r", SECOND), |story, nth| {
            let (files, connections, resident) = value(nth);
            let sample = Event::Sample {
                name: "r".into(),
                pid: Some(114),
                resident_kib: Some(resident),
                files: Some(files),
                connections: Some(connections),
            };
            story.at(nth * 5 * SECOND, sample)
        });
        let mut found = Found::default();
        check(&Case::new(story.facts()), &mut found);
        assert_eq!(found.counts.judged_processes, 1);
        found
    }

    #[test]
    fn what_comes_and_goes_is_no_leak() {
        let noisy = found(|nth| (20 + nth * 7 % 50, 5 + nth * 3 % 30, 20_000 + nth * 37 % 13 * 1_000));
        assert_eq!(noisy.of(Check::Leaks), 0);
        let early = found(|nth| (if nth < 15 { 20 } else { 80 }, 5, 20_000));
        assert_eq!(early.of(Check::Leaks), 0);
    }

    #[test]
    fn what_keeps_growing_is_a_leak() {
        assert_eq!(found(|nth| (20 + nth + nth % 5, 5, 20_000)).of(Check::Leaks), 1);
        assert_eq!(found(|nth| (20, 5 + nth, 20_000)).of(Check::Leaks), 1);
        assert_eq!(found(|nth| (if nth < 30 { 20 } else { 80 }, 5, 20_000)).of(Check::Leaks), 1, "in one step");
    }

    /// Of 156 samples the first four are left out, and each quarter has 38.
    #[test]
    fn what_grows_after_it_fell_is_a_leak() {
        let quarters = |least: [u64; 4]| {
            let value = |nth: u64| least[usize::try_from(nth.saturating_sub(4) / 38).unwrap()] + nth % 7 * 5;
            found_in(156, |nth| (value(nth), 5, 20_000)).of(Check::Leaks)
        };
        assert_eq!(quarters([20, 15, 60, 300]), 1);
        assert_eq!(quarters([20, 15, 60, 76]), 0);
        assert_eq!(quarters([20, 15, 60, 77]), 1);
        assert_eq!(quarters([60, 15, 60, 60]), 0);
        // With few samples a quarter may be one in which it always had lanes.
        let few = |least: [u64; 4]| {
            let value = |nth: u64| least[usize::try_from(nth.saturating_sub(4) / 14).unwrap()] + nth % 7 * 10;
            found(|nth| (value(nth), 5, 20_000)).of(Check::Leaks)
        };
        assert_eq!((few([20, 15, 40, 116]), few([20, 15, 40, 117])), (0, 1));
    }

    #[test]
    fn somebody_is_judged_in_a_long_run() {
        let story = |t| Story::run(false).at(t, Event::Calm).violations(check, Check::Leaks);
        assert_eq!((story(LONG - 1), story(LONG)), (0, 1));
    }

    #[test]
    fn memory_is_bounded_by_what_messages_may_take() {
        let most = |kib| found(|nth| (20, 5, if nth % 9 == 5 { kib } else { 12_000 + nth * 37 % 13 * 1_000 }));
        assert_eq!(most(12_000 + MESSAGES_KIB).of(Check::Leaks), 0);
        assert_eq!(most(12_000 + MESSAGES_KIB + 1).of(Check::Leaks), 1);
    }

    #[test]
    fn memory_that_does_not_come_back_is_a_leak() {
        let grown = |kib| found_in(156, |nth| (20, 5, 12_000 + nth * 37 % 13 * 1_000 + nth * kib));
        assert_eq!((grown(30).of(Check::Leaks), grown(150).of(Check::Leaks)), (0, 1));
    }

    #[test]
    fn a_short_life_is_not_judged() {
        let sample = |n| Event::Sample {
            name: "r".into(),
            pid: Some(1),
            resident_kib: None,
            files: Some(n * 100),
            connections: None,
        };
        let story = (0..10).fold(Story::run(false), |story, nth| story.at(nth * SECOND, sample(nth)));
        let mut found = Found::default();
        check(&Case::new(story.facts()), &mut found);
        assert_eq!((found.of(Check::Leaks), found.counts.unjudged_processes), (0, 1));
    }
}
