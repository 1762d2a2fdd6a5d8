//! Every hot statement is planned the one way that was tested, whatever the tables, the statistics and the settings.
//!
//! The statements are prepared and explained in transactions that begin as the relay's do. What counts: a window walks
//! the id index of every leaf, stragglers are found through the index on (xid, id) only, nothing is parallel or
//! compiled, and what is examined is bounded by the limit, not by what lies in the tables.

mod adopted;
mod explained;
mod idle;
mod state;

use explained::{Explained, explain};
use pgbaton::sql::{self, READ_SETTINGS, SETTINGS};
use proof::on_each_version;
use state::{Facts, State};
use tokio_postgres::Client;

/// Rows that a step examines.
const LIMIT: u64 = 1_000;
/// The segments of the outbox: each gives one row more than is used, to merge by.
const LEAVES: u64 = 8;

/// What the relay's role is set to. Each is tried by itself on the first state, and all together on all others.
const HOSTILE: &[(&str, &str)] = &[
    ("enable_indexscan", "off"),
    ("enable_indexonlyscan", "off"),
    ("enable_nestloop", "off"),
    ("enable_seqscan", "on"),
    ("enable_incremental_sort", "off"),
    ("enable_partition_pruning", "off"),
    ("random_page_cost", "100"),
    ("seq_page_cost", "0"),
    ("cpu_index_tuple_cost", "10"),
    ("cpu_tuple_cost", "10"),
    ("effective_cache_size", "'8kB'"),
    ("jit", "on"),
    ("jit_above_cost", "0"),
    ("jit_inline_above_cost", "0"),
    ("jit_optimize_above_cost", "0"),
    ("max_parallel_workers_per_gather", "8"),
    ("parallel_setup_cost", "0"),
    ("parallel_tuple_cost", "0"),
    ("min_parallel_table_scan_size", "0"),
    ("min_parallel_index_scan_size", "0"),
    ("work_mem", "'64kB'"),
    ("plan_cache_mode", "force_generic_plan"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_read_only", "on"),
    ("statement_timeout", "'5s'"),
    ("lock_timeout", "'5s'"),
    ("join_collapse_limit", "1"),
    ("from_collapse_limit", "1"),
    ("geqo_threshold", "2"),
    ("constraint_exclusion", "on"),
    ("enable_partitionwise_join", "on"),
    ("enable_partitionwise_aggregate", "on"),
];

on_each_version!(an_empty_outbox, a_grown_outbox, a_wrongly_analysed_outbox, a_late_bulk_load, each_hostile_setting);

async fn an_empty_outbox(major: u32) {
    let state = State::empty(major).await;
    check_calm_and_hostile(&state).await;
    state.analyse().await;
    check_calm_and_hostile(&state).await;
}

async fn a_grown_outbox(major: u32) {
    let state = State::empty(major).await;
    state.grow().await;
    check_calm_and_hostile(&state).await; // never analysed
    state.analyse().await;
    check_calm_and_hostile(&state).await;
}

/// Statistics of an empty table and ten rows, then 300,000; statistics of 300,000, then none.
async fn a_wrongly_analysed_outbox(major: u32) {
    let state = State::empty(major).await;
    state.analyse().await;
    state.grow().await;
    check_calm_and_hostile(&state).await;
    state.analyse().await;
    state.truncate().await;
    check_calm_and_hostile(&state).await;
    state.few_rows().await;
    check_calm_and_hostile(&state).await;
}

/// A load that had begun before S was taken and commits after it, as the only transaction that the statistics know.
async fn a_late_bulk_load(major: u32) {
    let state = State::empty(major).await;
    let rows = if major == 15 { 1_000_000 } else { 200_000 };
    state.bulk_load(rows).await;
    check_calm_and_hostile(&state).await;
    state.analyse().await;
    state.few_rows().await;
    check_calm_and_hostile(&state).await;
}

/// Each setting by itself, on an outbox where a wrong plan would be the cheaper one.
async fn each_hostile_setting(major: u32) {
    let state = State::empty(major).await;
    state.grow().await;
    state.analyse().await;
    let facts = state.facts().await;
    let calm = reads(&state.relay(&[]).await, &facts).await;
    for setting in HOSTILE {
        let hostile = reads(&state.relay(&[*setting]).await, &facts).await;
        for ((name, calm), (_, hostile)) in calm.iter().zip(&hostile) {
            assert_eq!(calm.shape(), hostile.shape(), "{name} under {setting:?}");
        }
        others(&state.relay(&[*setting]).await, &facts).await;
    }
}

/// All statements, with the server's defaults and with everything against them: the same plans, and right ones.
async fn check_calm_and_hostile(state: &State) {
    let facts = state.facts().await;
    let (calm, hostile) = (state.relay(&[]).await, state.relay(HOSTILE).await);
    let plans = reads(&calm, &facts).await;
    for ((name, calm), (_, hostile)) in plans.iter().zip(&reads(&hostile, &facts).await) {
        assert_eq!(calm.shape(), hostile.shape(), "{name}");
    }
    others(&calm, &facts).await;
    others(&hostile, &facts).await;
    segments(&calm).await;
    segments(&hostile).await;
}

/// What the function does inside is not in the plan of who calls it. Each leaf is looked into once, through an index.
async fn segments(client: &Client) {
    let touched = async || {
        let sql = "select coalesce(sum(seq_scan), 0)::int8, coalesce(sum(idx_scan), 0)::int8,
                          coalesce(sum(idx_tup_fetch), 0)::int8
                   from pg_stat_xact_user_tables where schemaname = 'pgbaton' and relname ~ '^outbox_[0-7]$'";
        let row = client.query_one(sql, &[]).await.unwrap();
        [0, 1, 2].map(|column| row.get::<_, i64>(column))
    };
    // PostgreSQL 18 has once counted a look less than there were: all of them are seen in one of a few tries.
    const TRIES: usize = 3;
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        client.batch_execute("begin").await.unwrap();
        let before = touched().await;
        client.batch_execute("select pgbaton.segments_above(0)").await.unwrap();
        let after = touched().await;
        client.batch_execute("commit").await.unwrap();
        let [whole, looks, rows] = [0, 1, 2].map(|n| after[n] - before[n]);
        assert!(whole == 0 && looks <= 8 && rows <= 8, "{whole} scans, {looks} look-ups, {rows} rows");
        // No look at all if nothing was ever inserted.
        if looks == 8 || looks == 0 {
            return;
        }
        seen.push(looks);
    }
    panic!("look-ups, of 8 or none: {seen:?}");
}

