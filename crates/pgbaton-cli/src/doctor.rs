//! `pgbaton doctor`.

use std::fmt::Write;

use pgbaton::config::Config;
use pgbaton::control::doctor::{self, Finding, Level, Report};

use crate::args::DoctorArgs;
use crate::messages::plain;
use crate::{Failure, print, print_json};

/// Every check in one line, then what was found with what to do.
pub(crate) async fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let config = Config::load(&args.config, std::env::vars_os())?;
    let report = Box::pin(doctor::examine(config, &args.config, args.long)).await?;
    if args.json { print_json(&report) } else { print(&in_words(&report)) }?;
    if report.is_good() { Ok(()) } else { Err(Failure::Found) }
}

fn in_words(report: &Report) -> String {
    let mut text = String::new();
    for (check, level) in report.checks() {
        let found: Vec<&Finding> = report.findings.iter().filter(|finding| finding.check == check).collect();
        let what = match found.as_slice() {
            [one] if level == Level::Ok => one.what.clone(),
            all if level == Level::Ok => all.iter().map(|finding| finding.what.as_str()).collect::<Vec<_>>().join("; "),
            _ => match found.iter().filter(|finding| finding.level > Level::Ok).count() {
                // What is not known says so at once: a reader looks for the one line that is not like the others.
                1 if found.iter().all(|finding| finding.what.starts_with("not known")) => {
                    "not known, see below".to_owned()
                }
                1 => "see below".to_owned(),
                several => format!("{several} findings, see below"),
            },
        };
        let _ = writeln!(text, "{:<8} {check:<14} {}", word(level), lines(&what));
    }
    for Finding { check, level, what, remedy } in report.findings.iter().filter(|finding| finding.level > Level::Ok) {
        let _ = writeln!(text, "\n{} {check}\n  {}", word(*level), lines(what));
        if let Some(remedy) = remedy {
            let _ = writeln!(text, "  do: {}", lines(remedy));
        }
    }
    text
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Note => "note",
        Level::Warning => "warning",
        Level::Problem => "problem",
    }
}

/// Names of sessions, slots and tables are others' words. What goes on in another line stays under its finding.
fn lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_come_first_and_then_what_to_do() {
        let finding = |check, level, what: &str, remedy: Option<&str>| Finding {
            check,
            level,
            what: what.to_owned(),
            remedy: remedy.map(str::to_owned),
        };
        let report = Report {
            findings: vec![
                finding("hosts", Level::Ok, "a:1 takes writes", None),
                finding("slots", Level::Warning, "slot \u{1b}x is\nused by nobody", Some("drop it")),
                finding("slots", Level::Note, "slot y is lost", None),
            ],
        };
        let expected = "ok       hosts          a:1 takes writes\n\
                        warning  slots          2 findings, see below\n\
                        \nwarning slots\n  slot \u{fffd}x is\n  used by nobody\n  do: drop it\n\
                        \nnote slots\n  slot y is lost\n";
        assert_eq!(in_words(&report), expected);
    }
}
