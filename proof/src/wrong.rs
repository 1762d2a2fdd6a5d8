//! Wrong relays: each breaks one rule, to show that the judge of a torture run (`proof/checker`) catches whoever breaks it.
//!
//! Each file `proof/wrong/NAME.toml` is one wrong relay: why it is wrong, and which texts of which files are replaced by what.
//! All of them are put into one copy of the tree below `target` and built into one executable, which is right until it is
//! told to be wrong: in a replacement `IS_WRONG` stands for a question that is true for the relay of that name only, in
//! Rust whether `PGBATON_WRONG` names it, in SQL whether the setting `pgbaton.wrong` does. The tree itself stays as it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use serde::Deserialize;

use crate::Error;
use crate::process;
use crate::tree::{COPIED, Tree, target};

/// Where they are, from the project's folder.
const FOLDER: &str = "proof/wrong";

/// What a replacement asks.
const QUESTION: &str = "IS_WRONG";

/// One file of [`FOLDER`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wrong {
    /// What is broken, and what comes of it. For the reader.
    #[serde(rename = "why")]
    _why: String,
    change: Vec<Change>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    /// From the project's folder.
    file: String,
    /// Stands there once.
    find: String,
    replace: String,
}

/// The executable that is all of them: `PGBATON_WRONG_BIN`, else where [`build`] leaves it beside this build.
pub fn executable() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("PGBATON_WRONG_BIN").filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let beside = process::executable("pgbaton")?;
    let target = beside.parent().and_then(Path::parent).unwrap_or(Path::new("."));
    let path = target.join("wrong/target/debug/pgbaton");
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::new(format!("{} does not exist: `./dev test` builds it, by `proof wrong`", path.display())))
}

/// Builds it, in the project's folder. What was built before is used again.
pub fn build() -> Result<ExitCode, Error> {
    let began = Instant::now();
    let place = target().join("wrong");
    let tree = Tree::copy(Path::new("."), &place.join("tree"), &COPIED, &broken(Path::new("."))?)?;
    let builds = std::path::absolute(place.join("target")).map_err(|cause| Error::because("finding target", &cause))?;
    let status = Command::new("cargo")
        .args(["build", "--quiet", "--locked", "-p", "pgbaton-cli", "--features", "faults"])
        .current_dir(tree.root())
        .env("CARGO_TARGET_DIR", builds)
        // Nobody looks at its back traces.
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .status()
        .map_err(|cause| Error::because("running cargo", &cause))?;
    eprintln!("the wrong relays: built in {} s", began.elapsed().as_secs());
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every file that some wrong relay changes, with all changes made.
fn broken(project: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for (name, wrong) in all(project)? {
        for Change { file, find, replace } in wrong.change {
            let failed = |cause: std::io::Error| Error::because(format!("reading {file}, for {name}"), &cause);
            if !files.contains_key(&file) {
                files.insert(file.clone(), std::fs::read_to_string(project.join(&file)).map_err(failed)?);
            }
            let text = files.entry(file.clone()).or_default();
            if text.matches(&find).count() != 1 {
                return Err(Error::new(format!("{name} does not find its text once in {file}: {find}")));
            }
            *text = text.replacen(&find, &replace.replace(QUESTION, &question(&name, &file)), 1);
        }
    }
    Ok(files)
}

/// Whether the relay is to be this wrong one, in the language of the file.
fn question(name: &str, file: &str) -> String {
    if file.ends_with(".rs") {
        format!("matches!(std::env::var(\"PGBATON_WRONG\"), Ok(name) if name == \"{name}\")")
    } else {
        format!("(pg_catalog.current_setting('pgbaton.wrong', true) is not distinct from '{name}')")
    }
}

fn all(project: &Path) -> Result<BTreeMap<String, Wrong>, Error> {
    let failed = |cause: std::io::Error| Error::because(format!("reading {FOLDER}; run this by ./dev"), &cause);
    let mut wrong = BTreeMap::new();
    for entry in std::fs::read_dir(project.join(FOLDER)).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).map_err(failed)?;
        let read = toml::from_str(&text).map_err(|cause| Error::because(path.display(), &cause))?;
        wrong.insert(name, read);
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_relay_applies() {
        let files = broken(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
        for (file, text) in files {
            assert!(text.contains("pgbaton.wrong") || text.contains("PGBATON_WRONG"), "{file}");
            assert!(!text.contains(QUESTION), "{file}");
        }
    }
}
