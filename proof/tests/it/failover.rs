//! Fail-over to a streaming standby, under load and with real processes: nothing committed on the new primary is skipped,
//! and an old primary that wakes up is not followed.

use std::path::PathBuf;
use std::time::SystemTime;

use proof::fixture::{Fixture, RELAY};
use proof::on_each_version;
use proof::process::Process;
use proof::servers::{Binaries, Cluster, Options};
use proof::writers::{Verdict, Written};

use crate::daemon::{ANYWHERE, address_of, get, get_until};
use crate::hand::{SOON, until_none};
use crate::lines::arrivals_in;
use load::{Load, books, inbox};

pub mod load;
mod lost;
pub mod read_only;

on_each_version!(no_commit_is_lost_with_a_synchronous_standby);

const TTL: &str = "3s";
const LANES: usize = 8;

/// A primary with a standby, and an inbox on a third server, which does not fail over.
struct Pair {
    fixture: Fixture,
    destination: Fixture,
    primary: Cluster,
    standby: Cluster,
}

impl Pair {
    async fn start(major: u32) -> Pair {
        let primary = Cluster::start(&Binaries::find(major).unwrap(), Options::default()).await.unwrap();
        let fixture = Fixture::on(&primary).await.unwrap();
        load::prepare(&fixture.admin().await.unwrap()).await;
        let standby = primary.standby().await.unwrap();
        let destination = Fixture::new(15).await.unwrap();
        destination.inbox("app.inbox").await.unwrap();
        let fixture = fixture.with_relay_dsn(String::new());
        let mut pair = Pair { fixture, destination, primary, standby };
        let dsn = pair.dsn(RELAY);
        pair.fixture = pair.fixture.with_relay_dsn(dsn);
        pair
    }

    /// Names the old primary first.
    fn dsn(&self, user: &str) -> String {
        let (first, second) = (self.primary.port(), self.standby.port());
        format!("host=127.0.0.1,127.0.0.1 port={first},{second} user={user} dbname={}", self.fixture.database)
    }

    fn load(&self) -> Load {
        Load::start(&format!("{} target_session_attrs=read-write", self.dsn("postgres")))
    }

    /// One relay into the inbox, and one into files, one of each replica: a sink that keeps nothing.
    fn relays(&self) -> String {
        let file = self.fixture.folder().join("{name}.jsonl");
        format!(
            "{ANYWHERE}[lease]\nttl = \"{TTL}\"\n[relays.orders]\nlanes = {LANES}\nsink = {}\n\
             [relays.audit]\nlanes = {LANES}\nsink = {{ type = \"file\", path = {} }}\n",
            self.destination.inbox_sink("app.inbox"),
            proof::fixture::toml_text(&file.to_string_lossy())
        )
    }

    fn run(&self, name: &str) -> Process {
        self.fixture.run(name, &self.relays()).unwrap()
    }

    fn files(&self, names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(|name| self.fixture.folder().join(format!("{name}.jsonl"))).collect()
    }

    /// Waits until everything in this server's books has arrived at both sinks.
    async fn all_there(&self, server: &Cluster, names: &[&str]) -> Written {
        let written = books(server, &self.fixture.database).await;
        let inbox = async || Verdict::of(&written, &inbox(&self.destination).await).lost;
        until_none("messages of the inbox", inbox).await;
        let files = async || {
            let arrivals: Vec<_> = self.files(names).iter().flat_map(|file| arrivals_in(file)).collect();
            Verdict::of(&written, &arrivals).lost
        };
        until_none("messages of the files", files).await;
        written
    }
}

/// Every replica that is asked lives, however bad things are.
async fn all_live(addresses: &[String]) {
    for address in addresses {
        assert_eq!(get(address, "/healthz").await.status, 200);
    }
}

/// Waits until the replicas say that they cannot work, as `docs/metrics.md` has it.
pub async fn none_can_work(addresses: &[String]) {
    for address in addresses {
        let answer = get_until(address, "/readyz", "not ready", |answer| answer.status == 503).await;
        assert_eq!(answer.json()["ready"], false);
        get_until(address, "/metrics", "the lease is over", |answer| {
            answer.body.contains("pgbaton_lease_left_seconds 0.0\n") && answer.body.contains("pgbaton_database_up 0\n")
        })
        .await;
    }
    all_live(addresses).await;
}

pub async fn all_can_work(addresses: &[String]) {
    for address in addresses {
        get_until(address, "/readyz", "ready", |answer| answer.status == 200).await;
        get_until(address, "/metrics", "the database is up", |answer| answer.body.contains("pgbaton_database_up 1\n"))
            .await;
    }
}

async fn no_commit_is_lost_with_a_synchronous_standby(major: u32) {
    let mut pair = Pair::start(major).await;
    pair.primary.wait_for_standby(true).await.unwrap();
    let mut replicas = [pair.run("r1"), pair.run("r2")];
    let load = pair.load();
    load.goes_on(200).await;
    let mut addresses = Vec::new();
    for replica in &mut replicas {
        replica.wait_for_lines("claimed", LANES, SOON).await.unwrap();
        addresses.push(address_of(replica).await);
    }

    let killed = SystemTime::now();
    pair.primary.stop_immediate().await.unwrap();
    none_can_work(&addresses).await;
    pair.standby.promote().await.unwrap();
    let promoted = SystemTime::now();
    all_can_work(&addresses).await;
    load.goes_on(400).await;
    load.stop().await;

    let written = pair.all_there(&pair.standby, &["r1", "r2"]).await;
    let verdict = Verdict::of(&written, &inbox(&pair.destination).await);
    assert!(verdict.is_flawless() && verdict.delivered > 500, "{verdict:?}");
    let normal = load::time_to_normal(&pair.destination, promoted).await;
    let away = promoted.duration_since(killed).unwrap();
    println!(
        "figure: fail-over to a synchronous standby on {major}, ttl {TTL}, promoted after {:.1} s: normal {:.1} s later",
        away.as_secs_f64(),
        normal.as_secs_f64()
    );
    for replica in &mut replicas {
        assert!(replica.exit_status().unwrap().is_none(), "it had to be started again");
    }
}
