-- Takes the exclusive locks of the lanes that can be had at once. A lane whose lock is held is skipped: an
-- acknowledgement is under way, or another replica is claiming it.
-- Parameters: $1 the relays, $2 the lanes, one of each together.
-- Rows: the lanes whose lock is held now. Locks: exclusive on each, until the transaction ends.
select c.relay, c.lane
from unnest($1::text[], $2::integer[]) as c(relay, lane)
where pg_catalog.pg_try_advisory_xact_lock(pgbaton.lane_lock(c.relay, c.lane))
