//! `checker FOLDER [--json]`: judges the history in a folder. Exit code 0 if nothing is violated, 1 if something is, 2 if there
//! is nothing to judge.

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: checker FOLDER [--json]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let others: Vec<&String> = arguments.iter().filter(|argument| *argument != "--json").collect();
    match others.as_slice() {
        [folder] if !folder.starts_with('-') => judge(Path::new(folder), json),
        _ => fail(USAGE),
    }
}

fn judge(folder: &Path, json: bool) -> ExitCode {
    let verdict = match checker::check(folder) {
        Ok(verdict) => verdict,
        Err(error) => return fail(&error.to_string()),
    };
    if json {
        match serde_json::to_string_pretty(&verdict) {
            Ok(text) => println!("{text}"),
            Err(error) => return fail(&error.to_string()),
        }
    } else {
        print!("{}", checker::table(&verdict));
    }
    if verdict.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn fail(text: &str) -> ExitCode {
    eprintln!("checker: {text}");
    ExitCode::from(2)
}
