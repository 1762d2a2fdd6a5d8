//! Tables that others made, adopted as they are: through the real executable, with a role that has what `adopt` grants.

mod beside;
mod blocked;
mod changed;
mod command;
mod contents;
mod crowded;
mod granted;
mod guide;
mod hostile;
mod locked;
mod ordered;
mod refused;
mod settled;
mod shapes;
pub mod stepwise;

use proof::fixture::{Fixture, RELAY};
use proof::on_each_version;
use proof::process::Process;
use serde_json::Value;
use tokio_postgres::Client;

use crate::hand::{SOON, until};
use crate::lines::{arrivals_in, ids_in};

on_each_version!(
    rows_are_delivered_once_and_marked,
    replicas_that_start_together_have_one_relay,
    a_row_that_is_set_back_is_sent_again,
    what_commits_late_is_found,
);

/// A table as applications have it, with a relay that marks.
pub struct Adopted {
    pub fixture: Fixture,
    pub admin: Client,
}

/// How [`TABLE`] is adopted.
pub const SOURCE: &str = r#"
    [relays.orders.source]
    type = "table"
    table = "app.Outbox"
    id = "id"
    order = "created_at"
    key = "site_id"
    topic = "topic"
    payload = "payload"
    created_at = "created_at"
    pending = "published_at is null -- not sent yet"
    mark = { published_at = "now()" }
"#;

/// The lane of a key, as SQL: of four.
pub fn lane_of(key: &str) -> String {
    format!("(hashtextextended({key} collate \"C\", 0) & 3)")
}

