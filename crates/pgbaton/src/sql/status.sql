-- Each lane with its owner and its newest position.
-- Rows: one a lane. Locks: none. Relies on: the index on (leaf, relay, lane, epoch, seq).
select n.relay, n.lane, n.lanes, n.lane_epoch as epoch, r.id::text as replica, r.name as replica_name, n.batch,
       case when y.adopted is null then greatest(n.floor, n.last) end as passed,
       extract(epoch from pg_catalog.clock_timestamp() - n.written_at)::float8 as age
from pgbaton.newest n join pgbaton.relay y on y.name = n.relay left join pgbaton.replica r on r.id = n.owner
order by n.relay, n.lane
