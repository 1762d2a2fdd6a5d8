//! The running demo: replicas, writers and destination, looked at together ten times a second.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::destination::Destination;
use super::fleet::{Fleet, State};
use super::lanes::Lanes;
use super::screen::{Screen, Tone, bar, grouped};
use crate::Error;
use crate::writers::{Progress, Writers};

const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Nothing has arrived for so long although something is missing: it will not come any more.
const STALLED_AFTER: Duration = Duration::from_secs(20);
/// Short enough for all of the line to fit into 80 columns.
const BAR: usize = 12;

/// Everything that runs.
pub(super) struct Stage<'a> {
    pub(super) screen: &'a Screen,
    pub(super) messages: u64,
    pub(super) fleet: Fleet,
    /// The classic relay has none.
    pub(super) lanes: Option<Lanes>,
    pub(super) destination: Destination,
    pub(super) writers: Option<Writers>,
    /// As the last look found them.
    pub(super) progress: Progress,
    pub(super) arrived: u64,
}

impl Stage<'_> {
    /// Looks until `reached`; an error if that takes too long.
    pub(super) async fn until(
        &mut self,
        what: &str,
        within: Duration,
        reached: impl Fn(&Stage<'_>) -> bool,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + within;
        loop {
            self.look().await?;
            if reached(self) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::new(format!("waited {} s in vain: {what}", within.as_secs())));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Goes on looking for so long.
    pub(super) async fn pass(&mut self, time: Duration) -> Result<(), Error> {
        let end = Instant::now() + time;
        self.until("", time * 2, |_| Instant::now() >= end).await
    }

    /// Looks until every committed message has arrived, or nothing arrives any more. True if all have.
    pub(super) async fn until_all_arrived(&mut self) -> Result<bool, Error> {
        let (mut most, mut since) = (0, Instant::now());
        loop {
            self.look().await?;
            if self.arrived > most {
                (most, since) = (self.arrived, Instant::now());
            }
            let enough = self.arrived >= self.progress.committed;
            if enough && self.destination.distinct().await? >= self.progress.committed {
                return Ok(true);
            }
            if since.elapsed() >= STALLED_AFTER {
                return Ok(false);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&mut self) -> Result<(), Error> {
        self.fleet.check()?;
        if let Some(writers) = &self.writers {
            self.progress = writers.progress();
        }
        if let Some(lanes) = &mut self.lanes {
            lanes.look().await?;
        }
        self.arrived = self.destination.arrived().await?;
        self.show();
        Ok(())
    }

    fn show(&self) {
        let replicas: Vec<String> = (self.fleet.replicas.iter())
            .map(|replica| match (replica.state, &self.lanes) {
                (State::Killed, _) => "killed".to_owned(),
                (State::Frozen, _) => "frozen".to_owned(),
                (State::Running, Some(lanes)) => lanes.held_by(&replica.name).to_string(),
                (State::Running, None) => "up".to_owned(),
            })
            .collect();
        self.screen.progress(&format!(
            "{} written {:>7}  published {:>7}  {}: {}",
            bar(self.progress.committed, self.messages, BAR),
            grouped(self.progress.committed),
            grouped(self.arrived),
            if self.lanes.is_some() { "lanes" } else { "replicas" },
            replicas.join(" + "),
        ));
    }

    /// Whether that share of all messages has been written.
    pub(super) fn written(&self, percent: u64) -> bool {
        self.progress.finished || self.progress.committed * 100 >= self.messages * percent
    }

    /// The lanes of the replicas that run, such as "6 + 5 + 5".
    pub(super) fn shares(&self) -> String {
        let running = self.fleet.replicas.iter().filter(|replica| replica.state == State::Running);
        running.map(|replica| self.held_by(&replica.name).to_string()).collect::<Vec<_>>().join(" + ")
    }

    pub(super) fn held_by(&self, name: &str) -> usize {
        self.lanes.as_ref().map_or(0, |lanes| lanes.held_by(name))
    }

    /// Whether each running replica has its fair share of all lanes.
    pub(super) fn is_shared(&self) -> bool {
        let Some(lanes) = &self.lanes else { return true };
        let running: Vec<usize> = (self.fleet.replicas.iter())
            .filter(|replica| replica.state == State::Running)
            .map(|replica| lanes.held_by(&replica.name))
            .collect();
        let least = lanes.count() / running.len().max(1);
        lanes.count() > 0 && running.iter().sum::<usize>() == lanes.count() && running.iter().all(|held| *held >= least)
    }

    /// SIGKILL, and a note of the lanes it held.
    pub(super) async fn kill(&mut self, index: usize) -> Result<(), Error> {
        let name = self.name(index);
        let holds = self.holds(&name);
        let killed_at = SystemTime::now();
        self.fleet.kill(index)?;
        self.screen.event(Tone::Harm, &format!("kill -KILL {name}{holds}"));
        if let Some(lanes) = &mut self.lanes {
            lanes.killed(&name, killed_at).await?;
        }
        Ok(())
    }

    /// SIGSTOP.
    pub(super) fn freeze(&mut self, index: usize) -> Result<(), Error> {
        let name = self.name(index);
        let holds = self.holds(&name);
        self.fleet.freeze(index)?;
        self.screen.event(Tone::Harm, &format!("kill -STOP {name}{holds}: frozen, and it does not know"));
        Ok(())
    }

    /// SIGCONT.
    pub(super) fn wake(&mut self, index: usize) -> Result<(), Error> {
        let name = self.name(index);
        self.fleet.wake(index)?;
        self.screen.event(Tone::Harm, &format!("kill -CONT {name}: it wakes and goes on where it was"));
        Ok(())
    }

    pub(super) fn name(&self, index: usize) -> String {
        self.fleet.replicas.get(index).map(|replica| replica.name.clone()).unwrap_or_default()
    }

    fn holds(&self, name: &str) -> String {
        match &self.lanes {
            Some(lanes) => format!(" ({} of {} lanes)", lanes.held_by(name), lanes.count()),
            None => String::new(),
        }
    }
}
