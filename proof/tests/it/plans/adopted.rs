//! The statements of an adopted table, with the index that they ask for: what is pending is walked through that one, and
//! rows that are asked for by their ids are found through the index on the id, whatever the statistics say.

use proof::on_each_version;
use tokio_postgres::Client;

use super::explained::{Explained, explain};
use super::state::relay_with;
use super::{HOSTILE, LIMITS, assert_plain, text};
use crate::adopted::Adopted;
use crate::adopted::stepwise::Steps;
use pgbaton::sql::{READ_SETTINGS, SETTINGS};

on_each_version!(
    an_empty_adopted_table,
    many_pending_after_none_was,
    none_pending_after_all_were,
    many_pending_in_a_table_that_was_empty,
);

/// Rows that a look asks for, and rows of a batch.
const LIMIT: u64 = 1_000;
const BATCH: u64 = 120;

async fn an_empty_adopted_table(major: u32) {
    let adopted = Adopted::new(major).await;
    check(&adopted).await;
    analyse(&adopted).await;
    check(&adopted).await;
}

/// As in every outbox that was analysed while all was well, and whose sink then went down.
async fn many_pending_after_none_was(major: u32) {
    let adopted = Adopted::new(major).await;
    insert(&adopted, "now()", 100_000).await;
    analyse(&adopted).await;
    insert(&adopted, "null", 100_000).await;
    check(&adopted).await;
    analyse(&adopted).await;
    check(&adopted).await;
}

