//! Positions and numbers that were set back by hand are refused: what follows from them would be a guess.

use pgbaton::source::{Opaque, Opened};
use proof::on_each_version;

use crate::hand::Hand;
use crate::segments::{aside, count, empty, insert_into};

on_each_version!(
    a_position_set_back_by_hand_is_refused,
    a_position_before_what_was_emptied_is_refused,
    what_was_emptied_is_not_sent_again,
    a_relay_registered_anew_does_not_take_the_sinks_word,
    a_straggler_that_was_emptied_is_not_sent_again,
    a_sink_that_lost_its_tail_is_noticed_after_a_fail_over,
);

/// Three messages, delivered and acknowledged one by one; then the newest row says what the first one said.
async fn a_position_set_back_by_hand_is_refused(major: u32) {
    for by_hand in [
        "update pgbaton.position p set consumed = '1:1:', target = null, ceiling = null, floor = 0, last = 0
         where (epoch, seq) = (select epoch, seq from pgbaton.position order by epoch desc, seq desc limit 1)",
        "insert into pgbaton.position (leaf, relay, lane, epoch, seq, batch, consumed, floor, last)
         select leaf, relay, lane, epoch, seq + 1, batch, '1:1:', 0, 0
         from pgbaton.position order by epoch desc, seq desc limit 1",
    ] {
        let hand = Hand::new(major, 1).await;
        let mut owner = hand.holder().await;
        owner.open(&hand, 0).await;
        for _ in 0..3 {
            hand.insert("m", "k", 1).await;
            owner.deliver().await;
        }
        hand.holder().await.open(&hand, 0).await;
        hand.admin.batch_execute(by_hand).await.unwrap();
        let error = hand.holder().await.open_with(&hand, 0, None).await.unwrap_err();
        assert_eq!(error.code(), "refused");
        assert!(error.to_string().contains("changed by hand"), "{error}");
    }
}

/// No earlier row is left to compare with; what was emptied tells.
async fn a_position_before_what_was_emptied_is_refused(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (segment, _) = aside(&hand.admin).await;
    insert_into(&hand.admin, segment, "m", "k", 3).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.deliver().await;
    empty(&hand).await;
    assert_eq!(count(&hand.admin, segment).await, 0);
    hand.holder().await.open(&hand, 0).await;
    hand.admin.batch_execute("delete from pgbaton.position where seq > 0").await.unwrap();
    let error = hand.holder().await.open_with(&hand, 0, None).await.unwrap_err();
    assert!(error.to_string().contains("that were emptied"), "{error}");
}

/// The sink lost its tail, and the outbox no longer has it: said, instead of going on over the gap.
async fn what_was_emptied_is_not_sent_again(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (segment, other) = aside(&hand.admin).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    insert_into(&hand.admin, segment, "kept", "k", 1).await;
    owner.deliver().await;
    let held = Opaque::new(owner.dealt(0).batch, &owner.dealt(0).next);
    insert_into(&hand.admin, other, "lost", "k", 1).await;
    owner.deliver().await;

    // Still there: it goes back, and whoever opens the lane next does not take that for tampering.
    let mut resending = hand.resending().await;
    let opened = resending.open_with(&hand, 0, Some(&held)).await.unwrap();
    assert_eq!(opened, Opened::SinkLost { resend: true, batch: 2, holds: 1 });
    let mut next = hand.holder().await;
    next.open(&hand, 0).await;
    next.deliver().await;
    assert_eq!(next.got, ["lost 1"]);

    empty(&hand).await;
    assert_eq!(count(&hand.admin, other).await, 0);
    let error = hand.resending().await.open_with(&hand, 0, Some(&held)).await.unwrap_err().to_string();
    assert!(error.contains("emptied") || error.contains("no longer in the outbox"), "{error}");
}

/// It was dropped and starts from the beginning: what the sink remembers of the former one says nothing.
async fn a_relay_registered_anew_does_not_take_the_sinks_word(major: u32) {
    let hand = Hand::new(major, 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    hand.insert("m", "k", 3).await;
    owner.drain().await;
    let held = Opaque::new(owner.dealt(0).batch, &owner.dealt(0).next);
    owner.acknowledge().await.unwrap();
    hand.admin
        .batch_execute("delete from pgbaton.position; delete from pgbaton.lane; delete from pgbaton.relay")
        .await
        .unwrap();
    hand.register("orders", false).await;
    let mut next = hand.holder().await;
    let opened = next.open_with(&hand, 0, Some(&held)).await.unwrap();
    assert!(matches!(opened, Opened::Announced { .. }), "{opened:?}");
    next.drain().await;
    assert_eq!(next.got.len(), 3);
}

/// It ran when S was taken, and lay in the segment: S alone does not show that it is gone.
async fn a_straggler_that_was_emptied_is_not_sent_again(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (segment, _) = aside(&hand.admin).await;
    let open = hand.fixture.admin().await.unwrap();
    open.batch_execute("begin").await.unwrap();
    insert_into(&open, segment, "late", "k", 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    hand.insert("m", "k", 1).await;
    owner.deliver().await;
    let held = Opaque::new(owner.dealt(0).batch, &owner.dealt(0).next);
    open.batch_execute("commit").await.unwrap();
    owner.deliver().await;
    assert_eq!(owner.got, ["m 1", "late 1"]);
    empty(&hand).await;
    assert_eq!(count(&hand.admin, segment).await, 0);
    let error = hand.resending().await.open_with(&hand, 0, Some(&held)).await.unwrap_err().to_string();
    assert!(error.contains("no longer in the outbox"), "{error}");
}

/// The sink was restored from a backup that was made before a planned fail-over.
async fn a_sink_that_lost_its_tail_is_noticed_after_a_fail_over(major: u32) {
    let hand = Hand::new(major, 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    hand.insert("kept", "k", 1).await;
    owner.deliver().await;
    let mut before = owner.dealt(0);
    before.next.incarnation.timeline -= 1;
    hand.insert("lost", "k", 1).await;
    owner.deliver().await;
    let held = Opaque::new(before.batch, &before.next);
    let opened = hand.resending().await.open_with(&hand, 0, Some(&held)).await.unwrap();
    assert_eq!(opened, Opened::SinkLost { resend: false, batch: 2, holds: 1 }, "its own position may not be used");
}
