//! `pgbaton doctor`: a healthy deployment is told to be one, and each ailment is found, made for real.

mod database;
mod relays;

use std::os::unix::fs::PermissionsExt;

use proof::fixture::Fixture;
use proof::servers::{Binaries, Cluster, Options};
use serde_json::Value;
use tokio::sync::OnceCell;

/// Stands in every DSN of these tests, and in no answer.
const SECRET: &str = "hunter2";

/// All checks, in the order in which they are told.
const CHECKS: [&str; 20] = [
    "configuration",
    "hosts",
    "database",
    "server",
    "clock",
    "settings",
    "role",
    "row_security",
    "transactions",
    "slots",
    "schema",
    "home",
    "outbox",
    "segments",
    "replicas",
    "relays",
    "lanes",
    "set_aside",
    "source",
    "sink",
];

/// A server as one should be, which those of other tests are not: they are quick instead.
async fn server(major: u32) -> &'static Cluster {
    static SERVERS: [OnceCell<Cluster>; 2] = [const { OnceCell::const_new() }; 2];
    let cell = &SERVERS[usize::from(major > 15)];
    let start = || async {
        let options = Options { fsync: true, ..Options::default() };
        Cluster::start(&Binaries::find(major).unwrap(), options).await.unwrap()
    };
    cell.get_or_init(start).await
}

/// A database of its own on it, whose DSN has a password.
async fn fixture(major: u32) -> Fixture {
    with_secret(Fixture::on(server(major).await).await.unwrap())
}

fn with_secret(fixture: Fixture) -> Fixture {
    let dsn = format!("{} password={SECRET}", fixture.relay_dsn());
    fixture.with_relay_dsn(dsn)
}

/// What doctor said.
struct Told {
    code: Option<i32>,
    findings: Vec<Value>,
}

impl Told {
    /// The findings of a check, as level and words, with what to do behind them.
    fn of(&self, check: &str) -> Vec<(&str, String)> {
        let of_check = self.findings.iter().filter(|finding| finding["check"] == check);
        of_check
            .map(|finding| {
                let text = |key: &str| finding[key].as_str().unwrap_or_default();
                (text("level"), format!("{}\n{}", text("what"), text("do")))
            })
            .collect()
    }

    /// There is such a finding that says all of this.
    #[track_caller]
    fn says(&self, check: &str, level: &str, words: &[&str]) {
        let found = self.of(check);
        let fits = |(of, text): &(&str, String)| *of == level && words.iter().all(|word| text.contains(word));
        assert!(found.iter().any(fits), "{check} {level} {words:?}: {found:#?}");
    }

    /// Whatever is worse than this level.
    fn worse_than_notes(&self) -> Vec<&Value> {
        let bad = |finding: &&Value| !matches!(finding["level"].as_str(), Some("ok" | "note"));
        self.findings.iter().filter(bad).collect()
    }
}

/// Runs it twice, as text and as JSON, which have to agree.
async fn doctor(fixture: &Fixture, rest: &str, arguments: &[&str]) -> Told {
    let config = fixture.configuration("doctor", rest).unwrap();
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o600)).unwrap();
    let command = [&["doctor", "-c", config.to_str().unwrap()], arguments].concat();
    let json = fixture.pgbaton(&[&command[..], &["--json"]].concat()).await.unwrap();
    let words = fixture.pgbaton(&command).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    for output in [&json, &words] {
        let all = text(&output.stdout) + &text(&output.stderr);
        assert!(!all.contains(SECRET) && !all.contains("panicked"), "{all}");
    }
    let answer: Value = serde_json::from_slice(&json.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", text(&json.stdout), text(&json.stderr)));
    let told = Told { code: json.status.code(), findings: answer["findings"].as_array().unwrap().clone() };
    let words = text(&words.stdout);
    for finding in &told.findings {
        let (check, level) = (finding["check"].as_str().unwrap(), finding["level"].as_str().unwrap());
        assert!(CHECKS.contains(&check), "{finding}");
        assert!(words.contains(check), "{check}: {words}");
        assert_eq!(level == "ok", finding["do"].is_null(), "{finding}");
    }
    // Each check has its line, in order.
    let lines: Vec<&str> = words.lines().filter_map(|line| line.split_whitespace().nth(1)).take(CHECKS.len()).collect();
    assert_eq!(lines, CHECKS, "{words}");
    let bad = !told.worse_than_notes().is_empty();
    assert_eq!(told.code, Some(i32::from(bad)), "{answer:#}");
    told
}

/// Operators find each check on their page.
#[test]
fn every_check_is_explained() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operate.md");
    let page = std::fs::read_to_string(page).unwrap();
    for check in CHECKS {
        assert!(page.contains(&format!("| `{check}` |")), "{check}");
    }
}
