//! Three replicas are replaced one after the other under load, by a new process or by a new configuration: nothing repeats, not
//! even where the sink would not notice, and lanes are handed over in a moment.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use proof::fixture::{Fixture, toml_text};
use proof::on_each_version;

use super::load::Load;
use super::{RELAY_NAME, Stage, ledger};
use crate::hand::{SOON, until};
use crate::lines::arrivals_in;

on_each_version!(replicas_are_replaced_one_after_the_other, a_configuration_is_changed_one_after_the_other);

const NAMES: [&str; 3] = ["r1", "r2", "r3"];

/// One relay to the inbox, which tells the order and the delay, and one to files, which drop nothing.
fn relays(stage: &Stage, name: &str, limits: &str) -> String {
    let path = stage.fixture.folder().join("{name}.jsonl");
    let files =
        format!("[relays.files]\nsink = {{ type = \"file\", path = {} }}\n", toml_text(&path.to_string_lossy()));
    stage.relays(name, limits) + &files
}

async fn stage_of_three(major: u32) -> (Stage, Load) {
    let mut stage = Stage::new(Fixture::new(major).await.unwrap(), major).await;
    for name in NAMES {
        start(&mut stage, name).await;
    }
    stage.shared_out().await;
    let load = Load::start(stage.fixture.producer_dsn(), 4, Duration::from_millis(25));
    until("messages come in", async || load.committed() > 300).await;
    (stage, load)
}

async fn start(stage: &mut Stage, name: &str) {
    let relays = relays(stage, name, "");
    let process = super::start(&stage.fixture, name, stage.fixture.relay_dsn(), &relays);
    stage.replicas.push(super::Watched::new(process).await);
}

async fn replicas_are_replaced_one_after_the_other(major: u32) {
    let (mut stage, load) = stage_of_three(major).await;
    for name in NAMES {
        let took = stage.replicas.remove(0).terminate().await;
        println!("figure: {name} ended in {} ms", took.as_millis());
        start(&mut stage, name).await;
        stage.shared_out().await;
    }
    finish(stage, load, "a rolling restart").await;
}

async fn a_configuration_is_changed_one_after_the_other(major: u32) {
    let (mut stage, load) = stage_of_three(major).await;
    for (nth, name) in NAMES.into_iter().enumerate() {
        let changed = relays(&stage, name, "batch_messages = 500\nin_flight = 2000");
        stage.fixture.configuration(name, &changed).unwrap();
        let replica = &mut stage.replicas[nth];
        replica.process.hang_up().unwrap();
        replica.process.wait_for_lines("joined", 2, SOON).await.unwrap();
        stage.shared_out().await;
    }
    finish(stage, load, "a rolling change of the configuration").await;
}

async fn finish(mut stage: Stage, load: Load, what: &str) {
    stage.normal(what).await;
    load.end().await;
    let admin = stage.fixture.admin().await.unwrap();
    super::judge(&admin, &stage.inbox, RELAY_NAME).await;
    let delay = "select max(extract(epoch from received_at - created_at))::float8 from app.inbox";
    let longest: f64 = stage.inbox.query_one(delay, &[]).await.unwrap().get(0);
    let gap = "select max(extract(epoch from received_at - before))::float8 from (
                 select received_at, lag(received_at) over (partition by key order by seq) as before
                 from app.inbox where key::int < 100000) g";
    let gap: f64 = stage.inbox.query_one(gap, &[]).await.unwrap().get(0);
    println!(
        "figure: {what}: no message took longer than {longest:.3} s, no key was silent for longer than {gap:.3} s"
    );
    // Half a second on a machine that has nothing else to do. Opening 32 lanes takes seconds on one that has.
    assert!(longest < 30.0, "a hand-over took {longest} s");
    each_once_in_files(&stage).await;
    stage.judge().await;
}

/// Exactly the messages of the ledger, and those of a key in order within each file.
async fn each_once_in_files(stage: &Stage) {
    let ledger = ledger(&stage.fixture.admin().await.unwrap()).await;
    let files = NAMES.map(|name| stage.fixture.folder().join(format!("{name}.jsonl")));
    let count = || files.iter().map(|file| lines(file)).sum::<usize>();
    until("everything is in the files", async || count() >= ledger.len()).await;
    let mut seen: HashMap<String, &Path> = HashMap::new();
    for file in &files {
        let mut newest: HashMap<i32, i64> = HashMap::new();
        for arrival in arrivals_in(file) {
            let (key, n) = ledger.get(&arrival.message_id).expect("nobody committed it");
            let before = newest.insert(*key, *n);
            assert!(before.is_none_or(|before| before < *n), "key {key}: {n} after {before:?} in {}", file.display());
            if let Some(other) = seen.insert(arrival.message_id, file) {
                panic!("delivered twice: to {} and to {}", other.display(), file.display());
            }
        }
    }
    assert_eq!(seen.len(), ledger.len());
}

fn lines(file: &Path) -> usize {
    std::fs::read(file).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
}
