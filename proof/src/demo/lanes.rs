//! Who holds which lane, looked at several times a second, and how long a take-over took.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use tokio_postgres::Client;

use super::destination::Landed;
use crate::Error;

const LOOK: &str = "select l.lane, l.epoch, r.name from pgbaton.lane l left join pgbaton.replica r on r.id = l.owner";

/// A message's lane is the low bits of its hash.
const LANE_OF: &str = "select o.message_id::text, (o.hash & (l.lanes - 1))::int \
                       from pgbaton.outbox o, (select max(lanes) as lanes from pgbaton.lane) l";

/// All lanes as they were last seen.
pub(super) struct Lanes {
    client: Client,
    owners: BTreeMap<i32, (i64, Option<String>)>,
    takeover: Option<Takeover>,
}

/// The lanes that a killed replica held.
struct Takeover {
    killed_at: SystemTime,
    lanes: BTreeMap<i32, Orphan>,
}

struct Orphan {
    epoch: i64,
    /// When it was last seen with the killed owner's epoch. Whatever arrives later is of a new owner: what the killed
    /// one had under way was over long before, since nobody claims its lanes before a whole ttl has passed.
    unclaimed_at: SystemTime,
    claimed: bool,
}

impl Lanes {
    pub(super) fn new(client: Client) -> Lanes {
        Lanes { client, owners: BTreeMap::new(), takeover: None }
    }

    /// Looks at the table.
    pub(super) async fn look(&mut self) -> Result<(), Error> {
        let failed = |cause| Error::because("looking at the lanes", &cause);
        let at = SystemTime::now();
        self.owners.clear();
        for row in self.client.query(LOOK, &[]).await.map_err(failed)? {
            let (lane, epoch) = (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
            self.owners.insert(lane, (epoch, row.try_get(2).map_err(failed)?));
        }
        let orphans = self.takeover.iter_mut().flat_map(|takeover| &mut takeover.lanes);
        for (lane, orphan) in orphans {
            match self.owners.get(lane) {
                Some((epoch, _)) if *epoch > orphan.epoch => orphan.claimed = true,
                _ => orphan.unclaimed_at = at,
            }
        }
        Ok(())
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.owners.len()
    }

    /// How many of them this replica holds.
    pub(super) fn held_by(&self, name: &str) -> usize {
        self.owners.values().filter(|(_, owner)| owner.as_deref() == Some(name)).count()
    }

    /// To be called right after this replica was killed at that time: remembers its lanes.
    pub(super) async fn killed(&mut self, name: &str, killed_at: SystemTime) -> Result<(), Error> {
        self.look().await?;
        let held = self.owners.iter().filter(|(_, (_, owner))| owner.as_deref() == Some(name));
        let lanes = held
            .map(|(lane, (epoch, _))| (*lane, Orphan { epoch: *epoch, unclaimed_at: killed_at, claimed: false }))
            .collect();
        self.takeover = Some(Takeover { killed_at, lanes });
        Ok(())
    }

    /// Whether all lanes of the killed replica have been claimed by others.
    pub(super) fn taken_over(&self) -> bool {
        self.takeover.as_ref().is_some_and(|takeover| takeover.lanes.values().all(|orphan| orphan.claimed))
    }

    /// From the kill to the first publish, by a new owner, of the last lane that had one. `None` if a lane had none.
    pub(super) async fn takeover_time(&self, landed: &[Landed]) -> Result<Option<Duration>, Error> {
        let Some(takeover) = &self.takeover else { return Ok(None) };
        let lane_of = self.lane_of_messages().await?;
        let mut first: BTreeMap<i32, SystemTime> = BTreeMap::new();
        for one in landed {
            let Some(lane) = lane_of.get(&one.arrival.message_id) else { continue };
            let Some(orphan) = takeover.lanes.get(lane) else { continue };
            if one.at > orphan.unclaimed_at {
                let first = first.entry(*lane).or_insert(one.at);
                *first = one.at.min(*first);
            }
        }
        if first.len() < takeover.lanes.len() {
            return Ok(None);
        }
        Ok(first.values().max().and_then(|last| last.duration_since(takeover.killed_at).ok()))
    }

    async fn lane_of_messages(&self) -> Result<HashMap<String, i32>, Error> {
        let failed = |cause| Error::because("reading the lanes of the messages", &cause);
        let rows = self.client.query(LANE_OF, &[]).await.map_err(failed)?;
        rows.iter().map(|row| Ok((row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?))).collect()
    }
}
