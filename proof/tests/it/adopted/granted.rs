//! Least privilege: a role that has what `pgbaton adopt --grants` prints and nothing else delivers and marks, or deletes; and
//! of what is printed for the table nothing is too much.

use proof::fixture::Fixture;
use proof::on_each_version;
use proof::servers::shared;

use super::{Adopted, SOURCE, end};
use crate::hand::SOON;
use crate::lines::ids_in;

on_each_version!(a_role_with_what_is_printed_marks, a_role_with_what_is_printed_deletes);

async fn a_role_with_what_is_printed_marks(major: u32) {
    let kept = "select count(*) from app.\"Outbox\" where published_at is not null";
    with_what_is_printed(major, "narrow_marks", SOURCE, kept).await;
}

async fn a_role_with_what_is_printed_deletes(major: u32) {
    let source = SOURCE.replace("{ published_at = \"now()\" }", "\"delete\"");
    with_what_is_printed(major, "narrow_deletes", &source, "select 40 - count(*) from app.\"Outbox\"").await;
}

#[allow(clippy::cognitive_complexity, reason = "one story, told in its order")]
async fn with_what_is_printed(major: u32, role: &str, source: &str, dealt_with: &str) {
    let mut adopted = Adopted::new(major).await;
    adopted.insert(40).await;
    adopted.admin.batch_execute(&format!("create role {role} login")).await.unwrap();
    let dsn = shared(major).await.unwrap().dsn(&adopted.fixture.database, role);
    let admin_dsn = adopted.fixture.admin_dsn().to_owned();
    adopted.fixture = adopted.fixture.with_relay_dsn(dsn);
    let relays = adopted.to_files(source);
    let file = adopted.fixture.configuration("c", &relays).unwrap();
    let config = file.to_str().unwrap().to_owned();
    let adopt = async |rest: &[&str]| {
        let all = [&["adopt", "app.Outbox", "--config", &config][..], rest].concat();
        adopted.fixture.pgbaton(&all).await.unwrap()
    };
    let printed = adopt(&["--grants", "--role", role, "--dsn", &admin_dsn]).await;
    let printed = String::from_utf8(printed.stdout).unwrap();
    let (table, own) = printed.split_once("\n-- 2.").unwrap();
    let grants: Vec<&str> = table.lines().filter(|line| line.starts_with("grant ")).collect();
    assert_eq!(grants.len(), 3, "{printed}");
    adopted.admin.batch_execute(&format!("--{own}")).await.unwrap();

    // All but one of them: the check says so, and a replica ends before it has delivered anything.
    for missing in &grants {
        let all: String = grants.iter().filter(|grant| grant != &missing).copied().collect();
        adopted.admin.batch_execute(&all).await.unwrap();
        let checked = adopt(&["--check"]).await;
        assert_eq!(checked.status.code(), Some(1), "without {missing}: {}", String::from_utf8_lossy(&checked.stdout));
        let mut replica = adopted.fixture.run("r1", &relays).unwrap();
        assert!(!replica.wait(SOON).await.unwrap().success(), "without {missing}");
        assert!(!replica.lines_with("permission denied").is_empty(), "without {missing}");
        assert!(ids_in(&adopted.fixture.folder().join("r1.jsonl")).is_empty(), "without {missing}");
        let revoke: String =
            grants.iter().map(|grant| grant.replacen("grant", "revoke", 1).replace(" to ", " from ")).collect();
        adopted.admin.batch_execute(&revoke).await.unwrap();
    }

    adopted.admin.batch_execute(table).await.unwrap();
    assert!(adopt(&["--check"]).await.status.success());
    let replica = adopted.fixture.run("r1", &relays).unwrap();
    let count = async || adopted.admin.query_one(dealt_with, &[]).await.unwrap().get::<_, i64>(0);
    crate::hand::until("all rows are dealt with", async || count().await == 40).await;
    end(replica).await;
    assert_eq!(ids_in(&adopted.fixture.folder().join("r1.jsonl")).len(), 40);
    let status = adopted.fixture.pgbaton(&["relays", "list", "--config", &config]).await.unwrap();
    assert!(status.status.success());
    let denied = Fixture::relay(&adopted.fixture).await.unwrap().execute("truncate app.\"Outbox\"", &[]).await;
    assert!(denied.is_err());
}
