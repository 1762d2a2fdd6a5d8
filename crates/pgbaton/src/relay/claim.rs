//! One replica: renew, expire, claim, release.
//!
//! Two tasks. One renews the lease (`claim/renew.rs`). The other looks at the database four times a second: it expires
//! replicas that have stopped beating, claims free lanes up to the fair share, has lanes above it drained and gives them
//! back. Everything that changes a lane's owner or epoch happens there, one thing after the other.
//!
//! An identity lives from its first beat to the end of its lease. When it is lost, all lanes are dropped and the
//! replica starts again under a new one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::pauses::Pauses;
use super::publish::{self, LaneEnd, LaneEnded, LaneStart, Order};
use super::{Relay, RelaySpec};
use crate::clock::{self, SharedLease};
use crate::connection::{Connection, Slot};
use crate::error::{Error, Kind};
use crate::lane::{BalanceStep, Epoch, Grant, Holdings, RelayName, ReplicaId, balance};
use crate::lease::{BootInstant, Watch};
use crate::metrics::AllMetrics;
use crate::position::Incarnation;
use crate::replica::{Replica, ReplicaSpec, stopped};
use crate::sink::{Capabilities, Opening};
use crate::source::native;
use crate::vitals::Vitals;
use crate::{history, housekeeping, migrate};

mod deaths;
mod look;
mod renew;
mod start;
mod tell;
mod unattended;

use deaths::Deaths;
use renew::Renewer;
use unattended::Unattended;

/// How often the other replicas' beats are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A lane that failed to open is tried again after this.
const REOPEN_AFTER: Duration = Duration::from_millis(500);

/// A lane that a person has to look at is tried again after this.
const REFUSED_AFTER: Duration = Duration::from_secs(10);

/// How an identity ended.
pub(crate) enum Ended {
    /// Its lease is over, or the database no longer knows it: start again.
    Lost,
    /// It was asked to stop, and has given everything back.
    Stopped,
}

/// One life of a replica, from its first beat to the end of its lease.
pub(crate) struct Identity {
    id: ReplicaId,
    spec: ReplicaSpec,
    slot: Slot,
    relays: HashMap<RelayName, Arc<Relay>>,
    lease: SharedLease,
    watch: Watch,
    /// The incarnation that everything in memory belongs to.
    here: watch::Sender<Incarnation>,
    held: HashMap<Grant, Held>,
    deaths: Deaths,
    lanes: JoinSet<LaneEnded>,
    /// Tasks that never end while this identity lives.
    tasks: JoinSet<Result<(), Error>>,
    look_again: Arc<Notify>,
    unattended: Unattended,
    metrics: Arc<AllMetrics>,
    leaving: bool,
    vitals: Vitals,
}

/// A lane that is this replica's by the table.
enum Held {
    /// Its task runs.
    Running { orders: watch::Sender<Order>, stop: watch::Sender<bool> },
    /// Its task was told to stop, after another incarnation showed up, and is about to end. It is opened again if the
    /// table still agrees.
    Stopping,
    /// It is opened again at this moment.
    Waiting { until: BootInstant, opening: Opening },
    /// The sink knows this epoch: ours has to be raised above it first.
    Fenced { by: Epoch },
}

