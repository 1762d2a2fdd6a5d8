//! `/metrics`: what is told, in which words, and that the documents know all of them.

use std::collections::BTreeSet;

use pgbaton::metrics::names::{self, Kind};
use proof::fixture::Fixture;
use proof::on_each_version;
use proof::process::Process;

use super::openmetrics::{self, Family};
use super::{ANYWHERE, SOON, address_of, get, get_until};

on_each_version!(metrics_are_counts_and_no_contents, a_message_that_is_refused_is_counted);

async fn scrape(replica: &mut Process) -> std::collections::BTreeMap<String, Family> {
    let address = address_of(replica).await;
    let answer = get(&address, "/metrics").await;
    assert_eq!(
        (answer.status, answer.content_type.as_str()),
        (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    openmetrics::parse(&answer.body).unwrap_or_else(|problem| panic!("{problem}\n{}", answer.body))
}

async fn metrics_are_counts_and_no_contents(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let relays = format!(
        "{ANYWHERE}[relays.orders]\nsink = {}\n[relays.nobody]\nsink = {{ type = \"discard\" }}\n",
        outbox.file_sink()
    );
    let mut replica = outbox.run("r1", &relays).unwrap();
    replica.wait_for_lines("claimed", 32, SOON).await.unwrap();
    let send =
        "select pgbaton.send('opensesame', '{\"a\": \"hunter2\"}'::json, 'swordfish' || n, '{\"h\": \"hereitcomes\"}')
                from generate_series(1, 500) n";
    outbox.producer().await.unwrap().batch_execute(send).await.unwrap();
    let address = address_of(&mut replica).await;
    get_until(&address, "/metrics", "all is delivered", |answer| {
        ["orders", "nobody"]
            .iter()
            .all(|relay| answer.body.contains(&format!("pgbaton_messages_delivered_total{{relay=\"{relay}\"}} 500\n")))
    })
    .await;
    let text = get(&address, "/metrics").await.body;
    for secret in ["opensesame", "hunter2", "swordfish", "hereitcomes"] {
        assert!(!text.contains(secret), "{secret}");
    }
    let families = scrape(&mut replica).await;
    let told: BTreeSet<String> = families.keys().cloned().collect();
    let total = |name: &names::Name| name.full().trim_end_matches("_total").to_owned();
    assert_eq!(told, names::ALL.iter().map(total).collect());
    for name in names::ALL {
        let family = &families[&total(&name)];
        let kind = match name.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        assert_eq!((family.kind.as_str(), family.help.trim_end_matches('.')), (kind, name.help));
        for sample in family.samples.keys() {
            let labels = sample.split(['{', ',']).skip(1).map(|label| label.split('=').next().unwrap());
            let labels: Vec<&str> = labels.filter(|label| *label != "le").collect();
            assert_eq!(labels, name.labels, "{sample}");
        }
    }
    let value = |family: &str, sample: &str| families[family].samples[sample];
    let took = "pgbaton_commit_to_delivery_seconds";
    assert_eq!(value(took, &format!("{took}_count{{relay=\"orders\"}}")), 500.0);
    let sum = value(took, &format!("{took}_sum{{relay=\"orders\"}}"));
    assert!(sum > 0.0 && sum < 500.0 * SOON.as_secs_f64(), "{sum}");
    assert_eq!(value("pgbaton_lanes_owned", "pgbaton_lanes_owned{relay=\"orders\"}"), 16.0);
    assert_eq!(value("pgbaton_sink_tier", "pgbaton_sink_tier{relay=\"orders\"}"), 5.0);
    let left = value("pgbaton_lease_left_seconds", "pgbaton_lease_left_seconds");
    assert!(left > 0.0 && left <= 4.5, "{left}");
    assert_eq!(value("pgbaton_database_up", "pgbaton_database_up"), 1.0);
    // Two relays, and a fixed number of series for each.
    assert!(families.values().map(|family| family.samples.len()).sum::<usize>() < 100);
}

async fn a_message_that_is_refused_is_counted(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    outbox.inbox("app.inbox").await.unwrap();
    let admin = outbox.admin().await.unwrap();
    admin.batch_execute("alter table app.inbox add constraint no_bad check (topic <> 'bad')").await.unwrap();
    let relays = format!("{ANYWHERE}[relays.orders]\nsink = {}", outbox.inbox_sink("app.inbox"));
    let mut replica = outbox.run("r1", &relays).unwrap();
    let send = "select pgbaton.send('bad', '{}'::json, 'key'); select pgbaton.send('behind it', '{}'::json, 'key')";
    outbox.producer().await.unwrap().batch_execute(send).await.unwrap();
    let address = address_of(&mut replica).await;
    for (metric, value) in [
        ("pgbaton_messages_given_up_total", 1),
        ("pgbaton_messages_rejected_total", 1),
        ("pgbaton_messages_dead", 1),
        ("pgbaton_messages_parked", 1),
        ("pgbaton_lanes_held", 0),
    ] {
        let line = format!("{metric}{{relay=\"orders\"}} {value}\n");
        get_until(&address, "/metrics", &line, |answer| answer.body.contains(&line)).await;
    }
}

/// The table of `docs/metrics.md` and the code say the same.
#[test]
fn the_documents_know_every_metric() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `pgbaton_"));
    let documented: Vec<Vec<String>> = rows
        .map(|row| format!("`pgbaton_{row}").trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect();
    let expected: Vec<Vec<String>> = names::ALL
        .iter()
        .map(|name| {
            let kind = match name.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let labels: Vec<String> = name.labels.iter().map(|label| format!("`{label}`")).collect();
            vec![format!("`{}`", name.full()), kind.to_owned(), labels.join(", "), name.help.to_owned()]
        })
        .collect();
    let first_four: Vec<Vec<String>> = documented.iter().map(|row| row[..4].to_vec()).collect();
    assert_eq!(first_four, expected);
    assert!(documented.iter().all(|row| row.len() == 5 && !row[4].is_empty()), "each says what to do");
}
