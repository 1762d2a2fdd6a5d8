//! Children under a test's hand: what they write is found, and a paused one really stands still.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use proof::process::Process;

const SOON: Duration = Duration::from_secs(10);

fn shell(name: &str, logs: &Path, script: &str) -> Process {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    Process::start(name, logs, command).unwrap()
}

fn folder(test: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("pgbaton-it-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[tokio::test]
async fn finds_lines_on_both_outputs_and_the_exit_status() {
    let logs = folder("lines");
    let mut child = shell("lines", &logs, "echo one a; echo two a >&2; printf half-a; exit 3");
    assert_eq!(child.wait_for_lines("a", 2, SOON).await.unwrap(), ["one a", "two a"]);
    let error = child.wait_for_line("half", SOON).await.unwrap_err().to_string();
    assert!(error.contains("exit status: 3") && error.contains("half-a"), "{error}");
    assert_eq!(child.wait(SOON).await.unwrap().code(), Some(3));
    assert!(child.terminate().is_err());
    std::fs::remove_dir_all(logs).unwrap();
}

#[tokio::test]
async fn a_paused_child_writes_nothing_until_it_goes_on() {
    let logs = folder("pause");
    let mut child = shell("pause", &logs, "trap 'echo bye; exit 0' TERM; while :; do echo tick; done");
    child.wait_for_line("tick", SOON).await.unwrap();
    child.pause().unwrap();
    let paused_at = std::fs::metadata(child.stdout()).unwrap().len();
    assert!(child.wait(Duration::from_millis(100)).await.is_err());
    assert_eq!(std::fs::metadata(child.stdout()).unwrap().len(), paused_at);
    child.terminate().unwrap();
    assert!(child.lines_with("bye").is_empty());
    child.resume().unwrap();
    assert!(child.wait(SOON).await.unwrap().success());
    assert_eq!(child.lines_with("bye"), ["bye"]);
    std::fs::remove_dir_all(logs).unwrap();
}

#[tokio::test]
async fn kill_takes_a_paused_child_too() {
    let logs = folder("kill");
    let mut child = shell("kill", &logs, "echo up; while :; do sleep 1; done");
    child.wait_for_line("up", SOON).await.unwrap();
    child.pause().unwrap();
    child.kill().unwrap();
    assert!(!child.wait(SOON).await.unwrap().success());
    std::fs::remove_dir_all(logs).unwrap();
}