/// Rows that wait in other lanes than this site's: a FROM with what follows.
pub fn pending_beside(site: &str) -> String {
    let (of_row, of_site) = (lane_of("site_id"), lane_of(&format!("'{site}'")));
    format!(r#"app."Outbox" where published_at is null and {of_row} <> {of_site}"#)
}

/// The table of most tests.
pub const TABLE: &str = r#"
    create table app."Outbox" (
      id uuid primary key default gen_random_uuid(), site_id text not null, topic text not null, payload jsonb not null,
      created_at timestamptz not null default clock_timestamp(), published_at timestamptz);
    create index on app."Outbox" (created_at, id) where published_at is null;"#;

impl Adopted {
    pub async fn new(major: u32) -> Adopted {
        Adopted::of(Fixture::new(major).await.unwrap()).await
    }

    /// In this database.
    pub async fn of(fixture: Fixture) -> Adopted {
        let grants = r#"grant select, update (published_at) on app."Outbox" to "#;
        Adopted::made(fixture, &format!("{TABLE}; {grants} {RELAY}")).await
    }

    /// Tables of other shapes, in the schema `app`.
    pub async fn with(major: u32, ddl: &str) -> Adopted {
        let grants = format!("grant select, update, delete on all tables in schema app to {RELAY}");
        Adopted::made(Fixture::new(major).await.unwrap(), &format!("{ddl}; {grants}")).await
    }

    async fn made(fixture: Fixture, ddl: &str) -> Adopted {
        let admin = fixture.admin().await.unwrap();
        let ddl = format!("create schema app; grant usage on schema app to {RELAY}; {ddl}");
        admin.batch_execute(&ddl).await.unwrap_or_else(|error| panic!("{error:?} in {ddl}"));
        Adopted { fixture, admin }
    }

    /// A configuration whose sink is a file of each replica's own.
    pub fn to_files(&self, source: &str) -> String {
        let file = self.fixture.folder().join("{name}.jsonl");
        format!(
            "[relays.orders]\nlanes = 4\nsink = {{ type = \"file\", path = {} }}\n{source}",
            proof::fixture::toml_text(&file.to_string_lossy())
        )
    }

    /// Starts a replica that writes to a file of its own.
    pub fn run(&self, name: &str) -> Process {
        self.run_source(name, SOURCE)
    }

    /// The same, of another table.
    pub fn run_source(&self, name: &str, source: &str) -> Process {
        self.fixture.run(name, &self.to_files(source)).unwrap()
    }

    pub async fn insert(&self, count: i32) {
        let sql = r#"insert into app."Outbox" (site_id, topic, payload)
                     select 'site ' || n % 7, 'orders', jsonb_build_object('n', n) from generate_series(1, $1::integer) n"#;
        self.admin.execute(sql, &[&count]).await.unwrap();
    }

    /// Rows of this kind: a FROM with what follows.
    pub async fn count(&self, of: &str) -> i64 {
        let sql = format!("select count(*) from {of}");
        self.admin.query_one(&sql, &[]).await.unwrap_or_else(|error| panic!("{error:?} in {sql}")).get(0)
    }

    pub async fn pending(&self) -> i64 {
        self.count(r#"app."Outbox" where published_at is null"#).await
    }

    pub async fn all_marked(&self) {
        until("all rows are marked", async || self.pending().await == 0).await;
    }

    /// Waits until there are no such rows.
    pub async fn none_is_left(&self, of: &str) {
        until(&format!("none is left: {of}"), async || self.count(of).await == 0).await;
    }

    pub async fn execute(&self, sql: &str) {
        self.admin.batch_execute(sql).await.unwrap_or_else(|error| panic!("{error:?} in {sql}"));
    }

    /// Ids in the files of these replicas, with repeats.
    pub fn arrived(&self, names: &[&str]) -> Vec<String> {
        names.iter().flat_map(|name| ids_in(&self.fixture.folder().join(format!("{name}.jsonl")))).collect()
    }

    /// What has arrived in the file of this replica, as it stands there.
    pub fn lines(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.fixture.folder().join(format!("{name}.jsonl"))).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The statement that a replica's warning says to run.
fn index_in(line: &str) -> &str {
    line.split("make one: ").nth(1).unwrap().rsplit_once(" relay=").unwrap().0
}

async fn end(mut replica: Process) {
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
}

async fn rows_are_delivered_once_and_marked(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.insert(3_000).await;
    let replicas = ["r1", "r2"].map(|name| adopted.run(name));
    adopted.all_marked().await;
    adopted.insert(500).await;
    adopted.all_marked().await;
    for replica in replicas {
        end(replica).await;
    }
    let mut ids = adopted.arrived(&["r1", "r2"]);
    assert_eq!(ids.len(), 3_500);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3_500);
    assert!(ids.iter().all(|id| id.starts_with("orders:")), "{:?}", ids.first());
    let arrivals = arrivals_in(&adopted.fixture.folder().join("r1.jsonl"));
    assert!(!arrivals.is_empty());
}

/// One of them registers it, and the others, which were about to, find it registered.
async fn replicas_that_start_together_have_one_relay(major: u32) {
    let adopted = Adopted::new(major).await;
    let replicas = ["r1", "r2", "r3", "r4"].map(|name| adopted.run(name));
    let mut registered = 0;
    for mut replica in replicas {
        replica.wait_for_line("joined", SOON).await.unwrap();
        registered += replica.lines_with(" registered ").len();
        end(replica).await;
    }
    assert_eq!(registered, 1);
}

async fn a_row_that_is_set_back_is_sent_again(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.insert(10).await;
    let replica = adopted.run("r1");
    adopted.all_marked().await;
    let again = r#"update app."Outbox" set published_at = null where site_id = 'site 3'"#;
    let count = adopted.admin.execute(again, &[]).await.unwrap();
    assert!(count > 0);
    adopted.all_marked().await;
    end(replica).await;
    assert_eq!(adopted.arrived(&["r1"]).len() as u64, 10 + count);
}

/// Its place in the order has long been passed by then.
async fn what_commits_late_is_found(major: u32) {
    let adopted = Adopted::new(major).await;
    let late = adopted.fixture.admin().await.unwrap();
    late.batch_execute(
        r#"begin; insert into app."Outbox" (site_id, topic, payload) values ('late', 'orders', '{}');
           savepoint s; insert into app."Outbox" (site_id, topic, payload) values ('late', 'orders', '{}'); release s"#,
    )
    .await
    .unwrap();
    adopted.insert(100).await;
    let replica = adopted.run("r1");
    adopted.all_marked().await;
    late.batch_execute("commit").await.unwrap();
    assert_eq!(adopted.arrived(&["r1"]).len(), 100);
    adopted.all_marked().await;
    end(replica).await;
    assert_eq!(adopted.arrived(&["r1"]).len(), 102);
}
