//! The lease as its owner counts it.

use std::time::Duration;

use pgbaton::lease::BootInstant;
use pgbaton::relay::Limits;

use crate::gate::{Gate, Match};
use crate::hand::{insert, sql, until};
use crate::recorder::Records;
use crate::replicas::Setup;
use proof::fixture::Fixture;

const TTL: Duration = Duration::from_secs(3);

async fn gate_of(fixture: &Fixture) -> Gate {
    let admin = fixture.admin().await.unwrap();
    let row = admin.query_one("select current_setting('port')::integer", &[]).await.unwrap();
    Gate::start(u16::try_from(row.get::<_, i32>(0)).unwrap()).await
}

/// A renewal's answer that comes late is worth what its sending is worth.
#[tokio::test]
async fn a_lease_runs_from_when_its_renewal_was_sent() {
    let fixture = Fixture::new(15).await.unwrap();
    let gate = gate_of(&fixture).await;
    let beats = gate.note(Match::Contains(vec![sql("renew").to_owned(), sql("join").to_owned()]));
    for _ in 0..20 {
        gate.delay_answer(Match::verb("renew"), TTL / 6);
    }
    let records = Records::default();
    let setup = Setup { ttl: TTL, ..Setup::default() };
    let replica = setup.start(&gate.dsn(fixture.relay_dsn()), "r1", &records.sink("r1", Duration::ZERO));
    let producer = fixture.producer().await.unwrap();
    until("four beats while messages come in", || async {
        insert(&producer, "m", "k", 1).await;
        beats.lock().unwrap().len() >= 5
    })
    .await;
    let beats = beats.lock().unwrap().clone();
    let calls = records.calls();
    // The pauses between the looks above get longer.
    assert!(calls.len() > 20, "{} calls", calls.len());
    for call in &calls {
        let sent = beats.iter().filter(|beat| **beat <= call.began).max().unwrap();
        assert!(call.until <= sent.after(TTL - TTL / 10), "{:?} after its last beat", call.until.since(*sent));
    }
    assert!(replica.is_running());
    replica.kill();
}

/// Cut off from the database, it goes on with what it has until its lease is over, and not a moment longer. Then it
/// starts again as a new replica.
#[tokio::test]
async fn a_replica_without_its_database_stops_when_its_lease_is_over() {
    let fixture = Fixture::new(15).await.unwrap();
    let gate = gate_of(&fixture).await;
    let beats = gate.note(Match::verb("renew"));
    let records = Records::default();
    let limits = Limits { batch_messages: 1, ..Limits::default() };
    let setup = Setup { ttl: TTL, lanes: 1, limits, ..Setup::default() };
    let slow = Duration::from_millis(50);
    let replica = setup.start(&gate.dsn(fixture.relay_dsn()), "r1", &records.sink("r1", slow));
    let producer = fixture.producer().await.unwrap();
    insert(&producer, "m", "k", 2_000).await;
    until("it renews and delivers", || async { beats.lock().unwrap().len() >= 2 && records.count() > 10 }).await;

    gate.freeze(true);
    let frozen = pgbaton::clock::now();
    let over = beats.lock().unwrap().iter().max().unwrap().after(TTL);
    until("the lease is over", || async { pgbaton::clock::now() > over.after(TTL / 3) }).await;
    let began: Vec<BootInstant> = records.calls().iter().map(|call| call.began).collect();
    assert!(began.iter().any(|began| *began > frozen.after(TTL / 3)), "it went on with what it had");
    assert!(began.iter().all(|began| *began < over), "{:?} late", began.last().unwrap().since(over));

    let before = records.count();
    gate.freeze(false);
    until("it starts again", || async { records.count() > before }).await;
    assert!(replica.is_running());
    replica.kill();
}
