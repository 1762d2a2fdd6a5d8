//! Writing under a grant: claims, acknowledgements and expiry, and what a frozen owner can still do.

use std::time::Duration;

use pgbaton::lane::Grant;
use pgbaton::source::{Acknowledged, Source};
use proof::on_each_version;

use crate::gate::{Gate, Match};
use crate::hand::{Hand, Holder, SOON, sql, until};

on_each_version!(
    no_acknowledgement_appears_after_the_lane_was_claimed,
    a_frozen_acknowledgement_does_not_keep_the_lane,
    an_acknowledgement_looks_again_once_it_has_its_lock,
    an_acknowledgement_of_another_epoch_writes_nothing,
    an_acknowledgement_of_another_owner_writes_nothing,
    an_acknowledgement_of_another_incarnation_writes_nothing,
    a_claim_takes_only_what_it_saw_free,
    who_was_expired_claims_nothing,
    a_replica_that_has_renewed_is_not_expired,
);

/// A replica that holds lane 0, has read one message of it, and talks through the gate.
async fn owner_with_a_message(hand: &Hand, gate: &Gate, patience: Duration) -> Holder {
    hand.insert("message", "k", 1).await;
    let mut owner = hand.holder_at(&gate.dsn(hand.fixture.relay_dsn()), patience).await;
    owner.open(hand, 0).await;
    owner.drain().await;
    assert_eq!(owner.got, ["message 1"]);
    owner
}

async fn gate_of(hand: &Hand) -> Gate {
    let row = hand.admin.query_one("select current_setting('port')::integer", &[]).await.unwrap();
    Gate::start(u16::try_from(row.get::<_, i32>(0)).unwrap()).await
}

/// The owner freezes between its insert and its commit. Whoever claims the lane must have seen that row, or it must
/// never come.
async fn no_acknowledgement_appears_after_the_lane_was_claimed(major: u32) {
    let hand = Hand::new(major, 1).await;
    let gate = gate_of(&hand).await;
    let mut owner = owner_with_a_message(&hand, &gate, SOON).await;
    let epoch = owner.grant(0).epoch.0;
    let frozen = gate.hold(Match::Is("commit"));
    let next = hand.holder().await;

    let take_over = async {
        frozen.reached().await;
        until("its row is inserted", || async {
            let inserted = "select from pg_stat_activity where datname = current_database()
                            and state = 'idle in transaction' and starts_with(query, $1)";
            let begins: String = sql("acknowledge").chars().take(60).collect();
            !hand.admin.query(inserted, &[&begins]).await.unwrap().is_empty()
        })
        .await;
        assert!(hand.expire(owner_id(&hand).await, 0).await);
        let claimed = hand.claim(next.id, 0, epoch).await;
        let seen = hand.positions(0).await;
        frozen.release();
        (claimed, seen)
    };
    let (answer, (claimed, seen)) = tokio::join!(owner.acknowledge(), take_over);
    answer.unwrap();
    let found = hand.positions(0).await;
    assert!(claimed.is_none() || found == seen, "after the claim {seen:?} became {found:?}");
    assert_eq!(found.len(), seen.len() + 1, "it was committed in the end");
    until("the lane is claimed once nobody writes its position", || async {
        claimed.is_some() || hand.claim(next.id, 0, epoch).await.is_some()
    })
    .await;
}

async fn owner_id(hand: &Hand) -> pgbaton::lane::ReplicaId {
    let sql = "select owner from pgbaton.lane where relay = 'orders' and lane = 0";
    pgbaton::lane::ReplicaId(hand.admin.query_one(sql, &[]).await.unwrap().get(0))
}

/// The lock of a frozen owner goes with its transaction, which the server ends within the owner's patience.
async fn a_frozen_acknowledgement_does_not_keep_the_lane(major: u32) {
    let hand = Hand::new(major, 1).await;
    let gate = gate_of(&hand).await;
    let patience = Duration::from_secs(1);
    let mut owner = owner_with_a_message(&hand, &gate, patience).await;
    let epoch = owner.grant(0).epoch.0;
    let frozen = gate.hold(Match::verb("acknowledge"));
    let next = hand.holder().await;

    let take_over = async {
        frozen.reached().await;
        assert!(hand.expire(owner_id(&hand).await, 0).await);
        let began = tokio::time::Instant::now();
        until("the lane can be claimed", || async { hand.claim(next.id, 0, epoch).await.is_some() }).await;
        frozen.release();
        began.elapsed()
    };
    let (answer, waited) = tokio::join!(owner.acknowledge(), take_over);
    assert!(answer.is_err());
    assert!(waited < 4 * patience, "{waited:?}");
    assert_eq!(hand.positions(0).await.len(), 1, "only the first one, of the registration");
}

