//! What processes and the server hold, looked at every few seconds.

use std::sync::Arc;
use std::time::Duration;

use checker::history::Event;

use super::primary::within;
use super::stage::Stage;
use crate::fixture::RELAY;

const EVERY: Duration = Duration::from_secs(5);

/// Until it is dropped.
pub(super) async fn sample(stage: Arc<Stage>) {
    loop {
        for post in &stage.fleet.posts {
            let Some(pid) = post.lock().await.pid() else { continue };
            stage.log.book.tell(Event::Sample {
                name: post.name.clone(),
                pid: Some(pid),
                resident_kib: resident(pid),
                files: files(pid),
                connections: None,
            });
        }
        if let Some(connections) = connections(&stage).await {
            let (name, connections) = ("primary".to_owned(), Some(connections));
            stage.log.book.tell(Event::Sample { name, pid: None, resident_kib: None, files: None, connections });
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Of the relay's role. Nothing while the server does not answer.
async fn connections(stage: &Stage) -> Option<u64> {
    let admin = stage.primary.admin().await.ok()?;
    let sql = format!("select count(*) from pg_stat_activity where usename = '{RELAY}'");
    let row = within(admin.query_one(&sql, &[])).await.ok()?;
    row.try_get::<_, i64>(0).ok().map(i64::unsigned_abs)
}

fn resident(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

fn files(pid: u32) -> Option<u64> {
    Some(std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64)
}
