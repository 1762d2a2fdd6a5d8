-- Lanes that their owner has held for long: what those before it died of is not in them.
-- Parameters: $1 the replica, $2 the relays, $3 the lanes, $4 the epochs, one of each together. Rows: none. Locks: the lanes' rows.
update pgbaton.lane l set deaths = 0
from unnest($2::text[], $3::integer[], $4::bigint[]) as c(relay, lane, epoch)
where l.relay = c.relay and l.lane = c.lane and l.epoch = c.epoch and l.owner = $1::uuid and l.deaths > 0
