//! The outbox's servers: a primary, and a hot standby that is made anew after each fail-over.
//!
//! There are two sides, A and B. Each has a small file system of its own, if this machine allows that, so that the primary's can
//! be full; replicas' doors lead to whatever server is on a side.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use checker::history::Nanos;
use tokio::sync::watch;

use super::book::now;
use super::primary::{Primary, within};
use crate::Error;
use crate::clock::Clock;
use crate::disk::Disk;
use crate::fixture::Fixture;
use crate::servers::{Binaries, Cluster, Options};

/// Of one side's file system. Only what is used takes memory.
const DISK_MEGABYTES: u32 = 8 << 10;

/// What this machine cannot do, and why.
#[derive(Debug, Default)]
pub(super) struct Cannot {
    pub(super) disk: Option<String>,
    pub(super) clock: Option<String>,
}

/// Where a server is.
pub(super) struct Side {
    disk: Option<Disk>,
    parent: PathBuf,
}

/// How a fail-over went.
pub(super) struct FailedOver {
    pub(super) from: Nanos,
    /// The new primary takes writes, and nobody has been led to it yet.
    pub(super) to: Nanos,
    pub(super) timeline: u32,
}

/// The servers. Those before the sides are dropped before them.
pub(super) struct Pair {
    pub(super) primary: Cluster,
    standby: Option<Cluster>,
    /// Which side the primary is on.
    on: usize,
    sides: [Side; 2],
    pub(super) clock: Option<Clock>,
    pub(super) cannot: Arc<Cannot>,
    database: String,
    moved: watch::Sender<u16>,
    /// What each side's doors lead to.
    pub(super) ports: watch::Sender<[u16; 2]>,
}

impl Pair {
    /// Starts both, with the outbox's schema.
    pub(super) async fn start(seed: u64) -> Result<Pair, Error> {
        let mut cannot = Cannot::default();
        let temporary = std::env::temp_dir();
        let sides = ["a", "b"].map(|name| {
            let path = temporary.join(format!("pgbaton-torture-{}-{name}", std::process::id()));
            let disk = Disk::mount(&path, DISK_MEGABYTES).map_err(|why| cannot.disk = Some(why.to_string())).ok();
            let parent = disk.as_ref().map_or_else(|| temporary.clone(), |disk| disk.path().to_owned());
            Side { disk, parent }
        });
        let clock = Clock::new(&temporary.join(format!("pgbaton-torture-clock-{}-{seed}", std::process::id())));
        let clock = clock.map_err(|why| cannot.clock = Some(why.to_string())).ok();
        let primary = Cluster::start(&Binaries::any()?, options(&sides, clock.as_ref())).await?;
        let database = {
            let fixture = Fixture::on(&primary).await?;
            super::writers::prepare(&fixture.admin().await?).await?;
            fixture.database.clone()
        };
        let parent = sides.get(1).map_or(temporary, |side| side.parent.clone());
        let standby = primary.standby_below(&parent).await?;
        let (moved, ports) = (watch::Sender::new(primary.port()), watch::Sender::new([primary.port(), standby.port()]));
        let (standby, cannot) = (Some(standby), Arc::new(cannot));
        Ok(Pair { primary, standby, on: 0, sides, clock, cannot, database, moved, ports })
    }

    /// For those who follow the primary.
    pub(super) fn followed(&self) -> Primary {
        Primary { database: self.database.clone(), port: self.moved.subscribe() }
    }

    /// The file system that the primary is on.
    pub(super) fn disk(&self) -> Option<&Disk> {
        self.sides.get(self.on)?.disk.as_ref()
    }

