//! leaks: files, connections and memory do not keep growing over the run.
//!
//! Each process, and the server, is judged by its own samples, after [`WARM_UP`], if there are at least [`FEWEST`] over at least
//! [`SHORTEST`]. They are cut into four quarters. *Files and connections* leak if the least of no quarter is below the least of the
//! quarter before, and the least of the last is more than [`SPARE`] above the least of the first, or above its most where a
//! quarter has fewer than [`MANY`] samples: what comes and goes with load or with lanes does not do that, what is never closed
//! does. *Memory* of a replica leaks if it is ever above
//! twice the most of its first minute, and [`SPARE_KIB`]; the server's, which fills its buffers, is not judged.

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
/// Memory.
const SPARE_KIB: u64 = 64 * 1024;

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
        growth(case, found, (name, "files"), &samples, |sample| sample.files);
        growth(case, found, (name, "connections"), &samples, |sample| sample.connections);
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
    (name, what): (&str, &str),
    samples: &[&Sample],
    value: impl Fn(&Sample) -> Option<u64>,
) {
    let known: Vec<(u64, &Sample)> = samples.iter().filter_map(|sample| Some((value(sample)?, *sample))).collect();
    if known.len() < FEWEST {
        return;
    }
    let quarters: Vec<&[(u64, &Sample)]> = known.chunks(known.len().div_ceil(4)).collect();
    let least = |quarter: &&[(u64, &Sample)]| quarter.iter().map(|(value, _)| *value).min();
    let grows = quarters.windows(2).all(|pair| matches!(pair, [a, b] if least(a) <= least(b)));
    let (Some(first), Some(last)) = (quarters.first(), quarters.last()) else { return };
    let by_value = |(value, _): &&(u64, &Sample)| *value;
    let before =
        if first.len() >= MANY { first.iter().min_by_key(by_value) } else { first.iter().max_by_key(by_value) };
    let (Some((before, begin)), Some((least, end))) = (before, last.iter().min_by_key(by_value)) else { return };
    if grows && *least > before.saturating_add(SPARE) {
        found.violation(&case.facts, Check::Leaks, || {
            let text = format!("{name} kept growing: {before} {what} in the beginning, at least {least} in the end");
            (text, vec![begin.line, end.line], About::default())
        });
    }
}

fn memory(case: &Case, found: &mut Found, name: &str, samples: &[&Sample]) {
    let first = samples.first().map_or(0, |sample| sample.t).saturating_add(FIRST);
    let known = samples.iter().filter_map(|sample| Some((sample.resident_kib?, *sample)));
    let (early, late): (Vec<_>, Vec<_>) = known.partition(|(_, sample)| sample.t <= first);
    let most = |samples: &[(u64, &Sample)]| {
        samples.iter().max_by_key(|(kib, _)| *kib).map(|(kib, sample)| (*kib, sample.line))
    };
    let (Some((early, begin)), Some((late, end))) = (most(&early), most(&late)) else { return };
    let bound = early.saturating_mul(2).saturating_add(SPARE_KIB);
    if late > bound {
        found.violation(&case.facts, Check::Leaks, || {
            let text = format!("{name} held {late} KiB of memory: more than {bound}, by its first minute's {early}");
            (text, vec![begin, end], About::default())
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
        let story = (0..60).fold(Story::run(false).joined(1, "r", SECOND), |story, nth| {
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

    #[test]
    fn somebody_is_judged_in_a_long_run() {
        let story = |t| Story::run(false).at(t, Event::Calm).violations(check, Check::Leaks);
        assert_eq!((story(LONG - 1), story(LONG)), (0, 1));
    }

    #[test]
    fn memory_is_bounded_by_the_first_minute() {
        assert_eq!(found(|nth| (20, 5, 20_000 + nth * 1_000)).of(Check::Leaks), 0);
        assert_eq!(found(|nth| (20, 5, 20_000 + nth * 3_000)).of(Check::Leaks), 1);
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
