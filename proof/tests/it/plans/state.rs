//! Outboxes in states that mislead a planner.

use std::time::Duration;

use proof::fixture::Fixture;
use tokio_postgres::Client;

/// An outbox, its fixture, and the S that was taken before its rows came.
pub(super) struct State {
    outbox: Fixture,
    admin: Client,
}

/// What statements are asked about.
pub(super) struct Facts {
    /// The last number.
    pub(super) ceiling: i64,
    /// Snapshots, quoted: from before all messages, of now, and a later one that sees nothing new.
    pub(super) before: String,
    pub(super) now: String,
    pub(super) later: String,
    /// The straggling transactions as a quoted array: some with rows, some without.
    pub(super) xids: String,
    pub(super) transactions: u64,
    pub(super) transactions_with_rows: u64,
    /// Quoted.
    pub(super) replica: String,
    pub(super) incarnation: String,
}

impl Facts {
    /// Ids to read from: the start, the middle, shortly before the end.
    pub(super) fn places(&self) -> [i64; 3] {
        [0, self.ceiling / 2, (self.ceiling - 10).max(0)]
    }
}

impl State {
    /// A new outbox with one relay, a replica that has been killed, three of its lanes free, and a thousand positions of
    /// each lane. Nothing is ever analysed unasked.
    pub(super) async fn empty(major: u32) -> State {
        let outbox = Fixture::new(major).await.unwrap();
        let mut replica = outbox.run("r1", "[relays.orders]\nsink = { type = \"discard\" }").unwrap();
        replica.wait_for_lines("claimed", 16, Duration::from_secs(30)).await.unwrap();
        replica.kill().unwrap();
        let admin = outbox.admin().await.unwrap();
        for leaf in 0..8 {
            let calm = format!("alter table pgbaton.outbox_{leaf} set (autovacuum_enabled = off)");
            admin.batch_execute(&calm).await.unwrap();
        }
        let positions = "
            update pgbaton.lane set owner = null where lane < 3;
            insert into pgbaton.position (leaf, relay, lane, epoch, seq, batch, consumed, floor, last)
              select (s > 900)::int, 'orders', n, 1, s + 100, s, '1:1:', 0, 0
              from generate_series(0, 15) n, generate_series(1, 1000) s";
        admin.batch_execute(positions).await.unwrap();
        State { outbox, admin }
    }

    /// A connection of the relay's role, with its role set to this in this database.
    pub(super) async fn relay(&self, settings: &[(&str, &str)]) -> Client {
        relay_with(&self.outbox, &self.admin, settings).await
    }

    /// 300,000 messages of 300 transactions in three leaves, ids and leaves in the same order.
    pub(super) async fn grow(&self) {
        let load = "do $$ begin for i in 0..299 loop
            insert into pgbaton.outbox (segment, topic, key, payload_json)
              select i / 100, 'orders', n::text, '{}' from generate_series(1, 1000) n;
            commit; end loop; end $$";
        self.admin.batch_execute(load).await.unwrap();
    }

    /// One transaction with this many messages in two leaves.
    pub(super) async fn bulk_load(&self, rows: u32) {
        let load = format!(
            "insert into pgbaton.outbox (segment, topic, payload_json)
             select n % 2, 'orders', '{{}}' from generate_series(1, {rows}) n"
        );
        self.admin.batch_execute(&load).await.unwrap();
    }

    /// Ten messages, each of its own transaction.
    pub(super) async fn few_rows(&self) {
        for _ in 0..10 {
            self.admin.batch_execute("insert into pgbaton.outbox (segment, topic) values (0, 'orders')").await.unwrap();
        }
    }

    pub(super) async fn analyse(&self) {
        self.admin.batch_execute("analyze pgbaton.outbox").await.unwrap();
        for leaf in 0..8 {
            self.admin.batch_execute(&format!("analyze pgbaton.outbox_{leaf}")).await.unwrap();
        }
    }

    pub(super) async fn truncate(&self) {
        self.admin.batch_execute("truncate pgbaton.outbox").await.unwrap();
    }

    /// Stragglers: the first, the middle and the last transaction that inserted, and ten that did not.
    pub(super) async fn facts(&self) -> Facts {
        let facts = "
            with x as (select distinct xid::text::bigint as xid from pgbaton.outbox),
                 three as (select percentile_disc(array[0, 0.5, 1]) within group (order by xid) as xids from x)
            select (select case when is_called then last_value else 0 end from pgbaton.outbox_id_seq),
                   pg_current_snapshot()::text,
                   coalesce((select array_agg(distinct u) from three, unnest(xids) u), '{}')::bigint[],
                   (select id::text from pgbaton.replica), pgbaton.incarnation(),
                   pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 1";
        let row = self.admin.query_one(facts, &[]).await.unwrap();
        let with_rows: Vec<i64> = row.get(2);
        let xids: Vec<String> = with_rows.iter().copied().chain(100..110).map(|xid| xid.to_string()).collect();
        Facts {
            ceiling: row.get(0),
            before: "'3:3:'".to_owned(),
            now: format!("'{}'", row.get::<_, &str>(1)),
            later: format!("'{0}:{0}:'", row.get::<_, i64>(5)),
            xids: format!("'{{{}}}'", xids.join(",")),
            transactions: u64::try_from(xids.len()).unwrap(),
            transactions_with_rows: u64::try_from(with_rows.len()).unwrap(),
            replica: format!("'{}'", row.get::<_, &str>(3)),
            incarnation: format!("'{}'", row.get::<_, &str>(4)),
        }
    }
}

/// A connection of the relay's role, with its role set to this in this database.
pub(super) async fn relay_with(outbox: &Fixture, admin: &Client, settings: &[(&str, &str)]) -> Client {
    let role = format!("alter role pgbaton_relay in database {}", outbox.database);
    let mut all = format!("{role} reset all;");
    for (name, value) in settings {
        all.push_str(&format!("{role} set {name} = {value};"));
    }
    admin.batch_execute(&all).await.unwrap();
    let client = outbox.relay().await.unwrap();
    for (name, value) in settings {
        let row = client.query_one("select current_setting($1)", &[name]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), value.trim_matches('\''), "{name}");
    }
    client
}
