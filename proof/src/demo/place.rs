//! Where the demo takes place: a private throwaway server, or a database of its own on a server it was shown.
//!
//! On somebody else's server it connects to the named database only to make another one, works in that one as the
//! user it was given, and drops it. Roles belong to a whole server, so there it makes none.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tokio_postgres::Client;
use tokio_postgres::config::{Config, Host};

use crate::Error;
use crate::fixture::{MIGRATE, PRODUCER, RELAY};
use crate::process::Guard;
use crate::servers::{Binaries, Cluster, Options};
use crate::writers::connect;

/// The oldest server pgbaton supports.
const OLDEST: i32 = 15;

/// One database as one role.
#[derive(Clone, Debug)]
pub(super) struct Login {
    pub(super) role: String,
    pub(super) dsn: String,
}

/// Databases, logins, and a folder for configurations and logs.
pub(super) struct Place {
    pub(super) admin: Login,
    pub(super) migrate: Login,
    pub(super) relay: Login,
    pub(super) producer: Login,
    /// The inbox's database; on somebody else's server the same one.
    pub(super) inbox_admin: Login,
    pub(super) inbox_relay: Login,
    /// One line about the server.
    pub(super) about: String,
    pub(super) folder: Folder,
    /// What was made on somebody else's server.
    foreign: Option<Foreign>,
    /// Stopped and removed when this is dropped.
    _private: Option<Cluster>,
}

/// A database on somebody else's server, and the way in.
struct Foreign {
    dsn: String,
    database: String,
}

impl Place {
    /// A server of its own.
    pub(super) async fn private() -> Result<Place, Error> {
        let settings = vec![("max_wal_size".to_owned(), "4GB".to_owned())];
        let options = Options { shared_buffers: "128MB".to_owned(), settings, ..Options::default() };
        let cluster = Cluster::start(&Binaries::any()?, options).await?;
        for database in ["demo", "inbox"] {
            cluster.create_database(database, None).await?;
        }
        let admin = cluster.admin("demo").await?;
        let roles = format!("create role {MIGRATE} login; create role {RELAY} login; create role {PRODUCER} login");
        admin.batch_execute(&roles).await.map_err(|cause| Error::because("making the roles", &cause))?;
        let login = |role: &str, database: &str| Login { role: role.to_owned(), dsn: cluster.dsn(database, role) };
        Ok(Place {
            admin: login("postgres", "demo"),
            migrate: login(MIGRATE, "demo"),
            relay: login(RELAY, "demo"),
            producer: login(PRODUCER, "demo"),
            inbox_admin: login("postgres", "inbox"),
            inbox_relay: login(RELAY, "inbox"),
            about: format!(
                "PostgreSQL {} started for this demo only, on port {}",
                cluster.binaries().version(),
                cluster.port()
            ),
            folder: Folder::create()?,
            foreign: None,
            _private: Some(cluster),
        })
    }

    /// A new database on this server.
    pub(super) async fn on(dsn: &str) -> Result<Place, Error> {
        let config: Config = dsn.parse().map_err(|cause| Error::because("--dsn cannot be read", &cause))?;
        let folder = Folder::create()?;
        let client = connect(dsn).await?;
        let (version, role) = fitness(&client).await?;
        let database = format!("pgbaton_demo_{:08x}", rand::random::<u32>());
        // Fails if it exists: nothing that was there before is ever used.
        client
            .batch_execute(&format!("create database {database}"))
            .await
            .map_err(|cause| Error::because("the demo only works in a database that it makes itself", &cause))?;
        let login = Login { role, dsn: dsn_for(&config, &database)? };
        Ok(Place {
            admin: login.clone(),
            migrate: login.clone(),
            relay: login.clone(),
            producer: login.clone(),
            inbox_admin: login.clone(),
            inbox_relay: login,
            about: format!("PostgreSQL {version}: made the database {database}, to be dropped at the end"),
            folder,
            foreign: Some(Foreign { dsn: dsn.to_owned(), database }),
            _private: None,
        })
    }