    /// Starts the primary again if it has ended.
    pub(super) async fn see_that_it_runs(&mut self) -> Result<(), Error> {
        const PATIENCE: Duration = Duration::from_secs(60);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            if let Ok(admin) = self.primary.admin("postgres").await
                && within(admin.simple_query("select 1")).await.is_ok()
            {
                return Ok(());
            }
            // It may be at recovering by itself.
            let again = self.primary.start_again().await;
            if again.is_ok() || tokio::time::Instant::now() >= deadline {
                return again;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Whether there is a standby that receives what the primary writes; makes one if not.
    pub(super) async fn has_standby(&mut self) -> Result<bool, Error> {
        let admin = self.primary.admin("postgres").await?;
        let sql = "select exists (select from pg_stat_replication where state = 'streaming')";
        let row = within(admin.query_one(sql, &[])).await?;
        if self.standby.is_some() && row.try_get::<_, bool>(0).unwrap_or_default() {
            return Ok(true);
        }
        self.rebuild().await?;
        Ok(false)
    }

    /// From now on every commit waits for the standby, which has all that was confirmed before: also what is confirmed later is
    /// not lost.
    pub(super) async fn make_synchronous(&self) -> Result<(), Error> {
        let Some(standby) = &self.standby else { return Err(Error::new("there is no standby")) };
        self.primary.wait_for_standby(true).await?;
        self.primary.wait_until_replayed(standby).await
    }

    /// From now on the standby receives nothing: what is committed is lost by the fail-over, but not what was confirmed before
    /// the moment that this returns.
    pub(super) async fn cut_off(&self) -> Result<Nanos, Error> {
        let Some(standby) = &self.standby else { return Err(Error::new("there is no standby")) };
        let safe = now();
        self.primary.wait_until_replayed(standby).await?;
        standby.cut_off().await?;
        Ok(safe)
    }

    /// The primary crashes, and after a while the standby takes its place. Nothing is left of the old one.
    pub(super) async fn fail_over(&mut self, after: Duration) -> Result<FailedOver, Error> {
        let Some(standby) = self.standby.take() else { return Err(Error::new("there is no standby")) };
        let from = now();
        self.primary.stop_immediate().await?;
        tokio::time::sleep(after).await;
        standby.promote().await?;
        let to = now();
        let timeline = timeline(&standby).await?;
        let old = std::mem::replace(&mut self.primary, standby);
        self.on = 1 - self.on;
        self.moved.send_replace(self.primary.port());
        // Its files are many.
        let removed = tokio::task::spawn_blocking(move || drop(old));
        removed.await.map_err(|cause| Error::because("removing the old primary", &cause))?;
        // Copied settings would hold for the next standby.
        let admin = self.primary.admin("postgres").await?;
        for setting in ["primary_conninfo", "synchronous_standby_names"] {
            within(admin.batch_execute(&format!("alter system reset {setting}"))).await?;
        }
        within(admin.batch_execute("select pg_reload_conf()")).await?;
        Ok(FailedOver { from, to, timeline })
    }

    /// Makes a new standby on the side where none is needed any more.
    pub(super) async fn rebuild(&mut self) -> Result<(), Error> {
        if let Some(old) = self.standby.take() {
            let removed = tokio::task::spawn_blocking(move || drop(old));
            removed.await.map_err(|cause| Error::because("removing the old standby", &cause))?;
        }
        let Some(side) = self.sides.get(1 - self.on) else { return Err(Error::new("there are two sides")) };
        let standby = self.primary.standby_below(&side.parent).await?;
        let mut ports = [self.primary.port(), standby.port()];
        if self.on == 1 {
            ports.reverse();
        }
        self.ports.send_replace(ports);
        self.standby = Some(standby);
        Ok(())
    }

    /// The logs of both, for whoever looks for a cause.
    pub(super) fn logs(&self) -> Vec<PathBuf> {
        [Some(&self.primary), self.standby.as_ref()].into_iter().flatten().map(Cluster::log).collect()
    }
}

fn options(sides: &[Side; 2], clock: Option<&Clock>) -> Options {
    let settings = [
        ("max_connections", "100"),
        ("max_wal_size", "1GB"),
        ("wal_keep_size", "512MB"),
        ("checkpoint_timeout", "60s"),
        ("autovacuum_naptime", "5s"),
    ];
    let [first, _] = sides;
    Options {
        shared_buffers: "128MB".to_owned(),
        settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        parent: first.parent.clone(),
        environment: clock.map(|clock| clock.environment(true)).unwrap_or_default(),
        ..Options::default()
    }
}

async fn timeline(server: &Cluster) -> Result<u32, Error> {
    let admin = server.admin("postgres").await?;
    let sql = "select ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer";
    let row = within(admin.query_one(sql, &[])).await?;
    let timeline: i32 = row.try_get(0).map_err(|cause| Error::because("reading the timeline", &cause))?;
    Ok(timeline.unsigned_abs())
}
