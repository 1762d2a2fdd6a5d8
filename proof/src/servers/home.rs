//! The folder of one throwaway cluster: its data, its socket and its log. It goes when its owner goes,
//! and a guard stops the server and removes the folder if this process dies first.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::account::Account;
use crate::Error;
use crate::process::Guard;

/// Stops the server of the folder `$1` at once (SIGQUIT, on which the postmaster ends its children, too)
/// and removes the folder. The process id comes from the server's own file, so this holds over restarts.
/// A server that has ended has removed that file, which is a better sign than `kill -0`: that finds a
/// zombie, too. PostgreSQL gives its own stragglers 5 s, so there is no need to wait much longer.
const CLEAN_UP: &str = r#"
pid_file=$1/data/postmaster.pid
pid=$(head -n 1 "$pid_file" 2>/dev/null) && kill -QUIT "$pid" 2>/dev/null
tries=80
while [ -e "$pid_file" ] && [ "$tries" -gt 0 ] && kill -0 "$pid" 2>/dev/null; do
    sleep 0.1
    tries=$((tries - 1))
done
rm -rf "$1"
"#;

/// The folder; removed on drop, when its server must have been stopped.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    /// Dropped after the folder has been removed, which releases it.
    _guard: Guard,
}

impl Home {
    /// Makes a folder below `parent` that only `account` may enter.
    pub(crate) fn create(parent: &Path, label: &str, account: Account) -> Result<Home, Error> {
        let path = make_unique(parent, label)?;
        let guard = Guard::new(CLEAN_UP, &path)?;
        let home = Home { path, _guard: guard };
        account.own(&home.path)?;
        Ok(home)
    }

    /// The folder itself. The server's socket lies here rather than among the data, because a socket's
    /// path may have only about 100 characters.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// PostgreSQL's data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// What the server said, over all its restarts.
    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("server.log")
    }

    /// The log, open at its end.
    pub(crate) fn open_log(&self) -> Result<File, Error> {
        append_to(&self.log())
    }

    /// Adds lines to postgresql.conf; of a setting given twice, PostgreSQL takes the last.
    pub(crate) fn add_settings<'a>(&self, settings: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<(), Error> {
        let path = self.data().join("postgresql.conf");
        let lines: String =
            settings.into_iter().map(|(name, value)| format!("{name} = '{}'\n", value.replace('\'', "''"))).collect();
        append_to(&path)?
            .write_all(lines.as_bytes())
            .map_err(|cause| Error::because(format!("writing {}", path.display()), &cause))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // If this fails the folder stays, in a place that is there to be cleared.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn append_to(path: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|cause| Error::because(format!("opening {}", path.display()), &cause))
}

/// The process id makes names of running processes differ; the number steps over leftovers of a former
/// process with the same id.
fn make_unique(parent: &Path, label: &str) -> Result<PathBuf, Error> {
    let own = std::process::id();
    let mut number = 1u32;
    loop {
        let path = parent.join(format!("pgbaton-{label}-{own}-{number}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(cause) if cause.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(cause) => return Err(Error::because(format!("creating {}", path.display()), &cause)),
        }
    }
}
