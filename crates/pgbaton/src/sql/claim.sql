-- Takes free lanes. A new statement after `claim_lock`, so that it sees what committed before the locks were had.
-- Parameters: $1 the replica, $2 the incarnation, $3 the relays, $4 the lanes, $5 the epochs they were free under.
-- Rows: the lanes that are now this replica's, with the new epoch, and how many of their owners have died in a row.
-- Locks: the lanes' rows; the replica's row against removal.
-- Invariant: only an ownerless lane of the epoch that was seen is taken, and its epoch grows.
update pgbaton.lane l set owner = $1::uuid, epoch = l.epoch + 1
from unnest($3::text[], $4::integer[], $5::bigint[]) as c(relay, lane, epoch)
where l.relay = c.relay and l.lane = c.lane and l.epoch = c.epoch and l.owner is null
  and pgbaton.incarnation() = $2::text and exists (select from pgbaton.replica r where r.id = $1::uuid)
returning l.relay, l.lane, l.lanes, l.epoch, l.deaths
