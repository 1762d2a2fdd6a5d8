//! What the checker says of simulated runs.

use std::path::PathBuf;

use checker::history::{Deed, Event};
use checker::{Check, Verdict};

use super::Histories;
use super::relay::Wrong;
use super::stage::{Kind, Stage};

fn simulate(seed: u64, kind: Kind, wrong: Wrong, steps: u32) -> Histories {
    Stage::new(seed, kind, wrong).run(steps)
}

/// The table's owner meddles with its rows.
fn simulate_meddled(seed: u64, kind: Kind, wrong: Wrong, steps: u32) -> Histories {
    let mut stage = Stage::new(seed, kind, wrong);
    stage.meddles = true;
    stage.run(steps)
}

fn judge(name: &str, histories: &Histories) -> Verdict {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for (file, records) in histories {
        let lines: Vec<String> = records.iter().map(|record| serde_json::to_string(record).unwrap() + "\n").collect();
        std::fs::write(folder.join(format!("{file}.history")), lines.concat()).unwrap();
    }
    let verdict = checker::check(&folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    verdict
}

#[test]
fn an_honest_relay_passes() {
    let mut repeats = 0;
    for kind in [Kind::Inbox, Kind::Endpoint, Kind::Files] {
        for seed in 0..6 {
            let histories = simulate(seed, kind, Wrong::Nothing, 1_000);
            let verdict = judge(&format!("honest-{kind:?}-{seed}"), &histories);
            assert!(verdict.passed, "{kind:?} {seed}\n{}", checker::table(&verdict));
            assert!(verdict.counts.messages > 500 && verdict.counts.claims > 8);
            assert_eq!(verdict.counts.repeated > 0, kind != Kind::Inbox);
            repeats += verdict.counts.repeats.sum();
        }
    }
    assert!(repeats > 300);
}

#[test]
fn an_honest_relay_passes_whatever_the_tables_owner_does() {
    for kind in [Kind::Inbox, Kind::Endpoint, Kind::Files] {
        for seed in 0..6 {
            let verdict =
                judge(&format!("meddled-{kind:?}-{seed}"), &simulate_meddled(seed, kind, Wrong::Nothing, 1_000));
            assert!(verdict.passed, "{kind:?} {seed}\n{}", checker::table(&verdict));
            let counts = &verdict.counts;
            let all = [Deed::Locked, Deed::Changed, Deed::Rekeyed, Deed::SetBack, Deed::Deleted];
            assert!(all.iter().all(|deed| counts.meddled.get(deed).is_some_and(|rows| *rows > 20)), "{counts:?}");
            assert!(counts.sent_again > 20 && counts.repeats.set_back > 20 && counts.repeats.rekeyed > 0, "{counts:?}");
            assert!(counts.changes_told > 0 && counts.former_contents > 0, "{counts:?}");
            assert!(counts.deleted_undelivered > 0 && counts.lost == 0, "{counts:?}");
        }
    }
}

/// What excuses something about one row excuses nothing about another, and nothing else about that row.
#[test]
fn a_relay_that_is_wrong_about_rows_that_were_meddled_with_is_caught() {
    for (wrong, check, kind) in [
        (Wrong::PassesWhatWasSetBack, Check::Meddled, Kind::Inbox),
        (Wrong::PassesWhatWasSetBack, Check::Meddled, Kind::Endpoint),
        (Wrong::PassesWhatWasSetBack, Check::Meddled, Kind::Files),
        (Wrong::SendsTwiceWhatWasSetBack, Check::Repeats, Kind::Inbox),
        (Wrong::SendsTwiceWhatWasSetBack, Check::Repeats, Kind::Endpoint),
        (Wrong::LosesWhatWasChanged, Check::Lost, Kind::Endpoint),
        (Wrong::LosesWhatWasRekeyed, Check::Lost, Kind::Inbox),
        (Wrong::SendsWhatWasDeleted, Check::Meddled, Kind::Endpoint),
        (Wrong::SendsFormerContents, Check::Meddled, Kind::Inbox),
        (Wrong::SendsContentsThatWereRolledBack, Check::Meddled, Kind::Files),
        (Wrong::TellsOfNoChange, Check::Meddled, Kind::Endpoint),
        (Wrong::TellsOfChangesThatAreNone, Check::Meddled, Kind::Endpoint),
        // The others are caught as if nobody meddled.
        (Wrong::StartsBehindThePosition, Check::Repeats, Kind::Endpoint),
        (Wrong::SkipsAMessage, Check::Lost, Kind::Inbox),
        (Wrong::SwapsTwo, Check::Order, Kind::Files),
        (Wrong::RepeatsWhileItHasTheLane, Check::Repeats, Kind::Inbox),
        (Wrong::RepeatsWhileItHasTheLane, Check::Repeats, Kind::Endpoint),
        (Wrong::HandsOverWithoutAPosition, Check::Repeats, Kind::Endpoint),
    ] {
        for seed in 0..4 {
            let histories = simulate_meddled(seed, kind, wrong, 700);
            let verdict = judge(&format!("meddled-{wrong:?}-{kind:?}-{seed}"), &histories);
            let mut shown = verdict.violations.iter().filter(|violation| violation.check == check).peekable();
            assert!(shown.peek().is_some(), "{wrong:?} at {kind:?} passed with seed {seed}: {:?}", verdict.violated);
            shown.for_each(|violation| assert!(!violation.history.is_empty(), "{violation:?}"));
        }
    }
}

#[test]
fn a_wrong_relay_is_caught() {
    for (wrong, check, kind) in [
        (Wrong::ClaimsEarly, Check::Exclusive, Kind::Endpoint),
        (Wrong::StartsBehindThePosition, Check::Repeats, Kind::Endpoint),
        (Wrong::StartsBehindThePosition, Check::Repeats, Kind::Files),
        (Wrong::SkipsAMessage, Check::Lost, Kind::Inbox),
        (Wrong::SkipsAMessage, Check::Lost, Kind::Files),
        (Wrong::SwapsTwo, Check::Order, Kind::Inbox),
        (Wrong::SwapsTwo, Check::Order, Kind::Files),
        (Wrong::NeverWaits, Check::InFlight, Kind::Endpoint),
        (Wrong::WritesAnOldPosition, Check::Positions, Kind::Endpoint),
        (Wrong::IgnoresItsLease, Check::Lease, Kind::Endpoint),
        (Wrong::SendsWhatWasRolledBack, Check::Phantom, Kind::Inbox),
        (Wrong::RepeatsWhileItHasTheLane, Check::Repeats, Kind::Endpoint),
        (Wrong::RepeatsWhileItHasTheLane, Check::Repeats, Kind::Inbox),
        (Wrong::HandsOverWithoutAPosition, Check::Repeats, Kind::Endpoint),
        (Wrong::ForgetsPositionsAtAFailOver, Check::Positions, Kind::Endpoint),
        (Wrong::ForgetsPositionsAtAFailOver, Check::Repeats, Kind::Endpoint),
        (Wrong::WritesLateAndIsCut, Check::Lease, Kind::Endpoint),
        (Wrong::RepeatsAcrossASplit, Check::Repeats, Kind::Endpoint),
        (Wrong::LosesALine, Check::Told, Kind::Inbox),
    ] {
        for seed in 0..4 {
            let verdict = judge(&format!("{wrong:?}-{kind:?}-{seed}"), &simulate(seed, kind, wrong, 700));
            let mut shown = verdict.violations.iter().filter(|violation| violation.check == check).peekable();
            assert!(shown.peek().is_some(), "{wrong:?} at {kind:?} passed with seed {seed}: {:?}", verdict.violated);
            shown.for_each(|violation| assert!(!violation.history.is_empty(), "{violation:?}"));
        }
    }
}

/// Changes an honest history in one place.
fn changed(name: &str, kind: Kind, change: impl Fn(&mut Histories)) -> Verdict {
    let mut histories = simulate(3, kind, Wrong::Nothing, 600);
    change(&mut histories);
    judge(name, &histories)
}

#[test]
fn an_arrival_that_is_missing_is_lost() {
    let verdict = changed("missing", Kind::Inbox, |histories| {
        for record in histories.get_mut("stage").unwrap() {
            if let Event::Arrived { ids, .. } = &mut record.event {
                ids.pop();
                return;
            }
        }
    });
    assert_eq!(verdict.violated, [(Check::Lost, 1)].into());
    let shown = &verdict.violations[0].history;
    assert!(shown.windows(2).all(|pair| pair[0].record["t"].as_u64() <= pair[1].record["t"].as_u64()));
    let events: Vec<&str> = shown.iter().filter_map(|shown| shown.record["event"].as_str()).collect();
    assert!(["wrote", "publish", "answered", "ledger"].iter().all(|event| events.contains(event)), "{events:?}");
    assert!(checker::table(&verdict).contains("FAILED, seed 3"));
}

#[test]
fn an_arrival_that_comes_twice_is_a_repeat() {
    let verdict = changed("twice", Kind::Inbox, |histories| {
        for record in histories.get_mut("stage").unwrap() {
            if let Event::Arrived { ids, .. } = &mut record.event {
                ids.extend(ids.first().cloned());
                return;
            }
        }
    });
    assert_eq!(verdict.violated, [(Check::Repeats, 1)].into());
}

#[test]
fn a_history_without_its_end_is_cut_short() {
    let verdict = changed("cut", Kind::Inbox, |histories| {
        histories.get_mut("stage").unwrap().pop();
    });
    assert_eq!(verdict.violated, [(Check::Drained, 1)].into());
}

#[test]
fn a_verdict_can_be_read_back() {
    let verdict = changed("json", Kind::Files, |_| {});
    let text = serde_json::to_string(&verdict).unwrap();
    assert_eq!(serde_json::from_str::<Verdict>(&text).unwrap(), verdict);
}

#[test]
fn a_folder_without_a_history_is_refused() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("empty");
    std::fs::create_dir_all(&folder).unwrap();
    assert!(checker::check(&folder).unwrap_err().to_string().contains("no *.history file"));
}