/// The statements that read messages, each checked.
async fn reads(client: &Client, facts: &Facts) -> Vec<(String, Explained)> {
    let mut all = Vec::new();
    let limit = LIMIT.to_string();
    let part = (LIMIT / facts.transactions).to_string();
    for after in facts.places() {
        let (after, upto) = (after.to_string(), facts.ceiling.max(1).to_string());
        for lanes in ["'{}'", "'{1,7}'"] {
            for (consumed, target) in [(&facts.before, &facts.now), (&facts.now, &facts.later)] {
                for segments in ["null", "'{1,5}'"] {
                    for topics in ["'{}'", "'{order%,a}'"] {
                        let window = [&after, &upto, &limit, segments, consumed, target, "16", lanes, "16384", topics];
                        all.push(window_of(client, "window", &window).await);
                    }
                }
            }
            for topics in ["'{}'", "'{order%,a}'"] {
                let stragglers = [&after, &upto, &part, &facts.xids, "16", lanes, "16384", topics];
                all.push(stragglers_of(client, "stragglers", &stragglers, facts).await);
            }
        }
        all.push(window_of(client, "window_end", &[&after, &upto, &limit, "null"]).await);
        all.push(stragglers_of(client, "stragglers_end", &[&after, &upto, &part, &facts.xids], facts).await);
    }
    let message = read(client, "message", &[&facts.ceiling.to_string()]).await;
    assert_scans(&message, "id_idx", "message");
    assert!(message.examined() <= 1, "{message:?}");
    all.push(("message".to_owned(), message));
    all.extend(traces(client, facts).await);
    all
}

/// What `pgbaton trace` asks of the log.
async fn traces(client: &Client, facts: &Facts) -> Vec<(String, Explained)> {
    /// As its file says.
    const LOOKED_AT: u64 = 20_000;
    let number = read(client, "trace_number", &[&facts.ceiling.to_string()]).await;
    assert_scans(&number, "id_idx", "trace_number");
    assert!(number.examined() <= 1, "{number:?}");
    let before = facts.ceiling.max(1).to_string();
    let ahead = read(client, "trace_ahead", &["0", &before, &facts.before, "16", "1"]).await;
    assert_scans(&ahead, "id_idx", "trace_ahead");
    assert!(ahead.examined() <= LOOKED_AT + LEAVES, "{ahead:?}");
    // What no index serves is read from one segment, and as a whole.
    let begin = format!("begin isolation level read committed read only; {LIMITS}; {SETTINGS}");
    let settings = text("trace_settings").replace("$1::text", "'30000'");
    let id = "'00000000-0000-0000-0000-0000000000aa'";
    let found = explain(client, &format!("{begin}; {settings}"), text("trace_message_id"), &["1", id]).await;
    assert_plain(&found, "trace_message_id");
    let scans: Vec<_> = found.outbox_scans().map(|scan| (scan.kind.as_str(), scan.table.as_deref())).collect();
    assert_eq!(scans, [("Seq Scan", Some("outbox_1"))], "{found:?}");
    vec![("trace_number".to_owned(), number), ("trace_ahead".to_owned(), ahead), ("trace_message_id".to_owned(), found)]
}

async fn window_of(client: &Client, verb: &str, arguments: &[&str]) -> (String, Explained) {
    let name = format!("{verb}({})", arguments.join(", "));
    let plan = read(client, verb, arguments).await;
    assert_scans(&plan, "id_idx", &name);
    assert!(!plan.nodes.iter().any(|node| node.kind.contains("Sort")), "{name} sorts: {plan:?}");
    assert!(plan.examined() <= LIMIT + LEAVES, "{name} examined {}: {plan:?}", plan.examined());
    (name, plan)
}

