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
use super::plan::Plan;
use super::primary::{Primary, UNDO_WITHIN, again, see_that_it_runs, within};
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
    /// Where logs of old primaries are kept, and how many there are.
    folder: PathBuf,
    buried: u32,
    moved: watch::Sender<u16>,
    /// What each side's doors lead to.
    pub(super) ports: watch::Sender<[u16; 2]>,
}

impl Pair {
    /// Starts both, with the outbox's schema.
    pub(super) async fn start(plan: &Plan) -> Result<Pair, Error> {
        let mut cannot = Cannot::default();
        let temporary = std::env::temp_dir();
        let sides = ["a", "b"].map(|name| {
            let path = temporary.join(format!("pgbaton-torture-{}-{name}", std::process::id()));
            let disk = Disk::mount(&path, DISK_MEGABYTES).map_err(|why| cannot.disk = Some(why.to_string())).ok();
            let parent = disk.as_ref().map_or_else(|| temporary.clone(), |disk| disk.path().to_owned());
            Side { disk, parent }
        });
        let clock = Clock::new(&temporary.join(format!("pgbaton-torture-clock-{}-{}", std::process::id(), plan.seed)));
        let clock = clock.map_err(|why| cannot.clock = Some(why.to_string())).ok();
        let primary = Cluster::start(&Binaries::any()?, options(&sides, clock.as_ref())).await?;
        let database = {
            let fixture = Fixture::on(&primary).await?;
            super::writers::prepare(&fixture.admin().await?, plan.source).await?;
            fixture.database.clone()
        };
        let parent = sides.get(1).map_or(temporary, |side| side.parent.clone());
        let standby = primary.standby_below(&parent).await?;
        let (moved, ports) = (watch::Sender::new(primary.port()), watch::Sender::new([primary.port(), standby.port()]));
        let (standby, cannot) = (Some(standby), Arc::new(cannot));
        Ok(Pair {
            primary,
            standby,
            on: 0,
            sides,
            clock,
            cannot,
            database,
            folder: plan.folder.clone(),
            buried: 0,
            moved,
            ports,
        })
    }

    /// For those who follow the primary.
    pub(super) fn followed(&self) -> Primary {
        Primary { database: self.database.clone(), port: self.moved.subscribe() }
    }

    /// Which side the primary is on.
    pub(super) fn on(&self) -> usize {
        self.on
    }

    /// The file system that the primary is on.
    pub(super) fn disk(&self) -> Option<&Disk> {
        self.sides.get(self.on)?.disk.as_ref()
    }

    /// Starts the primary again if it has ended.
    pub(super) async fn see_that_it_runs(&mut self) -> Result<(), Error> {
        see_that_it_runs(&mut self.primary).await
    }

    /// Nothing ails the servers from now on: both file systems have room, the clock is right, the primary runs and waits for
    /// nobody. All of it is tried, and the first error given.
    pub(super) async fn heal(&mut self) -> Result<(), Error> {
        let freed = again(UNDO_WITHIN, || async { self.free() }).await;
        let set = match &self.clock {
            Some(clock) => again(UNDO_WITHIN, || async { clock.set("+0") }).await,
            None => Ok(()),
        };
        let runs = self.see_that_it_runs().await;
        freed.and(set).and(runs).and(self.wait_for_nobody().await)
    }

    /// There is room again on both file systems.
    pub(super) fn free(&self) -> Result<(), Error> {
        self.sides.iter().filter_map(|side| side.disk.as_ref()).try_for_each(Disk::free)
    }

    /// Commits wait for no standby, and the next standby begins without what the primary was told when it was one itself.
    pub(super) async fn wait_for_nobody(&self) -> Result<(), Error> {
        again(UNDO_WITHIN, || async {
            let admin = self.primary.admin("postgres").await?;
            for setting in ["primary_conninfo", "synchronous_standby_names"] {
                within(admin.batch_execute(&format!("alter system reset {setting}"))).await?;
            }
            within(admin.batch_execute("select pg_reload_conf()")).await
        })
        .await
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

    /// The primary crashes, and after a while the standby takes its place. Gives the old one, which is down, to be buried. After
    /// an error the primary is the same as before, and may be down; there is no standby then.
    pub(super) async fn fail_over(&mut self, after: Duration) -> Result<(FailedOver, Cluster), Error> {
        let Some(standby) = self.standby.take() else { return Err(Error::new("there is no standby")) };
        let from = now();
        self.primary.stop_immediate().await?;
        tokio::time::sleep(after).await;
        // Replicas may have met the new timeline as soon as it began: from then on there is no way back.
        let timeline = again(UNDO_WITHIN, || promoted(&standby)).await?;
        let to = now();
        let old = std::mem::replace(&mut self.primary, standby);
        self.on = 1 - self.on;
        self.moved.send_replace(self.primary.port());
        Ok((FailedOver { from, to, timeline }, old))
    }

    /// Nothing is left of an old primary but its log.
    pub(super) async fn bury(&mut self, old: Cluster) {
        self.buried += 1;
        let to = self.folder.join(format!("old-primary-{}.log", self.buried));
        // Whoever looks for a cause later has one log less, which is not worth a run.
        let _ = std::fs::copy(old.log(), to);
        remove(old).await;
    }

    /// What only replicas write, as it stands on a server that somebody may hold to be the primary.
    pub(super) async fn written_by_replicas(&self, server: &Cluster) -> Result<String, Error> {
        let sql = "select concat_ws('; ',
            (select string_agg(concat(id, ' ', name, ' ', beat), ', ' order by id) from pgbaton.replica),
            (select string_agg(concat(lane, ' ', epoch), ', ' order by lane) from pgbaton.lane),
            (select string_agg(concat(lane, ' ', batch), ', ' order by lane) from pgbaton.newest),
            (select string_agg(concat(segment, ' ', emptied_by), ', ' order by segment) from pgbaton.segment))";
        let admin = server.admin(&self.database).await?;
        let row = within(admin.query_one(sql, &[])).await?;
        row.try_get(0).map_err(|cause| Error::because("reading what replicas wrote", &cause))
    }

    /// Makes a new standby on the side where none is needed any more.
    pub(super) async fn rebuild(&mut self) -> Result<(), Error> {
        if let Some(old) = self.standby.take() {
            remove(old).await;
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
    pub(super) fn logs(&self) -> Vec<(&'static str, PathBuf)> {
        let standby = self.standby.as_ref().map(|standby| ("standby", standby.log()));
        [Some(("primary", self.primary.log())), standby].into_iter().flatten().collect()
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

/// Its files are many.
async fn remove(old: Cluster) {
    // It fails only if dropping panics.
    let _ = tokio::task::spawn_blocking(move || drop(old)).await;
}

/// Makes a primary of a standby unless it is one already, and gives its timeline.
async fn promoted(standby: &Cluster) -> Result<u32, Error> {
    let admin = standby.admin("postgres").await?;
    let row = within(admin.query_one("select pg_is_in_recovery()", &[])).await?;
    if row.try_get::<_, bool>(0).unwrap_or(true) {
        standby.promote().await?;
    }
    timeline(standby).await
}

async fn timeline(server: &Cluster) -> Result<u32, Error> {
    let admin = server.admin("postgres").await?;
    let sql = "select ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer";
    let row = within(admin.query_one(sql, &[])).await?;
    let timeline: i32 = row.try_get(0).map_err(|cause| Error::because("reading the timeline", &cause))?;
    Ok(timeline.unsigned_abs())
}