/// It waited for its lock while somebody else took the lane: what it saw before does not count.
async fn an_acknowledgement_looks_again_once_it_has_its_lock(major: u32) {
    // The settings of a role or a database must not matter.
    for default in ["repeatable read", "serializable"] {
        let hand = Hand::new(major, 1).await;
        let role = format!(
            "alter role pgbaton_relay in database {} set default_transaction_isolation = '{default}'",
            hand.fixture.database
        );
        hand.admin.batch_execute(&role).await.unwrap();
        let gate = gate_of(&hand).await;
        let mut owner = owner_with_a_message(&hand, &gate, SOON).await;
        let before = hand.positions(0).await;
        let claiming = hand.fixture.admin().await.unwrap();
        claiming
            .batch_execute(
                "begin; select pg_advisory_xact_lock(pgbaton.lane_lock('orders', 0));
                 update pgbaton.lane set owner = null, epoch = epoch + 1",
            )
            .await
            .unwrap();
        let commit = async {
            until("the acknowledgement waits for the lane's lock", || async {
                let waiting = "select from pg_locks where locktype = 'advisory' and not granted
                               and database = (select oid from pg_database where datname = current_database())";
                !hand.admin.query(waiting, &[]).await.unwrap().is_empty()
            })
            .await;
            claiming.batch_execute("commit").await.unwrap();
        };
        let (answer, ()) = tokio::join!(owner.acknowledge(), commit);
        assert!(is_lost(&answer.unwrap(), &owner.grant(0)), "{default}");
        assert_eq!(hand.positions(0).await, before, "{default}");
    }
}

/// The lane went to another replica and came back: what was delivered under the first epoch is not acknowledged now.
async fn an_acknowledgement_of_another_epoch_writes_nothing(major: u32) {
    let hand = Hand::new(major, 1).await;
    let gate = gate_of(&hand).await;
    let owner = owner_with_a_message(&hand, &gate, SOON).await;
    let old = owner.dealt(0);
    hand.give(0, owner.id).await;
    let answer = owner.source.acknowledge(std::slice::from_ref(&old)).await.unwrap();
    assert!(is_lost(&answer, &old.grant));
    assert_eq!(hand.positions(0).await.len(), 1);
}

/// The lane was freed and nobody has claimed it yet: its epoch is still the same.
async fn an_acknowledgement_of_another_owner_writes_nothing(major: u32) {
    let hand = Hand::new(major, 1).await;
    let gate = gate_of(&hand).await;
    let mut owner = owner_with_a_message(&hand, &gate, SOON).await;
    assert!(hand.expire(owner.id, 0).await);
    let answer = owner.acknowledge().await.unwrap();
    assert!(is_lost(&answer, &owner.grant(0)));
    assert_eq!(hand.positions(0).await.len(), 1);
}

/// Transaction ids of another incarnation mean nothing here. It is compared where the row is inserted: told afterwards,
/// it would be too late.
async fn an_acknowledgement_of_another_incarnation_writes_nothing(major: u32) {
    let hand = Hand::new(major, 1).await;
    let gate = gate_of(&hand).await;
    let mut owner = owner_with_a_message(&hand, &gate, SOON).await;
    let mut dealt = owner.dealt(0);
    dealt.next.incarnation.timeline += 1;
    let error = owner.source.acknowledge(&[dealt]).await.unwrap_err();
    assert_eq!(error.code(), "database.other_incarnation", "{error}");
    assert_eq!(hand.positions(0).await.len(), 1);
    // And nothing was broken by the try.
    assert!(
        matches!(owner.acknowledge().await.unwrap().as_slice(), [Acknowledged::Written(lane)] if *lane == hand.lane(0))
    );
}

/// Between the look and the claim somebody else may have claimed the lane.
async fn a_claim_takes_only_what_it_saw_free(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (quick, slow) = (hand.holder().await, hand.holder().await);
    assert_eq!(hand.claim(quick.id, 0, 0).await, Some(1));
    assert_eq!(hand.claim(slow.id, 0, 0).await, None);
    assert_eq!(owner_id(&hand).await, quick.id);
    // Not even if it is the owner's.
    assert_eq!(hand.claim(slow.id, 0, 1).await, None);
    assert_eq!(owner_id(&hand).await, quick.id);
}

/// It stood still after its look, and was expired before its claim.
async fn who_was_expired_claims_nothing(major: u32) {
    let hand = Hand::new(major, 1).await;
    let gone = hand.holder().await;
    hand.admin.batch_execute("delete from pgbaton.replica").await.unwrap();
    assert_eq!(hand.claim(gone.id, 0, 0).await, None);
}

/// Its beat has moved on since it was last seen.
async fn a_replica_that_has_renewed_is_not_expired(major: u32) {
    let hand = Hand::new(major, 1).await;
    let owner = hand.holder().await;
    hand.give(0, owner.id).await;
    hand.admin.batch_execute("update pgbaton.replica set beat = beat + 1").await.unwrap();
    assert!(!hand.expire(owner.id, 0).await);
    assert_eq!(owner_id(&hand).await, owner.id);
    assert!(hand.expire(owner.id, 1).await);
    let freed = hand.admin.query_one("select owner is null from pgbaton.lane", &[]).await.unwrap();
    assert!(freed.get::<_, bool>(0));
}

/// Whether this, and nothing else, was answered.
fn is_lost(answer: &[Acknowledged], grant: &Grant) -> bool {
    matches!(answer, [Acknowledged::LaneLost(lane, epoch)] if (lane, epoch) == (&grant.lane, &grant.epoch))
}
