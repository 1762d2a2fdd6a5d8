-- Takes the shared locks of the lanes about to be acknowledged: while they are held, nobody changes the lanes' owner or
-- epoch by a claim. Without them a frozen owner's row could commit after the next owner has read the position.
-- Parameters: $1 the relay, $2 the lanes. Rows: one for each. Locks: shared on each, until the transaction ends.
select pg_catalog.pg_advisory_xact_lock_shared(pgbaton.lane_lock($1::text, c.lane))
from pg_catalog.unnest($2::integer[]) as c(lane)