    /// Removes what was made on somebody else's server. Whoever is still connected is cut off.
    pub(super) async fn close(self) -> Result<(), Error> {
        let Some(Foreign { dsn, database }) = &self.foreign else { return Ok(()) };
        let drop = format!("drop database {database} with (force)");
        let client = connect(dsn).await?;
        client.batch_execute(&drop).await.map_err(|cause| Error::because(format!("running {drop:?}"), &cause))
    }

    /// Whether roles and grants are those of production.
    pub(super) fn is_private(&self) -> bool {
        self.foreign.is_none()
    }
}

/// The server's version and the user's name, or why the demo cannot work there.
async fn fitness(client: &Client) -> Result<(String, String), Error> {
    let facts = "select current_setting('server_version_num')::int / 10000, current_setting('server_version'), \
                 current_user::text, pg_is_in_recovery()";
    let failed = |cause| Error::because("asking the server for its version", &cause);
    let row = client.query_one(facts, &[]).await.map_err(failed)?;
    let (major, version): (i32, String) = (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
    if major < OLDEST {
        return Err(Error::new(format!("the server is PostgreSQL {version}; pgbaton needs {OLDEST} or newer")));
    }
    if row.try_get(3).map_err(failed)? {
        return Err(Error::new("the server is a standby: show the demo a server that can be written to"));
    }
    Ok((version, row.try_get(2).map_err(failed)?))
}

/// The same server with another database.
fn dsn_for(config: &Config, database: &str) -> Result<String, Error> {
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.to_string_lossy().into_owned(),
        })
        .collect();
    let addresses: Vec<String> = config.get_hostaddrs().iter().map(ToString::to_string).collect();
    let ports: Vec<String> = config.get_ports().iter().map(ToString::to_string).collect();
    let password = config.get_password().map(String::from_utf8_lossy).unwrap_or_default();
    let fields = [
        ("host", hosts.join(",")),
        ("hostaddr", addresses.join(",")),
        ("port", ports.join(",")),
        ("user", config.get_user().unwrap_or_default().to_owned()),
        ("password", password.into_owned()),
        ("options", config.get_options().unwrap_or_default().to_owned()),
        ("dbname", database.to_owned()),
    ];
    if hosts.is_empty() && addresses.is_empty() {
        return Err(Error::new("--dsn names no host"));
    }
    let quoted = |value: &str| value.replace('\\', "\\\\").replace('\'', "\\'");
    let set = fields.iter().filter(|(_, value)| !value.is_empty());
    Ok(set.map(|(name, value)| format!("{name}='{}'", quoted(value))).collect::<Vec<_>>().join(" "))
}

/// A folder that only this user may enter, since configurations may hold a password. Gone when this is dropped, or, by
/// a guard, when this process dies.
pub(super) struct Folder {
    path: PathBuf,
    guard: Option<Guard>,
}

impl Folder {
    fn create() -> Result<Folder, Error> {
        let path = std::env::temp_dir().join(format!("pgbaton-demo-{}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|cause| Error::because(format!("creating {}", path.display()), &cause))?;
        let guard = Guard::new("rm -rf -- \"$1\"", &path)?;
        Ok(Folder { path, guard: Some(guard) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves it, for a person to read the logs.
    pub(super) fn keep(&mut self) {
        self.guard = None;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.guard.is_some() {
            // If this fails the folder stays, in a place that is there to be cleared.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_of_a_dsn_is_changed() {
        let config: Config = "postgresql://me:p%27w@db.example:6543/production".parse().unwrap();
        let dsn = dsn_for(&config, "other").unwrap();
        assert_eq!(dsn, "host='db.example' port='6543' user='me' password='p\\'w' dbname='other'");
        let again: Config = dsn.parse().unwrap();
        assert_eq!((again.get_dbname(), again.get_password()), (Some("other"), Some(b"p'w".as_slice())));
    }
}