async fn none_pending_after_all_were(major: u32) {
    let adopted = Adopted::new(major).await;
    insert(&adopted, "null", 100_000).await;
    analyse(&adopted).await;
    adopted.execute(r#"update app."Outbox" set published_at = now()"#).await;
    insert(&adopted, "null", 10).await;
    check(&adopted).await;
}

async fn many_pending_in_a_table_that_was_empty(major: u32) {
    let adopted = Adopted::new(major).await;
    analyse(&adopted).await;
    insert(&adopted, "null", 100_000).await;
    check(&adopted).await;
}

async fn insert(adopted: &Adopted, published_at: &str, count: u32) {
    adopted
        .execute(&format!(
            r#"alter table app."Outbox" set (autovacuum_enabled = off);
               insert into app."Outbox" (site_id, topic, payload, published_at)
                 select 'site ' || n % 7, 'orders', '{{}}', {published_at} from generate_series(1, {count}) n"#
        ))
        .await;
}

async fn analyse(adopted: &Adopted) {
    adopted.execute(r#"analyze app."Outbox""#).await;
}

/// All statements, with the server's defaults and with everything against them: the same plans, and right ones.
async fn check(adopted: &Adopted) {
    adopted.execute("delete from pgbaton.replica; delete from pgbaton.lane; delete from pgbaton.relay").await;
    adopted.execute("truncate pgbaton.position").await;
    let mut steps = Steps::new(adopted, 1).await;
    steps.open(0, None).await;
    let statements = Statements { texts: steps.source.statements_by_name(), arguments: arguments(adopted).await };
    let calm = statements.plans(&relay_with(&adopted.fixture, &adopted.admin, &[]).await).await;
    let hostile = statements.plans(&relay_with(&adopted.fixture, &adopted.admin, HOSTILE).await).await;
    relay_with(&adopted.fixture, &adopted.admin, &[]).await;
    for ((name, calm), (_, hostile)) in calm.iter().zip(&hostile) {
        // A mark joins a few small tables of pgbaton's own, in any order; of the adopted one all was looked at.
        assert!(*name == "mark" || calm.shape() == hostile.shape(), "{name}: {calm:?} and {hostile:?}");
    }
}

struct Statements {
    texts: Vec<(&'static str, String)>,
    arguments: Arguments,
}

/// Quoted.
struct Arguments {
    mark: Vec<String>,
    ids: String,
}

/// A batch of rows: pending ones, as far as there are any, marked ones, and some that are not there.
async fn arguments(adopted: &Adopted) -> Arguments {
    let sql = r#"
        with ids as ((select id from app."Outbox" where published_at is null limit 100)
                     union all (select id from app."Outbox" where published_at is not null limit 10)
                     union all select gen_random_uuid() from generate_series(1, 10)), n as (select count(*)::int as n from ids)
        select (select array_agg(id)::text from ids), array_fill(0, array[n])::text, array_fill(1, array[n])::text,
               (select owner::text from pgbaton.lane), pgbaton.incarnation(), (select epoch::text from pgbaton.lane)
        from n"#;
    let row = adopted.admin.query_one(sql, &[]).await.unwrap();
    let quoted = |column: usize| format!("'{}'", row.get::<_, &str>(column));
    let one = |column: usize| format!("'{{{}}}'", row.get::<_, &str>(column));
    let versions = "null".to_owned();
    let mark = vec![
        "'orders'".to_owned(),
        quoted(3),
        quoted(4),
        "'{0}'".to_owned(),
        one(5),
        "'{999}'".to_owned(),
        "'{5}'".to_owned(),
        quoted(1),
        versions,
        quoted(0),
    ];
    Arguments { mark, ids: quoted(0) }
}

impl Statements {
    async fn plans(&self, relay: &Client) -> Vec<(&'static str, Explained)> {
        let read = format!("begin isolation level repeatable read read only; {LIMITS}; {SETTINGS}; {READ_SETTINGS}");
        let write = format!(
            "begin isolation level read committed read write; {LIMITS}; {SETTINGS}; {}",
            text("mark_settings").lines().filter(|line| !line.starts_with("--")).collect::<String>()
        );
        let mark: Vec<&str> = self.arguments.mark.iter().map(String::as_str).collect();
        let (limit, ids) = (LIMIT.to_string(), self.arguments.ids.as_str());
        let calls: [(&'static str, &str, &[&str]); 10] = [
            ("look", &read, &["16", "'{}'", &limit, "null", "true"]),
            ("look", &read, &["16", "'{1,7}'", &limit, "null", "true"]),
            ("look", &read, &["16", "'{1,7}'", &limit, "'orders'", "true"]),
            ("look", &read, &["16", "'{1,7}'", &limit, "'orders'", "false"]),
            ("fetch", &read, &["16384", ids]),
            ("mark", &write, &mark),
            ("mark_changed", &write, &[ids]),
            ("still", &write, &[ids]),
            ("still", &read, &[ids]),
            ("behind", &read, &[]),
        ];
        let mut all = Vec::new();
        for (name, begin, arguments) in calls {
            let (_, sql) = self.texts.iter().find(|(found, _)| *found == name).unwrap();
            let plan = explain(relay, begin, sql, arguments).await;
            assert_plain(&plan, name);
            assert_right(&plan, name, arguments.first() == Some(&"16") && arguments.get(1) == Some(&"'{}'"));
            all.push((name, plan));
        }
        all
    }
}

fn assert_right(plan: &Explained, name: &str, of_all_lanes: bool) {
    let walks = matches!(name, "look" | "behind");
    let index = if walks { "Outbox_created_at_id_idx" } else { "Outbox_pkey" };
    let scans =
        || plan.nodes.iter().filter(|node| node.table.as_deref() == Some("Outbox") && node.kind != "ModifyTable");
    assert!(scans().count() > 0, "{name} reads nothing: {plan:?}");
    for scan in scans() {
        let right = matches!(scan.kind.as_str(), "Index Scan" | "Index Only Scan");
        assert!(
            right && scan.index.as_deref() == Some(index),
            "{name} reads by {} {:?}: {plan:?}",
            scan.kind,
            scan.index
        );
    }
    let examined: u64 = scans().map(|scan| scan.examined).sum();
    match name {
        "look" if !of_all_lanes => {}
        "look" => assert!(examined <= LIMIT, "{name} examined {examined}: {plan:?}"),
        "behind" => assert!(examined <= 10_001, "{name} examined {examined}: {plan:?}"),
        _ => assert!(examined <= BATCH, "{name} examined {examined}: {plan:?}"),
    }
    let sorts = plan.nodes.iter().any(|node| node.kind.contains("Sort") && node.gave > BATCH);
    assert!(!sorts && !plan.nodes.iter().any(|node| node.kind.contains("Hash")), "{name}: {plan:?}");
}
