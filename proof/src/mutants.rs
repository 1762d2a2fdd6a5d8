//! Breaks the code on purpose, one rule at a time, and looks whether the test of that rule fails.
//!
//! Each file `proof/mutants/NAME.toml` is one mutant: in which file it finds which text, by what it replaces it, which
//! test must notice, and why the rule is there. Mutants are applied to a copy of the tree below `target`, never to the
//! tree itself. A mutant whose test passes has survived, and one whose text is gone no longer applies: both are failures.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::Error;
use crate::tree::{COPIED, Tree, target};

mod cargo;

use cargo::{Cargo, Ran};

/// Where the mutants are, from the project's folder.
const FOLDER: &str = "proof/mutants";

/// A test that has not ended by then hangs, which is a way to fail.
const PATIENCE: Duration = Duration::from_secs(300);

/// Breaks the code on purpose and sees whether the tests notice.
#[derive(clap::Args)]
pub struct Args {
    /// Only the mutants whose name contains one of these.
    names: Vec<String>,
    /// Name the mutants and what each one breaks, and stop.
    #[arg(long)]
    list: bool,
}

/// One file of [`FOLDER`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    #[serde(skip)]
    name: String,
    /// What is broken, and what would come of it.
    why: String,
    /// The test that must fail, by its whole name or the beginning of it.
    test: String,
    /// The package that the test is in.
    #[serde(default = "proof")]
    package: String,
    /// The file, from the project's folder.
    file: String,
    find: String,
    replace: String,
    /// Further places of the same file.
    #[serde(default)]
    also: Vec<Also>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Also {
    find: String,
    replace: String,
}

fn proof() -> String {
    "proof".to_owned()
}

/// What became of a mutant.
enum Fate {
    Caught,
    Hung,
    Survived,
    DoesNotApply,
    DoesNotBuild,
    NoSuchTest,
}

impl Fate {
    fn is_good(&self) -> bool {
        matches!(self, Fate::Caught | Fate::Hung)
    }

    fn shown(&self) -> &'static str {
        match self {
            Fate::Caught => "caught",
            Fate::Hung => "caught: the test hangs",
            Fate::Survived => "SURVIVED",
            Fate::DoesNotApply => "NO LONGER APPLIES",
            Fate::DoesNotBuild => "DOES NOT BUILD",
            Fate::NoSuchTest => "HAS NO SUCH TEST",
        }
    }
}

/// Runs in the project's folder. Success if every mutant is caught.
pub fn run(args: &Args) -> Result<ExitCode, Error> {
    let mutants = chosen(args)?;
    if args.list {
        for mutant in &mutants {
            println!("{}: {}", mutant.name, mutant.why);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let place = target().join("mutants");
    let tree = Tree::copy(Path::new("."), &place.join("tree"), &COPIED, &BTreeMap::new())?;
    let cargo = Cargo::new(tree.root(), &place.join("target"));
    check_that_tests_pass(&cargo, &mutants)?;
    let mut good = true;
    let mut table = String::new();
    for mutant in &mutants {
        let began = Instant::now();
        eprintln!("==> {}: {}", mutant.name, mutant.why);
        let fate = try_out(mutant, &tree, &cargo)?;
        eprintln!("    {}", fate.shown());
        good &= fate.is_good();
        table.push_str(&format!("{:<44} {:>4} s  {}\n", mutant.name, began.elapsed().as_secs(), fate.shown()));
    }
    print!("{table}");
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn chosen(args: &Args) -> Result<Vec<Mutant>, Error> {
    let mut mutants = all(Path::new("."))?;
    mutants.retain(|mutant| args.names.is_empty() || args.names.iter().any(|part| mutant.name.contains(part)));
    if mutants.is_empty() {
        return Err(Error::new("there is no such mutant"));
    }
    Ok(mutants)
}

/// All mutants of the project in this folder, by name.
fn all(project: &Path) -> Result<Vec<Mutant>, Error> {
    let failed = |cause: std::io::Error| Error::because(format!("reading {FOLDER}; run this by ./dev"), &cause);
    let mut mutants = Vec::new();
    for entry in std::fs::read_dir(project.join(FOLDER)).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).map_err(failed)?;
        let mutant: Mutant = toml::from_str(&text).map_err(|cause| Error::because(path.display(), &cause))?;
        mutants.push(Mutant { name, ..mutant });
    }
    mutants.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(mutants)
}

/// A test that fails anyway would catch everything.
fn check_that_tests_pass(cargo: &Cargo, mutants: &[Mutant]) -> Result<(), Error> {
    let tests: BTreeSet<(&str, &str)> =
        mutants.iter().map(|mutant| (mutant.package.as_str(), mutant.test.as_str())).collect();
    for (package, test) in tests {
        eprintln!("==> as it is: {test}");
        match cargo.test(package, test, PATIENCE)? {
            Ran::Passed => {}
            Ran::NoTest => return Err(Error::new(format!("there is no test {test} in {package}"))),
            Ran::Failed(said) | Ran::DoesNotBuild(said) => {
                return Err(Error::new(format!("{test} fails on the code as it is:\n{said}")));
            }
            Ran::Hung => return Err(Error::new(format!("{test} hangs on the code as it is"))),
        }
    }
    Ok(())
}

fn try_out(mutant: &Mutant, tree: &Tree, cargo: &Cargo) -> Result<Fate, Error> {
    let original = tree.read(&mutant.file)?;
    let Some(broken) = mutant.apply(&original) else { return Ok(Fate::DoesNotApply) };
    tree.write(&mutant.file, &broken)?;
    let ran = cargo.test(&mutant.package, &mutant.test, PATIENCE);
    tree.write(&mutant.file, &original)?;
    Ok(match ran? {
        Ran::Failed(said) => {
            eprintln!("{said}");
            Fate::Caught
        }
        Ran::Hung => Fate::Hung,
        Ran::Passed => Fate::Survived,
        Ran::NoTest => Fate::NoSuchTest,
        Ran::DoesNotBuild(said) => {
            eprintln!("{said}");
            Fate::DoesNotBuild
        }
    })
}

impl Mutant {
    /// The text with every replacement made; `None` if one of them does not find its text exactly once.
    fn apply(&self, original: &str) -> Option<String> {
        let first = (&self.find, &self.replace);
        let further = self.also.iter().map(|also| (&also.find, &also.replace));
        let mut text = original.to_owned();
        for (find, replace) in std::iter::once(first).chain(further) {
            if text.matches(find.as_str()).count() != 1 {
                return None;
            }
            text = text.replacen(find.as_str(), replace, 1);
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(find: &str) -> Mutant {
        let text = format!(
            "why = ''\ntest = ''\nfile = ''\nfind = '{find}'\nreplace = 'x'\nalso = [{{ find = 'c', replace = 'y' }}]"
        );
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn a_mutant_applies_only_where_its_text_stands_once() {
        assert_eq!(mutant("b").apply("abc").as_deref(), Some("axy"));
        assert_eq!(mutant("d").apply("abc"), None);
        assert_eq!(mutant("b").apply("abcb"), None);
        assert_eq!(mutant("b").apply("ab"), None);
    }

    /// Whether the tests notice takes half an hour to say; that there is something to notice does not.
    #[test]
    fn every_mutant_applies() {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for mutant in all(&project).unwrap() {
            let original = std::fs::read_to_string(project.join(&mutant.file)).unwrap();
            assert!(mutant.apply(&original).is_some(), "{} no longer applies to {}", mutant.name, mutant.file);
        }
    }
}