async fn stragglers_of(client: &Client, verb: &str, arguments: &[&str], facts: &Facts) -> (String, Explained) {
    let name = format!("{verb}({})", arguments.join(", "));
    let plan = read(client, verb, arguments).await;
    assert_scans(&plan, "xid_id_idx", &name);
    assert!(plan.returned() <= LIMIT, "{name}: {plan:?}");
    // Each transaction is asked for an equal part of the limit, since nobody knows whose ids come first.
    let most = LIMIT + facts.transactions_with_rows * LEAVES;
    assert!(plan.examined() <= most, "{name} examined {}: {plan:?}", plan.examined());
    let sorted = plan.nodes.iter().filter(|node| node.kind.contains("Sort")).map(|node| node.gave).max();
    assert!(sorted.unwrap_or(0) <= most, "{name} sorts: {plan:?}");
    (name, plan)
}

/// Runs a statement that reads messages.
async fn read(client: &Client, verb: &str, arguments: &[&str]) -> Explained {
    let begin = format!("begin isolation level repeatable read read only; {LIMITS}; {SETTINGS}; {READ_SETTINGS}");
    let plan = explain(client, &begin, text(verb), arguments).await;
    assert_plain(&plan, verb);
    plan
}

/// As the relay's transactions have them.
const LIMITS: &str = "set local statement_timeout = 30000; set local lock_timeout = 30000; \
     set local idle_in_transaction_session_timeout = 30000";

/// The statements of claim, acknowledge and the looks: small tables, and positions through their index.
async fn others(client: &Client, facts: &Facts) {
    let look = format!("begin isolation level read committed read only; {LIMITS}; {SETTINGS}");
    let write = format!("begin isolation level read committed read write; {LIMITS}; {SETTINGS}");
    let Facts { replica, incarnation, .. } = facts;
    let claim = [replica, incarnation, "'{orders,orders}'", "'{1,2}'", "'{1,1}'"];
    let one = "'{1}'";
    let acknowledge = [
        "'orders'",
        replica,
        incarnation,
        "'{3}'",
        one,
        "'{99999}'",
        one,
        "'{5:5:}'",
        one,
        "'{9:9:}'",
        "'{5}'",
        one,
        "7",
        "false",
    ];
    let calls: &[(&str, &str, &[&str])] = &[
        (&look, "target", &[]),
        (&look, "ceiling", &[]),
        (&look, "written", &["7"]),
        (&look, "flushed", &["'0/0'"]),
        (&look, "incarnation", &[]),
        (&look, "newest", &["'orders'", "3"]),
        (&look, "watch", &[]),
        (&look, "status", &[]),
        (&write, "renew", &[replica]),
        (&write, "claim_lock", &["'{orders,orders}'", "'{1,2}'"]),
        (&write, "claim", &claim),
        (&write, "acknowledge_lock", &["'orders'", "'{3,4}'"]),
        (&write, "acknowledge", &acknowledge),
        (&write, "release", &[replica, "'{orders}'", "'{3}'", one]),
        (&write, "expire", &[replica, "0"]),
    ];
    for (begin, verb, arguments) in calls {
        let plan = explain(client, begin, text(verb), arguments).await;
        assert_plain(&plan, verb);
        assert_eq!(
            plan.outbox_scans().filter(|scan| !scan.kind.is_empty()).count(),
            usize::from(counts(verb)),
            "{verb}"
        );
        for node in plan.nodes.iter().filter(|node| node.table.as_deref().is_some_and(|t| t.starts_with("position_"))) {
            // The newest position of a lane and the one before it, in each of the two leaves.
            let of_lanes = match *verb {
                "status" => 16,
                "newest" => 2,
                _ => 1,
            };
            let small = node.table.as_deref() == Some("position_leaf") || node.kind == "ModifyTable";
            assert!(small || node.examined <= 2 * of_lanes, "{verb} reads positions: {plan:?}");
        }
    }
}

/// It reads the sequence, whose name begins like the outbox's.
fn counts(verb: &str) -> bool {
    verb == "ceiling"
}

fn assert_scans(plan: &Explained, index: &str, name: &str) {
    assert!(plan.outbox_scans().count() > 0, "{name} reads no leaf: {plan:?}");
    for scan in plan.outbox_scans() {
        let right = matches!(scan.kind.as_str(), "Index Scan" | "Index Only Scan")
            && scan
                .index
                .as_deref()
                .is_some_and(|found| found == format!("{}_{index}", scan.table.as_deref().unwrap_or("")));
        assert!(right, "{name} reads {:?} by {} {:?}: {plan:?}", scan.table, scan.kind, scan.index);
    }
}

fn assert_plain(plan: &Explained, name: &str) {
    assert!(!plan.jit, "{name} is compiled");
    assert!(!plan.nodes.iter().any(|node| node.kind.starts_with("Gather")), "{name} is parallel: {plan:?}");
}

fn text(verb: &str) -> &'static str {
    sql::ALL.iter().find(|found| found.name == verb).unwrap().sql
}
