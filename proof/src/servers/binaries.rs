//! Where the programs of a PostgreSQL server are. Nothing is installed from here: `./dev` does that and
//! hands the folders over in the environment.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// The versions that pgbaton supports, the newest first.
const SUPPORTED: [u32; 4] = [18, 17, 16, 15];

/// The folder of one server's programs (`postgres`, `initdb`, …) and the version they have.
#[derive(Clone, Debug)]
pub struct Binaries {
    folder: PathBuf,
    major: u32,
    version: String,
}

impl Binaries {
    /// The server of one major version: from `PGBATON_TEST_PG<major>_BIN`, else from `PG_BIN` if that
    /// is of this version, else from Debian's folder.
    ///
    /// A variable that is set for this very version and does not fit is an error, not a reason to look
    /// elsewhere: a test must not run against another server than the one it was handed.
    pub fn find(major: u32) -> Result<Binaries, Error> {
        let variable = format!("PGBATON_TEST_PG{major}_BIN");
        if let Some(folder) = std::env::var_os(&variable) {
            let found = Binaries::at(Path::new(&folder))?;
            if found.major == major {
                return Ok(found);
            }
            return Err(Error::new(format!("{variable} holds PostgreSQL {}, not {major}", found.version)));
        }
        if let Some(found) = from_pg_bin()?
            && found.major == major
        {
            return Ok(found);
        }
        if let Some(found) = from_debian(major)? {
            return Ok(found);
        }
        Err(Error::new(format!(
            "no PostgreSQL {major} server found: ./dev test fetches one; or set {variable} to the folder \
             that holds its initdb and postgres"
        )))
    }

    /// Any supported server, for the demo and the benches: from `PG_BIN`, else the newest in Debian's
    /// folders.
    pub fn any() -> Result<Binaries, Error> {
        if let Some(found) = from_pg_bin()? {
            if SUPPORTED.contains(&found.major) {
                return Ok(found);
            }
            return Err(Error::new(format!("PG_BIN holds PostgreSQL {}; needed is 15 to 18", found.version)));
        }
        for major in SUPPORTED {
            if let Some(found) = from_debian(major)? {
                return Ok(found);
            }
        }
        Err(Error::new(
            "no PostgreSQL server from 15 to 18 found: ./dev demo installs one; or set PG_BIN to the \
             folder that holds its initdb and postgres",
        ))
    }

    /// The server whose programs lie in `folder`, of whatever version.
    pub fn at(folder: &Path) -> Result<Binaries, Error> {
        let program = folder.join("postgres");
        let output = Command::new(&program)
            .arg("--version")
            .output()
            .map_err(|cause| Error::because(format!("running {} --version", program.display()), &cause))?;
        let line = String::from_utf8_lossy(&output.stdout);
        let Some((version, major)) = parse_version(&line) else {
            return Err(Error::new(format!("{} --version says {:?}", program.display(), line.trim())));
        };
        Ok(Binaries { folder: folder.to_owned(), major, version })
    }

    /// The major version, such as 15.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// The whole version, such as "15.18".
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The folder of all of them.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of one program, such as `initdb` or `pg_basebackup`. Whether it exists is not checked:
    /// some distributions of the server leave out the client programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

fn from_pg_bin() -> Result<Option<Binaries>, Error> {
    match std::env::var_os("PG_BIN") {
        Some(folder) if !folder.is_empty() => Binaries::at(Path::new(&folder)).map(Some),
        _ => Ok(None),
    }
}

fn from_debian(major: u32) -> Result<Option<Binaries>, Error> {
    let folder = PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"));
    // A client-only installation has the folder, but not the server.
    if !folder.join("postgres").is_file() {
        return Ok(None);
    }
    Binaries::at(&folder).map(Some)
}

/// Reads "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"; also betas, such as "19beta1".
fn parse_version(line: &str) -> Option<(String, u32)> {
    let version = line.strip_prefix("postgres (PostgreSQL) ")?.split_whitespace().next()?;
    let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((version.to_owned(), digits.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::parse_version;

    #[test]
    fn reads_what_postgres_says_of_itself() {
        let debian = "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n";
        assert_eq!(parse_version(debian), Some(("15.18".to_owned(), 15)));
        assert_eq!(parse_version("postgres (PostgreSQL) 19beta1\n"), Some(("19beta1".to_owned(), 19)));
        assert_eq!(parse_version("something else"), None);
    }
}
