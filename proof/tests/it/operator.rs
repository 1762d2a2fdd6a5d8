//! What operators are given keeps up with the code: each line of the log that asks for attention is in `docs/operate.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    let path = project().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The sources of the product.
fn sources() -> Vec<(PathBuf, String)> {
    let mut folders: Vec<PathBuf> =
        ["crates/pgbaton/src", "crates/pgbaton-cli/src"].map(|folder| project().join(folder)).into();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found
}

/// The string literals of a call whose arguments begin here, up to its closing bracket. A line that ends in `\` goes on.
fn literals(call: &str) -> Vec<String> {
    let (mut found, mut depth) = (Vec::new(), 1_u32);
    let mut chars = call.chars();
    while let Some(c) = chars.next() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => break,
            ')' => depth -= 1,
            '"' => {
                let mut literal = String::new();
                while let Some(c) = chars.next().filter(|c| *c != '"') {
                    match c {
                        '\\' => match chars.next() {
                            Some('\n') => {
                                let rest = chars.as_str();
                                chars = rest.trim_start().chars();
                            }
                            escaped => literal.extend(escaped),
                        },
                        c => literal.push(c),
                    }
                }
                found.push(literal);
            }
            _ => {}
        }
    }
    found
}

/// What a text says besides the values that are put into it.
fn fixed_parts(text: &str) -> Vec<&str> {
    text.split(['{', '}']).step_by(2).map(|part| part.trim_matches([' ', ';', ','])).filter(|p| !p.is_empty()).collect()
}

#[test]
fn every_warning_and_error_is_explained_to_operators() {
    /// Whoever gives the words of a line that has none of its own.
    const GIVES_WORDS: [&str; 3] = [".report(", ".not_taken(", ".until_told("];
    /// Those whose words come from elsewhere: what `Database::warnings` gives.
    const FROM_ELSEWHERE: [&str; 1] = ["{warning}"];
    let explained = read("docs/operate.md");
    let (mut lines, mut missing) = (0, Vec::new());
    for (path, source) in sources() {
        for begin in ["tracing::warn!(", "tracing::error!(", GIVES_WORDS[0], GIVES_WORDS[1]] {
            for (at, _) in source.match_indices(begin) {
                let literals = literals(&source[at + begin.len()..]);
                let Some(text) = literals.last() else { continue }; // words that are handed on
                lines += 1;
                assert!(
                    !fixed_parts(text).is_empty() || text == "{what}" || FROM_ELSEWHERE.contains(&text.as_str()),
                    "{}: where do the words of {text:?} come from?",
                    path.display()
                );
                let unexplained = fixed_parts(text).into_iter().filter(|part| !explained.contains(*part));
                missing.extend(unexplained.map(|part| format!("{}: {part}", path.display())));
            }
        }
    }
    assert!(lines > 20, "{lines} lines were found: the log is written in another way now");
    assert!(missing.is_empty(), "not in docs/operate.md:\n{}", missing.join("\n"));
}

#[test]
fn literals_are_found() {
    let call = "%error, a = f(1), \"the \\\n        first\", g(\"second \\\"x\\\"\")); \"third\"";
    assert_eq!(literals(call), ["the first", "second \"x\""]);
    assert_eq!(fixed_parts("{what}; it {is} so"), ["it", "so"]);
    assert!(fixed_parts("{what}").is_empty());
}

/// Names of metrics in a text: `pgbaton_` and what belongs to it.
fn metrics(text: &str) -> BTreeSet<String> {
    let rest = |at: usize| text[at..].chars().take_while(|c| c.is_ascii_lowercase() || matches!(c, '_')).collect();
    text.match_indices("pgbaton_").map(|(at, _)| rest(at)).collect()
}

/// A test of the daemon compares that page with the code.
#[test]
fn alerts_and_dashboard_use_metrics_that_there_are() {
    let page = read("docs/metrics.md");
    let table: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `pgbaton_")?.split('`').next()).collect();
    assert!(table.len() > 10, "docs/metrics.md has another table now: {table:?}");
    for file in ["contrib/prometheus/alerts.yml", "contrib/grafana/pgbaton.json"] {
        let used = metrics(&read(file));
        assert!(used.len() > 5, "{file}: {used:?}");
        for name in used {
            // A histogram is asked for by its buckets.
            let known = name.strip_suffix("_bucket").unwrap_or(&name).trim_start_matches("pgbaton_");
            assert!(table.contains(&known), "{file}: there is no metric {name}");
        }
    }
    let dashboard: serde_json::Value = serde_json::from_str(&read("contrib/grafana/pgbaton.json")).unwrap();
    assert!(dashboard["panels"].as_array().is_some_and(|panels| !panels.is_empty()));
}

/// What the page of guarantees names is there: tests, mutants, properties of the model, checks of torture runs.
#[test]
fn guarantees_rest_on_what_there_is() {
    let page = read("docs/guarantees.md");
    let mut folders = vec![project().join("proof/tests/it")];
    let mut tests = String::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { tests += &fs::read_to_string(&path).unwrap() }
        }
    }
    let checks = read("proof/checker/src/found.rs");
    let mut named = 0;
    for name in page.split('`').skip(1).step_by(2) {
        let made_of = |allowed: fn(char) -> bool| name.chars().all(allowed);
        let line = page.lines().find(|line| line.contains(&format!("`{name}`"))).unwrap();
        let there = if line.starts_with("- **Torture checks**") {
            checks.contains(&format!("\"{name}\""))
        } else if name.len() > 4 && made_of(|c| c.is_ascii_uppercase() || c == '_') {
            tests.contains(&format!("const {name}:"))
        } else if name.contains('-') && made_of(|c| c.is_ascii_lowercase() || c == '-') {
            project().join(format!("proof/mutants/{name}.toml")).is_file()
        } else if name.matches('_').count() > 1 && made_of(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        {
            tests.contains(&format!("fn {name}("))
        } else {
            continue;
        };
        assert!(there, "docs/guarantees.md: there is no {name}");
        named += 1;
    }
    assert!(named > 100, "{named}");
}

/// Sections of the page that are pointed at are there.
#[test]
fn links_lead_somewhere() {
    for (page, folder) in
        [("README.md", ""), ("docs/operate.md", "docs/"), ("docs/guarantees.md", "docs/"), ("docs/adopt.md", "docs/")]
    {
        let text = read(page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { page.to_owned() } else { format!("{folder}{path}") };
            let headings = read(&target);
            let anchors: Vec<String> = headings
                .lines()
                .filter_map(|line| line.strip_prefix('#').map(|line| line.trim_start_matches('#').trim()))
                .map(|heading| {
                    let kept = heading.to_lowercase().replace(' ', "-");
                    kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
                })
                .collect();
            assert!(anchor.is_empty() || anchors.iter().any(|a| a == anchor), "{page}: {link} leads nowhere");
        }
    }
}
