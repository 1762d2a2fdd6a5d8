-- Gives lanes back. Their positions are written by then.
-- Parameters: $1 the replica, $2 the relays, $3 the lanes, $4 the epochs, one of each together.
-- Rows: one for each that was ours. Locks: the lanes' rows.
update pgbaton.lane l set owner = null
from unnest($2::text[], $3::integer[], $4::bigint[]) as c(relay, lane, epoch)
where l.relay = c.relay and l.lane = c.lane and l.epoch = c.epoch and l.owner = $1::uuid
returning l.relay, l.lane
