-- From here on no acknowledgement of this relay is under way: what is set aside stands still. A new statement after `command_lock`.
-- Parameters: $1 the relay. Rows: one a lane; none if there is no such relay. Locks: those of its lanes, exclusively, until the
-- transaction ends.
select pg_catalog.pg_advisory_xact_lock(pgbaton.lane_lock(l.relay, l.lane))
from (select l.relay, l.lane from pgbaton.lane l where l.relay = $1::text order by l.lane) l
