//! What `explain (analyze, format json)` tells of one statement.

use std::fmt;

use serde_json::Value;
use tokio_postgres::{Client, SimpleQueryMessage};

/// A statement as it was run: every node of its plan, the root first. `Debug` shows one line a node.
pub(super) struct Explained {
    pub(super) nodes: Vec<Node>,
    /// Whether expressions were compiled.
    pub(super) jit: bool,
}

/// One node of a plan.
pub(super) struct Node {
    /// Such as `Index Scan`.
    pub(super) kind: String,
    /// The table it reads, if it reads one.
    pub(super) table: Option<String>,
    pub(super) index: Option<String>,
    /// Rows it gave and rows it read and dropped, over all its loops.
    pub(super) examined: u64,
    /// Rows it gave, over all its loops.
    pub(super) gave: u64,
}

impl fmt::Debug for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Node { kind, table, index, examined, gave } in &self.nodes {
            let (table, index) = (table.as_deref().unwrap_or(""), index.as_deref().unwrap_or(""));
            write!(f, "\n  {kind} {table} {index}: examined {examined}, gave {gave}")?;
        }
        Ok(())
    }
}

impl Explained {
    /// The scans of the outbox's leaves.
    pub(super) fn outbox_scans(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.table.as_deref().is_some_and(|table| table.starts_with("outbox")))
    }

    /// Rows of the outbox that were examined.
    pub(super) fn examined(&self) -> u64 {
        self.outbox_scans().map(|node| node.examined).sum()
    }

    /// Rows that came back.
    pub(super) fn returned(&self) -> u64 {
        self.nodes.first().map_or(0, |root| root.gave)
    }

    /// The plan without its figures.
    pub(super) fn shape(&self) -> Vec<(&str, Option<&str>, Option<&str>)> {
        self.nodes.iter().map(|node| (node.kind.as_str(), node.table.as_deref(), node.index.as_deref())).collect()
    }
}

/// Runs a statement with these arguments in a transaction that begins like this, and takes it back.
///
/// A prepared statement's plan is made with its arguments, as an unnamed one's is, unless the settings say otherwise.
pub(super) async fn explain(client: &Client, begin: &str, sql: &str, arguments: &[&str]) -> Explained {
    client.batch_execute(&format!("{begin}; prepare verb as {sql}")).await.unwrap();
    let list = if arguments.is_empty() { String::new() } else { format!("({})", arguments.join(", ")) };
    let explain = format!("explain (analyze, costs off, timing off, format json) execute verb{list}");
    let answer = client.simple_query(&explain).await.unwrap_or_else(|error| panic!("{error:?} in {sql}"));
    client.batch_execute("rollback; deallocate verb").await.unwrap();
    let text: String = answer
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect();
    let root: Value = serde_json::from_str(&text).unwrap();
    let mut nodes = Vec::new();
    collect(&root[0]["Plan"], &mut nodes);
    Explained { nodes, jit: root[0].get("JIT").is_some() }
}

fn collect(plan: &Value, nodes: &mut Vec<Node>) {
    let text = |key: &str| plan[key].as_str().map(str::to_owned);
    // Version 18 gives an average with decimals.
    let number = |key: &str| plan[key].as_f64().unwrap_or_default();
    let loops = number("Actual Loops");
    let total = |each: f64| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of rows")]
        let rows = (each * loops).round() as u64;
        rows
    };
    nodes.push(Node {
        kind: text("Node Type").unwrap(),
        table: text("Relation Name"),
        index: text("Index Name"),
        examined: total(
            number("Actual Rows") + number("Rows Removed by Filter") + number("Rows Removed by Index Recheck"),
        ),
        gave: total(number("Actual Rows")),
    });
    for below in plan["Plans"].as_array().into_iter().flatten() {
        collect(below, nodes);
    }
}
