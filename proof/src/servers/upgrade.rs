//! `pg_upgrade`, as an operator runs it.

use super::{Binaries, Cluster, Home, Options, SUPERUSER, ports};
use crate::Error;

impl Cluster {
    /// Stops this cluster and makes one of another version of its data, with `pg_upgrade`. It listens on a new port.
    pub async fn upgrade(mut self, binaries: &Binaries) -> Result<Cluster, Error> {
        self.stop_fast().await?;
        let options = Options::default();
        let home = Home::create(&options.parent, &format!("pg{}", binaries.major()), self.account)?;
        let (account, environment) = (self.account, self.environment.clone());
        let mut new = Cluster { server: None, port: 0, binaries: binaries.clone(), account, environment, home };
        new.initialise(&options)?;
        let program = binaries.program("pg_upgrade");
        let mut command = new.command(&program);
        command
            .arg("--old-bindir")
            .arg(self.binaries.folder())
            .arg("--new-bindir")
            .arg(binaries.folder())
            .arg("--old-datadir")
            .arg(self.home.data())
            .arg("--new-datadir")
            .arg(new.home.data())
            .arg("--socketdir")
            .arg(new.home.path())
            .args(["--username", SUPERUSER, "--old-port", &ports::free()?.to_string()])
            .args(["--new-port", &ports::free()?.to_string()]);
        let output = command.output().map_err(|cause| new.cannot_run(&program, &cause))?;
        if !output.status.success() {
            return Err(Error::new(format!("pg_upgrade failed: {}", String::from_utf8_lossy(&output.stdout).trim())));
        }
        new.launch_on_a_free_port().await?;
        Ok(new)
    }
}
