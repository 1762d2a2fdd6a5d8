//! The replicas: real processes of the real executable, each with ways of its own, that are started again whenever they end.

mod aims;
mod post;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::destination::Destination;
use super::log::Log;
use super::plan::Plan;
use crate::Error;
use crate::process::POLL;
pub(super) use post::Post;

/// How many lanes a relay begins with.
pub(super) const LANES: u32 = 4;
/// A replica drains within five seconds, as its configuration says, or says why not.
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// All of them.
pub(super) struct Fleet {
    pub(super) posts: Vec<Arc<Post>>,
    pub(super) common: Arc<Common>,
    watching: Vec<tokio::task::JoinHandle<()>>,
    leading: tokio::task::JoinHandle<()>,
    /// False: nobody stops or kills itself any more.
    points: watch::Sender<bool>,
    /// False: whoever ends is not started again yet.
    starts: watch::Sender<bool>,
    folder: PathBuf,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.leading.abort();
        for watching in &self.watching {
            watching.abort();
        }
    }
}

/// Whether a replica's process lasts: that of the first one, if there are others to be killed.
pub(super) fn is_lasting(nth: usize, replicas: usize) -> bool {
    nth == 0 && replicas > 1
}

/// Once this file is there, no fail point does anything any more.
fn fail_points_off(folder: &Path) -> PathBuf {
    folder.join("calm.off")
}

/// What all replicas have in common.
pub(super) struct Common {
    pub(super) database: String,
    pub(super) destination: Arc<Destination>,
    pub(super) log: Arc<Log>,
}

impl Fleet {
    /// Starts them.
    pub(super) async fn start(plan: &Plan, common: Common, ports: &watch::Sender<[u16; 2]>) -> Result<Fleet, Error> {
        let (common, points, starts) = (Arc::new(common), watch::Sender::new(true), watch::Sender::new(true));
        let (mut posts, mut watching) = (Vec::new(), Vec::new());
        for number in 1..=plan.replicas {
            let lasting = is_lasting(number as usize - 1, plan.replicas as usize);
            let post = Arc::new(
                Post::new(plan, number, lasting, &common, (ports, points.subscribe(), starts.subscribe())).await?,
            );
            let folder = plan.folder.clone();
            watching.push(tokio::spawn(post::watch_over(Arc::clone(&post), folder, Arc::clone(&common))));
            posts.push(post);
        }
        let (led, mut ports) = (posts.clone(), ports.subscribe());
        let leading = tokio::spawn(async move {
            while ports.changed().await.is_ok() {
                let ports = *ports.borrow_and_update();
                led.iter().for_each(|post| post.ways.lead_to(ports));
            }
        });
        Ok(Fleet { posts, common, watching, leading, points, starts, folder: plan.folder.clone() })
    }

    /// Whether who ends is started again, or only later.
    pub(super) fn let_start(&self, let_start: bool) {
        self.starts.send_replace(let_start);
    }

    /// The replicas that have a process.
    pub(super) async fn present(&self) -> Vec<String> {
        let mut names = Vec::new();
        for post in &self.posts {
            if post.lock().await.pid().is_some() {
                names.push(post.name.clone());
            }
        }
        names
    }

    /// Whether one of them is in the middle of reading its configuration again.
    pub(super) async fn reloads(&self) -> bool {
        for post in &self.posts {
            if post.lock().await.reloads() {
                return true;
            }
        }
        false
    }

    /// Returns once a replica has begun to tell its history, which only one that was built with fail points does.
    pub(super) async fn tells(&self, folder: &Path) -> Result<(), Error> {
        const PATIENCE: Duration = Duration::from_secs(30);
        let deadline = Instant::now() + PATIENCE;
        let first = folder.join("r1-1.history");
        while !first.is_file() {
            if Instant::now() >= deadline {
                return Err(Error::new(
                    "the replicas tell nothing: pgbaton has to be built with its feature `faults`, as ./dev torture does",
                ));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// From now on nobody stops or kills itself, all are started, and no process is replaced for that: one that lasts would lose
    /// what it leaked. Returns once all are at work.
    pub(super) async fn calm(&self) {
        const PATIENCE: Duration = Duration::from_secs(30);
        let log = &self.common.log;
        let file = fail_points_off(&self.folder);
        let written = std::fs::write(&file, "");
        log.find_failure("silencing fail points", written.map_err(|cause| Error::because(file.display(), &cause)));
        self.points.send_replace(false);
        self.let_start(true);
        let deadline = Instant::now() + PATIENCE;
        for post in &self.posts {
            while !post.is_at_work().await {
                if Instant::now() >= deadline {
                    log.find(format!("{} is not at work {PATIENCE:?} after the last fault", post.name));
                    break;
                }
                tokio::time::sleep(POLL).await;
            }
        }
    }

    /// Ends all in order.
    pub(super) async fn stop(&self, log: &Log) {
        self.watching.iter().for_each(tokio::task::JoinHandle::abort);
        for post in &self.posts {
            log.find_failure("stopping a replica", post.stop(Duration::ZERO, log).await);
        }
    }
}
