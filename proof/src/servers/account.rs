//! Which account a server runs as. PostgreSQL refuses to run as root, so root hands its servers over to
//! an unprivileged account; everybody else runs them as themselves.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::Error;

/// The account for a server's programs and files. `None` inside: the one of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account(Option<Ids>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Ids {
    user: u32,
    group: u32,
}

impl Account {
    /// This process's own account; for root `postgres`, else `nobody`.
    pub(crate) fn choose() -> Result<Account, Error> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Account(None));
        }
        let passwd =
            fs::read_to_string("/etc/passwd").map_err(|cause| Error::because("reading /etc/passwd", &cause))?;
        // initdb wants an account that has an entry here, so a made-up number would not do.
        ["postgres", "nobody"].into_iter().find_map(|name| ids_of(&passwd, name)).map_or_else(
            || Err(Error::new("root cannot run PostgreSQL, and there is no account postgres or nobody")),
            |ids| Ok(Account(Some(ids))),
        )
    }

    /// A command that runs as this account, in `folder`, with nothing of this process's environment
    /// that would change what the server does (`PG*`, locale, time zone).
    pub(crate) fn command(self, program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(folder).env_clear().env("PATH", "/usr/bin:/bin").env("TZ", "UTC");
        if let Some(ids) = self.0 {
            // The standard library drops root's other groups along with the user id.
            command.uid(ids.user).gid(ids.group);
        }
        command
    }

    /// Makes this account the owner of `path`.
    pub(crate) fn own(self, path: &Path) -> Result<(), Error> {
        let Some(ids) = self.0 else { return Ok(()) };
        std::os::unix::fs::chown(path, Some(ids.user), Some(ids.group))
            .map_err(|cause| Error::because(format!("handing {} over", path.display()), &cause))
    }
}

fn ids_of(passwd: &str, name: &str) -> Option<Ids> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some(Ids { user: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::{Ids, ids_of};

    #[test]
    fn finds_an_account_by_its_whole_name() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\npostgres2:x:7:8::/:/bin/sh\npostgres:x:101:104::/:/bin/sh\n";
        assert_eq!(ids_of(passwd, "postgres"), Some(Ids { user: 101, group: 104 }));
        assert_eq!(ids_of(passwd, "nobody"), None);
    }
}
