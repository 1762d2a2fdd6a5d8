//! The database of the model: each function is one statement, with the rules of the design, section 5.

use super::setting::BUSY;

/// A replica's identity: a new one for each start.
pub type Id = u8;

/// A row of `pgbaton.replica`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReplicaRow {
    pub id: Id,
    pub beat: u8,
    /// What the owner's clock showed. Only a broken rule looks at it, so it is 0 for all others.
    pub stamp: u64,
}

/// A row of `pgbaton.lane`, with the newest row of `pgbaton.position` of that lane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LaneRow {
    pub owner: Option<Id>,
    pub epoch: u8,
    /// Under which epoch the position was written.
    pub position_epoch: u8,
    /// The first so many messages of the log are dealt with.
    pub position: u8,
}

/// An acknowledge or a park of the busy lane that has inserted its rows and not committed yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Transaction {
    pub id: Id,
    pub epoch: u8,
    pub position: u8,
    pub parked: Option<u8>,
    /// Whether it holds the lane's shared lock: always, but for the broken rule without it.
    pub locked: bool,
}

/// A parked message, with the epoch it was parked under.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ParkedRow {
    pub message: u8,
    pub epoch: u8,
}

/// What a claim brought.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Granted {
    pub lane: usize,
    pub epoch: u8,
    pub position: u8,
    /// In which timeline the statement ran.
    pub timeline: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Database {
    pub timeline: u8,
    /// The timeline that some replica has lived with for a whole ttl.
    pub settled: u8,
    pub replicas: Vec<ReplicaRow>,
    pub lanes: Vec<LaneRow>,
    /// The messages of the busy lane, in the order of their commits.
    pub log: Vec<u8>,
    pub parked: Vec<ParkedRow>,
    pub transactions: Vec<Transaction>,
}

impl Database {
    pub fn new(lanes: usize, messages: u8) -> Self {
        Self {
            timeline: 1,
            settled: 1,
            replicas: Vec::new(),
            lanes: vec![LaneRow::default(); lanes],
            log: (1..=messages).collect(),
            parked: Vec::new(),
            transactions: Vec::new(),
        }
    }

    pub fn register(&mut self, id: Id, stamp: u64) {
        self.replicas.push(ReplicaRow { id, beat: 0, stamp });
        self.replicas.sort_by_key(|row| row.id);
    }

    /// Whether there was a row to update.
    pub fn renew(&mut self, id: Id, stamp: u64) -> bool {
        let row = self.replicas.iter_mut().find(|row| row.id == id);
        row.map(|row| (row.beat, row.stamp) = (row.beat + 1, stamp)).is_some()
    }

    /// Deletes the replica if its beat is still this one; the foreign key frees its lanes.
    pub fn expire(&mut self, id: Id, beat: Option<u8>) {
        self.replicas.retain(|row| row.id != id || beat.is_some_and(|beat| row.beat != beat));
        for lane in &mut self.lanes {
            lane.owner = lane.owner.filter(|owner| self.replicas.iter().any(|row| row.id == *owner));
        }
    }

    /// Under the lane's exclusive lock (try, else skip), owner and epoch compared on the row itself, for a replica that
    /// is still there; then, in a new statement, reads the position.
    pub fn claim(&mut self, id: Id, lane: usize, epoch: u8) -> Option<Granted> {
        let locked = lane == BUSY && self.transactions.iter().any(|writing| writing.locked);
        let registered = self.replicas.iter().any(|row| row.id == id);
        let timeline = self.timeline;
        let row = &mut self.lanes[lane];
        if locked || !registered || row.owner.is_some() || row.epoch != epoch {
            return None;
        }
        (row.owner, row.epoch) = (Some(id), epoch + 1);
        Some(Granted { lane, epoch: row.epoch, position: row.position, timeline })
    }

    pub fn owns(&self, id: Id, lane: usize, epoch: u8) -> bool {
        self.lanes[lane].owner == Some(id) && self.lanes[lane].epoch == epoch
    }

    pub fn release(&mut self, id: Id, lane: usize, epoch: u8) {
        if self.owns(id, lane, epoch) {
            self.lanes[lane].owner = None;
        }
    }

    /// Raises a lane's epoch above the one that its sink holds, checked on the owner.
    pub fn raise(&mut self, id: Id, lane: usize, from: u8, above: u8) -> Option<u8> {
        if !self.owns(id, lane, from) {
            return None;
        }
        self.lanes[lane].epoch = above + 1;
        Some(above + 1)
    }

    /// What the transaction wrote becomes visible. Of two positions the one with the higher epoch counts.
    pub fn commit(&mut self, index: usize) -> Transaction {
        let done = self.transactions.remove(index);
        let row = &mut self.lanes[BUSY];
        if (done.epoch, done.position) > (row.position_epoch, row.position) {
            (row.position_epoch, row.position) = (done.epoch, done.position);
        }
        if let Some(message) = done.parked {
            self.parked.push(ParkedRow { message, epoch: done.epoch });
        }
        done
    }

    /// The state that a standby has: open transactions never reach it.
    pub fn replicated(&self) -> Self {
        Self { transactions: Vec::new(), ..self.clone() }
    }
}
