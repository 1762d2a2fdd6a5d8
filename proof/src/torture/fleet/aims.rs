//! At which fail points a replica's process will stop or kill itself, and which of them it came by.
//!
//! The process tells on its standard error what it does at a fail point, before it does it.

use pgbaton::faults::NAMES;
use rand::RngExt;
use rand::rngs::StdRng;

use crate::process::Process;
use crate::torture::plan::{Plan, SinkKind};

/// What a process says of itself at a fail point: this, verb and name.
const TOLD: &str = "fail point: ";

/// Those that are passed on the way to this sink. An inbox takes a batch in one statement.
fn points(sink: SinkKind) -> Vec<&'static str> {
    NAMES.into_iter().filter(|name| sink != SinkKind::Postgres || *name != "sink.mid_batch").collect()
}

/// For `PGBATON_FAULT`. Half of the processes have some. One that lasts only stops, and has enough for its long life.
pub(super) fn draw(plan: &Plan, lasting: bool, random: &mut StdRng) -> String {
    let (aims, octaves) = if lasting { (10, 16) } else { (3, 11) };
    if !lasting && random.random_bool(0.5) {
        return String::new();
    }
    let points = points(plan.sink);
    let aim = |_| {
        let point = points.get(random.random_range(0..points.len()))?;
        let verb = if random.random_bool(0.2) && !lasting { "kill" } else { "stop" };
        // A lane is opened seldom. All else is passed all the time: now and then at once, and mostly after some time.
        let most = if *point == "lane.fenced" { 3 } else { octaves };
        let least = 1_u64 << random.random_range(0..most);
        let at = random.random_range(least..=least * 2);
        plan.draws(&format!("{verb}_at_point")).then(|| format!("{point}:{verb}:{at}"))
    };
    (0..aims).filter_map(aim).collect::<Vec<String>>().join(",")
}

/// All that it has told so far, each as `stop lane.fenced`.
pub(super) fn told(process: &Process) -> Vec<String> {
    let lines = process.lines_with(TOLD);
    lines.iter().filter_map(|line| Some(line.split_once(TOLD)?.1.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn each_point_of_a_sink_is_drawn_and_who_lasts_only_stops() {
        for sink in [SinkKind::Postgres, SinkKind::Http, SinkKind::File] {
            let plan = Plan::for_tests(1, sink);
            let drawn = |lasting| {
                (0..100).map(|seed| draw(&plan, lasting, &mut StdRng::seed_from_u64(seed))).collect::<Vec<_>>()
            };
            let (lasting, others) = (drawn(true).join(","), drawn(false).join(","));
            for point in points(sink) {
                assert!(lasting.contains(point) && others.contains(&format!("{point}:kill")), "{point}");
            }
            assert!(!lasting.contains("kill"));
            assert_eq!(others.contains("sink.mid_batch"), sink != SinkKind::Postgres);
        }
    }

    #[test]
    fn only_what_was_chosen_is_armed() {
        let all = |kinds: &[&str]| {
            let names: Vec<String> = kinds.iter().map(|kind| (*kind).to_owned()).collect();
            let plan =
                Plan { kinds: crate::torture::faults::chosen(&names).unwrap(), ..Plan::for_tests(1, SinkKind::Http) };
            (0..50).map(|seed| draw(&plan, false, &mut StdRng::seed_from_u64(seed))).collect::<String>()
        };
        assert_eq!(all(&["kill"]), "");
        assert!(!all(&["stop_at_point"]).contains("kill") && all(&["stop_at_point"]).contains("stop"));
    }
}
