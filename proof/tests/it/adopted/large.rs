//! Large rows come one by one, and are looked at as closely as small ones.

use proof::on_each_version;

use super::{Adopted, end};
use crate::hand::{SOON, until};

on_each_version!(a_large_row_that_cannot_be_a_message_holds_its_lane);

async fn a_large_row_that_cannot_be_a_message_holds_its_lane(major: u32) {
    let adopted = Adopted::new(major).await;
    let insert = "alter table app.\"Outbox\" alter topic drop not null;
        insert into app.\"Outbox\" (site_id, topic, payload) values ('a', 't', '1');
        insert into app.\"Outbox\" (site_id, topic, payload) values ('a', null, to_jsonb(repeat('secret', 10000)));
        insert into app.\"Outbox\" (site_id, topic, payload) values ('a', 't', '2')";
    adopted.admin.batch_execute(insert).await.unwrap();
    let mut replica = adopted.run("r1");
    let held = replica.wait_for_line("its topic is null", SOON).await.unwrap();
    assert!(held.contains("row orders:") && !held.contains("secret"), "{held}");
    until("the row before it is marked", async || adopted.pending().await == 2).await;
    assert_eq!(adopted.arrived(&["r1"]).len(), 1);
    adopted.admin.batch_execute("update app.\"Outbox\" set topic = 't' where topic is null").await.unwrap();
    adopted.all_marked().await;
    end(replica).await;
    assert_eq!(adopted.arrived(&["r1"]).len(), 3);
}
