//! The examples of the library, run as their users would: one sends, one delivers, in two programs.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use proof::fixture::{Fixture, PRODUCER, finish};
use proof::on_each_version;
use proof::process::{self, Process};

const SOON: Duration = Duration::from_secs(60);

on_each_version!(what_one_example_sends_the_other_one_delivers);

/// Cargo builds examples with all targets, in a folder of their own.
fn example(name: &str) -> PathBuf {
    process::executable(&format!("examples/{name}")).unwrap()
}

fn embed(outbox: &Fixture, name: &str) -> Process {
    let mut command = Command::new(example("embed"));
    command.arg(outbox.relay_dsn());
    Process::start(name, outbox.folder(), command).unwrap()
}

async fn send(outbox: &Fixture, order: &str) -> Output {
    finish(Command::new(example("send")).args([outbox.producer_dsn(), order])).await.unwrap()
}

async fn what_one_example_sends_the_other_one_delivers(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let admin = outbox.admin().await.unwrap();
    admin
        .batch_execute(&format!(
            "create schema app; create table app.orders (id bigint primary key, state text not null);
             insert into app.orders values (42, 'new'), (43, 'new');
             grant usage on schema app to {PRODUCER}; grant select, update on app.orders to {PRODUCER}"
        ))
        .await
        .unwrap();

    let sent = send(&outbox, "42").await;
    assert!(sent.status.success(), "{sent:?}");
    let said = String::from_utf8(sent.stdout).unwrap();
    let id = said.trim().strip_prefix("order 42 is paid, message ").unwrap().to_owned();
    // What it did not change it says nothing of.
    assert!(!send(&outbox, "7").await.status.success());
    let state: String = admin.query_one("select state from app.orders where id = 42", &[]).await.unwrap().get(0);
    let row = admin.query_one("select topic, key, payload_json::text from pgbaton.outbox", &[]).await.unwrap();
    let row: (String, String, String) = (row.get(0), row.get(1), row.get(2));
    assert_eq!((state.as_str(), row), ("paid", ("orders.paid".into(), "42".into(), "{\"order\": 42}".into())));

    let mut first = embed(&outbox, "first");
    first.wait_for_line(&format!("orders.paid 42 {id}"), SOON).await.unwrap();
    // Stopped, it gives its lanes back with their positions: the next one repeats nothing and goes on.
    first.terminate().unwrap();
    assert!(first.wait(SOON).await.unwrap().success());
    let mut second = embed(&outbox, "second");
    assert!(send(&outbox, "43").await.status.success());
    second.wait_for_line("orders.paid 43 ", SOON).await.unwrap();
    assert_eq!(second.lines_with("orders.paid").len(), 1);
}
