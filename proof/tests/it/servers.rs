//! The test servers themselves: they start, hold data over a crash, and never outlive their process.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use proof::process::Process;
use proof::servers::{Binaries, Cluster, Options, shared};

/// Generous: nothing waits this long unless it fails, and a busy machine is slow to start a server.
const SOON: Duration = Duration::from_secs(60);

/// Set in the copy of this test binary that [`a_killed_process_leaves_no_server`] starts and kills.
const VICTIM: &str = "PGBATON_TEST_VICTIM";

#[tokio::test]
async fn version_15_holds_data_over_a_crash() {
    holds_data_over_a_crash(15).await;
}

#[tokio::test]
async fn version_18_holds_data_over_a_crash() {
    holds_data_over_a_crash(18).await;
}

async fn holds_data_over_a_crash(major: u32) {
    let mut cluster = Cluster::start(&Binaries::find(major).unwrap(), Options::default()).await.unwrap();
    let (port, folder) = (cluster.port(), cluster.data_directory());
    assert!(port < 32_768);

    cluster.create_database("it's", None).await.unwrap();
    let client = cluster.admin("it's").await.unwrap();
    client.batch_execute("create table t (n int); insert into t values (7)").await.unwrap();
    drop(client);
    cluster.create_database("copy", Some("it's")).await.unwrap();

    let before = cluster.pid();
    cluster.stop_immediate().await.unwrap();
    assert_eq!(cluster.pid(), None);
    assert!(!listens(port));
    cluster.start_again().await.unwrap();
    assert_ne!(cluster.pid(), before);
    assert_eq!(cluster.port(), port);

    for database in ["it's", "copy"] {
        let client = cluster.admin(database).await.unwrap();
        let row = client.query_one("select n, current_setting('server_version_num')::int from t", &[]).await.unwrap();
        assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1) / 10_000), (7, i32::try_from(major).unwrap()));
    }

    cluster.stop_fast().await.unwrap();
    cluster.start_again().await.unwrap();
    drop(cluster);
    assert!(!listens(port) && !folder.exists());
}

#[tokio::test]
async fn settings_win_over_the_defaults() {
    let settings =
        vec![("max_connections".to_owned(), "20".to_owned()), ("log_line_prefix".to_owned(), "'".to_owned())];
    let options = Options { fsync: true, shared_buffers: "16MB".to_owned(), settings, ..Options::default() };
    let cluster = Cluster::start(&Binaries::find(15).unwrap(), options).await.unwrap();
    let client = cluster.admin("postgres").await.unwrap();
    for (name, value) in
        [("max_connections", "20"), ("fsync", "on"), ("shared_buffers", "16MB"), ("log_line_prefix", "'")]
    {
        let row = client.query_one("select current_setting($1)", &[&name]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), value, "{name}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let settings = vec![("no_such_setting".to_owned(), "1".to_owned())];
    let options = Options { settings, ..Options::default() };
    let error = Cluster::start(&Binaries::find(15).unwrap(), options).await.unwrap_err();
    assert!(error.to_string().contains("no_such_setting"), "{error}");
}

#[tokio::test]
async fn all_tests_share_one_server_per_version() {
    let (first, second) = tokio::join!(shared(15), shared(15));
    assert_eq!(first.unwrap().pid(), second.unwrap().pid());
    assert_ne!(shared(18).await.unwrap().port(), shared(15).await.unwrap().port());
}

/// Starts this test binary again with this one test, which then holds a shared server; kills it with
/// SIGKILL, and looks whether the guard stopped the server and removed its folder.
#[tokio::test]
async fn a_killed_process_leaves_no_server() {
    if let Ok(report) = std::env::var(VICTIM) {
        hold_a_server_until_killed(Path::new(&report)).await;
    }
    let logs = std::env::temp_dir().join(format!("pgbaton-it-{}", std::process::id()));
    std::fs::create_dir_all(&logs).unwrap();
    let report = logs.join("victim.report");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "servers::a_killed_process_leaves_no_server", "--nocapture"]).env(VICTIM, &report);
    let mut victim = Process::start("victim", &logs, command).unwrap();
    victim.wait_for_line("victim holds a server", SOON).await.unwrap();
    let (port, folder) = read_report(&report);
    assert!(listens(port) && folder.exists());

    victim.kill().unwrap();

    let deadline = Instant::now() + SOON;
    while listens(port) || folder.exists() {
        assert!(Instant::now() < deadline, "port {port} or {} is still there", folder.display());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    std::fs::remove_dir_all(&logs).unwrap();
}

async fn hold_a_server_until_killed(report: &Path) -> ! {
    let server = shared(15).await.unwrap();
    std::fs::write(report, format!("{}\n{}", server.port(), server.data_directory().display())).unwrap();
    println!("victim holds a server");
    std::future::pending().await
}

fn read_report(path: &Path) -> (u16, PathBuf) {
    let report = std::fs::read_to_string(path).unwrap();
    let (port, folder) = report.split_once('\n').unwrap();
    (port.parse().unwrap(), PathBuf::from(folder))
}

fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}