impl Identity {
    pub(crate) async fn live(
        replica: &Replica,
        capabilities: &HashMap<RelayName, Capabilities>,
        previous: &mut Option<ReplicaId>,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Ended, Error> {
        let mut identity = Self::begin(replica, capabilities, previous).await?;
        let result = identity.run(stop).await;
        // Whatever happens next, nothing is published under this identity any more.
        identity.lease.end();
        identity.lanes.shutdown().await;
        history::left(identity.id);
        for relay in identity.relays.values() {
            relay.metrics.owns_nothing();
        }
        result
    }

    /// Checks what is relied on, registers the relays, and makes this replica known.
    async fn begin(
        replica: &Replica,
        capabilities: &HashMap<RelayName, Capabilities>,
        previous: &mut Option<ReplicaId>,
    ) -> Result<Self, Error> {
        let spec = replica.spec.clone();
        let id = ReplicaId(Uuid::now_v7());
        let mut slot = Slot::new(spec.database.clone());
        let connection = slot.take().await?;
        migrate::check(&connection).await?;
        let (look_again, suspects) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(1)));
        let mut tasks = JoinSet::new();
        let mut relays = HashMap::new();
        for relay in &spec.relays {
            let name = relay.name.clone();
            let capabilities = capabilities.get(&name).cloned();
            let relay = start::relay(relay, id, replica, capabilities, (&look_again, &suspects), &mut tasks);
            relay.source.check().await?;
            look::register(&connection, &relay.spec).await?;
            relays.insert(name, relay);
        }
        if let Some(dead) = previous.take() {
            // Its lease is over and its tasks have ended: nobody needs to wait a ttl to see that.
            look::quit(&connection, dead).await?;
        }
        *previous = Some(id);
        let (here, lease) = look::join(&connection, id, &spec).await?;
        slot.put(connection);
        spec.database.lives(&here);
        let lease = SharedLease::new(lease);
        history::joined(id, &spec.name, spec.ttl, &lease);
        let vitals = replica.vitals.clone();
        vitals.joined(id, lease.clone());
        vitals.looked(true);
        let here = watch::Sender::new(here);
        tasks.spawn(renew::run(Renewer {
            database: spec.database.clone(),
            id,
            lease: lease.clone(),
            here: here.subscribe(),
            look_again: Arc::clone(&look_again),
            vitals: vitals.clone(),
        }));
        tasks.spawn(housekeeping::run(
            spec.database.clone(),
            id,
            relays.values().cloned().collect(),
            Arc::clone(&replica.metrics),
        ));
        tracing::info!(replica = %id, name = spec.name, "joined");
        let watch = Watch::new(spec.ttl);
        let (held, lanes) = (HashMap::new(), JoinSet::new());
        let unattended = Unattended::default();
        Ok(Self {
            id,
            spec,
            slot,
            relays,
            lease,
            watch,
            here,
            held,
            deaths: Deaths::default(),
            lanes,
            tasks,
            look_again,
            unattended,
            metrics: Arc::clone(&replica.metrics),
            leaving: false,
            vitals,
        })
    }

    async fn run(&mut self, stop: &mut watch::Receiver<bool>) -> Result<Ended, Error> {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut patience = None;
        loop {
            self.vitals.progress();
            let mut look = true;
            tokio::select! {
                () = stopped(stop), if !self.leaving => {
                    self.leave().await;
                    patience = Some(clock::now().after(self.spec.drain));
                }
                Some(ended) = self.lanes.join_next() => {
                    self.lanes_ended(ended.map_err(task_died)?).await?;
                    look = false;
                }
                Some(ended) = self.tasks.join_next() => {
                    ended.map_err(task_died)??;
                    // Renewing ends with the lease; nothing else ends.
                    return if self.lease.check().is_err() { Ok(Ended::Lost) } else { Err(task_died("it returned")) };
                }
                () = self.look_again.notified() => {}
                _ = looks.tick() => {}
            }
            if self.lease.check().is_err() {
                return Ok(Ended::Lost);
            }
            if self.leaving && (self.held.is_empty() || patience.is_some_and(|patience| clock::now() >= patience)) {
                return self.quit().await;
            }
            if look {
                self.look().await?;
            }
        }
    }

    /// Takes no more lanes, and has all of them drained. Those without a task go with the replica's row.
    async fn leave(&mut self) {
        self.leaving = true;
        if let Err(error) = self.announce_leaving().await {
            tracing::warn!(%error, "leaving could not be announced; lanes are drained all the same");
        }
        for held in self.held.values() {
            if let Held::Running { orders, .. } = held {
                orders.send_replace(Order::Drain);
            }
        }
        self.held.retain(|_, held| matches!(held, Held::Running { .. } | Held::Stopping));
    }

    async fn announce_leaving(&mut self) -> Result<(), Error> {
        let connection = self.slot.take().await?;
        look::leave(&connection, self.id).await?;
        self.slot.put(connection);
        Ok(())
    }

    async fn quit(&mut self) -> Result<Ended, Error> {
        if !self.held.is_empty() {
            tracing::warn!(
                lanes = self.held.len(),
                "draining took too long: what is in flight is left to the next owner"
            );
            self.lease.end();
            self.lanes.shutdown().await;
        }
        history::released(self.id, &self.held.keys().cloned().collect::<Vec<_>>(), false);
        let removed = async { look::quit(&self.slot.take().await?, self.id).await };
        if let Err(error) = removed.await {
            tracing::warn!(%error, "the replica's row could not be removed: the others expire it after a ttl");
        }
        Ok(Ended::Stopped)
    }

    /// One look at the database, and what follows from it. Trouble with it is survived until the lease is over.
    async fn look(&mut self) -> Result<(), Error> {
        let result = self.look_and_act().await;
        self.vitals.looked(result.is_ok());
        match result {
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, "looking at the other replicas failed; trying again");
                Ok(())
            }
            // Whoever stood still was expired meanwhile, and the database may have refused anything because of that.
            Err(error) if self.lease.check().is_err() => {
                tracing::debug!(%error, "after the end of the lease");
                Ok(())
            }
            result => result,
        }
    }

    async fn look_and_act(&mut self) -> Result<(), Error> {
        let connection = self.slot.take().await?;
        let seen = look::watch(&connection).await?;
        let now = clock::now();
        self.meet(&seen.here)?;
        self.watch.at_least(seen.ttl);
        let others: Vec<_> = seen.beats.iter().filter(|(id, _)| *id != self.id).copied().collect();
        self.watch.saw(&others, now);
        let timeline = seen.here.timeline;
        if seen.settled < timeline {
            self.watch.hold_claims(now);
            if self.watch.may_claim(now) {
                look::settle_timeline(&connection, timeline).await?;
            }
        }
        for (id, beat) in self.watch.expired(now) {
            self.vitals.progress();
            if let Some(name) = look::expire(&connection, id, beat).await? {
                tracing::warn!(replica = %id, name, "expired: its beat has not moved for a whole ttl");
            }
        }
        for (relay, since) in self.unattended.saw(&seen.holdings, now) {
            tracing::warn!(%relay, ?since, "no replica runs this relay: its messages wait until one does, or it is dropped");
        }
        self.metrics.outbox.unattended(self.unattended.names());
        for (name, relay) in &self.relays {
            relay.pause(Pauses::of(name, &seen.pauses));
            relay.changed(seen.changes.get(name).copied().unwrap_or_default());
        }
        self.act(&connection, seen.holdings).await?;
        self.slot.put(connection);
        Ok(())
    }

    /// Another incarnation: everything in memory is dropped, and the lanes are opened again from what the table holds.
    fn meet(&mut self, found: &Incarnation) -> Result<(), Error> {
        let here = self.here.borrow().clone();
        if *found == here {
            return Ok(());
        }
        if !found.same_database(&here) {
            return Err(Error::refused(format!("the database was {here} and is {found} now"), native::REBASE));
        }
        if found.timeline < here.timeline {
            return Err(Error::new(
                Kind::NotWritable,
                format!("the database was {here}, and an old primary answers now: {found}"),
            ));
        }
        tracing::warn!(%here, %found, "the database was failed over: reading everything again");
        self.watch.restart();
        for held in self.held.values_mut() {
            match held {
                Held::Running { stop, .. } => {
                    stop.send_replace(true);
                    *held = Held::Stopping;
                }
                Held::Waiting { until, .. } => *until = clock::now(),
                Held::Stopping | Held::Fenced { .. } => {}
            }
        }
        for relay in self.relays.values() {
            // A read may be waiting for a server that is no longer the one.
            relay.flows.abandon.notify_one();
        }
        self.spec.database.lives(found);
        self.here.send_replace(found.clone());
        Ok(())
    }

    async fn act(&mut self, connection: &Connection, holdings: Holdings) -> Result<(), Error> {
        for relay in self.relays.values().filter(|_| !self.leaving) {
            // Dropped between being registered and this replica's making itself known.
            if !holdings.lanes.iter().any(|fact| fact.grant.lane.relay == relay.spec.name) {
                look::register(connection, &relay.spec).await?;
            }
        }
        let held: Vec<Grant> = self.held.keys().cloned().collect();
        let (mut claims, mut idle) = (Vec::new(), Vec::new());
        for (step, reason) in balance(&holdings, self.id, &held) {
            match step {
                BalanceStep::Claim(grant) => claims.push(grant),
                BalanceStep::Release(grant) => idle.extend(self.drain(grant, reason)),
                BalanceStep::Split(grant) => self.order(&grant, Order::Split, reason),
                BalanceStep::Stop(grant) => self.stop(&grant, reason),
            }
        }
        self.give_back(connection, &idle, false).await?;
        self.survive(connection).await?;
        self.continue_held(connection).await?;
        if !claims.is_empty() && !self.leaving && self.watch.may_claim(clock::now()) {
            let here = self.here.borrow().clone();
            let sent = history::now();
            let claimed = look::claim(connection, self.id, &here, &claims).await?;
            let claimed = self.deaths.of_claims(claimed, clock::now());
            history::claimed(self.id, sent, &here, &claimed);
            tell::claimed(&claimed);
            for grant in claimed {
                self.start(grant, Opening::First);
            }
        }
        for (name, relay) in &self.relays {
            let held = self.held.keys().map(|grant| &grant.lane).filter(|lane| lane.relay == *name);
            relay.owns(&held.map(|lane| lane.number).collect::<BTreeSet<_>>());
        }
        Ok(())
    }

    /// Lanes that were held for long enough.
    async fn survive(&mut self, connection: &Connection) -> Result<(), Error> {
        self.deaths.keep(|grant| self.held.contains_key(grant));
        let survived = self.deaths.survived(clock::now());
        if survived.is_empty() {
            return Ok(());
        }
        look::survived(connection, self.id, &survived).await?;
        self.deaths.forget(&survived);
        Ok(())
    }

    /// Lanes that are held without a task: fenced ones are raised, waiting ones opened when it is time.
    async fn continue_held(&mut self, connection: &Connection) -> Result<(), Error> {
        let now = clock::now();
        let mut due = Vec::new();
        let mut fenced = Vec::new();
        for (grant, held) in &self.held {
            match held {
                Held::Waiting { until, opening } if now >= *until => due.push((grant.clone(), *opening)),
                Held::Fenced { by } => fenced.push((grant.clone(), *by)),
                _ => {}
            }
        }
        for (grant, opening) in due {
            self.start(grant, opening);
        }
        for (grant, by) in fenced {
            self.vitals.progress();
            let here = self.here.borrow().clone();
            let sent = history::now();
            if let Some(epoch) = look::raise(connection, self.id, &here, &grant, by).await? {
                history::raised(self.id, sent, &here, &grant, epoch);
                tracing::warn!(%grant, sink = %by, raised = %epoch, "the sink knew this epoch: raised above it");
                self.held.remove(&grant);
                let raised = Grant { lane: grant.lane.clone(), epoch };
                self.deaths.raised(&grant, &raised);
                self.start(raised, Opening::First);
            }
        }
        Ok(())
    }

    fn start(&mut self, grant: Grant, opening: Opening) {
        let Some(relay) = self.relays.get(&grant.lane.relay) else { return };
        let (orders, stop) = (watch::Sender::new(Order::Run), watch::Sender::new(false));
        let start = LaneStart {
            relay: Arc::clone(relay),
            grant: grant.clone(),
            opening,
            here: self.here.borrow().clone(),
            lease: self.lease.clone(),
            orders: orders.subscribe(),
            stop: stop.subscribe(),
            deaths: self.deaths.of(&grant),
        };
        self.held.insert(grant, Held::Running { orders, stop });
        self.lanes.spawn(publish::run(start));
    }

    fn stop(&mut self, grant: &Grant, reason: &str) {
        match self.held.remove(grant) {
            Some(Held::Running { stop, .. }) => {
                tracing::warn!(%grant, reason, "stopped");
                stop.send_replace(true);
            }
            Some(Held::Waiting { .. } | Held::Fenced { .. }) => history::dropped(self.id, grant, reason),
            Some(Held::Stopping) | None => {} // its task is about to end
        }
    }

    /// A running lane is drained first; another one can be given back at once, and is returned.
    fn drain(&mut self, grant: Grant, reason: &str) -> Option<Grant> {
        match self.held.get(&grant) {
            Some(Held::Running { .. }) => {
                self.order(&grant, Order::Drain, reason);
                None
            }
            Some(Held::Stopping) => None, // its task is about to end
            Some(_) | None => Some(grant),
        }
    }

    fn order(&self, grant: &Grant, order: Order, reason: &str) {
        if let Some(Held::Running { orders, .. }) = self.held.get(grant) {
            let known = *orders.borrow();
            // Whoever is to be drained is no longer to be split.
            if known != order && known != Order::Drain {
                tracing::info!(%grant, reason, "draining");
                orders.send_replace(order);
            }
        }
    }

    /// Gives lanes back. Whatever the answer, they are not held from now on: a release that commits late must not meet a
    /// lane that was opened again. The next look finds what was not released: held by the table alone.
    async fn give_back(&mut self, connection: &Connection, grants: &[Grant], settled: bool) -> Result<(), Error> {
        if grants.is_empty() {
            return Ok(());
        }
        self.held.retain(|grant, _| !grants.contains(grant));
        history::released(self.id, grants, settled);
        look::release(connection, self.id, grants).await?;
        tell::released(grants);
        Ok(())
    }

    /// One lane's task has ended, and perhaps others with it: those that were drained are given back together.
    async fn lanes_ended(&mut self, first: LaneEnded) -> Result<(), Error> {
        let (mut to_split, mut drained, mut undrained) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(ended) = next {
            let over = match ended.end {
                LaneEnd::Drained if self.is_to_be_split(&ended) => &mut to_split,
                LaneEnd::Drained => &mut drained,
                _ => &mut undrained,
            };
            over.extend(self.lane_ended(ended));
            next = self.lanes.try_join_next().transpose().map_err(task_died)?;
        }
        if let Err(error) = self.split(&to_split).await {
            // The next look finds what was not split: held by the table alone.
            tracing::warn!(%error, "lanes could not be split; trying again");
        }
        for (grants, settled) in [(drained, true), (undrained, false)] {
            if let Err(error) = self.give_back_now(&grants, settled).await {
                tracing::warn!(%error, "lanes could not be given back; trying again");
            }
        }
        Ok(())
    }

    /// Whether a lane was drained for that: since it was open, it is settled then.
    fn is_to_be_split(&self, drained: &LaneEnded) -> bool {
        matches!(self.held.get(&drained.grant), Some(Held::Running { orders, .. }) if *orders.borrow() == Order::Split)
    }

    /// Splits lanes that are drained. Whatever the answer, they are not held from now on.
    async fn split(&mut self, grants: &[Grant]) -> Result<(), Error> {
        self.held.retain(|grant, _| !grants.contains(grant));
        let here = self.here.borrow().clone();
        for grant in grants {
            self.vitals.progress();
            let connection = self.slot.take().await?;
            history::released(self.id, std::slice::from_ref(grant), true);
            let halves = look::split(&connection, self.id, &here, grant).await?;
            self.slot.put(connection);
            match halves.as_slice() {
                [] => tracing::info!(%grant, "not split now: somebody holds its lock"),
                _ => tracing::info!(%grant, "split"),
            }
            self.look_again.notify_one();
        }
        Ok(())
    }

    async fn give_back_now(&mut self, grants: &[Grant], settled: bool) -> Result<(), Error> {
        self.held.retain(|grant, _| !grants.contains(grant));
        if grants.is_empty() {
            return Ok(());
        }
        let connection = self.slot.take().await?;
        self.give_back(&connection, grants, settled).await?;
        self.slot.put(connection);
        Ok(())
    }

    /// What becomes of a lane whose task has ended. Gives it back if nothing more is to be done for it.
    fn lane_ended(&mut self, LaneEnded { grant, end, opening }: LaneEnded) -> Option<Grant> {
        let Some(held) = self.held.get_mut(&grant) else {
            history::dropped(self.id, &grant, "it was taken away");
            return None;
        };
        let again = |after: Duration| Held::Waiting { until: clock::now().after(after), opening };
        match end {
            LaneEnd::Drained => return Some(grant),
            LaneEnd::Stopped if !matches!(held, Held::Stopping) => {
                history::dropped(self.id, &grant, "its task stopped");
                self.held.remove(&grant);
            }
            _ if self.leaving => return Some(grant), // it is given back as it is
            _ if matches!(held, Held::Stopping) => {
                history::reopened(self.id, &grant, "failed_over");
                *held = again(Duration::ZERO);
            }
            LaneEnd::Stopped => {}
            LaneEnd::Fenced(by) => *held = Held::Fenced { by },
            LaneEnd::Reopen => {
                history::reopened(self.id, &grant, "unsettled");
                *held = again(REOPEN_AFTER);
            }
            LaneEnd::Refused(error) => {
                tracing::error!(%grant, %error, "the lane is held and not published");
                history::reopened(self.id, &grant, "refused");
                *held = again(REFUSED_AFTER);
            }
        }
        None
    }
}

fn task_died(error: impl std::fmt::Display) -> Error {
    Error::new(Kind::Internal, format!("a task of the relay ended that never should: {error}"))
        .hint("This is a fault in pgbaton: please report it with the log")
}
