//! A streaming standby, and what makes a primary of it.

use std::path::Path;

use super::{Cluster, Home, SUPERUSER};
use crate::Error;

/// What a standby calls itself towards its primary.
const NAME: &str = "standby";

impl Cluster {
    /// Makes a streaming standby of this running cluster, on a port of its own, and waits until it has what is there now.
    /// Streaming is asynchronous until [`Cluster::wait_for_standby`].
    pub async fn standby(&self) -> Result<Cluster, Error> {
        self.standby_below(&std::env::temp_dir()).await
    }

    /// The same with its folder below this one, as in [`Options::parent`](super::Options).
    pub async fn standby_below(&self, parent: &Path) -> Result<Cluster, Error> {
        let home = Home::create(parent, &format!("pg{}", self.binaries.major()), self.account)?;
        let mut standby = Cluster {
            server: None,
            port: 0,
            binaries: self.binaries.clone(),
            account: self.account,
            environment: self.environment.clone(),
            home,
        };
        let program = standby.binaries.program("pg_basebackup");
        let mut command = standby.command(&program);
        command.arg("--pgdata").arg(standby.home.data()).args(["--dbname", &self.dsn("postgres", SUPERUSER)]).args([
            "--wal-method=stream",
            "--checkpoint=fast",
            "--no-sync",
        ]);
        let copied = tokio::task::spawn_blocking(move || command.output());
        let output = copied
            .await
            .map_err(|cause| Error::because("waiting for pg_basebackup", &cause))?
            .map_err(|cause| standby.cannot_run(&program, &cause))?;
        if !output.status.success() {
            return Err(Error::new(format!(
                "pg_basebackup failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )));
        }
        // What `--write-recovery-conf` writes names every option that its own libpq knows; the server may come with an
        // older one, which refuses them.
        let primary = format!("host=127.0.0.1 port={} user={SUPERUSER} application_name={NAME}", self.port);
        standby.home.add_settings([("primary_conninfo", primary.as_str())])?;
        let signal = standby.home.data().join("standby.signal");
        std::fs::write(&signal, "").map_err(|cause| Error::because(format!("writing {}", signal.display()), &cause))?;
        self.account.own(&signal)?;
        standby.launch_on_a_free_port().await?;
        self.wait_until_replayed(&standby).await?;
        Ok(standby)
    }

    /// From now on no commit here is confirmed, nor seen by anybody, before the standby has it on disk; or again without
    /// that.
    pub async fn wait_for_standby(&self, synchronous: bool) -> Result<(), Error> {
        let names = if synchronous { NAME } else { "" };
        self.alter_system(&format!("synchronous_standby_names = '{names}'")).await?;
        if synchronous {
            self.until(
                "select count(*) = 1 from pg_stat_replication where sync_state = 'sync'",
                "a synchronous standby",
            )
            .await?;
        }
        Ok(())
    }

    /// Waits until the standby has replayed what is written here now.
    pub async fn wait_until_replayed(&self, standby: &Cluster) -> Result<(), Error> {
        let admin = self.admin("postgres").await?;
        let row = admin.query_one("select pg_current_wal_lsn()::text", &[]).await;
        let row = row.map_err(|cause| Error::because("asking for the log's end", &cause))?;
        let end: &str = row.get(0);
        standby.until(&format!("select pg_last_wal_replay_lsn() >= '{end}'"), "the standby has it all").await
    }

    /// Has this standby receive nothing more: what its primary commits from now on is lost when this one is promoted.
    pub async fn cut_off(&self) -> Result<(), Error> {
        self.alter_system("primary_conninfo = ''").await?;
        self.until("select count(*) = 0 from pg_stat_wal_receiver", "the standby receives nothing").await
    }

    /// Makes a primary of this standby. When this returns it takes writes.
    pub async fn promote(&self) -> Result<(), Error> {
        self.execute("select pg_promote(true, 60)").await?;
        self.until("select not pg_is_in_recovery()", "the standby is promoted").await
    }

    /// Changes a setting of the whole server, as in `name = 'value'`, and has it read. When this returns, the server's
    /// first process has been told; others follow at their next statement.
    pub async fn alter_system(&self, setting: &str) -> Result<(), Error> {
        self.execute(&format!("alter system set {setting}")).await?;
        self.execute("select pg_reload_conf()").await
    }

    async fn execute(&self, sql: &str) -> Result<(), Error> {
        let admin = self.admin("postgres").await?;
        admin.batch_execute(sql).await.map_err(|cause| Error::because(format!("running {sql:?}"), &cause))
    }

    /// Asks until the answer is true.
    async fn until(&self, question: &str, what: &str) -> Result<(), Error> {
        let admin = self.admin("postgres").await?;
        let deadline = std::time::Instant::now() + super::START_WITHIN;
        loop {
            let row = admin.query_one(question, &[]).await;
            let row = row.map_err(|cause| Error::because(format!("asking whether {what}"), &cause))?;
            if row.try_get::<_, Option<bool>>(0).ok().flatten() == Some(true) {
                return Ok(());
            }
            if std::time::Instant::now() >= deadline {
                return Err(self.complaint(&format!("does not come to this: {what}")));
            }
            tokio::time::sleep(super::POLL).await;
        }
    }
}
