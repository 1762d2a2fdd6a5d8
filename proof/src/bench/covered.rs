//! When a relay has dealt with everything that waits: its positions, as the database has them, cover the last message
//! of each lane.

use tokio_postgres::Client;

use super::LANES;
use crate::Error;

/// The last message of each lane that has one.
pub(super) struct Last {
    lanes: Vec<i32>,
    ids: Vec<i64>,
    xids: Vec<String>,
    /// How many messages there are.
    pub(super) messages: i64,
}

const LAST: &str = "
select l.lane, l.id, o.xid::text as xid, l.messages
from (select (hash & ($1::bigint - 1))::integer as lane, max(id) as id, count(*) as messages from pgbaton.outbox group by 1) l
  join pgbaton.outbox o on o.id = l.id";

/// A lane is past its last message once S sees it, or T sees it and everything up to it has been dealt with.
const COVERED: &str = "
select count(*) from unnest($2::integer[], $3::bigint[], $4::text[]) as w(lane, id, xid) cross join lateral (
  select n.* from (values (0), (1)) as f(leaf) cross join lateral (
    select * from pgbaton.position p where p.leaf = f.leaf and p.relay = $1 and p.lane = w.lane
    order by p.epoch desc, p.seq desc limit 1
  ) n order by n.epoch desc, n.seq desc limit 1
) p
where pg_visible_in_snapshot(w.xid::xid8, p.consumed)
   or (p.target is not null and pg_visible_in_snapshot(w.xid::xid8, p.target) and p.last >= w.id)";

impl Last {
    pub(super) async fn find(client: &Client) -> Result<Last, Error> {
        let failed = |cause| Error::because("looking for each lane's last message", &cause);
        let rows = client.query(LAST, &[&i64::from(LANES)]).await.map_err(failed)?;
        let mut last = Last { lanes: Vec::new(), ids: Vec::new(), xids: Vec::new(), messages: 0 };
        for row in rows {
            last.lanes.push(row.try_get("lane").map_err(failed)?);
            last.ids.push(row.try_get("id").map_err(failed)?);
            last.xids.push(row.try_get("xid").map_err(failed)?);
            last.messages += row.try_get::<_, i64>("messages").map_err(failed)?;
        }
        Ok(last)
    }

    /// Whether the relay's positions cover all of it.
    pub(super) async fn covered(&self, client: &Client, relay: &str) -> Result<bool, Error> {
        let row = client
            .query_one(COVERED, &[&relay, &self.lanes, &self.ids, &self.xids])
            .await
            .map_err(|cause| Error::because("looking at positions", &cause))?;
        Ok(usize::try_from(row.get::<_, i64>(0)) == Ok(self.lanes.len()))
    }
}
